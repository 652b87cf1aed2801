"""A transaction that hangs in a partition is ended by an operator's word (KIP-664).

The leader first asks the leader of every partition of coordinators whether it holds the transaction: what a
coordinator holds is its to end, and a marker of anybody else would take a part out of it. Kafka leaves that to the
operator. A transaction that it holds and cannot end here, because its marker is refused, gets the outcome that the
coordinator has decided.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ... import messages as m
from ...control.internal_topics import TRANSACTIONS
from ...errors import ErrorCode
from ...messages import transactions as tm
from ...transactions.records import HELD, Status
from ...types import NO_LEADER, PartitionId, ProducerEntry

if TYPE_CHECKING:
    from ..context import Context
    from ..membership.peers import Peers

ASK_TIMEOUT = 5.0
"""Seconds for which a coordinator may take to say what it holds."""

Told = Callable[[tm.AbortTransactionResponse], None]
Mark = Callable[[int, tm.TransactionMarkers, m.PartitionName, Callable[[ErrorCode], None]], None]
Serve = Callable[[Any, Callable[[Any], None]], None]


class Aborting:
    """Takes `AbortTransactionRequest`.

    mark: writes a marker where this node leads, by the given coordinator epoch. serve: answers what coordinators
    on this node are asked. later: runs something at the end of the turn.
    """

    def __init__(
        self,
        context: Context,
        peers: Peers,
        *,
        mark: Mark,
        serve: Serve,
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._context = context
        self._peers = peers
        self._mark = mark
        self._serve = serve
        self._later = later

    def take(self, message: tm.AbortTransactionRequest, told: Told) -> None:
        """Write the marker if exactly the named transaction is open here and no coordinator holds it."""
        found = self._find(message)
        if isinstance(found, tm.AbortTransactionResponse):
            told(found)
            return
        coordinators = self._coordinators()
        if coordinators is None:
            told(self._refused(message, *_UNKNOWN))
            return
        # What is open now is meant, whatever begins while coordinators are asked.
        message = structs.replace(message, start_offset=found.first_offset)
        _Inquiry(self, message, told).begin(coordinators)

    def ask(self, node: int, kind: m.Kind, request: object, answered: Callable[[Any], None]) -> None:
        """Ask a node, which may be this one; None comes if it does not answer."""
        if node == self._context.node_id:
            self._serve(request, answered)
        else:
            self._peers.ask(
                node, kind, request, ASK_TIMEOUT, answered=answered, failed=lambda reason: answered(None)
            )

    def decided(
        self, message: tm.AbortTransactionRequest, told: Told, error: ErrorCode, why: str, *, committed: bool
    ) -> None:
        """The coordinators have been asked. error: why the transaction is not to be ended."""
        if error != ErrorCode.NONE:
            told(self._refused(message, error, why))
        else:
            self._later(partial(self._end, message, told, committed))

    def _end(self, message: tm.AbortTransactionRequest, told: Told, committed: bool) -> None:
        found = self._find(message)  # again: time has passed
        if isinstance(found, tm.AbortTransactionResponse):
            told(found)
            return
        # Version 1, whose markers have the epoch of the transaction: no other epoch is known.
        markers = tm.TransactionMarkers(
            transactional_id="",
            producer_id=message.producer_id,
            producer_epoch=message.producer_epoch,
            committed=committed,
            version=1,
            start_ms=-1,
            partitions=[],
        )
        at = m.PartitionName(topic=message.topic, partition=message.partition)
        # The epoch of the last marker, and none above it: that would shut the true coordinator out.
        epoch = max(found.coordinator_epoch, 0)
        self._mark(epoch, markers, at, lambda error: told(self._refused(message, error, "")))

    def _find(self, message: tm.AbortTransactionRequest) -> ProducerEntry | tm.AbortTransactionResponse:
        """The producer's entry with the named transaction, or why there is none."""
        partition = PartitionId(message.topic, message.partition)
        replica = self._context.replicas.get(partition)
        if replica is None:
            return tm.AbortTransactionResponse(error=self._context.missing_error(partition))
        if replica.leader is None:
            return self._refused(message, ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        entry = replica.log.producers.get(message.producer_id)
        if message.start_offset < 0:
            error = ErrorCode.NONE
            if entry is None:
                error = ErrorCode.UNKNOWN_PRODUCER_ID
            elif entry.producer_epoch != message.producer_epoch:
                error = ErrorCode.INVALID_PRODUCER_EPOCH
            elif message.coordinator_epoch < entry.coordinator_epoch:
                error = ErrorCode.TRANSACTION_COORDINATOR_FENCED
            if error != ErrorCode.NONE:
                return self._refused(message, error, "")
        is_meant = (
            entry is not None
            and entry.first_offset >= 0
            and entry.producer_epoch == message.producer_epoch
            and message.start_offset in (-1, entry.first_offset)
        )
        if entry is None or not is_meant:
            where = f" from offset {message.start_offset} on" if message.start_offset >= 0 else ""
            why = (
                f"producer {message.producer_id} has no transaction of epoch {message.producer_epoch} open in "
                f"{partition}{where}: it has ended, or another one has begun"
            )
            return self._refused(message, ErrorCode.INVALID_TXN_STATE, why)
        return entry

    def _coordinators(self) -> dict[int, list[int]] | None:
        """The partitions that keep transactional ids, by the nodes that lead them; None if one has no leader."""
        view = self._context.view
        record = view.topics.get(TRANSACTIONS.name)
        found: dict[int, list[int]] = {}
        for number in range(record.partitions if record is not None else 0):
            versioned = view.partitions.get(PartitionId(TRANSACTIONS.name, number))
            if versioned is None or versioned.record.leader == NO_LEADER:
                return None
            found.setdefault(versioned.record.leader, []).append(number)
        return found

    def _refused(
        self, message: tm.AbortTransactionRequest, error: ErrorCode, why: str
    ) -> tm.AbortTransactionResponse:
        replica = self._context.replicas.get(PartitionId(message.topic, message.partition))
        leader, epoch = replica.hint() if replica is not None else (-1, -1)
        return tm.AbortTransactionResponse(error=error, message=why, leader=leader, leader_epoch=epoch)


_UNKNOWN = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "not every coordinator said whether it holds the transaction, which it would then end itself; retry",
)


class _Inquiry:
    """Asks all coordinators, each once: first for the ids that have the producer, then for their transactions."""

    def __init__(self, aborting: Aborting, message: tm.AbortTransactionRequest, told: Told) -> None:
        self._aborting = aborting
        self._message = message
        self._told = told
        self._left = 1
        self._is_held = False
        self._is_committed = False
        self._is_known = True

    def begin(self, coordinators: dict[int, list[int]]) -> None:
        for node, partitions in sorted(coordinators.items()):
            self._left += 1
            request = tm.ListTransactionsRequest(
                producer_ids=[self._message.producer_id], partitions=partitions
            )
            self._aborting.ask(node, m.Kind.LIST_TRANSACTIONS, request, partial(self._listed, node))
        self._done()

    def _listed(self, node: int, answer: tm.ListTransactionsResponse | None) -> None:
        if answer is None or answer.error:
            self._is_known = False
        elif names := [each.transactional_id for each in answer.transactions]:
            self._left += 1
            request = tm.DescribeTransactionsRequest(transactional_ids=names)
            self._aborting.ask(node, m.Kind.DESCRIBE_TRANSACTIONS, request, self._described)
        self._done()

    def _described(self, answer: tm.DescribeTransactionsResponse | None) -> None:
        message = self._message
        at = m.PartitionName(topic=message.topic, partition=message.partition)
        for each in answer.transactions if answer is not None else ():
            if (
                each.producer_id != message.producer_id
                or each.status not in HELD
                or at not in each.partitions
            ):
                continue
            if at in each.refused:
                self._is_committed = each.status == Status.PREPARE_COMMIT.name
            else:
                self._is_held = True
        if answer is None or answer.error or any(each.error for each in answer.transactions):
            self._is_known = False
        self._done()

    def _done(self) -> None:
        self._left -= 1
        if self._left:
            return
        error, why = ErrorCode.NONE, ""
        if self._is_held:
            error, why = (
                ErrorCode.INVALID_TXN_STATE,
                (
                    f"the coordinator of producer {self._message.producer_id} holds it, and ends it by its "
                    "timeout; opening a producer with its transactional_id ends it at once"
                ),
            )
        elif not self._is_known:
            error, why = _UNKNOWN
        self._aborting.decided(self._message, self._told, error, why, committed=self._is_committed)
