"""The batch format: what is built is what is read, byte for byte as the format says."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.storage import BatchTooLargeError, CorruptBatchError, UnsupportedCompressionError
from insync.storage.batch import (
    BATCH_OVERHEAD_BYTES,
    ROW_FORMAT,
    SEQUENCE_MODULUS,
    BatchInfo,
    Record,
    _build,
    build_batch,
    crc32c,
    decode_columns,
    find_batch,
    record_overhead_bytes,
    records,
    restamp_producer,
    scan,
    scan_file,
    scan_prefix,
    scan_rows,
)

from ..building import batch

optional_bytes = st.none() | st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=3)
millis = st.integers(-(1 << 62), (1 << 62) - 1)
rows = st.lists(st.tuples(optional_bytes, optional_bytes, millis, header_lists), min_size=1, max_size=20)


def build(found: list, **options) -> bytes:
    keys, values, times, headers = map(list, zip(*found, strict=True))
    return build_batch(keys, values, timestamps_ms=times, headers=headers, **options)


def varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        raw |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return (raw >> 1) ^ -(raw & 1), at


def read_slowly(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None, list]]:
    """An independent reader of one batch, after the format page."""

    def item(at: int) -> tuple[bytes | None, int]:
        length, at = varint(data, at)
        return (None, at) if length < 0 else (data[at : at + length], at + length)

    base_time = int.from_bytes(data[27:35], signed=True)
    at, found = BATCH_OVERHEAD_BYTES, []
    for _ in range(int.from_bytes(data[57:61])):
        length, at = varint(data, at)
        end = at + length
        assert data[at] == 0
        time, at = varint(data, at + 1)
        offset, at = varint(data, at)
        key, at = item(at)
        value, at = item(at)
        count, at = varint(data, at)
        headers = []
        for _ in range(count):
            name, at = item(at)
            content, at = item(at)
            assert name is not None
            headers.append((name.decode(), content))
        assert at == end
        found.append((offset, base_time + time, key, value, headers))
    assert at == len(data)
    return found


def test_golden_bytes() -> None:
    data = build_batch(
        [b"k", None],
        [b"val", None],
        timestamps_ms=[1000, 1003],
        headers=[[("h", None)], []],
        producer_id=9,
        producer_epoch=3,
        base_sequence=70,
    )
    first = bytes([26, 0, 0, 0, 2]) + b"k" + bytes([6]) + b"val" + bytes([2, 2]) + b"h" + bytes([1])
    second = bytes([12, 0, 6, 2, 1, 1, 0])
    body = struct.pack(">hiqqqhii", 0, 1, 1000, 1003, 9, 3, 70, 2) + first + second
    expected = struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body
    assert data == expected


@given(rows)
def test_records_come_back_as_they_went_in(found) -> None:
    data = build(found)
    expected = [(key, value, time, tuple(headers)) for key, value, time, headers in found]
    got = list(records(data))
    assert [(each.key, each.value, each.timestamp_ms, each.headers) for each in got] == expected
    assert [each.offset for each in got] == list(range(len(found)))
    assert read_slowly(data) == [(at, t, k, v, h) for at, (k, v, t, h) in enumerate(found)]


@given(rows, st.integers(0, 1 << 40), st.integers(0, 1 << 14), st.integers(0, SEQUENCE_MODULUS - 1))
def test_scan_tells_what_was_built(found, producer_id: int, epoch: int, sequence: int) -> None:
    data = build(
        found, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    (info,) = scan(data)
    times = [time for _, _, time, _ in found]
    assert (info.base_offset, info.next_offset, info.record_count) == (0, len(found), len(found))
    assert (info.base_timestamp, info.max_timestamp) == (times[0], max(times))
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (producer_id, epoch, sequence)
    assert info.last_sequence == (sequence + len(found) - 1) % SEQUENCE_MODULUS
    assert (info.size_bytes, info.position, info.leader_epoch) == (len(data), 0, -1)
    assert info.is_transactional
    assert not info.is_control
    assert info.compression == "none"


@given(st.lists(st.tuples(optional_bytes, optional_bytes), min_size=1, max_size=20))
def test_overhead_bounds_the_size(pairs) -> None:
    data = build_batch(*map(list, zip(*pairs, strict=True)), timestamps_ms=list(range(len(pairs))))
    bound = BATCH_OVERHEAD_BYTES
    for key, value in pairs:
        key_len, value_len = len(key or b""), len(value or b"")
        bound += key_len + value_len + record_overhead_bytes(key_len, value_len)
    assert len(data) <= bound


@given(rows)
def test_restamp_is_as_building_anew(found) -> None:
    assert restamp_producer(build(found), 5, 6, 7) == build(
        found, producer_id=5, producer_epoch=6, base_sequence=7
    )


def test_restamp_wants_one_whole_batch() -> None:
    for data in (batch()[:-1], batch() + batch(), b""):
        with pytest.raises(CorruptBatchError):
            restamp_producer(data, 1, 1, 1)


def test_sequences_wrap() -> None:
    (info,) = scan(batch(3, producer_id=1, producer_epoch=0, base_sequence=SEQUENCE_MODULUS - 1))
    assert info.last_sequence == 1


@given(st.lists(optional_bytes, min_size=1, max_size=20), millis)
def test_no_keys_are_as_many_that_are_null(values: list, time: int) -> None:
    nulls: list[bytes | None] = [None] * len(values)
    assert build_batch(None, values, timestamps_ms=time) == build_batch(nulls, values, timestamps_ms=time)


def test_records_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "_RECORD_FIELDS", -1)
    with pytest.raises(BatchTooLargeError, match="1 records of 7 bytes do not fit one record batch"):
        build_batch([b"key"], [b"1234"], timestamps_ms=0)


def test_unequal_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([], [], timestamps_ms=0)
    with pytest.raises(ValueError, match="as many"):
        build_batch([None], [b"", b""], timestamps_ms=0)
    for keys, headers in (([], None), ([b"", b""], None), (None, []), (None, [(), ()])):
        with pytest.raises(ValueError, match="as many"):
            build_batch(keys, [b""], headers=headers, timestamps_ms=0)
    with pytest.raises(ValueError, match="as many"):
        build_batch(None, [b"", b""], headers=[()], timestamps_ms=0)
    with pytest.raises(ValueError, match="1 timestamps for 2"):
        build_batch([None] * 2, [b""] * 2, timestamps_ms=[1])


def test_many_batches_at_once() -> None:
    many = [batch(at % 3 + 1, size=at) for at in range(1, 1000)]
    infos = scan(b"".join(many))
    assert [info.size_bytes for info in infos] == [len(each) for each in many]
    assert [info.position for info in infos] == [
        sum(len(each) for each in many[:at]) for at in range(len(many))
    ]


def test_scan_names_the_place_and_the_reason() -> None:
    good = batch()
    bad = bytearray(good)
    bad[-1] ^= 1
    with pytest.raises(CorruptBatchError, match=f"byte {len(good)}: CRC-32C") as caught:
        scan(good + bytes(bad) + good)
    assert caught.value.position == len(good)
    assert len(scan(good + bytes(bad), verify_crc=False)) == 2


def test_scan_prefix_stops_at_every_cut() -> None:
    data = batch(2) + batch(3)
    first = len(batch(2))
    for cut in range(len(data)):
        infos, consumed, reason = scan_prefix(data[:cut])
        assert consumed == (first if cut >= first else 0)
        assert len(infos) == (cut >= first)
        assert (reason is None) == (cut == consumed)


def test_every_flipped_bit_under_the_crc_is_seen() -> None:
    data = batch(2, producer_id=1, producer_epoch=1, base_sequence=1)
    for at in [*range(8, 12), *range(16, len(data))]:
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptBatchError):
                scan(flipped)


@given(st.binary(max_size=300), st.integers(0, 200))
def test_garbage_never_passes_and_never_crashes(garbage: bytes, at: int) -> None:
    data = batch(3)
    broken = data[:at] + garbage + data[at + len(garbage) :]
    infos, consumed, _ = scan_prefix(broken, verify_crc=False)
    assert consumed <= len(broken)
    try:
        got = list(records(broken))
    except (CorruptBatchError, UnsupportedCompressionError):
        return
    assert len(got) == sum(info.record_count for info in infos if not info.is_control)


@given(rows, rows, st.integers(0, 45))
def test_records_start_where_they_are_asked_to(first, second, start: int) -> None:
    data = build(first) + _moved(build(second), len(first))
    everything = list(records(data))
    assert [each.offset for each in everything] == list(range(len(first) + len(second)))
    assert list(records(data, start_offset=start)) == everything[start:]
    assert list(records(data, start_offset=start, max_records=3)) == everything[start : start + 3]
    assert list(records(memoryview(data), max_records=0)) == []


def _moved(data: bytes, base_offset: int) -> bytes:
    return base_offset.to_bytes(8) + data[8:]


def test_more_records_than_one_chunk_of_columns() -> None:
    data = b"".join(_moved(batch(700), at * 700) for at in range(5))
    assert [each.offset for each in records(data)] == list(range(3500))
    columns = decode_columns(data, start_offset=100)
    assert len(columns) == 3400
    assert list(columns.offsets) == list(range(100, 3500))


@given(rows)
def test_columns_say_where_the_fields_lie(found) -> None:
    columns = decode_columns(build(found))
    for at, (key, value, time, _) in enumerate(found):
        start, length = columns.key_starts[at], columns.key_lengths[at]
        assert (None if length < 0 else columns.data[start : start + length]) == key
        start, length = columns.value_starts[at], columns.value_lengths[at]
        assert (None if length < 0 else columns.data[start : start + length]) == value
        assert columns.timestamps_ms[at] == time


def test_log_append_time_and_control_batches() -> None:
    plain = bytearray(build_batch([None] * 2, [b"a", b"b"], timestamps_ms=[1, 9]))
    plain[22] |= 1 << 3
    assert [each.timestamp_ms for each in records(plain)] == [9, 9]
    plain[22] |= 1 << 5
    assert list(records(plain)) == []
    assert scan(plain, verify_crc=False)[0].is_control


def test_an_unknown_codec_is_refused_by_number() -> None:
    data = bytearray(batch())
    data[22] |= 7
    with pytest.raises(UnsupportedCompressionError, match="codec-7"):
        list(records(batch() + bytes(data)))
    with pytest.raises(UnsupportedCompressionError, match="codec-7"):
        decode_columns(data)
    assert scan(data, verify_crc=False)[0].compression == "codec-7"


def test_records_before_a_bad_one_are_given() -> None:
    good, bad = batch(), bytearray(batch())
    bad[BATCH_OVERHEAD_BYTES] ^= 2
    found = records(good + bytes(bad))
    assert isinstance(next(found), Record)
    with pytest.raises(CorruptBatchError, match="records do not match its header") as caught:
        next(found)
    assert caught.value.position == len(good)


@pytest.mark.parametrize("size", [10, 5000, 40000])
def test_headers_are_read_from_files(tmp_path, size: int) -> None:
    many = [batch(2, size=size) for _ in range(300 if size < 100 else 20)]
    path = tmp_path / "batches"
    path.write_bytes(b"".join(many))
    with path.open("rb") as file:
        assert list(scan_file(file.fileno(), 0, path.stat().st_size)) == scan(path.read_bytes())
        start = len(many[0])
        assert next(iter(scan_file(file.fileno(), start, 2 * start))).position == start
        with pytest.raises(CorruptBatchError):
            list(scan_file(file.fileno(), 0, path.stat().st_size - 1))


@given(st.lists(st.integers(1, 5), max_size=6), st.integers(1, 4), st.integers(0, 200))
def test_rows_say_what_the_headers_say(counts: list[int], capacity: int, cut: int) -> None:
    data = b"".join(batch(count) for count in counts)
    data = data[: max(len(data) - cut, 0)]
    infos, consumed, reason = scan_prefix(data)
    rows, found, at = [], "", 0
    while True:
        raw, size, found = scan_rows(data[at:], capacity=capacity)
        rows += [BatchInfo(*row) for row in struct.iter_unpack(ROW_FORMAT, raw)]
        at += size
        if len(raw) < capacity * struct.calcsize(ROW_FORMAT):
            break
    assert [(row.size_bytes, row.record_count) for row in rows] == [
        (info.size_bytes, info.record_count) for info in infos
    ]
    assert (at, found) == (consumed, reason)


def test_a_batch_is_found_behind_damage_but_not_inside_of_a_record() -> None:
    inner = batch(2)
    data = b"rubbish" + build_batch([None], [inner], timestamps_ms=1)
    assert find_batch(data, 0, min_base=0, max_base=1) == 7
    late = bytearray(batch(3))
    late[:8] = (50).to_bytes(8)
    assert find_batch(data + late, 8, min_base=10, max_base=60) == len(data)
    assert find_batch(data + late, 8, min_base=51, max_base=60) == -1
