"""Produce requests on the leader's node: checked, handed to the cores, answered when every core has answered."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import attrs
import trio

from ...storage.batch import BatchInfo
from .. import wire
from ..core import messages as m
from ..core.control.quotas import PRODUCER
from ..core.errors import ErrorCode
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.types import PartitionId
from ._batch_checks import CompressedChecks, Findings, RejectedBatchError, check_batch, is_compressed
from ._payloads import Batches, SharedPayload
from ._replica_host import ReplicaHost, to_meta
from .operations.counters import Counters
from .operations.inbound import Inbound

if TYPE_CHECKING:
    from ._replicas import Replicas


MOST_QUEUED = 1000
"""Pieces of work that may wait for a log directory before acks=0 is answered late."""


@attrs.define(eq=False, slots=True)
class PendingProduce:
    """A request with the results that have come in; `missing` more will come."""

    request: Inbound
    missing: int
    counters: Counters
    results: list[m.ProduceResult] = attrs.Factory(list)

    def add(self, result: m.ProduceResult) -> None:
        if result.error != ErrorCode.NONE:
            self.counters.failed_produces[result.topic] += 1
        self.results.append(result)
        self.missing -= 1
        if self.missing == 0:
            answer = m.ProduceResponse(partitions=self.results, throttle_time_ms=self.request.throttle_ms)
            self.request.reply(wire.encode(answer))


class Produces:
    """All produce requests that this node has not answered yet."""

    def __init__(self, node: Replicas, nursery: trio.Nursery) -> None:
        self._node = node
        self._ids = count(1)
        self._compressed = CompressedChecks(nursery, node.settle)
        self._pending: dict[int, PendingProduce] = {}

    @property
    def parked(self) -> int:
        """Batches whose answer is awaited."""
        return len(self._pending)

    def serve(self, request: Inbound) -> None:
        """Take a request from the transport; its client's quota may have it wait."""
        try:
            message: m.ProduceRequest = wire.decode_request(m.Kind.PRODUCE, request.body)
        except wire.WireError:
            request.payload.release()
            raise
        serve = partial(self._serve, request, message)
        if not self._node.quotas.hold(PRODUCER, request, message.client_id, serve):
            serve()

    def _serve(self, request: Inbound, message: m.ProduceRequest) -> None:
        payload = SharedPayload(request.payload)
        self._node.quotas.take(PRODUCER, request, message.client_id, len(payload.view))
        take = partial(self._take_checked, request, message, payload)
        self._compressed.proceed(request.connection, self._to_decompress(message, payload), take)

    def _to_decompress(self, message: m.ProduceRequest, payload: SharedPayload) -> dict[int, memoryview]:
        """The batches whose records are to be looked at although they are compressed, by their positions."""
        found: dict[int, memoryview] = {}
        position = 0
        for wanted in message.partitions:
            end = position + wanted.size
            if wanted.size < 0 or end > len(payload.view):
                break
            if is_compressed(payload.view, position, wanted.size):
                config = self._node.topic_config(wanted.topic)
                if config.validates_compressed and wanted.size <= config.max_message_bytes:
                    found[position] = payload.view[position:end]
            position = end
        return found

    def _take_checked(
        self, request: Inbound, message: m.ProduceRequest, payload: SharedPayload, findings: Findings
    ) -> None:
        try:
            self._take(request, message, payload, findings)
        finally:
            payload.release()

    def _take(
        self, request: Inbound, message: m.ProduceRequest, payload: SharedPayload, findings: Findings
    ) -> None:
        pending = PendingProduce(request, len(message.partitions), self._node.counters)
        if not message.partitions:
            request.reply(wire.encode(m.ProduceResponse(partitions=[])))
        position = 0
        for wanted in message.partitions:
            self._produce(pending, message, wanted, payload, position, findings)
            position += wanted.size

    def replied(self, partition: PartitionId, effect: fx.ReplyProduce) -> None:
        """The core's answer for one partition of one request."""
        pending = self._pending.pop(effect.request_id)
        pending.add(
            m.ProduceResult(
                topic=partition.topic,
                partition=partition.partition,
                error=effect.error,
                base_offset=effect.base_offset,
                log_start_offset=effect.log_start_offset,
                leader=effect.leader,
                leader_epoch=effect.leader_epoch,
                message=effect.message,
            )
        )

    def _produce(
        self,
        pending: PendingProduce,
        message: m.ProduceRequest,
        wanted: m.ProducePartition,
        payload: SharedPayload,
        position: int,
        findings: Findings,
    ) -> None:
        try:
            host = self._host(wanted)
            info = self._check(wanted, payload, position, findings)
        except RejectedBatchError as error:
            pending.add(
                m.ProduceResult(
                    topic=wanted.topic, partition=wanted.partition, error=error.code, message=error.message
                )
            )
            return
        batches = Batches(payload.slice(position, wanted.size), (info,), payload.release)
        request_id = next(self._ids)
        self._pending[request_id] = pending
        host.step(
            ev.Produce(
                request_id=request_id,
                acks=self._acks(message.acks, host),
                batch=to_meta(info),
                deadline=self._node.now() + message.timeout_ms / 1000,
                handle=batches,
                leader_epoch=wanted.leader_epoch,
            )
        )
        if not batches.taken:
            batches.release()
            return
        self._node.counters.bytes_in[wanted.topic] += wanted.size
        self._node.counters.messages_in[wanted.topic] += info.record_count

    def _acks(self, asked: int, host: ReplicaHost) -> int:
        """Who wants no answer gets one at once, unless the disk is slower than producers: then after the write.

        So the requests that a connection may have unanswered bound what waits for the disk; their payloads alone
        are no bound, because small batches take more memory than they count.
        """
        is_behind = host.home is not None and host.home.writer.queued >= MOST_QUEUED
        return 1 if asked == 0 and is_behind else asked

    def _host(self, wanted: m.ProducePartition) -> ReplicaHost:
        host = self._node.hosts.get(PartitionId(wanted.topic, wanted.partition))
        if host is None:
            raise RejectedBatchError(self._node.missing_error(wanted.topic, wanted.partition), "")
        return host

    def _check(
        self, wanted: m.ProducePartition, payload: SharedPayload, position: int, findings: Findings
    ) -> BatchInfo:
        """The one batch that stands at `position`, checked whole: sizes, CRC, and that it is a producer's."""
        limit = self._node.topic_config(wanted.topic).max_message_bytes
        if wanted.size > limit:
            raise RejectedBatchError(
                ErrorCode.RECORD_TOO_LARGE,
                f"a batch of {wanted.size} bytes is over max_message_bytes={limit} of topic {wanted.topic!r}: "
                "send smaller records or batches, or raise the topic's setting",
            )
        if wanted.size < 0 or position + wanted.size > len(payload.view):
            raise RejectedBatchError(ErrorCode.CORRUPT_MESSAGE, "the payload is shorter than its sizes say")
        found = findings.get(position)
        if isinstance(found, RejectedBatchError):
            raise found
        info = found or check_batch(payload.view[position : position + wanted.size])
        if info.is_transactional:
            # Nobody would ever end the transaction: readers of committed records would wait for it, and compaction.
            raise RejectedBatchError(ErrorCode.INVALID_RECORD, "nodes do not take part in transactions yet")
        if info.producer_id >= 0 and (info.base_sequence < 0 or info.producer_epoch < 0):
            raise RejectedBatchError(ErrorCode.INVALID_RECORD, "a producer id without an epoch or a sequence")
        return info
