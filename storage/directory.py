"""A node's data folder: its owner, its partitions and their checkpointed offsets."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ._files import (
    PartitionKey,
    fsync_folder,
    fsync_names_above,
    replace_file,
    storage_error,
    sync_filesystem,
    write_checkpoint,
)
from ._opening import NoFileError, read_file
from .disk_log import DiskLog
from .errors import (
    InvalidTopicError,
    LogClosedError,
    LogDirectoryError,
    LogNotFoundError,
    StorageError,
    WrongClusterError,
    WrongNodeError,
)
from .folder._checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, Checkpoints
from .folder._created import FILE_NAME as CREATED
from .folder._created import CreatedPartitions
from .folder._data_folder import make_data_folder
from .folder._folder_lock import FolderLock
from .folder._partition_folder import (
    PARTITION_METADATA,
    check_folder,
    make_folder,
    sync_metadata,
    write_metadata,
)
from .folder._proof import PROOF, FolderProof, read_proof, write_proof
from .folder._sealed import sealed, unsealed
from .folder._stray import (
    DELETED_SUFFIX,
    Stray,
    find_strays,
    has_note,
    read_stray,
    remove_note,
    stray_name,
    write_note,
)
from .segment._open_files import OPEN_FILES
from .settings import LogSettings

META = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_DEVICE_CHECK = "device-check"
_REGULAR = (HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS)
"""Checkpoints that are written from time to time; that of compaction only when it moves."""

VERIFY_ON_OPEN_BYTES = 256 << 20
MANY_FOLDERS = 4
"""Number of new folders from which they are synced to the device together."""
MANY_LOGS = 32
"""Number of logs from which a clean stop syncs the file system once, instead of each log several times."""
_LOOK_AGAIN = 64
"""Number of flushes after which the number of open files is checked again."""

_FOLDER_LOCKS = 64

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
FOLDER_NAME = re.compile(rf"({_TOPIC.pattern})-(0|[1-9][0-9]*)")


def check_topic(topic: str) -> None:
    """Raise InvalidTopicError unless Kafka would accept the name (KIP-29)."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopicError(
            f"{topic!r} is not a topic name: use 1 to 249 letters, digits, '.', '_' or '-', and not '.' or '..'"
        )


def read_identity(folder: Path) -> tuple[str, int, str]:
    """Cluster id, node id and directory id of a data folder.

    Raises LogDirectoryError if its `meta.properties` does not name them.
    """
    path = folder / META
    try:
        text = unsealed(read_file(path))
        if text is None or not text.endswith("\n"):  # cut short, the last id may look like a whole one
            raise ValueError(path)
        pairs = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
        meta = {key.strip(): value.strip() for key, _, value in pairs}
        return meta["cluster.id"], int(meta["node.id"]), meta["directory.id"]
    except (FileNotFoundError, NotADirectoryError):
        raise LogDirectoryError(
            f"{folder} is not a data folder: it has no {META}; name the folder of a node's logs"
        ) from None
    except NoFileError as error:
        raise storage_error(error, f"cannot use {folder}") from None
    except (KeyError, ValueError):
        raise LogDirectoryError(
            f"{path} does not name cluster.id, node.id and directory.id, or its checksum does not match: restore "
            "it, or use another data folder, to which the replicas are copied"
        ) from None


class LogDirectory:
    """Opens and locks a data folder, creating it if need be; then gives out its logs.

    Several threads may call `open_log` and `write_checkpoints`, and do not wait for one another's device access. An
    open log belongs to one writer thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cluster_id: str,
        node_id: int,
        settings: LogSettings | None = None,
        verify_on_open_bytes: int = VERIFY_ON_OPEN_BYTES,
        on_mended: Callable[[PartitionKey, Path, str], None] = lambda key, path, why: None,
    ) -> None:
        """
        on_mended: told of each file that was removed, cut or replaced, or lacks what the logs show, and why it is
          built again from them; called from any thread.
        verify_on_open_bytes: how much data that needs no scan has its CRCs checked when logs are opened, the newest
          segments of each log first, to find damage early.

        Raises:
          LogDirectoryLockedError: Another process uses the folder.
          WrongClusterError: The folder belongs to another cluster.
          WrongNodeError: The folder belongs to another node.
          LogDirectoryError: Its `meta.properties` cannot be read.
          StorageError: The device refuses.
        """
        self.path = Path(path)
        self.settings = settings or LogSettings()
        self.on_flush_due: Callable[[], None] = lambda: None
        """The writer of a log calls this when `flush_due` may have work."""
        self._verify_bytes = verify_on_open_bytes
        self._on_mended = on_mended
        self._lock = threading.RLock()
        self._logs: dict[PartitionKey, DiskLog] = {}
        self._proof_lock = threading.Lock()
        """Serialises writes of the proof: an abandoned one may still be under way."""
        self._folders_in_use = tuple(threading.Lock() for _ in range(_FOLDER_LOCKS))
        """Opening or deleting a log holds one of these while it waits for the device, and takes it before `_lock`,
        which it does not hold meanwhile. Their number is fixed, so that it does not grow with past partitions."""
        self._restored: set[PartitionKey] = set()
        """Logs that were opened with the note of a stray log."""
        self._empty: set[PartitionKey] = set()
        """Partitions whose folders were created here and have not been opened yet."""
        self._folder_lock: FolderLock | None = None
        try:
            make_data_folder(self.path)
            self._folder_lock = FolderLock(self.path)
            self._enter(cluster_id, node_id)
        except OSError as error:
            self._release()
            raise storage_error(error, f"cannot use {self.path}") from error
        except StorageError:
            self._release()
            raise

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path}>"

    def _enter(self, cluster_id: str, node_id: int) -> None:
        self.directory_id = self._check_meta(cluster_id, node_id)
        """Made once for each folder; tells whether it was replaced."""
        self._created = CreatedPartitions(self.path)
        self.proof = read_proof(self.path, self.directory_id)
        """The last written proof; None in a new folder, or one of an earlier release."""
        self.damaged = dict[Path, str]()
        """Small files that could not be relied on when the folder was opened, and what follows."""
        self.was_clean, self.previous_broker_epoch = self._take_clean_marker()
        assert self._folder_lock is not None
        self._checkpoints = Checkpoints(self.path, self._logs, self._folder_lock.check)
        self.damaged |= dict.fromkeys(self._checkpoints.damaged, "the logs are read without it")
        if self.proof is None and os.path.lexists(self.path / PROOF):
            self.damaged[self.path / PROOF] = (
                "the directory counts as one that was restored to an older state"
            )
        self._knows_log_starts = self._created.is_complete and self._checkpoints.lists_log_starts

    def _check_meta(self, cluster_id: str, node_id: int) -> str:
        path = self.path / META
        if not os.path.lexists(path):
            return self._write_meta(cluster_id, node_id)
        found_cluster, found_node, directory_id = read_identity(self.path)
        if found_cluster != cluster_id:
            raise WrongClusterError(str(self.path), found_cluster, cluster_id)
        if found_node != node_id:
            raise WrongNodeError(str(self.path), found_node, node_id)
        return directory_id

    def _write_meta(self, cluster_id: str, node_id: int) -> str:
        """The metadata store will know the directory by its id, so what has that id must not vanish."""
        fsync_names_above(self.path)
        if not self.partitions():
            CreatedPartitions.begin(self.path)
            write_checkpoint(self.path / LOG_STARTS, {})
        directory_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        text = f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={directory_id}\n"
        replace_file(self.path / META, sealed(text, comment="#"))
        return directory_id

    def _take_clean_marker(self) -> tuple[bool, int]:
        """Read the marker, and delete it durably before anything else is written."""
        path = self.path / CLEAN_SHUTDOWN
        try:
            # Kafka's has no checksum.
            marker = json.loads(unsealed(read_file(path)) or "")
            found = (True, int(marker.get("brokerEpoch", -1)))
        except FileNotFoundError:
            return False, -1
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
            found = (False, -1)
            self.damaged[path] = "the last stop counts as a crash"
        path.unlink()
        fsync_folder(self.path)
        return found

    def write_proof(self, proof: FolderProof) -> None:
        """Store the folder's proof counter durably.

        Raises StorageError if the device refuses; the previous value stays.
        """
        with self._proof_lock:
            with self._lock:
                self._check_open()
            if self.proof is None or self.proof.pulse <= proof.pulse:
                write_proof(self.path, proof, self.directory_id)
                self.proof = proof

    def check_device(self) -> None:
        """Write and sync a small file, to tell a failing device from a single bad file. Raises StorageError."""
        path = self.path / _DEVICE_CHECK
        try:
            replace_file(path, b"")
            path.unlink()
        except OSError as error:
            raise storage_error(error, f"cannot write to {self.path}") from error

    def partitions(self) -> list[PartitionKey]:
        """The partitions with a folder here, in order."""
        matches = (FOLDER_NAME.fullmatch(entry.name) for entry in os.scandir(self.path) if entry.is_dir())
        return sorted((match[1], int(match[2])) for match in matches if match)

    def logs(self) -> list[tuple[PartitionKey, DiskLog]]:
        """The open logs, in order."""
        with self._lock:
            return sorted(self._logs.items(), key=lambda item: item[0])

    def open_log(
        self,
        topic: str,
        partition: int,
        *,
        create: bool,
        topic_id: str | None = None,
        settings: LogSettings | None = None,
    ) -> DiskLog:
        """The log of a partition; the same object while it is open. `settings` override the folder's.

        `topic_id` guards against a topic that was deleted and created again: it is written into a new folder, with
        the names of topic and partition, and compared with an old one's.

        Raises:
          InvalidTopicError: Not a topic name.
          LogNotFoundError: The folder does not exist, and `create` is false.
          WrongTopicIdError: The folder belongs to an earlier topic.
          WrongPartitionError: The folder belongs to another partition.
          CorruptMetadataError: The folder's metadata does not name its partition.
          CorruptLogError: The files are damaged. Nothing was changed.
        """
        check_topic(topic)
        if partition < 0:
            raise LogNotFoundError(f"{topic} has no partition {partition}")
        key = (topic, partition)
        with self._folder_in_use(key):
            with self._lock:
                self._check_open()
                if key in self._logs:
                    return self._logs[key]
            try:
                folder = self._folder(topic, partition, create, topic_id)
                log = self._open(folder, key, settings or self.settings, clean=self.was_clean)
            except OSError as error:
                raise storage_error(error, f"cannot open {topic}-{partition} in {self.path}") from error
            with self._lock:
                if self._folder_lock is None:
                    log.close(clean=False)
                self._check_open()
                self._logs[key] = log
            return log

    def _folder_in_use(self, key: PartitionKey) -> threading.Lock:
        return self._folders_in_use[hash(key) % _FOLDER_LOCKS]

    def _open(self, folder: Path, key: PartitionKey, settings: LogSettings, *, clean: bool) -> DiskLog:
        if has_note(folder):
            self._restored.add(key)
        is_empty = key in self._empty
        self._empty.discard(key)
        log = DiskLog(
            folder,
            *key,
            is_empty=is_empty,
            settings=settings,
            recovery_point=self._checkpoints.get(RECOVERY_POINTS, key) or 0,
            log_start_offset=self._log_start(key),
            clean=clean,
            verify_bytes=self._verify_bytes,
            on_recovery_point_lowered=lambda: self._write(RECOVERY_POINTS),
            cleaned_offset=self._checkpoints.get(CLEANED, key),
            on_log_start_moved=lambda: self._write(LOG_STARTS),
            on_cleaned=lambda: self._write(CLEANED),
            on_flush_due=lambda: self.on_flush_due(),
            on_mended=lambda path, why: self._on_mended(key, path, why),
        )
        with self._lock:
            self._verify_bytes -= log.recovery.bytes_verified
        if self._created.never_held(key):
            try:
                self._enter_moved(key, log)
            except (OSError, StorageError):
                log.close(clean=False)
                raise
        return log

    def _enter_moved(self, key: PartitionKey, log: DiskLog) -> None:
        """Somebody has put the folder here. From now on it is missing if it is not there."""
        with self._lock:
            # First: of a log that was made here, a log start that is not listed is 0.
            self._checkpoints.set(key, {LOG_STARTS: log.log_start_offset})
        self._created.add([key])
        why = "it does not list the folder, which was moved here, or the file is damaged"
        self._on_mended(key, self.path / CREATED, why)

    def _folder(self, topic: str, partition: int, create: bool, topic_id: str | None) -> Path:
        folder = self._folder_of((topic, partition))
        if not self._is_made((topic, partition)):
            if not create:
                raise LogNotFoundError(f"{self.path} holds no partition {partition} of topic {topic}")
            self._make_folders([((topic, partition), topic_id)])
        check_folder(folder, (topic, partition), topic_id)
        return folder

    def make_folders(self, wanted: Sequence[tuple[PartitionKey, str | None]]) -> None:
        """Create the folders of many new logs together, which makes `open_log` much faster for each. Existing
        folders
        stay unchanged.

        wanted: the logs, each with its topic's id, if known.

        Raises InvalidTopicError, StorageError.
        """
        partitions = [key for key, _ in wanted]
        for topic, _ in partitions:
            check_topic(topic)
        with ExitStack() as stack:
            for lock in self._all_in_use(partitions):
                stack.enter_context(lock)
            with self._lock:
                self._check_open()
            try:
                self._make_folders([each for each in wanted if not self._is_made(each[0])])
            except OSError as error:
                raise storage_error(error, f"cannot create folders in {self.path}") from error

    def _make_folders(self, wanted: Sequence[tuple[PartitionKey, str | None]]) -> None:
        if not wanted:
            return
        keys = [key for key, _ in wanted]
        with self._lock:
            self._checkpoints.forget(keys)
        self._created.plan(keys)
        together = len(keys) >= MANY_FOLDERS
        for key, topic_id in wanted:
            folder = self._folder_of(key)
            if not folder.is_dir():
                make_folder(folder)
            if topic_id is not None:
                write_metadata(folder, key, topic_id, sync=not together)
        if not (together and self._sync_filesystem()):
            for key, topic_id in wanted:
                if topic_id is not None and together:
                    sync_metadata(self._folder_of(key))
            fsync_folder(self.path)
        self._created.add(keys)
        self._empty.update(keys)

    def _sync_filesystem(self) -> bool:
        """Sync the whole file system; False if the system has no such call. Raises OSError."""
        assert self._folder_lock is not None
        try:
            sync_filesystem(self._folder_lock.fileno())
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            return False
        return True

    def _is_made(self, key: PartitionKey) -> bool:
        """Whether the folder is there, and known to be: the device may have refused when it was made."""
        return self._folder_of(key).is_dir() and not self._created.is_planned(key)

    def _folder_of(self, key: PartitionKey) -> Path:
        return self.path / f"{key[0]}-{key[1]}"

    def _all_in_use(self, keys: Sequence[PartitionKey]) -> list[threading.Lock]:
        """The locks of these folders, in the global lock order."""
        return [self._folders_in_use[at] for at in sorted({hash(key) % _FOLDER_LOCKS for key in keys})]

    def _log_start(self, key: PartitionKey) -> int | None:
        """The checkpointed log start; 0 for an unlisted log that was created here. None: unknown."""
        made_here = self._knows_log_starts and not self._created.never_held(key)
        listed = self._checkpoints.get(LOG_STARTS, key)
        return 0 if listed is None and made_here else listed

    def never_held(self, topic: str, partition: int) -> bool:
        """Whether this directory certainly never had a log of the partition, so that none is missing."""
        return self._created.never_held((topic, partition))

    def delete_log(self, topic: str, partition: int) -> None:
        """Like `delete_logs`, for one log."""
        self.delete_logs([(topic, partition)])

    def set_aside(self, partition: PartitionKey, why: str, now_ms: int) -> Stray | None:
        """Close a log and keep its folder as a stray log, under another name; None if there is no folder.

        The partition still counts as one that this directory has held. No other operation may run in the log.

        why: the reason, for an operator. now_ms: time of the wall clock.

        Raises StorageError if the device refuses.
        """
        folder = self._folder_of(partition)
        with self._folder_in_use(partition):
            with self._lock:
                self._check_open()
                offsets = self._checkpoints.of(partition)
                log = self._logs.pop(partition, None)
            if log is not None:
                with suppress(StorageError):
                    log.close(clean=True)
                log.close(clean=False)
            try:
                if not folder.is_dir():
                    return None
                write_note(folder, partition, why, now_ms, offsets)
                aside = folder.rename(self.path / stray_name(partition))
                fsync_folder(self.path)
                with self._lock:
                    self._checkpoints.forget([partition])
                return read_stray(aside, partition)
            except OSError as error:
                raise storage_error(error, f"cannot set {partition[0]}-{partition[1]} aside") from error

    def keep_tail(self, partition: PartitionKey, offset: int | None, why: str, now_ms: int) -> Stray:
        """Copy an open log from the segment with `offset` on (None: all of it) as a stray log.

        The writer of the log calls it, before it cuts. A crash may leave a stray log that does not say why it is
        there.

        Raises StorageError if the device refuses.
        """
        with self._lock:
            self._check_open()
            log = self._logs[partition]
        aside = self.path / stray_name(partition)
        try:
            make_folder(aside)
            log.copy_tail(offset, aside)
            write_note(aside, partition, why, now_ms, {})
            fsync_folder(self.path)
            return read_stray(aside, partition)
        except OSError as error:
            raise storage_error(error, f"cannot keep the end of {partition[0]}-{partition[1]}") from error

    def strays(self) -> list[Stray]:
        """The stray logs here. Raises StorageError if the device refuses."""
        try:
            return find_strays(self.path)
        except OSError as error:
            raise storage_error(error, f"cannot look for stray logs in {self.path}") from error

    def restore(self, stray: Stray, *, trust_name: bool = False) -> DiskLog:
        """Make a stray log the partition's log again, and recover it as after a crash.

        trust_name: the folder takes its owner's topic id from the metadata store at the next start of the node,
          instead of keeping its own.

        Raises:
          LogDirectoryError: The partition has a log by now.
          CorruptLogError: The files are damaged. The folder stands in its place.
          StorageError: The device refuses.
        """
        key, folder = stray.key, self._folder_of(stray.key)
        with self._folder_in_use(key):
            try:
                if os.path.lexists(folder):
                    raise LogDirectoryError(
                        f"{folder} exists: set it aside, or move it away, before {stray.path}"
                    )
                if trust_name:
                    (stray.path / PARTITION_METADATA).unlink(missing_ok=True)
                with self._lock:
                    self._check_open()
                    # Before the folder has its name: a log start that is not listed would count as 0.
                    self._checkpoints.set(key, stray.checkpoints)
                # With its note: until the node has registered, the log counts as one that may lack records.
                stray.path.rename(folder)
                fsync_folder(self.path)
                log = self._open(folder, key, self.settings, clean=False)
                with self._lock:
                    self._logs[key] = log
                return log
            except OSError as error:
                raise storage_error(error, f"cannot restore {stray.path}") from error

    def is_restored(self, topic: str, partition: int) -> bool:
        """Whether the log, which has been opened, was restored, and no node has registered with it since."""
        return (topic, partition) in self._restored

    def settle_restored(self) -> None:
        """The node has registered without counting on restored logs. Raises StorageError."""
        try:
            while self._restored:
                key = self._restored.pop()
                with self._folder_in_use(key):
                    remove_note(self._folder_of(key))
        except OSError as error:
            raise storage_error(error, f"cannot remove notes of stray logs in {self.path}") from error

    def delete_logs(self, partitions: Sequence[PartitionKey]) -> None:
        """Close logs and rename their folders, so that they no longer count as logs, even after a crash. Missing
        logs
        are skipped.

        `remove_deleted_logs` frees the space. No other operation may run in these logs.

        Raises StorageError if the device refuses; some of the logs may be deleted then.
        """
        with ExitStack() as stack:
            for lock in self._all_in_use(partitions):
                stack.enter_context(lock)
            stack.enter_context(self._lock)
            self._check_open()
            try:
                renamed = [self._rename_deleted(key) for key in partitions]
                if any(renamed):
                    fsync_folder(self.path)
                self._checkpoints.forget(partitions)
                self._created.remove(partitions)
            except OSError as error:
                raise storage_error(error, f"cannot delete logs in {self.path}") from error

    def _rename_deleted(self, key: PartitionKey) -> bool:
        log = self._logs.pop(key, None)
        if log is not None:
            log.close(clean=False)
        folder = self._folder_of(key)
        if not folder.is_dir():
            return False
        # Kafka's form. Like Kafka, shorten the name so that it stays valid.
        folder.rename(self.path / f"{key[0][:200]}-{key[1]}.{uuid.uuid4().hex}{DELETED_SUFFIX}")
        return True

    def remove_deleted_logs(self) -> int:
        """Remove folders that `delete_logs` has renamed, also before a crash; returns their number. May take long.

        Raises StorageError if the device refuses.
        """
        folders = [entry for entry in self.path.iterdir() if entry.name.endswith(DELETED_SUFFIX)]
        for folder in folders:
            try:
                shutil.rmtree(folder)
            except FileNotFoundError:
                continue  # another thread is at it, too
            except OSError as error:
                raise storage_error(error, f"cannot remove {folder}") from error
        return len(folders)

    def high_watermarks(self) -> dict[PartitionKey, int]:
        """The checkpointed high watermarks: hints that may be old."""
        return self._checkpoints.table(HIGH_WATERMARKS)

    def write_checkpoints(self, high_watermarks: Mapping[PartitionKey, int]) -> None:
        """Write the given high watermarks, all recovery points and all log starts.

        Raises StorageError if the device refuses; the old checkpoints stay.
        """
        with self._lock:
            self._check_open()
            self._checkpoints.write(*_REGULAR, high_watermarks=high_watermarks)

    def _write(self, name: str) -> None:
        with self._lock:
            self._checkpoints.write(name)

    def flush_due(self, now: float) -> dict[PartitionKey, StorageError]:
        """Flush the logs that are due by their settings, and all closed segments. Then write the recovery points,
        and close idle files if too many are open.

        Call it in a separate thread: the writers of the logs do not wait for it.

        now: seconds of `time.monotonic`.

        Returns the logs that could not be flushed, with the reason. They accept no more writes, except those with
        `TooManyOpenFilesError`, which the next call flushes.
        Raises StorageError if the recovery points cannot be written; the old ones stay.
        """
        with self._lock:
            logs = list(self._logs.items())
        failures: dict[PartitionKey, StorageError] = {}
        moved = 0
        for key, log in logs:
            end = log.flush_due(now)
            if end is None:
                continue
            try:
                log.flush(end)
                moved += 1
            except LogClosedError:
                continue
            except StorageError as error:
                failures[key] = error
            if moved % _LOOK_AGAIN == 0:
                # By now enough logs may be flushed to close their files.
                OPEN_FILES.trim()
        if moved:
            self._write(RECOVERY_POINTS)
        OPEN_FILES.trim()
        return failures

    def close(
        self,
        clean: bool = True,
        *,
        high_watermarks: Mapping[PartitionKey, int] | None = None,
        broker_epoch: int = -1,
    ) -> None:
        """Close every log and unlock the folder.

        `clean`: flush everything, write the checkpoints, and at last the marker that lets the next start trust the
        files. If a step before it fails, the marker is not written; the error is raised after everything is closed.
        """
        with self._lock:
            if self._folder_lock is None:
                return
            try:
                self._close_logs(clean)
                if clean:
                    # The next start trusts them: they are written whatever may have become of the files.
                    self._checkpoints.write_again()
                    self._checkpoints.write(*_REGULAR, high_watermarks=high_watermarks)
                    self._write_clean_marker(broker_epoch)
            finally:
                self._release()

    def _close_logs(self, clean: bool) -> None:
        try:
            if clean and len(self._logs) >= MANY_LOGS:
                self._settle_all()
            for log in self._logs.values():
                log.close(clean)
        finally:
            for log in self._logs.values():
                log.close(clean=False)

    def _settle_all(self) -> None:
        """Sync all logs at once. If that is not possible, each log syncs itself."""
        waiting = []
        for log in self._logs.values():
            with suppress(StorageError):
                if log.settle():
                    waiting.append(log)
        try:
            all_synced = not waiting or self._sync_filesystem()
        except OSError as error:
            raise storage_error(error, f"cannot flush {self.path} to the device") from error
        if all_synced:
            for log in waiting:
                log.settled()

    def _write_clean_marker(self, broker_epoch: int) -> None:
        try:
            marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch})
            replace_file(self.path / CLEAN_SHUTDOWN, sealed(marker + "\n"))
        except OSError as error:
            raise storage_error(error, f"cannot write the clean-stop marker in {self.path}") from error

    def _check_open(self) -> None:
        if self._folder_lock is None:
            raise LogClosedError(f"{self.path} is closed")

    def _release(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.release()
            self._folder_lock = None
