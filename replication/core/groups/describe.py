"""The descriptions of a group for those who ask about it."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ErrorCode
from ..messages import groups as gm
from . import records as r
from .assignors.assignment import Assignor
from .assignors.names import elect
from .classic_state import ClassicMember, ClassicState
from .consumer_group import is_settled, to_lists
from .state import GroupState


def listing(state: GroupState, classic: ClassicState | None) -> gm.GroupListing:
    """One line of a list."""
    kind, protocol_type = kind_of(state, classic)
    state_name = _state(state, classic)
    return gm.GroupListing(group=state.group, type=kind, state=state_name, protocol_type=protocol_type)


def kind_of(state: GroupState, classic: ClassicState | None) -> tuple[str, str]:
    """Type and protocol type of a group."""
    if state.is_consumer:
        return "consumer", "consumer"
    if classic is None or not classic.protocol_type:
        return "simple", ""
    return "classic", classic.protocol_type


def _state(state: GroupState, classic: ClassicState | None) -> str:
    """Of a group of the consumer protocol: `Reconciling` while anybody waits for what it is to have."""
    if not state.is_consumer:
        return classic.phase.value if classic is not None else "Empty"
    if not state.members:
        return "Empty"
    return "Stable" if all(is_settled(state, each) for each in state.members) else "Reconciling"


def describe(
    group: str, state: GroupState | None, classic: ClassicState | None, assignors: Iterable[Assignor]
) -> gm.DescribedGroup:
    """All about one group, with an error if it does not exist.

    assignors: that the coordinator may use.
    """
    if state is None:
        return gm.DescribedGroup(group=group, error=ErrorCode.GROUP_ID_NOT_FOUND, state="Dead")
    kind, protocol_type = kind_of(state, classic)
    epoch, protocol = state.epoch, ""
    if classic is not None and not state.is_consumer:
        epoch, protocol = classic.generation, classic.protocol or ""
        members = [_classic_member(each, classic) for each in classic.members.values()]
    else:
        members = [_member(state, each) for each in sorted(state.members)]
        if state.is_consumer:
            protocol = elect([each.assignor for each in state.members.values()], assignors).name
    return gm.DescribedGroup(
        group=group,
        type=kind,
        state=_state(state, classic),
        epoch=epoch,
        target_epoch=state.assignment_epoch,
        protocol_type=protocol_type,
        protocol=protocol,
        members=members,
    )


def _member(state: GroupState, member_id: str) -> gm.DescribedMember:
    value, current = state.members[member_id], state.current(member_id)
    target = state.targets.get(member_id) or r.TargetValue()
    return gm.DescribedMember(
        member_id=member_id,
        instance_id=value.instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rack=value.rack,
        epoch=current.epoch,
        topics=sorted(state.member_topics(member_id)),
        owned=to_lists(current.assigned),
        target=to_lists(target.topics),
        is_classic=value.classic is not None,
    )


def _classic_member(member: ClassicMember, classic: ClassicState) -> gm.DescribedMember:
    return gm.DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        epoch=classic.generation,
        is_classic=True,
        subscription=member.metadata(classic.protocol),
        assignment=member.assignment,
    )
