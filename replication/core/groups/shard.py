"""The state machine of one partition of `__consumer_offsets`: every group whose id leads there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec import structs

from ..coordination.bounds import check_bounds
from ..coordination.decisions import Clock, Decision, Proof, Reply
from ..coordination.refusals import GroupRefusal
from ..coordination.shard_events import Entry, Marker, ProducerId
from ..coordination.timers import Timers
from ..coordination.topics_view import TopicsView
from ..errors import ErrorCode
from ..messages import groups as gm
from . import records as r
from .classic_joins import KINDS as CLASSIC_KINDS
from .classic_members import ClassicMembers
from .classic_state import ClassicState
from .consumer_context import Context
from .consumer_members import SESSION, ConsumerMembers
from .describe import describe, kind_of, listing
from .expiry import delete_group, delete_offsets, end_group, expire, forget_topics, members_of
from .mixed_members import MixedMembers
from .offset_commits import Entries, plan_commit, read_offsets
from .settings import GroupSettings
from .state import Committed, Draft, GroupState

_EXPIRE = ("expire",)
_EXPIRED_AT_ONCE = 1_000
"""Tombstones of one batch; the rest follows in the next ones."""


class GroupCoordinator:
    """A `StateMachine` for `Shard`. Groups are independent of each other in all but their clock and their log."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings if settings is not None else GroupSettings()
        self.groups: dict[str, GroupState] = {}
        self.view = TopicsView()
        self.classics: dict[str, ClassicState] = {}
        self._timers: Timers[tuple[str, ...]] = Timers()
        self._fired: dict[tuple[str, ...], None] = {}
        self._active = False
        self._writers: dict[int, set[str]] = {}
        """Groups in which a producer may have undecided offsets."""
        self._expiring: list[str] = []
        self._gone: frozenset[str] = frozenset()
        self._forgetting: list[str] = []
        self._moved_down: dict[str, None] = {}
        """Groups that are classic ones since a moment, and wait for their first rebalance."""
        self.consumers = ConsumerMembers(self._timers, self._fired)
        self.mixed = MixedMembers(self.consumers)
        self.classic_members = ClassicMembers(
            self.classics, self._timers, self._fired, self.settings, lambda: self.view
        )

    # The log

    def apply(self, entry: Entry) -> None:
        key: Any = entry.key
        value = entry.value
        state = self.groups.get(key.group)
        if state is None:
            if value is None:
                return
            state = self.groups[key.group] = GroupState(key.group)
        if isinstance(key, r.OffsetKey):
            self._apply_offset(state, key, entry)
        else:
            before = state.currents.get(key.member_id) if isinstance(key, r.CurrentKey) else None
            state.put(key, value, entry.offset)
            if self._active:
                self.consumers.applied(state, key, before)
                if isinstance(key, r.ClassicGroupKey) and value is None:
                    self.classics.pop(key.group, None)
                elif isinstance(key, r.ClassicGroupKey) and key.group not in self.classics:
                    self._moved_down[key.group] = None
        if state.empty:
            del self.groups[key.group]

    def _apply_offset(self, state: GroupState, key: r.OffsetKey, entry: Entry) -> None:
        place = key.topic, key.partition
        if entry.producer is not None and entry.value is not None:
            offsets = state.pending.setdefault(entry.producer.producer_id, {})
            offsets[place] = Committed(entry.value, entry.offset)
            self._writers.setdefault(entry.producer.producer_id, set()).add(state.group)
            return
        state.put(key, entry.value, entry.offset)
        if entry.value is None:
            # Deleted is deleted, for transactions that were under way too.
            for producer_id in list(state.pending):
                state.pending[producer_id].pop(place, None)
                if not state.pending[producer_id]:
                    del state.pending[producer_id]

    def mark(self, marker: Marker) -> frozenset[str]:
        touched = set()
        producer_id = marker.producer.producer_id
        for group in sorted(self._writers.pop(producer_id, ())):
            state = self.groups.get(group)
            offsets = state.pending.pop(producer_id, None) if state is not None else None
            if state is None or offsets is None:
                continue
            touched.add(group)
            for place, committed in offsets.items():
                # A later record of the key wins, wherever compaction has put the marker (it has no key).
                present = state.offsets.get(place)
                if marker.committed and (present is None or present.at < committed.at):
                    state.offsets[place] = committed
            if state.empty:
                del self.groups[group]
        return frozenset(touched)

    # Without the log

    def activate(self, clock: Clock) -> None:
        self._active = True
        bonus = self.settings.isolation_timeout_ms
        for group, state in self.groups.items():
            if state.classic is not None:
                classic = self.classics[group] = ClassicState.of(group, state.classic)
                self.classic_members.activate(classic, clock)
            self.consumers.activate(state, clock, self.settings.consumer_session_timeout_ms, bonus)
        self._timers.set(_EXPIRE, clock.now + self.settings.offsets_retention_check_interval_ms / 1000)

    def view_changed(self, view: TopicsView) -> None:
        before, self.view = self.view, view
        gone = {
            name
            for name, info in before.topics.items()
            if name not in view.topics or view.topics[name].topic_id != info.topic_id
        }
        if not self._active:
            return
        self.consumers.view_changed(self.groups.values())
        self.classic_members.view_changed()
        if gone:
            self._gone |= gone
            self._forgetting = sorted(self.groups)

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Type and number of members of each group."""
        for name in self.groups.keys() | self.classics.keys():
            state, classic = self.groups.get(name) or GroupState(name), self.classics.get(name)
            yield kind_of(state, classic)[0], members_of(state, classic)

    def slip(self, seconds: float) -> None:
        self._timers.slip(seconds)

    @property
    def deadline(self) -> float | None:
        return self._timers.deadline

    def tick(self, clock: Clock) -> None:
        while (key := self._timers.pop(clock.now)) is not None:
            self._fired[key] = None

    def withdrawn(self, request_id: int, clock: Clock) -> None:
        self.consumers.withdrawn(request_id)
        self.classic_members.withdrawn(request_id, clock)

    def failure(self, message: Any, error: ErrorCode, leader: int = -1, leader_epoch: int = -1) -> Any:
        return gm.RESPONSES[type(message)](error=error, leader=leader, leader_epoch=leader_epoch)

    # Decisions

    def context(self, clock: Clock) -> Context:
        return Context(view=self.view, settings=self.settings, clock=clock)

    def decide(self, request_id: int, message: gm.Request, clock: Clock) -> Decision:
        try:
            return self._decide(request_id, message, clock)
        except GroupRefusal as refused:
            body = structs.replace(self.failure(message, refused.error), message=refused.message)
            group = getattr(message, "group", None)
            reply = Reply(
                request_id=request_id, body=body, groups=None if group is None else frozenset({group})
            )
            return Decision(request_id=request_id, replies=(reply,))

    def _decide(self, request_id: int, message: gm.Request, clock: Clock) -> Decision:
        check_bounds(message)
        context = self.context(clock)
        match message:
            case gm.ConsumerGroupHeartbeatRequest(group=group):
                state = self.groups.get(group) or GroupState(group)
                classic = self.classics.get(group)
                if classic is None:
                    return self.consumers.beat(request_id, message, state, context)
                return self._move_up(request_id, message, state, classic, context)
            case (
                gm.JoinGroupRequest() | gm.SyncGroupRequest() | gm.HeartbeatRequest() | gm.LeaveGroupRequest()
            ):
                return self._classic(request_id, message, clock)
            case gm.CommitGroupOffsetsRequest(group=group):
                return self._commit(request_id, message, context, None)
            case gm.TxnOffsetCommitRequest(group=group):
                producer = ProducerId(message.producer_id, message.producer_epoch)
                return self._commit(request_id, message, context, producer)
            case gm.GroupOffsetsRequest(group=group):
                offsets = read_offsets(self.groups.get(group), self.classics.get(group), message, self.view)
                return _read(request_id, gm.GroupOffsetsResponse(offsets=offsets), group)
            case gm.ListGroupsRequest():
                found = [
                    listing(self.groups.get(name) or GroupState(name), self.classics.get(name))
                    for name in sorted(self.groups.keys() | self.classics.keys())
                ]
                wanted = [
                    each
                    for each in found
                    if (not message.states or each.state in message.states)
                    and (not message.types or each.type in message.types)
                ]
                return _read(request_id, gm.ListGroupsResponse(groups=wanted))
            case gm.DescribeGroupsRequest(groups=names):
                told = [self._described(name) for name in names]
                return _read(request_id, gm.DescribeGroupsResponse(groups=told), *names)
            case gm.ConsumerGroupDescribeRequest(groups=names):
                told = [
                    each
                    if each.type == "consumer"
                    else gm.DescribedGroup(group=each.group, error=ErrorCode.GROUP_ID_NOT_FOUND, state="Dead")
                    for each in map(self._described, names)
                ]
                return _read(request_id, gm.DescribeGroupsResponse(groups=told), *names)
            case gm.DeleteGroupRequest(group=group):
                entries = delete_group(self._known(group), self.classics.get(group), group)
                return _write(request_id, gm.DeleteGroupResponse(), group, entries)
            case gm.DeleteGroupOffsetsRequest(group=group):
                entries, each_told = delete_offsets(self.groups.get(group), self.classics.get(group), message)
                return _write(request_id, gm.CommitGroupOffsetsResponse(partitions=each_told), group, entries)

    def _described(self, group: str) -> gm.DescribedGroup:
        assignors = self.settings.consumer_assignors
        return describe(group, self._known(group), self.classics.get(group), assignors)

    def _known(self, group: str) -> GroupState | None:
        """A group of which there are records, or members."""
        return self.groups.get(group) or (GroupState(group) if group in self.classics else None)

    def _move_up(
        self,
        request_id: int,
        message: gm.ConsumerGroupHeartbeatRequest,
        state: GroupState,
        classic: ClassicState,
        context: Context,
    ) -> Decision:
        """A member of the consumer protocol comes to a classic group, which may have no members by now."""
        with_members = classic if classic.members else None
        decision = self.consumers.beat(request_id, message, state, context, with_members)

        def then() -> None:
            sessions = self.classic_members.sessions(classic, context.clock)
            self.classic_members.dissolve(classic)
            self.classics.pop(classic.group, None)
            for member_id, due in sessions.items():
                # Nobody is heard by this: who is dead would stay as long as the group moves to and fro.
                self.consumers.time(SESSION, classic.group, member_id, due)
            if decision.then is not None:
                decision.then()

        told = self.classic_members.farewell(classic)
        return structs.replace(decision, replies=(*decision.replies, *told), then=then)

    def _classic(
        self,
        request_id: int,
        message: gm.JoinGroupRequest | gm.SyncGroupRequest | gm.HeartbeatRequest | gm.LeaveGroupRequest,
        clock: Clock,
    ) -> Decision:
        state = self.groups.get(message.group)
        if state is None or not state.is_consumer:
            return self.classic_members.decide(request_id, message, clock)
        if state.members:
            return self.mixed.decide(request_id, message, state, self.context(clock))
        # An empty group changes its type at once; whoever asked comes back to a group that is nothing yet.
        draft = Draft(state)
        end_group(draft)
        body = self.failure(message, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return _write(request_id, body, message.group, draft.entries)

    def _commit(
        self,
        request_id: int,
        message: gm.CommitGroupOffsetsRequest | gm.TxnOffsetCommitRequest,
        context: Context,
        producer: ProducerId | None,
    ) -> Decision:
        group = message.group
        state = self.groups.get(group) or GroupState(group)
        entries, told = plan_commit(state, self.classics.get(group), message, context)
        body = gm.CommitGroupOffsetsResponse(partitions=told)
        decision = _write(request_id, body, group, entries, producer)
        if producer is not None or group not in self.classics:
            return decision
        # Clients of the classic protocol may rely on it that whoever commits is alive, as in Kafka.
        heard = partial(self.classic_members.heard, group, message.member_id, context.clock)
        return structs.replace(decision, then=heard)

    def may_share(self, message: Any) -> bool:
        """Commits: they look at members, never at offsets."""
        return isinstance(message, gm.CommitGroupOffsetsRequest)

    def due(self, clock: Clock) -> Decision | None:
        context = self.context(clock)
        while self._fired:
            key = next(iter(self._fired))
            decision = self._fire(key, context)
            if decision is not None:
                return decision
            self._fired.pop(key, None)
        while self._moved_down:
            group = next(iter(self._moved_down))
            del self._moved_down[group]
            known = self.groups.get(group)
            if known is not None and known.classic is not None:
                moved = self.classics[group] = ClassicState.of(group, known.classic)
                return self.classic_members.moved_down(moved, clock, self.consumers.left)
        self.consumers.left.clear()
        decision = self.classic_members.look(clock) or self.classic_members.owed(clock)
        decision = decision or self.consumers.follow_up(self.groups, context)
        if decision is not None:
            return decision
        return self._forget(context) or self._expire(context)

    def _fire(self, key: tuple[str, ...], context: Context) -> Decision | None:
        if key == _EXPIRE:
            self._expiring = sorted(self.groups)
            interval = self.settings.offsets_retention_check_interval_ms / 1000
            self._timers.set(_EXPIRE, context.clock.now + interval)
            return None
        kind, group, member_id = key
        if kind in CLASSIC_KINDS:
            over = partial(self._fired.pop, key, None)
            return self.classic_members.fire(kind, group, member_id, context.clock, over)
        state = self.groups.get(group)
        if state is None:
            return None
        return self.consumers.fire(kind, state, member_id, context)

    def _expire(self, context: Context) -> Decision | None:
        while self._expiring:
            state = self.groups.get(self._expiring[-1])
            entries: Entries = []
            if state is not None:
                entries = expire(state, self.classics.get(state.group), context)
            if entries:
                return Decision(entries=tuple(entries[:_EXPIRED_AT_ONCE]))
            self._expiring.pop()
        return None

    def _forget(self, context: Context) -> Decision | None:
        """Offsets of deleted topics, one group after the other."""
        while self._forgetting:
            state = self.groups.get(self._forgetting[-1])
            entries = forget_topics(state, self._gone) if state is not None else []
            if entries:
                return Decision(entries=tuple(entries[:_EXPIRED_AT_ONCE]))
            self._forgetting.pop()
        self._gone = frozenset()
        return None


def _read(request_id: int, body: Any, *groups: str) -> Decision:
    """The answer about some groups, or about all if none is named."""
    told = frozenset(groups) if groups else None
    reply = Reply(request_id=request_id, body=body, groups=told, proof=Proof.READ)
    return Decision(request_id=request_id, replies=(reply,))


def _write(
    request_id: int, body: Any, group: str, entries: Entries, producer: ProducerId | None = None
) -> Decision:
    proof = Proof.NONE if entries else Proof.READ
    reply = Reply(request_id=request_id, body=body, groups=frozenset({group}), proof=proof)
    return Decision(request_id=request_id, entries=tuple(entries), replies=(reply,), producer=producer)
