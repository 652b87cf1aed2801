"""The work of an audit's task: it scans a range of a segment file and returns findings, not data.

C code checks the batches and returns them as rows of an array. No loop here goes over records, nor over batches
unless some are damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ....storage.batch import BATCH_OVERHEAD_BYTES, find_batch, scan_rows

WINDOW_BYTES = 4 << 20
_BATCHES_MAX = 1 << 16
"""Of a window."""
BLOCK_BITS = 16
CUT_BITS = 8
"""A digest covers 2^16 offsets at most; their number and that of the cut below them make its key."""
DEFECTS_MAX = 20

ROW = np.dtype(
    [
        ("base_offset", "i8"),
        ("position", "i8"),
        ("producer_id", "i8"),
        ("base_timestamp", "i8"),
        ("max_timestamp", "i8"),
        ("size_bytes", "i4"),
        ("last_offset_delta", "i4"),
        ("leader_epoch", "i4"),
        ("record_count", "i4"),
        ("base_sequence", "i4"),
        ("producer_epoch", "i2"),
        ("attributes", "i2"),
    ],
    align=True,
)
"""As `insync.storage.batch.scan_rows` gives them."""

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_LENGTH = slice(8, 12)
_CRC_AT = np.arange(17, 21)
_SEARCHED_BEHIND = 16 << 20
"""The batch that follows damage may end at most this far behind the end of the range."""
_UNKNOWN = -1


@attrs.frozen
class Place:
    """Something wrong: `position` of the batch in the file, `offset` that it has or should have."""

    path: str
    position: int
    offset: int
    reason: str


@attrs.frozen
class ScanTask:
    """The batches that begin in a segment file's bytes [start, stop)."""

    replica: int
    """Index of the replica in the audit's list."""
    path: str
    start: int
    stop: int
    gaps: bool
    """Offsets may be missing, as compaction leaves them."""
    cuts: tuple[int, ...]
    """Offsets at which a digest must end, rising."""
    epochs: tuple[tuple[int, int], ...] | None
    """Epochs and start offsets, both rising, with which batches must agree. None: epochs only must not fall."""
    log_start_offset: int
    """Nothing lists the epochs of offsets below."""
    recovery_point: int
    """Epochs that begin here or later may not be listed yet: a node finds them in the batches when it starts."""


@attrs.define
class ScanReport:
    """The findings of one task. Offsets are -1 if the range has no batch."""

    task: ScanTask
    first_position: int = -1
    first_offset: int = _UNKNOWN
    end_position: int = 0
    """Behind the last batch."""
    end_offset: int = _UNKNOWN
    batches: int = 0
    records: int = 0
    bytes: int = 0
    ends_torn: bool = False
    """The file ends within a batch, which is not among the defects."""
    torn_reason: str = ""
    starts_after_damage: bool = False
    """There is damage before the first batch."""
    ends_after_damage: bool = False
    first_epoch: int = -1
    highest_epoch: int = -1
    defects: list[Place] = attrs.Factory(list)
    defect_count: int = 0
    digests: dict[int, tuple[int, int]] = attrs.Factory(dict)
    """Key -> (sum of the batches' fingerprints modulo 2^64, their number)."""


@attrs.frozen
class Window:
    """Whole, valid batches in a row, or damage.

    `rows` have positions within `data`, which starts at `position` of the file.
    """

    position: int
    data: memoryview
    rows: npt.NDArray[Any]
    damage: str = ""
    is_torn: bool = False
    """Damage up to the end of the file, which may have begun as a batch that was cut short."""

    @property
    def fingerprints(self) -> npt.NDArray[np.uint64]:
        """64 bits for each batch, made of base offset, length, leader epoch, and the CRC, which covers the rest."""
        raw = np.frombuffer(self.data, np.uint8)
        crcs = raw[self.rows["position"][:, None] + _CRC_AT].view(">u4").ravel().astype(np.uint64)
        epochs = self.rows["leader_epoch"].astype(np.uint32).astype(np.uint64)
        sizes = self.rows["size_bytes"].astype(np.uint64)
        mixed = _mixed(self.rows["base_offset"].astype(np.uint64))
        return _mixed(_mixed(mixed ^ crcs) ^ (epochs << np.uint64(32) | sizes))


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the input reaches every bit of the result."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))


def next_offsets(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return rows["base_offset"] + rows["last_offset_delta"] + 1


def windows(path: str, start: int, stop: int, expected: Callable[[], int]) -> Iterator[Window]:
    """The batches that begin in [start, stop), window by window. The data of a window is valid until the next one.

    `expected` returns the offset that should come next; it is asked where there is damage. Raises OSError.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        stop = min(stop, size)
        buffer = memoryview(bytearray(min(WINDOW_BYTES, max(stop - start, 1))))
        position, need = start, 0
        while position < stop:
            want = max(need, min(len(buffer), stop - position))
            if want > len(buffer):
                buffer = memoryview(bytearray(want))
            data = buffer[: _read(file.fileno(), buffer[:want], position)]
            raw, consumed, reason = scan_rows(data, capacity=_BATCHES_MAX)
            if consumed:
                yield Window(position, data[:consumed], np.frombuffer(raw, ROW))
                position, need = position + consumed, 0
                continue
            need = _size_of_batch(data)
            if need > len(data) and position + need <= size:
                continue
            window, position = _damage(file.fileno(), position, stop, size, expected(), str(reason))
            yield window
            need = 0


def _read(fd: int, buffer: memoryview, position: int) -> int:
    done = 0
    while done < len(buffer):
        got = os.preadv(fd, [buffer[done:]], position + done)
        if got == 0:
            break
        done += got
    return done


def _size_of_batch(data: memoryview) -> int:
    """The size in bytes that the batch at the start of the data states; a header's if not even that is whole."""
    if len(data) < BATCH_OVERHEAD_BYTES:
        return BATCH_OVERHEAD_BYTES
    return max(int.from_bytes(data[_LENGTH], signed=True), 0) + _LENGTH.stop


def _damage(fd: int, position: int, stop: int, size: int, expected: int, reason: str) -> tuple[Window, int]:
    """The description of the damage at `position`, and the position at which the scan continues."""
    data = memoryview(bytearray(min(size, stop + _SEARCHED_BEHIND) - position))
    data = data[: _read(fd, data, position)]
    claimed = _size_of_batch(data)
    raw, consumed, _ = scan_rows(data, verify_crc=False, capacity=1)
    rows = np.frombuffer(raw, ROW)
    if consumed and _goes_on(data, consumed, position + consumed == size, int(next_offsets(rows)[0])):
        return Window(position, data, rows, reason), position + consumed
    lowest = max(expected, 0)
    found = find_batch(data, 1, min_base=lowest, max_base=lowest + len(data))
    torn = found < 0 and position + max(claimed, BATCH_OVERHEAD_BYTES) > size
    behind = position + found if found >= 0 else stop
    return Window(position, data, rows[:0], reason, torn), min(behind, stop)


def _goes_on(data: memoryview, at: int, ends: bool, offset: int) -> bool:
    """Whether the file ends there, or a batch with that base offset follows."""
    if ends:
        return True
    raw, consumed, _ = scan_rows(data[at:], verify_crc=False, capacity=1)
    return bool(consumed) and int(np.frombuffer(raw, ROW)["base_offset"][0]) == offset


def scan(task: ScanTask) -> ScanReport:
    """Scan one range: check CRCs, the order of offsets and epochs, and make digests of the parts between cuts."""
    report = ScanReport(task, end_position=task.start)
    state = _Range(task, report)
    for window in windows(task.path, task.start, task.stop, lambda: report.end_offset):
        if window.damage:
            state.damaged(window)
        else:
            state.take(window)
    return report


class _Range:
    def __init__(self, task: ScanTask, report: ScanReport) -> None:
        self._task = task
        self._report = report
        self._gap_is_known = False
        self._epoch_was_wrong = False
        listed = task.epochs
        self._listed = (
            None
            if listed is None
            else (np.array([-1, *(e for e, _ in listed)]), np.array([start for _, start in listed], np.int64))
        )
        self._cuts = np.array(task.cuts, np.int64)

    def damaged(self, window: Window) -> None:
        report = self._report
        report.ends_torn = window.is_torn
        report.torn_reason = window.damage
        report.starts_after_damage |= report.first_offset < 0
        report.ends_after_damage = True
        if not window.is_torn:
            self._add(window.position, report.end_offset, window.damage)
        if report.first_position < 0:
            report.first_position = window.position
        self._gap_is_known = True
        if len(window.rows):
            first = window.rows[0]
            report.end_offset = int(next_offsets(window.rows)[0])
            report.end_position = window.position + int(first["size_bytes"])

    def take(self, window: Window) -> None:
        rows, report = window.rows, self._report
        ends = next_offsets(rows)
        if report.first_position < 0:
            report.first_position = window.position
        if report.first_offset < 0:
            report.first_offset = int(rows["base_offset"][0])
            report.first_epoch = int(rows["leader_epoch"][0])
        self._check_offsets(window, ends)
        self._check_epochs(window, ends)
        self._digest(window)
        report.end_offset = int(ends[-1])
        report.end_position = window.position + int(rows["position"][-1] + rows["size_bytes"][-1])
        report.batches += len(rows)
        report.records += int(rows["record_count"].sum(dtype=np.int64))
        report.bytes += int(rows["size_bytes"].sum(dtype=np.int64))
        report.ends_after_damage = False
        self._gap_is_known = False

    def _add(self, position: int, offset: int, reason: str) -> None:
        self._report.defect_count += 1
        if len(self._report.defects) < DEFECTS_MAX:
            self._report.defects.append(Place(self._task.path, position, offset, reason))

    def _check_offsets(self, window: Window, ends: npt.NDArray[np.int64]) -> None:
        rows = window.rows
        bases = rows["base_offset"]
        expected = np.empty_like(ends)
        expected[0] = self._report.end_offset if self._report.end_offset >= 0 else bases[0]
        expected[1:] = ends[:-1]
        wrong = bases < expected if self._task.gaps else bases != expected
        if self._gap_is_known:
            wrong[0] = bases[0] < expected[0]
        for at in np.flatnonzero(wrong)[:DEFECTS_MAX]:
            self._add(
                window.position + int(rows["position"][at]),
                int(expected[at]),
                f"a batch of base offset {bases[at]} stands where {expected[at]} should follow",
            )
        if self._task.gaps:
            return
        for at in np.flatnonzero(rows["record_count"] != rows["last_offset_delta"] + 1)[:DEFECTS_MAX]:
            offsets = int(rows["last_offset_delta"][at]) + 1
            reason = f"the batch has {rows['record_count'][at]} records for {offsets} offsets"
            self._add(window.position + int(rows["position"][at]), int(bases[at]), reason)

    def _check_epochs(self, window: Window, ends: npt.NDArray[np.int64]) -> None:
        rows = window.rows
        epochs = rows["leader_epoch"].astype(np.int64)
        highest = np.maximum.accumulate(np.maximum(epochs, self._report.highest_epoch))
        if self._listed is None:
            due = np.concatenate(([self._report.highest_epoch], highest[:-1]))
            wrong = epochs < due
            why = "is below the {} before it"
        else:
            # Of a batch in which the log starts the epochs list only what is served.
            offsets = np.maximum(rows["base_offset"], self._task.log_start_offset)
            due = self._listed[0][np.searchsorted(self._listed[1], offsets, side="right")]
            is_later = (offsets >= self._task.recovery_point) & (epochs > self._listed[0][-1])
            wrong = (epochs != due) & (ends > self._task.log_start_offset) & ~is_later
            why = "is not the {} that leader-epoch-checkpoint has for it"
        starts = np.flatnonzero(wrong & ~np.concatenate(([self._epoch_was_wrong], wrong[:-1])))
        for at in starts[:DEFECTS_MAX]:
            reason = f"leader epoch {epochs[at]} {why.format(due[at])}"
            self._add(window.position + int(rows["position"][at]), int(rows["base_offset"][at]), reason)
        self._epoch_was_wrong = bool(wrong[-1])
        self._report.highest_epoch = int(highest[-1])

    def _digest(self, window: Window) -> None:
        bases = window.rows["base_offset"]
        cut = np.searchsorted(self._cuts, bases, side="right").astype(np.int64)
        keys = (bases >> BLOCK_BITS << CUT_BITS) | cut
        starts = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1))
        sums = np.add.reduceat(window.fingerprints, starts)
        counts = np.diff(np.append(starts, len(keys)))
        digests = self._report.digests
        for key, total, count in zip(keys[starts].tolist(), sums.tolist(), counts.tolist(), strict=True):
            known, number = digests.get(key, (0, 0))
            digests[key] = (known + total) % (1 << 64), number + count
