"""What one record costs: a producer that waits for each acknowledgement (acks=all) of three node processes.

First as it is: time, processor time, and how often a thread gave up its core, by process. Then, in nodes of their
own, with every call of a Python or C function counted: of these, other work on the machine changes little.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import attrs
import trio

from insync.replication import Admin, Producer

from ..processes import NodeProcess
from ._counted import Calls
from .report import Result

NODES = 3
WARM = 200
PATIENCE = 60.0
WHO = ("producer", "leader", "a follower")


@attrs.frozen
class Cost:
    """Of all that a process has done so far: seconds of processor time, and how often a thread gave up its core."""

    seconds: float
    switches: int

    @classmethod
    def of(cls, pid: int) -> Cost:
        """Counted by the system, in nanoseconds; a thread that has ended is not in it."""
        spent = switches = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            spent += int((task / "schedstat").read_text().split()[0])
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    switches += int(line.split()[1])
        return cls(spent / 1e9, switches)

    def since(self, before: Cost) -> Cost:
        return Cost(self.seconds - before.seconds, self.switches - before.switches)


async def _one_by_one(producer: Producer, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        await producer.send_and_wait("record", b"x" * 100)
        taken.append(time.perf_counter() - begun)
    return sorted(taken)


async def _leader(servers: list[str]) -> int:
    async with Admin(servers) as admin:
        await admin.create_topic("record", partitions=1, replication_factor=NODES)
        (described,) = await admin.describe_topics(["record"])
        return described.partitions[0].leader


def _start(stack: ExitStack, folder: Path, *, counted: bool) -> list[NodeProcess]:
    nodes = []
    for node_id in range(1, NODES + 1):
        command = (
            (sys.executable, "-m", "tests.bench._counted", str(folder / f"{node_id}.json")) if counted else ()
        )
        node = NodeProcess.start(node_id, folder, command=command)
        stack.callback(node.kill)
        nodes.append(node)
    return nodes


def _in_turn(nodes: Sequence[NodeProcess], leader: int) -> list[NodeProcess]:
    """The leader first."""
    return sorted(nodes, key=lambda node: node.node_id != leader)


async def _measure(count: int, nodes: Sequence[NodeProcess]) -> tuple[list[float], list[Cost]]:
    """Sorted times of records, and what each of the processes has spent on one: ours, the leader, the followers."""
    servers = [node.endpoint for node in nodes]
    ordered = _in_turn(nodes, await _leader(servers))
    pids = [os.getpid(), *(node.process.pid for node in ordered)]
    async with Producer(servers, linger_ms=0) as producer:
        await producer.prepare("record")
        await _one_by_one(producer, WARM)
        before = [Cost.of(pid) for pid in pids]
        taken = await _one_by_one(producer, count)
        spent = [Cost.of(pid).since(then) for pid, then in zip(pids, before, strict=True)]
    return taken, spent


async def _counted(
    nodes: Sequence[NodeProcess], folder: Path, what: Callable[[], Awaitable[object]]
) -> list[Counter[str]]:
    """Calls of this process and of nodes while something is done."""
    files = [folder / f"{node.node_id}.json" for node in nodes]
    ours = Calls()
    for node in nodes:
        node.process.send_signal(signal.SIGUSR2)
    ours.listen()
    ours.is_counting = True
    await what()
    ours.is_counting = False
    sys.setprofile(None)
    threading.setprofile(None)
    for node in nodes:
        node.process.send_signal(signal.SIGUSR2)
    with trio.fail_after(PATIENCE):
        while not all(file.exists() for file in files):  # noqa: ASYNC110 - other processes write them
            await trio.sleep(0.01)
    found = [Counter(ours.taken()), *(Counter(json.loads(file.read_text())) for file in files)]
    for file in files:
        file.unlink()
    return found


async def _count(count: int, nodes: Sequence[NodeProcess], folder: Path) -> list[Counter[str]]:
    """Calls of each process for `count` records, without those that it makes as time passes."""
    servers = [node.endpoint for node in nodes]
    ordered = _in_turn(nodes, await _leader(servers))
    async with Producer(servers, linger_ms=0) as producer:
        await producer.prepare("record")
        await _one_by_one(producer, WARM)
        begun = time.perf_counter()
        found = await _counted(ordered, folder, partial(_one_by_one, producer, count))
        idle = await _counted(ordered, folder, partial(trio.sleep, time.perf_counter() - begun))
    for calls, of_time in zip(found, idle, strict=True):
        calls.subtract(of_time)
    return found


def counts(count: int) -> list[Counter[str]]:
    """Calls by function for `count` records: of the producer, the leader and the followers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        nodes = _start(stack, Path(name), counted=True)
        return trio.run(_count, count, nodes, Path(name))


def _each(values: Sequence[float]) -> list[float]:
    """Producer, leader, the mean of the followers, and all together."""
    ours, leader, *followers = values
    return [ours, leader, statistics.mean(followers), sum(values)]


def run(*, smoke: bool) -> list[Result]:
    """All rows; some 20 s."""
    count, counted = (50, 20) if smoke else (3000, 500)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        taken, spent = trio.run(_measure, count, _start(stack, Path(name), counted=False))
    results = [
        Result(
            name=f"one record at a time, {what}",
            value=round(taken[int(len(taken) * at)] * 1000, 3),
            unit="ms",
        )
        for what, at in (("p50", 0.5), ("p99", 0.99))
    ]
    who = (*WHO, "all")
    for each, seconds in zip(who, _each([cost.seconds for cost in spent]), strict=True):
        value = round(seconds / count * 1000, 3)
        results.append(Result(name=f"processor time of a record, {each}", value=value, unit="ms"))
    for each, switches in zip(who, _each([cost.switches for cost in spent]), strict=True):
        results.append(Result(name=f"cores given up, {each}", value=round(switches / count, 2), unit=""))
    found = counts(counted)
    python = [sum(n for name, n in each.items() if not name.startswith("c:")) for each in found]
    for title, values in (("Python calls", python), ("all calls", [sum(each.values()) for each in found])):
        for each, value in zip(who, _each(values), strict=True):
            results.append(
                Result(name=f"{title} of a record, {each}", value=round(value / counted, 1), unit="")
            )
    return results
