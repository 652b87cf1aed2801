"""The driver of this node's coordinators: requests on their way in and out, logs read in threads, topics made."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio
from msgspec import structs

from ....storage import StorageError
from ... import wire
from ...core import messages as m
from ...core.broker.effects import (
    AskOutside,
    CoordinatorReply,
    CreateInternalTopic,
    GroupNoted,
    ReadShard,
    ShardFaulty,
    ShardLoaded,
    ShardUnreadable,
)
from ...core.broker.events import CoordinationArrived, ForwardArrived, OutsideAnswered, ShardRead
from ...core.control.internal_topics import TRANSACTIONS
from ...core.errors import ErrorCode
from ...core.messages import groups as gm
from ...core.transactions.shard import AllocateIds, IdsAllocated, ReadRevision, RevisionRead
from ...metadata import MetadataError
from ..log_lines import event
from ..operations.inbound import Inbound, TransportInbound
from ._shard_reader import read_shard

if TYPE_CHECKING:
    from ..logs._directories import LogDirectories
    from ..operations.counters import Counters
    from ..ports import Driving, Logs

log = logging.getLogger("insync.node")

KINDS = (
    m.Kind.FIND_COORDINATOR,
    m.Kind.JOIN_GROUP,
    m.Kind.SYNC_GROUP,
    m.Kind.HEARTBEAT,
    m.Kind.LEAVE_GROUP,
    m.Kind.DESCRIBE_GROUPS,
    m.Kind.LIST_GROUPS,
    m.Kind.DELETE_GROUPS,
    m.Kind.OFFSET_DELETE,
    m.Kind.CONSUMER_GROUP_HEARTBEAT,
    m.Kind.CONSUMER_GROUP_DESCRIBE,
    m.Kind.COMMIT_GROUP_OFFSETS,
    m.Kind.GROUP_OFFSETS,
    m.Kind.INIT_TRANSACTIONS,
    m.Kind.ADD_PARTITIONS_TO_TXN,
    m.Kind.END_TXN,
    m.Kind.WRITE_TXN_MARKERS,
    m.Kind.TXN_OFFSET_COMMIT,
    m.Kind.DESCRIBE_TRANSACTIONS,
    m.Kind.LIST_TRANSACTIONS,
    m.Kind.ABORT_TRANSACTION,
)
"""Requests to coordinators, by their kinds on the wire."""
READERS = 2
"""Threads that read logs for shards that begin; a thread that decodes records holds the interpreter's lock."""

Answered = Callable[[Any], None]


class Coordination:
    """For the event loop."""

    def __init__(
        self,
        driver: Driving,
        logs: Logs,
        directories: LogDirectories,
        counters: Counters,
        nursery: trio.Nursery,
    ) -> None:
        self._driver = driver
        self._logs = logs
        self._directories = directories
        self._counters = counters
        self._nursery = nursery
        self._reading = trio.CapacityLimiter(READERS)
        self.rebalances = 0
        """Since the start of the process."""
        self.obey: dict[type, Callable[[Any], None]] = {
            CoordinatorReply: self._reply,
            ReadShard: self._read,
            ShardLoaded: self._loaded,
            ShardUnreadable: self._unreadable,
            ShardFaulty: self._faulty,
            GroupNoted: self._noted,
            CreateInternalTopic: self._create,
            AskOutside: self._ask_outside,
        }

    # Requests

    def serve(self, request: Inbound) -> None:
        """Take a request; others of its connection are served while it waits.

        A member outlives its connection: its request is decided although the answer is lost.
        """
        self.look_at_clock()
        self._driver.step(CoordinationArrived(request, _as_seen(request)))

    @staticmethod
    def _reply(effect: CoordinatorReply) -> None:
        assert isinstance(effect.request, Inbound)
        effect.request.reply(effect.response)

    def look_at_clock(self) -> None:
        """Records say when they were written by the wall clock, which may be set at any time."""
        self._driver.broker.context.wall_distance = time.time() - self._driver.now()

    # Logs

    def _read(self, effect: ReadShard) -> None:
        self._nursery.start_soon(self._read_in_thread, effect)

    async def _read_in_thread(self, effect: ReadShard) -> None:
        driver = self._driver
        host = self._logs.get(effect.partition)
        entries, next_offset = None, -1
        if host is not None and host.log is not None:
            decode = driver.broker.shards.kinds[effect.partition.topic].decode
            try:
                entries, next_offset = await trio.to_thread.run_sync(
                    read_shard, host.log, effect.start, effect.end, decode, limiter=self._reading
                )
            except StorageError as error:
                log.warning("%s: cannot read the coordinator's log: %s", effect.partition, error)
        driver.step(ShardRead(effect.partition, effect.reading, entries, next_offset))
        driver.settle()

    # The metadata store

    def _ask_outside(self, effect: AskOutside) -> None:
        self._nursery.start_soon(self._ask_store, effect)

    async def _ask_store(self, effect: AskOutside) -> None:
        store, said = self._driver.store, effect.message
        answer: object
        try:
            if isinstance(said, AllocateIds):
                answer = IdsAllocated(await store.producer_ids(said.count), said.count)
            else:
                assert isinstance(said, ReadRevision)
                answer = RevisionRead(await store.revision())
        except MetadataError as error:
            log.warning("%s: the metadata store does not answer its coordinator: %s", effect.partition, error)
            answer = IdsAllocated(0, 0) if isinstance(said, AllocateIds) else RevisionRead(None)
        self._driver.step(OutsideAnswered(effect.partition, effect.leader_epoch, answer))
        self._driver.settle()

    # For the operator

    @staticmethod
    def _loaded(effect: ShardLoaded) -> None:
        log.info(
            event(
                "shard_loaded",
                partition=str(effect.partition),
                leader_epoch=effect.leader_epoch,
                records=effect.records,
                skipped=effect.skipped,
                seconds=round(effect.seconds, 3),
            )
        )

    def _unreadable(self, effect: ShardUnreadable) -> None:
        """Let another replica lead, because this node cannot serve the partition."""
        log.error(
            event(
                "shard_unreadable",
                partition=str(effect.partition),
                leader_epoch=effect.leader_epoch,
                remedy="another replica leads, if one is in sync; check the device of this one",
            )
        )
        problem = StorageError(f"the records of {effect.partition} could not be read repeatedly")
        self._directories.failed(effect.partition, problem)

    @staticmethod
    def _faulty(effect: ShardFaulty) -> None:
        log.error("%s: cannot write a decision, please report it: %s", effect.partition, effect.problem)

    def _noted(self, effect: GroupNoted) -> None:
        if effect.partition.topic == TRANSACTIONS.name:
            if effect.details["cause"] == "refused":
                self._marker_refused(effect)
            else:
                self._transaction_ended(effect)
            return
        self.rebalances += 1
        told = event("group_changed", group=effect.group, why=effect.reason, **effect.details)
        log.info(told)
        self._driver.store.history.remember(told, time.time())

    def _marker_refused(self, effect: GroupNoted) -> None:
        told = event(
            "transaction_marker_refused",
            transactional_id=effect.group,
            partition=f"{effect.details['topic']}-{effect.details['partition']}",
            why=effect.reason,
            remedy="insync transaction find-hanging, then abort, if it stays so",
        )
        log.warning(told)
        self._driver.store.history.remember(told, time.time())

    def _transaction_ended(self, effect: GroupNoted) -> None:
        """All are counted; a line is for those whose producer did not ask for the end."""
        counters, details = self._counters, dict(effect.details)
        outcome, cause = "committed" if details.pop("committed") else "aborted", str(details.pop("cause"))
        seconds = details["seconds"]
        assert isinstance(seconds, float)
        counters.transactions[outcome].add(seconds)
        if outcome == "aborted":
            counters.transactions_aborted[cause] += 1
        if effect.reason:
            told = event("transaction_aborted", transactional_id=effect.group, why=effect.reason, **details)
            log.warning(told)
            self._driver.store.history.remember(told, time.time())

    # The topic

    def _create(self, effect: CreateInternalTopic) -> None:
        """By way of our own controller, or of the one that acts."""
        log.info("asking the controller to create the missing topic %s", effect.name)
        request = m.CreateTopicRequest(name=effect.name, partitions=1, replication_factor=1)
        store = self._driver.store
        if store.is_controller:
            store.grant(request, self._created)
        else:
            self._driver.step(ForwardArrived(Creation(self._created), m.Kind.CREATE_TOPIC, request))

    @staticmethod
    def _created(response: object) -> None:
        if isinstance(response, bytes):
            response = wire.decode_response(m.Kind.CREATE_TOPIC, response)
        assert isinstance(response, m.CreateTopicResponse)
        if response.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            log.warning("the topic was not created: %s", response.message or response.error)


@attrs.frozen(eq=False)
class Creation:
    """The request of this node itself that the controller makes a topic."""

    answered: Answered


def _as_seen(request: Inbound) -> Any:
    """The message with what the node knows better than a client: where that is, and a member id that nobody has.

    A gateway says itself where its clients are.
    """
    message = request.message
    changes: dict[str, str] = {}
    if isinstance(message, gm.JoinGroupRequest):
        prefix = message.instance_id or message.client_id or "member"
        changes["fresh_id"] = f"{prefix[:64]}-{uuid.uuid4()}"
    elif not isinstance(message, gm.ConsumerGroupHeartbeatRequest):
        return message
    if isinstance(request, TransportInbound) or not message.client_host:
        changes["client_host"] = str(request.peer)
    return structs.replace(message, **changes)
