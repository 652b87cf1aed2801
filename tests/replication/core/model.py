"""The slow and obvious parts that the cluster stands on: a log of one list, a store of one dictionary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import attrs

from insync.replication.core import events as ev
from insync.replication.core.records import PartitionRecord, Versioned
from insync.replication.core.types import BatchMeta, EpochEntry, ProducerEntry, SequencedBatch


class Stored(NamedTuple):
    """A batch with its payload: what a disk holds."""

    meta: BatchMeta
    payload: str


class Disk:
    """A replica's log as written: survives a killed process, and is cut by a power failure."""

    def __init__(self) -> None:
        self.batches: list[Stored] = []
        self.epochs: list[EpochEntry] = []
        self.high_watermark = 0
        self.flat: list[tuple[int, str]] = []
        """(epoch, payload) of each offset."""

    @property
    def end(self) -> int:
        return len(self.flat)

    def append(self, batches: Iterable[Stored]) -> None:
        for batch in batches:
            meta = batch.meta
            assert meta.base_offset == self.end, "an append that does not go on from the end"
            assert not self.batches or meta.leader_epoch >= self.batches[-1].meta.leader_epoch, "S5"
            self.assign(meta.leader_epoch, meta.base_offset)
            self.batches.append(batch)
            self.flat += [(meta.leader_epoch, batch.payload)] * meta.offset_count

    def assign(self, epoch: int, start: int) -> None:
        if any(entry.epoch == epoch and entry.start_offset <= start for entry in self.epochs):
            return
        kept = [entry for entry in self.epochs if entry.epoch < epoch and entry.start_offset < start]
        self.epochs = [*kept, EpochEntry(epoch, start)]

    def truncate(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.meta.next_offset <= offset]
        end = self.batches[-1].meta.next_offset if self.batches else 0
        del self.flat[end:]
        self.epochs = [entry for entry in self.epochs if entry.start_offset < end]

    def read(self, start: int, limit: int, count: int) -> tuple[Stored, ...]:
        found = [b for b in self.batches if b.meta.next_offset > start and b.meta.next_offset <= limit]
        return tuple(found[:count])

    def producers(self) -> tuple[ProducerEntry, ...]:
        kept: dict[int, ProducerEntry] = {}
        for meta, _ in self.batches:
            if meta.producer_id < 0:
                continue
            entry = kept.get(meta.producer_id)
            earlier = entry.batches if entry and entry.producer_epoch == meta.producer_epoch else ()
            last = SequencedBatch(
                meta.base_sequence, meta.last_sequence, meta.base_offset, meta.next_offset - 1
            )
            kept[meta.producer_id] = ProducerEntry(
                meta.producer_id, meta.producer_epoch, (*earlier, last)[-5:]
            )
        return tuple(kept.values())

    def opened(self) -> ev.Opened:
        return ev.Opened(
            log_start_offset=0,
            log_end_offset=self.end,
            high_watermark=self.high_watermark,
            epochs=tuple(self.epochs),
            producers=self.producers(),
        )

    def truncated(self) -> ev.Truncated:
        return ev.Truncated(
            log_start_offset=0,
            log_end_offset=self.end,
            epochs=tuple(self.epochs),
            producers=self.producers(),
        )


@attrs.frozen
class Snapshot:
    """Everything in the store at one revision."""

    revision: int
    partition: Versioned | None
    live: dict[int, int]
    controller: tuple[int, int, int] | None
    controller_epoch: int
    controller_epoch_version: int


class Store:
    """One partition record with versions, the living nodes, their incarnations, and the controller's office."""

    def __init__(self) -> None:
        self.revision = 0
        self.partition: Versioned | None = None
        self.live: dict[int, int] = {}
        self.incarnations: dict[int, int] = {}
        self.controller: tuple[int, int, int] | None = None
        self.controller_epoch = 0
        self.controller_epoch_version = 0
        self.history: list[PartitionRecord] = []

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.revision,
            self.partition,
            dict(self.live),
            self.controller,
            self.controller_epoch,
            self.controller_epoch_version,
        )

    def put_partition(self, record: PartitionRecord) -> int:
        version = self.partition.version + 1 if self.partition is not None else 1
        self.revision += 1
        self.partition = Versioned(record, version)
        self.history.append(record)
        return version

    def register(self, node: int, incarnation: int) -> None:
        self.revision += 1
        self.incarnations[node] = incarnation
        self.live[node] = incarnation

    def expire(self, node: int) -> None:
        """The node's session ends, and with it what it held."""
        self.live.pop(node, None)
        if self.controller is not None and self.controller[0] == node:
            self.controller = None
        self.revision += 1
