"""Opening a log whose files may not be as they were left: what to trust, what to scan, what to cut.

After a crash the last segment may end in a torn batch; that tail is cut. Anything else that is wrong is damage,
of which nobody here can say how far it goes: opening refuses then and leaves every file as it is.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import attrs

from ._epochs import NO_EPOCH
from ._native import ffi, lib
from ._segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, Spot
from .batch import BatchInfo, scan_prefix
from .errors import CorruptBatchError, CorruptLogError
from .file_range import read_at
from .log import EpochEntry, RecoveryReport
from .settings import LogSettings

_CHUNK = 4 << 20
_LEFTOVERS = {".deleted", ".cleaned", ".swap", ".tmp"}


@attrs.define(eq=False, slots=True)
class Scan:
    """All batches of a segment, checked. `end` is behind the last good one."""

    end: Spot
    epoch: int
    """Of the last batch."""
    batches: int = 0
    reason: str = ""
    """Why the batch at `end` is bad; empty if the file ends there."""
    misplaced: bool = False
    """It is whole and valid, but does not belong there."""
    epochs: list[EpochEntry] = attrs.Factory(list)
    index: list[tuple[int, int]] = attrs.Factory(list)
    since_entry: int = 0
    """Bytes since the last index entry."""


@attrs.define(eq=False, slots=True)
class Recovered:
    """What a log turned out to hold."""

    segments: tuple[Segment, ...]
    report: RecoveryReport
    epochs: list[EpochEntry]
    """Of the batches that were scanned."""


def remove_leftovers(folder: Path) -> None:
    """Delete what an interrupted deletion or replacement left in a partition's folder."""
    for path in list(folder.iterdir()):
        orphan = path.suffix == INDEX_SUFFIX and not path.with_suffix(LOG_SUFFIX).exists()
        if orphan or path.suffix in _LEFTOVERS:
            path.unlink()


def open_segments(folder: Path, log_start_offset: int, settings: LogSettings) -> tuple[Segment, ...]:
    """The segments of a folder in order; the first, empty one if there is none."""
    bases = sorted(int(path.stem) for path in folder.glob(f"*{LOG_SUFFIX}") if path.stem.isdecimal())
    return tuple(Segment(folder, base, settings) for base in bases or [log_start_offset])


def trust(segments: Sequence[Segment], log_end_offset: int) -> bool:
    """Whether the files are as a clean stop with that log end left them, going by sizes and indexes."""
    expected = segments[0].base_offset
    for segment in segments:
        if segment.base_offset != expected or not _ends_well(segment):
            return False
        expected = segment.end.offset
    return expected == log_end_offset


def _ends_well(segment: Segment) -> bool:
    if not segment.index.is_sane(segment.file_size):
        return False
    try:
        segment.find_end()
    except CorruptBatchError:
        return False
    return True


def recover(segments: Sequence[Segment], recovery_point: int, index_interval_bytes: int) -> Recovered:
    """Scan what may not be on the device, rebuild its indexes and cut a torn tail.

    Raises CorruptLogError, with nothing changed, for damage that a crash cannot explain.
    """
    scans: dict[Segment, Scan] = {}
    expected, epoch = segments[0].base_offset, NO_EPOCH
    for at, segment in enumerate(segments):
        if segment.base_offset != expected:
            raise CorruptLogError(
                str(segment.path), 0, expected, f"the segment before it ends at offset {expected}"
            )
        durable = at + 1 < len(segments) and segments[at + 1].base_offset <= recovery_point
        if durable and _ends_well(segment):
            expected = segment.end.offset
            continue
        found = scans[segment] = scan_segment(segment, epoch, index_interval_bytes)
        expected, epoch = found.end.offset, found.epoch
        if found.reason:
            _judge(segment, found, segments[at + 1 :], recovery_point)
            break
    if expected < recovery_point:
        last = segments[-1]
        reason = f"the log must reach offset {recovery_point}, but its files end before"
        raise CorruptLogError(str(last.path), last.file_size, expected, reason)
    return _settle(segments, scans)


def _settle(segments: Sequence[Segment], scans: dict[Segment, Scan]) -> Recovered:
    """All is judged: now change the files."""
    cut, position, reason = 0, -1, ""
    epochs: list[EpochEntry] = []
    kept = list(segments)
    for segment, found in scans.items():
        segment.index.rebuild(found.index)
        epochs += found.epochs
        if found.reason:
            cut, position, reason = segment.file_size - found.end.position, found.end.position, found.reason
            while kept[-1] is not segment:
                kept.pop().delete()
        segment.cut(found.end)
    report = RecoveryReport(
        clean=False,
        batches_scanned=sum(found.batches for found in scans.values()),
        bytes_cut=cut,
        cut_position=position,
        cut_reason=reason,
        segments_rebuilt=len(scans),
    )
    return Recovered(tuple(kept), report, epochs)


def scan_segment(segment: Segment, epoch: int, index_interval_bytes: int) -> Scan:
    """Check every batch: whole, CRC, offsets without a gap, epochs never falling from `epoch` on."""
    found = Scan(Spot(0, segment.base_offset), epoch)
    fd, size = segment.file.fileno(), segment.file_size
    want = _CHUNK
    while found.end.position < size and not found.reason:
        start = found.end.position
        data = read_at(fd, min(want, size - start), start)
        infos, consumed, reason = scan_prefix(data)
        _take(found, infos, start, index_interval_bytes)
        want = _CHUNK
        if not found.reason and reason is not None and consumed == 0:
            want = _declared_size(data)
            if want <= len(data) or start + want > size:
                found.reason = reason
    return found


def _declared_size(data: bytes) -> int:
    """What the batch that `data` starts with says of its size; 0 if it is too short to say anything."""
    return int.from_bytes(data[8:12]) + 12 if len(data) >= 61 else 0


def _take(found: Scan, infos: Sequence[BatchInfo], start: int, index_interval_bytes: int) -> None:
    """Add the batches scanned from position `start` on, up to one that does not belong there."""
    position, offset = found.end
    epoch, since_entry = found.epoch, found.since_entry
    for info in infos:
        if info.base_offset != offset or info.leader_epoch < epoch:
            found.reason = _why_misplaced(info, offset, epoch)
            found.misplaced = True
            break
        position = start + info.position
        offset = info.next_offset
        if since_entry > index_interval_bytes:
            found.index.append((offset - 1, position))
            since_entry = 0
        if info.leader_epoch > epoch:
            epoch = info.leader_epoch
            found.epochs.append(EpochEntry(epoch, info.base_offset))
        since_entry += info.size_bytes
        position += info.size_bytes
        found.batches += 1
    found.end = Spot(position, offset)
    found.epoch, found.since_entry = epoch, since_entry


def _why_misplaced(info: BatchInfo, offset: int, epoch: int) -> str:
    if info.base_offset != offset:
        return f"its base offset is {info.base_offset} instead of {offset}"
    return f"its leader epoch {info.leader_epoch} is below the {epoch} before it"


def _judge(segment: Segment, found: Scan, later: Sequence[Segment], recovery_point: int) -> None:
    """Raise unless the bad batch can be what a crash leaves behind."""
    position, offset = found.end
    reason = found.reason
    if offset < recovery_point:
        reason += f", although everything below offset {recovery_point} had reached the device"
    elif found.misplaced:
        reason += ", and no interrupted write does that"
    elif any(each.file_size for each in later):
        reason += ", and a later segment holds data"
    else:
        follower = _valid_batch_after(segment, found)
        if follower < 0:
            return
        reason += f", and a whole batch follows at byte {follower}"
    raise CorruptLogError(str(segment.path), position, offset, reason)


def _valid_batch_after(segment: Segment, found: Scan) -> int:
    """Position of a batch behind the bad one that could belong there; -1 if there is none."""
    start, size = found.end.position, segment.file_size
    with mmap.mmap(segment.file.fileno(), size, prot=mmap.PROT_READ) as data:
        view = ffi.from_buffer(data)
        try:
            # A record takes at least seven bytes, so offsets cannot rise faster than positions. This also
            # keeps batches inside of record values (a log that carries logs) from being taken for ours.
            highest = found.end.offset + size - start
            return lib.isr_batch_search(view, size, start + 1, found.end.offset + 1, highest, found.epoch)
        finally:
            ffi.release(view)
