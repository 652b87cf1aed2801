"""The bytes of a batch: those of one record are made in a way of their own, and are as all others are."""

from __future__ import annotations

from typing import Any

import pytest

from insync.replication.client.producer._batch import Batch, ProducerIdentity
from insync.replication.client.producer._buffers import LARGE, Buffers
from insync.storage.batch import build_batch, records

ME = ProducerIdentity(7, 3)


def one(key: bytes | None, value: bytes | None, headers: Any = ()) -> Batch:
    made = Batch("t", 0, 0.0, 1.0)
    made.date(1000)
    made.add(key, value, headers, 10 + len(value or b""))
    return made


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("headers", [(), [("h", b"1")]])
@pytest.mark.parametrize(("key", "value"), [(None, b"v"), (b"k", b"v"), (b"k", None), (b"", b"")])
def test_one_record_is_sealed_as_among_others(
    key: bytes | None, value: bytes | None, headers: Any, transactional: bool, compression: Any
) -> None:
    made = one(key, value, headers)
    made.seal(ME, 5, compression, Buffers(), transactional)
    options = {"headers": [headers], "transactional": transactional, "compression": compression}
    numbers = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 5}
    assert made.data == build_batch([key], [value], timestamps_ms=[1000], **numbers, **options)
    assert made.count == 1 and made.values == []


def test_one_record_without_a_producer() -> None:
    made = one(b"k", b"v")
    made.seal(None, -1, "none", Buffers())
    assert made.data == build_batch([b"k"], [b"v"], timestamps_ms=1000)


def test_one_record_keeps_its_time_though_the_next_was_to_have_a_later_one() -> None:
    made = one(None, b"v")
    made.date(2000)
    made.seal(ME, 0, "none", Buffers())
    assert made.data is not None
    assert [each.timestamp_ms for each in records(made.data)] == [1000]


def test_the_memory_of_a_large_record_is_used_again() -> None:
    buffers = Buffers()
    made = one(None, bytes(LARGE))
    made.seal(ME, 0, "none", buffers)
    assert isinstance(made.data, memoryview)
    where = made.data.obj
    made.let_go(buffers)
    assert buffers.take(LARGE + 1) is where
