"""Rounds of power cuts: a cluster under load, no power at a random moment, and the nodes start again by themselves.

One machine has all three nodes and the store, on one device; or each of three has a node, a fourth serves the
store, and one of the three is cut. Compared are: what was acknowledged, what the devices held before any node
started, and what is there afterwards.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import trio

from insync.replication import Admin, Consumer, Producer, ReplicationError
from insync.replication.core.control.internal_topics import STANDARD
from tests.processes import NodeProcess

from ..history import History, Place
from ..load import PARTITIONS, Load, until_async
from ..replica_files import surviving_records
from ..run import say
from ..stores import RemoteRunStore
from .machine import Machine, machine

NODES = (1, 2, 3)
_WRITTEN = ("first", "second", "third")
_TRANSACTED = "transacted"
_GROUP = "readers"
_WRITER_PAUSE = 0.05
_START_SECONDS = 60.0
_HEAL_SECONDS = 60.0
_MADE = 5
"""Topics that are there for a while: beyond these the oldest is deleted."""
_PLACE = re.compile(r"(.+)-(\d+)")


@attrs.frozen(kw_only=True)
class PowerPlan:
    """The arguments of the command."""

    rounds: int
    seed: int
    machines: Literal[1, 3] = 1
    durability: Literal["replicated", "flushed"] = "replicated"

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the topics."""
        return {"min_insync_replicas": 2, "durability": self.durability}

    @property
    def loses_nothing(self) -> bool:
        """Whether a device has each acknowledged record after a cut."""
        return self.machines > 1 or self.durability == "flushed"


@attrs.define(kw_only=True)
class Round:
    """The outcome of one cut."""

    cut: str
    refused: list[str] = attrs.field(factory=list)
    """The last words of nodes that did not start."""
    start_s: float = 0.0
    unled: list[str] = attrs.field(factory=list)
    out_of_sync: list[str] = attrs.field(factory=list)
    acknowledged: int = 0
    committed: int = 0
    """Transactions."""
    lost: int = 0
    lost_durable: int = 0
    """Of these, records that a log held before any node started."""
    transactions_lost: int = 0
    offsets_back: int = 0
    topics_lost: int = 0
    topics_back: int = 0
    settings_lost: int = 0
    unread: list[str] = attrs.field(factory=list)
    contradictions: int = 0
    """Offsets acknowledged twice, with different values."""

    def broken(self, plan: PowerPlan) -> list[str]:
        """The promises that do not hold. What no device of a machine had is lost with its power."""
        never = {
            "nodes did not start": len(self.refused),
            "partitions without a leader": len(self.unled),
            "partitions not in sync again": len(self.out_of_sync),
            "topics not read": len(self.unread),
            "records lost that a device had": self.lost_durable,
            "topics lost": self.topics_lost,
            "deleted topics back": self.topics_back,
            "topics with other settings": self.settings_lost,
            "offsets acknowledged twice": self.contradictions,
        }
        if plan.loses_nothing:
            never |= {
                "records lost": self.lost,
                "transactions lost": self.transactions_lost,
                "offsets of groups gone back": self.offsets_back,
            }
        return [f"{count} {what}" for what, count in never.items() if count]


class Cluster:
    """Machines with their nodes, from new devices on; a context manager."""

    def __init__(self, folder: Path, machines: int) -> None:
        folder.mkdir()
        self.folder = folder
        self.nodes: dict[int, NodeProcess] = {}
        self.turn = trio.Lock()
        """Of who starts nodes."""
        self._stack = ExitStack()
        self.store = ""
        names = range(1, machines + 1)
        try:
            self.machines = [
                self._stack.enter_context(machine(folder / f"m{each}", "disk")) for each in names
            ]
            if machines == 1:
                self.store = f"sqlite://{self.machines[0].places[0] / 'meta.db'}"
            else:
                served = RemoteRunStore(folder, "127.0.0.1", dict(os.environ))
                self._stack.callback(served.stop)
                self.store = served.url
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        self._stack.close()
        for node in self.nodes.values():
            node.kill()

    def of(self, number: int) -> Machine:
        """The machine of a node."""
        return self.machines[(number - 1) % len(self.machines)]

    def folder_of(self, number: int) -> Path:
        return self.of(number).places[0] / f"node-{number}"

    @property
    def servers(self) -> list[str]:
        return [node.endpoint for node in self.nodes.values()]

    async def start(self, numbers: list[int]) -> list[str]:
        """Start nodes side by side; the last words of those that do not come to serve."""
        refused: list[str] = []

        async def start(number: int) -> None:
            try:
                await self.start_one(number)
            except RuntimeError as error:
                refused.append((str(error).splitlines() or [f"node {number} ended without a word"])[-1])
            except trio.TooSlowError:
                refused.append(f"node {number} did not serve within {_START_SECONDS:.0f} s")

        async with trio.open_nursery() as nursery:
            for number in numbers:
                nursery.start_soon(start, number)
        return refused

    async def start_one(self, number: int) -> None:
        """Raises RuntimeError with all that it said if it ends instead, and trio.TooSlowError."""
        if (former := self.nodes.pop(number, None)) is not None:
            former.kill()
        starting = partial(
            NodeProcess.start,
            number,
            self.folder,
            *("--session-timeout-ms", "3000"),
            data_dirs=[self.folder_of(number)],
            store=self.store,
            command=self.of(number).command,
        )
        with trio.fail_after(_START_SECONDS):
            self.nodes[number] = await trio.to_thread.run_sync(starting, abandon_on_cancel=True)

    def held(self, numbers: list[int]) -> dict[Place, set[tuple[int, bytes]]]:
        """Offset and value of every record in the logs of these nodes, which do not run."""
        found: dict[Place, set[tuple[int, bytes]]] = {}
        for number in numbers:
            node = self.of(number).inside(self.folder_of(number))
            for path in node.iterdir() if node.exists() else ():
                if path.is_dir() and (named := _PLACE.fullmatch(path.name)):
                    found.setdefault((named[1], int(named[2])), set()).update(surviving_records(path))
        return found


@attrs.define(eq=False)
class Known:
    """The answers that clients of one cluster got."""

    history: History = attrs.field(factory=History)
    topics: list[str] = attrs.field(factory=list)
    """Those that were made and are to be there, the oldest first."""
    deleted: set[str] = attrs.field(factory=set)
    transactions: list[list[bytes]] = attrs.field(factory=list)
    """The values of each that is committed."""
    offsets: dict[Place, int] = attrs.field(factory=dict)
    """The last commit of the group."""
    made: int = 0


class Rounds:
    """Use `carry_out`."""

    def __init__(self, plan: PowerPlan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.random = random.Random(plan.seed)
        self.rounds: list[Round] = []

    async def carry_out(self) -> None:
        """All rounds; a cluster that has broken a promise is replaced by a new one."""
        number = 0
        while len(self.rounds) < self.plan.rounds:
            number += 1
            cluster = Cluster(self.folder / f"cluster-{number}", self.plan.machines)
            try:
                await self._with(cluster)
            finally:
                cluster.close()

    async def _with(self, cluster: Cluster) -> None:
        known = Known()
        if refused := await cluster.start(list(NODES)):
            raise RuntimeError(f"a new cluster does not start: {refused}")
        async with Admin(cluster.servers) as admin:
            await admin.wait_for_nodes(len(NODES))
            for topic in (*_WRITTEN, _TRANSACTED):
                await admin.create_topic(topic, PARTITIONS, len(NODES), config=self.plan.config)
                known.topics.append(topic)
            for topic in STANDARD:
                await admin.create_topic(topic, config={"durability": self.plan.durability})
        while len(self.rounds) < self.plan.rounds:
            one = await self._round(cluster, known)
            self.rounds.append(one)
            broken = one.broken(self.plan)
            what = "; ".join(broken) or "nothing broken"
            say(f"{len(self.rounds)}: {one.cut}: {what}; {one.lost} lost; started in {one.start_s} s")
            for words in one.refused:
                say(f"    {words[-300:]}")
            if broken:
                return

    async def _round(self, cluster: Cluster, known: Known) -> Round:
        victim = self.random.choice(cluster.machines)
        numbers = [number for number in NODES if cluster.of(number) is victim]
        after, synced = self.random.uniform(1, 9), self.random.random() < 0.5
        one = Round(cut=f"nodes {numbers} after {after:.1f} s{', synced before' if synced else ''}")
        history = known.history
        before = history.acknowledged["all"], len(known.transactions)
        held: dict[Place, set[tuple[int, bytes]]] = {}

        async def come_back() -> None:
            async with cluster.turn:
                victim.boot()
                held.update(cluster.held(numbers))
                since = trio.current_time()
                one.refused = await cluster.start(numbers)
                one.start_s = round(trio.current_time() - since, 2)

        async with trio.open_nursery() as nursery:
            load = await self._load(nursery, cluster, known)
            await trio.sleep(after)
            if synced:
                await trio.to_thread.run_sync(victim.sync, victim.places[0])
                await trio.sleep(self.random.uniform(0, 2))
            await trio.to_thread.run_sync(victim.cut)
            if self.plan.machines > 1:
                await come_back()
            load.stopping = True
            if self.plan.machines == 1:
                nursery.cancel_scope.cancel()
        if self.plan.machines == 1:
            await come_back()
        else:
            one.refused += await cluster.start([each for each in NODES if each not in cluster.nodes])
        one.acknowledged = history.acknowledged["all"] - before[0]
        one.committed = len(known.transactions) - before[1]
        if not one.refused:
            await self._compare(cluster, known, held, one)
        one.contradictions = len(history.violations)
        return one

    # the load

    async def _load(self, nursery: trio.Nursery, cluster: Cluster, known: Known) -> Load:
        load = Load(cluster.servers, known.history, pause=_WRITER_PAUSE)
        for topic in _WRITTEN:
            await nursery.start(load.write, f"{topic}-{len(self.rounds)}", "all", topic)
        reading: dict[str, Any] = {
            "group_id": _GROUP,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        admins = partial(Admin, cluster.servers, request_timeout_ms=10_000)
        for make, use in (
            (partial(Producer, cluster.servers, **_TRANSACTIONAL), partial(self._transact, known, load)),
            (partial(Consumer, cluster.servers, **reading), partial(self._commit_offsets, known, load)),
            (admins, partial(self._make_topics, known, load)),
            (admins, partial(self._elect, cluster, load)),
        ):
            nursery.start_soon(_keep, load, make, use)
        return load

    async def _transact(self, known: Known, load: Load, producer: Producer) -> None:
        while not load.stopping:
            number = len(known.transactions)
            values = [b"%d.%d.%d" % (len(self.rounds), number, each) for each in range(PARTITIONS)]
            async with producer.transaction():
                for partition, value in enumerate(values):
                    await producer.send(_TRANSACTED, value, partition=partition)
            known.transactions.append(values)
            await trio.sleep(0.02)

    async def _commit_offsets(self, known: Known, load: Load, consumer: Consumer) -> None:
        consumer.subscribe(list(_WRITTEN))
        while not load.stopping:
            if await consumer.poll(100):
                reached = consumer.positions()
                await consumer.commit(timeout_ms=3_000)
                known.offsets |= {
                    (at.topic, at.partition): offset for at, offset in reached.items() if offset is not None
                }

    async def _make_topics(self, known: Known, load: Load, admin: Admin) -> None:
        while not load.stopping:
            await trio.sleep(self.random.uniform(0, 1))
            known.made += 1
            topic = f"made-{known.made}"
            await admin.create_topic(topic, 1, len(NODES), config=self.plan.config)
            known.topics.append(topic)
            made = [each for each in known.topics if each.startswith("made")]
            if len(made) > _MADE:
                known.topics.remove(made[0])
                await admin.delete_topic(made[0])
                known.deleted.add(made[0])

    async def _elect(self, cluster: Cluster, load: Load, admin: Admin) -> None:
        """Leaders change by preference, and because nodes are killed."""
        while not load.stopping:
            await trio.sleep(self.random.uniform(0, 1))
            if self.random.random() < 0.2:
                async with cluster.turn:
                    # Kills it first. Its machine may be without power by now.
                    with suppress(RuntimeError, trio.TooSlowError):
                        await cluster.start_one(self.random.choice(NODES))
            else:
                place = self.random.choice(_WRITTEN), self.random.randrange(PARTITIONS)
                await admin.reassign_partitions({place: self.random.sample(NODES, len(NODES))})
                await admin.elect_leaders([place])

    # afterwards

    async def _compare(
        self, cluster: Cluster, known: Known, held: dict[Place, set[tuple[int, bytes]]], one: Round
    ) -> None:
        async with Admin(cluster.servers) as admin:

            async def is_well() -> bool:
                await self._look(admin, known, one)
                return not (one.unled or one.out_of_sync)

            await until_async(is_well, _HEAL_SECONDS)
            for topic in known.topics:
                with suppress(ReplicationError):
                    config = await admin.describe_config(topic)
                    one.settings_lost += any(
                        config[name] != value for name, value in self.plan.config.items()
                    )
            with suppress(ReplicationError):
                offsets = await admin.group_offsets(_GROUP)
                kept = {(at.topic, at.partition): offset for at, offset in offsets.items()}
                one.offsets_back = sum(kept.get(at, 0) < offset for at, offset in known.offsets.items())
                known.offsets = dict(kept)
        for topic in {place[0] for place in known.history.acked}:
            found = await self._read(cluster, topic, one)
            for place in [each for each in known.history.acked if each[0] == topic]:
                self._compare_records(known, place, found.get(place, {}), held.get(place, set()), one)
        # This ends the one that was under way.
        with suppress(ReplicationError):
            async with Producer(cluster.servers, **_TRANSACTIONAL):
                pass
        found = await self._read(cluster, _TRANSACTED, one, isolation_level="read_committed")
        values = {value for records in found.values() for value in records.values()}
        there = [each for each in known.transactions if values.issuperset(each)]
        one.transactions_lost = len(known.transactions) - len(there)
        known.transactions = there

    async def _look(self, admin: Admin, known: Known, one: Round) -> None:
        """The faults of this moment."""
        try:
            infos = await admin.describe_topics()
        except ReplicationError as error:
            one.unled = [f"no topic is described: {error!r}"]
            return
        names = {info.name for info in infos}
        one.topics_lost = len(set(known.topics) - names)
        one.topics_back = len(known.deleted & names)
        parts = [(f"{info.name}-{part.partition}", part) for info in infos for part in info.partitions]
        one.unled = [name for name, part in parts if part.leader < 0]
        one.out_of_sync = [name for name, part in parts if set(part.isr) != set(part.replicas)]

    async def _read(
        self, cluster: Cluster, topic: str, one: Round, **options: Any
    ) -> dict[Place, dict[int, bytes]]:
        """Every record of a topic by place and offset."""
        found: dict[Place, dict[int, bytes]] = {}
        try:
            with trio.fail_after(_HEAL_SECONDS):
                async with Consumer(cluster.servers, auto_offset_reset="earliest", **options) as consumer:
                    partitions = await consumer.assign_topic(topic)
                    ends = await consumer.end_offsets(partitions)
                    while any((consumer.position(each) or 0) < ends[each] for each in partitions):
                        for each in await consumer.poll(timeout_ms=200):
                            found.setdefault((each.topic, each.partition), {})[each.offset] = (
                                each.value or b""
                            )
        except (ReplicationError, trio.TooSlowError) as error:
            one.unread.append(f"{topic}: {error!r}")
        return found

    def _compare_records(
        self,
        known: Known,
        place: Place,
        found: dict[int, bytes],
        held: set[tuple[int, bytes]],
        one: Round,
    ) -> None:
        acked = known.history.acked[place]
        lost = {offset: value for offset, value in acked.items() if found.get(offset) != value}
        one.lost += len(lost)
        one.lost_durable += len(held & lost.items())
        for offset in lost:
            del acked[offset]

    # the report

    def summary(self, seconds: float) -> dict[str, Any]:
        """The report as one object."""
        rounds, machines = self.rounds, self.plan.machines
        whole = len(NODES) if machines == 1 else 1
        started = [one for one in rounds if not one.refused]
        broken = Counter(re.sub(r"^\d+ ", "", each) for one in rounds for each in one.broken(self.plan))
        sums = (
            *("acknowledged", "lost", "lost_durable", "committed", "transactions_lost", "offsets_back"),
            *("topics_lost", "topics_back", "settings_lost"),
        )
        return {
            "power": True,
            "seed": self.plan.seed,
            "machines": machines,
            "durability": self.plan.durability,
            "seconds": round(seconds, 1),
            "rounds": len(rounds),
            "started_by_themselves": len(started),
            "some_started": sum(0 < len(one.refused) < whole for one in rounds),
            "all_led": sum(not one.unled for one in started),
            "all_in_sync": sum(not one.out_of_sync for one in started),
            "start_s_max": max((one.start_s for one in started), default=None),
            **{name: sum(getattr(one, name) for one in rounds) for name in sums},
            "rounds_broken": sum(bool(one.broken(self.plan)) for one in rounds),
            "broken": dict(broken),
            "refusals": dict(Counter(_kind(words) for one in rounds for words in one.refused)),
            "passed": self.passed,
        }

    @property
    def passed(self) -> bool:
        return not any(one.broken(self.plan) for one in self.rounds)


_TRANSACTIONAL: dict[str, Any] = {
    "transactional_id": "worker",
    "transaction_timeout_ms": 10_000,
    "max_block_ms": 5_000,
    "request_timeout_ms": 5_000,
    "delivery_timeout_ms": 10_000,
}


async def _keep(load: Load, make: Callable[[], Any], use: Callable[[Any], Awaitable[None]]) -> None:
    """Use a client, and another one whenever something fails, until the load stops."""
    while not load.stopping:
        try:
            async with make() as client:
                await use(client)
        except ReplicationError as error:
            load.history.failed[type(error).__name__] += 1
            await trio.sleep(0.1)


def _kind(words: str) -> str:
    """A refusal without what differs between two of a kind."""
    return re.sub(r"/\S+", "PATH", re.sub(r"\b[0-9a-f]{32}\b|\b\d+\b", "N", words))[:200]


def timed_rounds(plan: PowerPlan, folder: Path) -> tuple[Rounds, float]:
    """Carry out and measure."""
    began, rounds = time.monotonic(), Rounds(plan, folder)
    trio.run(rounds.carry_out)
    return rounds, time.monotonic() - began
