"""How a node carries out what a replica asks for: log jobs in order, fetches, proposals, answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ...core.broker.effects import (
    Answer,
    AskOutside,
    CheckLog,
    CloseConnection,
    ConfigureLog,
    CoordinatorReply,
    CreateInternalTopic,
    CreateLog,
    DeleteLog,
    Effect,
    Fail,
    GroupNoted,
    IsrSettled,
    LogDamaged,
    LogsGathered,
    ReadKeys,
    ReadShard,
    Refuse,
    Reply,
    SetLogAside,
    ShardFaulty,
    ShardLoaded,
    ShardUnreadable,
    StepBack,
    Warm,
    WriteIsrs,
)
from ...core.broker.events import Event, FetchArrived, IsrsWritten, KeysRead, LogChecked, Report, Warmed
from ...core.broker.timers import NEVER
from ...core.control.controller import ControllerEvent, LogsTold
from ...core.messages import FetchPartition, FetchRequest, FetchResult, ReadIndexResponse
from ...core.partition import effects as fx
from ...core.partition import events as ev
from ...core.store_transaction import Outcome, Seen, Unclear
from ...core.types import CONSUMER, PartitionId
from ..clients.current_reads import CurrentReads
from ..errors import require
from ..faults.traps import ADD, JOIN, Traps
from ..world.disk import LEFT_OUT, WHOLE, Stored
from ..world.network import ModelBatches, Network
from ..world.node import Host, LogJob, Node
from ..world.world import World
from .coordinators import Coordinators
from .fetches import FETCH_WAIT, Fetches, Peer
from .transactions import Transactions

if TYPE_CHECKING:
    from ..oracles.oracle import Oracle
    from ..world.store import Store
    from .requests import Requests

Told = Callable[[FetchResult, tuple[Stored, ...]], None]
LEAST_WAIT = 1e-6
"""Below this a clock reading may fall short of the deadline again, by rounding."""
CLIENTS = "clients"
"""The connection of all consumers."""
CLIENT = Peer(-1, "a client")
ACTIVE = 3
"""How many of the last batches stand in the active segment, which is never compacted."""


@attrs.frozen(eq=False, slots=True)
class Consumption:
    """A consumer's fetch of one partition."""

    host: Host
    offset: int
    told: Told | None


class Hosting(World, ABC):
    """The part of a cluster between its replicas and everything else."""

    nodes: dict[int, Node]
    store: Store
    oracle: Oracle
    requests: Requests
    fetches: Fetches
    current_reads: CurrentReads
    coordinators: Coordinators
    transactions: Transactions
    network: Network
    events: int
    truncations: int
    traps: Traps

    @abstractmethod
    def read_store(self, node: Node) -> None: ...

    @abstractmethod
    def transact(
        self,
        node: Node,
        write: Callable[[], object],
        done: Callable[[object], None],
        slow: float = 0.0,
        late: float = 0.0,
    ) -> None: ...

    @abstractmethod
    def control(self, node: Node, event: ControllerEvent) -> None: ...

    @abstractmethod
    def retire(self, host: Host) -> None: ...

    @abstractmethod
    def give_up_log(self, node: Node, partition: PartitionId) -> None: ...

    @abstractmethod
    def store_step_back(self, node: Node, partition: PartitionId) -> object: ...

    @abstractmethod
    def read_keys(self, keys: tuple[str, ...]) -> Mapping[str, Seen]: ...

    @abstractmethod
    def write_isrs(self, effect: WriteIsrs, session: int) -> Outcome: ...

    def step(self, host: Host, event: ev.Event, asked_in: int | None = None) -> None:
        """One event into one replica; the oracle looks on, then the effects are carried out.

        `asked_in`: the leader epoch of the question that the event answers, where it does not say so itself.
        """
        if host.replica is not None:
            assert host.node.broker is not None
            host.node.broker.context.asked_in = asked_in
            self.tell(host.node, Report(host.partition, event))

    def tell(self, node: Node, event: Event) -> None:
        """One event into the broker of a process, if it has one by now."""
        broker = node.broker
        if broker is not None:
            self.obey(node, broker.step(event, node.clock(self.now)))

    def obey(self, node: Node, effects: list[Effect]) -> None:
        """Carry out what a broker asks for; what is left for the end of the turn comes after what happens now."""
        for effect in effects:
            action = _EFFECTS.get(type(effect))
            if action is not None:
                action(self, node, effect)
            else:
                self.network.obey(node, effect)
        broker = node.broker
        if broker is not None and broker.context.is_unsettled and not node.settling:
            node.settling = True
            self.on(node, 0.0, partial(self._settle, node))

    def _settle(self, node: Node) -> None:
        node.settling = False
        if node.broker is not None:
            effects = node.broker.settle(node.clock(self.now))
            if self.settings.coordinates and not node.broker.context.is_unsettled:
                self.coordinators.settled(node)
            self.obey(node, effects)

    def arm(self, node: Node) -> None:
        """Have the broker ticked when it wants to be, by the clock of its node."""
        broker = node.broker
        if broker is not None and (deadline := broker.context.timers.deadline) < node.armed:
            node.armed = deadline
            wait = (deadline - node.clock(self.now)) / node.clock_rate
            self.on(node, max(wait, LEAST_WAIT), partial(self._due, node, deadline))

    def _due(self, node: Node, deadline: float) -> None:
        if node.armed == deadline:
            node.armed = NEVER
        broker = node.broker
        if broker is not None:
            self.obey(node, broker.tick(node.clock(self.now)))
            self.arm(node)

    # The log

    def _enqueue(self, node: Node, job: LogJob) -> None:
        host = node.hosts[job.partition]
        if isinstance(job, fx.Truncate):
            self.truncations += 1
            if not job.restart:
                self.oracle.truncating(host)
            if self.trace.keep:
                self.note(f"{host.name} cuts {host.disk.end} to {job.offset}")
        host.jobs.append(job)
        self._work(host)

    def _work(self, host: Host) -> None:
        if host.busy_since is not None or not host.jobs:
            return
        host.busy_since = self.now
        mishap = self.weather.job()
        self._do_after(host, host.worker, mishap[1] if mishap and mishap[0] == "slow" else 0.005, mishap)

    def _do_after(self, host: Host, worker: int, delay: float, mishap: tuple[str, float] | None) -> None:
        def do() -> None:
            if host.worker != worker:
                return
            if host.node.stalled_until > self.now:
                self._do_after(host, worker, host.node.stalled_until - self.now, mishap)
            elif mishap is not None and mishap[0] == "fails":
                self.fail_log(host, mishap[1])
            else:
                report = self.carry_out(host, host.jobs.popleft())
                self.oracle.disk_changed(host)
                self.on(host.node, 0.02 * self.random.random(), partial(told, report))

        def told(report: ev.Event) -> None:
            if host.worker == worker:
                host.busy_since = None
                if self._flushes(host):
                    host.disk.flush()
                self.step(host, report)
                self._work(host)

        self.on(host.node, delay, do)

    @staticmethod
    def _flushes(host: Host) -> bool:
        """Whether a replica counts only what its device has, as its node knows the topic."""
        broker = host.node.broker
        topic = broker.context.view.topics.get(host.partition.topic) if broker is not None else None
        return topic is not None and topic.config.flushes

    def carry_out(self, host: Host, job: LogJob) -> ev.Event:
        """Do a job on the disk; what the replica is to be told of it."""
        disk = host.disk
        match job:
            case fx.Append(leader_epoch=None):
                assert isinstance(job.handle, ModelBatches)
                assert job.begins_inside == (job.base_offset < disk.end), "as a node's log would refuse it"
                self.oracle.appending(host, job.handle.stored)
                return ev.Appended(log_end_offset=disk.end)
            case fx.Append():
                assert isinstance(job.handle, ModelBatches)
                (produced,) = job.handle.stored
                stored = tuple(Stored(batch, produced.payload) for batch in job.batches)
                require(job.leader_epoch == job.batches[0].leader_epoch, "S4", job)
                self.oracle.appending(host, stored, leading=job.leader_epoch)
                return ev.Appended(log_end_offset=disk.end)
            case fx.AssignEpoch():
                last = disk.flat[-1][0] if disk.end > disk.start else -1
                require(
                    job.epoch >= last, "S5", "{} begins epoch {} after epoch {}", host.name, job.epoch, last
                )
                disk.assign(job.epoch, job.start_offset)
                return ev.EpochAssigned()
            case fx.Truncate():
                kept = job.restart or job.keep or host.facts.agreed(disk) <= max(job.offset, disk.start)
                require(
                    kept or self.oracle.is_held_by_another(host),
                    "S37",
                    "{} cuts what was committed, and keeps nothing of it: {}",
                    host.name,
                    job,
                )
                if job.restart:
                    disk.restart(job.offset)
                else:
                    disk.truncate(job.offset)
                return disk.truncated()
            case fx.AdvanceLogStart():
                self.advance_start(host, job.offset)
                return ev.LogStartAdvanced(log_start_offset=disk.start)

    def advance_start(self, host: Host, offset: int) -> None:
        """Delete what lies below `offset`, as a client or retention wants it."""
        self.oracle.deleting(host, offset)
        host.disk.advance_start(offset)
        if self.trace.keep:
            self.note(f"{host.name} begins at {host.disk.start}")

    def retain(self, host: Host, offset: int) -> None:
        """Retention on one node: whole batches below `offset` go, and the replica is told."""
        ends = [b.meta.next_offset for b in host.disk.batches if b.meta.next_offset <= offset]
        if not ends or host.replica is None or not self.believes_clock(host.node):
            return
        worker, start = host.worker, ends[-1]
        self.advance_start(host, start)

        def told() -> None:
            if host.worker == worker:
                self.step(host, ev.LogStartRaised(log_start_offset=start))

        self.on(host.node, 0.02 * self.random.random(), told)

    def believes_clock(self, node: Node) -> bool:
        """Whether a node deletes anything by its wall clock now."""
        verdict = node.clocks.judge(node.wall_ahead)
        self.oracle.kept.clock_judged(node, doubted=bool(verdict.difference))
        return not verdict.difference

    def compact(self, host: Host) -> None:
        """Compact a log up to the bound that a node gives: its high watermark, and never the last batches."""
        disk, replica = host.disk, host.replica
        if replica is None or len(disk.batches) <= ACTIVE:
            return
        bound = min(replica.cleaning_bound, disk.flushed, disk.batches[-ACTIVE].meta.base_offset)
        emptied = disk.clean(bound)
        self.oracle.cleaned(host, emptied)

    def fail_log(self, host: Host, seconds: float) -> None:
        """The disk refuses a write; the log is closed, and opened again after a while."""
        host.jobs.clear()
        host.worker, host.busy_since = self.new_id(), None
        self.note(f"the log of {host.name} fails")
        self.step(host, ev.LogFailed(reason="the disk refused a write"))
        worker = host.worker

        def open_again() -> None:
            if host.worker == worker:
                host.disk.trim_epochs()
                if self._flushes(host):
                    host.disk.flush()
                self.step(host, host.disk.opened())

        self.on(host.node, seconds, open_again)

    # Fetch

    def serve(
        self, host: Host, question: FetchPartition, told: Told | None = None, isolation_level: int = 0
    ) -> None:
        """A consumer's fetch arrives; it is answered, or parked until there is news or it has waited enough."""
        if host.replica is None:
            return
        message = FetchRequest(
            replica_id=CONSUMER,
            incarnation=-1,
            max_wait_ms=round(1000 * FETCH_WAIT),
            min_bytes=1,
            max_bytes=question.max_bytes,
            partitions=[question],
            isolation_level=isolation_level,
        )
        request = Consumption(host, question.fetch_offset, told)
        self.tell(host.node, FetchArrived(CLIENTS, request, message, CLIENT))

    def _answer(self, node: Node, effect: Answer) -> None:
        request = effect.request
        if not isinstance(request, Consumption):
            self.fetches.answer(node, effect)
        elif node.hosts.get(request.host.partition) is request.host and effect.response.partitions:
            batches: tuple[Stored, ...] = effect.parts[0] if effect.parts else ()  # type: ignore[assignment]
            spoilt = request.host.disk.damage(batches)
            if spoilt is not None:
                # A client takes what stands before it, and asks again.
                batches = tuple([batch for batch in batches if batch.meta.base_offset < spoilt])
            whole = [batch for batch in batches if batch.state == WHOLE]
            self.oracle.read(request.host, request.offset, whole)
            if effect.response.transactions:
                self.transactions.read(request.host, effect.response.transactions[0], batches)
            if request.told is not None:
                request.told(effect.response.partitions[0], batches)

    def _create(self, node: Node, effect: CreateLog) -> None:
        """Making a log takes a moment, and the replica may be gone before it is there."""
        host = node.hosts[effect.partition]
        worker = host.worker

        def made() -> None:
            if host.worker == worker:
                self.step(host, host.disk.opened())

        self.on(node, 0.02 * self.random.random(), made)

    def _delete(self, node: Node, effect: DeleteLog) -> None:
        """S37: a log is deleted only if the store has said that its topic was deleted, or its replica moved."""
        assert node.broker is not None
        host, view = node.hosts[effect.partition], node.broker.context.view
        versioned, topic_id = view.partitions.get(effect.partition), host.facts.topic_id
        record = versioned.record if versioned is not None else None
        moved = record is not None and record.topic_id == topic_id and node.id not in record.replicas
        require(
            moved or topic_id in view.deleted,
            "S37",
            "{} is deleted without a word of the store",
            host.name,
        )
        node.has_held.discard(effect.partition)
        self.retire(host)

    def _set_aside(self, node: Node, effect: SetLogAside) -> None:
        """An operator may restore the log."""
        self.note(f"node {node.id}: {effect}")
        host = node.hosts[effect.partition]
        node.keep_stray(host)
        self.retire(host)

    def _configure(self, node: Node, effect: ConfigureLog) -> None:
        """A model disk goes by no settings."""

    def _warm(self, node: Node, effect: Warm) -> None:
        assert node.broker is not None
        logs = node.broker.context.logs

        def done() -> None:
            logs.warm(effect.partition, effect.offset)
            self.tell(node, Warmed(effect.partition, effect.offset))

        self.on(node, self.delay(), done)

    def _check_log(self, node: Node, effect: CheckLog) -> None:
        """Reading waits for the device; retention may have deleted meanwhile what was to be looked at."""

        def look() -> None:
            host, damage = node.hosts.get(effect.partition), None
            if host is not None:
                found = host.disk.read(effect.offset, host.disk.end, len(host.disk.batches))
                size, taken = 0, 0
                while taken < len(found) and (not size or size < effect.max_bytes):
                    # What compaction left out takes no bytes.
                    size += found[taken].meta.size_bytes if found[taken].state != LEFT_OUT else 0
                    taken += 1
                damage = host.disk.damage(found[:taken])
            self.tell(node, LogChecked(effect.check, effect.partition, damage))

        self.on(node, self.delay(), look)

    def _log_damaged(self, node: Node, effect: LogDamaged) -> None:
        self.note(f"node {node.id}: {effect}")
        if effect.given_up:
            self.give_up_log(node, effect.partition)

    def _step_back(self, node: Node, effect: StepBack) -> None:
        self.transact(node, partial(self.store_step_back, node, effect.partition), lambda outcome: None)

    def _close(self, node: Node, effect: CloseConnection) -> None:
        self.fetches.close(node, effect)

    def _failed(self, node: Node, effect: Fail | Refuse) -> None:
        """The asker has gone on with another request, or has no business with it."""

    # ISR and produce

    def _read_keys(self, node: Node, effect: ReadKeys) -> None:
        def told(result: object) -> None:
            self.tell(node, KeysRead(result))  # type: ignore[arg-type]

        self.transact(node, partial(self.read_keys, effect.keys), told)

    def _write_isrs(self, node: Node, effect: WriteIsrs) -> None:
        def told(result: object) -> None:
            self.tell(node, IsrsWritten(result if result is not None else Unclear()))  # type: ignore[arg-type]

        joined = any(each.joining for each in effect.proposals)
        slow = self.traps.lateness() if joined else 0.0
        late = self.traps.write_lateness() if joined else 0.0
        self.transact(node, partial(self.write_isrs, effect, node.session), told, slow, late)
        for each in effect.proposals:
            joining = [member for member, _ in each.joining]
            self.traps.spring(JOIN, joining, each.record.id)
            if joining:
                self.traps.spring(ADD, [node.id, *joining], each.record.id)

    def _isr_settled(self, node: Node, effect: IsrSettled) -> None:
        """The oracle looks at what is stored, and not at what is told of it."""

    def _read_record(self, node: Node, effect: fx.ReadRecord) -> None:
        self.read_store(node)

    def _held(self, node: Node, effect: fx.KeepBatch | fx.DropBatch) -> None:
        """A batch holds no memory of a request here."""

    def _logs_gathered(self, node: Node, effect: LogsGathered) -> None:
        if node.controller is not None:
            self.oracle.told(node.writer(node.incarnation), effect.logs)
            self.control(node, LogsTold(logs=effect.logs))

    def _reply(self, node: Node, effect: Reply) -> None:
        if isinstance(effect.response, ReadIndexResponse):
            self.current_reads.replied(effect)
        else:
            self.requests.replied(node, effect)

    def _coordinate(self, node: Node, effect: Effect) -> None:
        self.coordinators.obey(node, effect)

    def _ask_outside(self, node: Node, effect: AskOutside) -> None:
        self.transactions.ask_store(node, effect)

    def _role_changed(self, node: Node, effect: fx.RoleChanged) -> None:
        host = node.hosts[effect.partition]
        if effect.role == "leader":
            self.coordinators.leads(host, effect.leader_epoch)
        if self.trace.keep:
            self.note(f"{host.name} is {effect.role} of epoch {effect.leader_epoch}: {effect.reason}")

    def _cut_refused(self, node: Node, effect: fx.CutRefused) -> None:
        """No leader of a correct protocol lacks what was committed."""
        name = node.hosts[effect.partition].name
        require(False, "S7", f"{name} would have to drop what is committed: {effect}")


_EFFECTS: dict[type, Callable[..., None]] = {
    fx.Append: Hosting._enqueue,
    fx.AssignEpoch: Hosting._enqueue,
    fx.Truncate: Hosting._enqueue,
    fx.AdvanceLogStart: Hosting._enqueue,
    fx.ReadRecord: Hosting._read_record,
    fx.RoleChanged: Hosting._role_changed,
    fx.CutRefused: Hosting._cut_refused,
    fx.KeepBatch: Hosting._held,
    fx.DropBatch: Hosting._held,
    CreateLog: Hosting._create,
    DeleteLog: Hosting._delete,
    SetLogAside: Hosting._set_aside,
    ConfigureLog: Hosting._configure,
    Answer: Hosting._answer,
    Reply: Hosting._reply,
    LogsGathered: Hosting._logs_gathered,
    ReadKeys: Hosting._read_keys,
    WriteIsrs: Hosting._write_isrs,
    IsrSettled: Hosting._isr_settled,
    Fail: Hosting._failed,
    Refuse: Hosting._failed,
    Warm: Hosting._warm,
    CheckLog: Hosting._check_log,
    LogDamaged: Hosting._log_damaged,
    StepBack: Hosting._step_back,
    AskOutside: Hosting._ask_outside,
    CloseConnection: Hosting._close,
    **dict.fromkeys(
        (
            CoordinatorReply,
            ReadShard,
            ShardLoaded,
            ShardUnreadable,
            ShardFaulty,
            GroupNoted,
            CreateInternalTopic,
        ),
        Hosting._coordinate,
    ),
}
