"""A node's data folder: who owns it, which partitions it holds, and the offsets it remembers for them."""

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

from ._created import CreatedPartitions
from ._files import (
    PartitionKey,
    fsync_folder,
    is_checkpoint,
    read_checkpoint,
    replace_file,
    storage_error,
    sync_filesystem,
    write_checkpoint,
)
from ._folder_lock import FolderLock
from ._open_files import OPEN_FILES
from ._partition_folder import check_folder, make_folder, sync_metadata, write_metadata
from ._proof import FolderProof, read_proof, write_proof
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
from .settings import LogSettings

META = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"

DELETED_SUFFIX = "-delete"
_DEVICE_CHECK = "device-check"

VERIFY_ON_OPEN_BYTES = 256 << 20
MANY_FOLDERS = 4
"""From so many on new folders, and what is in them, are brought to the device together."""
MANY_LOGS = 32
"""From so many on a clean stop waits once for the file system, not several times for each log."""
_LOOK_AGAIN = 64
"""After so many flushes it is looked again whether too many files are open."""

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
        pairs = [line.partition("=") for line in path.read_text().splitlines() if not line.startswith("#")]
        meta = {key.strip(): value.strip() for key, _, value in pairs}
        return meta["cluster.id"], int(meta["node.id"]), meta["directory.id"]
    except FileNotFoundError:
        raise LogDirectoryError(f"{folder} is not a data folder: it has no {META}") from None
    except (KeyError, ValueError):
        raise LogDirectoryError(
            f"{path} does not name cluster.id, node.id and directory.id: restore it or use another data folder"
        ) from None


class LogDirectory:
    """Opens and locks a data folder, creating it if need be; then gives out its logs.

    `open_log` and `write_checkpoints` may be called from several threads, which do not wait for each other's
    device; a log that was given out belongs to one writer thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cluster_id: str,
        node_id: int,
        settings: LogSettings | None = None,
        verify_on_open_bytes: int = VERIFY_ON_OPEN_BYTES,
    ) -> None:
        """
        verify_on_open_bytes: of what need not be scanned when logs are opened, so much in all has every batch's
          CRC checked all the same, the newest segments of each log first; damage is then seen at once.

        Raises:
          LogDirectoryLockedError: Another process uses it.
          WrongClusterError: It holds data of another cluster.
          WrongNodeError: It holds data of another node.
          LogDirectoryError: Its `meta.properties` cannot be read.
          StorageError: The device refuses.
        """
        self.path = Path(path)
        self.settings = settings or LogSettings()
        self.on_flush_due: Callable[[], None] = lambda: None
        """Called by the writer of a log when `flush_due` may have something to do."""
        self._verify_bytes = verify_on_open_bytes
        self._lock = threading.RLock()
        self._logs: dict[PartitionKey, DiskLog] = {}
        self._proof_lock = threading.Lock()
        """A write that nobody waits for any more may still be under way."""
        self._folders_in_use = tuple(threading.Lock() for _ in range(_FOLDER_LOCKS))
        """One of them is held by who opens or deletes a log; `_lock` is not, while the device is waited for. Taken
        before that. A number of locks that does not grow with the partitions that have come and gone."""
        self._empty: set[PartitionKey] = set()
        """Whose folders were made here and have not been opened."""
        self._folder_lock: FolderLock | None = None
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder_lock = FolderLock(self.path)
            self._enter(cluster_id, node_id)
        except OSError as error:
            self._release()
            raise storage_error(error, f"cannot use {self.path}") from error
        except LogDirectoryError:
            self._release()
            raise

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path}>"

    def _enter(self, cluster_id: str, node_id: int) -> None:
        self.directory_id = self._check_meta(cluster_id, node_id)
        """Made once for each folder; tells whether it was replaced."""
        self._created = CreatedPartitions(self.path)
        self.proof = read_proof(self.path)
        """As the last process left it, or as written since; None in a new folder, or one of an earlier release."""
        self.was_clean, self.previous_broker_epoch = self._take_clean_marker()
        self._high_watermarks = read_checkpoint(self.path / HIGH_WATERMARKS)
        self._recovery_points = read_checkpoint(self.path / RECOVERY_POINTS)
        self._log_starts = read_checkpoint(self.path / LOG_STARTS)
        self._knows_log_starts = self._created.is_complete and is_checkpoint(self.path / LOG_STARTS)
        self._cleaned = read_checkpoint(self.path / CLEANED)

    def _check_meta(self, cluster_id: str, node_id: int) -> str:
        path = self.path / META
        if not path.exists():
            return self._write_meta(cluster_id, node_id)
        found_cluster, found_node, directory_id = read_identity(self.path)
        if found_cluster != cluster_id:
            raise WrongClusterError(str(self.path), found_cluster, cluster_id)
        if found_node != node_id:
            raise WrongNodeError(str(self.path), found_node, node_id)
        return directory_id

    def _write_meta(self, cluster_id: str, node_id: int) -> str:
        if not self.partitions():
            CreatedPartitions.begin(self.path)
            write_checkpoint(self.path / LOG_STARTS, {})
        directory_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        text = f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={directory_id}\n"
        replace_file(self.path / META, text.encode())
        return directory_id

    def _take_clean_marker(self) -> tuple[bool, int]:
        """Read the marker and delete it for good before anything can be written."""
        path = self.path / CLEAN_SHUTDOWN
        try:
            marker = json.loads(path.read_bytes())
            found = (True, int(marker.get("brokerEpoch", -1)))
        except FileNotFoundError:
            return False, -1
        except (ValueError, AttributeError):
            found = (False, -1)
        path.unlink()
        fsync_folder(self.path)
        return found

    def write_proof(self, proof: FolderProof) -> None:
        """Write down, durably, how old the folder is from now on.

        Raises StorageError if the device refuses; what was there before stands then.
        """
        with self._proof_lock:
            with self._lock:
                self._check_open()
            if self.proof is None or self.proof.pulse <= proof.pulse:
                write_proof(self.path, proof)
                self.proof = proof

    def check_device(self) -> None:
        """Have a small file written and brought to the device, to tell a single file that it refuses from a device
        that fails. Raises StorageError.
        """
        path = self.path / _DEVICE_CHECK
        try:
            replace_file(path, b"")
            path.unlink()
        except OSError as error:
            raise storage_error(error, f"cannot write to {self.path}") from error

    def partitions(self) -> list[PartitionKey]:
        """The partitions that have a folder here, in order."""
        matches = (FOLDER_NAME.fullmatch(entry.name) for entry in os.scandir(self.path) if entry.is_dir())
        return sorted((match[1], int(match[2])) for match in matches if match)

    def logs(self) -> list[tuple[PartitionKey, DiskLog]]:
        """Those that are open, in order."""
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
          LogNotFoundError: There is no folder, and `create` is false.
          WrongTopicIdError: The folder is that of an earlier topic.
          WrongPartitionError: The folder is that of another partition.
          CorruptMetadataError: The folder does not say whose it is.
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
                log = self._open(folder, key, settings or self.settings)
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

    def _open(self, folder: Path, key: PartitionKey, settings: LogSettings) -> DiskLog:
        is_empty = key in self._empty
        self._empty.discard(key)
        log = DiskLog(
            folder,
            *key,
            is_empty=is_empty,
            settings=settings,
            recovery_point=self._recovery_points.get(key, 0),
            log_start_offset=self._log_start(key),
            clean=self.was_clean,
            verify_bytes=self._verify_bytes,
            on_recovery_point_lowered=self._write_recovery_points,
            cleaned_offset=self._cleaned.get(key),
            on_log_start_moved=self._write_log_starts,
            on_cleaned=self._write_cleaned,
            on_flush_due=lambda: self.on_flush_due(),
        )
        with self._lock:
            self._verify_bytes -= log.recovery.bytes_verified
        return log

    def _folder(self, topic: str, partition: int, create: bool, topic_id: str | None) -> Path:
        folder = self.path / f"{topic}-{partition}"
        if not folder.is_dir():
            if not create:
                raise LogNotFoundError(f"{self.path} holds no partition {partition} of topic {topic}")
            self._make_folders([((topic, partition), topic_id)])
        check_folder(folder, (topic, partition), topic_id)
        return folder

    def make_folders(self, wanted: Sequence[tuple[PartitionKey, str | None]]) -> None:
        """Make the folders of logs that are about to be opened for the first time, with what they have in common
        written once: of many logs each takes `open_log` a fraction of the time then. Those that are there are left
        alone.

        wanted: each with its topic's id, if that is known.

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
                self._make_folders([each for each in wanted if not self._folder_of(each[0]).is_dir()])
            except OSError as error:
                raise storage_error(error, f"cannot make folders in {self.path}") from error

    def _make_folders(self, wanted: Sequence[tuple[PartitionKey, str | None]]) -> None:
        if not wanted:
            return
        keys = [key for key, _ in wanted]
        with self._lock:
            self._forget(keys)
        self._created.add(keys)
        together = len(keys) >= MANY_FOLDERS
        for key, topic_id in wanted:
            folder = self._folder_of(key)
            make_folder(folder)
            if topic_id is not None:
                write_metadata(folder, key, topic_id, sync=not together)
        if not (together and self._sync_filesystem()):
            for key, topic_id in wanted:
                if topic_id is not None and together:
                    sync_metadata(self._folder_of(key))
            fsync_folder(self.path)
        self._empty.update(keys)

    def _sync_filesystem(self) -> bool:
        """Bring all to the device in one wait; False if there is no such call. Raises OSError."""
        assert self._folder_lock is not None
        try:
            sync_filesystem(self._folder_lock.fileno())
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            return False
        return True

    def _folder_of(self, key: PartitionKey) -> Path:
        return self.path / f"{key[0]}-{key[1]}"

    def _all_in_use(self, keys: Sequence[PartitionKey]) -> list[threading.Lock]:
        """The locks of these folders, in the order in which all take them."""
        return [self._folders_in_use[at] for at in sorted({hash(key) % _FOLDER_LOCKS for key in keys})]

    def _log_start(self, key: PartitionKey) -> int | None:
        """As written down; a log that was made here and is not listed has always begun at 0. None: nobody knows."""
        made_here = self._knows_log_starts and not self._created.never_held(key)
        return self._log_starts.get(key, 0 if made_here else None)

    def never_held(self, topic: str, partition: int) -> bool:
        """Whether it is certain that this directory has never had a log of the partition: none is missing."""
        return self._created.never_held((topic, partition))

    def delete_log(self, topic: str, partition: int) -> None:
        """As `delete_logs`, one."""
        self.delete_logs([(topic, partition)])

    def delete_logs(self, partitions: Sequence[PartitionKey]) -> None:
        """Close logs and rename their folders, so that nobody takes them for such, now or after a crash. Those that
        are not there are passed over.

        What they take up is given back by `remove_deleted_logs`. Nothing else may be under way in the logs.

        Raises StorageError if the device refuses; any of them may be deleted then.
        """
        with ExitStack() as stack:
            for lock in self._all_in_use(partitions):
                stack.enter_context(lock)
            stack.enter_context(self._lock)
            self._check_open()
            try:
                renamed = [self._set_aside(key) for key in partitions]
                if any(renamed):
                    fsync_folder(self.path)
                self._forget(partitions)
                self._created.remove(partitions)
            except OSError as error:
                raise storage_error(error, f"cannot delete logs in {self.path}") from error

    def _set_aside(self, key: PartitionKey) -> bool:
        log = self._logs.pop(key, None)
        if log is not None:
            log.close(clean=False)
        folder = self._folder_of(key)
        if not folder.is_dir():
            return False
        # Kafka's form, and like there the name is cut so that it stays a legal one.
        folder.rename(self.path / f"{key[0][:200]}-{key[1]}.{uuid.uuid4().hex}{DELETED_SUFFIX}")
        return True

    def remove_deleted_logs(self) -> int:
        """Remove what `delete_log` has renamed, also before a crash; returns the number of folders. May take long.

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

    def _forget(self, keys: Sequence[PartitionKey]) -> None:
        """Folders of these names may have been moved away: what is remembered will not be true of new ones."""
        known = [key for key in keys if self._cleaned.pop(key, None) is not None]
        if known:
            self._write_checkpoint(CLEANED, self._cleaned)
        tables = (self._high_watermarks, self._log_starts, self._recovery_points)
        known = [key for key in keys for table in tables if table.pop(key, None) is not None]
        if known:
            self._write_checkpoints({})

    def high_watermarks(self) -> dict[PartitionKey, int]:
        """As last checkpointed: hints, perhaps old."""
        return dict(self._high_watermarks)

    def write_checkpoints(self, high_watermarks: Mapping[PartitionKey, int]) -> None:
        """Write high watermarks (of those given), recovery points and log starts.

        Raises StorageError if the device refuses; the old checkpoints stand then.
        """
        with self._lock:
            self._check_open()
            self._write_checkpoints(high_watermarks)

    def _write_checkpoints(self, high_watermarks: Mapping[PartitionKey, int]) -> None:
        self._high_watermarks.update(high_watermarks)
        self._write_checkpoint(HIGH_WATERMARKS, self._high_watermarks)
        self._write_log_starts()
        self._write_recovery_points()

    def _write_log_starts(self) -> None:
        with self._lock:
            self._log_starts.update({key: log.log_start_offset for key, log in self._logs.items()})
            self._write_checkpoint(LOG_STARTS, self._log_starts)

    def _write_cleaned(self) -> None:
        """Which logs offsets may be missing from, and up to where each is compacted."""
        with self._lock:
            found = {key: log.cleaned_offset for key, log in self._logs.items()}
            self._cleaned.update({key: offset for key, offset in found.items() if offset is not None})
            self._write_checkpoint(CLEANED, self._cleaned)

    def _write_recovery_points(self) -> None:
        with self._lock:
            self._recovery_points.update({key: log.recovery_point for key, log in self._logs.items()})
            self._write_checkpoint(RECOVERY_POINTS, self._recovery_points)

    def _write_checkpoint(self, name: str, offsets: Mapping[PartitionKey, int]) -> None:
        """Only into the folder that is locked: what another process uses now is not ours to write to."""
        try:
            if self._folder_lock is not None:
                self._folder_lock.check()
            write_checkpoint(self.path / name, offsets)
        except OSError as error:
            raise storage_error(error, f"cannot write the checkpoints in {self.path}") from error

    def flush_due(self, now: float) -> dict[PartitionKey, StorageError]:
        """Flush the logs whose settings call for it, and all closed segments; then write the recovery points, and
        close idle files if too many are open.

        Meant for a thread of its own: the writers of the logs do not wait for it.

        now: seconds of `time.monotonic`.

        Returns the logs that could not be flushed, with the reason; they take no writes any more, but for those
        with `TooManyOpenFilesError`, which are flushed the next time.
        Raises StorageError if the recovery points cannot be written; the old ones stand then.
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
                # Those that are flushed to have their file closed may have become enough by now.
                OPEN_FILES.trim()
        if moved:
            self._write_recovery_points()
        OPEN_FILES.trim()
        return failures

    def close(
        self,
        clean: bool = True,
        *,
        high_watermarks: Mapping[PartitionKey, int] | None = None,
        broker_epoch: int = -1,
    ) -> None:
        """Close every log and give up the folder.

        `clean`: flush all, write the checkpoints, and last the marker by which the next start trusts the files.
        The marker is not written if anything before it fails; that error is raised once all is closed.
        """
        with self._lock:
            if self._folder_lock is None:
                return
            try:
                self._close_logs(clean)
                if clean:
                    self._write_checkpoints(high_watermarks or {})
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
        """Bring all logs to the device in one wait. What cannot be done so each log does for itself."""
        waiting = []
        for log in self._logs.values():
            with suppress(StorageError):
                if log.settle():
                    waiting.append(log)
        try:
            all_synced = not waiting or self._sync_filesystem()
        except OSError as error:
            raise storage_error(error, f"cannot bring {self.path} to the device") from error
        if all_synced:
            for log in waiting:
                log.settled()

    def _write_clean_marker(self, broker_epoch: int) -> None:
        try:
            marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
            replace_file(self.path / CLEAN_SHUTDOWN, marker)
        except OSError as error:
            raise storage_error(error, f"cannot write the clean-stop marker in {self.path}") from error

    def _check_open(self) -> None:
        if self._folder_lock is None:
            raise LogClosedError(f"{self.path} is closed")

    def _release(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.release()
            self._folder_lock = None
