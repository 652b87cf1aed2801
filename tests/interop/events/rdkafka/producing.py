"""What a producer hears of its records."""

from __future__ import annotations

from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin as ca

from ..leaders import move_leader
from ..record import PATIENCE, Tell, until
from .clients import SERVERS, client, heard_by, make, outcome, reader, records, told, write


def deliveries(tell: Tell) -> None:
    make("deliveries", 2)
    for name, more in (
        ("idempotent", {"enable_idempotence": True}),
        ("acks=all", {"acks": "all"}),
        ("acks=1", {"acks": "1"}),
        ("acks=0", {"acks": "0"}),
    ):
        tell(name, write("deliveries", [b"a", b"b", b"c"], 1, **more))


def refused_records(tell: Tell) -> None:
    make("refused", 1, max_message_bytes="1000")
    tell("too large for the topic", write("refused", [b"x" * 5000]))
    tell("too large, idempotent", write("refused", [b"x" * 5000], enable_idempotence=True))
    tell("small again", write("refused", [b"x"], enable_idempotence=True))
    tell("too large for the client", outcome(lambda: write("refused", [b"x" * 2_000_000])))
    tell("no such partition", outcome(lambda: write("refused", [b"x"], 7)))
    tell("a name that is none", outcome(lambda: write("a b", [b"x"])))
    more = {"allow_auto_create_topics": False, "message_timeout_ms": 3000}
    tell("no such topic", outcome(lambda: write("nowhere", [b"x"], **more)))
    make("guarded", 1, min_insync_replicas="3")
    tell("all replicas needed", write("guarded", [b"x"]))
    make("compacted", 1, cleanup_policy="compact")
    tell("compacted, with a key", write("compacted", [b"x"]))
    make("unkeyed", 1)
    heard: list[Any] = []
    producer = ck.Producer(client())
    producer.produce("unkeyed", None, None, 0, lambda error, message: heard.append(told(error)))
    producer.flush(PATIENCE)
    tell("neither key nor value", heard)


def made_by_use(tell: Tell) -> None:
    tell("first record", write("made-by-use", [b"x"]))
    known = ca.AdminClient(client()).list_topics("made-by-use", timeout=PATIENCE).topics["made-by-use"]
    tell("partitions", {number: len(each.replicas) for number, each in known.partitions.items()})


def made_again(tell: Tell) -> None:
    admin = make("again")
    heard: list[Any] = []
    producer = ck.Producer(client(linger_ms=0))

    def send(value: bytes) -> None:
        producer.produce(
            "again", value, None, 0, lambda error, message: heard.append([told(error), message.offset()])
        )
        producer.flush(PATIENCE)

    for value in (b"a", b"b", b"c"):
        send(value)
    consumer = reader()
    consumer.assign([ck.TopicPartition("again", 0, 0)])
    tell("read before", heard_by(consumer))
    admin.delete_topics(["again"])["again"].result(PATIENCE)
    until(lambda: "again" not in admin.list_topics(timeout=PATIENCE).topics)
    make("again")
    send(b"d")
    tell("deliveries", heard)
    fresh = reader()
    fresh.assign([ck.TopicPartition("again", 0, 0)])
    tell("read by a new consumer", heard_by(fresh))
    seen: list[Any] = []

    def sees_it() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            seen.append([message.offset(), message.value().decode()])
        return bool(seen)

    until(sees_it)
    tell("read by the old one", seen)
    for each in (consumer, fresh):
        each.close()


def another_leader(tell: Tell) -> None:
    make("led")
    heard: list[Any] = []
    producer = ck.Producer(client(linger_ms=0, enable_idempotence=True))
    consumer = reader()
    consumer.assign([ck.TopicPartition("led", 0, 0)])
    for turn in range(3):
        for _ in range(3):
            producer.produce(
                "led", b"x", None, 0, lambda error, message: heard.append([told(error), message.offset()])
            )
        producer.flush(PATIENCE)
        tell(f"deliveries {turn}", heard[-3:])
        seen: list[Any] = []
        until(lambda seen=seen: seen.extend(records(consumer)) or len(seen) >= 3)
        tell(f"read {turn}", seen)
        if turn < 2:
            tell(f"moved {turn}", move_leader(SERVERS, "led"))
    consumer.close()
