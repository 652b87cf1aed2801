"""The broker machine, which makes every decision of a node. A driver reports events and carries out the effects.

The production driver is `node`, with trio, threads, files and sockets. The simulator drives the same machine with
model disks and a model network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..partition import events as ev
from ..partition.parts import Parts
from ..types import PartitionId
from .context import Context
from .coordination.coordinating import Coordinating, group_kind
from .coordination.shards import ShardKind, Shards
from .coordination.transacting import Transacting, transaction_kind
from .effects import Effect
from .events import (
    Answered,
    AskFailed,
    AskLogs,
    Cancelled,
    Connected,
    CoordinationArrived,
    DeleteRecordsArrived,
    DialFailed,
    Disconnected,
    Event,
    FetchArrived,
    ForwardArrived,
    IsrsWritten,
    KeysRead,
    LogChecked,
    LogDeleted,
    LogFound,
    OutsideAnswered,
    PeerDisconnected,
    ProduceArrived,
    ReadIndexArrived,
    Report,
    ShardRead,
    ViewRead,
    Warmed,
)
from .fetching.channels import Channels
from .fetching.current_reads import CurrentReads
from .fetching.following import Following
from .fetching.queries import Queries
from .fetching.serving import Serving
from .membership.assignments import Assignments
from .membership.damage import DamagedLogs
from .membership.peers import Peers
from .membership.proposing import Proposing
from .membership.suspicion import Suspicion
from .producing.producing import Producing

TICK = ev.Tick()


class Broker:
    """`step` is the only entry; the driver carries out the returned effects in order."""

    def __init__(self, context: Context, seed: bytes, kinds: Sequence[ShardKind] | None = None) -> None:
        """
        seed: secret random bytes of this process, for ids that must not be guessable.
        kinds: the kinds of state that this node coordinates; None: groups.
        """
        self.context = context
        self.serving = Serving(context, seed)
        self.current_reads = CurrentReads(context, self.serving)
        self.channels = Channels(context)
        self.following = Following(context, self.channels)
        self.assignments = Assignments(context, self.channels, self.serving, self.following)
        self.damaged_logs = DamagedLogs(context, self.assignments)
        self.serving.on_doubt(self.damaged_logs.doubted)
        self.peers = Peers(context, self.channels)
        self.suspicion = Suspicion(context, self.channels, self.following, self.peers)
        self.queries = Queries(context)
        self.producing = Producing(context)
        self.proposing = Proposing(context)
        self.transacting = Transacting(context, self.peers, self.producing)
        timeout = context.settings.offsets_commit_timeout
        found = (
            (
                group_kind(context.settings.groups, timeout),
                transaction_kind(context.settings.transactions, timeout, self.transacting.obey),
            )
            if kinds is None
            else tuple(kinds)
        )
        self.shards = Shards(context, self.serving, self.producing, found)
        self.transacting.host(self.shards)
        self.coordinating = Coordinating(context, self.shards)
        self.coordinating.takes |= self.transacting.takes
        context.parts = Parts(
            emit=context.emit,
            replied=self.producing.replied,
            deletion_replied=self.producing.deletion_replied,
            wake=self._woken,
            want=self.following.want,
            stop=self.following.stop,
            truncate=self.serving.truncate,
            propose=self.proposing.propose,
            read_again=self.assignments.read_again,
            retire=self.assignments.retire,
            add=self.transacting.add,
            admitted=self.transacting.admitted,
        )
        self.goes_on = False
        """Whether the last `settle` has left work that nobody waits for."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            Report: self._report,
            FetchArrived: self.serving.arrived,
            ReadIndexArrived: self.current_reads.arrived,
            ForwardArrived: self.peers.forward,
            AskLogs: self.peers.ask_logs,
            ProduceArrived: self.producing.produce,
            DeleteRecordsArrived: self.producing.delete_records,
            Cancelled: lambda event: self.serving.cancelled(event.request),
            Disconnected: lambda event: self.serving.disconnected(event.connection),
            Warmed: self.serving.warmed,
            ViewRead: self._view_read,
            KeysRead: self.proposing.read,
            IsrsWritten: self.proposing.written,
            CoordinationArrived: self.coordinating.arrived,
            ShardRead: self.shards.read,
            OutsideAnswered: self.transacting.heard,
            LogFound: self._log_found,
            LogDeleted: self.assignments.deleted,
            LogChecked: self.damaged_logs.checked,
            Connected: self.channels.on_connected,
            DialFailed: self.channels.on_dial_failed,
            PeerDisconnected: self.channels.on_disconnected,
            Answered: self.channels.on_answered,
            AskFailed: self.channels.on_ask_failed,
        }
        # Due at once: the driver's first tick provides the clock reading for all later ones.
        context.timers.call_at(0.0, self.tick_replicas)

    @property
    def deadline(self) -> float:
        """The driver's clock reading at which the next `tick` is due; infinity if nothing waits."""
        return self.context.timers.deadline

    def step(self, event: Event, now: float) -> list[Effect]:
        """Handle one event at clock reading `now` (seconds, never decreasing)."""
        context = self.context
        context.now = now
        self._handlers[type(event)](event)
        # Inlined instead of `take_effects`, because this runs several times for each record.
        effects, context.effects = context.effects, []
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Handle the passage of time; the driver calls this at `deadline` or later."""
        context = self.context
        context.now = now
        context.timers.run(now)
        return context.take_effects()

    def settle(self, now: float) -> list[Effect]:
        """Do the work that is done once for all events of a turn.

        The driver calls this at the end of a turn if `context.is_unsettled`, and again if `goes_on`: after it has
        carried out, and sent, what this call has returned.
        """
        context = self.context
        context.now = now
        context.is_unsettled = False
        if self.transacting.left:
            self.transacting.begin()
        if self.transacting.is_due or self.shards.has_work:
            self.transacting.settle()
            self.shards.settle()
            while self.transacting.is_due:
                self.transacting.settle()
                self.shards.settle()
        if self.serving.woken:
            self.serving.settle()
        if self.proposing.is_due:
            self.proposing.settle()
        # Last: the single request to a leader then includes everything that the other parts want from it.
        self.following.settle()
        self.goes_on = bool(self.transacting.left)
        if self.goes_on:
            context.is_unsettled = True
        effects, context.effects = context.effects, []
        return effects

    def _woken(self, partition: PartitionId) -> None:
        self.serving.wake(partition)
        if partition.topic in self.shards.kinds:
            self.shards.wake(partition)

    def _view_read(self, event: ViewRead) -> None:
        self.assignments.read(event)
        self.damaged_logs.look()
        self.shards.view_changed()

    def tick_replicas(self) -> None:
        """Let time pass for every replica with a timer: answer expired requests, remove lagging followers from
        ISRs.

        A timer of the machine calls this every `tick_period`.
        """
        context = self.context
        due = [
            each for each, replica in context.replicas.items() if replica.wants_tick and replica.needs_tick()
        ]
        for partition in due:
            if partition in context.replicas:
                context.step_replica(partition, TICK)
        context.timers.call_at(context.now + context.settings.tick_period, self.tick_replicas)

    def _log_found(self, event: LogFound) -> None:
        self.assignments.found(event)
        self.damaged_logs.found(event)

    def _report(self, report: Report) -> None:
        # Reports of a log come from threads: one may arrive after its replica was retired.
        if report.partition in self.context.replicas:
            self.context.step_replica(report.partition, report.event)
