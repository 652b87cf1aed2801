"""confluent-kafka, and librdkafka in it, at a cluster: `librdkafka.py SERVERS NAME`; ends with `done`."""

from __future__ import annotations

import sys
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

PATIENCE = 30.0
servers, name = sys.argv[1:3]


def settings(**more: Any) -> dict[str, Any]:
    given = {key.replace("_", "."): value for key, value in more.items()}
    return {"bootstrap.servers": servers, **given}


def produce(topic: str, count: int, **options: Any) -> None:
    told: list[Any] = []
    producer = ck.Producer(settings(**options))
    for index in range(count):
        key = b"k%d" % index
        producer.produce(topic, b"v%d" % index, key, 0, on_delivery=lambda *said: told.append(said))
    assert producer.flush(PATIENCE) == 0
    assert [error for error, _ in told] == [None] * count, told[0]


def read(topic: str, count: int, **options: Any) -> list[bytes]:
    consumer = ck.Consumer(settings(group_id="none", enable_auto_commit=False, **options))
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, PATIENCE)
    consumer.close()
    assert len(found) == count, f"{topic}: {len(found)} records of {count}"
    assert not any(each.error() for each in found)
    return [each.value() for each in found]


def group(protocol: str | None) -> None:
    options = {"group_protocol": protocol} if protocol else {}
    topic, called = f"{name}-none", f"{name}-group-{protocol}"
    for expected in ([b"v%d" % index for index in range(50)], []):
        consumer = ck.Consumer(
            settings(group_id=called, auto_offset_reset="earliest", enable_auto_commit=False, **options)
        )
        consumer.subscribe([topic])
        while not consumer.assignment():
            first = consumer.poll(0.2)
            if first is not None:
                break
        found = [] if first is None else [first.value()]
        found += [each.value() for each in consumer.consume(50 - len(found), 5 if expected else 1)]
        assert found == expected, f"{called}: {len(found)} records"
        if expected:
            consumer.commit(asynchronous=False)
        committed = consumer.committed([ck.TopicPartition(topic, 0)], timeout=PATIENCE)
        assert committed[0].offset == 50
        consumer.close()


def transactions() -> None:
    producer = ck.Producer(settings(transactional_id=name))
    producer.init_transactions(PATIENCE)
    consumer = ck.Consumer(settings(group_id=f"{name}-txn", enable_auto_commit=False))
    for value, commits in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        producer.produce(f"{name}-txn", value, partition=0)
        if commits:
            offsets = [ck.TopicPartition(f"{name}-none", 0, 7)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE)
            producer.commit_transaction(PATIENCE)
        else:
            producer.flush(PATIENCE)
            producer.abort_transaction(PATIENCE)
    (kept,) = consumer.committed([ck.TopicPartition(f"{name}-none", 0)], timeout=PATIENCE)
    assert kept.offset == 7, kept
    consumer.close()
    assert read(f"{name}-txn", 2, isolation_level="read_committed") == [b"a", b"c"]


def main() -> None:
    admin = AdminClient(settings())
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    topics = [NewTopic(f"{name}-{each}", 1, 3) for each in [*codecs, "acks-0", "acks-1", "txn"]]
    for made in admin.create_topics(topics).values():
        made.result(PATIENCE)
    for codec in codecs:
        produce(f"{name}-{codec}", 50, compression_type=codec, enable_idempotence=codec == "none")
        assert read(f"{name}-{codec}", 50) == [b"v%d" % index for index in range(50)]
    produce(f"{name}-acks-1", 50, acks=1)
    assert read(f"{name}-acks-1", 50, isolation_level="read_committed")[49] == b"v49"
    produce(f"{name}-acks-0", 1)
    produce(f"{name}-acks-0", 50, acks=0)
    read(f"{name}-acks-0", 51)
    group(None)
    if ck.libversion()[1] >= 0x020C0000:
        group("consumer")
    transactions()
    consumer = ck.Consumer(settings(group_id="none"))
    assert consumer.get_watermark_offsets(ck.TopicPartition(f"{name}-gzip", 0), PATIENCE) == (0, 50)
    consumer.close()
    for made in admin.create_partitions([NewPartitions(f"{name}-none", 3)]).values():
        made.result(PATIENCE)
    for made in admin.describe_configs([ConfigResource("topic", f"{name}-none")]).values():
        assert made.result(PATIENCE)["retention.ms"].value == "604800000"
    for made in admin.delete_topics([f"{name}-gzip"]).values():
        made.result(PATIENCE)
    print(ck.version()[0] if isinstance(ck.version(), tuple) else ck.version(), ck.libversion()[0])
    print("done")


main()
