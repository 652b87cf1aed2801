"""Checking all files of a partition or of a data folder, without changing any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs

from ._epochs import FILE_NAME as EPOCHS
from ._files import read_checkpoint, read_table
from ._opening import read_file
from ._producers import SNAPSHOT_SUFFIX, ProducerTable
from .batch import BatchInfo
from .batch._records import RecordCheck
from .directory import FOLDER_NAME, META
from .errors import LogNotFoundError, StorageError
from .folder._checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from .folder._partition_folder import PARTITION_METADATA
from .folder._sealed import unsealed_table
from .inspection import Found, batches_in
from .log import EpochEntry
from .segment._segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from .segment._segment import segment_files as segment_files
from .segment._verify_index import OffsetIndexCheck, TimeIndexCheck


@attrs.frozen(slots=True)
class Defect:
    """Something that is not as it must be."""

    path: str
    position: int
    """Of the first byte that is wrong; the line's number, from 1, in a text file; -1 if it is about all of it."""
    offset: int
    """In the log; -1 if it is about none."""
    reason: str

    def __str__(self) -> str:
        where = f" at {self.position}" if self.position >= 0 else ""
        due = f" (offset {self.offset})" if self.offset >= 0 else ""
        return f"{self.path}{where}{due}: {self.reason}"


@attrs.define(eq=False, slots=True)
class Verification:
    """The amount of data looked at, and what is wrong with it."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    index_entries: int = 0
    defects: list[Defect] = attrs.Factory(list)


def partition_folders(path: Path) -> list[Path]:
    """The partitions' folders in a data folder, or the one given.

    Raises LogNotFoundError if `path` is neither.
    """
    inside = sorted(each for each in path.iterdir() if each.is_dir())
    named = [each for each in inside if FOLDER_NAME.fullmatch(each.name)]
    if _is_data_folder(path):
        return named
    # By their files: a data folder is often called something like `node-1`, as a partition's may be.
    if others := [each.name for each in inside if _is_data_folder(each)]:
        raise LogNotFoundError(
            f"{path} is not a data folder, but the folder of some: name one of them ({', '.join(others)})"
        )
    if any(map(_is_partition, named)):
        return named
    if _is_partition(path):
        return [path]
    raise LogNotFoundError(f"{path} is neither a data folder nor the folder of a partition")


def _is_data_folder(path: Path) -> bool:
    return _is_there(path / META)


def _is_partition(path: Path) -> bool:
    return bool(segment_files(path)) or _is_there(path / PARTITION_METADATA)


def _is_there(path: Path) -> bool:
    """As far as this process may look: on a disk of its own a data folder often lies beside `lost+found`."""
    try:
        return path.exists()
    except PermissionError:
        return False


def verify(
    path: Path, *, compacted: bool = False, on_bytes: Callable[[int], None] = lambda size: None
) -> Verification:
    """Check a data folder or a partition's: every batch with its CRC and its records, and every small file.

    `compacted` allows the gaps that compaction leaves also where no `cleaner-offset-checkpoint` tells of it.
    `on_bytes` is told of every piece of log that was checked. In the folder of a running node what is being written
    may look torn.

    Raises LogNotFoundError if `path` is neither, OSError if a file cannot be read.
    """
    result = Verification()
    folders = partition_folders(path)
    if folders != [path]:
        for name in (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEANED):
            result.defects += _table_defects(path / name, ("topic", "partition", "offset"))
    for folder in folders:
        known = _key(folder) in read_checkpoint(folder.parent / CLEANED)
        PartitionCheck(folder, result, compacted or known, compacted, on_bytes).verify()
    return result


class PartitionCheck:
    """Goes over one partition's files; what it learns of them, for who goes on with a log that is sound."""

    def __init__(
        self,
        folder: Path,
        result: Verification,
        compacted: bool,
        by_others: bool,
        on_bytes: Callable[[int], None],
    ) -> None:
        self.folder = folder
        self._result = result
        self._compacted = compacted
        self._by_others = by_others
        """Segments may end before the next begins, as Kafka's cleaner leaves them; ours never do."""
        self._on_bytes = on_bytes
        self._expected = -1
        self._gap_is_known = False
        self._epochs: list[EpochEntry] = []
        self._epoch_ends: list[int] = []
        self._records = RecordCheck()
        self.segment_ends: dict[int, int] = {}
        """By base offset: the offset after the last batch of each segment, its base where it has none."""

    def verify(self) -> None:
        self._result.partitions += 1
        segments = segment_files(self.folder)
        self._verify_start(segments)
        for path in segments:
            self._verify_segment(path)
        for path in sorted(self.folder.glob(f"*{SNAPSHOT_SUFFIX}")):
            if ProducerTable.load(path) is None:
                self._add(path, 0, -1, "its CRC-32C, version or size is wrong")
        self._verify_epochs()
        self._verify_recovery_point()

    def _add(self, path: Path, position: int, offset: int, reason: str) -> None:
        self._result.defects.append(Defect(str(path), position, offset, reason))

    # Segments

    def _verify_start(self, segments: list[Path]) -> None:
        """Segments below the log start may be there still; none that hold it, or what follows, may be missing."""
        listed = read_checkpoint(self.folder.parent / LOG_STARTS).get(_key(self.folder))
        if segments and listed is not None and int(segments[0].stem) > listed:
            reason = f"the log starts at offset {listed}, but its first segment starts above"
            self._add(segments[0], 0, listed, reason)

    def _verify_segment(self, path: Path) -> None:
        base = int(path.stem)
        if self._expected >= 0 and (base < self._expected or (base > self._expected and not self._by_others)):
            self._add(path, 0, base, f"the segment before it ends at offset {self._expected}")
        self._expected = base
        self._result.segments += 1
        indexes = (
            OffsetIndexCheck(path.with_suffix(INDEX_SUFFIX), base),
            TimeIndexCheck(path.with_suffix(TIME_INDEX_SUFFIX), base),
        )
        self._result.index_entries += sum(each.count for each in indexes)
        self._verify_batches(path, *indexes)
        self.segment_ends[base] = self._expected
        for index, suffix in zip(indexes, (INDEX_SUFFIX, TIME_INDEX_SUFFIX), strict=True):
            for fault in index.finish():
                self._add(path.with_suffix(suffix), *fault)

    def _verify_batches(self, path: Path, offsets: OffsetIndexCheck, times: TimeIndexCheck) -> None:
        size = path.stat().st_size
        for found, data in batches_in(path):
            if found.info is None or found.reason:
                self._damaged(path, found, found.end == size)
                offsets.skip(found.end)
                times.skip_offset(self._expected)
            else:
                self._verify_batch(path, found.position, found.info, data)
                for fault in offsets.saw(found.position, found.info):
                    self._add(path.with_suffix(INDEX_SUFFIX), *fault)
                for fault in times.saw(found.position, found.info):
                    self._add(path.with_suffix(TIME_INDEX_SUFFIX), *fault)
            self._result.bytes += found.size_bytes
            self._on_bytes(found.size_bytes)

    def _damaged(self, path: Path, found: Found, at_end: bool) -> None:
        what = "up to the end of the file" if at_end else "then a whole batch follows"
        self._add(path, found.position, self._expected, f"{found.reason}: {found.size_bytes} bytes, {what}")
        if found.info is None:
            self._gap_is_known = True
        else:
            self._enter(found.info)

    def _verify_batch(self, path: Path, position: int, info: BatchInfo, data: memoryview) -> None:
        for reason in self._wrong_with(info, data):
            self._add(path, position, info.base_offset, reason)
        self._enter(info)
        self._result.batches += 1
        self._result.records += info.record_count

    def _enter(self, info: BatchInfo) -> None:
        """Set the measure for the batches to come."""
        if info.leader_epoch > (self._epochs[-1].epoch if self._epochs else -1):
            self._epochs.append(EpochEntry(info.leader_epoch, info.base_offset))
            self._epoch_ends.append(info.next_offset)
        elif self._epoch_ends:
            self._epoch_ends[-1] = info.next_offset
        self._expected = info.next_offset
        self._gap_is_known = False

    def _wrong_with(self, info: BatchInfo, data: memoryview) -> Iterator[str]:
        gap = info.base_offset - self._expected
        if gap < 0 or (gap > 0 and not (self._compacted or self._gap_is_known)):
            yield f"its base offset is {info.base_offset}, but {self._expected} should follow"
        if self._epochs and info.leader_epoch < self._epochs[-1].epoch:
            yield f"its leader epoch {info.leader_epoch} is below the {self._epochs[-1].epoch} before it"
        if info.record_count != info.last_offset_delta + 1 and not self._compacted:
            yield f"it has {info.record_count} records for {info.last_offset_delta + 1} offsets"
        try:
            self._records.check(data, info)
        except StorageError as error:
            yield f"its records cannot be read: {getattr(error, 'reason', error)}"

    # Small files

    def _verify_epochs(self) -> None:
        path = self.folder / EPOCHS
        # Kafka creates the file before it has an epoch to write into it.
        is_new = not self._epochs and path.exists() and path.stat().st_size == 0
        defects = [] if is_new else _table_defects(path, ("epoch", "start offset"))
        self._result.defects += defects
        if defects or not self._epochs:
            return
        # A log first writes the file with its recovery point, so the log of a killed node may have none yet.
        listed = dict(_numbers(path)) if path.exists() else {}
        log_start = read_checkpoint(self.folder.parent / LOG_STARTS).get(_key(self.folder), 0)
        point = read_checkpoint(self.folder.parent / RECOVERY_POINTS).get(_key(self.folder), 0)
        for entry, end in zip(self._epochs, self._epoch_ends, strict=True):
            if entry.start_offset >= point and entry.epoch not in listed:
                continue  # found again in the batches, from the recovery point on
            start = max(entry.start_offset, log_start)
            told = listed.get(entry.epoch)
            # The first batches of an epoch may have gone by compaction.
            began = told is not None and (told <= start if self._compacted else told == start)
            if end > log_start and not began:
                claim = "is missing" if told is None else f"starts at {told} there"
                self._add(path, -1, start, f"leader epoch {entry.epoch} {claim}, at {start} in the log")

    def _verify_recovery_point(self) -> None:
        path = self.folder.parent / RECOVERY_POINTS
        point = read_checkpoint(path).get(_key(self.folder), 0)
        if 0 <= self._expected < point:
            reason = f"everything below offset {point} had reached the device, but the log ends before"
            self._add(self.folder, -1, self._expected, reason)


def _key(folder: Path) -> tuple[str, int]:
    topic, _, partition = folder.name.rpartition("-")
    return topic, int(partition) if partition.isdecimal() else -1


def _numbers(path: Path) -> Iterable[tuple[int, int]]:
    for epoch, start in read_table(path) or ():
        yield int(epoch), int(start)


def _table_defects(path: Path, columns: tuple[str, ...]) -> list[Defect]:
    """The defects of a checkpoint. It has version 0, a count, that many lines of numbers (a topic first)."""
    if not path.exists():
        return []

    def defect(line: int, reason: str) -> Defect:
        return Defect(str(path), line, -1, reason)

    text = unsealed_table(read_file(path))
    if text is None:
        return [defect(1, "its checksum does not match, or its last line is cut short")]
    lines = text.splitlines()
    if not lines or lines[0] != "0":
        return [defect(1, "it does not begin with version 0")]
    if len(lines) < 2 or lines[1] != str(len(lines) - 2):
        return [defect(2, f"{len(lines) - 2} lines follow, not as many as it says")]
    found = []
    for number, line in enumerate(lines[2:], 3):
        fields = line.split(" ")
        numbers = fields[1:] if columns[0] == "topic" else fields
        if len(fields) != len(columns) or not all(each.lstrip("-").isdecimal() for each in numbers):
            found.append(defect(number, f"not {', '.join(columns)}: {line!r}"))
    return found
