"""What retention and compaction could not do, of each partition: logged once, and part of the node's health."""

from __future__ import annotations

import logging

from ...storage import CompactionResult, StorageError
from ..core.types import PartitionId

log = logging.getLogger("insync.node")


class MaintenanceTroubles:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self.failing: dict[PartitionId, str] = {}
        """Partitions whose last maintenance failed, and why."""
        self.unreadable: dict[PartitionId, int] = {}
        """Record batches that compaction left as they are because nobody can read their records."""

    @property
    def partitions(self) -> set[PartitionId]:
        return {*self.failing, *self.unreadable}

    def failed(self, partition: PartitionId, error: StorageError) -> None:
        if partition not in self.failing:
            log.warning(
                "%s cannot be maintained: %s; retention and compaction are tried again at each interval",
                partition,
                error,
            )
        self.failing[partition] = str(error)

    def succeeded(self, partition: PartitionId, compaction: CompactionResult | None) -> None:
        """`compaction`: None if none was due, which says nothing of batches that were found before."""
        if self.failing.pop(partition, None) is not None:
            log.info("%s is maintained again", partition)
        if compaction is None:
            return
        count = compaction.batches_unreadable
        if count and partition not in self.unreadable:
            log.warning(
                "%s holds %d record batches that nobody can read; compaction leaves them as they are. The first: "
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
        self.failing.pop(partition, None)
        self.unreadable.pop(partition, None)
