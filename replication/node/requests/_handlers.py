"""Requests of clients and nodes, each kind to where it is answered."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

import trio
from msgspec import structs

from ....transport import Identity, PeerIdentity, Request
from ....transport.repeats import limited
from ... import wire
from ...core import messages as m
from ...core.broker.events import Disconnected, ForwardArrived, ReadIndexArrived
from ...core.broker.ports import Found, LookUp
from ...core.control.admin_requests import Request as AdminRequestBody
from ...core.control.internal_topics import STANDARD as INTERNAL_TOPICS
from ...core.control.records import PartitionRecord
from ...core.control.view import ClusterView
from ...core.errors import ErrorCode
from ...core.types import PartitionId
from ...metadata import MetadataError
from ..coordination._coordination import KINDS as COORDINATION_KINDS
from ..driver import Driver
from ..operations.health import Health
from ..operations.inbound import Inbound, TransportInbound
from ..service import ServiceError
from ..store._cluster_state import ClusterState
from ._described import Described, describe_partition
from ._limits import MOST_BYTES, problem_of, problem_of_body
from ._users import Users
from .authorisation import Authoriser, Operation, may_read

log = limited(logging.getLogger("insync.node"))

PRODUCER_ID_BLOCK = 1000
_WITH_PATHS = ("log_directories", "store")
"""Checks whose troubles name files."""
_FOR_ADMINS = "clients that may admin are told the reason"
Describe = Callable[[PartitionRecord], m.PartitionInfo]


class Handlers:
    """The node's side of every request kind. `serve` is called in the order in which requests arrive."""

    def __init__(
        self,
        driver: Driver,
        state: ClusterState,
        identity: Identity,
        nursery: trio.Nursery,
        users: Users,
        authoriser: Authoriser,
    ) -> None:
        self._driver = driver
        self._state = state
        self._identity = identity
        self.health = Health(driver, state)
        self._nursery = nursery
        self._users = users
        self._authoriser = authoriser
        self._described = Described()
        self._producer_ids = range(0)
        self._taking_ids = trio.Lock()
        self._by_kind: dict[int, Callable[[Inbound], None]] = {
            m.Kind.PRODUCE: driver.produces.serve,
            m.Kind.FETCH: self._fetch,
            m.Kind.DELETE_RECORDS: driver.produces.serve_deletion,
            m.Kind.LIST_OFFSETS: self._list_offsets,
            m.Kind.READ_INDEX: self._read_index,
            m.Kind.OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
            m.Kind.METADATA: self._metadata,
            m.Kind.CREATE_TOPIC: self._admin_request,
            m.Kind.DELETE_TOPIC: self._admin_request,
            m.Kind.CREATE_PARTITIONS: self._admin_request,
            m.Kind.ALTER_CONFIG: self._admin_request,
            m.Kind.ELECT_LEADERS: self._admin_request,
            m.Kind.ALTER_PARTITION_REASSIGNMENTS: self._admin_request,
            m.Kind.ALTER_CLIENT_QUOTAS: self._admin_request,
            m.Kind.ALTER_USER: self._admin_request,
            m.Kind.DESCRIBE_USERS: self._describe_users,
            m.Kind.VERIFY_USER: self._verify_user,
            m.Kind.INIT_PRODUCER_ID: self._init_producer_id,
            m.Kind.DESCRIBE_PARTITIONS: self._describe_partitions,
            m.Kind.DESCRIBE_PRODUCERS: self._describe_producers,
            m.Kind.OFFSET_COMMIT: self._commit_offsets,
            m.Kind.OFFSET_FETCH: self._fetch_offsets,
            m.Kind.GET_REPLICA_LOG_INFO: self._get_replica_log_info,
            m.Kind.IS_SILENT: self._is_silent,
            m.Kind.DESCRIBE_NODE: self._describe_node,
            **dict.fromkeys(COORDINATION_KINDS, driver.coordination.serve),
            m.Kind.DESCRIBE_CHANGES: self._describe_changes,
        }

    def serve(self, request: Request) -> None:
        """Answer now or later; an invalid request is refused without further effects."""
        kind, body = request.kind, request.body
        if kind not in self._by_kind:
            request.payload.release()
            request.fail(ErrorCode.INVALID_REQUEST, f"this node does not know requests of kind {kind}")
            return
        message, problem = None, ""
        try:
            if kind in MOST_BYTES:
                problem = problem_of_body(kind, body)
            if not problem:
                message = wire.decode_request(kind, body)
                problem = problem_of(kind, message)
        except wire.WireError as error:
            problem = str(error)
        driver = self._driver
        inbound = TransportInbound(
            kind,
            message,
            request.payload,
            request.connection,
            driver.counters,
            driver.now,
            request.arrived,
        )
        inbound.request = request
        if problem:
            request.payload.release()
            inbound.fail(ErrorCode.INVALID_REQUEST, problem)
        else:
            self.take(inbound)

    def take(self, inbound: Inbound) -> None:
        """Serve a decoded request, wherever it came from."""
        serve = self._by_kind.get(inbound.kind)
        if serve is None:
            inbound.fail(
                ErrorCode.INVALID_REQUEST, f"this node does not know requests of kind {inbound.kind}"
            )
            inbound.payload.release()
            return
        serve(inbound)
        if inbound.kind != m.Kind.PRODUCE:
            inbound.payload.release()
            is_for_coordinator = inbound.kind in COORDINATION_KINDS
        else:
            # Its partitions may have to be added to the transaction.
            is_for_coordinator = inbound.message.transaction is not None
        if is_for_coordinator:
            # What several ask of a coordinator in a turn is asked, and written, together.
            self._driver.settle_later()
        else:
            self._driver.settle()

    def _begin(self, request: Inbound, serve: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Serve a request in a task of its own."""
        self._nursery.start_soon(self._served, request, serve, *arguments)

    @staticmethod
    async def _served(request: Inbound, serve: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """A request that fails, as one of a gateway with values of the wrong type, is answered with its error."""
        try:
            await serve(request, *arguments)
        except Exception as error:
            log.exception("%s failed", type(request.message).__name__)
            if not request.is_answered:
                request.fail(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def disconnected(self, connection: Hashable) -> None:
        """A connection has ended, and nothing of it is in flight."""
        self._driver.step(Disconnected(connection))

    def _fetch(self, request: Inbound) -> None:
        peer, message = request.peer, request.message
        if peer.node_id < 0:
            for each in message.partitions:
                if each.topic in INTERNAL_TOPICS and not may_read(each.topic, self._authoriser.allowed(peer)):
                    request.refuse(
                        f"{peer.principal} may not read topic {each.topic!r}, which is internal: it needs a rule "
                        "with admin in `allow` of the nodes, or of the user"
                    )
                    return
        self._driver.fetches.serve(request)

    def _list_offsets(self, request: Inbound) -> None:
        message: m.ListOffsetsRequest = request.message
        look_ups = self._driver.broker.queries.look_ups(message.partitions)
        if len(look_ups) > m.MOST_LOOK_UPS:
            request.fail(
                ErrorCode.INVALID_REQUEST,
                f"{len(look_ups)} timestamps are more than the {m.MOST_LOOK_UPS} that are looked for at a time: "
                "ask in several requests",
            )
        elif look_ups:
            self._begin(request, self._list_offsets_by_time, message, look_ups)
        else:
            self._tell_offsets(request, message, {})

    async def _list_offsets_by_time(
        self, request: Inbound, message: m.ListOffsetsRequest, look_ups: Sequence[LookUp]
    ) -> None:
        """The device may have to be waited for."""
        self._tell_offsets(request, message, await self._driver.cold_reads.look_up(look_ups))

    def _tell_offsets(
        self, request: Inbound, message: m.ListOffsetsRequest, found: Mapping[LookUp, Found]
    ) -> None:
        list_offset = self._driver.broker.queries.list_offset
        results = [list_offset(wanted, found, message.isolation_level) for wanted in message.partitions]
        request.reply(m.ListOffsetsResponse(partitions=results))

    def _epoch_ends(self, request: Inbound) -> None:
        message: m.EpochEndsRequest = request.message
        epoch_end = self._driver.broker.queries.epoch_end
        request.reply(m.EpochEndsResponse(partitions=[epoch_end(each) for each in message.partitions]))

    def _read_index(self, request: Inbound) -> None:
        message: m.ReadIndexRequest = request.message
        self._driver.step(ReadIndexArrived(request, message))

    def _metadata(self, request: Inbound) -> None:
        message: m.MetadataRequest = request.message
        view = self._driver.view
        if isinstance(request, TransportInbound):
            self._described.keep(view.partitions)
            request.reply(describe_view(view, message, self._described))
        else:
            # Passed on as it is, not encoded: the asker owns it.
            request.reply(describe_view(view, message))

    def _describe_partitions(self, request: Inbound) -> None:
        message: m.DescribePartitionsRequest = request.message
        partitions, next_cursor = self._driver.describe(message, page_size(message.partition_limit))
        if not self._may_see_paths(request.peer):
            partitions = [
                structs.replace(each, log_dir="", error=_FOR_ADMINS if each.error else "")
                for each in partitions
            ]
        response = m.DescribePartitionsResponse(
            node_id=self._identity.node_id,
            incarnation=self._identity.incarnation,
            partitions=partitions,
            next_cursor=next_cursor,
            store_age_ms=self._state.store_age_ms,
        )
        request.reply(response)

    def _describe_node(self, request: Inbound) -> None:
        told = self.health.describe()
        if not self._may_see_paths(request.peer):
            told = structs.replace(told, checks=list(map(_without_paths, told.checks)), log_directories=[])
        request.reply(told)

    def _may_see_paths(self, peer: PeerIdentity) -> bool:
        """Paths and errors of this machine are for nodes and for clients that may administer."""
        return peer.node_id >= 0 or Operation.ADMIN in self._authoriser.allowed(peer)

    def _describe_changes(self, request: Inbound) -> None:
        message: m.DescribeChangesRequest = request.message
        me = self._identity
        request.reply(self._state.history.describe(message, me.node_id, me.incarnation))

    def _describe_users(self, request: Inbound) -> None:
        message: m.DescribeUsersRequest = request.message
        request.reply(self._users.describe(message))

    def _verify_user(self, request: Inbound) -> None:
        message: m.VerifyUserRequest = request.message
        self._begin(request, self._check_password, message)

    async def _check_password(self, request: Inbound, message: m.VerifyUserRequest) -> None:
        try:
            verified = await self._users.verify(message.name, message.password)
        except ServiceError as error:
            request.fail(error.code, str(error))
            return
        if not verified:
            request.reply(m.VerifyUserResponse(verified=False))
            return
        me = self._identity
        user = PeerIdentity(me.cluster_id, -1, 0, "data", method="sasl", name=message.name)
        operations = sorted(each.value for each in self._authoriser.allowed(user))
        request.reply(m.VerifyUserResponse(verified=True, operations=operations))

    def _get_replica_log_info(self, request: Inbound) -> None:
        message: m.GetReplicaLogInfoRequest = request.message
        request.reply(self._driver.broker.peers.tell_logs(message))

    def _is_silent(self, request: Inbound) -> None:
        message: m.IsSilentRequest = request.message
        request.reply(self._driver.broker.suspicion.tell(message))

    def _admin_request(self, request: Inbound) -> None:
        """Only the controller can grant it: ours does, or the request is passed on to it."""
        message: AdminRequestBody = request.message
        if self._state.is_controller or message.forwarded:
            self._state.grant(message, lambda response: request.reply(response))
        else:
            self._driver.step(ForwardArrived(request, m.Kind(request.kind), message))

    def _init_producer_id(self, request: Inbound) -> None:
        message: m.InitProducerIdRequest = request.message
        self._begin(request, self._give_producer_id, message)

    async def _give_producer_id(self, request: Inbound, message: m.InitProducerIdRequest) -> None:
        """A producer that has no name gets an id that was never used before, whenever it asks."""
        kept = self._state.kept
        try:
            if message.forget:
                await kept.forget_producers(message.identity)
                response = m.InitProducerIdResponse(error=ErrorCode.NONE)
            elif message.identity:
                response = await kept.producer(message, self._new_producer_id)
            else:
                response = m.InitProducerIdResponse(
                    error=ErrorCode.NONE, producer_id=await self._new_producer_id(), producer_epoch=0
                )
        except (MetadataError, wire.WireError) as error:
            response = m.InitProducerIdResponse(error=_store_error(error), message=str(error))
        request.reply(response)

    async def _new_producer_id(self) -> int:
        async with self._taking_ids:
            if not self._producer_ids:
                first = await self._state.producer_ids(PRODUCER_ID_BLOCK)
                self._producer_ids = range(first, first + PRODUCER_ID_BLOCK)
            producer_id, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return producer_id

    def _commit_offsets(self, request: Inbound) -> None:
        message: m.OffsetCommitRequest = request.message
        self._begin(request, self._keep, lambda: self._state.kept.commit_offsets(message))

    def _fetch_offsets(self, request: Inbound) -> None:
        message: m.OffsetFetchRequest = request.message
        self._begin(request, self._keep, lambda: self._state.kept.offsets(message.group))

    async def _keep(self, request: Inbound, ask: Callable[[], Awaitable[m.OffsetsResponse]]) -> None:
        try:
            response = await ask()
        except (MetadataError, wire.WireError) as error:
            response = m.OffsetsResponse(error=_store_error(error), message=str(error))
        request.reply(response)

    def _describe_producers(self, request: Inbound) -> None:
        message: m.DescribeProducersRequest = request.message
        queries = self._driver.broker.queries
        if message.producer_id == m.EVERY_PRODUCER:
            results = queries.describe_producers(
                message.partitions, self._timestamps, any_replica=message.any_replica
            )
        else:
            results = [queries.describe_producer(each, message.producer_id) for each in message.partitions]
        request.reply(m.DescribeProducersResponse(partitions=results))

    def _timestamps(self, partition: PartitionId) -> dict[int, int]:
        """Of the last batch of each producer, as the log has it."""
        host = self._driver.hosts.get(partition)
        if host is None or host.log is None:
            return {}
        return {each.producer_id: each.timestamp_ms for each in host.log.producer_states()}


def _without_paths(check: m.HealthCheck) -> m.HealthCheck:
    is_bare = check.ok or check.name not in _WITH_PATHS
    return check if is_bare else structs.replace(check, detail=_FOR_ADMINS)


def _store_error(error: Exception) -> ErrorCode:
    """A store that cannot be reached may be reached soon; a value that cannot be read stays so."""
    return (
        ErrorCode.LEADER_NOT_AVAILABLE if isinstance(error, MetadataError) else ErrorCode.UNKNOWN_SERVER_ERROR
    )


def page_size(wanted: int) -> int:
    """How many partitions an answer may describe; a client that does not say gets as many as there may be."""
    return wanted if 0 < wanted < m.MOST_DESCRIBED else m.MOST_DESCRIBED


def describe_view(
    view: ClusterView, message: m.MetadataRequest, describe: Describe = describe_partition
) -> m.MetadataResponse:
    """The answer to a metadata request; `describe` makes what it says of each partition."""
    names = _from_cursor(
        sorted(view.topics) if message.topics is None else list(dict.fromkeys(message.topics)), message
    )
    topics: list[m.TopicInfo] = []
    room = page_size(message.partition_limit)
    next_cursor = None
    for name in names:
        first = message.cursor.partition if message.cursor and name == message.cursor.topic else 0
        topic = view.topics.get(name)
        if room <= 0:
            next_cursor = m.PartitionName(topic=name, partition=first)
            break
        count = min(room, topic.partitions - first) if topic is not None else 0
        topics.append(_describe_topic(view, name, range(first, first + count), describe))
        room -= max(count, 1)
        if topic is not None and first + count < topic.partitions:
            next_cursor = m.PartitionName(topic=name, partition=first + count)
            break
    return m.MetadataResponse(
        cluster_id=view.cluster_id,
        revision=view.revision,
        controller_id=view.controller.node_id if view.controller is not None else -1,
        nodes=[
            m.NodeInfo(
                node_id=node.node_id,
                incarnation=node.incarnation,
                endpoints=list(node.endpoints),
                rack=node.rack,
            )
            for node in sorted(view.nodes.values(), key=lambda node: node.node_id)
        ],
        topics=topics,
        quotas=[
            m.QuotaInfo(entity_type=record.entity_type, name=record.name, limits=record.limits)
            for record, _ in view.quotas.values()
        ]
        if message.quotas and message.cursor is None
        else [],
        next_cursor=next_cursor,
    )


def _from_cursor(names: list[str], message: m.MetadataRequest) -> list[str]:
    """Those that a former answer has not told of; all are in order, unless they were named in another."""
    if message.cursor is None:
        return names
    if message.topics is None:
        return names[bisect_left(names, message.cursor.topic) :]
    return names[names.index(message.cursor.topic) :] if message.cursor.topic in names else []


def _describe_topic(view: ClusterView, name: str, indexes: range, describe: Describe) -> m.TopicInfo:
    topic = view.topics.get(name)
    if topic is None:
        return m.TopicInfo(name=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    records = [
        versioned.record
        for index in indexes
        if (versioned := view.partitions.get(PartitionId(name, index))) is not None
    ]
    return m.TopicInfo(
        name=name,
        error=ErrorCode.NONE,
        topic_id=topic.topic_id,
        replication_factor=len(records[0].target) if records else topic.replication_factor,
        config=structs.asdict(topic.config),
        partitions=[describe(record) for record in records],
    )
