"""kafka-python at a cluster: `kafka_python.py SERVERS NAME`; ends with `done`."""

from __future__ import annotations

import sys
from typing import Any

import kafka
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic

servers, name = sys.argv[1].split(","), sys.argv[2]


def produce(topic: str, count: int, **options: Any) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, **options)
    sent = [
        producer.send(topic, b"v%d" % each, b"k", headers=[("h", b"1")], partition=0) for each in range(count)
    ]
    producer.flush(30)
    for index, each in enumerate(sent):
        assert options.get("acks") == 0 or each.get(30).offset == index
    producer.close()


def read(topic: str, count: int, **options: Any) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", consumer_timeout_ms=15_000, **options
    )
    if options.get("group_id"):
        consumer.subscribe([topic])
    else:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
    found: list[bytes] = []
    for record in consumer:
        found.append(record.value)
        if len(found) == count:
            break
    assert len(found) == count, f"{topic}: {len(found)} records of {count}"
    if options.get("group_id"):
        consumer.commit()
        assert consumer.committed(kafka.TopicPartition(topic, 0)) == count
    consumer.close()
    return found


def main() -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    codecs: list[str | None] = [None, "gzip"]
    topics = [NewTopic(f"{name}-{each}", 1, 3) for each in [*codecs, "acks-0", "acks-1"]]
    admin.create_topics(topics)
    for codec in codecs:
        produce(f"{name}-{codec}", 50, compression_type=codec, acks="all")
        assert read(f"{name}-{codec}", 50) == [b"v%d" % each for each in range(50)]
    produce(f"{name}-acks-1", 50, acks=1)
    read(f"{name}-acks-1", 50)
    produce(f"{name}-acks-0", 50, acks=0)
    read(f"{name}-acks-0", 50)
    read(f"{name}-gzip", 50, group_id=f"{name}-group", enable_auto_commit=False)
    if hasattr(admin, "list_consumer_group_offsets"):  # until 2
        offsets = admin.list_consumer_group_offsets(f"{name}-group")
        assert [each.offset for each in offsets.values()] == [50], offsets
    admin.create_partitions({f"{name}-None": NewPartitions(3)})
    assert admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, f"{name}-None")])
    admin.delete_topics([f"{name}-gzip"])
    admin.close()
    print(kafka.__version__)
    print("done")


main()
