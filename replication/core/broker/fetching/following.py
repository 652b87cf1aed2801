"""The follower's side of a node: one fetch in flight to each leader's node, for all partitions that it leads.

A fetch covers every partition with a question to that leader; in a session it names only those whose question is
new (KIP-227). If another partition gets a question while a fetch is parked at the leader, the follower withdraws
that fetch and the next one names the partition, so that no partition waits behind an idle one. A withdrawn fetch
has to be repeated. A fetch with many changes is therefore not parked: the leader answers it at once and thereby
confirms the changes. Thousands of partitions are named in portions, one fetch after the other.

A peer's answer may be wrong. If its sizes do not add up, the connection is closed, because nothing after it can be
trusted. A damaged batch affects only its partition, which pauses and asks again while all others continue.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ... import messages as m
from ...errors import ErrorCode, code_of
from ...partition import effects as partition_fx
from ...partition import events as partition_ev
from ...types import PartitionId, named
from .. import effects as fx
from ..producing.payloads import Batches, MalformedBatchError, Payload, to_metas
from .channels import Channel, Channels
from .fetch_session import NEW_SESSION, FollowerSession
from .throttle import UNLIMITED, Throttle

if TYPE_CHECKING:
    from ..context import Context
    from ..timers import Timer


SETTLE_TIMEOUT = 0.02
"""Seconds for which a fetch waits for the appends of the previous one, so that it includes their partitions."""

LONGEST_PAUSE = 0.4
"""Upper bound in seconds of a partition's pause, which doubles with each refusal in a row. Without that, a leader
that is creating the logs of thousands of partitions would refuse each of them twenty times a second."""

DOUBT = 0.5
"""Seconds for which a leader that does not answer fetches any more is in doubt: by then it is elected away, or the
connection was a fault that says nothing about it."""

FEW = 10
"""A fetch is parked if it carries less than this fraction (1/n) of the changes that fit into one request."""

HANDED_OVER = 4
"""Factor of the fetch size if files are handed over: the data then uses neither the wire nor the leader's memory,
and
a round trip costs more than reading a further MiB. The bound of one answer stays the same.
"""


class Following:
    """All fetches of a node from the leaders that it follows."""

    def __init__(self, ctx: Context, channels: Channels) -> None:
        self._ctx = ctx
        self._channels = channels
        self.throttle = Throttle(ctx.settings.follower_replication_throttled_rate)
        """Limiter for replicas that a reassignment adds to this node."""
        self.damaged: dict[PartitionId, str] = {}
        """Partitions whose last answer was damaged, with the reason; they ask again until it is not."""
        self.refused: dict[PartitionId, int] = {}
        """Consecutive error answers of the leader, by partition."""
        self._leaders: dict[int, _Leader] = {}
        self._assigned: dict[PartitionId, _Leader] = {}
        self._changed: dict[_Leader, None] = {}
        self._failing: dict[int, float] = {}
        """The time since which fetches from a leader fail."""

    # What replicas ask for

    def want(self, partition: PartitionId, effect: partition_fx.FetchNext) -> None:
        """A replica asks for its next records; after a failure only after its pause."""
        leader, ctx = self._assigned.get(partition) or self._assign(partition, effect.leader), self._ctx
        # No replica may still wait for an answer of the former leader: a role ends with `Parts.stop`.
        assert leader.channel.peer == effect.leader, f"{partition} asks two leaders"
        pause = 0.0
        if effect.delayed:
            pause = ctx.settings.replica_fetch_backoff
            refused = self.refused.get(partition, 0)
            if refused > 1:
                pause = max(pause, min(pause * 2 ** (refused - 1), LONGEST_PAUSE))
        if self.is_throttled(partition):
            pause = max(pause, self.throttle.pause(ctx.now))
        if pause:
            leader.want_later(partition, effect, ctx.now + pause)
        else:
            leader.want(partition, effect)

    def stop(self, partition: PartitionId) -> None:
        """Withdraw the open question of a replica."""
        self.damaged.pop(partition, None)
        self.refused.pop(partition, None)
        leader = self._assigned.pop(partition, None)
        if leader is not None:
            leader.assigned -= 1
            leader.drop(partition)

    # The end of a step

    def changed(self, leader: _Leader) -> None:
        """Note that `settle` may have something to ask or to withdraw.

        It happens there, at the end of the step, so that one request covers all partitions with new questions.
        """
        self._changed[leader] = None
        self._ctx.is_unsettled = True

    def settle(self) -> None:
        """Send the pending questions; the last part of every step."""
        while self._changed:
            self._changed.popitem()[0].look()

    # For leaders

    def is_throttled(self, partition: PartitionId) -> bool:
        """Whether a limit applies: a reassignment adds this node, which has not caught up yet (KIP-73)."""
        if self.throttle.rate >= UNLIMITED:
            return False
        versioned = self._ctx.view.partitions.get(partition)
        me = self._ctx.node_id
        return versioned is not None and me in versioned.record.adding and me not in versioned.record.isr

    def fetch_size(self, partition: PartitionId, *, handed_over: bool = False) -> int:
        """Bytes to request of a partition; at most the volume of one second if it is throttled."""
        size = self._ctx.settings.replica_fetch_max_bytes * (HANDED_OVER if handed_over else 1)
        return min(size, self.throttle.rate) if self.is_throttled(partition) else size

    def may_skip(self, topic: str) -> bool:
        """Whether a topic's logs may have gaps, because it is compacted now or may have been."""
        record = self._ctx.view.topics.get(topic)
        return record is not None and record.was_compacted

    def damage(self, partition: PartitionId, leader: int, reason: str) -> None:
        """Note a damaged answer. It is logged once, not with every attempt."""
        if self.damaged.get(partition) != reason:
            self.damaged[partition] = reason
            self._ctx.emit(fx.PartitionDamaged(partition=partition, peer=leader, reason=reason))

    @property
    def asked(self) -> dict[PartitionId, int]:
        """Every partition with an open question, with the leader's node."""
        return {
            partition: leader.channel.peer
            for leader in self._leaders.values()
            for partition in leader.session.open
        }

    def questions(self, leader: int) -> dict[PartitionId, partition_fx.FetchNext]:
        """The open questions to one leader, in the form in which the replicas asked them."""
        found = self._leaders.get(leader)
        return dict(found.session.open) if found is not None else {}

    def doubted(self, now: float) -> frozenset[int]:
        """The nodes that lead a partition which this one follows, and have just failed to answer a fetch of it.

        The store still names them as leaders. A client that looks for another leader need not be sent there.
        """
        late = {node for node, since in self._failing.items() if now - since < DOUBT}
        return frozenset(late & self.followed())

    def failing(self, node: int) -> bool:
        """Note that fetches from a leader fail; returns whether they did before."""
        was_failing = node in self._failing
        if not was_failing:
            self._failing[node] = self._ctx.now
        return was_failing

    def answers(self, node: int) -> None:
        """A leader has answered a fetch."""
        self._failing.pop(node, None)

    def followed(self) -> set[int]:
        """The nodes that lead a partition which this one follows."""
        return {node for node, leader in self._leaders.items() if leader.assigned}

    def _assign(self, partition: PartitionId, node: int) -> _Leader:
        """A partition that is assigned to no leader begins to follow one."""
        leader = self._leaders.get(node)
        if leader is None:
            leader = self._leaders[node] = _Leader(self, self._ctx, self._channels, node)
        self._assigned[partition] = leader
        leader.assigned += 1
        return leader


class _Leader:
    """Fetches from one node. Each assigned partition asks, waits for its append, or pauses after a failure."""

    def __init__(self, owner: Following, ctx: Context, channels: Channels, node: int) -> None:
        self.session: FollowerSession[PartitionId, partition_fx.FetchNext] = FollowerSession()
        self.channel: Channel = channels.channel(node, "data", self, ctx.settings.replica_fetch_backoff)
        self.assigned = 0
        """The number of partitions fetched from this node."""
        self._owner = owner
        self._ctx = ctx
        self._resting: dict[PartitionId, Timer] = {}
        self._appending: set[PartitionId] = set()
        self._question = 0
        """The fetch in flight; 0 if there is none."""
        self._begins_session = False
        """Whether that fetch is a full request."""
        self._has_more = False
        """Whether a partition has a new question since the last fetch was sent."""
        self._patience = 0.0
        """The time until which the next fetch waits for appends."""
        self._settling: Timer | None = None
        self._is_confirming = False
        """Whether the fetch in flight will be answered soon and need not be withdrawn."""
        self._pause: Timer | None = None
        """The end of the pause after a failure; nothing is asked before."""

    # Questions of partitions

    def want(self, partition: PartitionId, effect: partition_fx.FetchNext) -> None:
        self._appending.discard(partition)
        if self._resting:
            self._rest(partition)
        self.session.ask(partition, effect)
        if self._question and not self._has_more:
            self._patience = self._ctx.now + SETTLE_TIMEOUT
        self._has_more = True
        self._owner.changed(self)

    def want_later(self, partition: PartitionId, effect: partition_fx.FetchNext, at: float) -> None:
        self._rest(partition)
        # The new question replaces the last one, which must not be sent during the pause.
        self.session.withdraw(partition)
        self._resting[partition] = self._ctx.timers.call_at(at, lambda: self.want(partition, effect))

    def drop(self, partition: PartitionId) -> None:
        self._rest(partition)
        self.session.withdraw(partition)
        self._owner.changed(self)

    def _rest(self, partition: PartitionId) -> None:
        """The partition has finished its append or its pause."""
        self._appending.discard(partition)
        timer = self._resting.pop(partition, None)
        if timer is not None:
            timer.cancel()

    # When to ask

    def look(self) -> None:
        """Send a fetch if there is a new question and no append to wait for."""
        if not self.session.open:
            self._give_up()
        elif self._pause is not None or (self._question and self._is_confirming):
            return  # the end of the pause, or what becomes of the fetch, leads here again
        elif self._has_more or not self._question:
            if self._appending and self._ctx.now < self._patience:
                self._look_later()
            elif self.channel.connection is None:
                self.channel.open()
            else:
                # Only now: the previous fetch may still be answered while it is parked at the leader.
                self._give_up()
                self._ask()

    def _look_later(self) -> None:
        """Set the one timer for all waits; it may fire after the wait has ended."""
        if self._settling is None:
            self._settling = self._ctx.timers.call_at(self._patience, self._settled)

    def _settled(self) -> None:
        self._settling = None
        self._owner.changed(self)

    def _give_up(self) -> None:
        """Withdraw the fetch that is parked at the leader, if any; the next one names the new questions."""
        if self._question:
            self.channel.give_up(self._question)
            self._question = 0

    def _ask(self) -> None:
        assert not self._question, "one fetch is under way to a leader"
        request = self._request()
        self._question = self.channel.ask(m.Kind.FETCH, request, self._ctx.settings.replica_socket_timeout)

    def _request(self) -> m.FetchRequest:
        """The next fetch, and what follows from it for those after it."""
        ctx, owner = self._ctx, self._owner
        settings, handed_over = ctx.settings, self.channel.hands_over_files
        told = self.session.request(settings.questions_at_a_time)
        self._has_more, self._begins_session = self.session.is_behind, told.session_epoch == NEW_SESSION
        self._is_confirming = self._tells_much(self._has_more)
        wait = settings.replica_fetch_wait_max
        if self._is_confirming:
            # Without a session there is nothing to confirm, and immediate answers would make it ask in a tight
            # loop.
            wait = settings.replica_fetch_backoff if self.session.is_refused else 0.0
        damaged = owner.damaged
        partitions = []
        for partition, want in told.questions.items():
            topic, number = partition
            partitions.append(
                m.FetchPartition(
                    topic=topic,
                    partition=number,
                    fetch_offset=want.fetch_offset,
                    max_bytes=owner.fetch_size(partition, handed_over=handed_over),
                    leader_epoch=want.leader_epoch,
                    last_fetched_epoch=want.last_fetched_epoch,
                    high_watermark=want.high_watermark,
                    log_start_offset=want.log_start_offset,
                    topic_id=want.topic_id,
                    damaged=partition in damaged,
                )
            )
        return m.FetchRequest(
            replica_id=ctx.node_id,
            incarnation=ctx.incarnation,
            max_wait_ms=round(1000 * wait),
            min_bytes=1,
            max_bytes=settings.replica_fetch_response_max_bytes,
            partitions=partitions,
            session_id=told.session_id,
            session_epoch=told.session_epoch,
            forgotten=[m.PartitionName(topic=each.topic, partition=each.partition) for each in told.withdrawn]
            if told.withdrawn
            else [],
        )

    def _tells_much(self, is_behind: bool) -> bool:
        """Whether the new request is one of several portions, or too large to be repeated after a withdrawal."""
        session = self.session
        if is_behind or session.is_refused:
            return is_behind
        return session.told > self._ctx.settings.questions_at_a_time // FEW

    # The outcome, as the channel reports it

    def ready(self) -> None:
        self._owner.changed(self)

    def failed(self, reason: str, *, malformed: bool, lost: Collection[int] = ()) -> None:
        """The fetch failed: after a pause, ask all open questions again.

        The replicas are not informed, because their questions stay valid. Otherwise thousands of them would repeat
        their questions twenty times a second until the leader is back or another one is elected.
        """
        ctx = self._ctx
        if not self._owner.failing(self.channel.peer):
            ctx.emit(fx.PeerFailing(peer=self.channel.peer, reason=reason, malformed=malformed))
        # The channel has dropped the question.
        self._question = 0
        self.session.end()
        if self._pause is None:
            at = ctx.now + ctx.settings.replica_fetch_backoff
            self._pause = ctx.timers.call_at(at, self._pause_over)

    def _pause_over(self) -> None:
        self._pause = None
        self._owner.changed(self)

    def _fail(self, partition: PartitionId, asked: partition_fx.FetchNext) -> None:
        self._ctx.step_replica(
            partition,
            partition_ev.FetchFailed(fetch_offset=asked.fetch_offset, leader_epoch=asked.leader_epoch),
        )

    def answered(self, question: int, message: object, payload: Payload) -> None:
        assert question == self._question, "an answer is to the fetch under way"
        assert isinstance(message, m.FetchResponse)
        self._question = 0
        self._read(message, payload)
        if self.session.open:
            # If no question is open, the replica that asks the next one calls `changed`.
            self._owner.changed(self)

    def _read(self, message: m.FetchResponse, payload: Payload) -> None:
        if message.error != ErrorCode.NONE:
            if self._begins_session:
                # The leader refuses even a fetch that is complete in itself: asked again at once it would refuse
                # as fast as messages travel.
                self.failed(f"fetch refused: {code_of(message.error).name}", malformed=False)
            else:
                self.session.end()
            return
        places = _places(message, payload.size)
        if places is None:
            reason = f"the sizes of a fetch response exceed its payload of {payload.size} bytes"
            self.channel.close(reason)
            self.failed(reason, malformed=True)
            return
        self._owner.answers(self.channel.peer)
        self._take(message.session_id, places, payload)
        if self._appending:
            self._patience = self._ctx.now + SETTLE_TIMEOUT

    def _take(self, session_id: int, places: _Places, payload: Payload) -> None:
        """Pass the answers to their replicas; all other questions stay open at the leader."""
        owner, ctx, session = self._owner, self._ctx, self.session
        asked = session.answered(session_id, places)
        for partition, (result, position) in places.items():
            want = asked.get(partition)
            if want is None:
                continue
            size = result.size
            if result.error != ErrorCode.NONE:
                owner.refused[partition] = min(owner.refused.get(partition, 0) + 1, 10)
            elif owner.refused:
                owner.refused.pop(partition, None)
            if owner.is_throttled(partition):
                owner.throttle.took(size, ctx.now)
            batches: Batches | None = None
            if size:
                try:
                    batches = payload.batches(position, size)
                except MalformedBatchError as error:
                    owner.damage(partition, self.channel.peer, str(error))
                    self._fail(partition, want)
                    continue
                owner.damaged.pop(partition, None)
            ctx.step_replica(
                partition, _fetched(want, result, batches, may_skip=owner.may_skip(partition.topic))
            )
            # The replica asks again when its log has finished the requested operation.
            replica = ctx.replicas.get(partition)
            if replica is not None and replica.log.outstanding and partition not in session.open:
                self._appending.add(partition)


_Places = dict[PartitionId, tuple[m.FetchResult, int]]


def _places(answer: m.FetchResponse, payload_size: int) -> _Places | None:
    """The place of each partition's batches in the payload; None if the sizes do not fit."""
    position = 0
    places: _Places = {}
    for result in answer.partitions:
        if result.size < 0 or position + result.size > payload_size:
            return None
        places[named(PartitionId, (result.topic, result.partition))] = result, position
        position += result.size
    return places


def _fetched(
    want: partition_fx.FetchNext,
    result: m.FetchResult,
    batches: Batches | None,
    *,
    may_skip: bool,
) -> partition_ev.Fetched:
    """The answer with the offset and epoch of its question, by which a replica recognises a stale answer."""
    return partition_ev.Fetched(
        fetch_offset=want.fetch_offset,
        leader_epoch=want.leader_epoch,
        last_fetched_epoch=want.last_fetched_epoch,
        error=code_of(result.error),
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start_offset,
        log_end_offset=result.log_end_offset,
        diverging=result.diverging,
        batches=to_metas(batches) if batches is not None else (),
        handle=batches,
        may_skip=may_skip,
    )
