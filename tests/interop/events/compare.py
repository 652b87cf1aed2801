"""Run the jobs of each client at two clusters, and compare what the clients told their programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from insync.replication import BlockingAdmin

from ...processes import NodeProcess
from ..brokers import brokers
from ..kafka import HERE, Java, free_port
from .allowed import ALLOWED

Events = dict[tuple[str, str, str], Any]
"""By client, job and event."""
USERS = {"reader": "consume", "writer": "produce"}
"""Users, and all that each may do."""
PASSWORD = "secret"
PATIENCE = 1500.0
ABSENT = "no such event"


@attrs.frozen
class Place:
    """A cluster: for those who need no login, and for `USERS`."""

    servers: str
    logins: str


@contextmanager
def nodes(folder: Path, *, env: Mapping[str, str] | None = None) -> Iterator[Place]:
    """Three nodes with both listeners, gone when the block is left. env: beside what is in the environment."""
    folder.mkdir(exist_ok=True)
    servers, logins = ([free_port() for _ in range(3)] for _ in range(2))
    with ExitStack() as stack:
        running = []
        for number, (plain, login) in enumerate(zip(servers, logins, strict=True), 1):
            options = [
                *("--listen", "tcp://127.0.0.1:0", "--listen", f"kafka://127.0.0.1:{plain}"),
                *("--listen", f"kafka://127.0.0.1:{login}?name=login&sasl=PLAIN"),
            ]
            node = NodeProcess.start(number, folder, *options, env=env)
            stack.callback(node.kill)
            running.append(node)
        with BlockingAdmin(running[0].endpoint) as admin:
            for name, operation in USERS.items():
                admin.create_user(name, PASSWORD, allow=[operation])
        yield Place(*(",".join(f"127.0.0.1:{port}" for port in ports) for ports in (servers, logins)))


@contextmanager
def kafka(java: Java, folder: Path) -> Iterator[Place]:
    """Three brokers likewise."""
    with brokers(java, folder, heap="384m", users=dict.fromkeys(USERS, PASSWORD)) as running:
        admin = AdminClient({"bootstrap.servers": running.servers})
        reads = [(ResourceType.TOPIC, AclOperation.READ), (ResourceType.GROUP, AclOperation.READ)]
        writes = [
            (ResourceType.TOPIC, AclOperation.WRITE),
            (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
        ]
        given = [
            AclBinding(
                kind,
                "*",
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for user, rights in (("reader", reads), ("writer", writes))
            for kind, operation in rights
        ]
        for each in admin.create_acls(given).values():
            each.result(60)
        yield Place(running.servers, running.logins)


def programs(java: Java | None) -> dict[str, Sequence[str]]:
    """The command of each client; Java's needs a Kafka."""
    found: dict[str, Sequence[str]] = {
        client: [sys.executable, "-m", f"tests.interop.events.{program}"]
        for client, program in (
            ("librdkafka", "librdkafka"),
            ("kafka-python", "kafka_python"),
            ("aiokafka", "aio"),
        )
    }
    if java is not None:
        found["java"] = java.command(str(HERE / "events" / "Events.java"))
    return found


def settle(place: Place) -> None:
    """Wait for a coordinator of each group that is asked for before it has members.

    A cluster makes the topic of offsets when it is first asked; meanwhile some requests of administrators fail.
    """
    for group in ("nobody", "java-nobody", "kp-nobody", "aio-nobody"):
        consumer = Consumer({"bootstrap.servers": place.servers, "group.id": group})
        for _ in range(60):
            with suppress(KafkaException):
                consumer.committed([TopicPartition("nowhere", 0)], 5)
                break
            time.sleep(0.2)
        consumer.close()


def events(place: Place, commands: Mapping[str, Sequence[str]], job: str = "") -> Events:
    """What each client told its program. job: that one alone."""
    found: Events = {}
    for client, command in commands.items():
        done = subprocess.run(
            [*command, place.servers, place.logins, *([job] if job else [])],
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("INSYNC_EVENTS_STDERR") else subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
        for line in done.stdout.splitlines():
            job_of, event, value = json.loads(line)
            while (client, job_of, event) in found:
                event += ", again"
            found[client, job_of, event] = value
        if done.returncode:
            found[client, "program", "ends with"] = f"status {done.returncode}: {(done.stderr or '')[-1000:]}"
    return found


def compare(ours: Events, theirs: Events) -> tuple[list[str], set[str]]:
    """What differs though nothing allows it, and what is allowed and was met."""
    wrong, met = [], set()
    for key in [*ours, *(theirs.keys() - ours.keys())]:
        here, there = ours.get(key, ABSENT), theirs.get(key, ABSENT)
        if here == there:
            continue
        name = ": ".join(key)
        if name in ALLOWED:
            met.add(name)
        else:
            wrong.append(f"{name}: ours {json.dumps(here)[:600]}, Kafka's {json.dumps(there)[:600]}")
    return wrong, met


def run(java: Java, place: Path) -> tuple[int, list[str]]:
    """How many events were compared, and what is wrong."""
    commands = programs(java)
    with (
        nodes(place / "nodes") as here,
        kafka(java, place / "kafka") as there,
        ThreadPoolExecutor(2 * len(commands)) as pool,
    ):
        for each in (here, there):
            settle(each)
        told = [
            [pool.submit(events, each, {client: command}) for client, command in commands.items()]
            for each in (here, there)
        ]
        ours, theirs = (
            {key: value for each in some for key, value in each.result().items()} for some in told
        )
    wrong, met = compare(ours, theirs)
    gone = [f"{each}: allowed, and not met any more" for each in sorted(ALLOWED.keys() - met)]
    return len(ours), wrong + gone
