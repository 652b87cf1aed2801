"""Memory of large batches that is used again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from insync.replication.client.producer._accumulator import _fitting
from insync.replication.client.producer._batch import Batch, ProducerIdentity
from insync.replication.client.producer._buffers import KEPT, LARGE, Buffers
from insync.storage.batch import build_batch, build_batch_into

VALUES = [bytes([n]) * 1000 for n in range(100)]


def sealed(buffers: Buffers, values: list[bytes | None]) -> Batch:
    batch = Batch("t", 0, 0.0, 1.0)
    batch.date(7)
    for value in values:
        batch.add(None, value, (), 1000)
    batch.seal(ProducerIdentity(5, 1), 9, "none", buffers)
    return batch


def expected(values: list[bytes | None]) -> bytes:
    return build_batch(
        [None] * len(values), values, timestamps_ms=7, producer_id=5, producer_epoch=1, base_sequence=9
    )


def test_memory_of_a_settled_batch_is_used_for_the_next() -> None:
    buffers = Buffers()
    first = sealed(buffers, [*VALUES])
    assert isinstance(first.data, memoryview)
    memory = first.data.obj
    assert first.data == expected([*VALUES])
    first.let_go(buffers)
    assert first.data is None
    again = sealed(buffers, [*reversed(VALUES)])
    assert isinstance(again.data, memoryview)
    assert again.data.obj is memory
    assert again.data == expected([*reversed(VALUES)])


def test_what_is_still_on_its_way_is_not_written_over() -> None:
    buffers = Buffers()
    first = sealed(buffers, [*VALUES])
    assert first.data is not None
    on_its_way = memoryview(first.data)
    first.let_go(buffers)
    second = sealed(buffers, [*reversed(VALUES)])
    assert second.data == expected([*reversed(VALUES)])
    assert on_its_way == expected([*VALUES])


def test_small_and_compressed_batches_have_memory_of_their_own() -> None:
    buffers = Buffers()
    small = sealed(buffers, [b"x"])
    assert isinstance(small.data, bytes)
    small.let_go(buffers)
    assert small.data is None
    batch = Batch("t", 0, 0.0, 1.0)
    batch.date(7)
    for value in VALUES:
        batch.add(None, value, (), 1000)
    batch.seal(None, -1, "gzip", buffers)
    assert isinstance(batch.data, bytes)


def test_no_more_is_kept_than_is_worth_it() -> None:
    buffers = Buffers()
    taken = [memoryview(buffers.take(LARGE)) for _ in range(KEPT // LARGE + 5)]
    made = {id(each.obj) for each in taken}
    for each in taken:
        each[:] = b"x" * LARGE
        buffers.give_back(each)
    again = [buffers.take(LARGE) for _ in range(KEPT // LARGE)]
    assert {id(each) for each in again} <= made
    assert bytes(buffers.take(LARGE)) == bytes(LARGE), "fresh"


@given(st.lists(st.one_of(st.none(), st.binary(max_size=300)), min_size=1, max_size=20))
def test_batches_are_the_same_wherever_they_are_built(values: list[bytes | None]) -> None:
    def take(size: int) -> bytearray:
        return bytearray(b"?" * (size + 17))

    keys = [None] * len(values)
    assert build_batch_into(take, keys, values, timestamps_ms=3) == build_batch(keys, values, timestamps_ms=3)


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=30),
    st.integers(0, 40),
    st.integers(0, 4000),
)
def test_as_many_records_are_taken_as_find_room(lengths: list[int], overhead: int, room: int) -> None:
    count = _fitting(lengths, overhead, room)
    assert 1 <= count <= len(lengths)
    size = sum(lengths[:count]) + overhead * count
    assert size <= room or count == 1
    if count < len(lengths):
        assert size + lengths[count] + overhead > room


def test_of_several_records_those_are_taken_that_fit_with_their_overhead() -> None:
    lengths, overhead = [10] * 5, 10
    assert [_fitting(lengths, overhead, room) for room in (0, 39, 40, 59, 60, 99, 100)] == [
        1,
        1,
        2,
        2,
        3,
        4,
        5,
    ]
