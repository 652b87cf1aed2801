"""Your own service under the simulator's faults: a state machine on every node, and clients that use it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Generator
from functools import partial

import attrs

from ..core.errors import ErrorCode
from ..core.messages import ProduceResult, ReadIndexResult
from ..core.types import BatchMeta, PartitionId
from .driver.requests import Sent
from .errors import SimulationError, require
from .minimise import minimise
from .run import Result, Run, Script, outcome_of
from .settings import Settings, Topic
from .world.cluster import Cluster
from .world.node import Host, Node

FEED_EVERY = 0.2
SNAPSHOT_CHANCE = 0.1
ANSWER_TIMEOUT = 4.0


class StateMachine(ABC):
    """Your service's state on each node, built from the committed commands in their order.

    A node that starts makes a new one, and restores the last snapshot that its former process had stored.
    """

    @abstractmethod
    def apply(self, offset: int, value: str) -> None:
        """One committed command; called once for each offset, in order."""

    @abstractmethod
    def snapshot(self) -> object:
        """All of the state, for `restore`; it is compared between nodes, too."""

    @abstractmethod
    def restore(self, snapshot: object) -> None:
        """Become what `snapshot` was taken of."""


@attrs.frozen(kw_only=True)
class Command:
    """A request that a client yields: append `value` and wait for the outcome; `acks` as in a produce request."""

    value: str
    topic: str = "service"
    partition: int = 0
    acks: int = -1


@attrs.frozen(kw_only=True)
class CurrentRead:
    """A request that a client yields to be told, as `offset`, one behind all that was acknowledged before."""

    topic: str = "service"
    partition: int = 0


@attrs.frozen(kw_only=True)
class Outcome:
    """The answer to a client: `ok` (at `offset`), `refused` (certainly not done) or `unknown` (may yet be done)."""

    kind: str
    offset: int = -1
    error: ErrorCode = ErrorCode.NONE


@attrs.frozen(kw_only=True)
class Operation:
    """A command in the history; times in virtual seconds. `outcome` None: it was under way at the end."""

    client: int
    command: Command | CurrentRead
    began: float
    ended: float
    outcome: Outcome | None


@attrs.define(eq=False)
class History:
    """The history that a run leaves for `Service.check`.

    `logs`: the committed values of each partition, by offset. `states`: a snapshot of each node's machine, all
    of them at the end of the log. `unclean`: partitions that had an unclean election: what was
    acknowledged before may be gone, and machines that had applied it are not compared.
    """

    operations: list[Operation] = attrs.Factory(list)
    logs: dict[PartitionId, list[str]] = attrs.Factory(dict)
    states: dict[PartitionId, dict[int, object]] = attrs.Factory(dict)
    unclean: set[PartitionId] = attrs.Factory(set)


Client = Generator[Command | CurrentRead | float, Outcome, None]
"""Yields a `Command` or a `CurrentRead` and is sent its `Outcome`, or yields seconds to wait (and is sent an empty
outcome).
"""


class Service(ABC):
    """Subclass this: a machine, clients, and what must be true of the history in the end."""

    topics: tuple[Topic, ...] = (Topic(name="service"),)
    clients: int = 2

    @abstractmethod
    def machine(self, partition: PartitionId) -> StateMachine:
        """A machine that has seen nothing."""

    @abstractmethod
    def client(self, number: int, dice: random.Random) -> Client:
        """A client as a generator: it yields commands and is sent their outcomes, or yields seconds to wait.

        Its random choices must come from `dice`. It is closed when the faults stop.
        """

    def check(self, history: History) -> None:  # noqa: B027 - a service without a check is a service
        """Raise `Violated` (by `require`) if the history is wrong; equal states have been checked already."""


@attrs.define(eq=False)
class _Fed:
    """One node's machine for one partition, and what outlives its process."""

    machine: StateMachine
    position: int = 0
    process: int = 0
    stored: tuple[int, object] | None = None


class ServiceRun(Run):
    """A run whose clients and machines are the service's."""

    def __init__(
        self, service: Service, seed: int, settings: Settings, script: Script | None, *, keep_trace: bool
    ) -> None:
        super().__init__(seed, settings, script, keep_trace=keep_trace)
        self._service = service
        self._fed: dict[tuple[int, PartitionId], _Fed] = {}
        self.history = History()

    def play(self) -> None:
        super().play()
        cluster = self.cluster
        for partition, facts in cluster.oracle.partitions.items():
            values = [payload.partition("|")[2] for _, payload in facts.committed]
            self.history.logs[partition] = values
            if facts.unclean:
                self.history.unclean.add(partition)
            states = self.history.states[partition] = {}
            for host in cluster.hosts_of(partition):
                if host.replica is None:
                    continue
                self._feed(host)
                states[host.node.id] = self._machine_of(host).machine.snapshot()
            one, *others = states.values()
            require(
                facts.unclean or all(one == other for other in others),
                "SERVICE",
                f"{partition}: nodes differ: {states}",
            )
        self._service.check(self.history)

    def _clients_begin(self) -> None:
        cluster = self.cluster
        if len(cluster.store.topics) < len(self.settings.topics):
            cluster.later(0.5, self._clients_begin)
            return
        for node in cluster.nodes.values():
            for partition in cluster.store.partitions:
                cluster.later(cluster.random.random(), partial(self._keep_feeding, node, partition))
        for number in range(self._service.clients):
            dice = random.Random(f"client {number} {cluster.seed}")
            _ClientRun(cluster, number, self._service.client(number, dice), self.history).go_on(None)

    # Machines

    def _machine_of(self, host: Host) -> _Fed:
        key = host.node.id, host.partition
        fed = self._fed.get(key)
        if fed is None or fed.process != host.node.process:
            stored = fed.stored if fed is not None else None
            fed = _Fed(self._service.machine(host.partition), process=host.node.process, stored=stored)
            if stored is not None:
                fed.position = stored[0]
                fed.machine.restore(stored[1])
            self._fed[key] = fed
        return fed

    def _keep_feeding(self, node: Node, partition: PartitionId) -> None:
        """A node may be given a replica, lose it and be given it again."""
        host = node.hosts.get(partition)
        if host is not None and node.up and not node.paused and host.replica is not None:
            self._feed(host)
            fed = self._machine_of(host)
            if self.cluster.chance(SNAPSHOT_CHANCE):
                fed.stored = fed.position, fed.machine.snapshot()
        self.cluster.later(FEED_EVERY, partial(self._keep_feeding, node, partition))

    def _feed(self, host: Host) -> None:
        if host.replica is None:
            return
        fed = self._machine_of(host)
        for offset in range(fed.position, host.replica.log.high_watermark):
            fed.machine.apply(offset, host.disk.flat[offset][1].partition("|")[2])
            fed.position = offset + 1


class _ClientRun:
    """Drives one client's generator."""

    def __init__(self, cluster: Cluster, number: int, client: Client, history: History) -> None:
        self._cluster = cluster
        self._number = number
        self._client = client
        self._history = history
        self._waiting_for = 0

    def go_on(self, outcome: Outcome | None) -> None:
        cluster = self._cluster
        if cluster.calm:
            self._client.close()
            return
        try:
            admin_request = next(self._client) if outcome is None else self._client.send(outcome)
        except StopIteration:
            return
        if isinstance(admin_request, Command | CurrentRead):
            self._issue(admin_request)
        else:
            cluster.later(admin_request, partial(self.go_on, Outcome(kind="waited")))

    def _issue(self, command: Command | CurrentRead) -> None:
        cluster = self._cluster
        partition = PartitionId(command.topic, command.partition)
        if partition not in cluster.store.partitions:
            raise SimulationError(f"a client writes to {partition}, which is not among the service's topics")
        self._waiting_for = turn = cluster.new_id()
        index = len(self._history.operations)
        self._history.operations.append(
            Operation(
                client=self._number, command=command, began=cluster.now, ended=cluster.now, outcome=None
            )
        )
        late = Outcome(kind="unknown", error=ErrorCode.REQUEST_TIMED_OUT)
        cluster.later(ANSWER_TIMEOUT, lambda: self._answered(turn, index, late))
        if isinstance(command, CurrentRead):
            self._read(partition, turn, index)
            return
        payload = f"{turn}|{command.value}"
        sent = Sent(partition, payload, command.acks, BatchMeta(-1, 1, -1, 100), False)
        sent.done = lambda reply: self._answered(turn, index, _outcome(reply))
        if not cluster.requests.send([sent]):
            refused = Outcome(kind="refused", error=ErrorCode.LEADER_NOT_AVAILABLE)
            cluster.later(0.2, lambda: self._answered(turn, index, refused))

    def _read(self, partition: PartitionId, turn: int, index: int) -> None:
        """Of any node that believes to lead; it may be one that leads no more."""
        hosts = self._cluster.leaders_of(partition)

        def told(result: ReadIndexResult | None) -> None:
            if result is not None and result.error == ErrorCode.NONE:
                self._answered(turn, index, Outcome(kind="ok", offset=result.offset))

        if hosts:
            dice = self._cluster.current_reads.dice
            self._cluster.current_reads.ask(hosts[int(dice.random() * len(hosts))], told)

    def _answered(self, turn: int, index: int, outcome: Outcome) -> None:
        if self._waiting_for != turn:
            return
        self._waiting_for = 0
        operations = self._history.operations
        operations[index] = attrs.evolve(operations[index], ended=self._cluster.now, outcome=outcome)
        self.go_on(outcome)


def _outcome(reply: ProduceResult) -> Outcome:
    if reply.error == ErrorCode.NONE:
        return Outcome(kind="ok", offset=reply.base_offset)
    error = ErrorCode(reply.error)
    return Outcome(kind="refused" if error.definite else "unknown", error=error)


@attrs.frozen(kw_only=True)
class ServiceResult:
    """The run, and the service's history as far as it came."""

    result: Result
    history: History


def run_service(
    service: Service,
    seed: int,
    settings: Settings | None = None,
    script: Script | None = None,
    *,
    keep_trace: bool = False,
) -> ServiceResult:
    """Run one seed of a service, by default under the faults that the swarm draws for it.

    A broken invariant is in `result.violation`: the cluster's (a bug of insync), `SERVICE` (machines that
    differ), or what `Service.check` requires. An exception of the service's own code is one, too.
    """
    chosen = settings if settings is not None else Settings.swarm(seed, service.topics)
    one = ServiceRun(service, seed, chosen, script, keep_trace=keep_trace)
    return ServiceResult(result=outcome_of(one), history=one.history)


def minimise_service(service: Service, found: Result, *, attempts: int = 400) -> Result:
    """The shortest run that breaks the same invariant; see `minimise`."""

    def play(seed: int, settings: Settings, script: Script, keep_trace: bool) -> Result:
        return run_service(service, seed, settings, script, keep_trace=keep_trace).result

    return minimise(found, attempts=attempts, play=play)
