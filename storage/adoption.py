"""A data folder that Kafka wrote: what is in it, and a copy of it that a node can use.

Kafka's folder is only read. The copy sets right the differences between the two formats: topic ids are written as
ours, `partition.metadata` names the partition, and a segment that Kafka's cleaner has left short of the next one
ends in a bare header, as our cleaner leaves it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import attrs

from ._epochs import FILE_NAME as EPOCHS
from ._epochs import EpochCache
from ._files import (
    PartitionKey,
    base_offset_in,
    copy_file,
    fsync_file,
    fsync_folder,
    fsync_names_above,
    read_checkpoint,
    replace_file,
    write_checkpoint,
)
from ._opening import open_file, read_file
from ._producers import SNAPSHOT_SUFFIX
from ._transactions import TRANSACTION_INDEX_SUFFIX
from .batch import records
from .batch._scan import crc32c, scan
from .directory import CLEAN_SHUTDOWN, FOLDER_NAME, META, LogDirectory
from .errors import CorruptBatchError, ForeignFolderError, StorageError
from .folder._checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from .folder._created import CreatedPartitions
from .folder._partition_folder import make_folder, read_topic_id, write_metadata
from .folder._sealed import sealed
from .folder._stray import DELETED_SUFFIX, STRAY_SUFFIX
from .inspection import batches_in, producers_in
from .log import EpochEntry
from .segment._segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from .verification import PartitionCheck, Verification, segment_files

METADATA_FOLDER = "__cluster_metadata-0"
PROOF_OF_COPY = "adopted-from"
"""A file that names the folder that a copy was made of."""

_LOCK = ".lock"
_CHECKPOINT = ".checkpoint"
_FUTURE_SUFFIX = "-future"
_MAGIC_AT = 16
_MAGIC = 2
_COPIED = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
_UNFINISHED = (".cleaned", ".swap")
_LARGE = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
"""Files that are mapped or copied, and not read at one go."""
_MOST_AT_ONCE = {_CHECKPOINT: 1 << 30}
_MOST_ELSE = 64 << 20
"""Bytes of files that are: a snapshot of the metadata log, and else."""
_HEADER_END = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, two timestamps, producer id, epoch and sequence, record count."""
_HEADER = struct.Struct(">qiibI")
_AFTER_LENGTH = 49
_RESTART = "start Kafka on it, wait until all partitions are in sync, and stop it cleanly (SIGTERM)"


@attrs.frozen(kw_only=True)
class Seam:
    """Offsets that the cleaner has left out at a segment's end: from `start` up to `end`, where the next begins."""

    base_offset: int
    start: int
    end: int


@attrs.frozen(kw_only=True)
class ForeignLog:
    """One partition of Kafka's, whole and closed. `topic_id`: 32 hexadecimal digits. `open_transactions`: producer
    ids with the first offset of each. `cleaned_offset`: None if no offset can be missing.
    """

    topic: str
    partition: int
    topic_id: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    epochs: tuple[EpochEntry, ...]
    cleaned_offset: int | None
    next_producer_id: int
    open_transactions: tuple[tuple[int, int], ...]
    seams: tuple[Seam, ...]
    size_bytes: int

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    @property
    def folder_name(self) -> str:
        return f"{self.topic}-{self.partition}"


@attrs.frozen(kw_only=True)
class ForeignIdentity:
    """The owner of a folder. `directory_id` is empty where Kafka, before 3.7, gave none."""

    cluster_id: str
    node_id: int
    directory_id: str


@attrs.frozen(kw_only=True)
class ForeignFolder:
    """A data folder of Kafka's that may be copied."""

    path: Path
    identity: ForeignIdentity
    logs: tuple[ForeignLog, ...]


@attrs.frozen(kw_only=True)
class MetadataLog:
    """The values in a copy of the cluster's metadata log, snapshot first; position: its last epoch and its end."""

    position: tuple[int, int]
    values: tuple[bytes, ...]


def identify(path: Path) -> ForeignIdentity:
    """Find the folder's owner, and check that its broker stopped cleanly.

    Raises ForeignFolderError.
    """
    _check_files(path)
    meta = path / META
    try:
        lines = [
            line.partition("=")
            for line in re.split(r"\r\n|[\r\n]", read_file(meta).decode("latin-1"))
            if not line.startswith("#")
        ]
    except (FileNotFoundError, NotADirectoryError):
        raise ForeignFolderError(
            path, [f"it has no {META}: name one of the folders that the broker's log.dirs lists"]
        ) from None
    found = {key.strip(): value.strip() for key, _, value in lines}
    if found.get("version") == "0" or "broker.id" in found:
        raise ForeignFolderError(
            path,
            [f"{META} is of a broker that uses ZooKeeper: migrate that cluster to KRaft first (Kafka 3.9)"],
        )
    try:
        identity = ForeignIdentity(
            cluster_id=found["cluster.id"],
            node_id=int(found["node.id"]),
            directory_id=found.get("directory.id", ""),
        )
    except (KeyError, ValueError):
        raise ForeignFolderError(path, [f"{META} lacks cluster.id or node.id"]) from None
    if not (path / CLEAN_SHUTDOWN).exists():
        raise ForeignFolderError(
            path, [f"it has no {CLEAN_SHUTDOWN}: its broker runs, or did not stop cleanly; {_RESTART}"]
        )
    return identity


def _check_files(path: Path) -> None:
    """Check that each file ends, and fits into memory where it is read at one go.

    Raises ForeignFolderError with the FIFOs, devices, sockets, links to nothing and the files that are too large.
    """
    problems = []
    for folder in (path, *_inner(path)):
        for each in folder.iterdir() if folder.is_dir() else ():
            if each.is_dir():
                continue
            if not each.is_file():
                problems.append(f"{each} is no file and no folder: move it away")
            elif each.suffix not in _LARGE and each.stat().st_size > _MOST_AT_ONCE.get(
                each.suffix, _MOST_ELSE
            ):
                problems.append(
                    f"{each} has {each.stat().st_size} bytes, which no broker has written: move it away"
                )
    if problems:
        raise ForeignFolderError(path, problems)


def _inner(path: Path) -> Iterator[Path]:
    """The folders of partitions, which are read."""
    for each in path.iterdir() if path.is_dir() else ():
        if each.is_dir() and (FOLDER_NAME.fullmatch(each.name) or each.name == METADATA_FOLDER):
            yield each


@contextmanager
def kept_from_kafka(path: Path) -> Iterator[None]:
    """No broker can use the folder while the block lasts.

    Raises ForeignFolderError if one does.
    """
    try:
        # Open for reading: Kafka's own lock excludes a shared one, and nothing of the folder is touched.
        fd = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise ForeignFolderError(path, ["a running broker holds its lock: stop the broker"]) from None
            raise
        yield
    finally:
        os.close(fd)


def metadata_log(path: Path) -> MetadataLog | None:
    """The cluster's metadata as this folder knows it; None if it has no copy.

    Raises ForeignFolderError if the copy is damaged or lacks something.
    """
    folder = path / METADATA_FOLDER
    if not folder.is_dir():
        return None
    values: list[bytes] = []
    position = (0, 0)
    snapshots = sorted(each for each in folder.iterdir() if each.suffix == _CHECKPOINT and "-" in each.stem)
    try:
        if snapshots:
            end, epoch = map(int, snapshots[-1].stem.split("-"))
            data = read_file(snapshots[-1])
            scan(data)
            values += [each.value for each in records(data) if each.value is not None]
            position = (epoch, end)
        for segment in segment_files(folder):
            position = _read_metadata(segment, position, values)
    except (CorruptBatchError, ValueError) as error:
        raise ForeignFolderError(path, [f"{folder} cannot be read: {error}; {_RESTART}"]) from error
    return MetadataLog(position=position, values=tuple(values))


def _read_metadata(segment: Path, position: tuple[int, int], values: list[bytes]) -> tuple[int, int]:
    epoch, end = position
    for found, data in batches_in(segment):
        if found.reason or found.info is None:
            raise ValueError(f"{segment} is damaged at byte {found.position}: {found.reason}")
        if found.info.next_offset <= end:
            continue
        if found.info.base_offset > end:
            raise ValueError(f"{segment} begins at offset {found.info.base_offset}, but {end} should follow")
        if not found.info.is_control:
            rows = records(bytes(data), start_offset=end)
            values += [each.value for each in rows if each.value is not None]
        epoch, end = found.info.leader_epoch, found.info.next_offset
    return epoch, end


def survey(
    path: Path,
    *,
    compacts: Callable[[str], bool],
    on_bytes: Callable[[int], None] = lambda size: None,
) -> ForeignFolder:
    """Read every byte of a stopped broker's folder, and say what is there.

    compacts: of a topic by name, whether offsets may be missing from its logs.

    Raises ForeignFolderError, with all that stands against a copy; nothing is changed in either case.
    """
    identity = identify(path)
    problems: list[str] = []
    logs = []
    for entry in sorted(each for each in path.iterdir() if each.is_dir()):
        name = entry.name
        if name == METADATA_FOLDER or name.endswith((DELETED_SUFFIX, STRAY_SUFFIX)):
            continue
        if name.endswith(_FUTURE_SUFFIX):
            problems.append(
                f"{name} is a log on its way from another folder (kafka-reassign-partitions between log "
                f"dirs): {_RESTART}"
            )
        elif match := FOLDER_NAME.fullmatch(name):
            key = match[1], int(match[2])
            log = _Survey(entry, key, compacts(match[1]), problems, on_bytes).log()
            if log is not None:
                logs.append(log)
    if problems:
        raise ForeignFolderError(path, problems)
    return ForeignFolder(path=path, identity=identity, logs=tuple(logs))


class _Survey:
    """One partition's folder."""

    def __init__(
        self,
        folder: Path,
        key: PartitionKey,
        compacts: bool,
        problems: list[str],
        on_bytes: Callable[[int], None],
    ) -> None:
        self._folder = folder
        self._key = key
        self._compacts = compacts
        self._problems = problems
        self._on_bytes = on_bytes

    def log(self) -> ForeignLog | None:
        """None if something is wrong, which is added to the problems."""
        before = len(self._problems)
        segments = segment_files(self._folder)
        topic_id = self._topic_id()
        self._check_files(segments)
        if len(self._problems) > before:
            return None
        check = Verification()
        walked = PartitionCheck(self._folder, check, self._compacts, self._compacts, self._on_bytes)
        walked.verify()
        self._problems += [
            f"{each}; let the broker copy the partition again from its leader" for each in check.defects[:3]
        ]
        if len(self._problems) > before:
            return None
        return self._told(topic_id, walked.segment_ends, sum(each.stat().st_size for each in segments))

    def _told(self, topic_id: str, ends: Mapping[int, int], size: int) -> ForeignLog | None:
        data = self._folder.parent
        end = ends[max(ends)]
        start = max(read_checkpoint(data / LOG_STARTS).get(self._key, 0), min(ends))
        flushed = read_checkpoint(data / RECOVERY_POINTS).get(self._key)
        if flushed != end or start > end:
            self._wrong(f"ends at offset {end}, and its broker wrote down {flushed}: {_RESTART}")
            return None
        snapshot = self._folder / f"{end:020}{SNAPSHOT_SUFFIX}"
        producers = producers_in(snapshot) if snapshot.exists() else ()
        if producers is None or (not snapshot.exists() and start < end):
            self._wrong(f"has no sound {snapshot.name}, which a broker writes when it stops: {_RESTART}")
            return None
        epochs = EpochCache.load(self._folder).entries
        seams = []
        for (base, reached), (following, _) in pairwise(sorted(ends.items())):
            if following > reached:
                seams.append(Seam(base_offset=base, start=reached, end=following))
        return ForeignLog(
            topic=self._key[0],
            partition=self._key[1],
            topic_id=topic_id,
            log_start_offset=start,
            log_end_offset=end,
            high_watermark=read_checkpoint(data / HIGH_WATERMARKS).get(self._key, 0),
            epochs=epochs,
            cleaned_offset=read_checkpoint(data / CLEANED).get(self._key, 0) if self._compacts else None,
            next_producer_id=1 + max((each.producer_id for each in producers), default=-1),
            open_transactions=tuple(
                (each.producer_id, each.first_offset) for each in producers if each.first_offset >= 0
            ),
            seams=tuple(seams),
            size_bytes=size,
        )

    def _wrong(self, what: str) -> None:
        self._problems.append(f"{self._folder.name} {what}")

    def _topic_id(self) -> str:
        text = read_topic_id(self._folder)
        try:
            raw = urlsafe_b64decode(text + "==")
        except (Base64Error, ValueError):
            raw = b""
        if len(raw) != 16:
            self._wrong(f"names no topic id in partition.metadata, but {text!r}: {_RESTART}")
        return raw.hex()

    def _check_files(self, segments: Sequence[Path]) -> None:
        if not segments:
            self._wrong(f"holds no segment: {_RESTART}")
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(_UNFINISHED):
                self._wrong(f"holds {name}, which the cleaner has not finished: {_RESTART}")
        for path in segments:
            with open(open_file(path, os.O_RDONLY), "rb") as file:
                head = file.read(_MAGIC_AT + 1)
            if len(head) > _MAGIC_AT and head[_MAGIC_AT] < _MAGIC:
                self._wrong(
                    f"holds {path.name} in message format {head[_MAGIC_AT]}, of before Kafka 0.11: copy the "
                    "topic to another one with a consumer and a producer (kafka-mirror-maker), and delete it"
                )
                return


def copy(source: ForeignFolder, target: Path, *, on_bytes: Callable[[int], None] = lambda size: None) -> None:
    """Make `target`, which must not exist, a data folder with what the source holds: opened, checked, and durable.

    Blocks are shared with the source where the file system can do that (reflinks).

    Raises StorageError if the copy does not open as the log that was surveyed, OSError as the device does.
    """
    target.mkdir(mode=0o700, parents=True)
    fsync_names_above(target)
    CreatedPartitions.begin(target)
    CreatedPartitions(target).add([log.key for log in source.logs])
    for log in source.logs:
        _copy_log(source.path / log.folder_name, target / log.folder_name, log, on_bytes)
    write_checkpoint(target / RECOVERY_POINTS, {log.key: log.log_end_offset for log in source.logs})
    write_checkpoint(target / LOG_STARTS, {log.key: log.log_start_offset for log in source.logs})
    write_checkpoint(target / HIGH_WATERMARKS, {log.key: log.high_watermark for log in source.logs})
    cleaned = {log.key: log.cleaned_offset for log in source.logs if log.cleaned_offset is not None}
    write_checkpoint(target / CLEANED, cleaned)
    identity = source.identity
    directory_id = identity.directory_id or urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    text = f"version=1\ncluster.id={identity.cluster_id}\nnode.id={identity.node_id}\ndirectory.id={directory_id}\n"
    replace_file(target / PROOF_OF_COPY, f"{source.path}\n".encode())
    replace_file(target / META, sealed(text, comment="#"))
    _open_all(source, target)


def _open_all(source: ForeignFolder, target: Path) -> None:
    """As a node does after a crash, so that indexes and ends are proved; then closed as by a clean stop."""
    identity = source.identity
    directory = LogDirectory(target, cluster_id=identity.cluster_id, node_id=identity.node_id)
    is_sound = False
    try:
        for log in source.logs:
            opened = directory.open_log(*log.key, create=False, topic_id=log.topic_id)
            found = (opened.log_start_offset, opened.log_end_offset, opened.recovery.bytes_cut)
            if found != (log.log_start_offset, log.log_end_offset, 0):
                raise StorageError(
                    f"the copy of {source.path / log.folder_name} holds offsets {found[0]} to {found[1]}, not "
                    f"{log.log_start_offset} to {log.log_end_offset}: check the device and run the command again"
                )
        is_sound = True
    finally:
        directory.close(
            is_sound,
            high_watermarks={log.key: log.high_watermark for log in source.logs},
            broker_epoch=0,
        )


def _copy_log(source: Path, target: Path, log: ForeignLog, on_bytes: Callable[[int], None]) -> None:
    make_folder(target)
    write_metadata(target, log.key, log.topic_id, sync=False)
    bases = [int(path.stem) for path in segment_files(source)]
    first = max(base for base in bases if base <= log.log_start_offset)
    seams = {each.base_offset: each for each in log.seams}
    for path in sorted(source.iterdir()):
        if path.name != EPOCHS and (path.suffix not in _COPIED or base_offset_in(path.stem) is None):
            assert path.suffix not in _UNFINISHED
            continue
        if path.name != EPOCHS and int(path.stem) < first:
            continue
        copy_file(path, target / path.name)
        seam = seams.get(int(path.stem)) if path.suffix == LOG_SUFFIX else None
        if seam is not None:
            with (target / path.name).open("ab") as file:
                file.write(b"".join(_bridges(seam, log.epochs)))
        fsync_file(target / path.name)
        if path.suffix == LOG_SUFFIX:
            on_bytes(path.stat().st_size)
    fsync_file(target / "partition.metadata")
    fsync_folder(target)


def _bridges(seam: Seam, epochs: Sequence[EpochEntry]) -> Iterator[bytes]:
    """Batches without records over the offsets that are missing, one for each leader epoch."""
    starts = [
        seam.start,
        *(each.start_offset for each in epochs if seam.start < each.start_offset < seam.end),
    ]
    for start, end in pairwise([*starts, seam.end]):
        epoch = max((each.epoch for each in epochs if each.start_offset <= start), default=0)
        rest = _HEADER_END.pack(0, end - start - 1, -1, -1, -1, -1, -1, 0)
        yield _HEADER.pack(start, _AFTER_LENGTH, epoch, _MAGIC, crc32c(rest)) + rest


def settle_name(path: Path) -> None:
    """Bring a copy's new name to the device. Raises OSError."""
    fsync_folder(path.parent)


def is_unused_copy(path: Path) -> bool:
    """Whether a folder was made by `copy` and no node has used it since: it may be thrown away and made again."""
    return (path / PROOF_OF_COPY).exists() and not (path / "insync.proof").exists()
