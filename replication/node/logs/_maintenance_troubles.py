"""Failures of retention and compaction, by partition: logged once, and part of the node's health."""

from __future__ import annotations

import logging

from ....storage import CompactionResult, CorruptLogError, StorageError
from ...core.faces import ClockVerdict
from ...core.types import PartitionId

log = logging.getLogger("insync.node")


class MaintenanceTroubles:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self.failing: dict[PartitionId, str] = {}
        """Partitions whose last maintenance failed, and why."""
        self.unreadable: dict[PartitionId, int] = {}
        """Unreadable record batches that compaction left unchanged."""

        self.damaged: dict[PartitionId, int] = {}
        """Logs that are damaged at or after an offset, and stay leaders because no sound replica exists."""
        self.clocks = ClockVerdict()

    def clocks_judged(self, verdict: ClockVerdict) -> None:
        before, self.clocks = self.clocks, verdict
        if verdict.finding == before.finding:
            return
        if verdict.problem:
            log.error("%s (over max_clock_difference_ms)", verdict.problem)
        elif before.problem:
            log.info("this node's clock agrees with the others again")
        for node_id in sorted({*verdict.wrong} - {*before.wrong}):
            log.warning("%s (over max_clock_difference_ms)", verdict.other_problem(node_id))

    def found_damaged(self, partition: PartitionId, error: CorruptLogError) -> None:
        if partition not in self.damaged:
            log.error("%s is damaged and stays leader, because no sound replica exists: %s", partition, error)
        self.damaged[partition] = error.offset

    def found_sound(self, partition: PartitionId, offset: int) -> None:
        """The log was read from an offset on, or holds nothing below it any more."""
        if self.damaged.get(partition, offset + 1) <= offset:
            del self.damaged[partition]

    def failed(self, partition: PartitionId, error: StorageError) -> None:
        if partition not in self.failing:
            log.warning(
                "retention or compaction of %s failed: %s; retrying at each interval",
                partition,
                error,
            )
        self.failing[partition] = str(error)

    def succeeded(self, partition: PartitionId, compaction: CompactionResult | None) -> None:
        """`compaction`: None if none was due, which says nothing of batches that were found before."""
        if self.failing.pop(partition, None) is not None:
            log.info("retention and compaction of %s work again", partition)
        if compaction is None:
            return
        count = compaction.batches_unreadable
        if count and partition not in self.unreadable:
            log.warning(
                "%s holds %d unreadable record batches; compaction leaves them unchanged. The first: "
                "%s. Delete these records, or the topic",
                partition,
                count,
                compaction.first_unreadable,
            )
        if count:
            self.unreadable[partition] = count
        else:
            self.unreadable.pop(partition, None)

    def forget(self, partition: PartitionId) -> None:
        """Its log is gone."""
        self.damaged.pop(partition, None)
        self.failing.pop(partition, None)
        self.unreadable.pop(partition, None)
