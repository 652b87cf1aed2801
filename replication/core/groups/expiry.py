"""The end of group state, by itself or by an operator's request: offsets that are too old, and whole groups."""

from __future__ import annotations

from typing import Any

from ..coordination.refusals import GroupRefusal, refuse_if
from ..errors import ErrorCode
from ..messages import groups as gm
from ..wording import counted
from . import records as r
from .classic_state import ClassicPhase, ClassicState
from .consumer_context import Context
from .state import Committed, Draft, GroupState

Entries = list[tuple[Any, Any | None]]


def members_of(state: GroupState, classic: ClassicState | None) -> int:
    """How many members there are, of either protocol."""
    return len(state.members) + (len(classic.members) if classic is not None else 0)


def expire(state: GroupState, classic: ClassicState | None, context: Context) -> Entries:
    """Tombstones for what has outlived its retention (KIP-211), and for a group of which nothing is left."""
    pending = {each for offsets in state.pending.values() for each in offsets}
    draft = Draft(state)
    left = 0
    for (topic, partition), committed in sorted(state.offsets.items()):
        # What a transaction is about to replace is somebody's present work (KAFKA-19163, KAFKA-19164).
        kept = (topic, partition) in pending or not _is_over(state, classic, topic, committed, context)
        left += kept
        if not kept:
            draft.put(r.OffsetKey(state.group, topic, partition), None)
    if not left and not pending and not members_of(state, classic):
        end_group(draft)
    return draft.entries


def _is_over(
    state: GroupState, classic: ClassicState | None, topic: str, committed: Committed, context: Context
) -> bool:
    since = committed.value.commit_timestamp
    if state.is_consumer:
        if state.members and topic in state.topics():
            return False
    elif classic is not None and classic.members:
        # In a rebalance nobody knows what will be read next (KAFKA-13636).
        if classic.phase is not ClassicPhase.STABLE:
            return False
        read = classic.topics()
        if read is None or topic in read:
            return False
    elif state.classic is not None and state.classic.protocol_type:
        # An Empty group has had its offsets until its last member left, whenever they were committed.
        since = max(since, state.classic.state_timestamp)
    if committed.value.expire_timestamp != r.NO_TIMESTAMP:
        return context.clock.wall_ms >= committed.value.expire_timestamp
    return context.clock.wall_ms - since >= context.settings.offsets_retention_ms


def end_group(draft: Draft) -> None:
    """Remove the records of a group without members."""
    state = draft.state
    for regex in sorted(state.regexes):
        draft.put(r.RegexKey(state.group, regex), None)
    if state.target_epoch is not None:
        draft.put(r.TargetEpochKey(state.group), None)
    if state.meta is not None:
        draft.put(r.ConsumerGroupKey(state.group), None)
    if state.classic is not None:
        draft.put(r.ClassicGroupKey(state.group), None)


def delete_group(state: GroupState | None, classic: ClassicState | None, group: str) -> Entries:
    """An operator's wish that a group and its offsets are gone, those that are pending too.

    Raises:
      GroupRefusal: There is no such group, or it has members.
    """
    if state is None:
        raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
    count = members_of(state, classic)
    refuse_if(count > 0, ErrorCode.NON_EMPTY_GROUP, f"group {group!r} has {counted(count, 'member')}")
    draft = Draft(state)
    pending = {each for offsets in state.pending.values() for each in offsets}
    for topic, partition in sorted(state.offsets.keys() | pending):
        draft.put(r.OffsetKey(group, topic, partition), None)
    end_group(draft)
    return draft.entries


def delete_offsets(
    state: GroupState | None, classic: ClassicState | None, request: gm.DeleteGroupOffsetsRequest
) -> tuple[Entries, list[gm.PartitionError]]:
    """An operator's wish that some offsets are gone: of topics that nobody in the group reads.

    Raises:
      GroupRefusal: There is no such group, or nobody knows what it reads.
    """
    group = request.group
    if state is None or state.empty:
        raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
    read: set[str] | frozenset[str] | None = state.topics()
    if classic is not None and classic.members:
        read = classic.topics()
        unknown = read is None
        refuse_if(unknown, ErrorCode.NON_EMPTY_GROUP, f"group {group!r} has members of another protocol type")
    assert read is not None
    pending = {each for offsets in state.pending.values() for each in offsets}
    entries: Entries = []
    told: list[gm.PartitionError] = []
    for each in request.partitions:
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if each.topic in read else ErrorCode.NONE
        told.append(gm.PartitionError(topic=each.topic, partition=each.partition, error=error))
        place = (each.topic, each.partition)
        if error == ErrorCode.NONE and (place in state.offsets or place in pending):
            entries.append((r.OffsetKey(group, each.topic, each.partition), None))
    return entries, told


def forget_topics(state: GroupState, gone: frozenset[str]) -> Entries:
    """Tombstones for the offsets of topics that were deleted: another topic of the name begins at its own start."""
    pending = {each for offsets in state.pending.values() for each in offsets}
    return [
        (r.OffsetKey(state.group, topic, partition), None)
        for topic, partition in sorted(state.offsets.keys() | pending)
        if topic in gone
    ]
