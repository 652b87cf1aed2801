"""Kafka's clients that read committed records, of transactions that insync's own producers write."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from insync.replication import Producer

from .conftest import Cluster
from .programs.test_python_clients import PATIENCE, make, settings
from .programs.test_python_clients import librdkafka as librdkafka

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]


def read(librdkafka: Any, cluster: Cluster, isolation: str, count: int) -> list[bytes]:
    consumer = librdkafka.Consumer(settings(cluster, group_id="isolation", isolation_level=isolation))
    consumer.assign([librdkafka.TopicPartition("isolated", 0, 0)])
    found = [each.value() for each in consumer.consume(count, PATIENCE)]
    # Nothing comes behind them: the consumer is told of the end of what it may read.
    found += [each.value() for each in consumer.consume(10, 1.0)]
    consumer.close()
    return found


async def test_what_is_not_committed_is_not_read_by_who_asks_for_committed_records(
    librdkafka: Any, cluster: Cluster
) -> None:
    await trio.to_thread.run_sync(make, librdkafka, cluster, "isolated")

    async def write(producer: Producer, *values: bytes) -> None:
        for value in values:
            await (await producer.send("isolated", value, partition=0)).wait()

    async with (
        Producer(cluster.native, transactional_id="isolation") as producer,
        Producer(cluster.native, transactional_id="another") as other,
    ):
        async with producer.transaction():
            await write(producer, b"committed")
        producer.begin()
        await write(producer, b"aborted")
        await producer.abort()
        async with producer.transaction():
            await write(producer, b"also committed")
        other.begin()
        await write(other, b"undecided")
        async with producer.transaction():
            await write(producer, b"behind it")
        for isolation, expected in (
            ("read_committed", [b"committed", b"also committed"]),
            ("read_uncommitted", [b"committed", b"aborted", b"also committed", b"undecided", b"behind it"]),
        ):
            found = await trio.to_thread.run_sync(read, librdkafka, cluster, isolation, len(expected))
            assert found == expected
        await other.abort()
    everything = [b"committed", b"also committed", b"behind it"]
    assert await trio.to_thread.run_sync(read, librdkafka, cluster, "read_committed", 3) == everything
