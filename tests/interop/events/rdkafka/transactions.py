"""What transactional producers hear, and what readers then see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck

from ..record import PATIENCE, Tell, until
from .clients import client, heard_by, make, outcome, reader, told, write
from .groups import Member


def transactional(name: str, **more: Any) -> ck.Producer:
    return ck.Producer(client(transactional_id=name, **more))


def transactions(tell: Tell) -> None:
    make("transactions")
    heard: list[Any] = []

    def send(producer: ck.Producer, value: bytes) -> Any:
        return outcome(
            lambda: producer.produce(
                "transactions",
                value,
                None,
                0,
                lambda error, message: heard.append([told(error), message.offset()]),
            )
        )

    producer = transactional("t-1")
    tell("before init", outcome(producer.begin_transaction))
    producer.init_transactions(PATIENCE)
    tell("record before begin", send(producer, b"x"))
    producer.begin_transaction()
    send(producer, b"kept")
    tell("commit", outcome(lambda: producer.commit_transaction(PATIENCE)))
    tell("commit again", outcome(lambda: producer.commit_transaction(PATIENCE)))
    producer.begin_transaction()
    send(producer, b"dropped")
    producer.flush(PATIENCE)
    tell("abort", outcome(lambda: producer.abort_transaction(PATIENCE)))
    producer.begin_transaction()
    send(producer, b"open")
    producer.flush(PATIENCE)
    for isolation, consumer in _readers():
        tell(f"{isolation}, one open", heard_by(consumer))
        tell(
            f"{isolation}, watermarks",
            list(consumer.get_watermark_offsets(ck.TopicPartition("transactions", 0), timeout=9)),
        )
    rival = transactional("t-1")
    rival.init_transactions(PATIENCE)
    send(producer, b"late")
    tell("commit of the fenced", outcome(lambda: producer.commit_transaction(PATIENCE)))
    tell("begin of the fenced", outcome(producer.begin_transaction))
    tell("init of the fenced", outcome(lambda: producer.init_transactions(PATIENCE)))
    tell("deliveries", heard)
    rival.begin_transaction()
    send(rival, b"kept, too")
    rival.commit_transaction(PATIENCE)
    for isolation, consumer in _readers():
        tell(f"{isolation}, all ended", heard_by(consumer))
    slow = transactional("t-2", transaction_timeout_ms=2_000_000_000, message_timeout_ms=1000)
    tell("a timeout that is too long", outcome(lambda: slow.init_transactions(PATIENCE)))


def _readers() -> Iterator[tuple[str, ck.Consumer]]:
    """A consumer of each isolation level, one after the other."""
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = reader(isolation_level=isolation)
        consumer.assign([ck.TopicPartition("transactions", 0, 0)])
        yield isolation, consumer
        consumer.close()


def offsets_of_transactions(tell: Tell) -> None:
    make("offsets")
    write("offsets", [b"a", b"b"])
    member = Member("offsets", "a", "offsets")
    until(lambda: member.poll() or member.held)
    metadata = member.consumer.consumer_group_metadata()
    producer = transactional("o-1")
    producer.init_transactions(PATIENCE)
    place = ck.TopicPartition("offsets", 0, 2)
    producer.begin_transaction()
    tell(
        "sent by a member", outcome(lambda: producer.send_offsets_to_transaction([place], metadata, PATIENCE))
    )
    tell("committed", outcome(lambda: producer.commit_transaction(PATIENCE)))
    tell("found", [each.offset for each in member.consumer.committed([place], PATIENCE)])
    member.consumer.close()
    producer.begin_transaction()
    tell(
        "sent by a member that has left",
        outcome(lambda: producer.send_offsets_to_transaction([place], metadata, PATIENCE)),
    )
    tell("commit then", outcome(lambda: producer.commit_transaction(PATIENCE)))
    tell("abort then", outcome(lambda: producer.abort_transaction(PATIENCE)))
