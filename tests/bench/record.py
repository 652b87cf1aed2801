"""What one record costs: a producer that waits for each acknowledgement (acks=all) of three node processes.

First as it is: time, processor time, and how often a thread gave up its core, by process; in turn with the same
number of messages between processes that do nothing else, see `_peers.record_floor`. Then, in nodes of their own,
with every call of a Python or C function counted: of these, other work on the machine changes little.
"""

from __future__ import annotations

import json
import operator
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
from ._peers.record_floor import LOOPS, Floor, Loop
from .report import Result, at_most, within

NODES = 3
WARM = 200
PATIENCE = 60.0
WHO = ("producer", "leader", "a follower")
ROUNDS = 10
BAR = 0.8
"""Milliseconds of the three servers' processor time for a record."""


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

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.switches + other.switches)


@attrs.frozen
class Measured:
    """`taken`: sorted times of records. `spent`: by process, ours, the leader, the followers, for all records.
    `servers`, `floors`: seconds of three servers for a record, in each round.
    """

    taken: list[float]
    spent: list[Cost]
    servers: list[float]
    floors: dict[Loop, list[float]]


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


async def _measure(count: int, nodes: Sequence[NodeProcess], floors: dict[Loop, Floor]) -> Measured:
    servers = [node.endpoint for node in nodes]
    ordered = _in_turn(nodes, await _leader(servers))
    pids = [os.getpid(), *(node.process.pid for node in ordered)]
    found = Measured([], [Cost(0, 0) for _ in pids], [], {loop: [] for loop in floors})
    async with Producer(servers, linger_ms=0) as producer:
        await producer.prepare("record")
        await _one_by_one(producer, WARM)
        for _ in range(ROUNDS):
            before = _costs(pids)
            found.taken.extend(await _one_by_one(producer, count // ROUNDS))
            spent = _since(before, pids)
            found.spent[:] = map(operator.add, found.spent, spent)
            found.servers.append(sum(cost.seconds for cost in spent[1:]) * ROUNDS / count)
            for loop, floor in floors.items():
                before = _costs(floor.pids)
                floor.one_by_one(count // ROUNDS)
                seconds = sum(cost.seconds for cost in _since(before, floor.pids))
                found.floors[loop].append(seconds * ROUNDS / count)
    found.taken.sort()
    return found


def _costs(pids: Sequence[int]) -> list[Cost]:
    return [Cost.of(pid) for pid in pids]


def _since(before: Sequence[Cost], pids: Sequence[int]) -> list[Cost]:
    return [now.since(then) for now, then in zip(_costs(pids), before, strict=True)]


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
        folder = Path(name)
        floors: dict[Loop, Floor] = {loop: Floor(stack, folder, loop) for loop in LOOPS}
        for floor in floors.values():
            floor.one_by_one(WARM)
        found = trio.run(_measure, count, _start(stack, folder, counted=False), floors)
    taken, spent = found.taken, found.spent
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
    servers = statistics.median(found.servers) * 1000
    results.append(at_most("processor time of a record, the three servers", servers, "ms", BAR))
    for loop, costs in found.floors.items():
        name = f"the same beside bare messages by {loop}"
        results.append(within(name, servers, "ms", statistics.median(costs) * 1000))
    for each, switches in zip(who, _each([cost.switches for cost in spent]), strict=True):
        results.append(Result(name=f"cores given up, {each}", value=round(switches / count, 2), unit=""))
    calls = counts(counted)
    python = [sum(n for name, n in each.items() if not name.startswith("c:")) for each in calls]
    for title, values in (("Python calls", python), ("all calls", [sum(each.values()) for each in calls])):
        for each, value in zip(who, _each(values), strict=True):
            results.append(
                Result(name=f"{title} of a record, {each}", value=round(value / counted, 1), unit="")
            )
    return results
