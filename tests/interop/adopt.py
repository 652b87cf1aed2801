"""A Kafka of one or three brokers is written to, stopped, adopted by `insync adopt`, and read from insync nodes.

    python -m tests.interop.adopt [--brokers 3] [--kafka 3.9.1] [--apart]

What was read from Kafka before it was stopped (offsets, keys, values, timestamps, headers, committed offsets of
groups, with both isolation levels; ids of topics, epochs of what was written) is compared with what the same
client, kafka-python and our own consumer read afterwards; then writes go on at the next offset, in a later epoch.
Needs Java and Maven.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .brokers import brokers
from .kafka import HERE, Java, free_port, resolve

CLEANER = (
    "log.cleaner.backoff.ms=200\nlog.cleaner.dedupe.buffer.size=4000000\nlog.retention.hours=-1\n"
    "message.max.bytes=2000000\ncontrolled.shutdown.enable=false\n"
)
"""Three controllers that are brokers too have no majority any more when the last but one stops, and a controlled
shutdown waits for it for five minutes."""
SMALL = {"segment.bytes": str(1 << 20)}
COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1",
}  # fmt: skip
START = 1_700_000_000_000
Row = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
Rows = dict[str, list[Row]]


def write(servers: str, replicas: int, folders: Sequence[Path]) -> None:
    """Topics of every kind that there is."""
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    wanted = {
        "codecs": (3, SMALL),
        "compacted": (2, COMPACTED),
        "trans": (2, {}),
        "cut": (1, SMALL),
        "empty": (2, {}),
        "gaps": (1, {**COMPACTED, **SMALL}),
    }
    made = admin.create_topics(
        [NewTopic(name, count, replicas, config=config) for name, (count, config) in wanted.items()]
    )
    for each in made.values():
        each.result(60)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = ck.Producer(
            {
                "bootstrap.servers": servers,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 2,
            }
        )
        for number in range(600):
            key = None if number % 5 == 0 else b"key-%d" % number
            value = None if number % 7 == 0 else (b"%s-%d " % (codec.encode(), number)) * 40
            headers = [("size", b"\x01"), ("none", None)] if number % 3 == 0 else []
            producer.produce("codecs", value, key, number % 3, timestamp=START + number, headers=headers)
        assert producer.flush(60) == 0
    _write_compacted(servers)
    _write_transactions(servers)
    producer = ck.Producer({"bootstrap.servers": servers})
    for number in range(1000):
        producer.produce("cut", os.urandom(4000), b"%d" % number, 0, timestamp=START + number)
    assert producer.flush(60) == 0
    asked = [ck.TopicPartition("cut", 0, 700)]
    for each in admin.delete_records(asked).values():
        each.result(60)
    _commit(servers, "readers", [("codecs", 0, 77), ("codecs", 2, 200), ("trans", 1, 5)])
    _commit(servers, "others", [("compacted", 0, 30)])
    _wait_for_cleaning(folders)


def _write_compacted(servers: str) -> None:
    """Timestamps that each begin a segment, so that the cleaner has closed ones."""
    import confluent_kafka as ck

    producer = ck.Producer({"bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 1})
    for turn, keys in enumerate((range(100), range(50, 150), [0])):
        # Segments too large to be made one: the tail of the first goes, and a gap stays in front of the second.
        for number in keys:
            producer.produce("gaps", os.urandom(8000), b"%d" % number, 0, timestamp=START + turn * 10_000)
            if number % 10 == 9:
                assert producer.flush(60) == 0
        assert producer.flush(60) == 0
    for turn in range(30):
        for number in range(20):
            value = None if (turn, number) == (20, 7) else b"%d.%d" % (turn, number)
            key = b"key-%d" % number if number < 18 else b"only-%d-%d" % (turn % 10, number)
            producer.produce("compacted", value, key, number % 2, timestamp=START + turn * 10_000)
        assert producer.flush(60) == 0


def _write_transactions(servers: str) -> None:
    import confluent_kafka as ck

    producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": "adopted", "linger.ms": 1})
    producer.init_transactions(60)
    for turn in range(6):
        producer.begin_transaction()
        for number in range(10):
            producer.produce("trans", b"%d.%d" % (turn, number), b"k", number % 2)
        if turn % 3 == 1:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def _commit(servers: str, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
    import confluent_kafka as ck

    consumer = ck.Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
    given = [ck.TopicPartition(*each, metadata=f"of {group}") for each in offsets]
    consumer.commit(offsets=given, asynchronous=False)
    consumer.close()


def _wait_for_cleaning(folders: Sequence[Path]) -> None:
    """Until every broker's cleaner has got as far as the open segment of both compacted partitions."""
    left = {(folder, name) for folder in folders for name in ("compacted-0", "compacted-1", "gaps-0")}
    while left:
        for folder, name in [*left]:
            last = max(int(path.stem) for path in (folder / name).glob("*.log"))
            lines = (
                (folder / "cleaner-offset-checkpoint").read_text().splitlines()
                if (folder / "cleaner-offset-checkpoint").exists()
                else []
            )
            if f"{name.replace('-', ' ')} {last}" in lines:
                left.discard((folder, name))
        select.select([], [], [], 0.1)


def read(servers: str, isolation: str) -> Rows:
    """All partitions of the topics that `write` has made, by librdkafka."""
    import confluent_kafka as ck

    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers, "group.id": "nobody", "isolation.level": isolation,
            "auto.offset.reset": "earliest", "enable.partition.eof": True, "enable.auto.commit": False,
        }
    )  # fmt: skip
    found: Rows = {}
    topics = consumer.list_topics(timeout=60).topics
    for topic in ("codecs", "compacted", "cut", "empty", "gaps", "trans"):
        for partition in topics[topic].partitions:
            rows = found[f"{topic}-{partition}"] = []
            low, high = _ends(consumer, ck.TopicPartition(topic, partition))
            rows.append((low, None, None, high, ()))
            consumer.assign([ck.TopicPartition(topic, partition, low)])
            while True:
                message = consumer.poll(60)
                assert message is not None, f"nothing comes from {topic}-{partition}"
                if message.error():
                    assert message.error().code() == ck.KafkaError._PARTITION_EOF, message.error()
                    break
                headers = tuple((name, value) for name, value in message.headers() or ())
                rows.append(
                    (message.offset(), message.key(), message.value(), message.timestamp()[1], headers)
                )
    consumer.close()
    return found


def _ends(consumer: Any, place: Any) -> tuple[int, int]:
    """Once the partition has a leader, which of nodes that have just been started it may not have."""
    import confluent_kafka as ck

    deadline = time.monotonic() + 120
    while True:
        try:
            found: tuple[int, int] = consumer.get_watermark_offsets(place, 60)
        except ck.KafkaException:
            if time.monotonic() > deadline:
                raise
            consumer.poll(0.1)
        else:
            return found


def committed(servers: str) -> dict[str, list[tuple[str, int, int, str]]]:
    """Offsets of the groups, by librdkafka's administration."""
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    found = {}
    for group in ("readers", "others"):
        asked = admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group)])
        offsets = asked[group].result(60).topic_partitions
        found[group] = sorted(
            (each.topic, each.partition, each.offset, each.metadata or "") for each in offsets
        )
    return found


def described(servers: str, told: Rows) -> dict[str, Any]:
    """Ids of the topics, and the leader epoch in which the oldest record of each partition was written.

    Kafka names no epoch for a log start behind which its cleaner has left nothing.
    """
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": servers})
    names = sorted({name.rpartition("-")[0] for name in told})
    topics = {
        name: str(each.result(60).topic_id)
        for name, each in admin.describe_topics(ck.TopicCollection(names)).items()
    }
    places = [
        ck.TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2]))
        for name, rows in told.items()
        if len(rows) > 1
    ]
    asked = admin.list_offsets({each: OffsetSpec.earliest() for each in places})
    found = {place: each.result(60) for place, each in asked.items()}
    epochs = {f"{each.topic}-{each.partition}": (at.offset, at.leader_epoch) for each, at in found.items()}
    return {"ids": topics, "epochs": epochs}


def stop(pids: Sequence[int]) -> None:
    """As an operator does: one broker after the other is asked, and waited for."""
    for pid in pids:
        with os.fdopen(os.pidfd_open(pid), closefd=True) as ended:
            os.kill(pid, signal.SIGTERM)
            assert select.select([ended], [], [], 120)[0], f"Kafka's process {pid} does not end"


def make(java: Java, place: Path, count: int) -> dict[str, Any]:
    """Kafka's folders under `place`, of brokers that were stopped cleanly, and what was read from it before."""
    folders = [place / f"log-{number}" for number in range(1, count + 1)]
    with brokers(java, place, count=count, more=CLEANER) as running:
        write(running.servers, count, folders)
        told = {
            "read": {each: read(running.servers, each) for each in ("read_committed", "read_uncommitted")},
            "committed": committed(running.servers),
            "folders": folders,
            "properties": place / "server-1.properties",
        }
        told["described"] = described(running.servers, told["read"]["read_committed"])
        stop(running.pids)
    return told


@contextmanager
def nodes(place: Path, folders: Sequence[Path]) -> Iterator[dict[int, tuple[str, str]]]:
    """A node of insync for each folder, on the store in `place`; by id where each serves us and Kafka's clients."""
    with ExitStack() as stack:
        running = []
        for number, folder in enumerate(folders, 1):
            command = [
                sys.executable,
                "-m",
                "insync",
                "node",
                "--node-id",
                str(number),
                "--data-dir",
                str(folder),
            ]
            command += ["--store", f"sqlite:///{place}/meta.db", "--listen", "tcp://127.0.0.1:0", "--json"]
            command += ["--listen", f"kafka://127.0.0.1:{free_port()}", "--log-level", "warning"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(_end, process)
            running.append(process)
        found = {}
        for process in running:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            found[told["node_id"]] = (told["endpoints"][0], told["gateways"][0].removeprefix("kafka://"))
        yield found


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_natively(servers: Sequence[str], like: Rows, isolation: str) -> Rows:
    """The same partitions by our own consumer."""
    from insync.replication import BlockingConsumer

    found: Rows = {}
    for name, (ends, *rows) in like.items():
        topic, _, partition = name.rpartition("-")
        found[name] = [ends]
        with BlockingConsumer(servers, isolation_level=isolation) as consumer:
            consumer.assign([(topic, int(partition))])
            consumer.seek((topic, int(partition)), ends[0])
            while len(found[name]) <= len(rows):
                for each in consumer.poll(timeout_ms=60_000):
                    headers = tuple((key, value) for key, value in each.headers)
                    found[name].append((each.offset, each.key, each.value, each.timestamp_ms, headers))
    return found


def read_by_kafka_python(servers: str, like: Rows) -> Rows:
    """The same partitions by kafka-python, committed records."""
    import kafka

    found: Rows = {}
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False, group_id=None
    )
    try:
        for name, rows in like.items():
            topic, _, partition = name.rpartition("-")
            place = kafka.TopicPartition(topic, int(partition))
            consumer.assign([place])
            low, high = consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
            found[name] = [(low, None, None, high, ())]
            consumer.seek(place, low)
            while len(found[name]) < len(rows):
                for each in consumer.poll(60_000).get(place, ()):
                    headers = tuple((key, value) for key, value in each.headers)
                    found[name].append((each.offset, each.key, each.value, each.timestamp, headers))
    finally:
        consumer.close()
    return found


def write_on(servers: str, told: Rows) -> int:
    """A record more in each partition: it comes at the end that there was, in a later epoch. Gives how many."""
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient, OffsetSpec

    placed: dict[str, int] = {}
    producer = ck.Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
    for name in told:
        topic, _, partition = name.rpartition("-")

        def said(error: Any, message: Any, name: str = name) -> None:
            assert error is None, error
            placed[name] = message.offset()

        producer.produce(topic, b"more", b"more", int(partition), on_delivery=said)
    assert producer.flush(60) == 0
    assert placed == {name: rows[0][3] for name, rows in told.items()}
    admin = AdminClient({"bootstrap.servers": servers})
    asked = {
        ck.TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2])): OffsetSpec.latest()
        for name in told
    }
    for each in admin.list_offsets(asked).values():
        assert each.result(60).leader_epoch > 0
    transactional = ck.Producer({"bootstrap.servers": servers, "transactional.id": "adopted"})
    transactional.init_transactions(60)
    transactional.begin_transaction()
    transactional.produce("trans", b"after", partition=0)
    transactional.commit_transaction(60)
    return len(placed)


def fingerprint(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """All that there is in a folder: mode, time of change and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (state.st_mode, state.st_mtime_ns, state.st_ino, content)
    return found


def adopt(place: Path, told: dict[str, Any], *, apart: bool) -> list[Path]:
    """By `insync adopt`, in one run, or as on machines of their own; gives the nodes' folders."""
    command = [sys.executable, "-m", "insync", "adopt", "--server-properties", str(told["properties"])]
    targets = [place / f"node-{number}" for number, _ in enumerate(told["folders"], 1)]
    store = ["--store", f"sqlite:///{place}/meta.db"]
    pairs = [
        ["--from-kafka", str(kafka), "--data-dir", str(ours)]
        for kafka, ours in zip(told["folders"], targets, strict=True)
    ]
    if not apart:
        subprocess.run([*command, *store, *(word for pair in pairs for word in pair)], check=True)
        return targets
    written = [str(place / f"evidence-{number}") for number, _ in enumerate(targets)]
    for pair, path in zip(pairs, written, strict=True):
        subprocess.run([*command, *pair, "--evidence", path], check=True)
    subprocess.run([*command[:4], *store, *written], check=True)
    return targets


def compare(place: Path, told: dict[str, Any], *, apart: bool = False) -> str:
    """Adopt what `make` has made, and hold everything that is read from it against what was read from Kafka."""
    before = {folder: fingerprint(folder) for folder in told["folders"]}
    folders = adopt(place, told, apart=apart)
    assert {folder: fingerprint(folder) for folder in told["folders"]} == before, (
        "Kafka's folders have changed"
    )
    rows = told["read"]["read_committed"]
    with nodes(place, folders) as running:
        servers = ",".join(kafka for _, kafka in running.values())
        native = [own for own, _ in running.values()]
        for isolation, wanted in told["read"].items():
            assert read(servers, isolation) == wanted, f"librdkafka, {isolation}"
            assert read_natively(native, wanted, isolation) == wanted, f"our consumer, {isolation}"
        assert read_by_kafka_python(servers, rows) == rows, "kafka-python"
        assert committed(servers) == told["committed"]
        assert described(servers, rows) == told["described"], "ids and epochs"
        more = write_on(servers, rows)
    with nodes(place, folders) as running:
        servers = ",".join(kafka for _, kafka in running.values())
        ends = {name: each[0][3] for name, each in read(servers, "read_committed").items()}
    trans = {"trans-0": 3, "trans-1": 1}
    assert ends == {name: each[0][3] + trans.get(name, 1) for name, each in rows.items()}
    count = sum(len(each) - 1 for each in rows.values())
    groups = len(told["committed"])
    return (
        f"{len(folders)} nodes: {count} committed records as they were, {groups} groups, {more} records more"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.adopt", description=__doc__)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--kafka", default="", metavar="VERSION", help="of Maven Central; by default 4.1.0")
    parser.add_argument("--apart", action="store_true", help="adopt each broker by itself")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        version = [f"-Dkafka.version={asked.kafka}"] if asked.kafka else []
        java = Java(resolve(HERE / "pom.xml", *version, online=True))
        told = make(java, Path(place), asked.brokers)
        print(compare(Path(place), told, apart=asked.apart))


if __name__ == "__main__":
    main()
