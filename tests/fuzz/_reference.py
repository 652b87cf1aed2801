"""What the C of storage should find, worked out slowly from the description of the format alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

HEADER = struct.Struct(">qiibIhiqqqhii")
OK, TRUNCATED, BAD_MAGIC, BAD_LENGTH, BAD_CRC, BAD_HEADER, BAD_RECORD, COMPRESSED = range(8)
WRONG_OFFSET, WRONG_EPOCH = 32, 33
_WINDOW = 5
_I32 = (1 << 31) - 1
_TABLE = []
for _value in range(256):
    for _ in range(8):
        _value = _value >> 1 ^ (0x82F63B78 if _value & 1 else 0)
    _TABLE.append(_value)


class Batch(NamedTuple):
    """Fields in the order of the scan's own."""

    base_offset: int
    position: int
    producer_id: int
    base_timestamp: int
    max_timestamp: int
    size_bytes: int
    last_offset_delta: int
    leader_epoch: int
    record_count: int
    base_sequence: int
    producer_epoch: int
    attributes: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def repaired(data: bytes) -> bytes:
    """With every batch's CRC set."""
    out, at = bytearray(data), 0
    while len(out) - at >= HEADER.size:
        size = int.from_bytes(out[at + 8 : at + 12]) + 12
        if size < HEADER.size or size > len(out) - at:
            break
        out[at + 17 : at + 21] = crc32c(out[at + 21 : at + size]).to_bytes(4)
        at += size
    return bytes(out)


def one(data: bytes, at: int, *, verify: bool) -> tuple[Batch | None, int]:
    """The batch at a position, or why there is none."""
    if len(data) - at < HEADER.size:
        return None, TRUNCATED
    fields = HEADER.unpack_from(data, at)
    base, length, epoch, magic, crc, attributes, delta, first, largest, producer, term, sequence, count = (
        fields
    )
    if magic != 2:
        return None, BAD_MAGIC
    if length < HEADER.size - 12 or length > _I32 - 12:
        return None, BAD_LENGTH
    size = length + 12
    if size > len(data) - at:
        return None, TRUNCATED
    offsets = 0 <= base <= (1 << 63) - 1 - _I32 - 1 and delta >= 0
    if not (offsets and 0 <= count <= delta + 1 and 0 <= attributes < 128 and epoch >= -1):
        return None, BAD_HEADER
    if verify and crc32c(data[at + 21 : at + size]) != crc:
        return None, BAD_CRC
    return (
        Batch(base, at, producer, first, largest, size, delta, epoch, count, sequence, term, attributes),
        OK,
    )


def scan(data: bytes, *, verify: bool) -> tuple[list[Batch], int, int]:
    """The batches from the start on, where they end, and why."""
    found: list[Batch] = []
    at = 0
    while at < len(data):
        batch, reason = one(data, at, verify=verify)
        if batch is None:
            return found, at, reason
        found.append(batch)
        at += batch.size_bytes
    return found, at, OK


def search(data: bytes, start: int, low: int, high: int, epoch: int) -> int:
    for at in range(start, len(data) - HEADER.size + 1):
        if data[at + 16] != 2:
            continue
        batch, _ = one(data, at, verify=True)
        if batch is not None and low <= batch.base_offset < high and batch.leader_epoch >= epoch:
            return at
    return -1


def scan_produced(data: bytes) -> tuple[list[Batch], int, int]:
    """As `scan`, with the records of what is not compressed."""
    found, at, reason = scan(data, verify=True)
    for index, batch in enumerate(found):
        if not batch.attributes & 7 and not is_produced(data, batch):
            return found[:index], batch.position, BAD_RECORD
    return found, at, reason


def is_produced(data: bytes, batch: Batch) -> bool:
    """Whether the records are what a producer makes, and Java reads."""
    reader = _Reader(data, batch.position + HEADER.size, batch.position + batch.size_bytes, strict=True)
    try:
        deltas = [reader.record(batch._replace(base_offset=0)).offset for _ in range(batch.record_count)]
    except _BadRecordError:
        return False
    return deltas == [*range(batch.record_count)] and reader.at == reader.end


class Row(NamedTuple):
    """A record: places in the data; a length of -1 is null."""

    offset: int
    timestamp: int
    key: int
    key_length: int
    value: int
    value_length: int
    headers: int
    header_count: int


class _BadRecordError(Exception):
    pass


class _Reader:
    def __init__(self, data: bytes, at: int, end: int, *, strict: bool = False) -> None:
        """`strict`: what stands for 32 bits has no more, in five bytes at most."""
        self.data, self.at, self.end, self.strict = data, at, end, strict

    def varint(self, *, wide: bool = False) -> int:
        raw = 0
        narrow = self.strict and not wide
        for shift in range(0, 35 if narrow else 70, 7):
            if self.at >= self.end:
                break
            byte = self.data[self.at]
            self.at += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                if narrow and raw >> 32:
                    raise _BadRecordError
                raw &= (1 << 64) - 1
                return raw >> 1 if not raw & 1 else -(raw >> 1) - 1
        raise _BadRecordError

    def item(self) -> tuple[int, int]:
        length = self.varint()
        if not -1 <= length <= self.end - self.at:
            raise _BadRecordError
        start = self.at
        self.at += max(length, 0)
        return start, length

    def record(self, batch: Batch) -> Row:
        length = self.varint()
        if not 1 <= length <= self.end - self.at:
            raise _BadRecordError
        inner = _Reader(self.data, self.at + 1, self.at + length, strict=self.strict)
        self.at += length
        time, offset = inner.varint(wide=True), inner.varint()
        key, value, count = inner.item(), inner.item(), inner.varint()
        if not 0 <= count <= inner.end - inner.at:
            raise _BadRecordError
        headers = inner.at
        for _ in range(count):
            if inner.item()[1] < 0:
                raise _BadRecordError
            inner.item()
        if inner.at != inner.end or not 0 <= offset <= batch.last_offset_delta:
            raise _BadRecordError
        stamp = batch.max_timestamp if batch.attributes & 8 else _signed(batch.base_timestamp + time)
        return Row(batch.base_offset + offset, stamp, *key, *value, headers, count)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def decode(data: bytes, start_offset: int) -> tuple[list[Row], int, int]:
    """The records from an offset on, and the position and reason where it ended."""
    rows: list[Row] = []
    at = 0
    while at < len(data):
        batch, reason = one(data, at, verify=False)
        if batch is None:
            return rows, at, reason
        if not batch.attributes & 32 and batch.next_offset > start_offset:
            if batch.attributes & 7:
                return rows, at, COMPRESSED
            reader = _Reader(data, at + HEADER.size, at + batch.size_bytes)
            try:
                for _ in range(batch.record_count):
                    row = reader.record(batch)
                    if row.offset >= start_offset:
                        rows.append(row)
            except _BadRecordError:
                return rows, at, BAD_RECORD
            if reader.at != reader.end:
                return rows, at, BAD_RECORD
        at += batch.size_bytes
    return rows, at, OK


class Producer(NamedTuple):
    producer_id: int
    epoch: int
    timestamp: int
    batches: tuple[tuple[int, int, int, int], ...]


class Log(NamedTuple):
    """What recovery should find in a file."""

    good: list[Batch]
    reason: int
    index: bytes
    time_index: bytes
    epochs: list[tuple[int, int]]
    largest: tuple[int, int]
    producers: list[Producer]


def scan_log(data: bytes, *, interval: int, offset: int, gaps: bool) -> Log:
    """Of a segment with base offset 0 whose first batch has that offset (below 0: any).

    With gaps, offsets may be missing between batches.
    """
    good: list[Batch] = []
    index, times = bytearray(), bytearray()
    epochs: list[tuple[int, int]] = []
    largest, entered, since, at, epoch = (-1, -1), -1, 0, 0, -1
    reason = OK
    while at < len(data):
        batch, reason = one(data, at, verify=True)
        if batch is None:
            break
        if 0 <= offset != batch.base_offset and not (gaps and batch.base_offset > offset):
            reason = WRONG_OFFSET
            break
        if batch.leader_epoch < epoch:
            reason = WRONG_EPOCH
            break
        last = batch.next_offset - 1
        if batch.record_count and batch.max_timestamp > largest[0]:
            largest = (batch.max_timestamp, last)
        if since > interval:
            since = 0
            if last <= _I32:
                index += struct.pack(">ii", last, at)
                if largest[0] > entered:
                    times += struct.pack(">qi", *largest)
                    entered = largest[0]
        if batch.leader_epoch > epoch:
            epoch = batch.leader_epoch
            epochs.append((epoch, batch.base_offset))
        since += batch.size_bytes
        at += batch.size_bytes
        offset = batch.next_offset
        good.append(batch)
    return Log(good, reason, bytes(index), bytes(times), epochs, largest, producers(good))


def producers(batches: Sequence[Batch]) -> list[Producer]:
    """In the order of their first batches, each with the last five of its present epoch."""
    held: dict[int, Producer] = {}
    for batch in batches:
        if batch.producer_id < 0:
            continue
        old = held.get(batch.producer_id)
        kept = old.batches if old is not None and old.epoch == batch.producer_epoch else ()
        if batch.base_sequence >= 0:
            last = (batch.base_sequence + batch.last_offset_delta) & _I32
            offsets = (batch.base_offset, batch.next_offset - 1)
            kept = (*kept, (*offsets, batch.base_sequence, last))[-_WINDOW:]
        held[batch.producer_id] = Producer(batch.producer_id, batch.producer_epoch, batch.max_timestamp, kept)
    return list(held.values())


def slice_of(
    good: Sequence[Batch], offset: int, limit: int, max_bytes: int, at_least_one: bool
) -> tuple[int, int, int, int]:
    """Position and offset where the slice starts and where it stops; `offset` is below the end."""
    rest = [batch for batch in good if batch.next_offset > offset]
    taken: list[Batch] = []
    size = 0
    for batch in rest:
        size += batch.size_bytes
        if batch.next_offset > limit or (size > max_bytes and (taken or not at_least_one)):
            break
        taken.append(batch)
    first = rest[0]
    if not taken:
        return first.position, first.base_offset, first.position, first.base_offset
    end, after = taken[-1], rest[len(taken) :]
    stop = min(limit, after[0].base_offset) if after else end.next_offset
    return first.position, first.base_offset, end.position + end.size_bytes, stop
