"""Records as columns in Arrow's layout: what the columns say is what the records say, both ways."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.replication.client.producer._murmur2 import partition_for_key
from insync.storage import CorruptBatchError
from insync.storage._native import ffi
from insync.storage.batch import (
    ArrowColumn,
    ArrowHeaders,
    BatchBuilder,
    BatchTooLargeError,
    ColumnMemory,
    InflatedTooLargeError,
    PackedColumn,
    PackedRecords,
    Record,
    build_batch,
    pack_records,
    partition_keys,
    records,
    scan,
)

from ..building import batch

optional_bytes = st.none() | st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=3)
rows = st.lists(st.tuples(optional_bytes, optional_bytes, st.integers(0, 1 << 50), header_lists), min_size=1)
codecs = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])


def items(column: PackedColumn, count: int) -> list[bytes | None]:
    places = struct.unpack(f"={count + 1}i", column.offsets)
    valid = [column.validity is None or bool(column.validity[n >> 3] >> (n & 7) & 1) for n in range(count)]
    assert valid.count(False) == column.null_count
    assert places[0] == 0 and places[-1] == len(column.data)
    return [bytes(column.data[places[n] : places[n + 1]]) if valid[n] else None for n in range(count)]


def unpack(packed: PackedRecords) -> list[Record]:
    assert packed.key is not None and packed.value is not None and packed.headers is not None
    keys, values = items(packed.key, packed.count), items(packed.value, packed.count)
    names = items(packed.headers.keys, packed.headers.count)
    contents = items(packed.headers.values, packed.headers.count)
    pairs = [((name or b"").decode(), content) for name, content in zip(names, contents, strict=True)]
    lists = struct.unpack(f"={packed.count + 1}i", packed.headers.list_offsets)
    return [
        Record(
            packed.offsets[n],
            packed.timestamps_ms[n],
            keys[n],
            values[n],
            tuple(pairs[lists[n] : lists[n + 1]]),
        )
        for n in range(packed.count)
    ]


def stamped(found: list[list], codec: str) -> bytes:
    """A batch of each list of rows, one behind the other in offsets."""
    data, offset = b"", 0
    for each in found:
        keys, values, times, headers = map(list, zip(*each, strict=True))
        one = bytearray(build_batch(keys, values, timestamps_ms=times, headers=headers, compression=codec))  # type: ignore[arg-type]
        one[:8] = offset.to_bytes(8)
        offset += len(each)
        data += one
    return data


@given(st.lists(rows, min_size=1, max_size=4), codecs, st.integers(0, 30))
def test_columns_say_what_records_say(found: list[list], codec: str, start: int) -> None:
    data = stamped(found, codec)
    assert unpack(pack_records(data, scan(data), start_offset=start)) == list(
        records(data, start_offset=start)
    )


def test_some_of_the_batches_and_of_the_fields() -> None:
    data = stamped([[(b"k%d" % n, b"v%d" % n, n, [])] for n in range(5)], "lz4")
    packed = pack_records(data, scan(data)[2:4], fields=("value",))
    assert list(packed.offsets) == [2, 3]
    assert packed.value is not None and items(packed.value, 2) == [b"v2", b"v3"]
    assert packed.key is None and packed.headers is None


def test_control_batches_are_passed_over() -> None:
    control = bytearray(stamped([[(b"\0\0\0\0", b"x", 1, [])]], "none"))
    control[22] |= 0x20
    data = stamped([[(b"k", b"v", 1, [])]], "none") + control
    packed = pack_records(data, scan(data, verify_crc=False))
    assert packed.count == 1
    assert pack_records(bytes(control), scan(control, verify_crc=False)).count == 0


def test_records_that_do_not_fit_their_batch() -> None:
    data = bytearray(batch())
    data[61] = 0x7E
    with pytest.raises(CorruptBatchError):
        pack_records(bytes(data), scan(data, verify_crc=False))


def test_the_bound_is_each_batchs_own() -> None:
    data = stamped([[(None, b"x" * 5000, 1, [])] for _ in range(3)], "zstd")
    assert pack_records(data, scan(data), max_inflated_bytes=6000).count == 3
    with pytest.raises(InflatedTooLargeError):
        pack_records(data, scan(data), max_inflated_bytes=4000)


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    memory = ColumnMemory()
    logs = [stamped([[(b"k", bytes([n]) * 100_000, 1, [])]], "none") for n in range(3)]

    def packed(n: int) -> PackedColumn:
        column = pack_records(logs[n], scan(logs[n]), memory=memory).value
        assert column is not None
        return column

    first, second = packed(0), packed(1)
    seen = memoryview(first.data)
    assert place(first) != place(second)
    was = place(second)
    del second
    assert place(packed(2)) == was
    del first
    # Somebody still has a view of the first one's bytes.
    others = [packed(n) for n in (1, 2, 1, 2, 1, 2)]
    assert bytes(seen) == bytes(100_000)
    assert [bytes(each.data)[0] for each in others] == [1, 2, 1, 2, 1, 2]
    assert all(bytes(each.data) == bytes(each.data)[:1] * 100_000 for each in others)


def place(column: PackedColumn) -> int:
    """Where its bytes lie."""
    return int(ffi.cast("intptr_t", ffi.from_buffer(column.data)))


def test_memory_that_is_much_too_large_is_left_alone() -> None:
    memory = ColumnMemory()
    large = memory.take(1 << 20)
    assert len(large) >= 1 << 20
    assert memory.take(1 << 20) is large and memory.take(700_000) is large
    assert memory.take(100_000) is not large
    assert memory.take(1000) is not memory.take(1000)


def column(values: Sequence[bytes | None], before: int = 0) -> ArrowColumn:
    """As Arrow might hand it out: with items before the first, and bytes under nulls."""
    whole = [b"skipped"] * before + [b"null!" if value is None else value for value in values]
    places = array("i", [0])
    for value in whole:
        places.append(places[-1] + len(value))
    bits = bytearray((len(whole) + 7) // 8)
    for n in range(len(whole)):
        if n < before or values[n - before] is not None:
            bits[n >> 3] |= 1 << (n & 7)
    return ArrowColumn(len(values), places, b"".join(whole), bits, before)


def headers_column(lists: Sequence[Sequence[tuple[str, bytes | None]]], before: int) -> ArrowHeaders:
    places = array("i", [0] * (before + 1))
    for each in lists:
        places.append(places[-1] + len(each))
    pairs = [pair for each in lists for pair in each]
    names, contents = [name.encode() for name, _ in pairs], [content for _, content in pairs]
    return ArrowHeaders(len(lists), places, column(names), column(contents), None, before)


@given(rows, st.integers(0, 9), codecs, st.randoms(use_true_random=False))
def test_batches_hold_the_rows_that_were_named(found: list, before: int, codec: str, dice) -> None:
    keys, values, _, headers = map(list, zip(*found, strict=True))
    chosen = array("i", (dice.randrange(len(found)) for _ in range(len(found))))
    builder = BatchBuilder(
        column(keys, before),
        column(values, before),
        headers_column(headers, before),
        max_bytes=1000,
        compression=codec,  # type: ignore[arg-type]
    )
    seen: list[Record] = []
    done = 0
    while done < len(chosen):
        data, taken = builder.build(chosen[done:], 77, producer_id=5, producer_epoch=2, base_sequence=done)
        (info,) = scan(data)
        assert (info.producer_id, info.producer_epoch, info.base_sequence) == (5, 2, done)
        assert info.compression == codec and info.record_count == taken > 0
        seen += records(data)
        done += taken
    assert [(r.key, r.value, list(r.headers)) for r in seen] == [
        (keys[n], values[n], headers[n]) for n in chosen
    ]
    assert {r.timestamp_ms for r in seen} == {77}


def test_batches_are_filled_up_to_their_size() -> None:
    values = column([b"x" * 100] * 50)
    builder = BatchBuilder(ArrowColumn(50), values, max_bytes=61 + 10 * 109 + 3)
    data, taken = builder.build(array("i", range(50)), 0)
    assert taken == 10 and len(data) <= 61 + 10 * 109 + 3
    with pytest.raises(BatchTooLargeError):
        BatchBuilder(ArrowColumn(50), values, max_bytes=150).build(array("i", range(50)), 0)


def test_columns_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="as many keys"):
        BatchBuilder(ArrowColumn(2), column([b"x"]), max_bytes=1000)
    with pytest.raises(ValueError, match="do not reach"):
        BatchBuilder(ArrowColumn(9), ArrowColumn(9, array("i", [0, 1]), b"x"), max_bytes=1000)
    backwards = ArrowColumn(2, array("i", [0, 9, 1]), b"x")
    with pytest.raises(ValueError, match="malformed columns"):
        BatchBuilder(ArrowColumn(2), backwards, max_bytes=1000).build(array("i", [0, 1]), 0)
    with pytest.raises(ValueError, match="malformed columns"):
        BatchBuilder(ArrowColumn(1), ArrowColumn(1), max_bytes=1000).build(array("i", [1]), 0)
    nameless = ArrowHeaders(1, array("i", [0, 1]), ArrowColumn(1), column([b"x"]))
    with pytest.raises(ValueError, match="header has no key"):
        BatchBuilder(ArrowColumn(1), ArrowColumn(1), nameless, max_bytes=1000).build(array("i", [0]), 0)


@given(st.lists(optional_bytes, min_size=1, max_size=50), st.integers(1, 100), st.integers(0, 9))
def test_keys_go_where_every_client_puts_them(keys: list[bytes | None], partitions: int, before: int) -> None:
    expected = [-1 if key is None else partition_for_key(key, partitions) for key in keys]
    assert list(partition_keys(column(keys, before), partitions)) == expected


def test_no_partition_no_place() -> None:
    with pytest.raises(ValueError, match="number of partitions"):
        partition_keys(column([b"k"]), 0)
