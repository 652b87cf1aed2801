"""Groups that change their protocol: up to the consumer protocol with its first member, and down with its last.

Each move is one batch, so that a group has one type whenever its coordinator changes (KIP-848). Members of the
classic protocol live on in the other one: what they said of themselves stands in their member records.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Set

from ..coordination.refusals import GroupRefusal, refuse_if
from ..coordination.topics_view import TopicsView
from ..errors import ErrorCode
from ..kafka.schema import RecordFormatError
from . import records as r
from .assignors.assignment import Partition
from .classic_state import CONSUMER_PROTOCOL, ClassicMember, ClassicState
from .consumer_context import Context
from .embedded import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    as_numbers,
    as_partitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from .state import Draft, GroupState


class MigrationPolicy(enum.Enum):
    """The moves that there are (`group_consumer_migration_policy`)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def goes_up(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def goes_down(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


def move_up(draft: Draft, classic: ClassicState, context: Context) -> str:
    """Make a group of the consumer protocol of a classic one; every member has what it was last assigned.

    It has yet to let go of partitions that its last join claims and that it was not assigned again (KIP-429).

    Returns why it must be rebalanced, whatever becomes of its members: what a client has shared out need not be all
    that there is.

    Raises:
      GroupRefusal: The policy is against it, or the members are no consumers.
    """
    mismatch, group = ErrorCode.INCONSISTENT_GROUP_PROTOCOL, classic.group
    allowed = MigrationPolicy(context.settings.consumer_migration_policy).goes_up
    refuse_if(
        not allowed,
        mismatch,
        f"group {group!r} uses the classic protocol, and group_consumer_migration_policy keeps it there",
    )
    refuse_if(
        classic.protocol_type != CONSUMER_PROTOCOL,
        mismatch,
        f"the members of group {group!r} are not consumers",
    )
    view, epoch = context.view, max(1, classic.generation)
    found = {each.member_id: _read(each, classic) for each in classic.members.values()}
    topics = {topic for subscription, _ in found.values() for topic in subscription.topics}
    if draft.state.classic is not None:
        draft.put(r.ClassicGroupKey(group), None)
    draft.put(
        r.ConsumerGroupKey(group),
        r.ConsumerGroupValue(
            epoch=epoch, metadata_hash=view.digest(topics), creation_time_ms=context.clock.wall_ms
        ),
    )
    # An assignor on a client may have given a partition to two: it is one's from here on.
    given: set[r.TopicPartition] = set()
    shares: dict[str, frozenset[r.TopicPartition]] = {}
    for member_id, (_, assignment) in found.items():
        shares[member_id] = ids_of(as_partitions(assignment.partitions), view) - given
        given |= shares[member_id]
    held = _held_still(found, given, view)
    for member_id, member in classic.members.items():
        subscription, assigned, pending = found[member_id][0], shares[member_id], held[member_id]
        draft.put(r.MemberKey(group, member_id), described(member, subscription))
        draft.put(r.TargetKey(group, member_id), r.TargetValue(topics=r.target_topics(assigned)))
        current = r.CurrentValue(
            epoch=epoch,
            previous_epoch=epoch,
            state=r.MemberState.UNREVOKED if pending else r.MemberState.STABLE,
            assigned=r.owned_topics(dict.fromkeys(assigned, epoch)),
            pending=r.owned_topics(dict.fromkeys(pending, epoch)),
        )
        draft.put(r.CurrentKey(group, member_id), current)
    draft.put(r.TargetEpochKey(group), r.TargetEpochValue(epoch=epoch, timestamp=context.clock.wall_ms))
    return "the group has moved up to the consumer protocol"


def _held_still(
    found: Mapping[str, tuple[EmbeddedSubscription, EmbeddedAssignment]],
    given: Set[r.TopicPartition],
    view: TopicsView,
) -> dict[str, frozenset[r.TopicPartition]]:
    """The partitions that each member owned when it joined and nobody is assigned: it may still hand those out.

    A cooperative assignor withholds for one round what is to move, and the owner learns that by its sync. Of two
    that claim a partition, the one of the later generation has it.
    """
    held: dict[str, frozenset[r.TopicPartition]] = {}
    claimed = set(given)
    for member_id in sorted(found, key=lambda each: -found[each][0].generation):
        held[member_id] = ids_of(as_partitions(found[member_id][0].owned), view) - claimed
        claimed |= held[member_id]
    return held


def _read(member: ClassicMember, state: ClassicState) -> tuple[EmbeddedSubscription, EmbeddedAssignment]:
    try:
        subscription = decode_subscription(member.metadata(state.protocol) or member.protocols[0].metadata)
        return subscription, decode_assignment(member.assignment)
    except RecordFormatError as error:
        raise GroupRefusal(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the subscription or assignment of classic member {member.member_id!r} cannot be decoded: {error}",
        ) from error


def described(member: ClassicMember, subscription: EmbeddedSubscription) -> r.MemberValue:
    """The self-description of a member of the classic protocol, in the form of the consumer protocol."""
    return r.MemberValue(
        instance_id=member.instance_id,
        rack=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=r.ClassicMetadata(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )


def ids_of(partitions: Iterable[Partition], view: TopicsView) -> frozenset[r.TopicPartition]:
    """Partitions by the ids of their topics; those that are not there are left out."""
    return frozenset(
        r.TopicPartition(view.topics[topic].topic_id, number)
        for topic, number in partitions
        if topic in view.topics and 0 <= number < view.topics[topic].partitions
    )


def embedded_assignment(current: r.CurrentValue, value: r.MemberValue, view: TopicsView) -> bytes:
    """A member's owned partitions, in the words of the classic protocol, in the version that it speaks itself."""
    owned = [
        Partition(view.names[each.topic_id], each.partition)
        for each in r.as_set(current.assigned)
        if each.topic_id in view.names
    ]
    spoken = value.classic.protocols[0].metadata[:2] if value.classic is not None else b""
    version = min(3, max(0, int.from_bytes(spoken, "big", signed=True)))
    return encode_assignment(EmbeddedAssignment(partitions=as_numbers(owned)), version)


def goes_down(state: GroupState, context: Context) -> bool:
    """Whether all members that are left speak the classic protocol, and have one that all of them support."""
    return (
        bool(state.members)
        and all(value.classic is not None for value in state.members.values())
        and MigrationPolicy(context.settings.consumer_migration_policy).goes_down
        and bool(_as_classic(state, context).common())
    )


def move_down(draft: Draft, context: Context) -> None:
    """Make a classic group of one whose members all speak that protocol; its coordinator rebalances it then."""
    state = draft.state
    classic = _as_classic(state, context)
    classic.protocol = classic.vote()
    # It has no leader until it is shared out: by that a later coordinator knows that it owes the rebalance.
    assert classic.leader is None
    for member_id in list(state.members):
        for key in (r.CurrentKey, r.TargetKey, r.MemberKey):
            draft.put(key(state.group, member_id), None)
    for regex in sorted(state.regexes):
        draft.put(r.RegexKey(state.group, regex), None)
    draft.put(r.TargetEpochKey(state.group), None)
    draft.put(r.ConsumerGroupKey(state.group), None)
    draft.put(r.ClassicGroupKey(state.group), classic.value(context.clock.wall_ms))


def _as_classic(state: GroupState, context: Context) -> ClassicState:
    members = {}
    for member_id, value in state.members.items():
        assert value.classic is not None
        members[member_id] = ClassicMember(
            member_id=member_id,
            instance_id=value.instance_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            session_timeout_ms=value.classic.session_timeout_ms,
            protocols=value.classic.protocols,
            assignment=embedded_assignment(state.current(member_id), value, context.view),
        )
    return ClassicState(
        group=state.group, protocol_type=CONSUMER_PROTOCOL, generation=state.epoch, members=members
    )
