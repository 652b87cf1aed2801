"""The memory of a payload that several partitions share goes back to the transport's pool, and not too early."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from insync.replication.core import messages as m
from insync.replication.core.broker.producing.payloads import MalformedBatchError, RefusedBatchError
from insync.replication.core.errors import ErrorCode
from insync.replication.node.operations.counters import Counters
from insync.replication.node.requests._payloads import NO_PAYLOAD, SharedPayload
from insync.replication.node.requests._produces import Produces
from insync.transport._payload import PayloadPool
from tests.storage.building import batch


def test_its_memory_is_used_again_though_slices_are_still_held() -> None:
    pool = PayloadPool()
    first = pool.take(1 << 20)
    where = first.view().obj
    data = batch()
    first.view()[: 2 * len(data)] = 2 * data
    shared = SharedPayload(first)
    held = [shared.batches(at, len(data)).data for at in (0, len(data))]
    shared.release()
    shared.release()
    assert pool.take(1 << 20).view().obj is not where, "one user is not done"
    shared.release()
    assert pool.take(1 << 20).view().obj is where
    with pytest.raises(ValueError, match="released"):
        bytes(held[0])


def test_batches_that_no_log_was_asked_to_append_are_let_go_after_the_step() -> None:
    pool = PayloadPool()
    first = pool.take(1 << 20)
    where = first.view().obj
    data = batch()
    first.view()[: 2 * len(data)] = 2 * data
    shared = SharedPayload(first)
    appended, dropped = shared.batches(0, len(data)), shared.batches(len(data), len(data))
    assert [len(each.infos) for each in (appended, dropped)] == [1, 1]
    appended.taken = True
    shared.let_go()
    assert bytes(appended.data) == data, "the writer has not written it yet"
    assert pool.take(1 << 20).view().obj is not where
    appended.release()
    assert pool.take(1 << 20).view().obj is where


def test_a_damaged_batch_is_told_by_the_name_that_the_broker_knows() -> None:
    payload = PayloadPool().take(1 << 20)
    data = bytearray(batch())
    data[-1] ^= 1
    payload.view()[: len(data)] = data
    shared = SharedPayload(payload)
    with pytest.raises(MalformedBatchError, match="CRC"):
        shared.batches(0, len(data))


def test_what_somebody_made_of_a_slice_is_never_overwritten() -> None:
    pool = PayloadPool()
    first = pool.take(1 << 20)
    where = first.view().obj
    data = batch()
    first.view()[: len(data)] = data
    shared = SharedPayload(first)
    kept = shared.batches(0, len(data)).data[10:20]
    shared.release()
    shared.release()
    assert pool.take(1 << 20).view().obj is not where
    assert len(bytes(kept)) == 10


def test_batches_of_a_message_without_a_payload_are_refused() -> None:
    with pytest.raises(RefusedBatchError, match="the message has no payload") as caught:
        NO_PAYLOAD.produced(0, 100)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(MalformedBatchError, match="the message has no payload"):
        NO_PAYLOAD.batches(0, 100)


def test_a_huge_payload_takes_memory_as_it_is_filled() -> None:
    """To announce one takes a few bytes, and memory that is zeroed beforehand takes as long as it is large."""
    before = resident()
    payload = PayloadPool().take(256 << 20)
    assert resident() - before < 64 << 20
    payload.view()[: 128 << 20] = bytes(128 << 20)
    assert resident() - before > 64 << 20
    payload.release()
    assert resident() - before < 64 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


async def test_one_that_cannot_be_read_is_given_back_and_its_request_fails() -> None:
    """A client may truncate the file whose ranges it has handed over."""
    done: list[object] = []

    def unreadable() -> memoryview:
        raise OSError(errno.EIO, "the file is shorter now")

    payload = SimpleNamespace(size=10, view=unreadable, release=lambda: done.append("released"))
    message = m.ProduceRequest(acks=-1, timeout_ms=1000, partitions=[])
    request = SimpleNamespace(message=message, payload=payload, fail=lambda code, _: done.append(code))
    driver: Any = SimpleNamespace(settle=None)
    quotas: Any = SimpleNamespace(is_limited=False)
    async with trio.open_nursery() as nursery:
        Produces(driver, quotas, Counters(), nursery).serve(request)  # type: ignore[arg-type]
    assert done == ["released", ErrorCode.INVALID_REQUEST]
