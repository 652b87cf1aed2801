"""A batch that grows in C has the bytes that `build_batch` makes of the same records at once."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.replication.client.producer._batch import Batch, ProducerIdentity
from insync.storage.batch import BATCH_OVERHEAD_BYTES, build_batch, encode_headers, records

ME = ProducerIdentity(7, 3)
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1

items = st.one_of(st.none(), st.binary(max_size=300))
headers = st.lists(st.tuples(st.text(max_size=9), items), max_size=3)
times = st.one_of(st.integers(0, 3), st.integers(LEAST, GREATEST))
runs = st.lists(st.tuples(st.lists(items, min_size=1, max_size=20), items, times), min_size=1, max_size=6)


def empty() -> Batch:
    return Batch("t", 0, 0.0, 1.0)


@given(st.lists(st.tuples(items, items, headers, times), min_size=1, max_size=40), st.booleans())
def test_it_has_the_bytes_of_a_batch_that_is_built_at_once(rows: list[Any], transactional: bool) -> None:
    made = empty()
    for index, (key, value, pairs, ms) in enumerate(rows):
        assert made.append(key, value, encode_headers(pairs) if pairs else None, ms) == index
    assert made.count == len(rows)
    made.seal(ME, 5, "none", transactional)
    keys, values, pairs, stamps = map(list, zip(*rows, strict=True))
    expected = build_batch(
        keys,
        values,
        timestamps_ms=stamps,
        headers=pairs,
        producer_id=7,
        producer_epoch=3,
        base_sequence=5,
        transactional=transactional,
    )
    assert made.data == expected
    assert made.size == len(expected)
    assert [made.timestamp(index) for index in range(len(rows))] == stamps


@given(runs)
def test_runs_are_as_their_records_one_by_one(rows: list[Any]) -> None:
    """Of values in a list; each run has one key and one timestamp."""
    in_runs, singly = empty(), empty()
    for values, key, ms in rows:
        assert in_runs.extend(key, values, 0, len(values), 1 << 30, ms) == len(values)
        for value in values:
            singly.append(key, value, None, ms)
    for batch in (in_runs, singly):
        batch.seal(ME, 0, "none")
    assert in_runs.data == singly.data


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(0, 900))
def test_a_run_ends_where_the_batch_would_be_too_large(values: list[bytes], most: int) -> None:
    made = empty()
    count = made.extend(b"key", values, 0, len(values), most, 5)
    assert 1 <= count <= len(values)
    assert made.size <= most or count == 1
    if count < len(values):
        before = made.size
        made.append(b"key", values[count], None, 5)
        assert made.size > most and made.size > before


def test_a_run_is_of_some_of_the_values_and_ends_at_what_is_no_value() -> None:
    made, values = empty(), [b"0", b"1", None, bytearray(b"3"), b"4"]
    assert made.extend(None, values, 1, 5, 1 << 20, 0) == 2  # type: ignore[arg-type]
    assert made.extend(None, values, 3, 5, 1 << 20, 0) == 0  # type: ignore[arg-type]
    assert made.extend(None, (b"5",), 0, 1, 1 << 20, 0) == 1
    made.seal(None, -1, "none")
    assert made.data is not None
    assert [each.value for each in records(made.data)] == [b"1", None, b"5"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_compressed_when_it_is_sealed(codec: Any) -> None:
    made = empty()
    made.extend(None, [b"x" * 1000] * 20, 0, 20, 1 << 20, 9)
    made.seal(ME, 5, codec)
    numbers = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 5}
    assert made.data == build_batch(None, [b"x" * 1000] * 20, timestamps_ms=9, compression=codec, **numbers)
    assert made.size > 20_000
    with pytest.raises(BufferError, match="released"):
        memoryview(made)


def test_a_record_without_a_time_has_the_time_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    made, before = empty(), time.time_ns() // 1_000_000
    made.append(None, b"v", None, None)
    made.extend(None, [b"v"] * 3, 0, 3, 1 << 20, None)
    after = time.time_ns() // 1_000_000
    stamps = [made.timestamp(index) for index in range(4)]
    assert before <= stamps[0] <= stamps[1] == stamps[2] == stamps[3] <= after


def test_what_is_still_read_is_not_freed() -> None:
    made = empty()
    made.append(None, b"v" * 100_000, None, 1)
    made.seal(None, -1, "none")
    expected = build_batch(None, [b"v" * 100_000], timestamps_ms=1)
    on_its_way = memoryview(made.data or b"")
    made.let_go()
    assert made.data is None and made.size == len(expected)
    assert on_its_way == expected
    with pytest.raises(BufferError, match="released"):
        memoryview(made)
    on_its_way.release()
    assert made.timestamp(0) == 1


@pytest.mark.parametrize("reads", [False, True])
def test_a_batch_that_is_kept_keeps_no_bytes(reads: bool) -> None:
    """Its deliveries keep it, for its outcome and its timestamps."""
    made = empty()
    tracemalloc.start()
    try:
        made.append(None, b"v" * 1_000_000, None, 1)
        made.seal(None, -1, "none")
        view = memoryview(made) if reads else None
        made.let_go()
        assert (tracemalloc.get_traced_memory()[0] > 1_000_000) == reads
        if view is not None:
            view.release()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert made.timestamp(0) == 1


def test_the_memory_of_a_batch_is_given_back() -> None:
    """At once when nobody reads it, else with the last reader."""

    def use(reads: bool) -> None:
        made = empty()
        for ms in range(50):
            made.append(None, b"v" * 100, None, ms)
        made.seal(None, -1, "none")
        view = memoryview(made) if reads else None
        made.let_go()
        del view

    for reads in (False, True):
        use(reads)
        before = sys.getallocatedblocks()
        for _ in range(200):
            use(reads)
        assert sys.getallocatedblocks() - before < 50


@pytest.mark.parametrize(
    ("act", "error", "said"),
    [
        (lambda batch: batch.append(None, b"v", None, 0), ValueError, "takes no more"),
        (lambda batch: batch.extend(None, [b"v"], 0, 1, 1000, 0), ValueError, "takes no more"),
        (lambda batch: batch.finish(1, 1, 1, False), BufferError, "is being read"),
    ],
)
def test_a_sealed_batch_stays_as_it_is(
    act: Callable[[Batch], object], error: type[Exception], said: str
) -> None:
    made = empty()
    made.append(None, b"v", None, 0)
    with pytest.raises(BufferError, match="not sealed"):
        memoryview(made)
    made.seal(None, -1, "none")
    data = bytes(made.data or b"")
    with pytest.raises(error, match=said):
        act(made)
    assert (made.data, made.count) == (data, 1)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda batch: batch.append("k", b"v", None, 0), TypeError),
        (lambda batch: batch.append(None, bytearray(b"v"), None, 0), TypeError),
        (lambda batch: batch.append(None, b"v", [("a", b"b")], 0), TypeError),
        (lambda batch: batch.append(None, b"v", None, 1 << 63), OverflowError),
        (lambda batch: batch.append(None, b"v", None, "noon"), TypeError),
        (lambda batch: batch.append(None, b"v"), TypeError),
        (lambda batch: batch.extend(None, {b"v": 1}, 0, 1, 1000, 0), TypeError),
        (lambda batch: batch.extend(None, [b"v"], 0, 2, 1000, 0), IndexError),
        (lambda batch: batch.extend(None, [b"v"], -1, 1, 1000, 0), IndexError),
        (lambda batch: batch.extend(7, [b"v"], 0, 1, 1000, 0), TypeError),
        (lambda batch: batch.finish(-1, -1, -1, False), ValueError),
        (lambda batch: batch.timestamp(0), IndexError),
        (lambda batch: batch.timestamp(-1), IndexError),
        (lambda batch: batch.timestamp("first"), TypeError),
    ],
)
def test_what_is_no_record_is_refused(act: Callable[[Batch], object], error: type[Exception]) -> None:
    made = empty()
    with pytest.raises(error):
        act(made)
    assert (made.count, made.size) == (0, BATCH_OVERHEAD_BYTES)
