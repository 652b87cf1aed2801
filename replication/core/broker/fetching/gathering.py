"""The content of a fetch's answer: each replica is asked, and its batches are found, as far as there is room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from functools import partial

from ...errors import ErrorCode
from ...messages import AbortedProducer, FetchedTransactions, FetchResult
from ...partition import effects as fx
from ...partition import events as ev
from ...types import PartitionId
from ..context import Context
from ..effects import CloseConnection, Warm
from ..events import Warmed
from ..ports import Cold, LogRange, LogReadError
from .inquiries import Gathered, Inquiry
from .throttle import Throttle

Doubted = Callable[[PartitionId, int, int, bool], None]
"""Told of damage that was found: the partition, the offset that was asked for, how many bytes from there on to look
at, and whether a client says so."""


class Gathering:
    """`look_again`: called with a partition that was throttled, or cold, when it can be served."""

    def __init__(self, context: Context, look_again: Callable[[PartitionId], None]) -> None:
        self._context = context
        self._most_results = context.settings.results_at_a_time
        self._look_again = look_again
        self._served: dict[PartitionId, dict[Hashable, int]] = {}
        """Up to which offset each connection was given ranges, which it may still have to send."""
        self._warming: set[tuple[PartitionId, int]] = set()
        self._paused: set[PartitionId] = set()
        """Partitions that are throttled and will be looked at again when the pause is over."""
        self.doubted: Doubted = lambda *doubt: None
        self.throttle = Throttle(context.settings.leader_replication_throttled_rate)
        """Of what is sent to replicas that a reassignment adds."""

    def disconnected(self, connection: Hashable) -> None:
        """Nothing of a connection is in flight any more."""
        for served in self._served.values():
            served.pop(connection, None)

    def warmed(self, event: Warmed) -> None:
        """A cold range can be read now."""
        self._warming.discard((event.partition, event.offset))

    def gather(
        self,
        inquiry: Inquiry,
        partitions: Collection[PartitionId],
        gathered: Gathered,
        *,
        hold: bool,
    ) -> None:
        """Look at partitions, and read what there is to tell; `hold` back what is a high watermark alone."""
        for partition in partitions:
            if len(gathered.results) >= self._most_results or (
                gathered.size >= gathered.budget and inquiry.session is not None
            ):
                break  # looked at by the next request
            wanted = inquiry.open[partition]
            answer = self._context.ask_replica(partition, wanted)
            if hold or not answer.news:
                inquiry.held.pop(partition, None)
            if not answer.news:
                inquiry.news.pop(partition, None)
                continue
            if hold and _is_quiet(wanted, answer):
                del inquiry.news[partition]
                inquiry.held[partition] = None
                continue
            room = gathered.budget - gathered.size
            is_throttled = self._is_throttled(partition, wanted.replica_id)
            if is_throttled:
                if answer.error == ErrorCode.NONE and self._must_pause(partition):
                    continue
                room = min(room, self.throttle.rate)
            result = self._read(partition, inquiry.connection, wanted, answer, room, gathered)
            if result is None:
                continue  # cold: news again when it is warm
            gathered.results[partition] = result
            if not result.size:
                gathered.urgent = True
                continue
            gathered.size += result.size
            if is_throttled:
                self.throttle.took(result.size, self._context.now)

    def _is_throttled(self, partition: PartitionId, replica: int) -> bool:
        """Whether a reassignment adds this replica, which has not caught up yet (KIP-73)."""
        versioned = self._context.view.partitions.get(partition)
        return (
            versioned is not None
            and replica in versioned.record.adding
            and replica not in versioned.record.isr
        )

    def _must_pause(self, partition: PartitionId) -> bool:
        """Whether a throttled partition is not served now; it is news again when the pause is over."""
        now = self._context.now
        pause = self.throttle.pause(now)
        if not pause:
            return False
        if partition not in self._paused:
            self._paused.add(partition)
            self._context.timers.call_at(now + pause, partial(self._go_on, partition))
        return True

    def _go_on(self, partition: PartitionId) -> None:
        self._paused.discard(partition)
        self._look_again(partition)

    def _read(
        self,
        partition: PartitionId,
        connection: Hashable,
        wanted: ev.Fetch,
        answer: fx.FetchAnswer,
        room: int,
        gathered: Gathered,
    ) -> FetchResult | None:
        """The result for a partition, whose batches are gathered; None while they are cold."""
        error, message, size = answer.error, "", 0
        offset, limit = wanted.fetch_offset, answer.limit_offset
        if (
            offset < limit
            and error == ErrorCode.NONE
            and answer.diverging is None
            and (room > 0 or gathered.size == 0)
        ):
            most = min(max(1, room), wanted.max_bytes)
            try:
                found = self._context.logs.range_at(partition, offset, most, limit)
            except LogReadError as failure:
                error, message = failure.code, failure.message
                if failure.damaged:
                    self._found_damaged(partition, offset)
            else:
                if isinstance(found, Cold):
                    self._warm(partition, offset, most, limit)
                    return None
                size = found.size
                if found.range is not None:
                    gathered.parts.append(found.range)
                    self._served.setdefault(partition, {})[connection] = limit
                if gathered.transactions is not None:
                    gathered.transactions.append(self._transactions(partition, answer, found))
        topic, number = partition
        return FetchResult(
            topic=topic,
            partition=number,
            error=error,
            high_watermark=answer.high_watermark,
            log_start_offset=answer.log_start_offset,
            log_end_offset=answer.log_end_offset,
            leader_epoch=answer.leader_epoch,
            leader=answer.leader,
            diverging=answer.diverging,
            size=size,
            message=message,
        )

    def _found_damaged(self, partition: PartitionId, offset: int) -> None:
        """Report a batch that cannot be read here: it cannot be sent either, so no reader will find the damage."""
        self.doubted(partition, offset, 1, False)

    def _transactions(
        self, partition: PartitionId, answer: fx.FetchAnswer, found: LogRange
    ) -> FetchedTransactions:
        """The aborted transactions that readers leave out of some batches."""
        aborted = self._context.logs.aborted_transactions(partition, answer.fetch_offset, found.next_offset)
        return FetchedTransactions(
            topic=partition.topic,
            partition=partition.partition,
            last_stable_offset=answer.last_stable_offset,
            aborted=[
                AbortedProducer(producer_id=producer_id, first_offset=first)
                for producer_id, first in sorted(aborted, key=lambda each: each[1])
            ],
        )

    def _warm(self, partition: PartitionId, offset: int, max_bytes: int, limit_offset: int) -> None:
        """Have the device read ahead, once for all who ask from there."""
        if (partition, offset) not in self._warming:
            self._warming.add((partition, offset))
            self._context.emit(Warm(partition, offset, max_bytes, limit_offset))

    def truncate(self, effect: fx.Truncate) -> None:
        """Cut a log, after the connections have ended that still have to send what goes. Ranges are sent by
        reference: those would send other bytes.
        """
        partition, offset = effect.partition, 0 if effect.restart else effect.offset
        for connection, end in self._served.pop(partition, {}).items():
            if end > offset:
                reason = f"{partition} is truncated to {offset} while its bytes were being sent"
                self._context.emit(CloseConnection(connection, reason))
        self._context.emit(effect)


def _is_quiet(wanted: ev.Fetch, answer: fx.FetchAnswer) -> bool:
    """Whether all that there is to tell is a high watermark."""
    return (
        answer.fetch_offset >= answer.limit_offset
        and answer.error == ErrorCode.NONE
        and answer.diverging is None
        and wanted.log_start_offset >= answer.log_start_offset
    )
