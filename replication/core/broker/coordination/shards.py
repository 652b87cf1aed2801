"""Coordinators on this node: a shard for each partition of an internal topic that the node leads.

A shard decides; this part is its host. It begins and ends shards with the leadership of their partitions, hands
their batches to the partition's own replica, tells them how far the log is committed and since when all who could
lead have followed, and has their logs read off the event loop.

To keep another kind of state (transactions, say), give `Shards` another `ShardKind`: its topic, its state machine,
the bytes of its records, and what is to become of effects that are its own. `ask` puts a request to the shard of a
partition; `tell` hands it any other event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from struct import error as StructError
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from ...control.view import ClusterView
from ...coordination import shard_effects as sfx
from ...coordination import shard_events as sev
from ...coordination.contact import Contact
from ...coordination.decisions import StateMachine
from ...coordination.shard import Shard, ShardSettings
from ...errors import ErrorCode
from ...partition import events as partition_ev
from ...partition.leader import LeaderRole
from ...types import PartitionId
from .. import effects as fx
from .. import events as ev
from ..ports import BatchTooLarge
from ..producing.payloads import to_meta
from ..timers import NEVER
from .loading import Loading

if TYPE_CHECKING:
    from ..context import Context
    from ..fetching.serving import Serving
    from ..producing.producing import Producing
    from ..timers import Timer

LATE = 0.05
"""Seconds. A tick that comes later than this comes once more so much later: this process stood still, and what has
arrived meanwhile goes first, or members that were alive would be taken for dead."""

LINGER = 0.005
"""Seconds for which what may be written together waits for the write before it to be committed."""
MANY = 500
"""Records that do not wait for more."""
_UNKNOWN = float("-inf")
"""When all who could lead were heard, where nobody has looked."""

Encoded = tuple[bytes, bytes | None]
Decoded = tuple[Any, Any | None]


@attrs.frozen(kw_only=True, eq=False)
class ShardKind:
    """The state in one internal topic, and how it is kept.

    `machine` makes an empty state. `view` takes from the cluster what the state machine reads of it. `encode` and
    `decode` are a record's bytes and back; `decode` gives (None, None) for one that is not understood. `decode`
    runs in another thread. `obey` carries out effects that `Shard` does not have. `shard` makes the shard of a
    leadership.
    """

    topic: str
    machine: Callable[[], StateMachine]
    settings: ShardSettings
    view: Callable[[ClusterView], object]
    encode: Callable[[Any, Any | None], Encoded]
    decode: Callable[[bytes | None, bytes | None], Decoded]
    obey: Callable[[PartitionId, object], None] = lambda partition, effect: None
    shard: Callable[[PartitionId, ShardKind], Shard] = lambda partition, kind: Shard(
        kind.machine, kind.settings
    )


class ShardFacts(NamedTuple):
    """For the operator: one shard of this node."""

    partition: PartitionId
    leader_epoch: int
    active: bool
    open_requests: int
    loaded_records: int
    skipped_records: int
    load_seconds: float


@attrs.define(eq=False, slots=True)
class _Hosted:
    """A shard and the leadership that it stands for. `reading`: of the read that it waits for; others are void."""

    kind: ShardKind
    partition: PartitionId
    role: LeaderRole
    shard: Shard
    began: float
    contact: Contact = attrs.Factory(Contact)
    high_watermark: int = -1
    reading: int = 0
    loaded: int = 0
    load_seconds: float = -1.0
    """How long reading the log took; negative while it goes on."""
    answers: dict[int, Callable[[Any], None]] = attrs.Factory(dict)
    timer: Timer | None = None
    due: float = NEVER
    was_late: bool = False
    gathers_until: float = NEVER
    """When what is gathered goes at the latest; NEVER: nothing is."""
    linger: Timer | None = None
    is_faulty: bool = False
    """Whether a decision of it could not be written down: told once."""


class Shards:
    """All shards of this node. Every entry from outside is a whole step; nothing of it may run within another."""

    def __init__(
        self, context: Context, serving: Serving, producing: Producing, kinds: tuple[ShardKind, ...]
    ) -> None:
        self._context = context
        self._producing = producing
        self._serving = serving
        self.kinds: Mapping[str, ShardKind] = {kind.topic: kind for kind in kinds}
        """By topic."""
        self._idle = {kind.topic: kind.machine() for kind in kinds}
        """For the words in which a request is refused that no shard is there for."""
        self._views: dict[str, object] = {}
        self._hosted: dict[PartitionId, _Hosted] = {}
        self._dirty: dict[PartitionId, None] = {}
        """Partitions whose role or high watermark may have changed."""
        self._proving: dict[PartitionId, None] = {}
        """Shards with replies that wait for followers to show that they follow."""
        self._gathering: dict[PartitionId, None] = {}
        """Shards with decisions that are still to be written."""
        self._loading = Loading(context)
        self._ids = count(1)

    # The face of it

    def is_internal(self, topic: str) -> bool:
        """Whether this node keeps state of its own in a topic, which clients do not write to."""
        return topic in self.kinds

    def ask(
        self,
        partition: PartitionId,
        message: Any,
        deadline: float,
        answered: Callable[[Any], None],
        *,
        coordinator_epoch: int = -1,
    ) -> None:
        """Put a request to the shard of a partition; `answered` is called once, now or by `deadline` (context.now).

        A shard that is not loaded yet is waited for a moment (`loading.PATIENCE`).

        coordinator_epoch: the leader epoch that the sender means, -1 if it does not say.
        """
        if partition in self._dirty:
            self.settle()
        if partition in self._loading:
            self._loading.release(self._is_loading)  # they came first
        put = partial(self._put, partition, message, deadline, answered, coordinator_epoch)
        waits = self._is_loading(partition, coordinator_epoch) and self._loading.wait(
            partition, deadline, put
        )
        if not waits:
            put()

    def _is_loading(self, partition: PartitionId, coordinator_epoch: int = -1) -> bool:
        """Whether this node leads and has to make or read the log first, in the leadership that is meant."""
        hosted = self._hosted.get(partition)
        if hosted is None:
            return self._hint(partition)[0] == self._context.node_id
        return not hosted.shard.active and coordinator_epoch in (-1, hosted.role.epoch)

    def _put(
        self,
        partition: PartitionId,
        message: Any,
        deadline: float,
        answered: Callable[[Any], None],
        coordinator_epoch: int,
    ) -> None:
        hosted = self._hosted.get(partition)
        if hosted is None:
            leader, epoch = self._hint(partition)
            error = ErrorCode.NOT_COORDINATOR
            if leader == self._context.node_id:
                # Its log is being made, or waits for what it was asked before.
                error, leader, epoch = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1
            answered(self._idle[partition.topic].failure(message, error, leader, epoch))
            return
        number = next(self._ids)
        hosted.answers[number] = answered
        machine = hosted.shard.machine
        # What may be written together proves itself when it is committed; should it be refused, `settle` looks.
        shares = machine is not None and machine.may_share(message)
        asked = sev.Ask(
            request_id=number,
            message=message,
            deadline=deadline,
            leader_epoch=coordinator_epoch,
            more=True,
            since=_UNKNOWN if shares else self._since(hosted),
        )
        self._step(hosted, asked)
        if hosted.shard.gathered and partition not in self._gathering:
            hosted.gathers_until = self._context.now + LINGER
            self._gathering[partition] = None
            self._context.is_unsettled = True
        elif hosted.shard.gathered >= MANY:
            self._context.is_unsettled = True

    def current(self, partition: PartitionId) -> StateMachine | None:
        """The state of a partition, if all of it is committed and nobody but this node may lead. None: it has to be
        asked. A question would be answered from the same state, at once.
        """
        hosted = self._hosted.get(partition)
        if hosted is None or partition in self._dirty or not hosted.shard.is_settled:
            return None
        replica = self._context.replicas.get(partition)
        if replica is None or replica.leader is not hosted.role:
            return None
        return hosted.shard.machine if hosted.role.electable() <= {self._context.node_id} else None

    def tell(self, partition: PartitionId, event: Any) -> None:
        """Any other event for a shard; nothing if there is none here (any more)."""
        hosted = self._now_hosted(partition)
        if hosted is not None:
            self._step(hosted, event)

    def marked(self, partition: PartitionId, role: LeaderRole, marker: sev.Marker) -> None:
        """Tell the shard of a leadership of this node about a marker that was appended in it.

        That shard reads the log only up to the start of the leadership, so it learns of the marker here or never.
        The shard of a later leadership reads it in the log.
        """
        hosted = self._now_hosted(partition)
        if hosted is not None and hosted.role is role:
            self._step(hosted, sev.MarkerWritten(marker=marker))

    def _now_hosted(self, partition: PartitionId) -> _Hosted | None:
        """The shard of a partition in its present role, which may have changed within this turn."""
        if partition in self._dirty:
            self._settle_partitions()
        return self._hosted.get(partition)

    def led(self, topic: str) -> list[PartitionId]:
        """The partitions of an internal topic that have a shard here."""
        self.settle()
        return sorted(each for each in self._hosted if each.topic == topic)

    def machine(self, partition: PartitionId) -> StateMachine | None:
        """The state of a partition, to be looked at; None unless it is loaded."""
        hosted = self._hosted.get(partition)
        return hosted.shard.machine if hosted is not None and hosted.shard.active else None

    def facts(self) -> list[ShardFacts]:
        """For the operator."""
        return [
            ShardFacts(
                partition=partition,
                leader_epoch=each.role.epoch,
                active=each.shard.active,
                open_requests=each.shard.open_requests,
                loaded_records=each.loaded,
                skipped_records=each.shard.skipped,
                load_seconds=each.load_seconds,
            )
            for partition, each in self._hosted.items()
        ]

    # What the other parts tell

    def wake(self, partition: PartitionId) -> None:
        """A replica may have another role or another high watermark. Looked at when the turn ends: in a step of
        that replica its effects would come before those that the step has had.
        """
        if partition.topic in self.kinds:
            self._dirty[partition] = None
            self._context.is_unsettled = True

    def view_changed(self) -> None:
        """The cluster has changed."""
        if self._loading:
            self._context.is_unsettled = True  # another node may lead now
        for topic, kind in self.kinds.items():
            if not any(each.topic == topic for each in self._hosted):
                self._views.pop(topic, None)
                continue
            before, view = self._views.get(topic), kind.view(self._context.view)
            if view != before:
                self._views[topic] = view
                for hosted in [each for each in self._hosted.values() if each.kind is kind]:
                    self._step(hosted, sev.ViewChanged(view=view))

    def read(self, event: ev.ShardRead) -> None:
        """Some of a log was read, or could not be."""
        hosted = self._hosted.get(event.partition)
        if hosted is None or hosted.reading != event.reading:
            return  # of an earlier leadership (KAFKA-9307)
        hosted.reading = 0
        epoch = hosted.role.epoch
        if event.entries is None:
            self._step(hosted, sev.LogReadFailed(leader_epoch=epoch))
            return
        hosted.loaded += len(event.entries)
        self._step(
            hosted, sev.LogRead(leader_epoch=epoch, entries=event.entries, next_offset=event.next_offset)
        )

    @property
    def has_work(self) -> bool:
        """Whether `settle` has anything to look at; most turns are of records that concern no coordinator."""
        return bool(self._dirty or self._gathering or self._proving or self._loading)

    def settle(self) -> None:
        """At the end of a turn: what has become of the partitions, and of replies that wait for followers."""
        self._settle_partitions()
        if self._loading:
            self._loading.release(self._is_loading)
        for partition in list(self._gathering):
            self._write_together(partition)
        self._settle_partitions()
        for partition in list(self._proving):
            hosted = self._hosted.get(partition)
            if hosted is None:
                del self._proving[partition]
            else:
                self._step_if_proved(hosted)

    def _settle_partitions(self) -> None:
        while self._dirty:
            dirty, self._dirty = self._dirty, {}
            for partition in dirty:
                self._look_at(partition)

    def _write_together(self, partition: PartitionId) -> None:
        """Write the gathered decisions, unless the write before them is still under way: then more may come."""
        hosted, now = self._hosted.get(partition), self._context.now
        if hosted is not None and hosted.shard.gathered:
            due = now >= hosted.gathers_until or hosted.shard.gathered >= MANY
            if hosted.shard.is_writing and not due:
                if hosted.linger is None:
                    hosted.linger = self._context.timers.call_at(hosted.gathers_until, self._linger_over)
                return
            self._step(hosted, sev.Flush())
        self._gathering.pop(partition, None)
        if hosted is not None:
            hosted.gathers_until = NEVER
            if hosted.linger is not None:
                hosted.linger.cancel()
                hosted.linger = None

    def _linger_over(self) -> None:
        self._context.is_unsettled = True

    def _look_at(self, partition: PartitionId) -> None:
        replica = self._context.replicas.get(partition)
        role = replica.leader if replica is not None else None
        hosted = self._hosted.get(partition)
        if hosted is not None and hosted.role is not role:
            self._end(hosted)
            hosted = None
        if role is None:
            return
        if hosted is None:
            hosted = self._begin(partition, role)
        high_watermark = role.replica.log.high_watermark
        if high_watermark > hosted.high_watermark:
            hosted.high_watermark = high_watermark
            self._step(hosted, sev.Advanced(high_watermark=high_watermark))

    def _begin(self, partition: PartitionId, role: LeaderRole) -> _Hosted:
        kind = self.kinds[partition.topic]
        hosted = _Hosted(kind, partition, role, kind.shard(partition, kind), self._context.now)
        self._hosted[partition] = hosted
        self._serving.on_followed = self._followed
        view = self._views.get(partition.topic)
        if view is None:
            view = self._views[partition.topic] = kind.view(self._context.view)
        self._step(hosted, sev.ViewChanged(view=view))
        led = sev.ShardLed(
            leader_epoch=role.epoch,
            log_start=role.replica.log.log_start_offset,
            epoch_start=role.epoch_start,
        )
        self._step(hosted, led)
        return hosted

    def _end(self, hosted: _Hosted) -> None:
        del self._hosted[hosted.partition]
        if not self._hosted:
            self._serving.on_followed = None
        self._proving.pop(hosted.partition, None)
        self._gathering.pop(hosted.partition, None)
        for timer in (hosted.timer, hosted.linger):
            if timer is not None:
                timer.cancel()
        hosted.timer = hosted.linger = None
        leader, epoch = self._hint(hosted.partition)
        if leader == self._context.node_id:
            leader, epoch = -1, -1  # another leadership of this node begins in a moment
        self._obey(hosted, sev.ShardEnded(leader=leader, leader_epoch=epoch))
        assert not hosted.answers, "every request that waits is answered that the coordinator has moved"

    def _hint(self, partition: PartitionId) -> tuple[int, int]:
        """(leader, leader epoch) as this node knows them."""
        replica, known = self._context.replicas.get(partition), self._context.view.partitions.get(partition)
        if replica is not None and replica.hint()[1] >= 0:
            return replica.hint()
        return (-1, -1) if known is None else (known.record.leader, known.record.leader_epoch)

    # Steps

    def _step(self, hosted: _Hosted, event: sev.Event) -> None:
        self._obey(hosted, event)
        if self._hosted.get(hosted.partition) is not hosted:
            return
        if hosted.load_seconds < 0 and hosted.shard.active:
            self._activated(hosted)
        self._arm(hosted)
        if hosted.shard.awaits_proof:
            self._prove_later(hosted)

    def _obey(self, hosted: _Hosted, event: sev.Event) -> None:
        """One event, and all that follows from it within this turn."""
        context, shard = self._context, hosted.shard
        effects = shard.step(event, context.now, context.wall_ms)
        if not effects:
            return
        queue: deque[object] = deque(effects)
        while queue:
            effect = queue.popleft()
            match effect:
                case sfx.Write():
                    outcome = self._write(hosted, effect)
                    queue.extend(shard.step(outcome, context.now, context.wall_ms))
                case sfx.Answer(request_id=request_id, reply=reply):
                    hosted.answers.pop(request_id)(reply)
                case sfx.ReadLog():
                    hosted.reading = next(self._ids)
                    context.emit(fx.ReadShard(hosted.partition, hosted.reading, effect.start, effect.end))
                case sfx.Noted(group=group, reason=reason, details=details):
                    context.emit(fx.GroupNoted(hosted.partition, group, reason, details))
                case sfx.Resign():
                    # Its log is looked at: one that is damaged is given up, if another replica is sound.
                    context.emit(fx.ShardUnreadable(hosted.partition, effect.leader_epoch))
                case _:
                    hosted.kind.obey(hosted.partition, effect)

    def _write(self, hosted: _Hosted, write: sfx.Write) -> sev.Accepted | sev.Refused:
        """Offer a batch to the partition's own replica, which takes or refuses it within the step."""
        context, partition = self._context, hosted.partition
        refused = partial(sev.Refused, write_id=write.write_id)
        replica = context.replicas.get(partition)
        if replica is None or replica.leader is not hosted.role:
            return refused(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        topic = context.view.topics.get(partition.topic)
        most = topic.config.max_message_bytes if topic is not None else 1 << 20
        try:
            encoded = [hosted.kind.encode(key, value) for key, value in write.entries]
            batches = context.batches.build(encoded, context.wall_ms, write.producer, most)
        except BatchTooLarge:
            return refused(error=ErrorCode.RECORD_TOO_LARGE)
        except (ValueError, TypeError, OverflowError, StructError) as problem:
            # Whatever led to it, the other groups of this partition must not stop being served for it.
            if not hosted.is_faulty:
                hosted.is_faulty = True
                context.emit(fx.ShardFaulty(partition, f"{problem!r} in {write.entries!r:.500}"))
            return refused(error=ErrorCode.UNKNOWN_SERVER_ERROR)
        produce = partition_ev.Produce(
            request_id=-next(self._ids),
            acks=-1,
            batch=to_meta(batches.infos[0]),
            deadline=NEVER,
            handle=batches,
            leader_epoch=hosted.role.epoch,
            origin=partition_ev.Origin.COORDINATOR,
        )
        outcome: list[ErrorCode] = []
        base_offset = self._producing.write(partition, produce, outcome.append)
        if base_offset < 0:
            return refused(error=outcome[0])
        return sev.Accepted(write_id=write.write_id, base_offset=base_offset)

    def _activated(self, hosted: _Hosted) -> None:
        hosted.load_seconds = self._context.now - hosted.began
        if hosted.partition in self._loading:
            self._context.is_unsettled = True
        self._context.emit(
            fx.ShardLoaded(
                hosted.partition, hosted.role.epoch, hosted.loaded, hosted.shard.skipped, hosted.load_seconds
            )
        )

    # Time

    def _arm(self, hosted: _Hosted) -> None:
        due = hosted.shard.deadline
        if due is None:
            return
        if hosted.timer is not None:
            if hosted.due <= due:
                return  # it comes, and looks again
            hosted.timer.cancel()
        hosted.due = due
        hosted.timer = self._context.timers.call_at(due, partial(self._tick, hosted))

    def _tick(self, hosted: _Hosted) -> None:
        hosted.timer = None
        due, now = hosted.shard.deadline, self._context.now
        if due is None or due > now:
            self._arm(hosted)
            return
        if now - due > LATE and not hosted.was_late:
            hosted.was_late = True
            hosted.due = now + LATE
            hosted.timer = self._context.timers.call_at(hosted.due, partial(self._tick, hosted))
            return
        hosted.was_late = False
        self._prove(hosted)
        self._step(hosted, sev.Tick())

    # Who follows

    def _followed(self, node: int, asked_after: float, partitions: Mapping[PartitionId, int]) -> None:
        """A follower has gone on from the answer of `asked_after`; it asks about these, in these leader epochs."""
        for partition, epoch in partitions.items():
            hosted = self._hosted.get(partition)
            if hosted is not None and epoch == hosted.role.epoch:
                hosted.contact.fetched(node, asked_after)
        if self._proving:
            self._context.is_unsettled = True

    def _since(self, hosted: _Hosted) -> float:
        """Since when all who could lead have followed; also by what their open questions show."""
        role, me = hosted.role, self._context.node_id
        electable = role.electable()
        for node in electable:
            if node != me:
                shown = self._serving.followed_since(node, hosted.partition, role.epoch)
                hosted.contact.fetched(node, shown)
        return hosted.contact.since(me, electable, self._context.now)

    def _prove(self, hosted: _Hosted) -> None:
        self._obey(hosted, sev.Contacted(since=self._since(hosted)))

    def _prove_later(self, hosted: _Hosted) -> None:
        """Followers that wait for news are answered now, so that they come again and show that they follow."""
        self._proving[hosted.partition] = None
        for node in hosted.role.electable():
            if node != self._context.node_id:
                self._serving.hurry(node, hosted.partition)

    def _step_if_proved(self, hosted: _Hosted) -> None:
        self._step(hosted, sev.Contacted(since=self._since(hosted)))
        if not hosted.shard.awaits_proof:
            self._proving.pop(hosted.partition, None)
