"""`python -m tests.interop.client_events [--json]`: one program of librdkafka at our nodes and at Kafka.

The program writes what its client tells it: callbacks with their errors, offsets, assignments, results. Both
lists of events must be equal, but for `ALLOWED`, which says why: a difference that is not there is a failure, and
so is one that is there and is not met. The parts of the program are those that fail where a node is almost right:
limits, a topic that is made again under its clients, partitions that are added, fencing, transactions, quotas.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import trio
from confluent_kafka import admin as ck_admin

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api

from ..plugins.kafka.conftest import running_cluster
from ..plugins.kafka.wire_client import WireClient
from .brokers import brokers
from .kafka import POM, Java, resolve

PATIENCE = 60.0
LIMIT = 100_000
"""`max.message.bytes` of a topic."""
Event = tuple[str, Any]
ALLOWED: dict[str, str] = {}
"""Events that differ on purpose, by `PART: WHAT`."""


def error_of(error: ck.KafkaError | None) -> Any:
    """An error as a program may act on it."""
    if error is None:
        return None
    flags = {
        "retriable": error.retriable(),
        "fatal": error.fatal(),
        "abort": error.txn_requires_abort(),
    }
    return [error.name(), *(name for name, holds in flags.items() if holds)]


class Program:
    """One run against one cluster."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.now_ms = time.time_ns() // 1_000_000
        self.admin = ck_admin.AdminClient({"bootstrap.servers": servers})

    def parts(self) -> dict[str, Callable[[], Iterator[Event]]]:
        return {
            "sizes": self.sizes,
            "offsets": self.offsets,
            "missing": self.missing,
            "made again": self.made_again,
            "partitions added": self.partitions_added,
            "transactions": self.transactions,
            "fenced": self.fenced,
            "groups": self.groups,
            "quota": self.quota,
        }

    # Tools

    def settings(self, **more: Any) -> dict[str, Any]:
        given = {key if callable(value) else key.replace("_", "."): value for key, value in more.items()}
        return {"bootstrap.servers": self.servers, "topic.metadata.refresh.interval.ms": 500, **given}

    def make(self, topic: str, partitions: int = 1, **config: str) -> None:
        config = {key.replace("_", "."): value for key, value in config.items()}
        wanted = ck_admin.NewTopic(topic, partitions, 3, config=config)
        self.admin.create_topics([wanted])[topic].result(PATIENCE)

    def produce(self, topic: str, *values: bytes, producer: Any = None, **more: Any) -> list[Any]:
        """Each one's error and offset, one after the other."""
        told: list[Any] = []
        producer = producer or ck.Producer(self.settings(**more))
        for value in values:
            producer.produce(
                topic,
                value,
                partition=0,
                timestamp=self.now_ms + len(told),
                on_delivery=lambda error, record: told.append(
                    [error_of(error), record.offset() if error is None else None]
                ),
            )
            assert producer.flush(PATIENCE) == 0
        return told

    def consumer(self, **more: Any) -> ck.Consumer:
        given = {"group_id": "events", "enable_auto_commit": False, "auto_offset_reset": "error", **more}
        return ck.Consumer(self.settings(**given))

    def read(self, consumer: ck.Consumer, count: int) -> list[Any]:
        """So many records, or what comes in their place."""
        found: list[Any] = []
        end = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < end:
            each = consumer.poll(0.2)
            if each is not None:
                error = each.error()
                found.append(error_of(error) if error else [each.offset(), each.value().decode()])
        return found

    # Parts

    def sizes(self) -> Iterator[Event]:
        self.make("sizes", max_message_bytes=str(LIMIT))
        small, large = b"x", bytes(LIMIT - 200)
        for acks in ("all", "1", "0"):
            yield f"acks={acks}", self.produce("sizes", small, large, acks=acks)
        yield "too large", self.produce("sizes", bytes(LIMIT + 1), acks="all")
        yield "too large, idempotent", self.produce("sizes", bytes(LIMIT + 1), enable_idempotence=True)
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            yield codec, self.produce("sizes", small * 1000, compression_type=codec)

    def offsets(self) -> Iterator[Event]:
        self.make("offsets")
        self.produce("offsets", *(b"%d" % number for number in range(10)))
        consumer, place = self.consumer(), ck.TopicPartition("offsets", 0)
        yield "watermarks", consumer.get_watermark_offsets(place, PATIENCE)
        for later in (-self.now_ms, 0, 5, 10**12):
            (found,) = consumer.offsets_for_times(
                [ck.TopicPartition("offsets", 0, self.now_ms + later)], PATIENCE
            )
            yield f"at {max(later, -1)}", found.offset
        for start in (0, 9, ck.OFFSET_BEGINNING):
            consumer.assign([ck.TopicPartition("offsets", 0, start)])
            yield f"from {start}", self.read(consumer, 1)
        consumer.assign([ck.TopicPartition("offsets", 0, 500)])
        yield "out of range", self.read(consumer, 1)
        self.admin.delete_records([ck.TopicPartition("offsets", 0, 4)])[place].result(PATIENCE)
        consumer.assign([ck.TopicPartition("offsets", 0, 0)])
        yield "deleted", self.read(consumer, 1)
        yield "after deletion", consumer.get_watermark_offsets(place, PATIENCE)
        consumer.close()
        reset = self.consumer(auto_offset_reset="earliest")
        reset.assign([ck.TopicPartition("offsets", 0, 0)])
        yield "reset", self.read(reset, 2)
        reset.close()

    def missing(self) -> Iterator[Event]:
        told = self.produce("missing", b"x", allow_auto_create_topics=False, message_timeout_ms=5000)
        yield "a name that must not be", self.produce("a b", b"x", message_timeout_ms=5000)
        self.make("one")
        with_two = ck.Producer(self.settings())
        with_two.produce("one", b"x", partition=0)
        yield "left", with_two.flush(PATIENCE)
        said: list[Any] = []
        try:
            with_two.produce(
                "one", b"x", partition=7, on_delivery=lambda error, _: said.append(error_of(error))
            )
            with_two.flush(PATIENCE)
        except ck.KafkaException as error:
            said.append(error_of(error.args[0]))
        yield "no such partition", said
        consumer = self.consumer(allow_auto_create_topics=False)
        consumer.subscribe(["nowhere"])
        yield "subscribed to nothing", self.read(consumer, 1)
        consumer.close()
        yield "made by a producer", [bool(told), told[0][1]]

    def made_again(self) -> Iterator[Event]:
        self.make("again")
        producer = ck.Producer(self.settings(enable_idempotence=True))
        yield "before", self.produce("again", b"0", b"1", producer=producer)
        consumer = self.consumer(auto_offset_reset="earliest")
        consumer.assign([ck.TopicPartition("again", 0, 0)])
        yield "read before", self.read(consumer, 2)
        self.admin.delete_topics(["again"], operation_timeout=30)["again"].result(PATIENCE)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.make("again")
                break
            except ck.KafkaException as error:  # its old self may still be on its way out
                assert error.args[0].name() == "TOPIC_ALREADY_EXISTS" and time.monotonic() < end, error
                time.sleep(0.2)
        other = ck.Producer(self.settings())
        yield "another producer", self.produce("again", b"2", b"3", b"4", producer=other)
        found = [each for each in self.read(consumer, 3) if isinstance(each[0], int)]
        yield "read after", found
        consumer.close()

    def partitions_added(self) -> Iterator[Event]:
        self.make("more")
        assigned: list[list[int]] = []
        consumer = self.consumer(auto_offset_reset="earliest", group_id="more")
        consumer.subscribe(
            ["more"], on_assign=lambda _, places: assigned.append(sorted(each.partition for each in places))
        )
        self.produce("more", b"0")
        yield "before", self.read(consumer, 1)
        self.admin.create_partitions([ck_admin.NewPartitions("more", 3)])["more"].result(PATIENCE)
        producer = ck.Producer(self.settings())
        end = time.monotonic() + PATIENCE
        while len(producer.list_topics("more", PATIENCE).topics["more"].partitions) < 3:
            assert time.monotonic() < end
            time.sleep(0.1)
        for partition in range(3):
            producer.produce("more", b"new", partition=partition)
        yield "left", producer.flush(PATIENCE)
        yield "after", sorted(self.read(consumer, 3))
        yield "assigned", assigned
        consumer.close()

    def transactions(self) -> Iterator[Event]:
        self.make("txn")
        producer = ck.Producer(self.settings(transactional_id="events"))
        producer.init_transactions(PATIENCE)
        for value, ends in ((b"a", "commit"), (b"b", "abort"), (b"c", "commit")):
            producer.begin_transaction()
            yield f"{ends} {value.decode()}", self.produce("txn", value, producer=producer)
            if ends == "commit":
                producer.commit_transaction(PATIENCE)
            else:
                producer.abort_transaction(PATIENCE)
        producer.begin_transaction()
        yield "open", self.produce("txn", b"d", producer=producer)
        for isolation in ("read_committed", "read_uncommitted"):
            consumer = self.consumer(isolation_level=isolation, enable_partition_eof=True)
            consumer.assign([ck.TopicPartition("txn", 0, 0)])
            yield isolation, self.read(consumer, 3 if isolation == "read_committed" else 5)
            (end,) = consumer.position([ck.TopicPartition("txn", 0)])
            yield f"{isolation}: position", end.offset
            consumer.close()
        producer.abort_transaction(PATIENCE)
        try:
            producer.commit_transaction(PATIENCE)
        except ck.KafkaException as error:
            yield "commit without one", error_of(error.args[0])

    def fenced(self) -> Iterator[Event]:
        self.make("fenced")
        first, second = (ck.Producer(self.settings(transactional_id="fenced")) for _ in range(2))
        first.init_transactions(PATIENCE)
        first.begin_transaction()
        yield "first", self.produce("fenced", b"first", producer=first)
        second.init_transactions(PATIENCE)
        second.begin_transaction()
        yield "second", self.produce("fenced", b"second", producer=second)
        try:
            first.commit_transaction(PATIENCE)
        except ck.KafkaException as error:
            yield "commit of the first", error_of(error.args[0])
        second.commit_transaction(PATIENCE)
        consumer = self.consumer(isolation_level="read_committed")
        consumer.assign([ck.TopicPartition("fenced", 0, 0)])
        yield "seen", self.read(consumer, 1)
        consumer.close()

    def groups(self) -> Iterator[Event]:
        self.make("groups")
        self.produce("groups", *(b"%d" % number for number in range(5)))
        place = ck.TopicPartition("groups", 0)
        for protocol in ("classic", "consumer"):
            more = {"group_protocol": protocol} if protocol == "consumer" else {}
            consumer = self.consumer(group_id=protocol, auto_offset_reset="earliest", **more)
            consumer.subscribe(["groups"])
            yield f"{protocol}: first", self.read(consumer, 2)
            consumer.commit(offsets=[ck.TopicPartition("groups", 0, 2, "said")], asynchronous=False)
            (kept,) = consumer.committed([place], PATIENCE)
            yield f"{protocol}: kept", [kept.offset, kept.metadata, error_of(kept.error)]
            consumer.close()
            try:
                stranger = self.consumer(group_id=protocol, **more)
                stranger.assign([place])
                told = stranger.commit(offsets=[ck.TopicPartition("groups", 0, 4)], asynchronous=False)
                yield f"{protocol}: committed from outside", [each.offset for each in told]
            except ck.KafkaException as error:
                yield f"{protocol}: committed from outside", error_of(error.args[0])
            finally:
                stranger.close()
            described = self.admin.describe_consumer_groups([protocol])[protocol].result(PATIENCE)
            yield f"{protocol}: described", [described.state.name, len(described.members)]
            self.admin.delete_consumer_groups([protocol])[protocol].result(PATIENCE)
            try:
                self.admin.delete_consumer_groups([protocol])[protocol].result(PATIENCE)
            except ck.KafkaException as error:
                yield f"{protocol}: deleted twice", error_of(error.args[0])

    def quota(self) -> Iterator[Event]:
        """Is the client told to wait, and does all arrive?"""
        self.make("quota")
        waits: list[float] = []
        producer = ck.Producer(
            self.settings(
                client_id="slow", linger_ms=0, throttle_cb=lambda event: waits.append(event.throttle_time)
            )
        )
        yield "freely", [self.produce("quota", bytes(50_000), producer=producer), bool(waits)]
        quotas(self.servers, "slow", 20_000)
        found = self.produce("quota", *[bytes(50_000)] * 4, producer=producer)
        end = time.monotonic() + PATIENCE
        while not waits and time.monotonic() < end:
            producer.poll(0.1)
        yield "slowly", [found, bool(waits)]


def quotas(servers: str, client_id: str, rate: float) -> None:
    """librdkafka has no such request."""
    Alter = message("AlterClientQuotasRequest")

    async def ask() -> None:
        client = await WireClient.connect(servers.partition(",")[0])
        async with client.stream:
            whose = [Alter.EntityData(entity_type="client-id", entity_name=client_id)]
            ops = [Alter.OpData(key="producer_byte_rate", value=rate, remove=False)]
            request = Alter(entries=[Alter.EntryData(entity=whose, ops=ops)], validate_only=False)
            (entry,) = (await client.ask(Api.ALTER_CLIENT_QUOTAS, 1, request)).entries
            assert entry.error_code == 0, entry.error_message

    trio.run(ask)


def events(servers: str) -> dict[str, Any]:
    """All events, by part and name; each has one."""
    found: dict[str, Any] = {}
    for part, tell in Program(servers).parts().items():
        for name, value in tell():
            key = f"{part}: {name}"
            assert key not in found, key
            found[key] = json.loads(json.dumps(value))
    return found


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What is wrong."""
    differ = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
    wrong = [
        f"{key}: ours {ours.get(key)}, Kafka's {theirs.get(key)}" for key in sorted(differ - ALLOWED.keys())
    ]
    return wrong + [f"{key}: allowed, and not met any more" for key in sorted(ALLOWED.keys() - differ)]


def run(java: Java, place: Path) -> tuple[int, list[str]]:
    """How many events were compared, and what is wrong."""
    with running_cluster() as cluster:
        ours = events(cluster.servers)
    with brokers(java, place, heap="384m") as kafka:
        theirs = events(kafka.servers)
    return len(theirs), compare(ours, theirs)


def main() -> int:
    """1 if anything differs that may not."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.client_events", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="insync-events-") as place:
        count, wrong = run(Java(resolve(POM, online=True)), Path(place))
    print("\n".join(wrong) or "nothing differs that may not")
    if options.json:
        print(json.dumps({"events": count, "allowed": len(ALLOWED), "wrong": wrong}))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
