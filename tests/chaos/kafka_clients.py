"""The faults of `run`, under Kafka's own clients: kafka-clients (Java) and librdkafka (C) write and read.

Each client is a process of its own, which says what it sees, a line at a time; the history and the verdict are
those of every run.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import attrs
import trio

from ..interop.kafka import Java, free_port, resolve
from .history import Acks, History, Place
from .load import PARTITIONS, TOPICS, Load
from .members import Member
from .network import Network
from .run import Plan, Run
from .stores import RunStore

HERE = Path(__file__).parent
_POM = HERE.parent / "plugins" / "kafka" / "pom.xml"
_PORT = 9092
_READY_SECONDS = 120
_END_SECONDS = 300
_GIVEN_UP_SECONDS = 20
"""For clients of a run that has failed: a record that was lost holds its producer up for `delivery.timeout.ms`."""
_TIMEOUTS = ("TimeoutException", "_MSG_TIMED_OUT")
"""What Java and librdkafka call it when a record's `delivery.timeout.ms` is over."""
PROGRAMS: tuple[tuple[str, str, Acks], ...] = (
    ("java", "write", "all"), ("librdkafka", "write", "all"), ("java", "write", "1"), ("librdkafka", "write", "0"),
    ("java", "read", "all"), ("librdkafka", "read", "all"), ("librdkafka", "read", "1"),
)  # fmt: skip
"""Kind of client, what it does, and by which acknowledgement its topic is written."""


@attrs.define
class Told:
    """What one client says, into the history. `name`: of its records, if it writes."""

    name: str
    acks: Acks
    history: History
    is_ready: bool = False
    is_done: bool = False
    expected: dict[Place, int] = attrs.field(factory=dict)

    def hear(self, line: str, now: float) -> None:
        """One line.

        Raises:
          ValueError: It is none of those that there are.
        """
        kind, _, rest = line.partition(" ")
        topic, history = TOPICS[self.acks], self.history
        match kind:
            case "ready":
                self.is_ready = True
            case "done":
                self.is_done = True
                history.sent[self.acks] += int(rest)
            case "ack":
                partition, offset, sequence, took = rest.split()
                history.acknowledged[self.acks] += 1
                if self.acks == "all":
                    value = f"{self.name}:{sequence}".encode()
                    history.ack((topic, int(partition)), int(offset), value, now, float(took) / 1000)
            case "failed":
                error = "DeliveryTimeoutError" if rest in _TIMEOUTS else rest
                history.failed[error] += 1
                if self.acks == "all":
                    history.failed_all[error] += 1
            case "saw":
                partition, offset, text = rest.split()
                place = topic, int(partition)
                history.see(place, int(offset), text.encode(), self.expected.get(place, 0))
                self.expected[place] = int(offset) + 1
            case "error":
                history.failed[rest] += 1
            case "gone":
                history.lost_position((topic, -1), rest)
            case _:
                raise ValueError(f"{self.name} says {line!r}")


class KafkaRun(Run):
    """Nodes, network, store and faults are those of other runs; every node has a listener for Kafka's clients."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self.servers: list[str] = []
        self._gone: list[str] = []
        """Clients that ended before they were asked to."""
        self._is_ending = False
        self.java = Java(resolve(_POM, online=True)).command(str(HERE / "KafkaLoad.java"))

    def _member(
        self, number: int, net: Network | None, store: RunStore, environment: dict[str, str]
    ) -> Member:
        member = super()._member(number, net, store, environment)
        at = f"{net.address(number)}:{_PORT}" if net is not None else f"127.0.0.1:{free_port()}"
        self.servers.append(at)
        # The nodes' addresses are reached from this machine alone.
        member.options = (*member.options, "--listen", f"kafka://{at}", "--allow-insecure")
        return member

    @asynccontextmanager
    async def _loaded(self, load: Load) -> AsyncIterator[None]:
        everybody = [
            Told(f"{client}-{number}", acks, self.history)
            for number, (client, _, acks) in enumerate(PROGRAMS)
        ]
        async with trio.open_nursery() as nursery:
            running = [
                await nursery.start(self._attend, client, role, told)
                for told, (client, role, _) in zip(everybody, PROGRAMS, strict=True)
            ]
            yield
            seconds = _GIVEN_UP_SECONDS if self._is_decided() else _END_SECONDS
            self._is_ending = True
            for process in running:
                await process.stdin.aclose()
            with trio.move_on_after(seconds / 2):
                for process in running:
                    await process.wait()
            for told, process in zip(everybody, running, strict=True):
                if process.returncode is None:
                    await self._keep_stacks(told, process.pid)
            nursery.cancel_scope.deadline = trio.current_time() + seconds / 2
        for told in everybody:
            if not told.is_done:
                last = self._said(told)[-500:]
                self.problems.append(f"{told.name} did not end well within {seconds} s: {last}")

    def _is_decided(self) -> bool:
        return super()._is_decided() or bool(self._gone)

    async def _attend(
        self, client: str, role: str, told: Told, *, task_status: trio.TaskStatus[trio.Process]
    ) -> None:
        """One client from its start to its last word."""
        program = self.java if client == "java" else [sys.executable, "-m", "tests.chaos.kafka_load"]
        topic, servers = TOPICS[told.acks], ",".join(self.servers)
        command = [*program, role, servers, topic, told.name, told.acks, str(PARTITIONS)]
        with (self.folder / f"{told.name}.err").open("ab") as errors:
            process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE, stderr=errors)
        try:
            with trio.fail_after(_READY_SECONDS) as scope:
                assert process.stdout is not None
                rest = b""
                async for piece in process.stdout:
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        told.hear(line.decode(), trio.current_time())
                    if told.is_ready and scope.deadline < float("inf"):
                        scope.deadline = float("inf")
                        task_status.started(process)
            if not self._is_ending:
                self._gone.append(told.name)
            if await process.wait():
                self.problems.append(f"{told.name} failed: {self._said(told)[-500:]}")
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()

    async def _keep_stacks(self, told: Told, pid: int) -> None:
        """Where a client stands that does not end; in `NAME.stacks`."""
        in_c = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"]
        command = ["jstack", str(pid)] if told.name.startswith("java") else in_c
        if shutil.which(command[0]) is None:
            return
        with trio.move_on_after(60), (self.folder / f"{told.name}.stacks").open("wb") as stacks:
            await trio.run_process(command, stdout=stacks, stderr=stacks, check=False)

    def _said(self, told: Told) -> str:
        """What a client has said on standard error."""
        return (self.folder / f"{told.name}.err").read_text(errors="replace")
