"""Groups of the classic protocol: join, sync, heartbeat, leave (KIP-62, 134, 345, 394, 814).

A rebalance: members join until all are in or the time is over; the leader computes the assignment and hands it in
with its sync; it is written, and all syncs are answered. Only then the group is Stable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from ..errors import ErrorCode
from . import group_messages as gm
from . import records as r
from .classic_state import ClassicMember, ClassicPhase, ClassicState
from .decisions import Clock, Decision, Note, Reply
from .group_settings import GroupSettings
from .refusals import refuse_if
from .timers import Timers

SESSION, JOINS, SYNCS, PENDING = "classic-session", "classic-joins", "classic-syncs", "classic-pending"
KINDS = frozenset({SESSION, JOINS, SYNCS, PENDING})
MAX_PENDING = 1_000
"""Ids given out in one group that nobody has come back with (KAFKA-7610)."""

Request = gm.JoinGroupRequest | gm.SyncGroupRequest | gm.HeartbeatRequest | gm.LeaveGroupRequest


class ClassicMembers:
    """Decides what members of classic groups ask, and what follows when they are silent."""

    def __init__(
        self,
        groups: dict[str, ClassicState],
        timers: Timers[tuple[str, ...]],
        fired: dict[tuple[str, ...], None],
        settings: GroupSettings,
    ) -> None:
        self._groups = groups
        self._timers = timers
        self._fired = fired
        self._settings = settings
        self._parked: dict[int, tuple[str, str]] = {}
        """Group and member of each parked request."""
        self._replies: list[Reply] = []
        """What is to be said with the next decision."""
        self._notes: list[Note] = []
        self._owed: dict[str, None] = {}
        """Groups whose last member has gone: that is to be written, for their offsets expire from then on."""

    # The role

    def activate(self, state: ClassicState, clock: Clock) -> None:
        """Sessions begin with time to spare: the coordinator before may have renewed them meanwhile."""
        bonus = self._settings.isolation_timeout_ms / 1000
        for member in state.members.values():
            due = clock.now + member.session_timeout_ms / 1000 + bonus
            self._set(SESSION, state.group, member.member_id, due)

    def withdrawn(self, request_id: int, clock: Clock) -> None:
        """A parked request has been answered otherwise; its member stays, and may ask again."""
        place = self._parked.pop(request_id, None)
        member = self._find(*place) if place is not None else None
        if place is not None and member is not None:
            if member.joining == request_id:
                member.joining = None
            if member.syncing == request_id:
                member.syncing = None
            # It waits here no more, so it must be heard again.
            due = clock.now + member.session_timeout_ms / 1000
            self._set(SESSION, *place, due)

    def _find(self, group: str, member_id: str) -> ClassicMember | None:
        state = self._groups.get(group)
        return state.members.get(member_id) if state is not None else None

    def farewell(self, state: ClassicState) -> tuple[Reply, ...]:
        """What those are told who wait in a group that moves up to the consumer protocol: come again."""
        told = []
        for each in state.members.values():
            for request_id, kind in (
                (each.joining, gm.JoinGroupResponse),
                (each.syncing, gm.SyncGroupResponse),
            ):
                if request_id is not None:
                    body = kind(error=ErrorCode.REBALANCE_IN_PROGRESS)
                    told.append(Reply(request_id=request_id, body=body, groups=frozenset({state.group})))
        return tuple(told)

    def heard(self, group: str, member_id: str, clock: Clock) -> None:
        """A member has said something that is no heartbeat: its session begins again, unless it waits here."""
        state, member = self._groups.get(group), self._find(group, member_id)
        if state is not None and member is not None and member.joining is None and member.syncing is None:
            self._beat(state, member, clock)

    def dissolve(self, state: ClassicState) -> None:
        """The group is not a classic one any more: nothing of it waits, or is timed, here."""
        for each in state.members.values():
            self._drop(SESSION, state.group, each.member_id)
            for request_id in (each.joining, each.syncing):
                if request_id is not None:
                    self._parked.pop(request_id, None)
        for member_id in state.pending:
            self._drop(PENDING, state.group, member_id)
        for kind in (JOINS, SYNCS):
            self._drop(kind, state.group, "")
        self._owed.pop(state.group, None)

    def moved_down(self, state: ClassicState, clock: Clock) -> Decision:
        """The group has become a classic one: its members join again."""
        for each in state.members.values():
            self._beat(state, each, clock)
        self._prepare(state, clock, "the last member of the consumer protocol has gone")
        return self._done()

    # Requests

    def decide(self, request_id: int, message: Request, clock: Clock) -> Decision:
        """Raises `GroupRefusal` for what is not to be."""
        refuse_if(not message.group, ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        match message:
            case gm.JoinGroupRequest():
                return self._join(request_id, message, clock)
            case gm.SyncGroupRequest():
                return self._sync(request_id, message, clock)
            case gm.HeartbeatRequest():
                return self._heartbeat(request_id, message, clock)
            case gm.LeaveGroupRequest():
                return self._leave(request_id, message, clock)

    def _say(self, request_id: int, body: object, group: str) -> None:
        self._parked.pop(request_id, None)
        self._replies.append(Reply(request_id=request_id, body=body, groups=frozenset({group})))

    def _done(self, request_id: int | None = None) -> Decision:
        replies, self._replies = self._replies, []
        notes, self._notes = self._notes, []
        return Decision(request_id=request_id, replies=tuple(replies), notes=tuple(notes))

    # Join

    def _join(self, request_id: int, ask: gm.JoinGroupRequest, clock: Clock) -> Decision:
        settings = self._settings
        least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        allowed = least <= ask.session_timeout_ms <= most
        told = f"session timeout {ask.session_timeout_ms} ms; it must be {least} to {most}"
        refuse_if(not allowed, ErrorCode.INVALID_SESSION_TIMEOUT, told)
        mismatch = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        refuse_if(not ask.protocol_type or not ask.protocols, mismatch, "no protocol is named")
        state = self._groups.get(ask.group) or ClassicState(group=ask.group)
        other = bool(state.members) and state.protocol_type != ask.protocol_type
        refuse_if(other, mismatch, f"the group's protocol type is {state.protocol_type!r}")
        names = {each.name for each in ask.protocols}
        common = state.common(but=ask.member_id)
        alone = not set(state.members) - {ask.member_id}
        refuse_if(not alone and not names & common, mismatch, f"the members support {sorted(common)}")
        holder = None if ask.instance_id is None else state.holder_of(ask.instance_id)
        if ask.member_id:
            if ask.member_id not in state.pending:
                state.check_member(ask.member_id, ask.instance_id)
        elif holder is None:
            full = len(state.members) + len(state.pending) >= settings.max_size
            refuse_if(full, ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(state.members)} members")
            if ask.instance_id is None and ask.known_member_id:
                return self._give_id(request_id, ask, state, clock)
        self._groups[ask.group] = state
        if not state.members:
            state.protocol_type = ask.protocol_type
        if ask.member_id in state.members:
            return self._rejoin(request_id, ask, state, clock)
        if holder is not None:
            return self._replace(request_id, ask, state, state.members[holder], clock)
        member_id = ask.member_id or ask.fresh_id
        state.pending.discard(member_id)
        self._drop(PENDING, ask.group, member_id)
        state.members[member_id] = member = _member(ask, member_id)
        state.joined_at = clock.now
        self._park_join(request_id, member, state)
        self._prepare(state, clock, f"member {member_id} has joined")
        self._try_complete(state, clock)
        return self._done(request_id)

    def _give_id(
        self, request_id: int, ask: gm.JoinGroupRequest, state: ClassicState, clock: Clock
    ) -> Decision:
        """A client that dies between two attempts to join must not leave a member behind each time (KIP-394)."""
        many = len(state.pending) >= MAX_PENDING
        refuse_if(many, ErrorCode.GROUP_MAX_SIZE_REACHED, f"{MAX_PENDING} ids wait for their members")
        self._groups[ask.group] = state
        state.pending.add(ask.fresh_id)
        self._set(PENDING, ask.group, ask.fresh_id, clock.now + ask.session_timeout_ms / 1000)
        error = ErrorCode.MEMBER_ID_REQUIRED
        self._say(request_id, gm.JoinGroupResponse(error=error, member_id=ask.fresh_id), ask.group)
        return self._done(request_id)

    def _rejoin(
        self, request_id: int, ask: gm.JoinGroupRequest, state: ClassicState, clock: Clock
    ) -> Decision:
        member = state.members[ask.member_id]
        changed = _protocols(ask) != member.protocols
        if member.joining is not None:
            # Its client has given the first attempt up.
            self._say(
                member.joining, gm.JoinGroupResponse(error=ErrorCode.REBALANCE_IN_PROGRESS), state.group
            )
        _update(member, ask)
        is_leader = ask.member_id == state.leader
        told_again = state.phase is ClassicPhase.COMPLETING or (
            state.phase is ClassicPhase.STABLE and not is_leader
        )
        if not changed and told_again:
            self._beat(state, member, clock)
            self._say(request_id, self._joined(state, member), state.group)
            return self._done(request_id)
        self._park_join(request_id, member, state)
        changes = "reads other topics" if changed else "asks for it"
        self._prepare(state, clock, f"member {member.member_id} {changes}")
        self._try_complete(state, clock)
        return self._done(request_id)

    def _replace(
        self,
        request_id: int,
        ask: gm.JoinGroupRequest,
        state: ClassicState,
        old: ClassicMember,
        clock: Clock,
    ) -> Decision:
        """A static member has come back: under a new id, so that its former process can do nothing any more."""
        member_id = ask.fresh_id
        same = _protocols(ask) == old.protocols and state.phase is ClassicPhase.STABLE
        fresh = _member(ask, member_id)
        fresh.assignment = old.assignment

        def swap() -> None:
            for parked in (old.joining, old.syncing):
                if parked is not None:
                    kind = gm.JoinGroupResponse if parked == old.joining else gm.SyncGroupResponse
                    self._say(parked, kind(error=ErrorCode.FENCED_INSTANCE_ID), state.group)
            # It keeps its place, and with it what an assignor gives to it.
            state.members = {
                (member_id if each is old else name): (fresh if each is old else each)
                for name, each in state.members.items()
            }
            if state.leader == old.member_id:
                state.leader = member_id
            self._drop(SESSION, state.group, old.member_id)

        if not same:
            swap()
            self._park_join(request_id, fresh, state)
            self._prepare(state, clock, f"instance {ask.instance_id} has come back, with something new")
            self._try_complete(state, clock)
            return self._done(request_id)
        after = attrs.evolve(
            state,
            leader=member_id if state.leader == old.member_id else state.leader,
            members={
                (member_id if each is old else name): (fresh if each is old else each)
                for name, each in state.members.items()
            },
        )
        body = self._joined(after, fresh, skip=True)
        reply = Reply(request_id=request_id, body=body, groups=frozenset({state.group}))

        def then() -> None:
            swap()
            self._beat(state, fresh, clock)

        # Written before it is told: another coordinator would not know the new id (KAFKA-10284).
        entry = r.ClassicGroupKey(state.group), after.value(clock.wall_ms)
        return Decision(request_id=request_id, entries=(entry,), replies=(reply,), then=then)

    def _park_join(self, request_id: int, member: ClassicMember, state: ClassicState) -> None:
        member.joining = request_id
        self._parked[request_id] = state.group, member.member_id
        # Whoever waits here is alive as far as it can show.
        self._drop(SESSION, state.group, member.member_id)

    def _prepare(self, state: ClassicState, clock: Clock, why: str) -> None:
        """Begin a rebalance, unless one is at its beginning; `why`, for the operator."""
        if state.phase is ClassicPhase.PREPARING:
            return
        state.why = why
        for member in state.members.values():
            if member.syncing is not None:
                error = gm.SyncGroupResponse(error=ErrorCode.REBALANCE_IN_PROGRESS)
                self._say(member.syncing, error, state.group)
                self._beat(state, member, clock)
                member.syncing = None
        self._drop(SYNCS, state.group, "")
        state.was_empty = state.phase is ClassicPhase.EMPTY
        state.phase = ClassicPhase.PREPARING
        state.began = state.joined_at = clock.now
        self._time_joins(state, clock)

    def _time_joins(self, state: ClassicState, clock: Clock) -> None:
        due = state.began + state.rebalance_timeout
        if state.was_empty:
            # More members are about to start: each new one gives the others a little more time.
            delay = self._settings.initial_rebalance_delay_ms / 1000
            due = min(due, state.joined_at + delay)
        self._set(JOINS, state.group, "", max(due, clock.now))

    def _try_complete(self, state: ClassicState, clock: Clock) -> None:
        """End the joining if all are in; those who have only been given an id count (KAFKA-9752)."""
        if state.phase is not ClassicPhase.PREPARING:
            return
        if state.was_empty:
            self._time_joins(state, clock)
            return
        if not state.pending and all(each.joining is not None for each in state.members.values()):
            self._complete(state, clock)

    def _complete(self, state: ClassicState, clock: Clock) -> None:
        """Members that have joined make the new generation; static ones that have not stay in it."""
        self._drop(JOINS, state.group, "")
        for member_id, member in list(state.members.items()):
            if member.joining is None and member.instance_id is None:
                self._remove(state, member_id)
        state.generation += 1
        details = {"epoch": state.generation, "members": len(state.members)}
        self._notes.append(Note(group=state.group, reason=state.why, details=details))
        if not state.members:
            state.phase, state.protocol, state.leader = ClassicPhase.EMPTY, None, None
            self._owed[state.group] = None
            return
        state.phase = ClassicPhase.COMPLETING
        state.protocol = state.vote()
        here = [each.member_id for each in state.members.values() if each.joining is not None]
        if state.leader not in here:
            state.leader = here[0] if here else state.leader
        for member in state.members.values():
            if member.joining is not None:
                self._say(member.joining, self._joined(state, member), state.group)
                member.joining = None
                # Not those who were away: rebalance after rebalance would keep one that is dead.
                self._beat(state, member, clock)
        self._set(SYNCS, state.group, "", clock.now + state.rebalance_timeout)

    def _joined(
        self, state: ClassicState, member: ClassicMember, *, skip: bool = False
    ) -> gm.JoinGroupResponse:
        is_leader = member.member_id == state.leader
        members = []
        if is_leader:
            members = [
                gm.JoinedMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    metadata=each.metadata(state.protocol),
                )
                for each in state.members.values()
            ]
        return gm.JoinGroupResponse(
            generation=state.generation,
            protocol_type=state.protocol_type,
            protocol=state.protocol or "",
            leader_id=state.leader or "",
            member_id=member.member_id,
            members=members,
            skip_assignment=skip and is_leader,
        )

    # Sync, heartbeat, leave

    def _sync(self, request_id: int, ask: gm.SyncGroupRequest, clock: Clock) -> Decision:
        state = self._check(ask.group, ask.member_id, ask.instance_id, ask.generation)
        member = state.members[ask.member_id]
        waits = state.phase is ClassicPhase.PREPARING
        refuse_if(waits, ErrorCode.REBALANCE_IN_PROGRESS, "the group is being rebalanced; join again")
        self._beat(state, member, clock)
        if state.phase is ClassicPhase.STABLE:
            self._say(request_id, self._synced(state, member), state.group)
            return self._done(request_id)
        if member.syncing is not None:
            again = gm.SyncGroupResponse(error=ErrorCode.REBALANCE_IN_PROGRESS)
            self._say(member.syncing, again, state.group)
        member.syncing = request_id
        self._parked[request_id] = state.group, member.member_id
        self._drop(SESSION, state.group, member.member_id)
        if ask.member_id != state.leader:
            return self._done(request_id)
        given = {each.member_id: each.assignment for each in ask.assignments}
        members = {
            name: attrs.evolve(each, assignment=given.get(name, b"")) for name, each in state.members.items()
        }
        after = attrs.evolve(state, phase=ClassicPhase.STABLE, members=members)
        replies = tuple(
            [
                Reply(
                    request_id=each.syncing,
                    body=self._synced(after, each),
                    groups=frozenset({state.group}),
                )
                for each in members.values()
                if each.syncing is not None
            ]
        )
        early, self._replies = self._replies, []

        def then() -> None:
            # All are answered when this is committed, not before (the replies wait for the high watermark).
            state.phase = ClassicPhase.STABLE
            self._drop(SYNCS, state.group, "")
            for name, each in state.members.items():
                each.assignment = given.get(name, b"")
                if each.syncing is not None:
                    self._parked.pop(each.syncing, None)
                    each.syncing = None
                self._beat(state, each, clock)

        entry = r.ClassicGroupKey(state.group), after.value(clock.wall_ms)
        return Decision(request_id=request_id, entries=(entry,), replies=(*early, *replies), then=then)

    def _synced(self, state: ClassicState, member: ClassicMember) -> gm.SyncGroupResponse:
        return gm.SyncGroupResponse(
            protocol_type=state.protocol_type, protocol=state.protocol or "", assignment=member.assignment
        )

    def _heartbeat(self, request_id: int, ask: gm.HeartbeatRequest, clock: Clock) -> Decision:
        state = self._check(ask.group, ask.member_id, ask.instance_id, ask.generation)
        self._beat(state, state.members[ask.member_id], clock)
        preparing = state.phase is ClassicPhase.PREPARING
        error = ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE
        self._say(request_id, gm.HeartbeatResponse(error=error), ask.group)
        return self._done(request_id)

    def _check(self, group: str, member_id: str, instance_id: str | None, generation: int) -> ClassicState:
        state = self._groups.get(group)
        refuse_if(state is None, ErrorCode.UNKNOWN_MEMBER_ID, f"there is no classic group {group!r}")
        assert state is not None
        state.check_member(member_id, instance_id)
        wrong = generation != state.generation
        refuse_if(wrong, ErrorCode.ILLEGAL_GENERATION, f"generation {generation} is not {state.generation}")
        return state

    def _leave(self, request_id: int, ask: gm.LeaveGroupRequest, clock: Clock) -> Decision:
        state = self._groups.get(ask.group)
        errors = []
        for each in ask.members:
            error = ErrorCode.UNKNOWN_MEMBER_ID
            if state is not None:
                holder = None if each.instance_id is None else state.holder_of(each.instance_id)
                member_id = each.member_id or holder or ""
                if holder is not None and holder != member_id:
                    error = ErrorCode.FENCED_INSTANCE_ID
                elif member_id in state.pending or member_id in state.members:
                    error = ErrorCode.NONE
                    self._gone(state, member_id, clock, "has left")
            errors.append(int(error))
        self._say(request_id, gm.LeaveGroupResponse(errors=errors), ask.group)
        return self._done(request_id)

    def owed(self, clock: Clock) -> Decision | None:
        """A group that is empty by now, and that the log still shows with members."""
        while self._owed:
            group = next(iter(self._owed))
            state = self._groups.get(group)
            if state is None or state.phase is not ClassicPhase.EMPTY or not state.generation:
                del self._owed[group]
                continue
            entry = r.ClassicGroupKey(group), state.value(clock.wall_ms)
            return Decision(entries=(entry,), then=partial(self._owed.pop, group, None))
        return None

    # Silence

    def _gone(self, state: ClassicState, member_id: str, clock: Clock, how: str) -> None:
        """A member has left, or its session is over."""
        state.pending.discard(member_id)
        self._drop(PENDING, state.group, member_id)
        if member_id in state.members:
            self._remove(state, member_id)
            if state.phase in (ClassicPhase.STABLE, ClassicPhase.COMPLETING):
                self._prepare(state, clock, f"member {member_id} {how}")
        # The end of an id that never joined may be what the others have waited for (KAFKA-7909).
        if not state.members and state.phase is ClassicPhase.PREPARING:
            self._complete(state, clock)
        else:
            self._try_complete(state, clock)
        self._forget_unborn(state)

    def _forget_unborn(self, state: ClassicState) -> None:
        """A group that nobody has ever completed a join to is nothing."""
        if not state.generation and not state.members and not state.pending:
            self._groups.pop(state.group, None)

    def _remove(self, state: ClassicState, member_id: str) -> None:
        member = state.members.pop(member_id)
        self._drop(SESSION, state.group, member_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if member.joining is not None:
            self._say(member.joining, gm.JoinGroupResponse(error=error), state.group)
        if member.syncing is not None:
            self._say(member.syncing, gm.SyncGroupResponse(error=error), state.group)

    def fire(
        self, kind: str, group: str, member_id: str, clock: Clock, over: Callable[[], None]
    ) -> Decision | None:
        """A timer's time has come; `over` forgets it."""
        state = self._groups.get(group)
        over()
        if state is None:
            return None
        match kind:
            case "classic-session" | "classic-pending":
                self._gone(state, member_id, clock, "was silent for its session")
            case "classic-joins" if state.phase is ClassicPhase.PREPARING:
                self._complete(state, clock)
            case "classic-syncs" if state.phase is ClassicPhase.COMPLETING:
                for each in list(state.members.values()):
                    if each.syncing is None:
                        self._remove(state, each.member_id)
                self._prepare(state, clock, "members were silent when they had their new generation")
                if not state.members:
                    self._complete(state, clock)
            case _:
                return None
        return self._done()

    def _beat(self, state: ClassicState, member: ClassicMember, clock: Clock) -> None:
        """The member has been heard: its session begins again, unless a request of its own is parked here."""
        self._drop(SESSION, state.group, member.member_id)
        self._set(SESSION, state.group, member.member_id, clock.now + member.session_timeout_ms / 1000)

    def _set(self, kind: str, group: str, member_id: str, due: float) -> None:
        self._fired.pop((kind, group, member_id), None)
        self._timers.set((kind, group, member_id), due)

    def _drop(self, kind: str, group: str, member_id: str) -> None:
        self._fired.pop((kind, group, member_id), None)
        self._timers.cancel((kind, group, member_id))


def _protocols(ask: gm.JoinGroupRequest) -> tuple[r.ClassicProtocol, ...]:
    return tuple([r.ClassicProtocol(name=each.name, metadata=each.metadata) for each in ask.protocols])


def _member(ask: gm.JoinGroupRequest, member_id: str) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        instance_id=ask.instance_id,
        client_id=ask.client_id,
        client_host=ask.client_host,
        rebalance_timeout_ms=ask.rebalance_timeout_ms,
        session_timeout_ms=ask.session_timeout_ms,
        protocols=_protocols(ask),
    )


def _update(member: ClassicMember, ask: gm.JoinGroupRequest) -> None:
    member.protocols = _protocols(ask)
    member.session_timeout_ms, member.rebalance_timeout_ms = ask.session_timeout_ms, ask.rebalance_timeout_ms
    member.client_id, member.client_host = ask.client_id, ask.client_host
