"""What clients hear that log in, and may not do everything."""

from __future__ import annotations

from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin as ca

from ..record import PATIENCE, Tell, until
from .clients import as_user, ended, heard_by, make, outcome, told, write


def logins(tell: Tell) -> None:
    for name, password in (("reader", "wrong"), ("nobody", "secret")):
        heard: list[Any] = []

        def on_error(error: Any, heard: list[Any] = heard) -> None:
            heard.append(told(error))

        producer = ck.Producer(as_user(name, password) | {"error_cb": on_error})
        until(lambda producer=producer, heard=heard: producer.poll(0.1) or heard)
        tell(f"{name} with {password}", heard[:1])


def rights(tell: Tell) -> None:
    make("rights")
    write("rights", [b"x"])
    for name in ("writer", "reader"):
        _rights_of(name, lambda event, value, name=name: tell(f"{name} {event}", value))


def _rights_of(name: str, tell: Tell) -> None:
    heard: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        heard.append([told(error), message.offset()])

    producer = ck.Producer(as_user(name, message_timeout_ms=20_000))
    producer.produce("rights", b"x", None, 0, on_delivery)
    producer.flush(PATIENCE)
    tell("writes", heard)
    producer = ck.Producer(as_user(name, message_timeout_ms=20_000, enable_idempotence=True))
    producer.produce("rights", b"x", None, 0)
    tell("writes, idempotent", outcome(lambda: producer.flush(PATIENCE)))
    given = {"group_id": f"of-{name}", "auto_offset_reset": "earliest", "enable_partition_eof": True}
    consumer = ck.Consumer(as_user(name, **given))
    consumer.assign([ck.TopicPartition("rights", 0, 0)])
    seen = heard_by(consumer)
    if "GROUP_AUTHORIZATION_FAILED" in seen[-1]:  # whether the group or the topic is told of first is chance
        seen = heard_by(consumer)
    tell("reads", [each for each in seen if each[0] != "record"])
    consumer.close()
    consumer = ck.Consumer(as_user(name, **given))
    consumer.subscribe(["rights"])
    tell("reads in a group", [each for each in heard_by(consumer) if each[0] != "record"])
    consumer.close()
    admin = ca.AdminClient(as_user(name))
    tell("creates a topic", ended(admin.create_topics, [ca.NewTopic(f"by-{name}", 1, 3)]))
    tell("deletes a topic", ended(admin.delete_topics, ["rights"]))
    topic = ca.ConfigResource(ca.ConfigResource.Type.TOPIC, "rights")
    tell("asks for settings", ended(admin.describe_configs, [topic]))
    tell("asks for a group", ended(admin.describe_consumer_groups, ["of-reader"], value=lambda found: "ok"))
    producer = ck.Producer(as_user(name, transactional_id=f"of-{name}"))
    tell("begins transactions", outcome(lambda: producer.init_transactions(PATIENCE)))
