"""Clients of librdkafka, and what they tell, in the form that is compared."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin as ca

from ..record import PATIENCE, arguments, until

SERVERS, LOGINS, ONLY = arguments()
NOW = time.time_ns() // 1_000_000


def told(error: Any) -> Any:
    """An error by what a program decides by."""
    if error is None:
        return "ok"
    if isinstance(error, ck.KafkaException):
        error = error.args[0]
    if not isinstance(error, ck.KafkaError):
        return type(error).__name__
    flags = {"retriable": error.retriable(), "fatal": error.fatal(), "abort": error.txn_requires_abort()}
    return [error.name(), *(name for name, is_so in flags.items() if is_so)]


def outcome(call: Callable[[], Any], value: Callable[[Any], Any] = lambda result: "ok") -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return value(call())
    except (ck.KafkaException, ValueError, TypeError, RuntimeError) as error:
        return told(error)


def ended(ask: Callable[..., Any], *given: Any, value: Callable[[Any], Any] = lambda result: "ok") -> Any:
    """What an administrator's request for one thing gives, or the error that it ends with."""
    return outcome(lambda: next(iter(ask(*given).values())).result(PATIENCE), value)


def client(**more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": SERVERS, "log_level": 2, **{n.replace("_", "."): v for n, v in more.items()}}


def as_user(name: str, password: str = "secret", **more: Any) -> dict[str, Any]:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": name, "sasl.password": password}
    return {
        **client(**more),
        "bootstrap.servers": LOGINS,
        "security.protocol": "SASL_PLAINTEXT",
        **login,
    }


def make(topic: str, partitions: int = 1, **config: str) -> ca.AdminClient:
    admin = ca.AdminClient(client())
    new = ca.NewTopic(topic, partitions, 3, config={name.replace("_", "."): v for name, v in config.items()})
    admin.create_topics([new])[topic].result(PATIENCE)
    places = [ck.TopicPartition(topic, index) for index in range(partitions)]

    def is_led() -> bool:
        known = admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        return len(known) == partitions and all(each.leader > 0 for each in known.values())

    assert until(is_led)
    # A broker that has just begun to lead refuses look-ups for a moment.
    probe = ck.Consumer(client(group_id="probe"))

    def answers() -> bool:
        with contextlib.suppress(ck.KafkaException):
            return all(probe.get_watermark_offsets(each, timeout=5) == (0, 0) for each in places)
        return False

    assert until(answers)
    probe.close()
    return admin


def write(topic: str, values: Iterable[bytes], partition: int = 0, **more: Any) -> list[Any]:
    """What the deliveries are told, in their order."""
    heard: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        # librdkafka keeps the time at which an attempt ended; the type says whose time a record has.
        heard.append([told(error), message.partition(), message.offset(), message.timestamp()[0]])

    producer = ck.Producer(client(**{"linger_ms": 0, "message_timeout_ms": 60_000, **more}))
    for value in values:
        producer.produce(
            topic, value, b"k", partition, on_delivery=on_delivery, timestamp=NOW, headers=[("h", b"1")]
        )
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0
    return heard


def heard_by(consumer: ck.Consumer, ends: int = 1, patience: float = PATIENCE) -> list[Any]:
    """Records and errors in their order, until so many ends of partitions or one error that is none."""
    seen: list[Any] = []

    def is_over() -> bool:
        message = consumer.poll(0.2)
        if message is None:
            return False
        error = message.error()
        if error is None:
            seen.append(["record", message.partition(), message.offset()])
            return False
        if error.code() == ck.KafkaError._PARTITION_EOF:
            seen.append(["end", message.partition(), message.offset()])
            return sum(each[0] == "end" for each in seen) >= ends
        seen.append(["error", *told(error)])
        return True

    if not until(is_over, patience):
        seen.append(["nothing more"])
    return seen


def records(consumer: ck.Consumer) -> list[Any]:
    """Offsets that have come, and errors that are no ends of partitions."""
    message = consumer.poll(0.2)
    if message is None:
        return []
    error = message.error()
    if error is not None:
        return [] if error.code() == ck.KafkaError._PARTITION_EOF else [told(error)]
    return [message.offset()]


def reader(reset: str = "earliest", **more: Any) -> ck.Consumer:
    usual = {"group_id": "readers", "auto_offset_reset": reset, "enable_partition_eof": True}
    return ck.Consumer(client(**{**usual, "enable_auto_commit": False, **more}))
