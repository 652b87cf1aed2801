"""Groups of the classic protocol: join, sync, heartbeat, leave (KIP-62, 134, 345, 394, 814).

A rebalance: members join until all are in or the time is over; the leader computes the assignment and hands it in
with its sync; it is written, and all syncs are answered. Only then the group is Stable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import attrs

from ..coordination.decisions import Clock, Decision, Reply
from ..coordination.refusals import refuse_if
from ..errors import ErrorCode
from ..messages import groups as gm
from . import records as r
from .classic_joins import JOINS, PENDING, SESSION, SYNCS, ClassicJoins
from .classic_state import ClassicMember, ClassicPhase, ClassicState

Request = gm.JoinGroupRequest | gm.SyncGroupRequest | gm.HeartbeatRequest | gm.LeaveGroupRequest


class ClassicMembers(ClassicJoins):
    """Decides what members of classic groups ask, and what follows when they are silent."""

    # The role

    def activate(self, state: ClassicState, clock: Clock) -> None:
        """Sessions begin with time to spare: the coordinator before may have renewed them meanwhile."""
        bonus = self._settings.isolation_timeout_ms / 1000
        for member in state.members.values():
            due = clock.now + member.session_timeout_ms / 1000 + bonus
            self._set(SESSION, state.group, member.member_id, due)
        if state.members and state.leader is None:
            # What those had who spoke the consumer protocol is nobody's yet, and no heartbeat would tell anyone.
            self._prepare(
                state, clock, "the previous coordinator left the move to the classic protocol unfinished"
            )

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

    def farewell(self, state: ClassicState) -> tuple[Reply, ...]:
        """The replies to members that wait in a group that moves up to the consumer protocol: come again."""
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

    def sessions(self, state: ClassicState, clock: Clock) -> dict[str, float]:
        """When each member's session ends if nothing more is heard of it; of one that waits here, it begins now."""
        found = {}
        for name, each in state.members.items():
            # Nothing times who waits here.
            due = self._timers.due((SESSION, state.group, name))
            found[name] = clock.now + each.session_timeout_ms / 1000 if due is None else due
        return found

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

    def moved_down(
        self, state: ClassicState, clock: Clock, left: Mapping[tuple[str, str], float]
    ) -> Decision:
        """The group has become a classic one: its members join again. `left`: when their sessions end."""
        for each in state.members.values():
            # A move is no word of theirs: who is dead would stay as long as the group moves to and fro.
            fresh = clock.now + each.session_timeout_ms / 1000
            due = max(clock.now, left.get((state.group, each.member_id), fresh))
            self._set(SESSION, state.group, each.member_id, due)
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
                    # Not those who do not wait here: a static member that is dead would stay as long as there are
                    # rebalances.
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
                is_unheld = each.instance_id is not None and holder is None
                if holder is not None and holder != member_id:
                    error = ErrorCode.FENCED_INSTANCE_ID
                elif member_id in state.pending or (member_id in state.members and not is_unheld):
                    error = ErrorCode.NONE
                    self._gone(state, member_id, clock, "has left")
            errors.append(int(error))
        self._say(request_id, gm.LeaveGroupResponse(errors=errors), ask.group)
        return self._done(request_id)

    def view_changed(self) -> None:
        self._looking.update(dict.fromkeys(name for name, state in self._groups.items() if state.returned))

    def look(self, clock: Clock) -> Decision | None:
        """A group whose leader has come back, and whose assignment is not what the topics are by now."""
        while self._looking:
            group = next(iter(self._looking))
            del self._looking[group]
            state = self._groups.get(group)
            if state is None or not state.returned or state.phase is not ClassicPhase.STABLE:
                continue
            if misfit := state.misfit(self._view()):
                self._prepare(state, clock, f"its leader has come back, and {misfit}")
                return self._done()
        return None

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
