"""ISR changes on their way into the metadata store: what must hold for one to be stored, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping

from ..control import records as rec
from ..partition import effects as fx
from ..partition import events as ev
from ..transaction import Committed, Compare, Conflict, Outcome, Put, SameValue, Seen, SessionOver
from ..types import PartitionId

MOST_TOGETHER = 100
"""Proposals in one transaction: a store may limit its bytes."""

Settled = ev.IsrStored | ev.IsrRefused | ev.IsrUnclear


def keys(proposal: fx.ProposeIsr) -> list[str]:
    """What has to be read for `conditions`."""
    joining = [rec.node_key(node_id) for node_id, _ in proposal.joining]
    return [rec.partition_key(proposal.record.id), *joining]


def conditions(proposal: fx.ProposeIsr, seen: Mapping[str, Seen]) -> list[Compare] | Settled:
    """What has to hold when it is stored, if it may be; else what becomes of it.

    Who joins lives, as the process that has caught up, with its log directory in use (KIP-841, KAFKA-13916). The
    record is the one that the proposal was made from: by value, because versions begin at 1 when a topic of the
    same name is created again.
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
    """What became of a proposal that was written alone, or with others of which none met a conflict."""
    key = rec.partition_key(proposal.record.id)
    match outcome:
        case Committed():
            return ev.IsrStored(proposal_id=proposal.proposal_id, version=outcome.versions[key])
        case SessionOver():
            return ev.IsrRefused(proposal_id=proposal.proposal_id)
        case Conflict() if outcome.key != key:
            # Who was to join has gone, or is another process by now: this proposal will never be stored.
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
    """Whether the record is still the one that a proposal was made from."""
    record = stored.record
    same_topic = isinstance(record, rec.PartitionRecord) and record.topic_id == proposal.record.topic_id
    return same_topic and stored.version == proposal.version
