"""Requests to delete records, on the leader's node: handed to the cores, answered when every core has answered."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import attrs
import trio

from .. import wire
from ..core import messages as m
from ..core.errors import ErrorCode
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.types import PartitionId
from .operations.inbound import Inbound

if TYPE_CHECKING:
    from ._replicas import Replicas


@attrs.define(eq=False, slots=True)
class PendingDeletion:
    """A request with the results that have come in; `missing` more will come."""

    request: Inbound
    missing: int
    results: list[m.DeleteRecordsResult] = attrs.Factory(list)

    def add(self, result: m.DeleteRecordsResult) -> None:
        self.results.append(result)
        self.missing -= 1
        if self.missing == 0:
            self.request.reply(wire.encode(m.DeleteRecordsResponse(partitions=self.results)))


class RecordDeletions:
    """All deletions of records that this node has not answered yet."""

    def __init__(self, node: Replicas) -> None:
        self._node = node
        self._ids = count(1)
        self._pending: dict[int, PendingDeletion] = {}

    def serve(self, request: Inbound) -> None:
        """Take a request from the transport."""
        message: m.DeleteRecordsRequest = wire.decode_request(m.Kind.DELETE_RECORDS, request.body)
        pending = PendingDeletion(request, len(message.partitions))
        if not message.partitions:
            request.reply(wire.encode(m.DeleteRecordsResponse(partitions=[])))
        for wanted in message.partitions:
            self._delete(pending, wanted, message.timeout_ms / 1000)

    @property
    def parked(self) -> int:
        """Partitions whose answer is awaited."""
        return len(self._pending)

    def replied(self, partition: PartitionId, effect: fx.ReplyDeleteRecords) -> None:
        """The core's answer for one partition of one request."""
        self._pending.pop(effect.request_id).add(
            m.DeleteRecordsResult(
                topic=partition.topic,
                partition=partition.partition,
                error=effect.error,
                low_watermark=effect.low_watermark,
                leader=effect.leader,
                leader_epoch=effect.leader_epoch,
                message=effect.message,
            )
        )

    def _delete(self, pending: PendingDeletion, wanted: m.DeleteRecordsPartition, timeout: float) -> None:
        host = self._node.hosts.get(PartitionId(wanted.topic, wanted.partition))
        topic = self._node.view.topics.get(wanted.topic)
        error, message = ErrorCode.NONE, ""
        if host is None:
            error = self._node.missing_error(wanted.topic, wanted.partition)
        elif topic is not None and not topic.config.deletes:
            error = ErrorCode.POLICY_VIOLATION
            message = f"its cleanup_policy is {topic.config.cleanup_policy}, which deletes nothing"
        if host is None or error != ErrorCode.NONE:
            pending.add(
                m.DeleteRecordsResult(
                    topic=wanted.topic, partition=wanted.partition, error=error, message=message
                )
            )
            return
        request_id = next(self._ids)
        self._pending[request_id] = pending
        host.step(
            ev.DeleteRecords(
                request_id=request_id, offset=wanted.offset, deadline=trio.current_time() + timeout
            )
        )
