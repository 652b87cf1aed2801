"""A replica's log as written: what a killed process leaves, and what a power failure takes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...core.partition import events as ev
from ...core.types import BatchMeta, EndedTransaction, EpochEntry, ProducerEntry, SequencedBatch

WHOLE, EMPTY, LEFT_OUT = range(3)
BATCHES_KEPT = 5
"""Of each producer; they stay for its retries, though compaction may empty them."""
KEYS = 5


class Stored(NamedTuple):
    """A batch with its payload.

    Compaction leaves it `EMPTY` (its records are gone, the batch stays) or leaves it out altogether: then no
    replica ever sees it, and it stands here for the oracle alone.
    """

    meta: BatchMeta
    payload: str
    state: int = WHOLE


def key_of(payload: str) -> int:
    """The key of a batch's records: later ones of the same key take their place."""
    return sum(payload.encode()) % KEYS


GONE = (-1, "")
DAMAGED = "damaged"
"""The topic id in an identity file whose checksum does not match."""


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
        self.rotten: dict[int, bool] = {}
        """Base offsets of batches that the device has spoilt since; whether the next start looks at each."""
        self.identity: str | None = None
        """The topic id that its identity file names, where that is not its own."""
        self.is_restored = False
        """Whether an operator has put it back since the last registration of its node."""
        self.flat: list[tuple[int, str]] = []
        """(epoch, payload) of each offset from 0 on; those of deleted batches are `GONE`."""
        self.cleaned = False
        """Whether compaction has taken anything out of it."""
        self.before: BatchMeta | None = None
        """The batch that stood just before the first one, if it is known."""
        self.compacted: set[int] = set()
        """Of an internal topic: offsets of the records that a cleaner has taken out, all of them committed."""
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
            if batch.state != LEFT_OUT:
                # What compaction took away before it counts to its epoch.
                self.assign(meta.leader_epoch, max(min(meta.base_offset, self._reached()), self.start))
            self.batches.append(batch)
            self.rotten.pop(meta.base_offset, None)
            self.flat += [(meta.leader_epoch, batch.payload)] * meta.offset_count
            self.cleaned |= batch.state != WHOLE

    def _reached(self) -> int:
        """Where the last batch that there is ends."""
        end = self.end
        for held in reversed(self.batches):
            if held.state != LEFT_OUT:
                break
            end = held.meta.base_offset
        return end

    def assign(self, epoch: int, start: int) -> None:
        start = max(start, self.start)  # retention may have gone past it since it was asked for
        if any(entry.epoch == epoch and entry.start_offset <= start for entry in self.epochs):
            return
        kept = [entry for entry in self.epochs if entry.epoch < epoch and entry.start_offset < start]
        self.epochs = [*kept, EpochEntry(epoch, start)]

    def truncate(self, offset: int) -> None:
        if offset < self.start and not any(batch.meta.base_offset < offset for batch in self.batches[:1]):
            self.restart(offset)
            return
        end = min(offset, self.end)
        self.compacted.clear()  # they are copied again, whole
        while self.batches and self.batches[-1].meta.next_offset > offset:
            end = self.batches.pop().meta.base_offset
        while self.batches and self.batches[-1].state == LEFT_OUT:
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
        self.rotten, self.compacted = {}, set()
        self.start = self.high_watermark = self.flushed = self.agreed = offset
        self.torn, self.before, self._gone = None, None, []
        self.forgot = offset > 0
        self.cleaned = False

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

    def rot(self, place: float, *, found_at_start: bool) -> bool:
        """Spoil one batch of those that were flushed, anywhere in the log; whether there is one."""
        whole = [b.meta for b in self.batches if b.state == WHOLE and b.meta.next_offset <= self.flushed]
        if whole:
            self.rotten[whole[int(place * len(whole))].base_offset] = found_at_start
        return bool(whole)

    def rot_at(self, offset: int) -> bool:
        """Spoil the batch that would be read next from `offset` on."""
        found = [
            batch.meta.base_offset for batch in self.read(offset, self.end, 1) if batch.state != LEFT_OUT
        ]
        self.rotten.update(dict.fromkeys(found, False))
        return bool(found)

    def damage(self, batches: Sequence[Stored]) -> int | None:
        """Base offset of the first of some batches of this log that is spoilt."""
        if not self.rotten:
            return None
        there = (batch.meta.base_offset for batch in batches if batch.state != LEFT_OUT)
        return next((offset for offset in there if offset in self.rotten), None)

    @property
    def is_found_rotten(self) -> bool:
        """Whether a start would notice that a batch is spoilt."""
        there = {batch.meta.base_offset for batch in self.batches if batch.state != LEFT_OUT}
        return any(seen and offset in there for offset, seen in self.rotten.items())

    @property
    def is_rotten(self) -> bool:
        """Whether a batch that is still there is spoilt."""
        return self.damage(self.batches) is not None

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
        found = [b for b in batches[first : first + count] if b.meta.next_offset <= limit]
        if self.cleaned:
            while found and found[-1].state == LEFT_OUT:
                found.pop()
            if not found:
                return self._past_a_gap(first, limit)
        return tuple(found)

    def _past_a_gap(self, first: int, limit: int) -> tuple[Stored, ...]:
        """The first batch that there is, behind all those that are left out."""
        found: list[Stored] = []
        for batch in self.batches[first:]:
            if batch.meta.next_offset > limit:
                return ()
            found.append(batch)
            if batch.state != LEFT_OUT:
                return tuple(found)
        return ()

    def clean(self, bound: int) -> list[Stored]:
        """Compact what lies below `bound`: of each key the last stays. Those that were emptied."""
        below = [index for index, batch in enumerate(self.batches) if batch.meta.next_offset <= bound]
        # Records of transactions, and what ends them, stay: another's outcome takes no record's place.
        plain = [index for index in below if not self.batches[index].meta.transactional]
        last = {key_of(self.batches[index].payload): index for index in plain}
        # The last of a compacted segment stays, so that it reaches up to the next.
        kept = self._last_of_producers(len(below)) | set(below[-1:]) | self._last_of_epochs(below)
        emptied: list[Stored] = []
        for index in plain:
            batch = self.batches[index]
            if batch.state == LEFT_OUT or last[key_of(batch.payload)] == index:
                continue
            if batch.state == WHOLE:
                emptied.append(batch)
            state = EMPTY if index in kept else LEFT_OUT
            self.batches[index] = batch._replace(state=state)
            self.cleaned = True
        return emptied

    def _last_of_epochs(self, below: list[int]) -> set[int]:
        """So that whoever copies this log learns where the next epoch began."""
        epochs = [self.batches[index].meta.leader_epoch for index in below]
        return {
            index for index, epoch, later in zip(below, epochs, epochs[1:], strict=False) if epoch < later
        }

    def _last_of_producers(self, count: int) -> set[int]:
        """Among the first `count` batches: later ones may yet be cut."""
        counts: Counter[tuple[int, int]] = Counter()
        kept: set[int] = set()
        for index in range(count - 1, -1, -1):
            meta = self.batches[index].meta
            if meta.producer_id >= 0:
                producer = meta.producer_id, meta.producer_epoch
                counts[producer] += 1
                if counts[producer] <= BATCHES_KEPT:
                    kept.add(index)
        return kept

    def _known(self) -> Iterator[BatchMeta]:
        """The batches that producers have written, as far as anything is left of them."""
        yield from self._gone
        for batch in self.batches:
            if batch.state != LEFT_OUT:
                yield batch.meta

    def producers(self) -> tuple[ProducerEntry, ...]:
        kept: dict[int, ProducerEntry] = {}
        for meta in self._known():
            if meta.producer_id >= 0:
                entry = kept.get(meta.producer_id)
                batches = entry.batches if entry and entry.producer_epoch == meta.producer_epoch else ()
                coordinator, first = (entry.coordinator_epoch, entry.first_offset) if entry else (-1, -1)
                if meta.base_sequence >= 0:
                    last = SequencedBatch(
                        meta.base_sequence, meta.last_sequence, meta.base_offset, meta.next_offset - 1
                    )
                    batches = (*batches, last)[-5:]
                if meta.marker is not None:
                    coordinator, first = meta.marker.coordinator_epoch, -1
                elif meta.transactional and first < 0:
                    first = meta.base_offset
                kept[meta.producer_id] = ProducerEntry(
                    meta.producer_id, meta.producer_epoch, batches, coordinator, first
                )
        return tuple(kept.values())

    def ended(self) -> list[tuple[int, int, int, bool]]:
        """Of each transaction that has ended: producer id, first offset, that of its marker, whether aborted."""
        found: list[tuple[int, int, int, bool]] = []
        begun: dict[int, int] = {}
        for meta in self._known():
            if meta.marker is None:
                if meta.transactional:
                    begun.setdefault(meta.producer_id, meta.base_offset)
            elif meta.producer_id in begun:
                first = begun.pop(meta.producer_id)
                found.append((meta.producer_id, first, meta.base_offset, not meta.marker.committed))
        return found

    def _unsettled(self) -> tuple[EndedTransaction, ...]:
        """Those whose marker is not known to be committed."""
        return tuple(EndedTransaction(*each[:3]) for each in self.ended() if each[2] >= self.high_watermark)

    def opened(self) -> ev.Opened:
        return ev.Opened(
            log_start_offset=self.start,
            log_end_offset=self.end,
            high_watermark=self.high_watermark,
            epochs=tuple(self.epochs),
            producers=self.producers(),
            ended=self._unsettled(),
        )

    def truncated(self) -> ev.Truncated:
        return ev.Truncated(
            log_start_offset=self.start,
            log_end_offset=self.end,
            epochs=tuple(self.epochs),
            producers=self.producers(),
            ended=self._unsettled(),
        )
