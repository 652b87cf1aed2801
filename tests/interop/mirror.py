"""`python -m tests.interop.mirror`: MirrorMaker between a real Kafka and an insync cluster, both ways at once.

Topics that are written at one end are read at the other, with partitions, keys and values as they were. Groups go
on at the other end from where they have committed. Takes about a minute; ends with `done`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient

from ..plugins.kafka.conftest import running_cluster
from .kafka import HERE, POM, Java, broker, resolve

PATIENCE = 180.0
RECORDS, PARTITIONS = 1000, 3
MIRROR = "org.apache.kafka.connect.mirror.MirrorMaker"
SETTINGS = """
clusters=kafka,insync
kafka.bootstrap.servers={kafka}
insync.bootstrap.servers={insync}
kafka->insync.enabled=true
kafka->insync.topics=in
kafka->insync.groups=readers-of-in
insync->kafka.enabled=true
insync->kafka.topics=out
insync->kafka.groups=readers-of-out
replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
emit.checkpoints.interval.seconds=1
emit.heartbeats.enabled=false
refresh.topics.interval.seconds=2
refresh.groups.interval.seconds=2
sync.topic.acls.enabled=false
offset.lag.max=0
replication.factor=1
checkpoints.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
offset.flush.interval.ms=1000
"""


@contextmanager
def mirroring(java: Java, place: Path, kafka: str, insync: str) -> Iterator[subprocess.Popen[bytes]]:
    """It is gone when the block is left."""
    settings, said = place / "mirror.properties", place / "mirror.out"
    settings.write_text(SETTINGS.format(kafka=kafka, insync=insync))
    with (
        said.open("wb") as out,
        subprocess.Popen(java.command("-Xmx512m", MIRROR, str(settings)), stdout=out, stderr=out) as process,
    ):
        try:
            yield process
        except BaseException:
            sys.stderr.write(said.read_text()[-4000:])
            raise
        finally:
            process.kill()


def put(servers: str, topic: str, start: int, count: int) -> None:
    """Records whose partition, key and value follow from their number."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for number in range(start, start + count):
        producer.produce(topic, b"value %d" % number, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0


def reader(servers: str, topic: str, group: str) -> Any:
    made = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    made.subscribe([topic])
    return made


def take(consumer: Any, count: int) -> list[tuple[int, bytes, bytes]]:
    found: list[tuple[int, bytes, bytes]] = []

    def came() -> bool:
        for each in consumer.consume(500, 0.5):
            error = each.error()
            if error is None:
                found.append((each.partition(), each.key(), each.value()))
            else:
                not_yet = confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
                assert error.code() == not_yet, error
        return len(found) >= count

    until(came, f"{count} records")
    return sorted(found, key=lambda each: int(each[1]))


def expected(start: int, count: int) -> list[tuple[int, bytes, bytes]]:
    return [
        (number % PARTITIONS, b"%d" % number, b"value %d" % number) for number in range(start, start + count)
    ]


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.1)


def begin(servers: str, topic: str) -> None:
    """A topic, and a group that has read and committed all of it."""
    admin = AdminClient({"bootstrap.servers": servers})
    (made,) = admin.create_topics(
        [confluent_kafka.admin.NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)]
    ).values()
    made.result(PATIENCE)
    put(servers, topic, 0, RECORDS)
    consumer = reader(servers, topic, f"readers-of-{topic}")
    assert take(consumer, RECORDS) == expected(0, RECORDS)
    consumer.commit(asynchronous=False)
    consumer.close()


def committed(servers: str, topic: str) -> int:
    """All that a group has committed, over its partitions."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": f"readers-of-{topic}"})
    places = [confluent_kafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
    total = sum(max(0, each.offset) for each in consumer.committed(places, PATIENCE))
    consumer.close()
    return total


def check(here: str, there: str, topic: str) -> None:
    """What was written here is there, and its group goes on there."""
    whole = reader(there, topic, "from-the-beginning")
    assert take(whole, RECORDS) == expected(0, RECORDS)
    whole.close()
    until(lambda: committed(there, topic) == RECORDS, f"the offsets of the readers of {topic}")
    put(here, topic, RECORDS, 10)
    goes_on = reader(there, topic, f"readers-of-{topic}")
    assert take(goes_on, 10) == expected(RECORDS, 10), "nothing twice, nothing left out"
    goes_on.close()


def main() -> int:
    """Ends with `done`, or with what is not as it must be."""
    java, mirror = Java(resolve(POM, online=True)), Java(resolve(HERE / "mirror.xml", online=True))
    with (
        tempfile.TemporaryDirectory(prefix="insync-mirror-") as folder,
        running_cluster() as cluster,
        broker(java, Path(folder)) as kafka,
    ):
        begin(kafka.address, "in")
        begin(cluster.servers, "out")
        with mirroring(mirror, Path(folder), kafka.address, cluster.servers):
            check(kafka.address, cluster.servers, "in")
            check(cluster.servers, kafka.address, "out")
    print("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
