"""ISR changes on their way into the metadata store: their conditions and their outcomes.

The proposals that leaders of this node make at one time share a transaction. When a node returns, hundreds of
partitions add it to their ISRs within a moment, and each transaction costs every node a reading of the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ...control import records as rec
from ...partition import effects as fx
from ...partition import events as ev
from ...store_transaction import (
    Committed,
    Compare,
    Conflict,
    Outcome,
    Put,
    SameValue,
    Seen,
    SessionOver,
    Transaction,
    Unclear,
)
from ...types import PartitionId
from ..effects import IsrSettled, ReadKeys, Settled, WriteIsrs
from ..events import IsrsWritten, KeysRead

if TYPE_CHECKING:
    from ...partition.replica import Replica
    from ..context import Context

MOST_TOGETHER = 500
"""Maximum proposals in one transaction; a store may accept fewer (`Context.fits`)."""
REFUSED_PAUSE = 0.1
"""Seconds before a leader learns of a refusal: it may repeat its proposal at once, and the obstacle needs a moment
to
disappear."""


class _Proposed(NamedTuple):
    """A proposal and the replica that made it: a later replica of the partition restarts the numbering."""

    partition: PartitionId
    replica: Replica
    proposal: fx.ProposeIsr


class Proposing:
    """Writes one transaction at a time. After a conflict, the conflicting proposal is tried alone and the others
    together again. Their keys are read first, which removes the proposals that are too late by then.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.is_due = False
        """Whether there may be work at the end of the turn."""
        self._waiting: list[_Proposed] = []
        self._alone: deque[_Proposed] = deque()
        """Proposals to be written alone."""
        self._taken: list[_Proposed] = []
        """Proposals whose keys are being read, or which are being written."""
        self._judged: list[list[Compare] | Settled] = []
        """The conditions of each current proposal by the read keys; empty while they are being read."""

    def propose(self, partition: PartitionId, proposal: fx.ProposeIsr) -> None:
        """Store a proposal, together with those of the same turn."""
        self._waiting.append(_Proposed(partition, self._context.replicas[partition], proposal))
        self.is_due = self._context.is_unsettled = True

    def settle(self) -> None:
        """Begin at the end of a turn, unless a transaction is under way."""
        self.is_due = False
        if not self._taken and (self._alone or self._waiting):
            self._taken = [self._alone.popleft()] if self._alone else self._oldest()
            wanted = dict.fromkeys(key for each in self._taken for key in keys(each.proposal))
            self._context.emit(ReadKeys(tuple(wanted)))

    def _oldest(self) -> list[_Proposed]:
        """The oldest proposals, at most one for each partition."""
        taken: dict[PartitionId, _Proposed] = {}
        left = []
        for each in self._waiting:
            if len(taken) < MOST_TOGETHER and each.partition not in taken:
                taken[each.partition] = each
            else:
                left.append(each)
        self._waiting = left
        return list(taken.values())

    def read(self, event: KeysRead) -> None:
        """Take the values of the keys, and write the proposals that may be stored."""
        assert self._taken and not self._judged
        if event.seen is None:
            self._tell([ev.IsrUnclear(proposal_id=each.proposal.proposal_id) for each in self._taken])
            return
        seen = event.seen
        self._judged = [conditions(each.proposal, seen) for each in self._taken]
        write = self._write()
        while len(write.proposals) > 1 and not self._context.fits(write.transaction):
            self._keep(len(self._taken) // 2)
            write = self._write()
        if not write.proposals:
            self._end(Unclear())
        else:
            self._context.emit(write)

    def _write(self) -> WriteIsrs:
        """Write the current proposals that may be stored."""
        stored = [
            (each.proposal, found)
            for each, found in zip(self._taken, self._judged, strict=True)
            if isinstance(found, list)
        ]
        compares = dict.fromkeys(compare for _, found in stored for compare in found)
        proposals = tuple([proposal for proposal, _ in stored])
        return WriteIsrs(
            Transaction(compares=tuple(compares), puts=tuple([put(each) for each in proposals])), proposals
        )

    def _keep(self, count: int) -> None:
        """Continue with the oldest proposals; the others are next."""
        self._waiting[:0] = self._taken[count:]
        del self._taken[count:], self._judged[count:]

    def written(self, event: IsrsWritten) -> None:
        """Take the outcome of the transaction."""
        assert self._judged
        if isinstance(event.outcome, Conflict) and len(self._taken) > 1:
            key = event.outcome.key
            met = [each for each in self._taken if key in keys(each.proposal)]
            # Each round tries fewer of them together.
            self._alone.extend(met or self._taken)
            self._waiting[:0] = (
                [each for each in self._taken if key not in keys(each.proposal)] if met else []
            )
            self._taken, self._judged = [], []
            self.is_due = self._context.is_unsettled = True
        else:
            self._end(event.outcome)

    def _end(self, outcome: Outcome) -> None:
        self._tell(
            [
                settled(each.proposal, outcome) if isinstance(found, list) else found
                for each, found in zip(self._taken, self._judged, strict=True)
            ]
        )

    def _tell(self, outcomes: list[Settled]) -> None:
        told, self._taken, self._judged = self._taken, [], []
        self.is_due = self._context.is_unsettled = True
        for each, outcome in zip(told, outcomes, strict=True):
            self._context.emit(IsrSettled(each.proposal, outcome))
            if isinstance(outcome, ev.IsrRefused):
                at = self._context.now + REFUSED_PAUSE
                self._context.timers.call_at(at, partial(self._step, each, outcome))
            else:
                self._step(each, outcome)

    def _step(self, proposed: _Proposed, outcome: Settled) -> None:
        if self._context.replicas.get(proposed.partition) is proposed.replica:
            self._context.step_replica(proposed.partition, outcome)


def keys(proposal: fx.ProposeIsr) -> list[str]:
    """The keys that `conditions` needs."""
    joining = [rec.node_key(node_id) for node_id, _ in proposal.joining]
    return [rec.partition_key(proposal.record.id), *joining]


def conditions(proposal: fx.ProposeIsr, seen: Mapping[str, Seen]) -> list[Compare] | Settled:
    """The conditions under which a proposal may be stored, or its outcome if it may not.

    A joining replica must be alive, in the process that has caught up, with its log directory in use (KIP-841,
    KAFKA-13916). The record must be the one that the proposal started from. It is compared by value, because
    versions restart at 1 when a topic of the same name is created again.
    """
    compares: list[Compare] = []
    for node_id, incarnation in proposal.joining:
        node = seen.get(rec.node_key(node_id))
        if node is None or not _may_join(node.record, incarnation, proposal.record.id):
            return ev.IsrRefused(proposal_id=proposal.proposal_id)
        compares.append(SameValue(node.key, node.value))
    stored = seen.get(rec.partition_key(proposal.record.id))
    if stored is None or not _is_same(stored, proposal):
        return ev.IsrUnclear(proposal_id=proposal.proposal_id)
    return [SameValue(stored.key, stored.value), *compares]


def put(proposal: fx.ProposeIsr) -> Put:
    return Put(rec.partition_key(proposal.record.id), proposal.record)


def settled(proposal: fx.ProposeIsr, outcome: Outcome) -> Settled:
    """The outcome of a proposal that was written alone, or with others without a conflict."""
    key = rec.partition_key(proposal.record.id)
    match outcome:
        case Committed():
            return ev.IsrStored(proposal_id=proposal.proposal_id, version=outcome.versions[key])
        case SessionOver():
            return ev.IsrRefused(proposal_id=proposal.proposal_id)
        case Conflict() if outcome.key != key:
            # The joining node is gone or another process now: this proposal can never be stored.
            return ev.IsrRefused(proposal_id=proposal.proposal_id)
    return ev.IsrUnclear(proposal_id=proposal.proposal_id)


def _may_join(record: object, incarnation: int, partition: PartitionId) -> bool:
    """Whether a registration is still that of the process that caught up, with its log directory in use."""
    return (
        isinstance(record, rec.NodeRecord)
        and record.incarnation == incarnation
        and not record.leaving
        and partition not in record.offline
    )


def _is_same(stored: Seen, proposal: fx.ProposeIsr) -> bool:
    """Whether the record is still the one that a proposal started from."""
    record = stored.record
    same_topic = isinstance(record, rec.PartitionRecord) and record.topic_id == proposal.record.topic_id
    return same_topic and stored.version == proposal.version
