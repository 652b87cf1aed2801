"""A topic of very many partitions on three nodes: made, described, written to, idle, restarted, killed, deleted."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import psutil
import trio

from insync.replication import Admin, Producer
from insync.replication.core.messages import TopicInfo

from ..processes import NodeProcess, cluster
from ._processor import seconds_of
from .report import Result, at_least, at_most

TOPIC, OTHER = "many", "other"
PATIENCE = 600.0
LOOK_EVERY = 0.2
LAG_SECONDS, SMOKE_LAG_SECONDS = 10, 2
"""A follower that has not enough of a core to copy one record of each of thousands of partitions within this time
leaves their ISRs, and comes back to them, which is not what is measured here."""


def settings(lag: int) -> tuple[str, ...]:
    """A follower that stands still leaves the ISR long before its node is taken for dead: nobody is elected."""
    return (
        *("--set", f"replica_lag_time_max_ms={1000 * lag}"),
        *("--set", f"session_timeout_ms={1000 * (2 * lag + 10)}"),
        *("--set", "leader_silence_timeout_ms=0"),
    )


@attrs.define
class Gap:
    """The longest time between two acknowledgements of another topic."""

    longest: float = 0.0
    _last: float = attrs.field(factory=time.monotonic)

    async def watch(self, servers: Sequence[str], task_status: trio.TaskStatus[None]) -> None:
        """Write one record after the other until cancelled."""
        async with Producer(servers, linger_ms=0) as producer:
            await (await producer.send(OTHER, b"x" * 100)).wait()
            self._last = time.monotonic()
            task_status.started()
            while True:
                await (await producer.send(OTHER, b"x" * 100)).wait()
                now = time.monotonic()
                self.longest, self._last = max(self.longest, now - self._last), now
                await trio.sleep(0.01)


async def _described(admin: Admin) -> TopicInfo:
    (info,) = await admin.describe_topics([TOPIC])
    return info


async def until_whole(admin: Admin, partitions: int) -> None:
    """Wait until every replica of every partition is in sync."""
    with trio.fail_after(PATIENCE):
        while True:
            info = await _described(admin)
            if len(info.partitions) == partitions and all(len(each.isr) == 3 for each in info.partitions):
                return
            await trio.sleep(LOOK_EVERY)


async def until_open(admin: Admin, partitions: int) -> None:
    """Wait until every replica has its log; a topic is created before that."""
    with trio.fail_after(PATIENCE):
        while True:
            reports = await admin.describe_replicas([TOPIC], timeout_ms=60_000)
            roles = [each.role for report in reports for each in report.replicas]
            if len(roles) == 3 * partitions and "closed" not in roles:
                return
            await trio.sleep(LOOK_EVERY)


async def _write(producer: Producer, partitions: Sequence[int]) -> float:
    """Seconds until each of these partitions has acknowledged one record."""
    start = time.monotonic()
    deliveries = [await producer.send(TOPIC, b"x" * 100, partition=each) for each in partitions]
    with trio.fail_after(PATIENCE):
        for delivery in deliveries:
            await delivery.wait()
    return time.monotonic() - start


@attrs.define
class Figures:
    created: float = 0.0
    whole: float = 0.0
    opened: float = 0.0
    gap: float = 0.0
    described: float = 0.0
    written: float = 0.0


async def create(servers: Sequence[str], partitions: int) -> Figures:
    """Make the topic, and what is measured of it meanwhile and directly after."""
    figures, gap = Figures(), Gap()
    async with Admin(servers, request_timeout_ms=600_000) as admin:
        await admin.create_topic(OTHER, partitions=1, replication_factor=3)
        async with trio.open_nursery() as nursery:
            await nursery.start(gap.watch, servers)
            start = time.monotonic()
            await admin.create_topic(TOPIC, partitions=partitions, replication_factor=3)
            figures.created = time.monotonic() - start
            await until_whole(admin, partitions)
            figures.whole = time.monotonic() - start
            await until_open(admin, partitions)
            figures.opened = time.monotonic() - start
            nursery.cancel_scope.cancel()
        start = time.monotonic()
        await _described(admin)
        figures.described = time.monotonic() - start
    async with Producer(servers, linger_ms=0, delivery_timeout_ms=600_000) as producer:
        await producer.prepare(TOPIC)
        figures.written = await _write(producer, range(partitions))
    figures.gap = gap.longest
    return figures


def _cost(nodes: Sequence[NodeProcess]) -> list[float]:
    return [seconds_of([node.process.pid]) for node in nodes]


def _share(nodes: Sequence[NodeProcess], seconds: float) -> float:
    """Of a core, of the node that uses most, in percent."""
    before, start = _cost(nodes), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - start
    return max(100 * (last - first) / elapsed for first, last in zip(before, _cost(nodes), strict=True))


def _resident(nodes: Sequence[NodeProcess]) -> float:
    return sum(psutil.Process(node.process.pid).memory_info().rss for node in nodes) / len(nodes)


async def _isr_changes(nodes: Sequence[NodeProcess], partitions: int, count: int, lag: int) -> float:
    """Processor time, in milliseconds, that one ISR change costs the node that it costs most.

    A follower stands still while `count` partitions are written to, leaves their ISRs, and comes back to them.
    What the same writes cost without that is taken off.
    """
    stopped, others = nodes[-1], nodes[:-1]
    servers = [node.endpoint for node in others]
    async with (
        Admin(servers) as admin,
        Producer(servers, linger_ms=0, delivery_timeout_ms=600_000) as producer,
    ):
        info = await _described(admin)
        chosen = [each.partition for each in info.partitions if each.leader != stopped.node_id][:count]
        await producer.prepare(TOPIC)

        async def costs(*, stop: bool) -> list[float]:
            start, before = time.monotonic(), _cost(others)
            if stop:
                stopped.process.send_signal(signal.SIGSTOP)
            try:
                took = await _write(producer, chosen)
            finally:
                if stop:
                    stopped.process.send_signal(signal.SIGCONT)
            if stop and took < lag / 2:
                raise RuntimeError(f"acknowledged after {took:.1f} s: the follower cannot have left the ISRs")
            await until_whole(admin, partitions)
            await trio.sleep(max(0.0, lag + 8 - (time.monotonic() - start)))
            return [last - first for first, last in zip(before, _cost(others), strict=True)]

        plain = await costs(stop=False)
        changing = await costs(stop=True)
    more = max(max(0.0, one - other) for one, other in zip(changing, plain, strict=True))
    return 1000 * more / (2 * len(chosen))


@attrs.frozen
class Failure:
    """SIGKILL of a node: seconds until partitions that it led have taken a record.

    writable: the last of every tenth of them, the highest number among these. written: the last of all of them; the
    same writes take `usual` without a failure. processor: of the survivor that used most.
    """

    writable: float
    written: float
    usual: float
    processor: float


async def _killed(nodes: Sequence[NodeProcess]) -> Failure:
    victim, others = nodes[0], nodes[1:]
    servers = [node.endpoint for node in others]
    async with (
        Admin(servers) as admin,
        Producer(servers, linger_ms=0, delivery_timeout_ms=600_000) as producer,
    ):
        info = await _described(admin)
        led = [each.partition for each in info.partitions if each.leader == victim.node_id]
        await producer.prepare(TOPIC)
        await _write(producer, led)
        usual = await _write(producer, led)
        before = _cost(others)
        victim.kill()
        writable = await _write(producer, led[::-10])
        written = writable + await _write(producer, led)
        processor = max(last - first for first, last in zip(before, _cost(others), strict=True))
        return Failure(writable, written, usual, processor)


async def _delete(servers: Sequence[str]) -> float:
    start = time.monotonic()
    async with Admin(servers, request_timeout_ms=600_000) as admin:
        await admin.delete_topic(TOPIC)
        with trio.fail_after(PATIENCE):
            while TOPIC in {each.name for each in await admin.describe_topics()}:  # noqa: ASYNC110 - in other processes
                await trio.sleep(LOOK_EVERY)
    return time.monotonic() - start


def run(*, smoke: bool) -> Sequence[Result]:
    partitions, changes, idle_for = (100, 20, 2.0) if smoke else (10_000, 500, 30.0)
    lag = SMOKE_LAG_SECONDS if smoke else LAG_SECONDS
    options = settings(lag)
    with tempfile.TemporaryDirectory() as name, cluster(Path(name), 3, *options) as nodes:
        servers, empty = [node.endpoint for node in nodes], _resident(nodes)
        figures = trio.run(create, servers, partitions)
        held = (_resident(nodes) - empty) / partitions
        idle = _share(nodes, idle_for)
        change = trio.run(_isr_changes, nodes, partitions, changes, lag)

        async def whole() -> None:
            async with Admin([node.endpoint for node in nodes]) as admin:
                await until_whole(admin, partitions)

        nodes[1].stop()
        start = time.monotonic()
        nodes[1] = NodeProcess.start(nodes[1].node_id, Path(name), *options)
        trio.run(whole)
        restarted, starting = time.monotonic() - start, seconds_of([nodes[1].process.pid])
        failure = trio.run(_killed, nodes)
        deleted = trio.run(_delete, [node.endpoint for node in nodes[1:]])
    return [
        at_most(f"{partitions} partitions created, all logs open", figures.opened, "s", 60),
        Result(name="all in sync, as the store has it", value=round(figures.whole, 3), unit="s"),
        Result(name="the request to create them", value=round(figures.created, 3), unit="s"),
        at_least("partitions made a second on each node", partitions / figures.opened, "/s", 500),
        at_most("longest gap of another topic meanwhile", figures.gap, "s", 0.3),
        Result(name="described", value=round(figures.described, 3), unit="s"),
        Result(name="one record written to each", value=round(figures.written, 3), unit="s"),
        Result(name="memory of a partition on a node", value=round(held / 1024, 1), unit="KiB"),
        at_most("idle, greatest of three nodes", idle, "% core", 15),
        at_most("an ISR change, processor time of a node", change, "ms", 2),
        at_most("a node restarted, all in sync", restarted, "s", 20),
        Result(name="processor time of that node", value=round(starting, 2), unit="s"),
        at_most("SIGKILL to the last partition writable", failure.writable, "s", 3),
        Result(name="until each that was led there has a record", value=round(failure.written, 3), unit="s"),
        Result(name="the same writes without a failure", value=round(failure.usual, 3), unit="s"),
        Result(name="processor time of a survivor for that", value=round(failure.processor, 2), unit="s"),
        Result(name="the topic deleted", value=round(deleted, 3), unit="s"),
    ]
