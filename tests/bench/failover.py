"""Failover at scale: three node processes, many partitions, and the one that leads most of them is lost.

It is killed (SIGKILL), stands still (SIGSTOP), or is cut off from nodes, clients and metadata store. What
counts is the time from then until the last partition has taken an acks=all write again.
"""

from __future__ import annotations

import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from insync.replication import Admin, Producer

from ..chaos.network import OURS, CannotIsolateError, Network, network
from ..chaos.stores import RemoteRunStore
from ..processes import NodeProcess, cluster
from .report import Result, at_most

TOPIC = "bench"
PATIENCE = 60.0
PORT = 9100
SILENT_BAR = 0.4
LOAD_ROUNDS = 24
ROUND_RECORDS = 500


async def _epochs(admin: Admin) -> dict[int, int]:
    (info,) = await admin.describe_topics([TOPIC])
    return {each.partition: each.leader_epoch for each in info.partitions}


async def _whole(admin: Admin, partitions: int, epochs: Mapping[int, int]) -> None:
    """Wait until every replica is in sync and every preferred one leads.

    epochs: What leader epochs have been. Who was cut off tells for a while of how it was before.
    """
    with trio.fail_after(PATIENCE):
        while True:
            (info,) = await admin.describe_topics([TOPIC])
            is_late = any(each.leader_epoch < epochs.get(each.partition, 0) for each in info.partitions)
            in_sync = all(len(each.isr) == 3 for each in info.partitions)
            if in_sync and not is_late and len(info.partitions) == partitions:
                if all(each.leader == each.replicas[0] for each in info.partitions):
                    return
                await admin.elect_leaders()
            await trio.sleep(0.05)


async def _leads_most(admin: Admin) -> tuple[int, int]:
    (info,) = await admin.describe_topics([TOPIC])
    ((node, count),) = Counter(each.leader for each in info.partitions).most_common(1)
    return node, count


async def _write_everywhere(producer: Producer, partitions: int) -> list[float]:
    """Seconds until each partition has acknowledged one record, in rising order."""
    taken: list[float] = []
    start = trio.current_time()

    async def write(partition: int) -> None:
        delivery = await producer.send(TOPIC, b"x" * 100, partition=partition)
        await delivery.wait()
        taken.append(trio.current_time() - start)

    async with trio.open_nursery() as nursery:
        for partition in range(partitions):
            nursery.start_soon(write, partition)
    return sorted(taken)


@attrs.define
class Figures:
    """Of each round: leaderships lost at once, and seconds until half and all of the partitions took a write."""

    lost: list[int] = attrs.Factory(list)
    quiet: list[float] = attrs.Factory(list)
    middle: list[float] = attrs.Factory(list)
    last: list[float] = attrs.Factory(list)
    epochs: dict[int, int] = attrs.Factory(dict)
    """Leader epochs at the end of the last round, by partition."""


Nodes = dict[int, NodeProcess]
Act = Callable[[Nodes, int], None]


async def _round(nodes: Nodes, partitions: int, strike: Act, mend: Act, figures: Figures) -> None:
    servers = [node.endpoint for node in nodes.values()]
    async with Admin(servers) as admin:
        await _whole(admin, partitions, figures.epochs)
        victim, count = await _leads_most(admin)
    others = [node.endpoint for number, node in nodes.items() if number != victim]
    async with Producer(others, linger_ms=0) as producer:
        await producer.prepare(TOPIC)
        before = await _write_everywhere(producer, partitions)
        await trio.to_thread.run_sync(strike, nodes, victim)
        after = await _write_everywhere(producer, partitions)
    async with Admin(others) as admin:
        figures.epochs = await _epochs(admin)
    await trio.to_thread.run_sync(mend, nodes, victim)
    figures.lost.append(count)
    figures.quiet.append(before[-1])
    figures.middle.append(statistics.median(after))
    figures.last.append(after[-1])


async def _create(servers: list[str], partitions: int) -> None:
    async with Admin(servers) as admin:
        await admin.create_topic(TOPIC, partitions=partitions, replication_factor=3)


def _rounds(nodes: Nodes, partitions: int, rounds: int, strike: Act, mend: Act) -> Figures:
    figures = Figures()
    for _ in range(rounds):
        trio.run(_round, nodes, partitions, strike, mend, figures)
    return figures


# Ways to be lost


def _kill(nodes: Nodes, victim: int) -> None:
    nodes[victim].process.kill()


def _start_again(folder: Path, nodes: Nodes, victim: int) -> None:
    nodes[victim].kill()
    nodes[victim] = NodeProcess.start(victim, folder)


def _send(number: signal.Signals, nodes: Nodes, victim: int) -> None:
    nodes[victim].process.send_signal(number)


@contextmanager
def _processes() -> Iterator[tuple[Path, Nodes]]:
    """Three nodes on loopback with SQLite, ended by their ids."""
    with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as started:
        nodes = {node.node_id: node for node in started}
        try:
            yield Path(name), nodes
        finally:
            _end(nodes)


@contextmanager
def _hosts() -> Iterator[tuple[Network, Nodes]]:
    """Three nodes on hosts of their own and a served store beside us.

    Raises:
      CannotIsolateError: There can be no such hosts here.
    """
    environment = {"INSYNC_SECRET": secrets.token_hex(16)}
    os.environ.update(environment)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = stack.enter_context(network((1, 2, 3)))
        store = RemoteRunStore(folder, net.address(OURS), {**os.environ})
        stack.callback(store.stop)
        nodes: Nodes = {}
        stack.callback(_end, nodes)
        for number in net.numbers:
            listen = ("--listen", f"tcp://{net.address(number)}:{PORT}", "--cluster-id", "bench")
            nodes[number] = NodeProcess.start(
                number, folder, *listen, store=store.url, command=net.command(number)
            )
        yield net, nodes


def _end(nodes: Nodes) -> None:
    for node in nodes.values():
        if node.process.poll() is None:
            node.kill()


def _cut_off(net: Network, nodes: Nodes, victim: int) -> None:
    """Nothing leaves it, so nothing that needs an answer works either."""
    for other in (OURS, *(number for number in net.numbers if number != victim)):
        net.cut(victim, other)


def _heal(net: Network, nodes: Nodes, victim: int) -> None:
    net.heal()


def _silent(name: str, figures: Figures) -> list[Result]:
    return [
        at_most(
            f"{name}: last partition writable again, median", statistics.median(figures.last), "s", SILENT_BAR
        ),
        Result(
            name=f"{name}: last partition writable again, worst", value=round(max(figures.last), 3), unit="s"
        ),
    ]


@contextmanager
def _load(processes: int) -> Iterator[None]:
    """So many processes that do nothing but take processor time."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


async def _needless(nodes: Nodes, rounds: int) -> list[int]:
    """Leader epochs that begin in each of several rounds in which nobody is lost, at some 200 records a second."""
    servers = [node.endpoint for node in nodes.values()]
    needless = []
    async with Admin(servers) as admin, Producer(servers, linger_ms=0) as producer:
        await _whole(admin, 100, {})
        for _ in range(rounds):
            before = await _epochs(admin)
            for _ in range(ROUND_RECORDS):
                await producer.send(TOPIC, b"x" * 100)
                await trio.sleep(0.005)
            await producer.flush()
            after = await _epochs(admin)
            needless.append(sum(after[each] - before[each] for each in before))
    return needless


def _under_load(rounds: int) -> list[Result]:
    burners = 2 * (os.cpu_count() or 1)
    with _processes() as (folder, nodes):
        trio.run(_create, [node.endpoint for node in nodes.values()], 100)
        with _load(burners):
            needless = trio.run(_needless, nodes, rounds)
        logs = [(folder / f"node-{number}.err").read_text() for number in nodes]
    silent = sum(log.count("it has not answered") for log in logs)
    return [
        at_most(
            f"needless elections in {rounds} rounds beside {burners} busy processes", sum(needless), "", 0
        ),
        Result(name="nodes taken for silent in them", value=silent, unit=""),
    ]


def run(*, smoke: bool) -> Sequence[Result]:
    partitions, rounds, silent_rounds = (12, 1, 1) if smoke else (100, 10, 5)
    many, many_rounds = (24, 1) if smoke else (500, 3)
    with _processes() as (folder, nodes):
        trio.run(_create, [node.endpoint for node in nodes.values()], many)
        sweep = _rounds(nodes, many, many_rounds, _kill, partial(_start_again, folder))
    with _processes() as (folder, nodes):
        trio.run(_create, [node.endpoint for node in nodes.values()], partitions)
        killed = _rounds(nodes, partitions, rounds, _kill, partial(_start_again, folder))
        stop, go = partial(_send, signal.SIGSTOP), partial(_send, signal.SIGCONT)
        paused = _rounds(nodes, partitions, silent_rounds, stop, go)
    results = [
        at_most("last partition writable again, median", statistics.median(killed.last), "s", 1.0),
        at_most("last partition writable again, worst", max(killed.last), "s", 3.0),
        Result(
            name="half of the partitions again, median",
            value=round(statistics.median(killed.middle), 3),
            unit="s",
        ),
        Result(
            name="all partitions without a failure",
            value=round(statistics.median(killed.quiet), 3),
            unit="s",
        ),
        Result(name="leaderships lost at once", value=statistics.median(killed.lost), unit="partitions"),
        *_silent("SIGSTOP", paused),
        *_under_load(1 if smoke else LOAD_ROUNDS),
        Result(
            name=f"{many} partitions: last one writable again, median",
            value=round(statistics.median(sweep.last), 3),
            unit="s",
        ),
        Result(
            name=f"{many} partitions: without a failure, median",
            value=round(statistics.median(sweep.quiet[1:] or sweep.quiet), 3),
            unit="s",
        ),
    ]
    try:
        with _hosts() as (net, nodes):
            trio.run(_create, [node.endpoint for node in nodes.values()], partitions)
            cut = _rounds(nodes, partitions, silent_rounds, partial(_cut_off, net), partial(_heal, net))
    except CannotIsolateError as error:
        print(f"no leader is cut off: {error}", file=sys.stderr)
    else:
        results += _silent("cut off", cut)
    return results
