"""The check: what the replicas' files hold against what was acknowledged, and against each other.

A pure function of folders and an `Expectation`. It asks no node, and its reader of segment files shares nothing
with the log, its indexes or the consumer: it takes the `.log` files of a folder in order and reads batch
after batch (record batch format v2) from first byte to last. Each defect is named by partition, offset and key.
"""

from __future__ import annotations

import difflib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path

import attrs

from ....storage.batch import BatchInfo, Record, records, scan_prefix
from .inputs import Expectation, Expected, fingerprints

READ_BYTES = 4 << 20


class SegmentError(Exception):
    """A segment file does not hold whole, valid batches whose offsets run on; says which file and where."""

    def __init__(self, path: Path, position: int, offset: int, reason: str) -> None:
        super().__init__(path, position, offset, reason)
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.reason}"


@attrs.frozen
class Block:
    """Whole batches as they lie in a file from `position` on; `data` is valid until the next block is read."""

    path: Path
    position: int
    data: memoryview
    batches: list[BatchInfo]

    def records(self, start_offset: int = 0) -> Iterator[Record]:
        return iter(records(self.data, start_offset=start_offset))


def segment_files(folder: Path) -> list[Path]:
    """The `.log` files of a partition's folder in order of their base offsets."""
    return sorted(folder.glob("*.log"))


def read_blocks(folder: Path) -> Iterator[Block]:
    """All batches of a replica, some megabytes at a time.

    Raises `SegmentError` at the first byte that is not part of a whole valid batch, and at the first batch
    whose base offset does not run on from the one before (or from its file's name).
    """
    next_offset = 0
    for path in segment_files(folder):
        if int(path.stem) != next_offset:
            raise SegmentError(path, 0, next_offset, f"the segment should begin at offset {next_offset}")
        for block in _read_file(path, next_offset):
            contiguous = _contiguous(block, next_offset)
            if contiguous.batches:
                next_offset = contiguous.batches[-1].next_offset
                yield contiguous
            if len(contiguous.batches) < len(block.batches):
                astray = block.batches[len(contiguous.batches)]
                reason = f"the batch has base offset {astray.base_offset}, {next_offset} should follow"
                raise SegmentError(path, block.position + astray.position, next_offset, reason)


def _contiguous(block: Block, next_offset: int) -> Block:
    """The part of a block whose offsets run on."""
    for number, batch in enumerate(block.batches):
        if batch.base_offset != next_offset:
            return Block(block.path, block.position, block.data[: batch.position], block.batches[:number])
        next_offset = batch.next_offset
    return block


def _read_file(path: Path, next_offset: int) -> Iterator[Block]:
    position, rest = 0, b""
    with path.open("rb") as file:
        while True:
            fresh = file.read(READ_BYTES)
            data = rest + fresh
            if not data:
                return
            batches, consumed, reason = scan_prefix(data)
            if not consumed and (not fresh or len(data) > 2 * READ_BYTES):
                raise SegmentError(path, position, next_offset, reason or "a batch is cut short")
            if batches:
                next_offset = batches[-1].next_offset
                yield Block(path, position, memoryview(data)[:consumed], batches)
            position, rest = position + consumed, data[consumed:]


_CHUNK_BYTES = 1 << 20


@attrs.frozen
class Divergence:
    """The first byte that differs, counted over all segments, and the first record that does."""

    position: int
    offset: int
    key: bytes | None

    def record_key(self) -> bytes | None:
        return self.key


def first_divergence(one: Path, other: Path) -> Divergence | None:
    """Where two replicas' `.log` files begin to differ; None if they are identical."""
    position = _first_different_byte(one, other)
    if position is None:
        return None
    span = _batch_at(one, position) or _batch_at(other, position)
    if span is None:
        return Divergence(position, 0, None)
    offset, key = _first_different_record(_records(one, *span), _records(other, *span), span[0])
    return Divergence(position, offset, key)


def _first_different_byte(one: Path, other: Path) -> int | None:
    position = 0
    for left, right in zip(_chunks(one), _chunks(other), strict=False):
        if left != right:
            common = min(len(left), len(right))
            different = (n for n in range(common) if left[n] != right[n])
            return position + next(different, common)
        position += len(left)
    return None


def _chunks(folder: Path) -> Iterator[bytes]:
    """The bytes of all segments in pieces of one size, but for the last, which is shorter, if need be empty.

    So streams of different lengths differ in a piece that both have.
    """
    rest = b""
    for path in segment_files(folder):
        with path.open("rb") as file:
            while fresh := file.read(_CHUNK_BYTES - len(rest)):
                rest += fresh
                if len(rest) == _CHUNK_BYTES:
                    yield rest
                    rest = b""
    yield rest


def _batch_at(folder: Path, position: int) -> tuple[int, int] | None:
    """Offsets (exclusive end) of the batch that lies over a byte of the stream; None past readable data."""
    start = 0
    try:
        for block in read_blocks(folder):
            if position < start + len(block.data):
                batches = (
                    each for each in block.batches if start + each.position + each.size_bytes > position
                )
                return next((each.base_offset, each.next_offset) for each in batches)
            start += len(block.data)
    except SegmentError as error:
        return error.offset, error.offset + 1
    return None


def _records(folder: Path, start: int, stop: int) -> list[Record]:
    """The readable records with start <= offset < stop."""
    found: list[Record] = []
    try:
        for block in read_blocks(folder):
            if block.batches[-1].next_offset > start:
                found += [each for each in block.records(start) if each.offset < stop]
            if block.batches[-1].next_offset >= stop:
                break
    except SegmentError:
        return found
    return found


def _first_different_record(one: list[Record], other: list[Record], start: int) -> tuple[int, bytes | None]:
    for left, right in zip(one, other, strict=False):
        if left != right:
            return left.offset, left.key
    common = min(len(one), len(other))
    longer = one if len(one) > len(other) else other
    return (longer[common].offset, longer[common].key) if len(longer) > common else (start, None)


ANCHOR = 8
"""The length of a run of equal elements that counts as agreement (the common end counts, too)."""
_FIRST_WINDOW = 64
_LAST_WINDOW = 1 << 16
"""Logs that agree nowhere within this many records count as different to their ends."""
_REFINE_MAX = 2_000
_BLOCK = 4_096


@attrs.frozen
class Edit:
    """`expected[expected_start:expected_stop]` stands as `actual[actual_start:actual_stop]`; bounds exclusive."""

    expected_start: int
    expected_stop: int
    actual_start: int
    actual_stop: int


def differences(expected: array[int], actual: array[int]) -> list[Edit]:
    """All places where the two differ, in order; empty if they are equal."""
    edits: list[Edit] = []
    i = j = 0
    while True:
        same = _common_prefix(expected, i, actual, j)
        i, j = i + same, j + same
        if i == len(expected) and j == len(actual):
            return edits
        a, b = _resynchronise(expected, i, actual, j)
        edits.extend(_refine(expected, Edit(i, i + a, j, j + b), actual))
        i, j = i + a, j + b


def _common_prefix(expected: array[int], i: int, actual: array[int], j: int) -> int:
    length = min(len(expected) - i, len(actual) - j)
    at = 0
    while at < length:
        size = min(_BLOCK, length - at)
        if expected[i + at : i + at + size] != actual[j + at : j + at + size]:
            return at + next(n for n in range(size) if expected[i + at + n] != actual[j + at + n])
        at += size
    return length


def _resynchronise(expected: array[int], i: int, actual: array[int], j: int) -> tuple[int, int]:
    """How many elements to skip on each side until both agree again; the smallest sum within the window."""
    window = _FIRST_WINDOW
    while window <= _LAST_WINDOW:
        best = _nearest(expected, i, actual, j, window)
        if best is not None:
            return best
        window *= 32
    return len(expected) - i, len(actual) - j


def _nearest(expected: array[int], i: int, actual: array[int], j: int, window: int) -> tuple[int, int] | None:
    anchors: dict[bytes, int] = {}
    for a in range(min(window, len(expected) - i) + 1):
        anchors.setdefault(expected[i + a : i + a + ANCHOR].tobytes(), a)
    best: tuple[int, int] | None = None
    for b in range(min(window, len(actual) - j) + 1):
        if best is not None and b >= sum(best):
            break
        found = anchors.get(actual[j + b : j + b + ANCHOR].tobytes())
        if found is not None and (best is None or found + b < sum(best)):
            best = found, b
    return best


def _refine(expected: array[int], edit: Edit, actual: array[int]) -> list[Edit]:
    """The least edits within a small difference: of two swapped records one has moved, not two."""
    left = expected[edit.expected_start : edit.expected_stop].tolist()
    right = actual[edit.actual_start : edit.actual_stop].tolist()
    if not left or not right or len(left) + len(right) > _REFINE_MAX:
        return [edit]
    return [
        Edit(
            edit.expected_start + a0, edit.expected_start + a1, edit.actual_start + b0, edit.actual_start + b1
        )
        for tag, a0, a1, b0, b1 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
        if tag != "equal"
    ]


class Kind(StrEnum):
    """The defects that a replica can have; the values are the words of the verdict."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    OUT_OF_ORDER = "out of order"
    FOREIGN = "foreign"
    MISPLACED = "not at its acknowledged offset"
    UNREADABLE = "unreadable"
    REPLICAS_DIFFER = "replicas differ"


DEFECTS_KEPT = 5
"""Of each kind in each partition; all are counted."""


@attrs.frozen
class Defect:
    """One thing that is wrong. `key` is None where no record can be told."""

    kind: Kind
    partition: int
    offset: int
    key: bytes | None
    detail: str = ""

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key.decode('utf-8', 'backslashreplace')}"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.kind}: partition {self.partition}, offset {self.offset}{key}{detail}"


@attrs.define(eq=False)
class Verification:
    """Counts of all defects, the first few of them by name, and how much was looked at."""

    counts: Counter[Kind] = attrs.Factory(Counter)
    defects: list[Defect] = attrs.Factory(list)
    records: int = 0
    size_bytes: int = 0

    @property
    def replicas_identical(self) -> bool:
        return not self.counts[Kind.REPLICAS_DIFFER]

    @property
    def ok(self) -> bool:
        return not self.counts.total()


@attrs.frozen
class _Found:
    """A replica's content: hash of each record, in the order of its offsets 0, 1, 2, ..."""

    fingerprints: array[int]
    unreadable: SegmentError | None


def verify(
    replicas: Mapping[int, Mapping[int, Path]],
    expectation: Expectation,
    *,
    on_progress: Callable[[int, int], None] = lambda records, size_bytes: None,
) -> Verification:
    """Check every partition: `replicas` maps partition -> node id -> folder, the leader's replica first.

    The first replica is compared with the input, record by record; the others with the first, byte by byte.
    `on_progress` is called with the records and the bytes of segments checked so far.
    """
    result = Verification()
    for partition, folders in sorted(replicas.items()):
        expected = expectation.partitions.get(partition, Expected())
        _check_content(partition, folders, expected, expectation, result)
        _check_identical(partition, folders, result)
        on_progress(result.records, result.size_bytes)
    return result


def _check_content(
    partition: int,
    folders: Mapping[int, Path],
    expected: Expected,
    expectation: Expectation,
    result: Verification,
) -> None:
    folder = next(iter(folders.values()))
    found = _read(folder)
    result.records += len(found.fingerprints)
    result.size_bytes += sum(path.stat().st_size for each in folders.values() for path in segment_files(each))
    report = _Reporter(partition, result)
    if found.unreadable is not None:
        report(Kind.UNREADABLE, found.unreadable.offset, _no_key, str(found.unreadable))
    _Comparison(folder, expected, found.fingerprints, expectation, report).run()


def _read(folder: Path) -> _Found:
    found = array("q")
    try:
        for block in read_blocks(folder):
            found.extend(fingerprints((each.key, each.value) for each in block.records()))
    except SegmentError as error:
        return _Found(found, error)
    return _Found(found, None)


@attrs.define(eq=False)
class _Reporter:
    """Counts every defect of one partition, keeps the first few of each kind by name."""

    partition: int
    result: Verification
    _kept: Counter[Kind] = attrs.Factory(Counter)

    def __call__(self, kind: Kind, offset: int, key: Callable[[], bytes | None], detail: str = "") -> None:
        """`key` is called only for a defect that is kept: finding it may mean to read a file again."""
        self.result.counts[kind] += 1
        if self._kept[kind] < DEFECTS_KEPT:
            self._kept[kind] += 1
            self.result.defects.append(Defect(kind, self.partition, offset, key(), detail))


@attrs.define(eq=False)
class _Comparison:
    """One replica's records against those that were acknowledged, told apart by what happened to them."""

    folder: Path
    expected: Expected
    actual: array[int]
    expectation: Expectation
    report: _Reporter

    def run(self) -> None:
        """A record that is missing here and too many there has moved; else it is lost, or doubled, or foreign."""
        missing, extra = self._missing_and_extra()
        moved = Counter(self.expected.fingerprints[at] for at in missing)
        moved &= Counter(self.actual[at] for at in extra)
        self._report_extra(extra, Counter(moved))
        self._report_lost(missing, moved)
        if not missing and not extra:
            self._check_offsets()

    def _missing_and_extra(self) -> tuple[list[int], list[int]]:
        missing: list[int] = []
        extra: list[int] = []
        for edit in differences(self.expected.fingerprints, self.actual):
            missing.extend(range(edit.expected_start, edit.expected_stop))
            extra.extend(range(edit.actual_start, edit.actual_stop))
        return missing, extra

    def _report_extra(self, extra: list[int], moved: Counter[int]) -> None:
        known = set(self.expected.fingerprints) if extra else set()
        for offset in extra:
            print_ = self.actual[offset]
            key = partial(key_at, self.folder, offset)
            if moved[print_] > 0:
                moved[print_] -= 1
                self.report(Kind.OUT_OF_ORDER, offset, key)
            elif print_ in known:
                self.report(Kind.DUPLICATED, offset, key)
            elif print_ not in self.expectation.unacknowledged:
                self.report(Kind.FOREIGN, offset, key, "no such record was produced to this partition")

    def _report_lost(self, missing: list[int], moved: Counter[int]) -> None:
        for position in missing:
            if moved[self.expected.fingerprints[position]] > 0:
                moved[self.expected.fingerprints[position]] -= 1
            else:
                key = partial(self.expectation.key_of, self.report.partition, position)
                self.report(Kind.LOST, self.expected.offsets[position], key, "it was acknowledged")

    def _check_offsets(self) -> None:
        """The content is right; so each record must stand at the very offset of its acknowledgement."""
        if self.expected.offsets == array("q", range(len(self.expected))):
            return
        for offset, acknowledged in enumerate(self.expected.offsets):
            if offset != acknowledged:
                key = partial(key_at, self.folder, offset)
                self.report(Kind.MISPLACED, offset, key, f"acknowledged at {acknowledged}")


def _check_identical(partition: int, folders: Mapping[int, Path], result: Verification) -> None:
    (first, first_folder), *others = folders.items()
    report = _Reporter(partition, result)
    for node, folder in others:
        divergence = first_divergence(first_folder, folder)
        if divergence is not None:
            detail = f"nodes {first} and {node}, from byte {divergence.position} of their segments on"
            report(Kind.REPLICAS_DIFFER, divergence.offset, divergence.record_key, detail)


def _no_key() -> None:
    """For a defect that belongs to no readable record."""


def key_at(folder: Path, offset: int) -> bytes | None:
    """The key of the record at `offset`, None if the replica has no such record."""
    for block in read_blocks(folder):
        if block.batches[-1].next_offset > offset:
            return next((record.key for record in block.records() if record.offset == offset), None)
    return None
