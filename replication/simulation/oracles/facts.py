"""The oracle's knowledge of one partition: what was committed, promised, refused, and by whom it was led."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ...core.types import BatchMeta
from ..errors import require
from ..world.disk import Disk, Stored, key_of
from ..world.node import Host

UNKNOWN_HISTORY = -1
NAMED_FROM = 1_000_000
"""Producer ids from here on are those of names: their sequences go on from one epoch to the next."""


@attrs.define(eq=False)
class PartitionFacts:
    """`unclean`: an unclean election has been, and from then on no promise holds but agreement (S21)."""

    name: str
    topic_id: str
    min_isr: int
    gone: bool = False
    """Whether its topic was deleted: whoever has not heard of it goes on, and no promise of his counts."""
    flushes: bool = False
    """Whether no replica counts what its device does not have."""
    spared: int = 0
    """The node whose device has kept all that was committed while all machines lost power; 0 for none."""
    wiped: bool = False
    """Whether devices have been lost altogether."""
    outgrown: bool = False
    """Whether the store has forgotten that others than it knows of went on without them (decision 83)."""
    unclean: bool = False
    committed: list[tuple[int, str]] = attrs.Factory(list)
    """(epoch, payload) of each offset below the greatest high watermark that a leader ever had."""
    leaders: dict[int, tuple[int, int]] = attrs.Factory(dict)
    """(node, process) that leads, or led, each leader epoch."""
    lines: dict[tuple[int, int], int] = attrs.Factory(dict)
    """Each batch by (base offset, epoch): a number that stands for it and for all before it."""
    promised: dict[str, int] = attrs.Factory(dict)
    refused: set[str] = attrs.Factory(set)
    written: set[str] = attrs.Factory(set)
    sequences: dict[tuple[int, int], int] = attrs.Factory(dict)
    epochs: dict[int, int] = attrs.Factory(dict)
    """The epoch in which each producer last had something committed."""
    latest: int = 0
    acknowledged: int = 0
    """The greatest end of what was promised to anybody."""
    last_of_key: dict[int, int] = attrs.Factory(dict)
    """Base offset of the last committed batch of each key."""
    deleted: int = 0
    """Up to here somebody has been told that the records are gone."""
    forgot: bool = False
    """A sequence was committed that whoever took it could not know to be another (KIP-360)."""
    transactional: Callable[[BatchMeta, str, bool], None] | None = None
    """Told of each batch of a producer, or marker, that is committed, with its payload.

    The last says whether its leader may have known nothing of what the producer had written.
    """
    blind: set[tuple[int, int]] = attrs.Factory(set)
    """(base offset, epoch) of what was taken of producers by a leader that had begun again at a log start."""
    _contents: dict[tuple[int, int], tuple[int, int, str]] = attrs.Factory(dict)
    _numbers: dict[tuple[int, int, str], int] = attrs.Factory(dict)

    def agreed(self, disk: Disk) -> int:
        """How many leading offsets of a log are the committed ones."""
        at, end = max(disk.agreed, disk.start), min(len(disk.flat), len(self.committed))
        if at < end:
            flat, committed = disk.flat, self.committed
            while at < end and flat[at] == committed[at]:
                at += 1
            disk.agreed = at
        return at

    def line(self, host: Host, batch: Stored) -> None:
        """S3: a batch of an epoch at an offset is one batch, with one history, wherever it stands.

        Of what came before a log's first batch nobody knows anything once it is deleted there.
        """
        meta, disk = batch.meta, host.disk
        kept = None if self.unclean else disk.before
        before = disk.batches[-1].meta if disk.batches else kept
        if before is not None and before.next_offset == meta.base_offset:
            earlier = self.lines[before.base_offset, before.leader_epoch]
        else:
            earlier = 0 if meta.base_offset == 0 else UNKNOWN_HISTORY
        content = earlier, meta.offset_count, batch.payload
        number = self._numbers.setdefault(content, len(self._numbers) + 1)
        key = meta.base_offset, meta.leader_epoch
        held = self.lines.setdefault(key, number)
        if held == number:
            self._contents[key] = content
            return
        known = self._contents[key]
        unknown = UNKNOWN_HISTORY in (earlier, known[0])
        same = known[1:] == content[1:] and (unknown or known[0] == earlier)
        require(same, "S3", "{} appends another {} than stands elsewhere", host.name, meta)

    def commit(self, host: Host, high_watermark: int) -> None:
        """S1, S12: what a leader commits goes on from what was committed, and no producer's batch is missing."""
        known = len(self.committed)
        require(self.agreed(host.disk) >= known, "S1", "leader {} shows another history", host.name)
        require(
            high_watermark <= host.disk.end,
            "S9",
            "{} commits {} of {}",
            host.name,
            high_watermark,
            host.disk.end,
        )
        self.committed += host.disk.flat[known:high_watermark]
        host.disk.agreed = high_watermark
        for meta, payload, _ in _between(host.disk, known, high_watermark):
            self.last_of_key[key_of(payload)] = meta.base_offset
            if meta.producer_id >= 0:
                self._go_on(meta, payload)

    def _go_on(self, meta: BatchMeta, payload: str) -> None:
        """S12: a producer's batches are all there, in order. S13: none of an older epoch of it follows."""
        named = meta.producer_id >= NAMED_FROM
        producer = meta.producer_id, -1 if named else meta.producer_epoch
        expected, found = self.sequences.get(producer, 1 if named else 0), meta.base_sequence
        latest = self.epochs.get(meta.producer_id, -1)
        right, fenced = found == expected, meta.producer_epoch < latest
        # Whoever commits it need not be who took it.
        is_blind = (meta.base_offset, meta.leader_epoch) in self.blind
        if meta.base_sequence < 0:
            right = True  # of a coordinator: a marker, or offsets in a transaction
        self.forgot |= is_blind and (fenced or not right)
        require(right or self.forgot, "S12", f"{self.name}: {found} of producer {producer}, not {expected}")
        require(not fenced or self.forgot, "S13", f"{self.name}: {meta} after epoch {latest} of its producer")
        if found >= 0:
            self.sequences[producer] = found + meta.offset_count
        self.epochs[meta.producer_id] = meta.producer_epoch
        if self.transactional is not None:
            self.transactional(meta, payload, is_blind)


def _between(disk: Disk, start: int, end: int) -> list[Stored]:
    found: list[Stored] = []
    for batch in reversed(disk.batches):
        if batch.meta.base_offset < start:
            break
        if batch.meta.next_offset <= end:
            found.append(batch)
    return found[::-1]
