"""A producer's side of its transactions: which call fits when, what is asked of the coordinator, and what is known.

A pure machine: it sends nothing and reads no clock. Each transaction has the producer epoch that its predecessor's
end has told, and begins at sequence 0 in each partition (KIP-890).
"""

from __future__ import annotations

import enum

import attrs

from ..errors import ErrorCode
from ..messages.transactions import EndTransactionRequest, InitTransactionsRequest, ProducerIdResponse


class Phase(enum.Enum):
    """Where a producer stands."""

    UNINITIALIZED = enum.auto()
    READY = enum.auto()
    OPEN = enum.auto()
    ABORTABLE = enum.auto()
    """Something has failed: it can only be aborted."""
    COMMITTING = enum.auto()
    """Asked for; nobody has said yet that it is so."""
    ABORTING = enum.auto()
    FENCED = enum.auto()
    """Another producer has the transactional id. This is final."""


class Ended(enum.Enum):
    """The meanings of the coordinator's answer to an end."""

    DONE = enum.auto()
    TIMED_OUT = enum.auto()
    """The transaction was aborted before, certainly; ask to abort it, which tells the next ids."""
    FENCED = enum.auto()
    REFUSED = enum.auto()
    """It cannot be so; another error of the coordinator."""


_FENCING = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


@attrs.define(eq=False, slots=True)
class TransactionalProducer:
    """`ids`: producer id and epoch of the present transaction, or of the next one."""

    transactional_id: str
    timeout_ms: int
    phase: Phase = Phase.UNINITIALIZED
    ids: tuple[int, int] = (-1, -1)
    is_used: bool = False
    """Whether anything was sent in the open transaction, that there is something to end."""

    def init_request(self) -> InitTransactionsRequest:
        """Takes the transactional id over."""
        return InitTransactionsRequest(transactional_id=self.transactional_id, timeout_ms=self.timeout_ms)

    def initialized(self, answer: ProducerIdResponse) -> None:
        """The answer to that, without an error."""
        assert self.phase is Phase.UNINITIALIZED
        self._told(answer)

    def begin(self) -> None:
        """A transaction is open, as far as this producer is concerned; the first batch makes it so."""
        assert self.phase is Phase.READY
        self.phase, self.is_used = Phase.OPEN, False

    def failed(self) -> None:
        """A record, or an offset, was not taken, or perhaps not."""
        if self.phase is Phase.OPEN:
            self.phase = Phase.ABORTABLE

    def end(self, committed: bool) -> EndTransactionRequest | None:
        """The request to send; None if there is nothing to end, and the producer is ready."""
        if committed:
            assert self.phase in (Phase.OPEN, Phase.COMMITTING)
            if not self.is_used:
                self.phase = Phase.READY
                return None
            self.phase = Phase.COMMITTING
        else:
            assert self.phase in (Phase.OPEN, Phase.ABORTABLE, Phase.ABORTING)
            if not self.is_used and self.phase is Phase.OPEN:
                self.phase = Phase.READY
                return None
            self.phase = Phase.ABORTING
        return self._end_request(committed)

    def _end_request(self, committed: bool) -> EndTransactionRequest:
        producer_id, epoch = self.ids
        return EndTransactionRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )

    def ended(self, committed: bool, answer: ProducerIdResponse) -> Ended:
        """The answer to an end that the coordinator has decided."""
        if answer.error == ErrorCode.NONE:
            self._told(answer)
            return Ended.DONE
        if answer.error == ErrorCode.TRANSACTION_ABORTED:
            self.phase = Phase.ABORTING
            return Ended.TIMED_OUT
        if answer.error in _FENCING:
            self.phase = Phase.FENCED
            return Ended.FENCED
        # Of a commit this says that it was not made, and will not be.
        self.phase = Phase.ABORTABLE if committed else Phase.ABORTING
        return Ended.REFUSED

    def _told(self, answer: ProducerIdResponse) -> None:
        self.ids, self.phase = (answer.producer_id, answer.producer_epoch), Phase.READY
