"""Committed offsets: who may commit what, and what is told of them (KIP-848, KIP-1251, KIP-447)."""

from __future__ import annotations

from typing import Any

from ..coordination.refusals import GroupRefusal, refuse_if
from ..coordination.topics_view import TopicsView
from ..errors import ErrorCode
from ..messages import groups as gm
from . import records as r
from .classic_state import ClassicPhase, ClassicState
from .consumer_context import Context
from .consumer_group import check_member
from .state import Committed, GroupState

Commit = gm.CommitGroupOffsetsRequest | gm.TxnOffsetCommitRequest
Entries = list[tuple[Any, Any | None]]


def plan_commit(
    state: GroupState, classic: ClassicState | None, request: Commit, context: Context
) -> tuple[Entries, list[gm.PartitionError]]:
    """The entries to write for a commit, and the answer for each partition.

    Raises:
      GroupRefusal: The sender may commit nothing.
    """
    refuse_if(not request.group, ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    owned = _check_sender(state, classic, request)
    entries: Entries = []
    told: list[gm.PartitionError] = []
    for each in request.offsets:
        error = _check_partition(each, owned, request.epoch, state, request.member_id, context)
        told.append(gm.PartitionError(topic=each.topic, partition=each.partition, error=error))
        if error == ErrorCode.NONE:
            value = r.OffsetValue(
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
                commit_timestamp=context.clock.wall_ms,
            )
            entries.append((r.OffsetKey(request.group, each.topic, each.partition), value))
    return entries, told


def _check_sender(
    state: GroupState, classic: ClassicState | None, request: Commit
) -> dict[r.TopicPartition, int] | None:
    """Refuse who may commit nothing; what a member of the consumer protocol owns, with its epochs."""
    if state.is_consumer:
        if request.epoch < 0 and not state.members:
            return None
        # Kafka does not ask which instance the member of a consumer group says it is, when it commits.
        check_member(state, request.member_id, None)
        current = state.current(request.member_id)
        ahead = request.epoch > current.epoch
        stale = ErrorCode.STALE_MEMBER_EPOCH
        by_generation = state.members[request.member_id].classic is not None
        if by_generation or isinstance(request, gm.TxnOffsetCommitRequest):
            stale = ErrorCode.ILLEGAL_GENERATION
        refuse_if(ahead, stale, f"epoch {request.epoch}, but the member is at {current.epoch}")
        return _held(current)
    if classic is not None and classic.members:
        _check_classic(classic, request)
    elif request.epoch >= 0:
        # Nobody is a member of a group that is not there. One that only has offsets is there.
        is_there = classic is not None or state.offsets or state.pending
        error = ErrorCode.UNKNOWN_MEMBER_ID if is_there else ErrorCode.ILLEGAL_GENERATION
        raise GroupRefusal(error, f"group {request.group!r} has no members")
    return None


def _check_classic(classic: ClassicState, request: Commit) -> None:
    transactional = isinstance(request, gm.TxnOffsetCommitRequest)
    # Clients before KIP-447 name no member in a transaction; their fence is the transactional id.
    if transactional and not request.member_id and request.epoch < 0:
        return
    classic.check_member(request.member_id, request.instance_id)
    wrong = request.epoch != classic.generation
    refuse_if(wrong, ErrorCode.ILLEGAL_GENERATION, f"generation {request.epoch} is not {classic.generation}")
    waits = classic.phase is ClassicPhase.COMPLETING and not transactional
    refuse_if(waits, ErrorCode.REBALANCE_IN_PROGRESS, "the group waits for its assignment")


def _check_partition(
    offset: gm.GroupOffset,
    owned: dict[r.TopicPartition, int] | None,
    epoch: int,
    state: GroupState,
    member_id: str,
    context: Context,
) -> ErrorCode:
    info = context.view.topics.get(offset.topic)
    if info is None or not 0 <= offset.partition < info.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if offset.topic_id not in ("", info.topic_id):
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if offset.offset < 0:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if len(offset.metadata.encode("utf-8", "surrogatepass")) > context.settings.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    if owned is None:
        return ErrorCode.NONE
    # The epoch at which the partition was given is the fence, not equality of epochs: a commit that was sent
    # before the member learned of its next epoch is as good as ever (KAFKA-19779).
    given = owned.get(r.TopicPartition(info.topic_id, offset.partition))
    least = state.current(member_id).epoch if given is None else given
    return ErrorCode.NONE if epoch >= least else ErrorCode.STALE_MEMBER_EPOCH


def read_offsets(
    state: GroupState | None, classic: ClassicState | None, request: gm.GroupOffsetsRequest, view: TopicsView
) -> list[gm.CommittedOffset]:
    """The committed offsets; a partition that is named often is answered once.

    Raises:
      GroupRefusal: The sender says that it is a member, and is none.
    """
    held = None
    if request.member_id or request.epoch >= 0:
        held = _check_reader(state, classic, request)
    offsets = state.offsets if state is not None else {}
    unstable = _undecided(state) if request.require_stable and state is not None else set()
    if request.partitions is None:
        return [_told(*place, offsets, unstable) for place in sorted(offsets.keys() | unstable)]
    told = []
    for each in dict.fromkeys(request.partitions):  # its metadata may be long: thousands of times, gigabytes
        error = _check_meaning(each, held, view)
        if error is None:
            told.append(_told(each.topic, each.partition, offsets, unstable))
        else:
            told.append(gm.CommittedOffset(topic=each.topic, partition=each.partition, error=error))
    return told


def _check_meaning(
    asked: gm.TopicPartitionName, held: dict[r.TopicPartition, int] | None, view: TopicsView
) -> ErrorCode | None:
    """Why a partition's offset is not told to who says which topic of its name is meant."""
    if not asked.topic_id:
        return None
    info = view.topics.get(asked.topic)
    if info is None or info.topic_id != asked.topic_id:
        # What is committed may be of another topic of that name.
        return ErrorCode.INCONSISTENT_TOPIC_ID
    if held is not None and r.TopicPartition(asked.topic_id, asked.partition) not in held:
        # The classic protocol assigns by name: what a member was given of a topic it may take for a topic that was
        # made since under that name. Nothing is read before its position is known, so the error stops it here.
        return ErrorCode.STALE_MEMBER_EPOCH
    return None


def _check_reader(
    state: GroupState | None, classic: ClassicState | None, request: gm.GroupOffsetsRequest
) -> dict[r.TopicPartition, int] | None:
    """Refuse who is no member, or of another epoch; what a member of the consumer protocol holds."""
    held = None
    if state is not None and state.is_consumer:
        check_member(state, request.member_id, None)
        current = state.current(request.member_id)
        epoch, held = current.epoch, _held(current)
        error = ErrorCode.STALE_MEMBER_EPOCH
    elif classic is not None:
        classic.check_member(request.member_id, None)
        epoch, error = classic.generation, ErrorCode.ILLEGAL_GENERATION
    else:
        raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {request.group!r}")
    refuse_if(request.epoch != epoch, error, f"epoch {request.epoch} is not {epoch}")
    return held


def _held(current: r.CurrentValue) -> dict[r.TopicPartition, int]:
    """The partitions that a member has or has yet to let go, with the epochs at which they were given."""
    return r.as_owned((*current.pending, *current.assigned), current.epoch)


def _undecided(state: GroupState) -> set[tuple[str, int]]:
    return {each for offsets in state.pending.values() for each in offsets}


def _told(
    topic: str, partition: int, offsets: dict[tuple[str, int], Committed], unstable: set[tuple[str, int]]
) -> gm.CommittedOffset:
    if (topic, partition) in unstable:
        return gm.CommittedOffset(topic=topic, partition=partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    found = offsets.get((topic, partition))
    if found is None:
        return gm.CommittedOffset(topic=topic, partition=partition)
    return gm.CommittedOffset(
        topic=topic,
        partition=partition,
        offset=found.value.offset,
        leader_epoch=found.value.leader_epoch,
        metadata=found.value.metadata,
    )
