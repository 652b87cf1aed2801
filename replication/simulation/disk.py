"""A replica's log as written: what a killed process leaves, and what a power failure takes of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..core import events as ev
from ..core.types import BatchMeta, EpochEntry, ProducerEntry, SequencedBatch


class Stored(NamedTuple):
    """A batch with its payload."""

    meta: BatchMeta
    payload: str


GONE = (-1, "")


class Disk:
    """One log as one list, slow and obvious. `flushed`: everything below it survives a power failure."""

    def __init__(self) -> None:
        self.batches: list[Stored] = []
        self.epochs: list[EpochEntry] = []
        self.high_watermark = 0
        self.start = 0
        """The first offset that may be read; on the device as soon as it is here."""
        self.flushed = 0
        self.torn: int | None = None
        """The base offset of a batch that a power failure left half written."""
        self.flat: list[tuple[int, str]] = []
        """(epoch, payload) of each offset from 0 on; those of deleted batches are `GONE`."""
        self.before: BatchMeta | None = None
        """The batch that stood just before the first one, if it is known."""
        self.forgot = False
        """Whether this log began again at its leader's log start, and so knows no producer from before."""
        self._gone: list[BatchMeta] = []
        """Deleted batches, for what the producer snapshots still know of them."""
        self.agreed = 0
        """For the oracle: how far this log is known to be the committed one."""

    @property
    def end(self) -> int:
        return len(self.flat)

    def append(self, batches: Iterable[Stored]) -> None:
        for batch in batches:
            meta = batch.meta
            if meta.base_offset < self.end:
                # The log start lies inside the first batch that there is.
                assert not self.batches and self.start == self.end < meta.next_offset
                del self.flat[meta.base_offset :]
            self.assign(meta.leader_epoch, max(meta.base_offset, self.start))
            self.batches.append(batch)
            self.flat += [(meta.leader_epoch, batch.payload)] * meta.offset_count

    def assign(self, epoch: int, start: int) -> None:
        start = max(start, self.start)  # retention may have gone past it since it was asked for
        if any(entry.epoch == epoch and entry.start_offset <= start for entry in self.epochs):
            return
        kept = [entry for entry in self.epochs if entry.epoch < epoch and entry.start_offset < start]
        self.epochs = [*kept, EpochEntry(epoch, start)]

    def truncate(self, offset: int) -> None:
        end = min(offset, self.end)
        while self.batches and self.batches[-1].meta.next_offset > offset:
            end = self.batches.pop().meta.base_offset
        del self.flat[end:]
        self.start = min(self.start, end)
        self.trim_epochs()
        self.high_watermark = min(self.high_watermark, end)
        self.flushed = min(self.flushed, end)
        self.agreed = min(self.agreed, end)

    def restart(self, offset: int) -> None:
        """Drop everything and go on, empty, at `offset`."""
        self.batches, self.epochs, self.flat = [], [], [GONE] * offset
        self.start = self.high_watermark = self.flushed = self.agreed = offset
        self.torn, self.before, self._gone = None, None, []
        self.forgot = offset > 0

    def advance_start(self, offset: int) -> None:
        """Give up what lies below `offset`; whole batches below it are deleted."""
        if offset <= self.start:
            return
        self.start = offset
        while self.batches and self.batches[0].meta.next_offset <= offset:
            gone = self.batches.pop(0).meta
            self.flat[gone.base_offset : gone.next_offset] = [GONE] * gone.offset_count
            self.before = gone
            self._gone.append(gone)
        covering = [entry for entry in self.epochs if entry.start_offset <= offset]
        kept = [entry for entry in self.epochs if entry.start_offset > offset]
        self.epochs = [EpochEntry(entry.epoch, offset) for entry in covering[-1:]] + kept

    def trim_epochs(self) -> None:
        end = self.end
        if self.epochs and self.epochs[-1].start_offset >= end:
            self.epochs = [entry for entry in self.epochs if entry.start_offset < end]

    def flush(self) -> None:
        self.flushed = self.end

    def lose_power(self, offset: int, *, torn: bool) -> None:
        """Lose what stands past `offset` and was not flushed; with `torn` the batch there is half written."""
        offset = max(offset, self.flushed, self.start)
        if torn:
            later = [batch.meta for batch in self.batches if batch.meta.base_offset >= offset]
            if later:
                self.torn = later[0].base_offset
                offset = later[0].next_offset
        self._lose(offset)

    def _lose(self, offset: int) -> None:
        """Cut what a stop has damaged; a log that would end below its start begins again there, empty."""
        start = self.start
        self.truncate(offset)
        if self.end < start:
            self.restart(start)

    def recover(self) -> None:
        """Open after any stop: cut at the first batch that is not whole, and drop epochs without records."""
        if self.torn is not None and self.torn >= self.flushed:
            self._lose(self.torn)
            self.torn = None
        self.trim_epochs()

    def read(self, start: int, limit: int, count: int) -> tuple[Stored, ...]:
        """Up to `count` whole batches from the one that holds `start` on, none past `limit`."""
        batches = self.batches
        if start < self.start:
            return ()
        first = len(batches)
        while first and batches[first - 1].meta.next_offset > start:
            first -= 1
        return tuple(b for b in batches[first : first + count] if b.meta.next_offset <= limit)

    def producers(self) -> tuple[ProducerEntry, ...]:
        kept: dict[int, ProducerEntry] = {}
        for meta in (*self._gone, *(batch.meta for batch in self.batches)):
            if meta.producer_id >= 0:
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
            log_start_offset=self.start,
            log_end_offset=self.end,
            high_watermark=self.high_watermark,
            epochs=tuple(self.epochs),
            producers=self.producers(),
        )

    def truncated(self) -> ev.Truncated:
        return ev.Truncated(
            log_start_offset=self.start,
            log_end_offset=self.end,
            epochs=tuple(self.epochs),
            producers=self.producers(),
        )
