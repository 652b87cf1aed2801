"""Any order of appends, truncations, reads and restarts, against a plain list of batches."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from insync.storage import Chunk, DiskLog, EpochEntry, LogDirectory, ProducedBatch
from insync.storage.batch import records, scan

from .building import SMALL, all_bytes, batch
from .memory_log import MemoryLog

counts = st.lists(st.integers(1, 4), min_size=1, max_size=6)


class LogModel(RuleBasedStateMachine):
    """The model: for each batch its offsets, epoch and producer sequence; and where each epoch starts."""

    log: DiskLog | MemoryLog

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, int, int, bytes]] = []  # base, next, epoch, data as appended
        self.epochs: list[EpochEntry] = []
        self.start = self.end = 0
        self.epoch = 0
        self.sequence = 0

    def open(self) -> None:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.open()

    @rule(sizes=counts, split=st.booleans())
    def append(self, sizes: list[int], split: bool) -> None:
        chunks, at = [], self.end
        for count in sizes:
            data = batch(count, size=15, producer_id=1, producer_epoch=0, base_sequence=self.sequence)
            self.sequence += count
            chunks.append(Chunk(data, scan(data), at, self.epoch))
            self.batches.append((at, at + count, self.epoch, data))
            at += count
        for part in [[each] for each in chunks] if split else [chunks]:
            self.log.append(part)
        if not self.epochs or self.epochs[-1].epoch < self.epoch:
            self.epochs = [each for each in self.epochs if each.start_offset < self.end]
            self.epochs.append(EpochEntry(self.epoch, self.end))
        self.end = at

    @rule(step=st.integers(1, 3))
    def lead(self, step: int) -> None:
        self.epoch += step
        self.log.assign_epoch(self.epoch, self.end)
        self.epochs = [each for each in self.epochs if each.start_offset < self.end]
        self.epochs.append(EpochEntry(self.epoch, self.end))

    @rule(back=st.integers(0, 30))
    def truncate(self, back: int) -> None:
        offset = max(0, self.end - back)
        self.log.truncate(offset)
        kept = offset >= self.first
        self.batches = [each for each in self.batches if each[1] <= offset and kept]
        self.first = min(self.first, offset)
        if back:
            self.end = self.batches[-1][1] if self.batches else self.first
        self.epochs = [each for each in self.epochs if each.start_offset < self.end]
        self.start = min(self.start, self.end)
        self.sequence = self.sequence_at_end()

    first = 0
    forgotten = False

    def sequence_at_end(self) -> int:
        return scan(self.batches[-1][3])[0].last_sequence + 1 if self.batches else 0

    @rule(ahead=st.integers(1, 50))
    def restart_at(self, ahead: int) -> None:
        self.first = self.start = self.end = self.end + ahead
        self.log.truncate_fully(self.end)
        self.batches, self.epochs, self.sequence = [], [], 0
        self.forgotten = False

    @rule(back=st.integers(0, 10))
    def raise_start(self, back: int) -> None:
        self.start = max(self.start, self.end - back)
        self.log.advance_log_start_offset(self.start)
        covering = [each for each in self.epochs if each.start_offset <= self.start]
        if covering:
            later = [each for each in self.epochs if each.start_offset > self.start]
            self.epochs = [EpochEntry(covering[-1].epoch, self.start), *later]

    @rule()
    def retain(self) -> None:
        """What lies below the log start goes, by whole segments."""
        self.log.maintain(2000, high_watermark=self.end)
        self.first = self.log.segment_base_offsets[0]
        assert self.first <= self.start

    @rule(offset=st.integers(0, 200), max_bytes=st.integers(1, 600), limit=st.integers(0, 250))
    def read(self, offset: int, max_bytes: int, limit: int) -> None:
        if not self.start <= offset <= self.end:
            assert self.log.read_at_hand(offset, max_bytes=max_bytes, limit_offset=limit) is None
            return
        result = self.log.read(offset, max_bytes=max_bytes, limit_offset=limit)
        if result.range is not None and result.range.data is not None:
            assert result.range.data == result.range.read_bytes()
        assert self.log.read_at_hand(offset, max_bytes=max_bytes, limit_offset=limit) in (None, result)
        ahead = [each for each in self.batches if each[1] > offset]
        if not ahead or ahead[0][1] > limit or offset >= limit:
            assert result.range is None
            return
        assert result.range is not None
        infos = scan(result.range.read_bytes())
        assert [(each.base_offset, each.next_offset, each.leader_epoch) for each in infos] == [
            each[:3] for each in ahead[: len(infos)]
        ]
        assert result.size == sum(each.size_bytes for each in infos)
        assert result.size <= max_bytes or len(infos) == 1

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.end

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert list(self.log.epochs) == self.epochs
        shown = [each for each in self.batches if each[1] > self.start]
        data = all_bytes(self.log)
        assert [(each.base_offset, each.next_offset, each.leader_epoch) for each in scan(data)] == [
            each[:3] for each in shown
        ]
        values = [record.value for each in shown for record in records(each[3])]
        assert [record.value for record in records(data)] == values
        self.producers_agree()

    def producers_agree(self) -> None:
        produced = []
        for base, following, _, data in self.batches:
            info = scan(data)[0]
            produced.append(ProducedBatch(info.base_sequence, info.last_sequence, base, following - 1))
        held = any(each[1] > self.first for each in self.batches)
        for state in self.log.producer_states():
            kept = len(state.batches)
            assert kept >= 1
            if held and not self.forgotten:
                assert state.batches[-1] == produced[-1]
                # Between the last snapshot and the first segment that was kept, opening finds nothing any more.
                assert self.first > 0 or state.batches == tuple(produced[-kept:])
            assert [each for each in produced if each in state.batches] == [*state.batches]
        # Of batches that retention has deleted, a truncation of all others leaves what the last snapshot knew.
        self.forgotten = self.forgotten or (bool(produced) and not held)
        assert bool(self.log.producer_states()) in (held, bool(produced))

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


class MemoryModel(LogModel):
    def open(self) -> None:
        self.log = MemoryLog("t", 0, settings=SMALL)


class DiskModel(LogModel):
    def open(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="insync-model-"))
        self.reopen(create=True)

    def reopen(self, *, create: bool = False) -> None:
        self.directory = LogDirectory(self.path, cluster_id="c", node_id=1, settings=SMALL)
        self.log = self.directory.open_log("t", 0, create=create)
        # Segments that lie wholly below the log start are deleted by this, too.
        self.first = self.log.segment_base_offsets[0]

    def _epochs_after_opening(self) -> None:
        self.epochs = [each for each in self.epochs if each.start_offset < self.end]

    @rule()
    def restart(self) -> None:
        self.directory.close(high_watermarks={("t", 0): self.end})
        self.reopen()
        assert self.log.recovery.clean
        assert self.directory.high_watermarks() == {("t", 0): self.end}
        self._epochs_after_opening()

    @rule()
    def crash(self) -> None:
        self.directory.write_checkpoints({})
        self.directory.close(clean=False)
        self.reopen()
        assert not self.log.recovery.clean
        assert self.log.recovery.bytes_cut == 0
        self._epochs_after_opening()

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.close()
            shutil.rmtree(self.path)


TestMemoryLog = MemoryModel.TestCase
TestMemoryLog.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestDiskLog = DiskModel.TestCase
TestDiskLog.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
