"""Errors in how producers that outlive their processes follow one another."""

from __future__ import annotations

from typing import Any

from insync.replication.core.broker.producing import producing
from insync.replication.core.messages import DescribeProducersResult
from insync.replication.core.partition.producers import ProducerTable, SequenceVerdict
from insync.replication.core.types import BatchMeta

from ..catalogue import Patch, mutant


@mutant("K30", "let a producer continue after another has taken over its name (KIP-360)")
def _(patch: Patch) -> None:
    right = ProducerTable.check

    def check(self: ProducerTable, batch: BatchMeta) -> Any:
        entry = self.get(batch.producer_id)
        if entry is None or batch.producer_epoch >= entry.producer_epoch:
            return right(self, batch)
        goes_on = batch.base_sequence == entry.batches[-1].last_sequence + 1
        return (SequenceVerdict.ACCEPT if goes_on else SequenceVerdict.FENCED), None

    patch.setattr(ProducerTable, "check", check)


@mutant("K31", "let a producer's new epoch begin at any sequence")
def _(patch: Patch) -> None:
    right = ProducerTable.check

    def check(self: ProducerTable, batch: BatchMeta) -> Any:
        verdict, kept = right(self, batch)
        entry = self.get(batch.producer_id)
        newer = entry is not None and batch.producer_epoch > entry.producer_epoch
        return (SequenceVerdict.ACCEPT if newer else verdict), kept

    patch.setattr(ProducerTable, "check", check)


@mutant("K32", "continue from what a producer has written although it is not committed")
def _(patch: Patch) -> None:
    patch.setattr(DescribeProducersResult, "settled", property(lambda self: self.error == 0))


@mutant("K239", "let clients write to an internal topic")
def _(patch: Patch) -> None:
    patch.setattr(producing, "INTERNAL_TOPICS", {})
