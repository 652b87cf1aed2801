"""Fetch requests on the node that serves them: answered at once if there is news, else parked until there is.

A request names many partitions. The core answers for each of them; what it says is `ReplyFetch`. This module only
collects, waits and sends.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import attrs

from ...storage import FileRange, OffsetOutOfRangeError, StorageError
from ...transport import Connection, Request
from .. import wire
from ..core import effects as fx
from ..core import events as ev
from ..core import messages as m
from ..core.errors import ErrorCode
from ..core.types import PartitionId
from ._timers import Timer

if TYPE_CHECKING:
    from ._replicas import Replicas


@attrs.define(eq=False, slots=True)
class ParkedFetch:
    """A fetch that has not been answered."""

    request: Request
    message: m.FetchRequest
    request_id: int
    timer: Timer | None = None
    done: bool = False


class Fetches:
    """All fetches that this node serves."""

    def __init__(self, node: Replicas, max_bytes: int) -> None:
        self._node = node
        self._max_bytes = max_bytes
        self._ids = count(1)
        self._waiting: dict[PartitionId, set[ParkedFetch]] = {}
        self._answer: fx.ReplyFetch | None = None
        self._served: dict[PartitionId, dict[Connection, int]] = {}

    def serve(self, request: Request) -> None:
        """Take a request from the transport."""
        message = wire.decode_request(m.Kind.FETCH, request.body)
        if message.replica_id >= 0 and message.replica_id != request.peer.node_id:
            request.refuse(
                f"{request.peer.principal} is not node {message.replica_id} and may not replicate as it"
            )
            return
        parked = ParkedFetch(request, message, next(self._ids))
        if self._try_answer(parked, final=message.max_wait_ms <= 0):
            return
        parked.timer = self._node.timers.call_after(message.max_wait_ms / 1000, lambda: self._expire(parked))
        request.on_cancel(lambda: self._forget(parked))
        for partition in message.partitions:
            key = PartitionId(partition.topic, partition.partition)
            self._waiting.setdefault(key, set()).add(parked)

    def replied(self, effect: fx.ReplyFetch) -> None:
        """What the core says, synchronously, to the `Fetch` that `_ask` has just told it."""
        self._answer = effect

    def look_again(self, partition: PartitionId) -> None:
        """The partition has news for somebody, perhaps."""
        for parked in list(self._waiting.get(partition, ())):
            if parked.done:
                continue
            for wanted in parked.message.partitions:
                if (wanted.topic, wanted.partition) == partition and self._ask(parked, wanted).news:
                    self._try_answer(parked, final=False)
                    break

    def abort_ranges(self, partition: PartitionId, offset: int) -> None:
        """Before a cut at `offset`: end the connections whose queued file ranges would change under them."""
        for connection, end in self._served.pop(partition, {}).items():
            if end > offset:
                connection.abort(f"{partition} is truncated to {offset} while its bytes were being sent")

    def disconnected(self, connection: Connection) -> None:
        """The connection has ended: nothing of it is in flight any more."""
        for served in self._served.values():
            served.pop(connection, None)

    def _expire(self, parked: ParkedFetch) -> None:
        if not parked.done:
            self._try_answer(parked, final=True)

    def _forget(self, parked: ParkedFetch) -> None:
        parked.done = True
        if parked.timer is not None:
            parked.timer.cancel()
        for wanted in parked.message.partitions:
            key = PartitionId(wanted.topic, wanted.partition)
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.discard(parked)
                if not waiting:
                    del self._waiting[key]

    def _ask(self, parked: ParkedFetch, wanted: m.FetchPartition) -> fx.ReplyFetch:
        host = self._node.hosts.get(PartitionId(wanted.topic, wanted.partition))
        if host is None:
            error = self._node.missing_error(wanted.topic, wanted.partition)
            return fx.ReplyFetch(request_id=parked.request_id, error=error, news=True)
        host.step(
            ev.Fetch(
                request_id=parked.request_id,
                replica_id=parked.message.replica_id,
                incarnation=parked.message.incarnation,
                leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.fetch_offset,
                last_fetched_epoch=wanted.last_fetched_epoch,
                high_watermark=wanted.high_watermark,
                log_start_offset=wanted.log_start_offset,
                topic_id=wanted.topic_id,
            )
        )
        assert self._answer is not None
        answer, self._answer = self._answer, None
        return answer

    def _try_answer(self, parked: ParkedFetch, *, final: bool) -> bool:
        """Answer if there is enough to say, or if `final`; whether it was answered."""
        results: list[m.FetchResult] = []
        parts: list[FileRange] = []
        budget = min(parked.message.max_bytes, self._max_bytes)
        size = 0
        urgent = False
        for wanted in parked.message.partitions:
            answer = self._ask(parked, wanted)
            if not answer.news:
                continue
            result, ranges = self._read(parked, wanted, answer, budget - size, must_read=size == 0)
            results.append(result)
            parts += ranges
            size += result.size
            urgent = urgent or result.size == 0
        if not final and not urgent and size < max(1, parked.message.min_bytes):
            return False
        self._forget(parked)
        parked.request.reply(wire.encode(m.FetchResponse(partitions=results)), parts)
        return True

    def _read(
        self,
        parked: ParkedFetch,
        wanted: m.FetchPartition,
        answer: fx.ReplyFetch,
        budget: int,
        must_read: bool,
    ) -> tuple[m.FetchResult, list[FileRange]]:
        partition = PartitionId(wanted.topic, wanted.partition)
        error, message, size = answer.error, "", 0
        ranges: list[FileRange] = []
        readable = error == ErrorCode.NONE and answer.diverging is None
        if readable and wanted.fetch_offset < answer.limit_offset and (budget > 0 or must_read):
            try:
                ranges, size = self._ranges(partition, wanted, answer, max(1, budget))
            except OffsetOutOfRangeError as failure:
                error, message = ErrorCode.OFFSET_OUT_OF_RANGE, str(failure)
            except StorageError as failure:
                error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(failure)
        if ranges:
            self._served.setdefault(partition, {})[parked.request.connection] = answer.limit_offset
        return (
            m.FetchResult(
                topic=wanted.topic,
                partition=wanted.partition,
                error=error,
                high_watermark=answer.high_watermark,
                log_start_offset=answer.log_start_offset,
                log_end_offset=answer.log_end_offset,
                leader_epoch=answer.leader_epoch,
                leader=answer.leader,
                diverging=answer.diverging,
                size=size,
                message=message,
            ),
            ranges,
        )

    def _ranges(
        self, partition: PartitionId, wanted: m.FetchPartition, answer: fx.ReplyFetch, budget: int
    ) -> tuple[list[FileRange], int]:
        opened = self._node.hosts[partition].log
        assert opened is not None
        read = opened.read(
            wanted.fetch_offset,
            max_bytes=min(budget, wanted.max_bytes),
            limit_offset=answer.limit_offset,
        )
        return ([read.range] if read.range is not None else []), read.size
