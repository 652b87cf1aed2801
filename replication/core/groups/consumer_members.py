"""The state of members of the consumer protocol that a coordinator does not store: parked heartbeats, timers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import structs

from ..coordination.decisions import Clock, Decision, Reply
from ..coordination.refusals import GroupRefusal, refuse_if
from ..coordination.timers import Timers
from ..errors import ErrorCode
from ..messages.groups import JOIN, LEAVE, LEAVE_STATIC, ConsumerGroupHeartbeatResponse
from . import records as r
from .classic_state import ClassicState
from .consumer_context import Context
from .consumer_group import (
    Beat,
    admit,
    advance,
    check_beat,
    check_member,
    owned_by,
    rebalance,
    remove,
    step_out,
    to_lists,
)
from .moves import move_up
from .state import Draft, GroupState

Place = tuple[str, str]
"""A group and a member of it."""
LATE = "it did not release its partitions in time"
"""Why a member is fenced whose revocation took too long."""
SESSION, REVOCATION, PARKED = "session", "revocation", "parked"
JOIN_DUE, SYNC_DUE = "mixed-join", "mixed-sync"
"""When a member of the classic protocol must have joined again, or synced."""


class _Parked(msgspec.Struct, frozen=True):
    """A heartbeat that is answered as soon as there is news."""

    request_id: int
    beat: Beat


class ConsumerMembers:
    """Decides heartbeats, and what follows from time and from other members' heartbeats."""

    def __init__(self, timers: Timers[tuple[str, ...]], fired: dict[tuple[str, ...], None]) -> None:
        self._timers = timers
        self._fired = fired
        self._parked: dict[str, dict[str, _Parked]] = {}
        """By group and member."""
        self._places: dict[int, Place] = {}
        """Of parked requests."""
        self._fenced: set[Place] = set()
        """Members that did not let go in time. They keep what they have until they come back without it, or their
        session ends: they may still hand it out."""
        self._sequences: dict[Place, int] = {}
        self._dirty: dict[str, None] = {}
        """Groups in which parked heartbeats may have news."""
        self.left: dict[Place, float] = {}
        """When the sessions end of members that the log has just taken out: their group may be classic by now."""

    # The log and the view

    def activate(self, state: GroupState, clock: Clock, session_ms: int, bonus_ms: int) -> None:
        """All sessions begin with time to spare: the coordinator before may have renewed them meanwhile."""
        for member_id, value in state.members.items():
            own = session_ms if value.classic is None else value.classic.session_timeout_ms
            self._set(SESSION, state.group, member_id, clock.now + (own + bonus_ms) / 1000)
            if state.current(member_id).state == r.MemberState.UNREVOKED:
                due = clock.now + value.rebalance_timeout_ms / 1000
                self._set(REVOCATION, state.group, member_id, due)
        self._dirty[state.group] = None

    def applied(self, state: GroupState, key: Any, before: r.CurrentValue | None) -> None:
        """A record of the group has been applied; `before`: the member's current assignment, if it was one."""
        self._dirty[state.group] = None
        match key:
            case r.CurrentKey(group=group, member_id=member_id):
                current = state.currents.get(member_id)
                if current is None or current.state != r.MemberState.UNREVOKED:
                    self._drop(REVOCATION, group, member_id)
                    self._fenced.discard((group, member_id))
                elif before is None or before.pending != current.pending:
                    # Another revocation has a time of its own; who decided it knows the time and sets it.
                    self._drop(REVOCATION, group, member_id)
            case r.MemberKey(group=group, member_id=member_id) if member_id not in state.members:
                over = (SESSION, group, member_id) in self._fired
                due = float("-inf") if over else self._timers.due((SESSION, group, member_id))
                if due is not None:
                    self.left[group, member_id] = due
                for kind in (SESSION, JOIN_DUE, SYNC_DUE):
                    self._drop(kind, group, member_id)
                self._sequences.pop((group, member_id), None)

    def view_changed(self, groups: Iterable[GroupState]) -> None:
        for state in groups:
            if state.is_consumer:
                self._dirty[state.group] = None

    def withdrawn(self, request_id: int) -> None:
        """A parked heartbeat has been answered otherwise."""
        place = self._places.pop(request_id, None)
        if place is not None:
            group, member_id = place
            del self._parked[group][member_id]
            if not self._parked[group]:
                del self._parked[group]
            self._drop(PARKED, *place)

    def _find(self, group: str, member_id: str) -> _Parked | None:
        return self._parked.get(group, {}).get(member_id)

    # Members of the classic protocol

    def heard(self, group: str, member_id: str, session: float, now: float) -> None:
        """A member's session, in seconds, begins again."""
        self._set(SESSION, group, member_id, now + session)

    def is_fenced(self, group: str, member_id: str) -> bool:
        return (group, member_id) in self._fenced

    def come_back(self, group: str, member_id: str) -> None:
        """A member begins anew, with what it says that it owns."""
        self._fenced.discard((group, member_id))

    def time(self, kind: str, group: str, member_id: str, due: float) -> None:
        self._set(kind, group, member_id, due)

    def untime(self, kind: str, group: str, member_id: str) -> None:
        self._drop(kind, group, member_id)

    def is_timed(self, kind: str, group: str, member_id: str) -> bool:
        return (kind, group, member_id) in self._timers or (kind, group, member_id) in self._fired

    # Heartbeats

    def beat(
        self,
        request_id: int,
        beat: Beat,
        state: GroupState,
        context: Context,
        classic: ClassicState | None = None,
    ) -> Decision:
        """The answer to a heartbeat, or its place among the parked ones.

        classic: the group as it is now, if it is a classic one with members; the heartbeat moves it up.

        Raises:
          GroupRefusal: It is no member's, or not of its present epoch.
        """
        check_beat(beat, context.settings)
        place = (beat.group, beat.member_id)
        late = 0 <= beat.sequence <= self._sequences.get(place, -1)
        refuse_if(
            late, ErrorCode.REQUEST_TIMED_OUT, "a later heartbeat of the member has come before this one"
        )
        draft, moved = Draft(state), ""
        if classic is not None:
            stranger = beat.member_epoch != JOIN
            told = f"group {beat.group!r} has no member {beat.member_id!r}"
            refuse_if(stranger, ErrorCode.UNKNOWN_MEMBER_ID, told)
            moved = move_up(draft, classic, context)
        elif state.classic is not None:
            draft.put(r.ClassicGroupKey(state.group), None)
        if beat.member_epoch in (LEAVE, LEAVE_STATIC):
            return self._leave(request_id, beat, state, draft, context)
        fenced = place in self._fenced and beat.member_epoch != JOIN
        refuse_if(fenced, ErrorCode.FENCED_MEMBER_EPOCH, LATE)
        rebalance(draft, context, admit(draft, beat, context) or moved)
        stepped = advance(draft, beat.member_id, owned_by(beat), context)
        full = beat.owned is not None and beat.rebalance_timeout_ms > 0
        news = stepped or full or beat.member_epoch != draft.state.current(beat.member_id).epoch
        parks = beat.max_wait_ms > 0 and not news
        replies: list[Reply] = []
        if not parks:
            replies.append(self._reply(request_id, beat, draft.state, context, news=news))
        older = self._find(*place)
        if older is not None:
            # Whoever sends another does not wait for the first any more; it is told what it knows.
            replies.append(self._reply(older.request_id, older.beat, state, context, news=False))

        def then() -> None:
            if older is not None:
                self.withdrawn(older.request_id)
            now = context.clock.now
            session = context.settings.consumer_session_timeout_ms
            self._set(SESSION, *place, now + session / 1000)
            self._fenced.discard(place)
            if beat.sequence >= 0:
                self._sequences[place] = beat.sequence
            self.limit_revocation(draft, beat.member_id, context)
            if parks:
                wait = min(beat.max_wait_ms, context.settings.consumer_heartbeat_interval_ms)
                self._parked.setdefault(beat.group, {})[beat.member_id] = _Parked(request_id, beat)
                self._places[request_id] = place
                self._set(PARKED, *place, now + wait / 1000)

        return Decision(
            request_id=request_id,
            entries=tuple(draft.entries),
            replies=tuple(replies),
            then=then,
            notes=tuple(draft.notes),
        )

    def limit_revocation(self, draft: Draft, member_id: str, context: Context) -> None:
        """A member that has just been asked to let go has its rebalance timeout for it."""
        place = draft.state.group, member_id
        if draft.state.current(member_id).state != r.MemberState.UNREVOKED or place in self._fenced:
            return
        if (REVOCATION, *place) not in self._timers and (REVOCATION, *place) not in self._fired:
            timeout = draft.state.members[member_id].rebalance_timeout_ms
            self._set(REVOCATION, *place, context.clock.now + timeout / 1000)

    def _leave(
        self, request_id: int, beat: Beat, state: GroupState, draft: Draft, context: Context
    ) -> Decision:
        check_member(draft.state, beat.member_id, beat.instance_id)
        if beat.member_epoch == LEAVE:
            remove(draft, beat.member_id, context, f"member {beat.member_id} has left")
        else:
            step_out(draft, beat.member_id)
        place = beat.group, beat.member_id
        replies: list[Reply] = []
        parked = self._find(*place)
        steps_out = beat.member_epoch == LEAVE_STATIC
        if parked is not None and steps_out:
            # It waits no more: to look at it again would be to take a member that is away for alive.
            replies.append(self._reply(parked.request_id, parked.beat, state, context, news=False))

        def then() -> None:
            self._sequences.pop(place, None)
            self._fenced.discard(place)
            if steps_out:
                self._sequences[place] = beat.sequence
            if parked is not None and steps_out:
                self.withdrawn(parked.request_id)
            elif parked is not None:
                self._dirty[beat.group] = None

        body = ConsumerGroupHeartbeatResponse(member_id=beat.member_id, member_epoch=beat.member_epoch)
        replies.append(Reply(request_id=request_id, body=body, groups=frozenset({beat.group})))
        return Decision(
            request_id=request_id,
            entries=tuple(draft.entries),
            replies=tuple(replies),
            then=then,
            notes=tuple(draft.notes),
        )

    def _reply(
        self, request_id: int, beat: Beat, state: GroupState, context: Context, *, news: bool
    ) -> Reply:
        current = state.current(beat.member_id)
        body = ConsumerGroupHeartbeatResponse(
            member_id=beat.member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=context.settings.consumer_heartbeat_interval_ms,
            session_timeout_ms=context.settings.consumer_session_timeout_ms,
            assignment=to_lists(current.assigned) if news else None,
        )
        return Reply(request_id=request_id, body=body, groups=frozenset({state.group}))

    # Without a request

    def fire(self, kind: str, state: GroupState, member_id: str, context: Context) -> Decision | None:
        """A timer's time has come; None: there is nothing to do (any more)."""
        key = (kind, state.group, member_id)
        if member_id not in state.members:
            return None

        def over() -> None:
            self._fired.pop(key, None)

        if kind == SESSION:
            draft = Draft(state)
            remove(draft, member_id, context, f"the session of member {member_id} is over")
            return Decision(entries=tuple(draft.entries), then=over, notes=tuple(draft.notes))
        parked = self._find(state.group, member_id)
        if kind in (REVOCATION, JOIN_DUE, SYNC_DUE):
            self._fenced.add((state.group, member_id))
            if parked is not None:
                self._dirty[state.group] = None
            return None
        if parked is None:
            return None
        return self._unpark(parked, self._reply(parked.request_id, parked.beat, state, context, news=False))

    def _unpark(self, parked: _Parked, reply: Reply, draft: Draft | None = None) -> Decision:
        def then() -> None:
            self.withdrawn(parked.request_id)

        entries = tuple(draft.entries) if draft is not None else ()
        return Decision(entries=entries, replies=(reply,), then=then)

    def follow_up(self, groups: Mapping[str, GroupState], context: Context) -> Decision | None:
        """The consequences of a change for the group's target, and for those who wait for news."""
        while self._dirty:
            group = next(iter(self._dirty))
            state = groups.get(group) or GroupState(group)
            if state.members:
                draft = Draft(state)
                rebalance(draft, context)
                if draft.entries:
                    return Decision(entries=tuple(draft.entries), notes=tuple(draft.notes))
            for parked in self._parked.get(group, {}).values():
                decision = self._news(parked, state, context)
                if decision is not None:
                    return decision
            del self._dirty[group]
        return None

    def _news(self, parked: _Parked, state: GroupState, context: Context) -> Decision | None:
        beat = parked.beat
        try:
            check_member(state, beat.member_id, beat.instance_id)
            fenced = (beat.group, beat.member_id) in self._fenced
            refuse_if(fenced, ErrorCode.FENCED_MEMBER_EPOCH, LATE)
        except GroupRefusal as refused:
            body = ConsumerGroupHeartbeatResponse(error=refused.error, message=refused.message)
            reply = Reply(request_id=parked.request_id, body=body, groups=frozenset({beat.group}))
            return self._unpark(parked, reply)
        draft = Draft(state)
        stepped = advance(draft, beat.member_id, owned_by(beat), context)
        if not stepped and state.current(beat.member_id).epoch == beat.member_epoch:
            return None
        reply = self._reply(parked.request_id, beat, draft.state, context, news=True)
        decision = self._unpark(parked, reply, draft)

        def then() -> None:
            self.withdrawn(parked.request_id)
            self.limit_revocation(draft, beat.member_id, context)

        return structs.replace(decision, then=then)

    # Timers

    def _set(self, kind: str, group: str, member_id: str, due: float) -> None:
        self._fired.pop((kind, group, member_id), None)
        self._timers.set((kind, group, member_id), due)

    def _drop(self, kind: str, group: str, member_id: str) -> None:
        self._fired.pop((kind, group, member_id), None)
        self._timers.cancel((kind, group, member_id))
