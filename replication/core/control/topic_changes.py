"""The changes of a topic that exists: its deletion, more partitions (KIP-195), or other settings (KIP-339).

Each change is one transaction, so a controller that takes over finds it done or not begun. Planning one that is
done already plans nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec import structs

from .. import messages as m
from ..errors import ErrorCode
from ..types import PartitionId
from ..wording import counted
from . import given_assignments, transitions
from .capacity import check_room
from .records import (
    DeletedTopicRecord,
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
    deleted_key,
    partition_key,
    topic_key,
)
from .topics import TopicError, assign, check_count, parse_config, unknown_setting
from .view import ClusterView

MOST_DELETED = 10_000
"""Deleted topics that the store remembers. The log of an older one is set aside where a node still has it."""

ChangeTopicRequest = m.DeleteTopicRequest | m.CreatePartitionsRequest | m.AlterConfigRequest
Change = tuple[str, object | None, int]
"""A key, the record to write under it (None: delete it), and the version that it must have."""


def plan(
    request: ChangeTopicRequest, topic: TopicRecord | None, view: ClusterView, policies: Collection[str]
) -> list[Change]:
    """The changes to write; none if all is as asked already.

    Raises:
      TopicError: The topic does not exist, or the change is not allowed.
    """
    named = request.topic_id if isinstance(request, m.DeleteTopicRequest) else ""
    if named and (topic is None or topic.topic_id != named):
        return []
    if topic is None:
        raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {request.name!r}")
    match request:
        case m.DeleteTopicRequest():
            return _delete(topic, view)
        case m.CreatePartitionsRequest():
            return _grow(topic, request, view)
        case m.AlterConfigRequest():
            return _configure(topic, request, view, policies)


def partitions_of(topic: TopicRecord, view: ClusterView) -> Iterator[tuple[PartitionId, Versioned]]:
    for index in range(topic.partitions):
        versioned = view.partitions.get(PartitionId(topic.name, index))
        if versioned is not None:
            yield PartitionId(topic.name, index), versioned


def new_partitions(
    topic: TopicRecord, indexes: range, view: ClusterView, given: Sequence[Sequence[int]] = ()
) -> Iterator[PartitionRecord]:
    """Records of partitions that a topic is given, placed as asked, or on the nodes that are alive."""
    assignment = given or assign(
        {node: record.rack for node, record in view.staying.items()},
        len(indexes),
        topic.replication_factor,
        len(view.partitions),
    )
    for index, replicas in zip(indexes, assignment, strict=True):
        record = transitions.create(
            topic=topic.name,
            partition=index,
            topic_id=topic.topic_id,
            replicas=replicas,
            live=view.staying.keys(),
            min_insync=topic.config.min_insync_replicas,
        )
        yield structs.replace(record, controller_epoch=view.controller_epoch)


def _delete(topic: TopicRecord, view: ClusterView) -> list[Change]:
    """All of it in one go: a topic of the same name may be created at once, with another id."""
    changes: list[Change] = [(topic_key(topic.name), None, view.topic_versions[topic.name])]
    for partition, versioned in partitions_of(topic, view):
        changes.append((partition_key(partition), None, versioned.version))
    return changes + _bury(topic, view)


def _bury(topic: TopicRecord, view: ClusterView) -> list[Change]:
    """The record by which nodes delete the topic's logs; the oldest ones make room for it."""
    known = sorted(view.deleted.values(), key=lambda each: each[0].number)
    last = known[-1][0].number if known else 0
    record = DeletedTopicRecord(name=topic.name, topic_id=topic.topic_id, number=last + 1)
    oldest = known[: max(0, len(known) + 1 - MOST_DELETED)]
    return [
        (deleted_key(topic.topic_id), record, 0),
        *((deleted_key(each.topic_id), None, version) for each, version in oldest),
    ]


def _grow(topic: TopicRecord, request: m.CreatePartitionsRequest, view: ClusterView) -> list[Change]:
    count = request.partitions
    if count == topic.partitions:
        return []
    if count < topic.partitions:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {counted(topic.partitions, 'partition')}: they cannot become {count}, "
            "because that would lose records: request more, or create another topic",
        )
    added = count - topic.partitions
    if request.assignments and len(request.assignments) != added:
        raise TopicError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {topic.name!r} is to have {counted(added, 'more partition')}, but the assignments are for "
            f"{len(request.assignments)}: give one for each new partition",
        )
    if request.assignments:
        given_assignments.check(topic.name, request.assignments, topic.replication_factor, view)
    else:
        check_count(topic.name, topic.replication_factor, view.staying)
        check_room(topic.name, topic.replication_factor, added, view)
    grown = structs.replace(topic, partitions=count)
    changes: list[Change] = [(topic_key(topic.name), grown, view.topic_versions[topic.name])]
    for record in new_partitions(topic, range(topic.partitions, count), view, request.assignments):
        changes.append((partition_key(record.id), record, 0))
    return changes


def _configure(
    topic: TopicRecord, request: m.AlterConfigRequest, view: ClusterView, policies: Collection[str]
) -> list[Change]:
    """`min_insync_replicas` goes into every partition record in the same transaction."""
    settings = structs.asdict(topic.config)
    standard = structs.asdict(TopicConfig())
    unknown = [name for name in request.reset if name not in standard]
    if unknown:
        raise unknown_setting(unknown[0])
    config = parse_config(
        settings | {name: standard[name] for name in request.reset} | request.config, policies
    )
    if config == topic.config:
        return []
    if config.min_insync_replicas > topic.replication_factor:
        raise TopicError(
            ErrorCode.INVALID_CONFIG,
            f"min_insync_replicas={config.min_insync_replicas} is more than the {topic.replication_factor} "
            f"replicas of topic {topic.name!r}: no acks=all write could ever succeed; use "
            f"1 to {topic.replication_factor}",
        )
    changed = structs.replace(topic, config=config, was_compacted=topic.was_compacted or config.compacts)
    changes: list[Change] = [(topic_key(topic.name), changed, view.topic_versions[topic.name])]
    for partition, versioned in partitions_of(topic, view):
        record = transitions.set_min_insync(versioned.record, config.min_insync_replicas)
        if record is not None:
            record = structs.replace(record, controller_epoch=view.controller_epoch)
            changes.append((partition_key(partition), record, versioned.version))
    return changes
