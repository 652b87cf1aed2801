"""Batches of the log as Arrow batches, without Spark: the same records, in Spark's own schema."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.storage.batch import Record, build_batch, records, scan
from tests.requires import missing

try:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from insync.plugins.spark import _decode
    from insync.plugins.spark._columns import ARROW_TYPES, source_schema
    from insync.plugins.spark._decode import Decoder
except ImportError as error:
    missing(f"{error.name} is not installed")

ALL = tuple(ARROW_TYPES)
optional_bytes = st.none() | st.binary(max_size=20)
header_lists = st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=2)
rows = st.lists(
    st.tuples(optional_bytes, optional_bytes, st.integers(0, 1 << 42), header_lists), min_size=1, max_size=8
)
logs = st.lists(
    st.tuples(rows, st.sampled_from(["none", "lz4", "zstd"]), st.booleans()), min_size=1, max_size=5
)


def log_of(found: list) -> bytes:
    """Batches one behind the other, some of them with the log's time."""
    data, offset = b"", 0
    for each, codec, append_time in found:
        keys, values, times, headers = map(list, zip(*each, strict=True))
        batch = bytearray(build_batch(keys, values, timestamps_ms=times, headers=headers, compression=codec))
        batch[:8] = offset.to_bytes(8)
        batch[22] |= 8 * append_time
        offset += len(each)
        data += batch
    return data


def test_the_schema_is_sparks_own() -> None:
    expected = to_arrow_schema(source_schema(None, include_headers=True), timezone="UTC")
    assert {field.name: field.type for field in expected} == ARROW_TYPES


@given(logs, st.integers(0, 30), st.integers(0, 40), st.integers(1, 5))
@settings(deadline=None, max_examples=50)
def test_rows_are_the_records(found: list, start: int, end: int, most: int) -> None:
    data = log_of(found)
    infos = scan(data, verify_crc=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_decode, "ROWS", most)
        batches = list(Decoder("t", 3, ALL).decode(data, infos, start, end))
    expected = [record for record in records(data, start_offset=start) if record.offset < end]
    kinds = {
        info.base_offset + n: info.attributes >> 3 & 1 for info in infos for n in range(info.record_count)
    }
    assert all(1 <= batch.num_rows <= most for batch in batches)
    seen = [row for batch in batches for row in batch.to_pylist()]
    assert [row["timestampType"] for row in seen] == [kinds[record.offset] for record in expected]
    assert {(row["topic"], row["partition"]) for row in seen} <= {("t", 3)}
    assert [
        Record(
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
        )
        for row in seen
    ] == expected
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == pa.schema([(name, ARROW_TYPES[name]) for name in ALL])
        assert all(pairs is None or pairs for pairs in batch.column("headers").to_pylist())


def test_columns_in_the_order_that_was_asked_for() -> None:
    data = log_of([([(b"k", b"v", 1, [])], "none", False)])
    (batch,) = Decoder("t", 0, ("value", "offset")).decode(data, scan(data), 0, 9)
    assert batch.to_pylist() == [{"value": b"v", "offset": 0}]


def test_names_of_headers_that_are_no_utf8() -> None:
    data = bytearray(log_of([([(None, None, 1, [("name", b"x")])], "none", False)]))
    at = data.index(b"name")
    data[at : at + 4] = b"\xff\xfe\x00a"
    (batch,) = Decoder("t", 0, ("headers",)).decode(bytes(data), scan(data, verify_crc=False), 0, 9)
    assert batch.to_pylist() == [{"headers": [{"key": "\ufffd\ufffd\0a", "value": b"x"}]}]


def test_a_batch_stays_as_it_is_while_later_ones_are_made() -> None:
    decoder = Decoder("t", 0, ("key", "value", "topic", "partition", "timestampType"))
    first, *others = (log_of([([(None, bytes([n]) * 100_000, 1, [])] * 3, "none", n == 2)]) for n in range(9))
    (held,) = decoder.decode(first, scan(first), 0, 9)
    for n, data in enumerate(others, 1):
        (batch,) = decoder.decode(data, scan(data, verify_crc=False), 0, 9)
        assert batch.column("value").to_pylist() == [bytes([n]) * 100_000] * 3
        assert batch.column("timestampType").to_pylist() == [int(n == 2)] * 3
    assert held.column("value").to_pylist() == [bytes(100_000)] * 3


def test_large_values_make_small_batches() -> None:
    data = log_of([([(None, b"x" * 100_000, 1, [])] * 300, "lz4", False)])
    sizes = [
        batch.nbytes
        for batch in Decoder("t", 0, ("value",)).decode(data, scan(data, verify_crc=False), 0, 999)
    ]
    assert len(sizes) == 4 and max(sizes) <= _decode.BYTES


def test_times_that_microseconds_cannot_hold_are_the_last_of_all() -> None:
    """A record may name any time, and 2^62 ms must not be 1970."""
    times = [1, 1_700_000_000_000_000, 2**62, 2**63 - 1]
    data = log_of([([(None, b"%d" % time, time, []) for time in times], "none", False)])
    (batch,) = Decoder("t", 0, ("timestamp",)).decode(data, scan(data), 0, 9)
    last = (2**63 - 1) // 1000 * 1000
    assert batch.column("timestamp").view(pa.int64()).to_pylist() == [1000, times[1] * 1000, last, last]
