"""Members of the classic protocol in groups of the consumer protocol (KIP-848).

Their joins are answered at once, with their member epoch as the generation and without a leader; with the sync they
are told what they own. They learn that there is something new by their heartbeats, and then join again with what
they own by then. A member that does not come in time is told to begin again, and keeps nothing beyond its session.
"""

from __future__ import annotations

from collections.abc import Callable

from ..coordination.decisions import Decision, Reply
from ..coordination.refusals import GroupRefusal, refuse_if
from ..errors import ErrorCode
from ..kafka.schema import RecordFormatError
from ..messages import groups as gm
from ..wording import counted
from . import records as r
from .classic_state import CONSUMER_PROTOCOL, ClassicMember
from .consumer_context import Context
from .consumer_group import advance, after_removal, check_member, forget, rebalance
from .consumer_members import JOIN_DUE, LATE, SYNC_DUE, ConsumerMembers
from .embedded import EmbeddedSubscription, as_partitions, decode_subscription
from .moves import described, embedded_assignment, goes_down, ids_of, move_down
from .state import Draft, GroupState

Then = Callable[[], None] | None

Request = gm.JoinGroupRequest | gm.SyncGroupRequest | gm.HeartbeatRequest | gm.LeaveGroupRequest


class MixedMembers:
    """Decides what they ask. Their sessions and revocations are timed with those of all other members."""

    def __init__(self, consumers: ConsumerMembers) -> None:
        self._consumers = consumers

    def decide(self, request_id: int, message: Request, state: GroupState, context: Context) -> Decision:
        """Raises `GroupRefusal` for what is not to be."""
        match message:
            case gm.JoinGroupRequest():
                return self._join(request_id, message, state, context)
            case gm.SyncGroupRequest():
                return self._sync(request_id, message, state, context)
            case gm.HeartbeatRequest():
                return self._heartbeat(request_id, message, state, context)
            case gm.LeaveGroupRequest():
                return self._leave(request_id, message, state, context)

    # Join

    def _join(
        self, request_id: int, ask: gm.JoinGroupRequest, state: GroupState, context: Context
    ) -> Decision:
        subscription = _check_join(ask, context)
        draft, group = Draft(state), state.group
        holder = None if ask.instance_id is None else state.holder_of(ask.instance_id)
        member_id = ask.member_id
        if member_id:
            fenced = holder is not None and holder != member_id
            told = f"instance {ask.instance_id!r} is member {holder!r} by now"
            refuse_if(fenced, ErrorCode.FENCED_INSTANCE_ID, told)
            native = member_id in state.members and state.members[member_id].classic is None
            told = f"member {member_id!r} speaks the consumer protocol"
            refuse_if(native, ErrorCode.UNKNOWN_MEMBER_ID, told)
            # An id that was only given out is known to nobody, and owns nothing. Who was put out must let go of
            # what it still hands out before it is a member again.
            had = member_id not in state.members and bool(subscription.owned)
            stranger = had or (ask.instance_id is not None and holder is None)
            refuse_if(stranger, ErrorCode.UNKNOWN_MEMBER_ID, f"group {group!r} has no member {member_id!r}")
        elif holder is None and ask.instance_id is None and ask.known_member_id:
            body = gm.JoinGroupResponse(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=ask.fresh_id)
            return _reply(request_id, body, group)
        else:
            member_id = ask.fresh_id
        if holder is not None and holder != member_id:
            _take_over(draft, holder, member_id)
        known = member_id in draft.state.members
        full = not known and len(state.members) >= context.settings.consumer_max_size
        members = counted(len(state.members), "member")
        refuse_if(full, ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {members}")
        before = draft.state.member_topics(member_id) if known else None
        value = described(_member(ask, member_id), subscription)
        if value != draft.state.members.get(member_id):
            draft.put(r.MemberKey(group, member_id), value)
        why = f"member {member_id} has joined" if before is None else ""
        if before is not None and before != draft.state.member_topics(member_id):
            why = f"member {member_id} reads other topics"
        if goes_down(draft.state, context):
            # It has come in the place of the last member of the consumer protocol.
            move_down(draft, context)
            body = gm.JoinGroupResponse(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member_id)
            return _written(request_id, body, draft)
        owned = ids_of(as_partitions(subscription.owned), context.view)
        if self._consumers.is_fenced(group, member_id):
            # It may come late, but not with what it was to let go: that would have no end.
            kept = owned & r.as_set(state.current(member_id).pending)
            refuse_if(bool(kept), ErrorCode.UNKNOWN_MEMBER_ID, LATE)
        rebalance(draft, context, why)
        advance(draft, member_id, owned, context)
        body = gm.JoinGroupResponse(
            generation=draft.state.current(member_id).epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol=ask.protocols[0].name,
            member_id=member_id,
        )

        def then() -> None:
            now, consumers = context.clock.now, self._consumers
            consumers.heard(group, member_id, ask.session_timeout_ms / 1000, now)
            consumers.come_back(group, member_id)
            consumers.untime(JOIN_DUE, group, member_id)
            consumers.time(SYNC_DUE, group, member_id, now + ask.rebalance_timeout_ms / 1000)
            consumers.limit_revocation(draft, member_id, context)

        return _written(request_id, body, draft, then)

    # The others

    def _check(
        self, state: GroupState, member_id: str, instance_id: str | None, generation: int
    ) -> r.ClassicMetadata:
        check_member(state, member_id, instance_id)
        classic = state.members[member_id].classic
        if classic is None:
            raise GroupRefusal(
                ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id!r} speaks the consumer protocol"
            )
        late = self._consumers.is_fenced(state.group, member_id)
        refuse_if(
            late, ErrorCode.UNKNOWN_MEMBER_ID, "it did not join again, or release its partitions, in time"
        )
        epoch = state.current(member_id).epoch
        wrong = generation != epoch
        refuse_if(wrong, ErrorCode.ILLEGAL_GENERATION, f"generation {generation} is not {epoch}")
        return classic

    def _sync(
        self, request_id: int, ask: gm.SyncGroupRequest, state: GroupState, context: Context
    ) -> Decision:
        classic = self._check(state, ask.member_id, ask.instance_id, ask.generation)
        value = state.members[ask.member_id]
        body = gm.SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL,
            protocol=classic.protocols[0].name,
            assignment=embedded_assignment(state.current(ask.member_id), value, context.view),
        )

        def then() -> None:
            self._consumers.untime(SYNC_DUE, ask.group, ask.member_id)
            self._heard(state, ask.member_id, classic, context)

        return _reply(request_id, body, ask.group, then)

    def _heard(self, state: GroupState, member_id: str, classic: r.ClassicMetadata, context: Context) -> None:
        session = classic.session_timeout_ms / 1000
        self._consumers.heard(state.group, member_id, session, context.clock.now)

    def _heartbeat(
        self, request_id: int, ask: gm.HeartbeatRequest, state: GroupState, context: Context
    ) -> Decision:
        classic = self._check(state, ask.member_id, ask.instance_id, ask.generation)
        current = state.current(ask.member_id)
        news = state.epoch > current.epoch
        if not news and current.state == r.MemberState.UNRELEASED:
            news = advance(Draft(state), ask.member_id, None, context)
        error = ErrorCode.REBALANCE_IN_PROGRESS if news else ErrorCode.NONE

        def then() -> None:
            consumers, now = self._consumers, context.clock.now
            self._heard(state, ask.member_id, classic, context)
            if news and not consumers.is_timed(JOIN_DUE, ask.group, ask.member_id):
                timeout = state.members[ask.member_id].rebalance_timeout_ms / 1000
                consumers.time(JOIN_DUE, ask.group, ask.member_id, now + timeout)

        return _reply(request_id, gm.HeartbeatResponse(error=error), ask.group, then)

    def _leave(
        self, request_id: int, ask: gm.LeaveGroupRequest, state: GroupState, context: Context
    ) -> Decision:
        """Members by their ids; by their instances an operator puts out those of either protocol (KIP-345)."""
        draft, errors, gone = Draft(state), [], []
        for each in ask.members:
            holder = None if each.instance_id is None else draft.state.holder_of(each.instance_id)
            member_id = each.member_id or holder or ""
            error = ErrorCode.NONE
            if holder is not None and holder != member_id:
                error = ErrorCode.FENCED_INSTANCE_ID
            elif member_id not in draft.state.members:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                forget(draft, member_id)
                gone.append(member_id)
            errors.append(int(error))
        if gone:
            after_removal(draft, context, f"{', '.join(gone)} left")
        return _written(request_id, gm.LeaveGroupResponse(errors=errors), draft)


def _check_join(ask: gm.JoinGroupRequest, context: Context) -> EmbeddedSubscription:
    settings, mismatch = context.settings, ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    allowed = least <= ask.session_timeout_ms <= most
    told = f"session timeout {ask.session_timeout_ms} ms; it must be {least} to {most}"
    refuse_if(not allowed, ErrorCode.INVALID_SESSION_TIMEOUT, told)
    wrong = ask.protocol_type != CONSUMER_PROTOCOL or not ask.protocols
    refuse_if(wrong, mismatch, f"group {ask.group!r} consists of consumers")
    try:
        return decode_subscription(ask.protocols[0].metadata)
    except RecordFormatError as error:
        raise GroupRefusal(mismatch, f"the subscription cannot be decoded: {error}") from error


def _member(ask: gm.JoinGroupRequest, member_id: str) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        instance_id=ask.instance_id,
        client_id=ask.client_id,
        client_host=ask.client_host,
        rebalance_timeout_ms=ask.rebalance_timeout_ms,
        session_timeout_ms=ask.session_timeout_ms,
        protocols=tuple(
            [r.ClassicProtocol(name=each.name, metadata=each.metadata) for each in ask.protocols]
        ),
    )


def _take_over(draft: Draft, holder: str, member_id: str) -> None:
    """A static member has come back under another id, with what it had; its former process is fenced (KIP-345)."""
    state = draft.state
    value, current, target = state.members[holder], state.current(holder), state.targets.get(holder)
    forget(draft, holder)
    draft.put(r.MemberKey(state.group, member_id), value)
    if target is not None:
        draft.put(r.TargetKey(state.group, member_id), target)
    epoch = max(current.epoch, 0)
    taken = r.CurrentValue(
        epoch=epoch, state=current.state, assigned=current.assigned, pending=current.pending
    )
    draft.put(r.CurrentKey(state.group, member_id), taken)


def _reply(request_id: int, body: object, group: str, then: Then = None) -> Decision:
    reply = Reply(request_id=request_id, body=body, groups=frozenset({group}))
    return Decision(request_id=request_id, replies=(reply,), then=then)


def _written(request_id: int, body: object, draft: Draft, then: Then = None) -> Decision:
    reply = Reply(request_id=request_id, body=body, groups=frozenset({draft.state.group}))
    return Decision(
        request_id=request_id,
        entries=tuple(draft.entries),
        replies=(reply,),
        then=then,
        notes=tuple(draft.notes),
    )
