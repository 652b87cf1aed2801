"""Any order of everything that a log does, with keys: compaction and retention among it, against plain lists."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from insync.storage import Chunk, FileRange, Log, LogDirectory, LogSettings
from insync.storage.batch import build_batch, records, scan

from ..building import all_bytes, append
from ..memory_log import MemoryLog

SETTINGS = LogSettings(
    segment_bytes=1024,
    segment_index_bytes=64,
    index_interval_bytes=100,
    cleanup_policy="compact,delete",
    min_cleanable_dirty_ratio=0,
    retention_bytes=2500,
    retention_ms=10_000,
    delete_retention_ms=300,
    file_delete_delay_ms=0,
)

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=4)


@attrs.frozen
class Item:
    """A record; `value` None is a tombstone."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp_ms: int


class KeyedModel(RuleBasedStateMachine):
    """The model: every record ever written and not cut, and from which offset on it may be missing."""

    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Item] = []
        self.start = self.end = self.high_watermark = 0
        self.now = 1000
        self.epoch = self.serial = 0
        self.compacted = 0
        """Nothing at or above was ever compacted."""
        self.held: list[tuple[FileRange, bytes]] = []
        self.batch_ends: set[int] = {0}

    def open(self) -> None:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.open()

    def made(self, wanted: list[tuple[int, int]], codec: str) -> bytes:
        keys, values = [], []
        for key, kind in wanted:
            self.serial += 1
            keys.append(b"%d" % key)
            values.append(None if kind == 0 else b"%d:" % self.serial + bytes(kind * 30))
        self.now += 10
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": self.serial}
        return build_batch(keys, values, timestamps_ms=self.now, compression=codec, **producer)  # type: ignore[arg-type]

    def wrote(self, data: bytes) -> None:
        for record in records(data):
            key = record.key or b""
            self.items.append(Item(self.end + record.offset, key, record.value, record.timestamp_ms))
        self.end += scan(data)[0].next_offset
        self.batch_ends.add(self.end)

    @rule(wanted=st.lists(pairs, min_size=1, max_size=6), codec=st.sampled_from(["none", "none", "lz4"]))
    def append(self, wanted: list[list[tuple[int, int]]], codec: str) -> None:
        for each in wanted:
            data = self.made(each, codec)
            append(self.log, data, leader_epoch=self.epoch)
            self.wrote(data)

    @rule()
    def lead(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch, self.end)

    @rule(back=st.integers(0, 20))
    def commit(self, back: int) -> None:
        below = [end for end in self.batch_ends if end <= self.end - back]
        self.high_watermark = max(self.high_watermark, max(below, default=0))

    @rule(back=st.integers(0, 30))
    def truncate(self, back: int) -> None:
        offset = max(self.high_watermark, self.end - back)
        self.log.truncate(offset)
        if offset < self.end:
            self.end = max(end for end in self.batch_ends if end <= offset)
        self.items = [each for each in self.items if each.offset < self.end]
        self.batch_ends = {end for end in self.batch_ends if end <= self.end}
        assert self.log.log_end_offset == self.end

    @precondition(lambda self: self.high_watermark > self.start)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self.start += int((self.high_watermark - self.start) * share)
        self.log.advance_log_start_offset(self.start)

    @rule(wait=st.sampled_from([0, 0, 400, 11_000]), memory=st.sampled_from([24 * 16, 1 << 20]))
    def time_passes(self, wait: int, memory: int) -> None:
        self.maintain(wait, memory)

    def maintain(self, wait: int, memory: int) -> None:
        self.now += wait
        done = self.log.maintain(self.now, high_watermark=self.high_watermark, key_map_bytes=memory)
        assert done.log_start_offset == self.log.log_start_offset
        if done.compaction is not None:
            assert done.compaction.cleaned_offset <= self.high_watermark
            self.compacted = max(self.compacted, done.compaction.cleaned_offset)
        self.follow_retention()

    def follow_retention(self) -> None:
        assert self.start <= self.log.log_start_offset <= max(self.high_watermark, self.start)
        self.start = self.log.log_start_offset

    @rule(offset=st.integers(0, 300), size=st.integers(1, 2000))
    def hold(self, offset: int, size: int) -> None:
        if self.start <= offset < self.end:
            found = self.log.read(offset, max_bytes=size).range
            assert found is not None
            self.held.append((found, found.read_bytes()))
            assert len(self.held[-1][1]) == found.length

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @precondition(lambda self: self.end > self.start)
    @rule()
    def copy(self) -> None:
        """Who copies the log as it is now learns where each of its epochs began."""
        data = all_bytes(self.log)
        batches = scan(data)
        if batches[0].base_offset < self.start:
            return  # a follower cannot begin within a batch
        copy = MemoryLog("t", 0, settings=SETTINGS)
        copy.truncate_fully(self.start)
        copy.append([Chunk(data, batches, self.start, None, may_skip=True)])
        assert copy.log_end_offset == self.end
        assert copy.epochs == tuple(each for each in self.log.epochs if each.start_offset < self.end)

    @invariant()
    def ranges_keep_their_bytes(self) -> None:
        for found, before in self.held:
            assert before.startswith(found.read_bytes()), "the same bytes, or fewer"

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        data = all_bytes(self.log)
        found = [
            Item(each.offset, each.key or b"", each.value, each.timestamp_ms)
            for each in records(data, start_offset=self.start)
        ]
        shown = [each for each in self.items if each.offset >= self.start]
        assert [each.offset for each in found] == sorted({each.offset for each in found})
        assert {*found} <= {*shown}, "nothing but what was written, where it was written"
        there = {each.offset for each in found}
        assert {each.offset for each in shown if each.offset >= self.compacted} <= there
        latest = {each.key: each for each in shown}
        for each in latest.values():
            gone = each.value is None and each.offset < self.compacted
            assert each.offset in there or (gone and not any(other.key == each.key for other in found)), (
                "the latest of each key"
            )
        self.can_be_read(found)

    def can_be_read(self, found: list[Item]) -> None:
        offset = self.start
        while offset < self.end:
            result = self.log.read(offset, max_bytes=1)
            assert result.range is not None
            info = scan(result.range.read_bytes())[0]
            assert offset < info.next_offset <= result.next_offset
            between = range(info.next_offset, result.next_offset)
            assert not any(each.offset in between for each in found), "reading on passes over nothing"
            offset = result.next_offset
        for stamp in {each.timestamp_ms for each in found[::3]}:
            first = next(each for each in found if each.timestamp_ms >= stamp)
            assert self.log.offset_for_timestamp(stamp) == (first.offset, first.timestamp_ms)
        if self.end > self.start:
            states = self.log.producer_states()
            assert not states or states[0].batches[-1].last_offset < self.end

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


class MemoryModel(KeyedModel):
    def open(self) -> None:
        self.log = MemoryLog("t", 0, settings=SETTINGS)


class DiskModel(KeyedModel):
    def open(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="insync-model-"))
        self.reopen(create=True)

    def reopen(self, *, create: bool = False) -> None:
        self.directory = LogDirectory(self.path, cluster_id="c", node_id=1, settings=SETTINGS)
        self.log = self.directory.open_log("t", 0, create=create)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        before = self.log.producer_states()
        self.directory.close(clean)
        self.reopen()
        assert self.log.recovery.bytes_cut == 0
        after = self.log.producer_states()
        last = [(each.producer_id, each.batches[-1]) for each in before]
        assert [(each.producer_id, each.batches[-1]) for each in after] == last

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.close()
            shutil.rmtree(self.path)


TestMemoryLog = MemoryModel.TestCase
TestMemoryLog.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDiskLog = DiskModel.TestCase
TestDiskLog.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
