"""A delivery that failed and that nobody has looked at leaves a line in the log."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio

import insync.replication.asyncio as bridge
from insync.replication.client import BlockingProducer, ClientError, Delivery, InvalidRecordError, Producer
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind

from ..fake_cluster import fake_cluster
from ..faults import drop, fail_with
from ..threaded_cluster import threaded_cluster

UNSEEN = "no code has checked the deliveries"


def unseen(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [each.getMessage() for each in caplog.records if UNSEEN in each.getMessage()]


async def look(delivery: Delivery) -> None:
    with pytest.raises(InvalidRecordError):
        await delivery.wait()


async def ask(delivery: Delivery) -> None:
    assert isinstance(delivery.error, InvalidRecordError)


async def nothing(_: Delivery) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize(("then", "count"), [(nothing, 1), (look, 0), (ask, 0)])
async def test_on_trio(then: Callable[[Delivery], Any], count: int, caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD, "no such record"))
        async with Producer(cluster.urls, linger_ms=0) as producer:
            delivery = await producer.send("t", b"x")
            await producer.flush()
            repr(delivery)
            assert unseen(caplog) == []
            await then(delivery)
            del delivery
            await producer.send_and_wait("t", b"y")
        found = unseen(caplog)
    assert len(found) == count
    assert all("1 record for t-0 failed" in line and "no such record" in line for line in found)


async def test_who_was_called_back_has_been_told(caplog: pytest.LogCaptureFixture) -> None:
    told = []
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD))
        async with Producer(cluster.urls, linger_ms=0) as producer:
            await producer.send("t", b"x", on_delivery=lambda delivery: told.append(delivery.partition))
    assert told == [0]
    assert unseen(caplog) == []


async def test_of_many_records_one_look_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(nodes=1, t=1) as cluster:
        for seen in (False, True):
            cluster.nodes[0].script(Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD))
            async with Producer(cluster.urls) as producer:
                deliveries = await producer.send_many("t", [b"x"] * 10)
                if seen:
                    with pytest.raises(InvalidRecordError):
                        await deliveries.wait()
                await producer.flush()
                del deliveries
            found = unseen(caplog)
            assert len(found) == 1 and "10 records for t-0" in found[0]


def fill(options: dict[str, Any]) -> dict[str, Any]:
    return {"buffer_memory": 2000, "linger_ms": 0, **options}


@pytest.mark.parametrize("seen", [False, True])
def test_from_threads_also_of_what_never_came_into_a_batch(
    seen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with threaded_cluster() as cluster:
        cluster.do(lambda: cluster.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
        with BlockingProducer(cluster.urls, **fill({"delivery_timeout_ms": 300})) as producer:
            deliveries = [producer.send("t", bytes(1500)) for _ in range(2)]
            producer.flush(10)
            if seen:
                assert all(isinstance(each.exception(), ClientError) for each in deliveries)
            deliveries.clear()
        assert len(unseen(caplog)) == (0 if seen else 2)


def test_on_asyncio_also_of_what_never_came_into_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    async def main(urls: list[str]) -> None:
        async with bridge.Producer(urls, **fill({"delivery_timeout_ms": 300})) as producer:
            for _ in range(2):
                await producer.send("t", bytes(1500))
            await producer.flush()

    with threaded_cluster() as cluster:
        cluster.do(lambda: cluster.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
        asyncio.run(main(cluster.urls))
        assert len(unseen(caplog)) == 2
        assert {each.levelno for each in caplog.records if UNSEEN in each.getMessage()} == {logging.ERROR}


async def test_what_was_acknowledged_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.send("t", b"x")
        await producer.flush()
        await trio.lowlevel.checkpoint()
    assert unseen(caplog) == []
