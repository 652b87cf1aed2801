"""What `KafkaLoad.java` does, by librdkafka: `write|read SERVERS TOPIC NAME ACKS PARTITIONS`, the same lines."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import confluent_kafka as ck

BURST, IN_FLIGHT = 10, 2_000
PATIENCE_MS = 600_000
"""librdkafka that gives records up raises its epoch, and sends others again (confluentinc/librdkafka#4953)."""

DEBUG = {"debug": asked} if (asked := os.environ.get("INSYNC_CHAOS_DEBUG")) else {}
"""Of consumers: librdkafka's own log, as `cgrp,broker`."""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def write(servers: str, topic: str, name: str, acks: str, partitions: int, is_over: threading.Event) -> None:
    producer = ck.Producer(
        {
            "bootstrap.servers": servers, "acks": acks, "enable.idempotence": acks == "all", "linger.ms": 2,
            "request.timeout.ms": 5_000, "socket.timeout.ms": 6_000,
            "delivery.timeout.ms": PATIENCE_MS,
        }
    )  # fmt: skip
    under_way = 0

    def done(error: Any, message: Any) -> None:
        nonlocal under_way
        under_way -= 1
        if error is not None:
            say("failed", error.name())
            return
        number = int(message.value().rpartition(b":")[2])
        say("ack", message.partition(), message.offset(), number, message.latency() * 1000)

    say("ready")
    sequence = 0
    while not is_over.is_set():
        for _ in range(BURST if under_way < IN_FLIGHT else 0):
            under_way += 1
            value = f"{name}:{sequence}"
            producer.produce(topic, value, partition=sequence % partitions, on_delivery=done)
            sequence += 1
        # The pause of a burst, which callbacks shorten.
        rest = time.monotonic() + 0.01
        while (left := rest - time.monotonic()) > 0:
            producer.poll(left)
        sys.stdout.flush()
    producer.flush(240)
    say("done", sequence)


def read(servers: str, topic: str, partitions: int, is_over: threading.Event) -> None:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers, "group.id": "nobody", "auto.offset.reset": "error",
            "enable.auto.commit": False, "socket.timeout.ms": 6_000, **DEBUG,
        }
    )  # fmt: skip
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(partitions)])
    say("ready")
    while not is_over.is_set():
        for each in consumer.consume(500, 0.2):
            error = each.error()
            if error is None:
                say("saw", each.partition(), each.offset(), each.value().decode())
            elif error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
                say("gone", error.str())
                is_over.set()
            else:
                say("error", error.name())
        sys.stdout.flush()
    consumer.close()
    say("done", 0)


def main() -> None:
    role, servers, topic, name, acks, partitions = sys.argv[1:]
    is_over = threading.Event()

    def wait() -> None:
        while os.read(0, 1):
            pass
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    if role == "write":
        write(servers, topic, name, acks, int(partitions), is_over)
    else:
        read(servers, topic, int(partitions), is_over)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
