"""Going over batches for compaction: the latest offset of each key, then copies without what a later record
replaces.

Uncompressed batches stay in C by the hundred; compressed ones are decompressed one by one, and compressed again
only if something was taken out. A batch whose bytes are as they were written, and whose records nobody can read,
replaces nothing and stays as it is: one producer's nonsense must not end the compaction of a partition.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import attrs

from .._native import ffi, lib
from .._transactions import Transactions
from ..batch._build import recompressed
from ..batch._codecs import MAX_INFLATED_BYTES
from ..batch._columns import Buffer
from ..batch._records import inflate_batch
from ..batch._scan import (
    BATCH_OVERHEAD_BYTES,
    CODEC_MASK,
    LENGTH,
    LENGTH_AT,
    LENGTH_END,
    REASONS,
    BatchInfo,
    scan,
)
from ..errors import CorruptBatchError, InflatedTooLargeError, StorageError, UnsupportedCompressionError
from ..file_range import ReadableFile, read_at
from ..segment._segment import Spot

WINDOW = 1 << 20

_HAS_HORIZON = 1 << 6
_SLOT_BYTES = 24
_LEAST_RECORD = 7
_SPECIAL = {lib.ISR_COMPRESSED, lib.ISR_SPECIAL}
_PASSED_OVER = {*_SPECIAL, lib.ISR_BAD_RECORD}
"""Batches that have been seen to one by one, or cannot be read."""


class Source(NamedTuple):
    """A segment to read."""

    file: ReadableFile
    base_offset: int
    end: Spot


class KeyMap:
    """The latest offset of each key, in bounded memory."""

    def __init__(self, max_bytes: int, log_bytes: int) -> None:
        """
        max_bytes: the most memory that it takes.
        log_bytes: of log whose keys it is for, so that it takes no more than can be needed.
        """
        slots = max(16, min(max_bytes // _SLOT_BYTES, log_bytes // _LEAST_RECORD * 4 // 3 + 16))
        self.map = ffi.gc(lib.isr_keymap_new(slots, ffi.from_buffer(os.urandom(16))), lib.isr_keymap_free)
        if self.map == ffi.NULL:
            raise MemoryError

    def __len__(self) -> int:
        return lib.isr_keymap_count(self.map)


def enter_keys(
    keys: KeyMap,
    source: Source,
    from_offset: int,
    transactions: Callable[[], Transactions],
    pace: Callable[[int], None],
) -> tuple[int, bool]:
    """Enter the keys of a segment's records from an offset on.

    Returns up to which offset they are entered, and whether that is because the map is full. It stops before a
    transaction that has not ended.

    transactions: of the log as far as it is compacted; asked only if there are any.

    pace: told of every number of bytes read; may wait, or raise to stop.

    Raises CorruptBatchError.
    """
    progress = ffi.new("isr_keymap_progress *")
    progress.next_offset = source.base_offset
    for data, position in _stretches(source, lambda: progress.consumed):
        view = ffi.from_buffer(data)
        progress.consumed = 0
        while True:
            reason = lib.isr_keymap_add(
                keys.map, view, len(data), from_offset, lib.ISR_CLEAN_VERIFY, progress
            )
            if reason in _SPECIAL:
                batch = _one(data, progress.consumed)
                info = _checked(batch, position + progress.consumed)
                if info.is_transactional and transactions().is_open(info):
                    return info.base_offset, False
                if not (info.is_control or (info.is_transactional and transactions().is_aborted(info))):
                    reason = _enter_one(keys, batch, info, from_offset, progress)
            if reason in _PASSED_OVER:
                info = scan(_one(data, progress.consumed), verify_crc=False)[0]
                progress.consumed += info.size_bytes
                progress.next_offset = info.next_offset
                continue
            if reason == lib.ISR_MAP_FULL:
                return progress.next_offset, True
            _expect_whole(reason, position + progress.consumed)
            break
        pace(progress.consumed)
    return source.end.offset, False


def _enter_one(keys: KeyMap, batch: bytes, info: BatchInfo, from_offset: int, progress: object) -> int:
    """A compressed or transactional batch: ISR_COMPRESSED if that is done, or nothing can be done."""
    try:
        plain = _plain(batch, info)
    except _UNREADABLE:
        return lib.ISR_COMPRESSED
    inner = ffi.new("isr_keymap_progress *")
    inner.next_offset = info.base_offset
    view = ffi.from_buffer(plain)
    reason = lib.isr_keymap_add(keys.map, view, len(plain), from_offset, lib.ISR_CLEAN_ANY, inner)
    if reason == lib.ISR_MAP_FULL:
        progress.next_offset = inner.next_offset  # type: ignore[attr-defined]
        return reason
    return lib.ISR_COMPRESSED


@attrs.frozen(slots=True)
class Rules:
    """What stays."""

    kept_last_offsets: Sequence[int]
    """Batches that end with one of these stay even without records."""
    covered_offset: int
    """Up to where the map knows the keys."""
    now_ms: int
    delete_retention_ms: int


@attrs.define(eq=False, slots=True)
class Cleaned:
    """The result of cleaning."""

    removed: int = 0
    keyless: int = 0
    changed: int = 0
    unreadable: int = 0
    """Batches that were copied as they are because their records cannot be read."""
    first_unreadable: str = ""
    """Where the first of them is, and what is wrong with it."""


class Copier:
    """Copies segments, the oldest first, without what is to go."""

    def __init__(self, keys: KeyMap, rules: Rules, transactions: Callable[[], Transactions]) -> None:
        self._keys = keys
        self._transactions = transactions
        self._now = rules.now_ms
        kept = sorted(rules.kept_last_offsets)
        self._kept = ffi.new("int64_t[]", kept)
        self._rules = ffi.new(
            "isr_clean_rules *",
            (
                self._kept,
                len(kept),
                rules.covered_offset,
                rules.now_ms,
                rules.now_ms + rules.delete_retention_ms,
                lib.ISR_CLEAN_VERIFY,
            ),
        )
        self._open: set[int] = set()
        """Producers of whose transaction in hand a batch with records has stayed."""
        self.markers: set[int] = set()
        """The offsets of the markers that have stayed."""
        self.done = Cleaned()

    def copy(self, source: Source) -> Iterator[tuple[Buffer, int]]:
        """Pieces of the copy in order, each with the number of bytes that were read for it. A piece is valid until
        the next. Raises CorruptBatchError.
        """
        progress = ffi.new("isr_clean_progress *")
        out = bytearray(2 * WINDOW)
        for data, position in _stretches(source, lambda: progress.consumed):
            view = ffi.from_buffer(data)
            progress.consumed = 0
            while True:
                start, progress.written = progress.consumed, 0
                reason = self._clean(view, len(data), lib.ISR_CLEAN_VERIFY, out, progress)
                yield memoryview(out)[: progress.written], progress.consumed - start
                if reason in _PASSED_OVER:
                    batch = _one(data, progress.consumed)
                    yield self._copy_one(batch, source, position + progress.consumed), len(batch)
                    progress.consumed += len(batch)
                elif reason == lib.ISR_NO_ROOM:
                    if progress.written == 0:
                        out = bytearray(2 * len(out))
                else:
                    _expect_whole(reason, position + progress.consumed)
                    break

    def _clean(self, view: object, size: int, flags: int, out: bytearray, progress: object) -> int:
        before = progress.removed, progress.keyless, progress.changed  # type: ignore[attr-defined]
        self._rules.flags = flags
        reason = lib.isr_clean(
            self._keys.map, view, size, self._rules, ffi.from_buffer(out), len(out), progress
        )
        after = progress.removed, progress.keyless, progress.changed  # type: ignore[attr-defined]
        self.done.removed += after[0] - before[0]
        self.done.keyless += after[1] - before[1]
        self.done.changed += after[2] - before[2]
        return reason

    def _copy_one(self, batch: bytes, source: Source, position: int) -> Buffer:
        """A compressed or transactional batch, empty if none of it stays; or one that cannot be read, as it is."""
        info = _checked(batch, position)
        try:
            result, removed = self._cleaned(batch, info)
        except _UNREADABLE as error:
            result, removed = batch, 0
            self._note(source, position, info, error)
        if info.is_transactional and removed < info.record_count:
            if info.is_control:
                self.markers.add(info.next_offset - 1)
            else:
                self._open.add(info.producer_id)
        return result

    def _cleaned(self, batch: bytes, info: BatchInfo) -> tuple[Buffer, int]:
        """The part of a batch that stays, and how many records do not."""
        plain = _plain(batch, info)
        if info.record_count * _LEAST_RECORD > len(plain):
            raise CorruptBatchError(info.position, REASONS[lib.ISR_BAD_RECORD])
        out = bytearray(len(plain) + 20 * info.record_count)
        progress = ffi.new("isr_clean_progress *")
        flags = lib.ISR_CLEAN_ANY | self._flags(info)
        reason = self._clean(ffi.from_buffer(plain), len(plain), flags, out, progress)
        if reason != lib.ISR_OK:
            raise CorruptBatchError(info.position, REASONS.get(reason, "its records do not match its header"))
        cleaned = memoryview(out)[: progress.written]
        if progress.changed == 0:
            return batch, progress.removed
        if info.attributes & CODEC_MASK and progress.written:
            return recompressed(cleaned, info.attributes & CODEC_MASK), progress.removed
        return cleaned, progress.removed

    def _note(self, source: Source, position: int, info: BatchInfo, error: StorageError) -> None:
        self.done.unreadable += 1
        if self.done.unreadable == 1:
            why = getattr(error, "reason", error)
            self.done.first_unreadable = (
                f"offsets {info.base_offset} to {info.next_offset - 1}, byte {position} of the segment that begins "
                f"at {source.base_offset}: {why}"
            )

    def _flags(self, info: BatchInfo) -> int:
        """The marker of a transaction stays as long as one of its batches does, and then as long as tombstones."""
        if not info.is_control:
            aborted = info.is_transactional and self._transactions().is_aborted(info)
            return lib.ISR_CLEAN_DROP if aborted else 0
        if info.producer_id in self._open or not info.is_transactional:
            self._open.discard(info.producer_id)
            return 0
        if info.attributes & _HAS_HORIZON:
            return lib.ISR_CLEAN_DROP if info.base_timestamp <= self._now else 0
        return lib.ISR_CLEAN_MARK


def _stretches(source: Source, consumed: Callable[[], int]) -> Iterator[tuple[bytes, int]]:
    """The bytes of a segment from batch to batch, each with its position: the next begins where the one before was
    consumed up to.
    """
    position, want = 0, WINDOW
    while position < source.end.position:
        data = read_at(source.file.fileno(), min(want, source.end.position - position), position)
        if not data:
            raise CorruptBatchError(position, "the file is shorter than it was")
        yield data, position
        if consumed():
            position += consumed()
            want = WINDOW
            continue
        want = _size(data, 0) if len(data) >= BATCH_OVERHEAD_BYTES else 0
        if not len(data) < want <= source.end.position - position:
            raise CorruptBatchError(position, REASONS[lib.ISR_TRUNCATED])


def _size(data: Buffer, at: int) -> int:
    """The size that a batch declares; only what a header check has let through is believed."""
    size: int = LENGTH.unpack_from(data, at + LENGTH_AT)[0]
    return size + LENGTH_END


def _one(data: bytes, at: int) -> bytes:
    """The whole batch at a position."""
    return data[at : at + _size(data, at)]


_UNREADABLE = (CorruptBatchError, UnsupportedCompressionError, InflatedTooLargeError)


def _plain(batch: bytes, info: BatchInfo) -> bytes:
    if not info.attributes & CODEC_MASK:
        return batch
    return inflate_batch(batch, 0, len(batch), MAX_INFLATED_BYTES)


def _checked(batch: bytes, position: int) -> BatchInfo:
    try:
        return scan(batch)[0]
    except CorruptBatchError as error:
        raise CorruptBatchError(position, error.reason) from error


def _expect_whole(reason: int, position: int) -> None:
    """Raise unless the stretch ended, perhaps within a batch."""
    if reason not in (lib.ISR_OK, lib.ISR_TRUNCATED):
        raise CorruptBatchError(position, REASONS[reason])
