"""Errors in how topics that are in use are changed."""

from __future__ import annotations

import attrs

from insync.replication.core import transitions
from insync.replication.core.records import PartitionRecord

from .catalogue import Patch, mutant


@mutant("K80", "set the minimum ISR and leave the eligible replicas as they are (KIP-966)")
def _(patch: Patch) -> None:
    def set_min_insync(record: PartitionRecord, min_insync: int) -> PartitionRecord | None:
        if record.min_insync_replicas == min_insync:
            return None
        epoch = record.partition_epoch + 1
        return attrs.evolve(record, min_insync_replicas=min_insync, partition_epoch=epoch)

    patch.setattr(transitions, "set_min_insync", set_min_insync)


@mutant("K81", "set the minimum ISR of the topic alone, not of its partitions")
def _(patch: Patch) -> None:
    patch.setattr(transitions, "set_min_insync", lambda record, min_insync: None)
