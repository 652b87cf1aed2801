"""Before a partition takes part in a transaction, the transaction's coordinator must know of it (KIP-890).

Otherwise nobody would ever end it there: readers of committed records would wait for it, and compaction. So the
leader holds the first batch of a transaction until the coordinator has stored that the partition belongs to it.
Markers come from coordinators; of two of them, and of a late one, the epochs tell which counts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from ..errors import ErrorCode
from . import effects as fx
from . import events as ev
from .producers import SequenceVerdict

if TYPE_CHECKING:
    from ..types import BatchMeta, ProducerEntry
    from .leader import LeaderRole

FIRST_BACKOFF, MOST_BACKOFF = 0.02, 0.1
"""Seconds until a coordinator that was busy is asked again (`add_partitions_to_txn_retry_backoff_ms`): short, as it
waits for the end of the producer's previous transaction (KAFKA-18654).
"""
MOST_HELD_BYTES = 16 << 20
"""Of the batches of one partition that wait here; more are refused, and sent again."""

_FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
_ASK_AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}

_Waiting = ev.Produce | ev.Admit


@attrs.define(eq=False, slots=True)
class _Asked:
    """A question about one producer, and what waits for its answer in the order in which it came."""

    epoch: int
    tag: ev.TransactionTag
    attempt: int
    backoff: float = FIRST_BACKOFF
    is_void: bool = False
    """A marker came meanwhile: the answer may be about the transaction that it has ended (KAFKA-14884).

    Such answers are those about transactions that share an epoch: by their requests, or by their end.
    """
    last_error: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE
    waiting: deque[_Waiting] = attrs.Factory(deque)


class TransactionGate:
    """The gate of one led partition, within one leader epoch: nothing that waits outlives it."""

    def __init__(self, role: LeaderRole) -> None:
        self._role = role
        self._asked: dict[int, _Asked] = {}
        self._granted: dict[int, int] = {}
        """By producer: the epoch for which its coordinator has admitted a shard's writes, until the next marker."""
        self._held_bytes = 0

    @property
    def held(self) -> int:
        """The number of requests that wait for an answer."""
        return sum(len(asked.waiting) for asked in self._asked.values())

    @property
    def is_asking(self) -> bool:
        """Whether anything waits for an answer, and so for the end of its time."""
        return bool(self._asked)

    # What comes in

    def is_open_for(self, event: ev.Produce) -> bool:
        """Whether a transactional batch may go on at once. One that may not is held, answered or taken here."""
        batch = event.batch
        if event.origin is ev.Origin.COORDINATOR:
            self._from_coordinator(event)
            return False
        table = self._role.replica.log.producers
        if batch.producer_id not in self._asked:
            verdict, _ = table.check(batch)
            if verdict in (SequenceVerdict.FENCED, SequenceVerdict.DUPLICATE):
                return True
            if _is_open(table.get(batch.producer_id), batch.producer_epoch):
                return True
        if event.transaction is None:
            self._refuse(event, ErrorCode.INVALID_TXN_STATE)
            return False
        if self._held_bytes + batch.size_bytes > MOST_HELD_BYTES:
            self._refuse(event, ErrorCode.CONCURRENT_TRANSACTIONS)
            return False
        self._hold(event, batch.producer_id, batch.producer_epoch, event.transaction)
        return False

    def admit(self, event: ev.Admit) -> None:
        """A shard's write in a transaction: it is decided on only when the partition belongs to it."""
        entry = self._role.replica.log.producers.get(event.producer_id)
        if entry is not None and event.producer_epoch < entry.producer_epoch:
            self._refuse(event, ErrorCode.INVALID_PRODUCER_EPOCH)
        elif event.producer_id not in self._asked and _is_open(entry, event.producer_epoch):
            self._refuse(event, ErrorCode.NONE)
        else:
            self._hold(event, event.producer_id, event.producer_epoch, event.transaction)

    def _hold(self, event: _Waiting, producer_id: int, epoch: int, tag: ev.TransactionTag) -> None:
        asked = self._asked.get(producer_id)
        if asked is not None and epoch < asked.epoch:
            self._refuse(event, ErrorCode.INVALID_PRODUCER_EPOCH)
            return
        if asked is None or epoch > asked.epoch:
            if asked is not None:
                self._drop(producer_id, ErrorCode.INVALID_PRODUCER_EPOCH)
            asked = self._asked[producer_id] = _Asked(epoch, tag, self._role.replica.new_proposal_id())
            self._ask(producer_id, asked)
        asked.waiting.append(event)
        self._held_bytes += _bytes_of(event)
        if isinstance(event, ev.Produce):
            self._role.replica.emit(fx.KeepBatch(event.handle))

    def _ask(self, producer_id: int, asked: _Asked, delay: float = 0.0) -> None:
        self._role.replica.parts.add(
            self._role.replica.partition,
            fx.AddToTransaction(
                transactional_id=asked.tag.transactional_id,
                producer_id=producer_id,
                producer_epoch=asked.epoch,
                leader_epoch=self._role.epoch,
                attempt=asked.attempt,
                verify_only=asked.tag.version < 2,
                delay=delay,
            ),
        )

    def may_begin(self, event: ev.Produce) -> bool:
        """Whether a batch goes on with its transaction here, or begins it with the first of its sequences.

        A log that knows nothing of a producer takes any other sequence of it; but what a transaction of an epoch of
        its own has sent before is never anywhere else.
        """
        batch = event.batch
        if batch.base_sequence == 0 or _is_first_version(event):
            return True
        return _is_open(self._role.replica.log.producers.get(batch.producer_id), batch.producer_epoch)

    # Answers

    def on_answered(self, event: ev.AddAnswered) -> None:
        """The coordinator has said whether the partition belongs to the transaction. Late answers do not count."""
        asked = self._asked.get(event.producer_id)
        if asked is None or (event.leader_epoch, event.attempt) != (self._role.epoch, asked.attempt):
            # Of an earlier leadership, perhaps: then it may be about another epoch of the producer.
            return
        if event.error in _ASK_AGAIN or (event.error == ErrorCode.NONE and asked.is_void):
            if event.error != ErrorCode.NONE:
                asked.last_error = event.error
            asked.attempt, asked.is_void = self._role.replica.new_proposal_id(), False
            self._ask(event.producer_id, asked, asked.backoff)
            asked.backoff = min(2 * asked.backoff, MOST_BACKOFF)
            return
        if event.error != ErrorCode.NONE:
            fenced = event.error in _FENCED
            self._drop(event.producer_id, ErrorCode.INVALID_PRODUCER_EPOCH if fenced else event.error)
            return
        for waiting in self._release(event.producer_id):
            if isinstance(waiting, ev.Admit):
                self._granted[waiting.producer_id] = waiting.producer_epoch
                self._refuse(waiting, ErrorCode.NONE)
            else:
                self._role.on_admitted(waiting)

    def _release(self, producer_id: int) -> deque[_Waiting]:
        waiting = self._asked.pop(producer_id).waiting
        self._held_bytes -= sum(map(_bytes_of, waiting))
        return waiting

    def _drop(self, producer_id: int, error: ErrorCode) -> None:
        for waiting in self._release(producer_id):
            self._give_up(waiting, error)

    def _give_up(self, event: _Waiting, error: ErrorCode) -> None:
        """One that was held is not written."""
        self._refuse(event, error)
        if isinstance(event, ev.Produce):
            self._role.replica.emit(fx.DropBatch(event.handle))

    def _refuse(self, event: _Waiting, error: ErrorCode) -> None:
        if isinstance(event, ev.Admit):
            self._role.replica.parts.admitted(
                self._role.replica.partition, fx.Admission(request_id=event.request_id, error=error)
            )
        else:
            self._role.reply(event.request_id, error)

    def on_tick(self) -> None:
        """A batch that has waited for too long is certainly not in the log, and its answer says why."""
        now = self._role.replica.now
        for asked in self._asked.values():
            over = [each for each in asked.waiting if each.deadline <= now]
            for each in over:
                asked.waiting.remove(each)
                self._held_bytes -= _bytes_of(each)
                self._give_up(each, asked.last_error)
        for producer_id in [key for key, asked in self._asked.items() if not asked.waiting]:
            del self._asked[producer_id]

    def leave(self, error: ErrorCode) -> None:
        """The leader epoch is over: nothing that waits was written."""
        for producer_id in list(self._asked):
            self._drop(producer_id, error)

    # Coordinators

    def _from_coordinator(self, event: ev.Produce) -> None:
        """A marker, or the offsets that a shard has decided to write."""
        batch, role = event.batch, self._role
        entry = role.replica.log.producers.get(batch.producer_id)
        if batch.marker is None:
            if entry is not None and batch.producer_epoch < entry.producer_epoch:
                role.reply(event.request_id, ErrorCode.INVALID_PRODUCER_EPOCH)
            elif self._may_write(batch, entry):
                role.append(event)
            else:
                role.reply(event.request_id, ErrorCode.INVALID_TXN_STATE)
            return
        if entry is None:
            self._mark(event)
        elif batch.marker.coordinator_epoch < entry.coordinator_epoch:
            role.reply(event.request_id, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        elif batch.producer_epoch < entry.producer_epoch:
            role.reply(event.request_id, ErrorCode.INVALID_PRODUCER_EPOCH)
        elif batch.producer_epoch == entry.producer_epoch and not _is_first_version(event):
            if entry.first_offset >= 0:
                # The next transaction goes by the epoch that this marker had: it came late (KAFKA-19446).
                role.reply(event.request_id, ErrorCode.INVALID_PRODUCER_EPOCH)
            else:
                # It is there already, as its sender is told once it is committed (KAFKA-19999).
                role.await_commit(event, -1, role.replica.log.next_offset)
        else:
            self._mark(event)

    def _may_write(self, batch: BatchMeta, entry: ProducerEntry | None) -> bool:
        """Whether what a shard has decided to write is still in a transaction that its coordinator will end here.

        A request that was admitted may have waited for the load of its shard, and for longer than its transaction.
        """
        epoch = batch.producer_epoch
        return self._granted.get(batch.producer_id) == epoch or _is_open(entry, epoch)

    def _mark(self, event: ev.Produce) -> None:
        self._granted.pop(event.batch.producer_id, None)
        asked = self._asked.get(event.batch.producer_id)
        # A question about a transaction of an epoch of its own is not about the one before it, whose marker has the
        # same epoch: no answer to it can be. But one that was begun so may end with a marker of its very epoch.
        if asked is not None and (
            asked.tag.version < 2 or _is_first_version(event) or event.batch.producer_epoch > asked.epoch
        ):
            asked.is_void = True
        self._role.append(event)


def _is_open(entry: ProducerEntry | None, producer_epoch: int) -> bool:
    """Whether a transaction of exactly this epoch is open. Of an older one the marker is still to come."""
    return entry is not None and entry.first_offset >= 0 and entry.producer_epoch == producer_epoch


def _is_first_version(event: ev.Produce) -> bool:
    return event.transaction is not None and event.transaction.version < 2


def _bytes_of(event: _Waiting) -> int:
    return event.batch.size_bytes if isinstance(event, ev.Produce) else 0
