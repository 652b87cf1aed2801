"""Requests about groups: where their coordinator is, and to which of this node's shards they go.

A request names a group, and the group's id names the partition that keeps it. One that names several groups is put
to every shard that it concerns, and answered when all have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from ...control.view import ClusterView
from ...coordination.routing import GROUP_TOPIC, partition_for_group
from ...coordination.shard import ShardSettings
from ...coordination.topics_view import TopicInfo, TopicsView
from ...errors import ErrorCode
from ...groups import record_codec
from ...groups.settings import GroupSettings
from ...groups.shard import GroupCoordinator
from ...messages import groups as gm
from ...types import NO_LEADER, PartitionId
from .. import effects as fx
from .. import events as ev
from .shards import Decoded, Encoded, ShardKind, Shards

if TYPE_CHECKING:
    from ..context import Context

CREATE_AGAIN = 1.0
"""Seconds after which a topic that is still not there is asked for once more."""
MAX_KEYS = 1_000
"""Groups whose coordinators one request may ask for."""
ANSWER_WITHIN = 5.0
"""Seconds that a request may take beyond what it waits for by itself."""
LONGEST_REBALANCE = 1_800.0
"""Seconds; a group ends what its members wait for sooner, by the timeouts that they have set."""

Told = Callable[[Any], None]


def group_kind(settings: GroupSettings, commit_timeout: float = ANSWER_WITHIN) -> ShardKind:
    """Consumer groups and their offsets; commit_timeout: seconds for which a reply waits for its write."""
    return ShardKind(
        topic=GROUP_TOPIC,
        machine=lambda: GroupCoordinator(settings),
        settings=ShardSettings(isolation=settings.isolation_timeout_ms / 1000, commit=commit_timeout),
        view=topics_of,
        encode=_encode,
        decode=_decode,
    )


def topics_of(view: ClusterView) -> TopicsView:
    """The topics that a group may read."""
    return TopicsView({name: TopicInfo(each.topic_id, each.partitions) for name, each in view.topics.items()})


def _encode(key: Any, value: Any | None) -> Encoded:
    return record_codec.encode_key(key), None if value is None else record_codec.encode_value(key, value)


def _decode(key: bytes | None, value: bytes | None) -> Decoded:
    found = record_codec.decode_record(key, value)
    return (None, None) if isinstance(found, record_codec.Unknown) else found


class Counts(NamedTuple):
    """Groups, and members of groups, by the type of the group."""

    groups: Mapping[str, int]
    members: Mapping[str, int]


class Coordinating:
    """All requests to coordinators that reach this node. `takes` says which kinds of message it knows."""

    def __init__(self, context: Context, shards: Shards) -> None:
        self._context = context
        self._shards = shards
        self._asked_for: dict[str, float] = {}
        """Internal topics that the controller was asked to make, and when."""
        self.takes: dict[type, Callable[[Any, Told], None]] = {
            gm.FindCoordinatorRequest: lambda message, told: told(self.find(message)),
            gm.ListGroupsRequest: self._list,
            gm.DescribeGroupsRequest: self._describe,
            gm.ConsumerGroupDescribeRequest: self._describe,
            **dict.fromkeys(_OF_ONE_GROUP, self._ask),
        }

    def arrived(self, event: ev.CoordinationArrived) -> None:
        """A request of a client, or of a gateway in this process."""
        self.ask(event.message, partial(self._reply, event.request))

    def ask(self, message: Any, told: Told) -> None:
        """Put a request to its coordinator, if that is here; `told` is called once, now or later."""
        self.takes[type(message)](message, told)

    def _reply(self, request: Hashable, response: Any) -> None:
        self._context.emit(fx.CoordinatorReply(request, response))

    def counts(self) -> Counts:
        """The groups and members that this node coordinates now, as far as they are loaded."""
        groups: Counter[str] = Counter()
        members: Counter[str] = Counter()
        for partition in self._shards.led(GROUP_TOPIC):
            machine = self._shards.machine(partition)
            if isinstance(machine, GroupCoordinator):
                for kind, count in machine.sizes():
                    groups[kind] += 1
                    members[kind] += count
        return Counts(groups, members)

    def offsets(self, most: int) -> tuple[list[tuple[str, PartitionId, int]], int]:
        """The committed offsets of groups that are coordinated here: group, partition and offset, at most `most`.

        Returns how many there are besides, too.
        """
        told: list[tuple[str, PartitionId, int]] = []
        left = 0
        for partition in self._shards.led(GROUP_TOPIC):
            machine = self._shards.machine(partition)
            for group, state in machine.groups.items() if isinstance(machine, GroupCoordinator) else ():
                if len(told) + len(state.offsets) > most:
                    left += len(state.offsets)
                    continue
                told += [
                    (group, PartitionId(*place), found.value.offset) for place, found in state.offsets.items()
                ]
        return told, left

    # Where a coordinator is

    def find(self, message: gm.FindCoordinatorRequest) -> gm.FindCoordinatorResponse:
        """The nodes that coordinate some groups; the first question makes the topic that keeps them."""
        keys = message.keys[:MAX_KEYS]
        if len(message.keys) > MAX_KEYS:
            text = f"{len(message.keys)} keys; ask for at most {MAX_KEYS} at a time"
            refused = partial(gm.Coordinator, error=ErrorCode.INVALID_REQUEST, message=text)
            return gm.FindCoordinatorResponse(coordinators=[refused(key=key) for key in message.keys])
        topic = _TOPICS.get(message.key_type)
        if topic is None or not self._shards.is_internal(topic):
            text = f"key type {message.key_type}; this node finds coordinators of groups ({gm.GROUP})"
            refused = partial(gm.Coordinator, error=ErrorCode.INVALID_REQUEST, message=text)
            return gm.FindCoordinatorResponse(coordinators=[refused(key=key) for key in keys])
        return gm.FindCoordinatorResponse(coordinators=[self._find(topic, key) for key in keys])

    def _find(self, topic: str, key: str) -> gm.Coordinator:
        if not key:
            return gm.Coordinator(
                key=key, error=ErrorCode.INVALID_GROUP_ID, message="the id is empty; use one that is not"
            )
        partition = self._partition(topic, key)
        not_available = partial(gm.Coordinator, key=key, error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if partition is None:
            self._create(topic)
            return not_available(message=f"topic {topic!r} is being created; retry")
        view = self._context.view
        versioned = view.partitions.get(partition)
        leader = versioned.record.leader if versioned is not None else NO_LEADER
        node = view.nodes.get(leader)
        if versioned is None or node is None:
            return not_available(message=f"{partition} has no leader; start the nodes that replicate it")
        return gm.Coordinator(
            key=key,
            node_id=leader,
            endpoints=list(node.endpoints),
            leader_epoch=versioned.record.leader_epoch,
        )

    def _partition(self, topic: str, key: str) -> PartitionId | None:
        """The partition that stores the named state; None while the topic does not exist."""
        record = self._context.view.topics.get(topic)
        return None if record is None else PartitionId(topic, partition_for_group(key, record.partitions))

    def _create(self, topic: str) -> None:
        now = self._context.now
        if now - self._asked_for.get(topic, float("-inf")) >= CREATE_AGAIN:
            self._asked_for[topic] = now
            self._context.emit(fx.CreateInternalTopic(topic))

    # Requests about one group

    def _ask(self, message: Any, told: Told) -> None:
        partition = self._partition(GROUP_TOPIC, message.group)
        if partition is None:
            told(gm.RESPONSES[type(message)](error=ErrorCode.NOT_COORDINATOR))
            return
        deadline = self._context.now + _patience(message)
        self._shards.ask(
            partition, message, deadline, told, coordinator_epoch=getattr(message, "coordinator_epoch", -1)
        )

    # Requests about several

    def _list(self, message: gm.ListGroupsRequest, told: Told) -> None:
        """The groups of every partition that is led here; those that still load are an error beside the others."""
        gathered = _Gathered(self._shards.led(GROUP_TOPIC), lambda replies: told(_listed(replies)))
        deadline = self._context.now + ANSWER_WITHIN
        for partition in gathered.missing:
            self._shards.ask(partition, message, deadline, partial(gathered.take, partition))
        gathered.complete()

    def _describe(
        self, message: gm.DescribeGroupsRequest | gm.ConsumerGroupDescribeRequest, told: Told
    ) -> None:
        parts: dict[PartitionId, list[str]] = {}
        for group in dict.fromkeys(message.groups):
            partition = self._partition(GROUP_TOPIC, group)
            if partition is not None:
                parts.setdefault(partition, []).append(group)
        gathered = _Gathered(parts, lambda replies: told(_described(message.groups, parts, replies)))
        deadline = self._context.now + ANSWER_WITHIN
        for partition, groups in parts.items():
            part = structs.replace(message, groups=groups)
            self._shards.ask(partition, part, deadline, partial(gathered.take, partition))
        gathered.complete()


class _Gathered:
    """The replies of several shards; `done` gets them when all are there."""

    def __init__(
        self, partitions: Iterable[PartitionId], done: Callable[[dict[PartitionId, Any]], None]
    ) -> None:
        self.missing = list(partitions)
        self._left = len(self.missing) + 1
        self._replies: dict[PartitionId, Any] = {}
        self._done = done

    def take(self, partition: PartitionId, reply: Any) -> None:
        self._replies[partition] = reply
        self.complete()

    def complete(self) -> None:
        """One of them is there, or all have been asked."""
        self._left -= 1
        if not self._left:
            self._done(self._replies)


def _listed(replies: dict[PartitionId, gm.ListGroupsResponse]) -> gm.ListGroupsResponse:
    groups = sorted(
        (each for reply in replies.values() for each in reply.groups), key=lambda each: each.group
    )
    failed = next((reply for reply in replies.values() if reply.error), None)
    if failed is None:
        return gm.ListGroupsResponse(groups=groups)
    return structs.replace(failed, groups=groups)


def _described(
    wanted: list[str],
    parts: dict[PartitionId, list[str]],
    replies: dict[PartitionId, gm.DescribeGroupsResponse],
) -> gm.DescribeGroupsResponse:
    """In the order of the request, each once; a group that is not coordinated here has an error of its own."""
    told: dict[str, gm.DescribedGroup] = {}
    for partition, groups in parts.items():
        reply = replies[partition]
        told |= {each.group: each for each in reply.groups}
        if reply.error:
            told |= {each: gm.DescribedGroup(group=each, error=reply.error) for each in groups}
    absent = ErrorCode.NOT_COORDINATOR
    return gm.DescribeGroupsResponse(
        groups=[
            told.get(each) or gm.DescribedGroup(group=each, error=absent) for each in dict.fromkeys(wanted)
        ]
    )


def _patience(message: Any) -> float:
    """Seconds after which a request is answered whatever has become of it."""
    match message:
        case gm.JoinGroupRequest(rebalance_timeout_ms=timeout):
            return min(max(timeout, 0) / 1000, LONGEST_REBALANCE) + ANSWER_WITHIN
        case gm.SyncGroupRequest():
            return LONGEST_REBALANCE + ANSWER_WITHIN
        case gm.ConsumerGroupHeartbeatRequest(max_wait_ms=wait):
            return min(max(wait, 0) / 1000, LONGEST_REBALANCE) + ANSWER_WITHIN
    return ANSWER_WITHIN


_TOPICS = {gm.GROUP: GROUP_TOPIC, gm.TRANSACTION: "__transaction_state"}
"""The internal topic of each `key_type`."""
_OF_ONE_GROUP = [
    each
    for each in gm.RESPONSES
    if each not in (gm.ListGroupsRequest, gm.DescribeGroupsRequest, gm.ConsumerGroupDescribeRequest)
]
