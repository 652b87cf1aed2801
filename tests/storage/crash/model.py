"""What a log must hold after its writer was killed, by the writer's own notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from insync.storage import DiskLog
from insync.storage.batch import BatchInfo, Record, records, scan

from .notes import Note, Plan


class ViolationError(AssertionError):
    """A promise was broken; says which."""


def must(condition: object, text: str) -> None:
    if not condition:
        raise ViolationError(text)


@attrs.define(eq=False)
class Model:
    """The log as its writer was told that it is, and the one thing that was under way."""

    batches: list[Plan] = attrs.Factory(list)
    start: int = 0
    end: int = 0
    underway: Note | None = None
    compacted_below: int = 0
    """Of records below, any but the latest of each key may be gone."""

    def take(self, note: Note) -> None:
        if not note.done:
            self.underway = note
            if note.what == "maintain":
                self.compacted_below = max(self.compacted_below, note.numbers[0])
            return
        before, self.underway = self.underway, None
        if note.what == "append":
            assert before is not None
            self.batches += plans(before)
            self.end = self.batches[-1].end
        elif note.what == "truncate":
            assert before is not None
            self._cut(before.numbers[0], *note.numbers)
        elif note.what == "start":
            assert before is not None
            self.start = max(self.start, before.numbers[0])
        elif note.what == "maintain":
            self.start = max(self.start, note.numbers[0])

    def _cut(self, offset: int, end: int) -> None:
        possible = self._ends_cut_at(offset)
        must(
            end in possible, f"truncated to {offset}, the log ends at {end}, not at one of {sorted(possible)}"
        )
        self.batches = [plan for plan in self.batches if plan.end <= end]
        self.start, self.end = min(self.start, end), end

    def _ends_cut_at(self, offset: int) -> set[int]:
        """Where the log may end once it is truncated to `offset`."""
        if offset >= self.end:
            return {self.end}
        cut_through = [plan.base for plan in self.batches if plan.base <= offset < plan.end]
        boundary = min(cut_through, default=offset)
        # Retention may have deleted the segment with it. Then nothing is left, and the log begins anew at `offset`.
        return {boundary, offset} if offset < self.start else {boundary}

    def ends(self) -> set[int]:
        """Where the log may end now."""
        if self.underway is None:
            return {self.end}
        if self.underway.what == "append":
            return {self.end, *(plan.end for plan in plans(self.underway))}
        if self.underway.what == "truncate":
            offset = self.underway.numbers[0]
            whole = self._ends_cut_at(offset)
            between = (self.start, *(plan.end for plan in self.batches))
            return {*whole, self.end, *(end for end in between if end >= min(whole))}
        return {self.end}

    def starts(self) -> tuple[int, int]:
        """Least and greatest log start; retention may raise it up to where it pleases."""
        what = self.underway.what if self.underway else ""
        if what == "maintain":
            return self.start, self.end
        if what == "start":
            assert self.underway is not None
            return self.start, max(self.start, self.underway.numbers[0])
        if what == "truncate":
            return min(self.start, min(self.ends())), self.start
        return self.start, self.start

    def check(self, log: DiskLog, before: Mapping[int, int]) -> None:
        """Raise ViolationError unless the log, just opened, is as it may be. `before`: bytes of its segments."""
        end = log.log_end_offset
        least, most = self.starts()
        must(end in self.ends(), f"the log ends at {end}, not at one of {sorted(self.ends())}")
        must(
            min(least, end) <= log.log_start_offset <= most,
            f"the log starts at {log.log_start_offset}, not in {least}..{most}",
        )
        self._check_cut(log, before)
        data = everything(log)
        infos = scan(data)
        self._check_records(log, list(records(data, start_offset=log.log_start_offset)))
        _check_epochs(log, infos)
        _check_lookups(log, infos)
        self._adopt(log)

    def _check_cut(self, log: DiskLog, before: Mapping[int, int]) -> None:
        cut = log.recovery.bytes_cut
        if self.underway is not None and self.underway.what in {"truncate", "maintain"}:
            return
        if self.underway is None or self.underway.what != "append":
            must(cut == 0, f"{cut} bytes were cut although nothing was being written")
        # Segments wholly below the log start are deleted without a word.
        first = log.segment_base_offsets[0]
        gone = sum(size for base, size in before.items() if base >= first) - log.size_bytes
        must(cut == gone, f"opening told of {cut} bytes cut, but {gone} are gone")
        must(bool(cut) == bool(log.recovery.cut_reason), "a cut without a reason, or a reason without a cut")

    def _check_records(self, log: DiskLog, found: Sequence[Record]) -> None:
        known = [*self.batches, *(plans(self.underway) if self._is("append") else ())]
        expected = {
            offset: (plan.key(offset), plan.value(offset))
            for plan in known
            for offset in range(plan.base, plan.end)
            if log.log_start_offset <= offset < log.log_end_offset
        }
        held = {record.offset: (record.key, record.value) for record in found}
        must(len(held) == len(found), "an offset is served twice")
        for offset, what in held.items():
            must(expected.get(offset) == what, f"offset {offset} holds what was never written there")
        missing = expected.keys() - held.keys()
        above = [offset for offset in missing if offset >= self.compacted_below]
        must(not above, f"offset {min(above, default=0)} is lost")
        check_compacted(expected, held)

    def _is(self, what: str) -> bool:
        return self.underway is not None and self.underway.what == what

    def _adopt(self, log: DiskLog) -> None:
        """Go on from what is there."""
        if self._is("append"):
            self.batches += plans(self.underway)
        # Those below the log start may be in its first segment still: a truncation can end at one of them.
        self.batches = [plan for plan in self.batches if plan.end <= log.log_end_offset]
        self.start, self.end, self.underway = log.log_start_offset, log.log_end_offset, None


def plans(note: Note | None) -> list[Plan]:
    assert note is not None
    width = len(Plan._fields)
    return [Plan(*note.numbers[at : at + width]) for at in range(0, len(note.numbers), width)]


Held = dict[int, tuple[bytes | None, bytes | None]]
"""Key and value at each offset."""


def check_compacted(expected: Held, held: Held) -> None:
    """What is missing must be superseded by a later record of its key, or be a tombstone that has nothing left to
    delete.
    """
    latest: dict[bytes | None, int] = {}
    oldest_held: dict[bytes | None, int] = {}
    for offset in sorted(expected):
        latest[expected[offset][0]] = offset
    for offset in sorted(held):
        oldest_held.setdefault(held[offset][0], offset)
    for offset in sorted(expected.keys() - held.keys()):
        key, value = expected[offset]
        must(key is not None, f"offset {offset} is lost: it has no key to be compacted by")
        if latest[key] == offset:
            must(value is None, f"offset {offset} is lost, the latest of its key")
            must(key not in oldest_held, f"the tombstone at {offset} is gone, but what it deletes is there")


def everything(log: DiskLog) -> bytes:
    parts, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=1 << 20)
        if result.range is None:
            break
        parts.append(result.range.read_bytes())
        offset = result.next_offset
    return b"".join(parts)


def _check_epochs(log: DiskLog, infos: Sequence[BatchInfo]) -> None:
    for info in infos:
        begun = [entry.epoch for entry in log.epochs if entry.start_offset <= info.base_offset]
        at_start = info.base_offset < log.log_start_offset
        must(
            at_start or (begun and begun[-1] == info.leader_epoch),
            f"the batch at {info.base_offset} is of leader epoch {info.leader_epoch}, the cache says {begun[-1:]}",
        )


def _check_lookups(log: DiskLog, infos: Sequence[BatchInfo]) -> None:
    for info in infos[:: max(1, len(infos) // 40)]:
        if info.base_offset >= log.log_start_offset:
            part = log.read(info.base_offset, max_bytes=1).range
            must(part is not None, f"offset {info.base_offset} cannot be looked up")
            assert part is not None
            (one,) = scan(part.read_bytes())
            must(
                one.base_offset == info.base_offset,
                f"offset {info.base_offset} is looked up in the wrong place",
            )
