"""Groups of the consumer protocol (KIP-848): who is a member, what each is to own, and each one's next step.

Every function works on a `Draft`; what it puts there is one batch with all else that the request causes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from ..coordination.decisions import Note
from ..coordination.refusals import GroupRefusal, refuse_if
from ..errors import ErrorCode
from ..messages.groups import JOIN, LEAVE_STATIC, ConsumerGroupHeartbeatRequest, TopicPartitionList
from ..wording import counted
from . import records as r
from .assignors.assignment import Partition, Subscription
from .assignors.names import elect
from .consumer_context import Context
from .moves import goes_down, move_down
from .reconcile import Situation, reconcile
from .settings import GroupSettings
from .state import Draft, GroupState

Beat = ConsumerGroupHeartbeatRequest


def check_beat(beat: Beat, settings: GroupSettings) -> None:
    """Refuse what is wrong by itself, whatever the group looks like."""
    invalid = ErrorCode.INVALID_REQUEST
    refuse_if(not beat.group, ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    refuse_if(not beat.member_id, invalid, "the member id is empty; the client makes it (KIP-1082)")
    refuse_if(beat.member_epoch < LEAVE_STATIC, invalid, f"member epoch {beat.member_epoch} is below -2")
    refuse_if(beat.instance_id == "", invalid, "the instance id is empty; leave it out instead")
    static_leave = beat.member_epoch == LEAVE_STATIC
    refuse_if(static_leave and beat.instance_id is None, invalid, "a static leave names no instance id")
    names = [assignor.name for assignor in settings.consumer_assignors]
    unknown = beat.assignor is not None and beat.assignor not in names
    refuse_if(unknown, ErrorCode.UNSUPPORTED_ASSIGNOR, f"no assignor {beat.assignor!r}; there are {names}")
    # Java's and RE2's patterns differ, and a hostile one may run for ever: clients resolve their own.
    refuse_if(
        bool(beat.regex),
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        "this node resolves no patterns: resolve them in the client",
    )
    if beat.member_epoch == JOIN:
        refuse_if(beat.rebalance_timeout_ms <= 0, invalid, "a join needs a rebalance timeout")
        refuse_if(not beat.topics, invalid, "a join needs a subscription")
        refuse_if(beat.owned is None or bool(beat.owned), invalid, "a joining member must not own partitions")


def owned_by(beat: Beat) -> frozenset[r.TopicPartition] | None:
    """The partitions that the member says it owns, None if it does not say."""
    return None if beat.owned is None else from_lists(beat.owned)


def from_lists(lists: Iterable[TopicPartitionList]) -> frozenset[r.TopicPartition]:
    return frozenset(r.TopicPartition(each.topic_id, number) for each in lists for number in each.partitions)


def to_lists(topics: Iterable[r.TopicPartitions]) -> list[TopicPartitionList]:
    return [TopicPartitionList(topic_id=each.topic_id, partitions=list(each.partitions)) for each in topics]


def admit(draft: Draft, beat: Beat, context: Context) -> str:
    """Find or make the member that a heartbeat comes from, and take what it says of itself.

    Returns why the group must be rebalanced for it: it is new, or reads other topics than before; empty if not.
    """
    state = draft.state
    holder = None if beat.instance_id is None else state.holder_of(beat.instance_id)
    known = beat.member_id in state.members
    if beat.member_epoch == JOIN:
        if holder is not None and holder != beat.member_id:
            _replace(draft, holder, beat)
        elif not known:
            full = len(state.members) >= context.settings.consumer_max_size
            members = counted(len(state.members), "member")
            refuse_if(full, ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {members}")
    else:
        check_member(state, beat.member_id, beat.instance_id)
        _check_epoch(state.current(beat.member_id), beat)
    before = draft.state.members.get(beat.member_id)
    value = _described(before or r.MemberValue(), beat)
    read = None if before is None else draft.state.member_topics(beat.member_id)
    if value != before:
        draft.put(r.MemberKey(state.group, beat.member_id), value)
    if read is None:
        return f"member {beat.member_id} has joined"
    if read != draft.state.member_topics(beat.member_id):
        return f"member {beat.member_id} reads other topics"
    return ""


def check_member(state: GroupState, member_id: str, instance_id: str | None) -> None:
    """Refuse who is no member: an instance that another has taken over is told so."""
    holder = None if instance_id is None else state.holder_of(instance_id)
    fenced = holder is not None and holder != member_id
    refuse_if(fenced, ErrorCode.FENCED_INSTANCE_ID, f"instance {instance_id!r} is member {holder!r} by now")
    # Nor is it one with an instance that nobody has: a member does not become another one.
    unknown = member_id not in state.members or (instance_id is not None and holder is None)
    refuse_if(unknown, ErrorCode.UNKNOWN_MEMBER_ID, f"group {state.group!r} has no member {member_id!r}")


def _check_epoch(current: r.CurrentValue, beat: Beat) -> None:
    if beat.member_epoch == current.epoch:
        return
    # Its answer was lost: it goes on from where it is, unless it holds what it has no right to.
    if beat.member_epoch == current.previous_epoch and beat.owned is not None:
        owned = from_lists(beat.owned)
        if owned <= r.as_set(current.assigned):
            return
    raise GroupRefusal(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"member epoch {beat.member_epoch}, but the member is at {current.epoch}",
    )


def _replace(draft: Draft, holder: str, beat: Beat) -> None:
    """A static member comes back under another id: it gets what it had, if nobody else is it (KIP-345)."""
    state = draft.state
    current, target = state.current(holder), state.targets.get(holder)
    # A process of the classic protocol does not say that it leaves to come back (KIP-345).
    alive = current.epoch != LEAVE_STATIC and state.members[holder].classic is None
    taken = f"instance {beat.instance_id!r} is member {holder!r}, which is alive"
    refuse_if(alive, ErrorCode.UNRELEASED_INSTANCE_ID, taken)
    value = state.members[holder]
    forget(draft, holder)
    draft.put(r.MemberKey(state.group, beat.member_id), value)
    if target is not None:
        draft.put(r.TargetKey(state.group, beat.member_id), target)
    draft.put(r.CurrentKey(state.group, beat.member_id), structs.replace(current, epoch=0, previous_epoch=-1))


def _described(before: r.MemberValue, beat: Beat) -> r.MemberValue:
    """The member's record after a heartbeat; what the heartbeat leaves out stays."""
    said: dict[str, Any] = {"client_id": beat.client_id, "client_host": beat.client_host, "classic": None}
    if beat.instance_id is not None:
        said["instance_id"] = beat.instance_id
    if beat.rack is not None:
        said["rack"] = beat.rack
    if beat.rebalance_timeout_ms > 0:
        said["rebalance_timeout_ms"] = beat.rebalance_timeout_ms
    if beat.topics is not None:
        said["topics"] = tuple(sorted(set(beat.topics)))
    if beat.assignor is not None:
        said["assignor"] = beat.assignor
    return structs.replace(before, **said)


def forget(draft: Draft, member_id: str) -> None:
    """Remove a member's records, in Kafka's order."""
    state = draft.state
    for key, present in (
        (r.CurrentKey(state.group, member_id), member_id in state.currents),
        (r.TargetKey(state.group, member_id), member_id in state.targets),
        (r.MemberKey(state.group, member_id), member_id in state.members),
    ):
        if present:
            draft.put(key, None)


def remove(draft: Draft, member_id: str, context: Context, why: str) -> None:
    """A member has left for good, or its session is over."""
    forget(draft, member_id)
    after_removal(draft, context, why)


def after_removal(draft: Draft, context: Context, why: str) -> None:
    """Members have gone: the others share what they had, or the group is a classic one again."""
    if goes_down(draft.state, context):
        move_down(draft, context)
    else:
        rebalance(draft, context, why)


def step_out(draft: Draft, member_id: str) -> None:
    """A static member has left to come back: what it has stays its own until its session is over."""
    current = draft.state.current(member_id)
    if current.epoch != LEAVE_STATIC:
        draft.put(
            r.CurrentKey(draft.state.group, member_id),
            structs.replace(current, epoch=LEAVE_STATIC, previous_epoch=-1, pending=()),
        )


def rebalance(draft: Draft, context: Context, why: str = "") -> None:
    """Raise the group epoch if members or topics have changed, and compute what each is to own.

    Epoch and target change in one batch, so that an epoch names one target.

    why: what has become of the members, for the operator; empty: nothing.
    """
    state = draft.state
    digest = context.view.digest(state.topics())
    if why or state.meta is None or digest != state.meta.metadata_hash:
        created = state.meta.creation_time_ms if state.meta is not None else context.clock.wall_ms
        draft.put(
            r.ConsumerGroupKey(state.group),
            r.ConsumerGroupValue(epoch=state.epoch + 1, metadata_hash=digest, creation_time_ms=created),
        )
        details = {"epoch": draft.state.epoch, "members": len(state.members)}
        reason = why or "topics that it reads were made, deleted or given partitions"
        draft.notes.append(Note(group=state.group, reason=reason, details=details))
    if draft.state.epoch > draft.state.assignment_epoch:
        _retarget(draft, context)


def _retarget(draft: Draft, context: Context) -> None:
    state, view = draft.state, context.view
    members = {}
    for member_id, value in state.members.items():
        owned = [
            Partition(view.names[each.topic_id], each.partition)
            for each in state.target(member_id)
            if each.topic_id in view.names
        ]
        members[member_id] = Subscription(
            topics=state.member_topics(member_id),
            instance_id=value.instance_id,
            owned=frozenset(owned),
        )
    wanted = [value.assignor for value in state.members.values()]
    assignor = elect(wanted, context.settings.consumer_assignors)
    for member_id, given in assignor.assign(view.counts(state.topics()), members).items():
        topics = r.target_topics(
            r.TopicPartition(view.topics[each.topic].topic_id, each.partition) for each in given
        )
        before = state.targets.get(member_id)
        if before is None or before.topics != topics:
            draft.put(r.TargetKey(state.group, member_id), r.TargetValue(topics=topics))
    draft.put(
        r.TargetEpochKey(state.group),
        r.TargetEpochValue(epoch=state.epoch, timestamp=context.clock.wall_ms),
    )


def is_settled(state: GroupState, member_id: str) -> bool:
    """Whether a member has all that it is to have, so that its heartbeat changes nothing."""
    current = state.currents.get(member_id)
    return (
        current is not None
        and current.state == r.MemberState.STABLE
        and current.epoch == state.assignment_epoch
    )


def advance(
    draft: Draft, member_id: str, owned: frozenset[r.TopicPartition] | None, context: Context
) -> bool:
    """Take the member's next step towards its target; whether there was one."""
    state = draft.state
    current = state.current(member_id)
    if is_settled(state, member_id):
        return False
    mine = state.member_topics(member_id)
    # A topic that the member has just unsubscribed from is revoked at once, before the target says so.
    target = {each for each in state.target(member_id) if context.view.names.get(each.topic_id) in mine}
    taken: set[r.TopicPartition] = set()
    for other, value in state.currents.items():
        if other != member_id:
            taken |= r.as_set(value.assigned) | r.as_set(value.pending)
    found = reconcile(
        current,
        Situation(target=target, target_epoch=state.assignment_epoch, owned=owned, taken=taken),
    )
    if found == current and member_id in state.currents:
        return False
    draft.put(r.CurrentKey(state.group, member_id), found)
    return True
