"""A real Kafka of several brokers, each controller and broker in one, on ports of the loopback interface."""

from __future__ import annotations

import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import attrs

from .kafka import Java, free_port, wait_until_it_serves


@attrs.frozen
class Brokers:
    """`servers`: for clients. `pids`: of the brokers, by their ids from 1 on."""

    servers: str
    pids: tuple[int, ...]


@contextmanager
def brokers(
    java: Java, place: Path, *, count: int = 3, heap: str = "512m", more: str = ""
) -> Iterator[Brokers]:
    """They are gone when the block is left. Replicas, groups and transactions are as `count` brokers allow.

    more: lines for the settings of each.
    """
    place.mkdir(exist_ok=True)
    ports = [free_port() for _ in range(count)]
    controllers = [free_port() for _ in range(count)]
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
    cluster_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
    with ExitStack() as stack:
        running = []
        for number in range(1, count + 1):
            written = _settings(
                number, ports[number - 1], controllers[number - 1], voters, place, min(3, count)
            )
            settings = place / f"server-{number}.properties"
            settings.write_text(written + more)
            java.run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings))
            out = place / f"kafka-{number}.out"
            running.append((stack.enter_context(_process(java, settings, out, heap)), ports[number - 1], out))
        for process, port, out in running:
            wait_until_it_serves(process, port, out)
        servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        yield Brokers(servers, tuple(process.pid for process, _, _ in running))


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
