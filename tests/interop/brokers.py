"""A real Kafka of several brokers, each controller and broker in one, on ports of the loopback interface."""

from __future__ import annotations

import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import attrs

from .kafka import Java, free_port, wait_until_it_serves


@attrs.frozen
class Brokers:
    """`servers`: for clients. `pids`: of the brokers, by their ids from 1 on. `logins`: for clients that log in."""

    servers: str
    pids: tuple[int, ...]
    logins: str


@contextmanager
def brokers(
    java: Java,
    place: Path,
    *,
    count: int = 3,
    heap: str = "512m",
    more: str = "",
    users: Mapping[str, str] = {},
) -> Iterator[Brokers]:
    """They are gone when the block is left. Replicas, groups and transactions are as `count` brokers allow.

    more: lines for the settings of each. users: with their passwords; if there are any, they log in by PLAIN at
    `Brokers.logins`, an authorizer asks for their ACLs, and whoever comes by `Brokers.servers` may do all.
    """
    place.mkdir(exist_ok=True)
    ports = [free_port() for _ in range(count)]
    logins = [free_port() for _ in range(count)] if users else []
    controllers = [free_port() for _ in range(count)]
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
    cluster_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
    with ExitStack() as stack:
        running = []
        for number in range(1, count + 1):
            written = _settings(
                number, ports[number - 1], controllers[number - 1], voters, place, min(3, count)
            )
            if users:
                written += _logins(ports[number - 1], controllers[number - 1], logins[number - 1], users)
            settings = place / f"server-{number}.properties"
            settings.write_text(written + more)
            java.run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings))
            out = place / f"kafka-{number}.out"
            running.append((stack.enter_context(_process(java, settings, out, heap)), ports[number - 1], out))
        for process, port, out in running:
            wait_until_it_serves(process, port, out)
        servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        at = ",".join(f"127.0.0.1:{port}" for port in logins)
        yield Brokers(servers, tuple(process.pid for process, _, _ in running), at)


@contextmanager
def _process(java: Java, settings: Path, said: Path, heap: str) -> Iterator[subprocess.Popen[bytes]]:
    command: Sequence[str] = java.command(f"-Xmx{heap}", "kafka.Kafka", str(settings))
    with said.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _settings(number: int, port: int, controller: int, voters: str, place: Path, replicas: int) -> str:
    return (
        f"process.roles=broker,controller\nnode.id={number}\ncontroller.quorum.voters={voters}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={place}/log-{number}\nmin.insync.replicas={max(1, replicas - 1)}\n"
        f"default.replication.factor={replicas}\noffsets.topic.num.partitions=3\n"
        f"offsets.topic.replication.factor={replicas}\ntransaction.state.log.num.partitions=3\n"
        f"transaction.state.log.replication.factor={replicas}\n"
        f"transaction.state.log.min.isr={max(1, replicas - 1)}\ngroup.initial.rebalance.delay.ms=0\n"
    )


def _logins(port: int, controller: int, login: int, users: Mapping[str, str]) -> str:
    """In the place of the lines about listeners: of lines with one name the last holds."""
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    clients = f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login}"
    return (
        f"listeners={clients},CONTROLLER://127.0.0.1:{controller}\nadvertised.listeners={clients}\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT\n"
        "inter.broker.listener.name=PLAINTEXT\nsasl.enabled.mechanisms=PLAIN\n"
        "listener.name.login.plain.sasl.jaas.config="
        f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "super.users=User:ANONYMOUS\n"
    )
