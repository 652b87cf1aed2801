"""Descriptions of partitions for metadata answers, made once for each record: thousands of partitions are asked
about again and again while clients look for new leaders, and most of them have not changed in between.
"""

from __future__ import annotations

from collections.abc import Collection

from ...core import messages as m
from ...core.control.records import PartitionRecord
from ...core.types import PartitionId


def describe_partition(record: PartitionRecord) -> m.PartitionInfo:
    """The description of a partition in an answer."""
    return m.PartitionInfo(
        partition=record.partition,
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        replicas=list(record.replicas),
        isr=list(record.isr),
        elr=list(record.elr),
        last_known_elr=list(record.last_known_elr),
        adding=list(record.adding),
        removing=list(record.removing),
        recovering=record.recovering,
    )


class Described:
    """Answers `describe_partition`. Only encode the answers, because many callers share them."""

    def __init__(self) -> None:
        self._infos: dict[PartitionId, tuple[PartitionRecord, m.PartitionInfo]] = {}

    def __call__(self, record: PartitionRecord) -> m.PartitionInfo:
        key = record.id
        known = self._infos.get(key)
        # By identity, which is quick; the record that is held here keeps its identity from being another one's.
        if known is not None and known[0] is record:
            return known[1]
        info = describe_partition(record)
        self._infos[key] = record, info
        return info

    def keep(self, partitions: Collection[PartitionId]) -> None:
        """Forget partitions that are no more, if there may be any."""
        if len(self._infos) > len(partitions):
            self._infos = {key: known for key, known in self._infos.items() if key in partitions}
