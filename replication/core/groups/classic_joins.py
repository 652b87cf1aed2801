"""How a rebalance of the classic protocol begins and ends: members join, until all are in or the time is over."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ..coordination.decisions import Clock, Decision, Note, Reply
from ..coordination.refusals import refuse_if
from ..coordination.timers import Timers
from ..coordination.topics_view import TopicsView
from ..errors import ErrorCode
from ..messages import groups as gm
from ..wording import counted
from . import records as r
from .classic_state import ClassicMember, ClassicPhase, ClassicState
from .settings import GroupSettings

SESSION, JOINS, SYNCS, PENDING = "classic-session", "classic-joins", "classic-syncs", "classic-pending"
KINDS = frozenset({SESSION, JOINS, SYNCS, PENDING})
MAX_PENDING = 1_000
"""Ids given out in one group that nobody has come back with (KAFKA-7610)."""


class ClassicJoins:
    """The common state (members, timers, parked requests), and joins; `ClassicMembers` has the rest."""

    def __init__(
        self,
        groups: dict[str, ClassicState],
        timers: Timers[tuple[str, ...]],
        fired: dict[tuple[str, ...], None],
        settings: GroupSettings,
        view: Callable[[], TopicsView],
    ) -> None:
        self._groups = groups
        self._timers = timers
        self._fired = fired
        self._settings = settings
        self._view = view
        self._parked: dict[int, tuple[str, str]] = {}
        """Group and member of each parked request."""
        self._replies: list[Reply] = []
        """The replies to give with the next decision."""
        self._notes: list[Note] = []
        self._looking: dict[str, None] = {}
        """Groups whose leader has come back, and whose assignment is to be compared with the topics again."""
        self._owed: dict[str, None] = {}
        """Groups whose last member has gone: that is to be written, for their offsets expire from then on."""

    def _find(self, group: str, member_id: str) -> ClassicMember | None:
        state = self._groups.get(group)
        return state.members.get(member_id) if state is not None else None

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
        alone = len(state.members) == (ask.member_id in state.members)
        refuse_if(not alone and not names & common, mismatch, f"the members support {sorted(common)}")
        holder = None if ask.instance_id is None else state.holder_of(ask.instance_id)
        if ask.member_id:
            if ask.member_id not in state.pending:
                state.check_member(ask.member_id, ask.instance_id)
        elif holder is None:
            full = len(state.members) + len(state.pending) >= settings.max_size
            members = counted(len(state.members), "member")
            refuse_if(full, ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {members}")
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
        # Who leads takes the topics as it finds them for what was assigned: what came while nobody watched, nobody
        # but the coordinator can see.
        misfit = state.misfit(self._view()) if same and state.leader == old.member_id else ""
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

        if not same or misfit:
            swap()
            self._park_join(request_id, fresh, state)
            why = f"and {misfit}" if misfit else "with something new"
            self._prepare(state, clock, f"instance {ask.instance_id} has come back, {why}")
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
            if state.leader == member_id:
                # It may find partitions there that this view does not have yet.
                state.returned = True

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
        # An assignor may leave partitions out on purpose: its leader's return costs one rebalance, not more.
        state.why, state.returned = why, False
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
            state.leader = here[0] if here else state.leader or next(iter(state.members))
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

    def _remove(self, state: ClassicState, member_id: str) -> None:
        member = state.members.pop(member_id)
        self._drop(SESSION, state.group, member_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if member.joining is not None:
            self._say(member.joining, gm.JoinGroupResponse(error=error), state.group)
        if member.syncing is not None:
            self._say(member.syncing, gm.SyncGroupResponse(error=error), state.group)

    # Time

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
