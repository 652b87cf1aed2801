"""Requests that change the logs of several partitions: produce and delete-records, each answered once.

Each partition of a request is decided separately, in the order of the request. A refusal affects only its
partition. The answer is sent when the last result is known.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from ... import messages as m
from ...control.internal_topics import STANDARD as INTERNAL_TOPICS
from ...control.internal_topics import refusal_of_produce
from ...errors import ErrorCode
from ...partition import effects as partition_fx
from ...partition import events as partition_ev
from ...types import PartitionId, named
from .. import effects as fx
from .. import events as ev
from .payloads import CONTROL, TRANSACTIONAL, Batches, Payload, RefusedBatchError, ScannedBatch, to_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..context import Context

MOST_QUEUED = 1000
"""Operations that may wait for a log directory before acks=0 is answered only after the write."""

LONGEST_TIMEOUT = 300.0
"""Maximum seconds for which a request waits for replicas, regardless of its timeout. A waiting request takes
memory,
and its connection may have ended long ago.
"""

_Result = TypeVar("_Result", m.ProduceResult, m.DeleteRecordsResult)


@attrs.define(eq=False, slots=True)
class _Pending(Generic[_Result]):
    """A request with its results so far; `missing` results are outstanding."""

    request: Hashable
    missing: int
    results: list[_Result] = attrs.Factory(list)


class Producing:
    """All unanswered produce and delete-records requests of this node."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._ids = count(1)
        self._produces: dict[int, _Pending[m.ProduceResult]] = {}
        """Pending requests, by the number under which a replica answers its part."""
        self._of_coordinators: dict[int, Callable[[ErrorCode], None]] = {}
        """By the same, who hears of the outcome of a batch that a coordinator of this node writes."""
        self._deletions: dict[int, _Pending[m.DeleteRecordsResult]] = {}

    @property
    def parked(self) -> int:
        """The number of batches without an answer."""
        return len(self._produces)

    @property
    def deleting(self) -> int:
        """The number of partitions whose deletion is outstanding."""
        return len(self._deletions)

    # Produce

    def produce(self, event: ev.ProduceArrived) -> None:
        """Handle a produce request, whose payload holds its batches in a row."""
        message, payload = event.message, event.payload
        pending: _Pending[m.ProduceResult] = _Pending(event.request, len(message.partitions))
        if not message.partitions:
            self._ctx.emit(fx.Reply(event.request, m.ProduceResponse(partitions=[])))
        deadline, position = self._deadline(message.timeout_ms), 0
        for wanted in message.partitions:
            self._produce(pending, message, deadline, wanted, payload, position)
            # A negative size is refused, and does not move the position of the next batch.
            position += max(0, wanted.size)

    def _produce(
        self,
        pending: _Pending[m.ProduceResult],
        message: m.ProduceRequest,
        deadline: float,
        wanted: m.ProducePartition,
        payload: Payload,
        position: int,
    ) -> None:
        partition = named(PartitionId, (wanted.topic, wanted.partition))
        try:
            batches, info = self._accept(partition, wanted, payload, position)
        except RefusedBatchError as error:
            refused = m.ProduceResult(
                topic=wanted.topic, partition=wanted.partition, error=error.code, message=error.message
            )
            self._add(pending, refused)
            return
        number = next(self._ids)
        # Before the step, because a replica that refuses answers during it.
        self._produces[number] = pending
        self._ctx.step_replica(
            partition,
            partition_ev.Produce(
                request_id=number,
                acks=self._acks(message.acks, partition),
                batch=to_meta(info),
                deadline=deadline,
                handle=batches,
                leader_epoch=wanted.leader_epoch,
                transaction=None if message.transaction is None else _tag(message.transaction),
            ),
        )

    def _accept(
        self, partition: PartitionId, wanted: m.ProducePartition, payload: Payload, position: int
    ) -> tuple[Batches, ScannedBatch]:
        """Check the batch at `position` before it reaches a log; raises `RefusedBatchError`.

        Cheap checks come first: a batch for a partition that is not here, or above the limit, is not scanned.
        """
        ctx = self._ctx
        if wanted.topic in INTERNAL_TOPICS:
            raise RefusedBatchError(ErrorCode.INVALID_TOPIC, refusal_of_produce(wanted.topic))
        if partition not in ctx.replicas:
            raise RefusedBatchError(ctx.missing_error(partition), "")
        limit = ctx.view.config_of(wanted.topic).max_message_bytes
        if wanted.size > limit:
            raise RefusedBatchError(
                ErrorCode.RECORD_TOO_LARGE,
                f"a batch of {wanted.size} bytes is over max_message_bytes={limit} of topic {wanted.topic!r}: "
                "send smaller batches, or raise the topic's setting",
            )
        if wanted.size < 0 or position + wanted.size > payload.size:
            raise RefusedBatchError(
                ErrorCode.CORRUPT_MESSAGE, "the payload is shorter than the sum of its batch sizes"
            )
        batches = payload.produced(position, wanted.size)
        infos = batches.infos
        if len(infos) != 1:
            raise RefusedBatchError(ErrorCode.INVALID_RECORD, f"expected one batch, found {len(infos)}")
        info = infos[0]
        if info.record_count != info.last_offset_delta + 1 or info.attributes & CONTROL:
            raise RefusedBatchError(
                ErrorCode.INVALID_RECORD, "a producer's batch must be dense and must not be a control batch"
            )
        if info.attributes & TRANSACTIONAL and info.producer_id < 0:
            raise RefusedBatchError(ErrorCode.INVALID_RECORD, "a transactional batch has no producer id")
        if info.producer_id >= 0 and (info.base_sequence < 0 or info.producer_epoch < 0):
            raise RefusedBatchError(
                ErrorCode.INVALID_RECORD, "a producer id needs an epoch and a sequence, each 0 or more"
            )
        return batches, info

    def _acks(self, asked: int, partition: PartitionId) -> int:
        """acks=0 is answered at once, unless the disk is slower than the producers: then after the write.

        The limit of unanswered requests of a connection then bounds the work that waits for the disk. The limit of
        payload bytes would not, because small batches take more memory than their size.
        """
        return 1 if asked == 0 and self._ctx.logs.queued(partition) >= MOST_QUEUED else asked

    def replied(self, partition: PartitionId, effect: partition_fx.ReplyProduce) -> None:
        """Take the outcome of one partition of a produce request."""
        if effect.request_id < 0:
            self._of_coordinators.pop(effect.request_id)(effect.error)
            return
        self._add(
            self._produces.pop(effect.request_id),
            m.ProduceResult(
                topic=partition.topic,
                partition=partition.partition,
                error=effect.error,
                base_offset=effect.base_offset,
                log_start_offset=effect.log_start_offset,
                leader=effect.leader,
                leader_epoch=effect.leader_epoch,
                message=effect.message,
            ),
        )

    def write(
        self, partition: PartitionId, batch: partition_ev.Produce, told: Callable[[ErrorCode], None]
    ) -> int:
        """Offer a coordinator's batch to the replica of its partition, under a number below 0.

        The replica appends or refuses it within the call: the result is the base offset, or -1. `told` hears of the
        outcome, once, perhaps within the call; it must not step the replica.
        """
        log = self._ctx.replicas[partition].log
        base_offset = log.next_offset
        self._of_coordinators[batch.request_id] = told
        self._ctx.step_replica(partition, batch)
        return base_offset if log.next_offset > base_offset else -1

    # Delete records

    def delete_records(self, event: ev.DeleteRecordsArrived) -> None:
        """Handle a request to delete the records below given offsets (KIP-107)."""
        message = event.message
        pending: _Pending[m.DeleteRecordsResult] = _Pending(event.request, len(message.partitions))
        if not message.partitions:
            self._ctx.emit(fx.Reply(event.request, m.DeleteRecordsResponse(partitions=[])))
        deadline = self._deadline(message.timeout_ms)
        for wanted in message.partitions:
            self._delete(pending, wanted, deadline)

    def _delete(
        self, pending: _Pending[m.DeleteRecordsResult], wanted: m.DeleteRecordsPartition, deadline: float
    ) -> None:
        ctx, partition = self._ctx, PartitionId(wanted.topic, wanted.partition)
        topic, error, message = ctx.view.topics.get(wanted.topic), ErrorCode.NONE, ""
        if wanted.topic in INTERNAL_TOPICS:
            error = ErrorCode.POLICY_VIOLATION
            message = f"topic {wanted.topic!r} is internal: deleting its records would lose its state"
        elif partition not in ctx.replicas:
            error = ctx.missing_error(partition)
        elif topic is not None and not topic.config.deletes:
            error = ErrorCode.POLICY_VIOLATION
            message = f"its cleanup_policy is {topic.config.cleanup_policy}, which deletes nothing"
        if error != ErrorCode.NONE:
            self._add(
                pending,
                m.DeleteRecordsResult(
                    topic=wanted.topic, partition=wanted.partition, error=error, message=message
                ),
            )
            return
        number = next(self._ids)
        self._deletions[number] = pending
        ctx.step_replica(
            partition,
            partition_ev.DeleteRecords(request_id=number, offset=wanted.offset, deadline=deadline),
        )

    def deletion_replied(self, partition: PartitionId, effect: partition_fx.ReplyDeleteRecords) -> None:
        """Take the outcome of one partition's deletion."""
        self._add(
            self._deletions.pop(effect.request_id),
            m.DeleteRecordsResult(
                topic=partition.topic,
                partition=partition.partition,
                error=effect.error,
                low_watermark=effect.low_watermark,
                leader=effect.leader,
                leader_epoch=effect.leader_epoch,
                message=effect.message,
            ),
        )

    def _deadline(self, timeout_ms: int) -> float:
        return self._ctx.now + min(timeout_ms / 1000, LONGEST_TIMEOUT)

    def _add(self, pending: _Pending[_Result], result: _Result) -> None:
        """Add a result; the last one completes the answer."""
        pending.results.append(result)
        pending.missing -= 1
        assert pending.missing >= 0, "a partition is answered once"
        if pending.missing == 0:
            self._ctx.emit(named(fx.Reply, (pending.request, _response(pending.results))))


def _tag(said: m.ProduceTransaction) -> partition_ev.TransactionTag:
    return partition_ev.TransactionTag(said.transactional_id, said.version)


def _response(results: list[_Result]) -> m.ProduceResponse | m.DeleteRecordsResponse:
    if isinstance(results[0], m.ProduceResult):
        return m.ProduceResponse(partitions=results)  # type: ignore[arg-type]
    return m.DeleteRecordsResponse(partitions=results)
