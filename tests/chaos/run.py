"""One run: a cluster, its load, a nemesis drawn from a seed, and the verdict."""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import trio

from insync.replication import Admin, ReplicationError
from insync.replication.client import InvalidReplicationFactorError
from tests.devices import CannotMountError, mounted
from tests.plugins.tcp.certificates import Authority

from .faults import FAULTS
from .history import History, Place, Replica, Verdict, judge, slowest
from .load import PARTITIONS, TOPICS, Load, until, until_async
from .members import LAG_MS, PORT, STALL_MS, Member
from .network import OURS, CannotIsolateError, Network, network
from .replica_files import read_node
from .scene import Fault, Scene
from .stores import PostgresqlRunStore, RemoteRunStore, RunStore, SqliteRunStore, ZookeeperRunStore

Transport = Literal["tcp", "tls", "shm"]
StoreKind = Literal["sqlite", "zookeeper", "remote", "postgresql"]
HEAL_SECONDS = 90
_WARM = 2_000
_REPLICAS = 3
_SPARES = 1
"""Nodes that a fault may bring into the cluster."""
_DEVICE_BYTES = 64 << 20


@attrs.frozen(kw_only=True)
class Plan:
    """What a run is asked to be. times: so many faults are injected, however long that takes; 0: for `seconds`."""

    seconds: float
    seed: int
    transport: Transport = "tcp"
    store: StoreKind = "sqlite"
    nodes: int = 3
    times: int = 0
    only: tuple[str, ...] = ()
    defect: str = ""


@attrs.frozen
class Injected:
    """A fault as it went. recovery_s: from its end until every partition had acknowledged something new."""

    name: str
    target: str
    evidence: str
    at_s: float
    lasted_s: float
    recovery_s: float | None
    began: float
    """In seconds of the run's clock, as in the history."""

    @property
    def over(self) -> float:
        """When every partition was written again."""
        return self.began + self.lasted_s + (self.recovery_s or 0.0)


@attrs.frozen
class Report:
    """What is to be told of a run."""

    plan: Plan
    history: History
    verdict: Verdict
    injected: list[Injected]
    problems: list[str]
    more: dict[str, Any] = attrs.Factory(dict)
    """Figures of a kind of run."""

    @property
    def passed(self) -> bool:
        return not (self.verdict.violations or self.verdict.lost or self.verdict.duplicated or self.problems)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def usable(faults: Sequence[Fault], plan: Plan, net: Network | None, store: RunStore) -> list[Fault]:
    """The faults that this run can have."""
    names = [fault.name for fault in faults]
    for name in plan.only:
        if name not in names:
            raise ValueError(f"no fault is called {name!r}; there are {', '.join(names)}")
    return [
        fault
        for fault in faults
        if (not plan.only or fault.name in plan.only)
        and (net is not None or not fault.needs_network)
        and ((net is not None and net.has_netem) or not fault.needs_netem)
        and (store.port or not fault.needs_port)
        and (store.is_file or not fault.needs_file)
    ]


@contextmanager
def small_device(folder: Path) -> Iterator[None]:
    """A file system of its own, small enough to be filled; where none can be mounted, a plain folder."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        with suppress(CannotMountError):
            stack.enter_context(mounted(folder, "tmpfs", _DEVICE_BYTES))
        yield


class Run:
    """Use `carry_out`."""

    faults: Sequence[Fault] = FAULTS
    led: str = TOPICS["all"]
    """The topic whose leaders faults look for."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.random = random.Random(plan.seed)
        self.history = History()
        self.members: list[Member] = []
        self.injected: list[Injected] = []
        self.problems: list[str] = []
        self.spares: list[Member] = []
        self.not_run: list[str] = []
        """Faults for which something is missing here."""
        self.places: list[Place] = [(TOPICS["all"], number) for number in range(PARTITIONS)]

    async def carry_out(self) -> Report:
        """Everything, from the first namespace to the verdict."""
        numbers = tuple(range(1, self.plan.nodes + 1 + _SPARES))
        with ExitStack() as stack:
            net = None
            if self.plan.transport != "shm":
                try:
                    net = stack.enter_context(network(numbers))
                except CannotIsolateError as error:
                    say(f"no cuts: {error}")
            environment = self._environment(net)
            os.environ.update(environment)
            store = self._store(net, environment)
            stack.callback(store.stop)
            for number in numbers:
                stack.enter_context(small_device(self.folder / f"node-{number}" / "device"))
                self.members.append(self._member(number, net, store, environment))
            self.spares = [self.members.pop() for _ in range(_SPARES)]
            try:
                await self._with_nodes(net, store)
            finally:
                for member in (*self.members, *self.spares):
                    if member.alive:
                        member.send(signal.SIGKILL)
                        assert member.process is not None
                        member.process.wait()
            verdict = judge(self.history, self._replicas())
            for error in self.history.failed_all.keys() - {"DeliveryTimeoutError"}:
                self.problems.append(f"{self.history.failed_all[error]} acks=all writes failed with {error}")
        more = {"not_run": self.not_run}
        return Report(self.plan, self.history, verdict, self.injected, self.problems, more)

    # the parts

    def _environment(self, net: Network | None) -> dict[str, str]:
        environment = {"INSYNC_SECRET": secrets.token_hex(16), "INSYNC_CHAOS_DEFECT": self.plan.defect}
        if self.plan.transport == "tls":
            (self.folder / "tls").mkdir()
            self.authority = Authority(self.folder / "tls")
            environment |= self._certificate("client")
        return environment

    def _certificate(self, who: str) -> dict[str, str]:
        files = self.authority.files(f"isr://chaos/{who}")
        names = ("INSYNC_TLS_CERTIFICATE", "INSYNC_TLS_KEY", "INSYNC_TLS_AUTHORITIES")
        return dict(zip(names, (files.certificate, files.key, files.authorities), strict=True))

    def _store(self, net: Network | None, environment: dict[str, str]) -> RunStore:
        address = net.address(OURS) if net is not None else "127.0.0.1"
        if self.plan.store == "zookeeper":
            return ZookeeperRunStore(self.folder, address)
        if self.plan.store == "postgresql":
            return PostgresqlRunStore(address)
        if self.plan.store == "remote":
            return RemoteRunStore(self.folder, address, {**os.environ, **environment})
        return SqliteRunStore(self.folder)

    def _member(
        self, number: int, net: Network | None, store: RunStore, environment: dict[str, str]
    ) -> Member:
        folder = self.folder / f"node-{number}"
        (folder / "disk").mkdir()
        if self.plan.transport == "shm":
            listen = f"shm://{folder}/node.sock"
        else:
            at = f"{net.address(number)}:{PORT}" if net is not None else "127.0.0.1:0"
            listen = f"{self.plan.transport}://{at}"
        own = self._certificate(str(number)) if self.plan.transport == "tls" else {}
        options = (
            *("--store", store.url, "--cluster-id", "chaos", "--session-timeout-ms", str(store.session_ms)),
            *("--set", f"replica_lag_time_max_ms={LAG_MS}", "--set", f"storage_stall_timeout_ms={STALL_MS}"),
            *("--set", "log_maintenance_interval_ms=500"),
        )
        return Member(number, folder, listen, options, {**environment, **own}, net)

    async def _with_nodes(self, net: Network | None, store: RunStore) -> None:
        async with trio.open_nursery() as nursery:
            for member in self.members:
                nursery.start_soon(self._must_start, member)
        servers = [member.endpoint for member in self.members]
        load = Load(servers, self.history)
        async with Admin(servers, request_timeout_ms=20_000) as admin:
            for topic in TOPICS.values():
                if not await until_async(partial(self._made, admin, topic), HEAL_SECONDS):
                    raise RuntimeError(f"topic {topic} could not be created within {HEAL_SECONDS} s")
            faults = usable(self.faults, self.plan, net, store)
            wanted = self.plan.only or [each.name for each in self.faults]
            self.not_run = sorted({*wanted} - {each.name for each in faults})
            if self.not_run:
                say(f"not run, as this machine or this store has no such thing: {', '.join(self.not_run)}")
            scene = Scene(self.members, self.spares, net, store, admin, self.random, self.history, self.led)
            async with self._loaded(load):
                if not await until(lambda: self.history.acknowledged["all"] >= _WARM, HEAL_SECONDS):
                    self.problems.append(f"fewer than {_WARM} records were acknowledged before any fault")
                if faults:
                    await self._torment(scene, faults)
                else:
                    self.problems.append("none of the faults that were asked for can be injected here")
                await self._healed(admin)
            await self._healed(admin)
            await self._level(admin)
        for member in self.members:
            status = await member.end(signal.SIGTERM)
            if status != 0:
                self.problems.append(f"node {member.number} ended with status {status} when asked to stop")

    async def _made(self, admin: Admin, topic: str) -> bool:
        """A node on a machine that is very busy may lose its session just then, and be missing for a moment."""
        try:
            await admin.create_topic(topic, PARTITIONS, _REPLICAS, config={"min_insync_replicas": 2})
        except InvalidReplicationFactorError:
            return False
        return True

    async def _must_start(self, member: Member) -> None:
        if not await member.start():
            raise RuntimeError(f"node {member.number} did not start: {member.errors.read_text()[-2000:]}")

    @asynccontextmanager
    async def _loaded(self, load: Load) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            for name, acks in (("a", "all"), ("b", "all"), ("c", "1"), ("d", "0")):
                await nursery.start(load.write, name, acks)
            for topic in (TOPICS["all"], TOPICS["all"], TOPICS["1"]):
                await nursery.start(load.read, topic)
            yield
            load.stopping = True

    async def _torment(self, scene: Scene, faults: list[Fault]) -> None:
        """One fault after the other, each kind once before any comes again, until it is enough."""
        end = trio.current_time() + self.plan.seconds
        queue: list[Fault] = []
        while not self._is_decided() and (
            len(self.injected) < self.plan.times if self.plan.times else trio.current_time() < end
        ):
            if not queue:
                queue = self.random.sample(faults, len(faults))
            fault = queue.pop()
            if fault.settled:
                await self._healed(scene.admin)
            await self._inject(scene, fault)

    def _is_decided(self) -> bool:
        """Whether the run has failed already: nothing would come of waiting for clients, which may wait for what is
        lost, or for replicas that differ.
        """
        return bool(self.history.violations)

    async def _inject(self, scene: Scene, fault: Fault) -> None:
        began = trio.current_time()
        bite = await fault.inject(scene)
        lasted = trio.current_time() - began
        if not bite.evidence:
            self.problems.append(f"{fault.name} of {bite.target} was not seen to bite")
        if bite.harm:
            self.problems.append(f"{fault.name} of {bite.target} caused: {bite.harm}")
        for member in self.members:
            if not member.alive:
                self.problems.append(
                    f"node {member.number} was not there any more after {fault.name}: {member.last_words()}"
                )
                await member.start()
        recovery = await self._recovery(trio.current_time())
        if recovery is None and not self._is_decided():
            self.problems.append(
                f"after {fault.name} of {bite.target} no acknowledgement for {HEAL_SECONDS} s"
            )
        start = began - self.started if self.injected else 0.0
        if not self.injected:
            self.started = began
        one = Injected(fault.name, bite.target, bite.evidence, round(start, 1), lasted, recovery, began)
        self.injected.append(one)
        effect = one.evidence or "NO EFFECT"
        say(f"{one.at_s:7.1f} s  {one.name}: {one.target}: {effect}; writable {recovery} s after")

    async def _recovery(self, since: float) -> float | None:
        """Seconds after `since` until every partition has acknowledged something written after it."""
        with trio.move_on_after(HEAL_SECONDS):
            while (took := slowest(self.history.last_ack, self.places, since)) is None:
                if self._is_decided():
                    return None
                await trio.sleep(0.01)
            return round(took, 3)
        return None

    async def _healed(self, admin: Admin) -> None:
        """Every partition of every topic has all its replicas in the ISR."""
        missing = "no node described the topics"
        with trio.move_on_after(HEAL_SECONDS):
            while not self._is_decided() and (missing := await self._missing(admin)):
                await trio.sleep(0.05)
            return
        self.problems.append(f"not every replica was in sync again within {HEAL_SECONDS} s: {missing}")

    async def _missing(self, admin: Admin) -> str:
        """The replicas outside the ISR by partition, or why nobody told; empty if every ISR is whole."""
        try:
            topics = await admin.describe_topics(list(TOPICS.values()))
        except ReplicationError as error:
            return f"no node described the topics: {error!r}"
        return ", ".join(
            f"{topic.name}-{part.partition} lacks {sorted(lacking)} (leader {part.leader})"
            for topic in topics
            for part in topic.partitions
            if (lacking := set(part.replicas) - set(part.isr))
        )

    async def _level(self, admin: Admin) -> None:
        """Every replica ends where the others do: to members of the ISR may still be on its way what a leader alone
        has acknowledged, or nobody.
        """
        before: dict[Place, int] = {}
        with trio.move_on_after(HEAL_SECONDS):
            while not self._is_decided() and (not (ends := await self._ends(admin)) or ends != before):
                before = ends
                await trio.sleep(0.05)
            return
        self.problems.append(f"not every replica had the same end within {HEAL_SECONDS} s")

    async def _ends(self, admin: Admin) -> dict[Place, int]:
        """Where all replicas of each partition end; empty if some do not end where the others do."""
        found: dict[Place, list[int]] = {}
        try:
            reports = await admin.describe_replicas(list(TOPICS.values()))
        except ReplicationError:
            return {}
        for replica in (each for report in reports for each in report.replicas):
            found.setdefault((replica.topic, replica.partition), []).append(replica.log_end_offset)
        level = all(len(ends) == _REPLICAS and len(set(ends)) == 1 for ends in found.values())
        return {place: ends[0] for place, ends in found.items()} if level else {}

    def _replicas(self) -> dict[Place, dict[int, Replica]]:
        found: dict[Place, dict[int, Replica]] = {}
        for member in self.members:
            replicas, damaged = read_node(member.log_dirs)
            self.problems += damaged
            for place, replica in replicas.items():
                found.setdefault(place, {})[member.number] = replica
        return found


def timed(plan: Plan, folder: Path, kind: type[Run] = Run) -> tuple[Report, float]:
    """Carry a plan out; the report, and the seconds that it took. kind: by which clients."""
    began = time.monotonic()
    report = trio.run(kind(plan, folder).carry_out)
    return report, time.monotonic() - began
