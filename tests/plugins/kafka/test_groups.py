"""Consumer groups by unmodified clients: both protocols, commits, rebalances, what administrators see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import kafka
import kafka.admin
import pytest

from .conftest import Cluster
from .programs.test_python_clients import PATIENCE, make, produce, settings
from .programs.test_python_clients import librdkafka as librdkafka

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]


def member(librdkafka: Any, cluster: Cluster, group: str, topic: str, **options: Any) -> Any:
    more = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "group_id": group, **options}
    consumer = librdkafka.Consumer(settings(cluster, **more))
    consumer.subscribe([topic])
    return consumer


_MOVED = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
"""A node that a busy machine keeps from its session hands its groups over; the client looks for the next one."""


def poll_until(consumers: list[Any], holds: Callable[[], bool]) -> list[Any]:
    """The records that came until something holds."""
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        for consumer in consumers:
            message = consumer.poll(0.05)
            if message is None or (message.error() and message.error().name() in _MOVED):
                continue
            assert message.error() is None, message.error()
            found.append(message)
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_shares_partitions_and_goes_on_where_it_has_committed(
    librdkafka: Any, cluster: Cluster, protocol: str
) -> None:
    topic = group = f"group-{protocol}"
    make(librdkafka, cluster, topic, 4)
    produce(librdkafka, cluster, topic, [b"%d" % index for index in range(10)])
    first = member(librdkafka, cluster, group, topic, group_protocol=protocol)
    found: list[Any] = []
    found += poll_until([first], lambda: len(first.assignment()) == 4)
    while len(found) < 10:
        found += first.consume(10 - len(found), 1.0)
    first.commit(asynchronous=False)
    second = member(librdkafka, cluster, group, topic, group_protocol=protocol)
    poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
    first.close()
    poll_until([second], lambda: len(second.assignment()) == 4)
    place = librdkafka.TopicPartition(topic, 0)
    assert second.committed([place], timeout=PATIENCE)[0].offset == 10
    produce(librdkafka, cluster, topic, [b"next"])
    (after,) = second.consume(1, PATIENCE)
    assert (after.value(), after.offset()) == (b"next", 10)
    admin = librdkafka.admin.AdminClient(settings(cluster))
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE)
    assert described.state == librdkafka.ConsumerGroupState.STABLE
    assert [len(each.assignment.topic_partitions) for each in described.members] == [4]
    listed = admin.list_consumer_groups().result(PATIENCE).valid
    assert group in [each.group_id for each in listed]
    second.close()
    admin.delete_consumer_groups([group])[group].result(PATIENCE)


def test_librdkafka_static_members_keep_their_partitions(librdkafka: Any, cluster: Cluster) -> None:
    make(librdkafka, cluster, "static", 2)
    options = {"group_instance_id": "one", "session_timeout_ms": 6000}
    first = member(librdkafka, cluster, "static", "static", **options)
    poll_until([first], lambda: len(first.assignment()) == 2)
    first.close()
    again = member(librdkafka, cluster, "static", "static", **options)
    poll_until([again], lambda: len(again.assignment()) == 2)
    again.close()


def test_kafka_python_in_a_group(cluster: Cluster) -> None:
    servers = cluster.servers.split(",")
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([kafka.admin.NewTopic("group-kafka-python", 2, 3)])
    with kafka.KafkaProducer(bootstrap_servers=servers) as producer:
        for index in range(20):
            producer.send("group-kafka-python", b"%d" % index, partition=index % 2).get(PATIENCE)
    options: dict[str, Any] = {
        "bootstrap_servers": servers,
        "group_id": "group-kafka-python",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "consumer_timeout_ms": 20_000,
    }
    consumer = kafka.KafkaConsumer("group-kafka-python", **options)
    found = sorted(int(next(consumer).value) for _ in range(20))
    assert found == list(range(20))
    consumer.commit()
    consumer.close()
    again = kafka.KafkaConsumer("group-kafka-python", **options)
    place = kafka.TopicPartition("group-kafka-python", 1)
    assert again.committed(place) == 10
    again.close()
    admin.close()


def test_aiokafka_in_a_group(cluster: Cluster) -> None:
    topic = "group-aiokafka"

    async def read(count: int) -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.servers,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        found = [(await asyncio.wait_for(consumer.getone(), PATIENCE)).value for _ in range(count)]
        await consumer.commit()
        await consumer.stop()
        return found

    async def main() -> tuple[list[bytes], list[bytes]]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.servers)
        await producer.start()
        for index in range(10):
            await producer.send_and_wait(topic, b"%d" % index, partition=0)
        await producer.stop()
        return await read(6), await read(4)

    first, rest = asyncio.run(main())
    assert first == [b"%d" % index for index in range(6)]
    assert rest == [b"%d" % index for index in range(6, 10)]
