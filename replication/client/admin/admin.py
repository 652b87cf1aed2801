"""The admin client: topics, the cluster, and the state of every replica."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import attrs
import trio

from ....transport import TransportError
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.messages import (
    ChangeInfo,
    FollowerInfo,
    HealthCheck,
    LogDirectoryInfo,
    NodeInfo,
    PartitionInfo,
    QuotaInfo,
    ReplicaInfo,
    TopicInfo,
)
from ...core.types import PartitionId, Value
from .. import _arguments as given
from .._settings import ClientSettings, make_settings
from ..connection._coordinators import Coordinators
from ..connection._offsets import read_index
from ..errors import (
    AuthorizationError,
    BootstrapError,
    ClientError,
    InvalidRequestError,
    RequestTimeoutError,
    TopicExistsError,
    TopicNotReadyError,
    UnknownTopicError,
    error_for,
)
from ..producer.batch_producer import ask_until_told
from ._creation import RETRIED, Creation
from ._deletions import delete_records
from ._disk_room import check_room
from ._groups import GroupDescription, GroupListing, GroupMember, GroupPartition
from ._operations import NodeChanges, NodeHealth
from ._pages import whole_description, whole_metadata
from ._partitions import Elections, Reassignment
from ._readiness import Readiness
from ._transactions import TransactionAdmin

__all__ = [
    "Admin",
    "ClusterInfo",
    "NodeReport",
    "NodeHealth",
    "NodeChanges",
    "ChangeInfo",
    "FollowerInfo",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "GroupPartition",
    "NodeInfo",
    "PartitionInfo",
    "Elections",
    "Reassignment",
    "HealthCheck",
    "LogDirectoryInfo",
    "QuotaInfo",
    "ReplicaInfo",
    "TopicInfo",
]

_KINDS: dict[type, m.Kind] = {
    m.DeleteTopicRequest: m.Kind.DELETE_TOPIC,
    m.CreatePartitionsRequest: m.Kind.CREATE_PARTITIONS,
    m.ElectLeadersRequest: m.Kind.ELECT_LEADERS,
    m.AlterReassignmentsRequest: m.Kind.ALTER_PARTITION_REASSIGNMENTS,
    m.AlterConfigRequest: m.Kind.ALTER_CONFIG,
    m.AlterQuotasRequest: m.Kind.ALTER_CLIENT_QUOTAS,
    m.AlterUserRequest: m.Kind.ALTER_USER,
}
_NEXT_NODE = 2.0


@attrs.frozen(kw_only=True)
class ClusterInfo:
    """The cluster as one node sees it; `controller_id` is -1 without a controller."""

    cluster_id: str
    controller_id: int
    revision: int
    nodes: list[NodeInfo]


@attrs.frozen(kw_only=True)
class NodeReport:
    """A node's report of its replicas, or the reason why there is none (`error`, else empty).

    store_age_ms: time since the metadata store last accepted a write of the node; its view may be that old.
    """

    node_id: int
    endpoints: list[str]
    incarnation: int = -1
    replicas: list[ReplicaInfo] = attrs.Factory(list)
    error: str = ""
    store_age_ms: int = 0

    @property
    def alive(self) -> bool:
        return not self.error


class Admin(TransactionAdmin):
    """Manages and describes a cluster: `async with Admin("tcp://127.0.0.1:9092") as admin`.

    Options are the fields of `ClientSettings`; every call gives up after `request_timeout_ms`.

    Any node answers from its copy of the metadata store. Still, the answers to one `Admin` never go back in time,
    and they include all of its changes: if a node's copy is older, the client asks another node.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ClientSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = make_settings(ClientSettings, options, settings)
        super().__init__(bootstrap_servers, self._settings)
        self._revision = 0
        """The newest store revision of an answer."""

    def _start(self) -> None:
        """An admin client needs no task beside that of the cluster."""
        self._coordinators = Coordinators(self._cluster)

    @property
    def _timeout(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _saw(self, revision: int) -> None:
        self._revision = max(self._revision, revision)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, Value] | None = None,
        *,
        exist_ok: bool = False,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> str:
        """Create a topic and return its topic id.

        Returns when every reachable node knows the topic and every partition accepts writes: its leader and all
        other replicas have created their logs.

        Args:
          name: 1 to 249 letters, digits, dots, underscores and hyphens.
          partitions: The number of partitions, at least 1. None: as many as `assignments`, or 1.
          replication_factor: Replicas of each partition; at most the number of living nodes. None: as many as
            `assignments` names, or 3.
          config: Settings of the topic (fields of `insync.replication.core.control.records.TopicConfig`).
          exist_ok: Accept an existing topic of that name, regardless of its partitions and settings.
          assignments: For each partition the nodes of its replicas, in order of preference. Either number may be
            given beside it, and must then agree with it. None: the controller chooses.
          validate_only: Create nothing and return an empty text, but raise the same errors.

        Raises:
          TopicExistsError: A topic of that name exists, and `exist_ok` is not set.
          InvalidTopicError, InvalidPartitionsError, InvalidReplicationFactorError, InvalidConfigError: That
            argument is invalid, or the number of partitions contradicts `assignments`.
          InvalidReplicaAssignmentError: Replicas cannot be placed as `assignments` says, or are not
            `replication_factor` for each partition.
          TopicNotReadyError: It is created, but after `request_timeout_ms` some partitions accept no writes.
          RequestTimeoutError: No controller answered in time; the topic may exist nevertheless.
        """
        self._check_open()
        exist_ok = given.flag("exist_ok", exist_ok)
        places = [] if assignments is None else given.assignments("assignments", assignments)
        if partitions is None:
            partitions = len(places) or 1
        if replication_factor is None:
            replication_factor = len(places[0]) if places else 3
        request = m.CreateTopicRequest(
            name=given.text("name", name),
            partitions=given.whole("partitions", partitions),
            replication_factor=given.whole("replication_factor", replication_factor),
            assignments=places,
            validate_only=given.flag("validate_only", validate_only),
            config={} if config is None else given.config("config", config),
            creation_id=uuid.uuid4().hex,
        )
        creation = Creation(self._cluster, request, self._timeout, self._saw)
        readiness = Readiness(self._cluster, name, 0, partitions, self._timeout)
        with trio.move_on_after(self._timeout):
            try:
                topic_id = await creation.run()
            except TopicExistsError:
                if not exist_ok:
                    raise
                topic_id = await self._existing(name)
                await self._spread(name)
                return topic_id
            if validate_only:
                return ""
            await self._spread(name)
            await readiness.wait()
            return topic_id
        if creation.topic_id is not None:
            raise self._not_ready(name, creation.topic_id, readiness.writable, partitions)
        raise RequestTimeoutError(
            f"topic {name!r}: not created within request_timeout_ms={self._settings.request_timeout_ms}; "
            f"last: {creation.error or 'no answer'}; look with `insync topic list` before trying again"
        ) from creation.error

    def _not_ready(self, name: str, topic_id: str, writable: int, partitions: int) -> TopicNotReadyError:
        return TopicNotReadyError(name, topic_id, writable, partitions, self._settings.request_timeout_ms)

    async def _existing(self, name: str) -> str:
        """The id of a topic that the controller knows, although other nodes may not know it yet."""
        for attempt in itertools.count(1):
            with suppress(UnknownTopicError):
                (topic,) = await self.describe_topics([name])
                return topic.topic_id
            await trio.sleep(self._cluster.quick_backoff(attempt))
        raise AssertionError

    async def wait_for_nodes(self, count: int) -> list[NodeInfo]:
        """Wait until at least `count` nodes are registered; returns all of them. Cancel it to stop waiting."""
        given.whole("count", count, least=0)
        attempt = 0
        while True:
            attempt += 1
            with suppress(RequestTimeoutError, BootstrapError):
                nodes = (await self.describe_cluster()).nodes
                if len(nodes) >= count:
                    return nodes
            await trio.sleep(self._cluster.quick_backoff(attempt))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, permanently. The name is free for a new topic at once.

        Returns when every reachable node knows of the deletion; nodes remove the logs after that.

        Raises:
          UnknownTopicError: No topic has that name.
          RequestTimeoutError: No controller answered in time; the topic may be deleted nevertheless.
        """
        (topic,) = await self.describe_topics([name])
        await self._change(m.DeleteTopicRequest(name=name, topic_id=topic.topic_id), f"topic {name!r}")
        await self._everywhere(name, lambda found: found.topic_id != topic.topic_id)

    async def create_partitions(
        self,
        name: str,
        partitions: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Raise the number of partitions of a topic to `partitions`. Keys then map to other partitions than before.

        Returns when the new partitions accept writes.

        Args:
          assignments: For each new partition the nodes of its replicas; None: the controller chooses.
          validate_only: Create nothing, but raise the same errors.

        Raises:
          UnknownTopicError, InvalidPartitionsError (fewer than now), InvalidReplicationFactorError: As named.
          InvalidReplicaAssignmentError: Replicas cannot be placed as `assignments` says.
          TopicNotReadyError: They are created, but after `request_timeout_ms` some accept no writes.
          RequestTimeoutError: No controller answered in time.
        """
        request = m.CreatePartitionsRequest(
            name=given.text("name", name),
            partitions=given.whole("partitions", partitions),
            assignments=[] if assignments is None else given.assignments("assignments", assignments),
            validate_only=given.flag("validate_only", validate_only),
        )
        (before,) = await self.describe_topics([name])
        await self._change(request, f"topic {name!r}")
        if validate_only:
            return
        await self._everywhere(name, lambda found: len(found.partitions) >= partitions)
        first = len(before.partitions)
        readiness = Readiness(self._cluster, name, first, partitions, self._timeout)
        with trio.move_on_after(self._timeout):
            await readiness.wait()
            return
        raise self._not_ready(name, before.topic_id, readiness.writable, partitions - first)

    async def alter_config(
        self, name: str, config: Mapping[str, Value] | None = None, *, reset: Iterable[str] = ()
    ) -> None:
        """Change the given settings of a topic. `reset` names settings that get their defaults back.

        Raises:
          UnknownTopicError, InvalidConfigError: As named.
          RequestTimeoutError: No controller answered in time.
        """
        request = m.AlterConfigRequest(
            name=given.text("name", name),
            config={} if config is None else given.config("config", config),
            reset=given.names("reset", reset),
        )
        changed = await self._change(request, f"topic {name!r}")
        await self._everywhere(name, lambda found: found.config == changed.config)

    async def describe_config(self, name: str) -> dict[str, Value]:
        """All settings of a topic.

        Raises:
          UnknownTopicError: No topic has that name.
        """
        (topic,) = await self.describe_topics([name])
        return dict(topic.config)

    async def delete_records(
        self, offsets: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
    ) -> dict[tuple[str, int], int]:
        """Delete the oldest records of partitions, permanently; returns the new log start offset of each.

        Only committed records can be deleted, and only if `cleanup_policy` includes `delete`. When this returns, no
        replica that is alive or may be elected has any of them.

        Args:
          offsets: By (topic, partition): the first offset to keep; -1 deletes all committed records.
          timeout_ms: How long to wait for the replicas; `request_timeout_ms` by default.

        Raises:
          UnknownTopicError, OffsetOutOfRangeError, PolicyViolationError: As named; records of other partitions may
            have been deleted.
          RequestTimeoutError: A replica has not deleted its records in time; it will when it fetches again.
        """
        self._check_open()
        timeout = self._timeout if timeout_ms is None else given.duration("timeout_ms", timeout_ms) / 1000
        wanted = given.offsets("offset", offsets, least=-1)
        found = await delete_records(self._cluster, wanted, timeout=timeout)
        return {(at.topic, at.partition): low for at, low in found.items()}

    async def read_index(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """For each partition, an offset above every write that any leader acknowledged (acks=all) before this call.

        A reader that has read up to there has a current view. This needs no clock and writes nothing. It does not
        hold across an unclean election, which loses writes.

        Raises:
          UnknownTopicError: A topic or partition does not exist.
          RequestTimeoutError: No leader could answer in time: it needs the minimum ISR, and contact with all of it.
        """
        self._check_open()
        return await read_index(self._cluster, given.partitions(partitions), timeout=self._timeout)

    async def committed_offsets(self, group: str) -> dict[PartitionId, int]:
        """The offsets stored under a name in the metadata store; empty if there are none."""
        return await self._offsets(
            m.Kind.OFFSET_FETCH, m.OffsetFetchRequest(group=given.text("group", group))
        )

    async def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, if_absent: bool = False
    ) -> dict[PartitionId, int]:
        """Store offsets under a name, and keep those of other partitions. Returns all offsets of the name.

        With `if_absent` it stores them only if the name has none yet. Each call writes to the metadata store: use
        it for offsets that change rarely. `forget_offsets` removes them.
        """
        kept = [
            m.CommittedOffset(topic=at.topic, partition=at.partition, offset=offset)
            for at, offset in given.offsets("offset", offsets, least=0).items()
        ]
        request = m.OffsetCommitRequest(
            group=given.text("group", group), offsets=kept, if_absent=given.flag("if_absent", if_absent)
        )
        if not kept:
            return await self.committed_offsets(group)
        return await self._offsets(m.Kind.OFFSET_COMMIT, request)

    async def forget_offsets(self, group: str) -> None:
        """Remove all offsets stored under a name, if there are any."""
        request = m.OffsetCommitRequest(group=given.text("group", group), offsets=[])
        await self._offsets(m.Kind.OFFSET_COMMIT, request)

    async def _offsets(self, kind: m.Kind, request: object) -> dict[PartitionId, int]:
        self._check_open()
        answer = await ask_until_told(self._cluster, kind, request, self._timeout, "offsets of a group")
        return {PartitionId(each.topic, each.partition): each.offset for each in answer.offsets}

    async def forget_producers(self, prefix: str) -> None:
        """Forget the producers whose names (`BatchProducer.identify`) start with this; their ids are not reused."""
        self._check_open()
        request = m.InitProducerIdRequest(identity=given.text("prefix", prefix), forget=True)
        await ask_until_told(self._cluster, m.Kind.INIT_PRODUCER_ID, request, self._timeout, "producers")

    async def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        answer = await self._metadata(None)
        return sorted(topic.name for topic in answer.topics)

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """Topics with the leaders, epochs, replicas and ISRs of their partitions; without `names` all topics.

        Raises:
          UnknownTopicError: One that was named does not exist.
        """
        answer = await self._metadata(None if names is None else given.names("names", names))
        for topic in answer.topics:
            if topic.error != ErrorCode.NONE:
                raise error_for(topic.error, f"topic {topic.name!r}")
        return sorted(answer.topics, key=lambda topic: topic.name)

    async def describe_cluster(self) -> ClusterInfo:
        """Cluster id, controller and living nodes."""
        answer = await self._metadata([])
        return ClusterInfo(
            cluster_id=answer.cluster_id,
            controller_id=answer.controller_id,
            revision=answer.revision,
            nodes=sorted(answer.nodes, key=lambda node: node.node_id),
        )

    async def describe_replicas(
        self, topics: Sequence[str] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeReport]:
        """The reports of all nodes on their replicas, by node id; a node that does not answer has an `error`.

        Includes unregistered nodes that are replicas of some partition.
        """
        named_topics = None if topics is None else given.names("topics", topics)
        timeout = given.duration("timeout_ms", timeout_ms) / 1000
        answer = await self._metadata(named_topics)
        living = {node.node_id: node for node in answer.nodes}
        named = {node for topic in answer.topics for part in topic.partitions for node in part.replicas}
        reports: list[NodeReport] = [
            NodeReport(node_id=node_id, endpoints=[], error="not registered; its process is down or cut off")
            for node_id in named - living.keys()
        ]
        request = m.DescribePartitionsRequest(topics=named_topics)

        async def ask(node: NodeInfo) -> None:
            reports.append(await self._describe_node(node, request, timeout))

        self._cluster.nodes = living
        async with trio.open_nursery() as nursery:
            for node in living.values():
                nursery.start_soon(ask, node)
        return sorted(reports, key=lambda report: report.node_id)

    async def _check_room(self, moves: Sequence[m.PartitionReassignment]) -> None:
        await check_room(self, moves)

    async def _describe_node(
        self, node: NodeInfo, request: m.DescribePartitionsRequest, timeout: float
    ) -> NodeReport:
        error = f"no answer within {timeout:g} s"
        with trio.move_on_after(timeout):
            try:
                ask = partial(
                    self._cluster.ask, m.Kind.DESCRIBE_PARTITIONS, timeout=timeout, node_id=node.node_id
                )
                answer = await whole_description(ask, request)
            except TransportError as failure:
                error = str(failure)
            else:
                return NodeReport(
                    node_id=node.node_id,
                    endpoints=node.endpoints,
                    incarnation=answer.incarnation,
                    replicas=answer.partitions,
                    store_age_ms=answer.store_age_ms,
                )
        return NodeReport(
            node_id=node.node_id, endpoints=node.endpoints, incarnation=node.incarnation, error=error
        )

    async def _metadata(self, topics: list[str] | None, *, quotas: bool = False) -> m.MetadataResponse:
        self._check_open()
        request = m.MetadataRequest(topics=topics, quotas=quotas)
        ask = partial(self._cluster.ask, m.Kind.METADATA, timeout=self._timeout)
        answer = await whole_metadata(ask, request)
        if answer.revision < self._revision:
            answer = await self._ask_who_has_read_enough(request)
        self._saw(answer.revision)
        told = {each.name for each in answer.topics}
        for name in topics or ():
            if name not in told:
                raise error_for(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"topic {name!r}", "the node's answer leaves it out"
                )
        return answer

    async def _ask_who_has_read_enough(self, request: m.MetadataRequest) -> m.MetadataResponse:
        """Ask one node after the other, because the view of the one that answered is older than this client's."""
        wanted = self._revision
        with trio.move_on_after(self._timeout):
            for attempt in itertools.count():
                nodes = [*sorted(self._cluster.nodes), None]
                with suppress(TransportError, ClientError):
                    ask = partial(
                        self._cluster.ask,
                        m.Kind.METADATA,
                        timeout=_NEXT_NODE,
                        node_id=nodes[attempt % len(nodes)],
                    )
                    answer = await whole_metadata(ask, request)
                    if answer.revision >= wanted:
                        return answer
                await trio.sleep(self._cluster.quick_backoff(attempt))
        raise RequestTimeoutError(
            f"metadata: within request_timeout_ms={self._settings.request_timeout_ms} no node was found that has "
            f"read revision {wanted} of the metadata store, which this client has seen; "
            "do the nodes reach the store?"
        )

    async def _change(self, request: object, thing: str) -> Any:
        """Have the controller grant an idempotent request."""
        self._check_open()
        kind = _KINDS[type(request)]
        last: ClientError | None = None
        with trio.move_on_after(self._timeout):
            attempt = 0
            while True:
                attempt += 1
                try:
                    answer: Any = await self._cluster.ask(kind, request, timeout=self._timeout)
                except (AuthorizationError, InvalidRequestError):
                    raise
                except ClientError as error:
                    last = error
                else:
                    self._saw(answer.revision)
                    if answer.error == ErrorCode.NONE:
                        return answer
                    last = error_for(answer.error, thing, answer.message)
                    if answer.error not in RETRIED:
                        raise last
                await trio.sleep(self._cluster.quick_backoff(attempt))
        raise RequestTimeoutError(
            f"{thing}: not done within request_timeout_ms={self._settings.request_timeout_ms}; last: "
            f"{last or 'no answer'}; look with `insync topic describe` before trying again"
        ) from last

    async def _spread(self, name: str) -> None:
        """Wait until every node that answers knows the topic, so that no client gets UNKNOWN_TOPIC_OR_PARTITION."""
        await self._everywhere(name, lambda topic: topic.error == ErrorCode.NONE)

    async def _everywhere(self, name: str, holds: Callable[[TopicInfo], bool]) -> None:
        nodes = await self._metadata([])
        self._cluster.nodes = {node.node_id: node for node in nodes.nodes}
        async with trio.open_nursery() as nursery:
            for node in nodes.nodes:
                nursery.start_soon(self._until, node.node_id, name, holds)

    async def _until(self, node_id: int, name: str, holds: Callable[[TopicInfo], bool]) -> None:
        request = m.MetadataRequest(topics=[name])
        with trio.move_on_after(min(5.0, self._timeout / 2)):
            while True:
                try:
                    ask = partial(self._cluster.ask, m.Kind.METADATA, timeout=2.0, node_id=node_id)
                    answer = await whole_metadata(ask, request)
                except TransportError:
                    return
                if all(map(holds, answer.topics)):
                    return
                await trio.sleep(self._cluster.quick_backoff(1))
