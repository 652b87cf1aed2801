"""Opening a log whose files may not be as they were left: what to trust, what to scan, what to cut.

After a crash the last segment may end in a torn batch; that tail is cut. Anything else that is wrong is damage,
of which nobody here can say how far it goes: opening refuses then and leaves every file as it is.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import attrs

from ._epochs import NO_EPOCH
from ._files import base_offset_in, fsync_folder
from ._native import ffi, lib
from ._opening import patiently, remove_file
from ._producers import Tail, has_snapshot
from ._transactions import TRANSACTION_INDEX_SUFFIX, index_is_sane
from .compaction._swap import finish_swaps
from .errors import CorruptBatchError, CorruptLogError
from .log import EpochEntry, RecoveryReport
from .segment._log_scan import LogScan, ProducerScan, scan_log
from .segment._segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Mended,
    Segment,
    segment_path,
)
from .settings import LogSettings

_LEFTOVERS = {DELETED_SUFFIX, ".tmp"}
_INDEXES = {INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX}


@attrs.define(eq=False, slots=True)
class Recovered:
    """The findings of a log's recovery."""

    segments: tuple[Segment, ...]
    report: RecoveryReport
    epochs: list[EpochEntry] = attrs.Factory(list)
    """Of the batches that were scanned."""
    producers: Tail | None = None
    scanned: list[Segment] = attrs.Factory(list)
    """Of the segments."""


def remove_leftovers(folder: Path) -> None:
    """Finish what a compaction began, and delete what an interrupted deletion left in a partition's folder."""
    finish_swaps(folder)
    # By name: a node opens thousands of folders when it starts, and a path for each file costs more than its name.
    names = set(patiently(os.listdir, folder))
    for name in names:
        stem, suffix = os.path.splitext(name)
        of_segment = suffix in _INDEXES and base_offset_in(stem) is not None
        orphan = of_segment and f"{stem}{LOG_SUFFIX}" not in names
        if orphan or suffix in _LEFTOVERS:
            remove_file(folder / name)


def open_segments(
    folder: Path, log_start_offset: int | None, settings: LogSettings, told: Mended = lambda path, why: None
) -> tuple[Segment, ...]:
    """The segments of a folder in order, without those wholly below the log start; the first, empty one if there
    is none. `log_start_offset`: as it was written down; None if that is not known.

    A segment below the log start stays as long as it alone says what producers wrote there: there is no snapshot
    where the next segment begins, because that one was begun by a truncation or in the middle of an append.

    Raises CorruptLogError if the segments begin above the log start. No crash explains that: whoever deletes a
    segment, or begins a log later, writes the new log start first.
    """
    stems = (
        name.removesuffix(LOG_SUFFIX) for name in patiently(os.listdir, folder) if name.endswith(LOG_SUFFIX)
    )
    bases = sorted(base for stem in stems if (base := base_offset_in(stem)) is not None)
    if log_start_offset is None:
        log_start_offset = bases[0] if bases else 0
    if bases and bases[0] > log_start_offset:
        path = segment_path(folder, bases[0], LOG_SUFFIX)
        reason = f"the log starts at offset {log_start_offset}, but its first segment starts above"
        raise CorruptLogError(str(path), 0, log_start_offset, reason)
    first = max(bisect_right(bases, log_start_offset) - 1, 0)
    segments = [Segment(folder, base, settings, told) for base in bases[first:] or [log_start_offset]]
    for base in reversed(bases[:first]):
        if has_snapshot(folder, segments[0].base_offset):
            break
        older = Segment(folder, base, settings, told)
        if not _ends_well(older):
            # Nobody reads there any more, so that damage does not keep the log from being opened.
            older.close()
            break
        segments.insert(0, older)
    return tuple(segments)


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
    if not segment.time_index.is_sane(segment.end.offset):
        return False
    segment.load_largest()
    if not segment.is_well_timed:
        return False
    return index_is_sane(segment.transaction_index, segment.base_offset, segment.end.offset)


def recover(
    segments: Sequence[Segment],
    recovery_point: int,
    *,
    index_interval_bytes: int,
    verify_bytes: int,
    gaps: bool = False,
    all_epochs: bool = False,
) -> Recovered:
    """Scan what may not be on the device, rebuild its indexes and cut a torn tail.

    `verify_bytes` of the rest are checked like those of a clean stop. `gaps`: offsets may be missing between
    batches, as compaction leaves them; but each segment reaches up to the next. `all_epochs`: scan those segments,
    too, that are on the device.

    Raises CorruptLogError, with nothing changed, for damage that a crash cannot explain.
    """
    scans: dict[Segment, LogScan] = {}
    producers: Tail | None = None
    expected, epoch = segments[0].base_offset, NO_EPOCH
    for at, segment in enumerate(segments):
        if segment.base_offset != expected:
            begun = expected < segment.base_offset and not any(each.file_size for each in segments[at:])
            if begun:
                # The next segment was begun, but the end of this one never reached the device.
                break
            raise CorruptLogError(
                str(segment.path), 0, expected, f"the segment before it ends at offset {expected}"
            )
        durable = at + 1 < len(segments) and segments[at + 1].base_offset <= recovery_point
        if durable and not all_epochs and _ends_well(segment):
            expected, producers = segment.end.offset, None
            continue
        if durable and not all_epochs:
            segment.tell_of_indexes()
        producers = producers or Tail(expected, ProducerScan())
        found = scans[segment] = scan_log(
            segment.file.fileno(),
            segment.file_size,
            base_offset=segment.base_offset,
            interval=index_interval_bytes,
            offset=expected,
            epoch=epoch,
            producers=producers.producers,
            gaps=gaps,
        )
        expected, epoch = found.offset, found.epoch
        if found.reason:
            _judge(segment, found, segments[at + 1 :], recovery_point)
            break
    if expected < recovery_point:
        last = segments[-1]
        reason = f"the log must reach offset {recovery_point}, but its files end before"
        raise CorruptLogError(str(last.path), last.file_size, expected, reason)
    verified = verify([each for each in segments if each not in scans], verify_bytes, gaps=gaps)
    kept, report = _settle(segments, scans, expected)
    epochs = [entry for found in scans.values() for entry in found.epochs]
    scanned = [segment for segment in kept if segment in scans]
    return Recovered(kept, attrs.evolve(report, bytes_verified=verified), epochs, producers, scanned)


def _settle(
    segments: Sequence[Segment], scans: dict[Segment, LogScan], end: int
) -> tuple[tuple[Segment, ...], RecoveryReport]:
    """All is judged: now change the files."""
    kept = list(segments)
    while len(kept) > 1 and kept[-1].base_offset > end:
        dropped = kept.pop()
        dropped.delete()
        fsync_folder(dropped.path.parent)
    cut, position, reason = 0, -1, ""
    for segment, found in scans.items():
        if found.reason:
            cut, position, reason = segment.file_size - found.position, found.position, found.reason
        segment.rebuild(found)
        if segment is not kept[-1]:
            segment.seal()
    report = RecoveryReport(
        clean=False,
        batches_scanned=sum(found.batches for found in scans.values()),
        bytes_cut=cut,
        cut_position=position,
        cut_reason=reason,
        segments_rebuilt=len(scans),
    )
    return tuple(kept), report


def verify(segments: Sequence[Segment], max_bytes: int, *, gaps: bool = False) -> int:
    """Check the CRC of every batch in the last `max_bytes` or so of the segments, the newest first.

    Returns the number of bytes. Raises CorruptLogError for damage; nothing is changed.
    """
    checked = 0
    for segment in reversed(segments):
        end = segment.end
        if checked >= max_bytes:
            break
        start = segment.index.position_before(max(0, end.position - (max_bytes - checked)))
        found = scan_log(
            segment.file.fileno(),
            end.position,
            base_offset=segment.base_offset,
            interval=end.position,
            offset=-1 if start else segment.base_offset,
            start=start,
            gaps=gaps,
        )
        if found.reason:
            reason = f"{found.reason}, although it had reached the device"
            raise CorruptLogError(str(segment.path), found.position, found.offset, reason)
        checked += end.position - start
    return checked


def _judge(
    segment: Segment,
    found: LogScan,
    later: Sequence[Segment],
    recovery_point: int,
) -> None:
    """Raise unless the bad batch can be what a crash leaves behind."""
    position, offset = found.position, found.offset
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


def _valid_batch_after(segment: Segment, found: LogScan) -> int:
    """Position of a batch behind the bad one that could belong there; -1 if there is none."""
    start, size = found.position, segment.file_size
    with mmap.mmap(segment.file.fileno(), size, prot=mmap.PROT_READ) as data:
        view = ffi.from_buffer(data)
        try:
            # A record takes at least seven bytes, so offsets cannot rise faster than positions. This also
            # keeps batches inside of record values (a log that carries logs) from being taken for ours.
            highest = found.offset + size - start
            return lib.isr_batch_search(view, size, start + 1, found.offset + 1, highest, found.epoch)
        finally:
            ffi.release(view)
