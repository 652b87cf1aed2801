"""Unmodified clients from PyPI at a real cluster: librdkafka, kafka-python, aiokafka."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiokafka
import aiokafka.admin
import kafka
import kafka.admin
import pytest

from ....requires import missing
from ..conftest import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PATIENCE = 30.0


@pytest.fixture(scope="module")
def librdkafka() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        missing("no confluent-kafka is installed (extra test)")
    return confluent_kafka


def settings(cluster: Cluster, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.servers,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def produce(librdkafka: Any, cluster: Cluster, topic: str, values: list[bytes], **options: Any) -> list[Any]:
    """What was delivered, in the order of its acknowledgement."""
    told: list[Any] = []
    producer = librdkafka.Producer(settings(cluster, **options))
    for index, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=b"k%d" % index,
            headers=[("h", b"1")],
            partition=0,
            on_delivery=lambda error, message: told.append(error or message),
        )
    assert producer.flush(PATIENCE) == 0
    return told


def consume(librdkafka: Any, cluster: Cluster, topic: str, count: int, **options: Any) -> list[Any]:
    more = {"group_id": "none", "enable_auto_commit": False, **options}
    consumer = librdkafka.Consumer(settings(cluster, **more))
    consumer.assign([librdkafka.TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), 1.0):
            assert message.error() is None, message.error()
            found.append(message)
    consumer.close()
    return found


def make(librdkafka: Any, cluster: Cluster, name: str, partitions: int = 1, **config: str) -> Any:
    admin = librdkafka.admin.AdminClient(settings(cluster))
    topic = librdkafka.admin.NewTopic(name, partitions, 3, config=config)
    admin.create_topics([topic])[name].result(PATIENCE)
    return admin


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_writes_and_reads_each_codec(librdkafka: Any, cluster: Cluster, codec: str) -> None:
    values = [b"%d" % index * 50 for index in range(500)]
    topic = f"codec-{codec}"
    make(librdkafka, cluster, topic)
    told = produce(librdkafka, cluster, topic, values, compression_type=codec, enable_idempotence=True)
    assert [message.offset() for message in told] == list(range(500))
    found = consume(librdkafka, cluster, topic, 500)
    assert [message.value() for message in found] == values
    assert found[7].key() == b"k7" and found[7].headers() == [("h", b"1")]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_librdkafka_by_each_acknowledgement(librdkafka: Any, cluster: Cluster, acks: str) -> None:
    values = [b"%d" % index for index in range(100)]
    topic = f"acks-{acks}"
    make(librdkafka, cluster, topic)
    # Without acknowledgements nobody hears that a new partition has no leader yet.
    produce(librdkafka, cluster, topic, [b"first"])
    produce(librdkafka, cluster, topic, values, acks=acks)
    assert [each.value() for each in consume(librdkafka, cluster, topic, 101)] == [b"first", *values]


def test_librdkafka_finds_offsets_by_time_and_hears_of_what_is_refused(
    librdkafka: Any, cluster: Cluster
) -> None:
    make(librdkafka, cluster, "refused", **{"max.message.bytes": "1000"})
    (told,) = produce(librdkafka, cluster, "refused", [b"x" * 5000])
    assert told.code() == librdkafka.KafkaError.MSG_SIZE_TOO_LARGE
    (kept,) = produce(librdkafka, cluster, "refused", [b"small"])
    assert kept.offset() == 0
    consumer = librdkafka.Consumer(settings(cluster, group_id="none"))
    partition = librdkafka.TopicPartition("refused", 0, 1)
    assert consumer.offsets_for_times([partition], timeout=PATIENCE)[0].offset == 0
    assert consumer.get_watermark_offsets(partition, timeout=PATIENCE) == (0, 1)
    consumer.close()


def test_librdkafka_administers(librdkafka: Any, cluster: Cluster) -> None:
    admin = make(librdkafka, cluster, "managed", 2, **{"retention.ms": "1000000"})
    found = admin.list_topics("managed", timeout=PATIENCE)
    assert sorted(found.topics["managed"].partitions) == [0, 1]
    assert sorted(found.brokers) == [1, 2, 3]
    more = librdkafka.admin.NewPartitions("managed", 4)
    admin.create_partitions([more])["managed"].result(PATIENCE)
    resource = librdkafka.admin.ConfigResource(librdkafka.admin.ConfigResource.Type.TOPIC, "managed")
    config = admin.describe_configs([resource])[resource].result(PATIENCE)
    assert config["retention.ms"].value == "1000000"
    assert config["cleanup.policy"].value == "delete"
    produce(librdkafka, cluster, "managed", [b"1", b"2", b"3"])
    end = librdkafka.TopicPartition("managed", 0, 2)
    (deleted,) = [future.result(PATIENCE) for future in admin.delete_records([end]).values()]
    assert deleted.low_watermark == 2
    assert len(admin.describe_cluster().result(PATIENCE).nodes) == 3
    admin.delete_topics(["managed"])["managed"].result(PATIENCE)
    with pytest.raises(librdkafka.KafkaException) as failure:
        admin.delete_topics(["managed"])["managed"].result(PATIENCE)
    assert failure.value.args[0].code() == librdkafka.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_kafka_python_writes_reads_and_administers(cluster: Cluster) -> None:
    servers = cluster.servers.split(",")
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([kafka.admin.NewTopic("by-kafka-python", 2, 3)])
    producer = kafka.KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5)
    sent = [producer.send("by-kafka-python", b"%d" % index, partition=1) for index in range(200)]
    assert [each.get(PATIENCE).offset for each in sent] == list(range(200))
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, consumer_timeout_ms=20_000)
    place = kafka.TopicPartition("by-kafka-python", 1)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    found = [next(consumer).value for _ in range(200)]
    assert found == [b"%d" % index for index in range(200)]
    assert consumer.end_offsets([place]) == {place: 200}
    consumer.close()
    admin.delete_topics(["by-kafka-python"])
    admin.close()


def test_aiokafka_writes_and_reads(cluster: Cluster) -> None:
    async def main() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.servers, enable_idempotence=True)
        await producer.start()
        told = [await producer.send("by-aiokafka", b"%d" % index, partition=0) for index in range(200)]
        offsets = [(await each).offset for each in told]
        await producer.stop()
        assert offsets == list(range(200))
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=cluster.servers, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition("by-aiokafka", 0)])
        found = [(await asyncio.wait_for(consumer.getone(), PATIENCE)).value for _ in range(200)]
        await consumer.stop()
        return found

    assert asyncio.run(main()) == [b"%d" % index for index in range(200)]


def test_replicas_are_placed_as_a_client_asks(librdkafka: Any, cluster: Cluster) -> None:
    admin, given = librdkafka.admin.AdminClient(settings(cluster)), [[3, 1], [2, 3]]

    def new(topic: str, places: list[list[int]]) -> Any:
        return librdkafka.admin.NewTopic(topic, len(places), replica_assignment=places)

    admin.create_topics([new("placed", given)], validate_only=True)["placed"].result(PATIENCE)
    assert "placed" not in admin.list_topics(timeout=PATIENCE).topics
    admin.create_topics([new("placed", given)])["placed"].result(PATIENCE)
    more = librdkafka.admin.NewPartitions("placed", 3, replica_assignment=[[1, 2]])
    admin.create_partitions([more], validate_only=True)["placed"].result(PATIENCE)
    assert len(admin.list_topics("placed", timeout=PATIENCE).topics["placed"].partitions) == 2
    admin.create_partitions([more])["placed"].result(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    # The nodes learn of it each by itself.
    while len(found := admin.list_topics("placed", timeout=PATIENCE).topics["placed"].partitions) < 3:
        assert time.monotonic() < deadline
    assert [found[index].replicas for index in range(3)] == [[3, 1], [2, 3], [1, 2]]
    for wrong in ([[1, 1]], [[1, 9]], [[1], [1, 2]]):
        with pytest.raises(librdkafka.KafkaException) as refused:
            admin.create_topics([new("misplaced", wrong)])["misplaced"].result(PATIENCE)
        assert refused.value.args[0].code() == librdkafka.KafkaError.INVALID_REPLICA_ASSIGNMENT
