"""Any order of transactions, truncations, crashes and restarts, against a plain list of what was written."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from insync.storage import DiskLog, LogSettings
from insync.storage._transactions import AbortedTransaction, CompletedTransaction
from insync.storage.batch import build_batch, build_marker, records, scan

from .building import all_bytes, append
from .memory_log import MemoryLog

SETTINGS = LogSettings(segment_bytes=1024, segment_index_bytes=64, index_interval_bytes=100)
producers = st.integers(1, 3)


class Written(NamedTuple):
    """A batch. `kind`: data, plain (of no transaction), abort or commit."""

    offset: int
    producer_id: int
    epoch: int
    sequence: int
    kind: str
    coordinator_epoch: int


class TransactionModel(RuleBasedStateMachine):
    """Everything that is expected is told from the list alone, each time from its beginning."""

    log: DiskLog | MemoryLog

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Written] = []
        self.epochs: dict[int, int] = {}
        self.coordinator_epoch = 0

    def open(self) -> None:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.open()

    @property
    def end(self) -> int:
        return len(self.written)

    def _sequence(self, producer_id: int) -> int:
        same = [
            each
            for each in self.written
            if each.producer_id == producer_id and each.epoch == self.epochs.get(producer_id, 0)
        ]
        sequenced = [each.sequence for each in same if each.sequence >= 0]
        return sequenced[-1] + 1 if sequenced else 0

    def _write(self, data: bytes, written: Written) -> None:
        append(self.log, data)
        self.written.append(written)

    @rule(
        ids=st.lists(producers, min_size=1, max_size=5),
        transactional=st.sampled_from([True, True, True, False]),
    )
    def produce(self, ids: list[int], transactional: bool) -> None:
        for producer_id in ids:
            self._produce(producer_id, transactional)

    def _produce(self, producer_id: int, transactional: bool) -> None:
        epoch, sequence = self.epochs.setdefault(producer_id, 0), self._sequence(producer_id)
        data = build_batch(
            [None],
            [b"x" * 150],
            timestamps_ms=1000 + self.end,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        kind = "data" if transactional else "plain"
        self._write(data, Written(self.end, producer_id, epoch, sequence, kind, -1))

    @rule(
        producer_id=producers,
        committed=st.sampled_from([False, False, True]),
        bump=st.booleans(),
        moved=st.booleans(),
    )
    def finish(self, producer_id: int, committed: bool, bump: bool, moved: bool) -> None:
        self.coordinator_epoch += moved
        epoch = self.epochs[producer_id] = self.epochs.get(producer_id, 0) + bump
        data = build_marker(
            producer_id,
            epoch,
            committed=committed,
            coordinator_epoch=self.coordinator_epoch,
            timestamp_ms=1000 + self.end,
        )
        kind = "commit" if committed else "abort"
        self._write(data, Written(self.end, producer_id, epoch, -1, kind, self.coordinator_epoch))

    @rule(back=st.sampled_from([1, 1, 2, 3, 9]))
    def truncate(self, back: int) -> None:
        offset = max(0, self.end - back)
        self.log.truncate(offset)
        del self.written[offset:]
        for producer_id in self.epochs:
            kept = [each.epoch for each in self.written if each.producer_id == producer_id]
            self.epochs[producer_id] = kept[-1] if kept else 0

    # What must be there

    def completed(self) -> list[CompletedTransaction]:
        found, begun = [], {}
        for each in self.written:
            if each.kind == "data":
                begun.setdefault(each.producer_id, each.offset)
            elif each.kind != "plain" and each.producer_id in begun:
                first = begun.pop(each.producer_id)
                stable = min(begun.values(), default=each.offset + 1)
                found.append(
                    CompletedTransaction(each.producer_id, first, each.offset, stable, each.kind == "abort")
                )
        return found

    @invariant()
    def the_log_holds_what_was_written(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end
        infos = scan(all_bytes(self.log))
        said = [(each.producer_id, each.producer_epoch, each.base_sequence) for each in infos]
        assert said == [(each.producer_id, each.epoch, each.sequence) for each in self.written]

    @invariant()
    def producers_are_as_the_log_says(self) -> None:
        if not hasattr(self, "log"):
            return
        begun: dict[int, int] = {}
        coordinators: dict[int, int] = {}
        epochs: dict[int, int] = {}
        sequences: dict[int, list[int]] = {}
        for each in self.written:
            if epochs.get(each.producer_id) != each.epoch:
                sequences[each.producer_id] = []
            epochs[each.producer_id] = each.epoch
            if each.sequence >= 0:
                sequences[each.producer_id].append(each.sequence)
            if each.kind == "data":
                begun.setdefault(each.producer_id, each.offset)
            elif each.kind != "plain":
                begun.pop(each.producer_id, None)
                coordinators[each.producer_id] = each.coordinator_epoch
        held = {each.producer_id: each for each in self.log.producer_states()}
        assert {each: state.producer_epoch for each, state in held.items()} == epochs
        for producer_id, state in held.items():
            assert state.first_offset == begun.get(producer_id, -1)
            assert state.coordinator_epoch == coordinators.get(producer_id, -1)
            kept = [each.base_sequence for each in state.batches]
            assert kept == sequences[producer_id][len(sequences[producer_id]) - len(kept) :]
            assert bool(kept) == bool(sequences[producer_id])

    @invariant()
    def aborted_ones_are_told(self) -> None:
        if not hasattr(self, "log"):
            return
        aborted = [AbortedTransaction(*each[:4]) for each in self.completed() if each.is_aborted]
        for start in range(self.end):
            for end in {start + 1, min(start + 4, self.end), self.end}:
                expected = [each for each in aborted if each.last_offset >= start and each.first_offset < end]
                assert self.log.aborted_transactions(start, end) == expected

    @rule(offset=st.integers(0, 40))
    def completed_ones_are_told(self, offset: int) -> None:
        expected = [each for each in self.completed() if each.last_offset >= offset]
        assert self.log.completed_transactions(offset) == expected

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


class MemoryModel(TransactionModel):
    def open(self) -> None:
        self.log = MemoryLog("t", 0, settings=SETTINGS)


class DiskModel(TransactionModel):
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="insync-transactions-")) / "t-0"
        self.folder.mkdir()
        self._reopen(clean=False, recovery_point=0)

    def _reopen(self, *, clean: bool, recovery_point: int) -> None:
        self.log = DiskLog(self.folder, "t", 0, settings=SETTINGS, clean=clean, recovery_point=recovery_point)

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self._reopen(clean=True, recovery_point=self.log.recovery_point)

    @rule(flushed=st.booleans(), lost=st.booleans())
    def crash(self, flushed: bool, lost: bool) -> None:
        """The files stay as they are, but for indexes and snapshots, which no flush has brought to the device."""
        if flushed:
            self.log.flush()
        point = self.log.recovery_point
        self.log.close(clean=False)
        for path in self.folder.iterdir():
            if lost and not flushed and path.suffix in {".snapshot", ".txnindex"} and int(path.stem) >= point:
                path.unlink()
        self._reopen(clean=False, recovery_point=point)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder.parent)


TestMemory = MemoryModel.TestCase
TestDisk = DiskModel.TestCase
TestMemory.settings = TestDisk.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_kafkas(committed: bool) -> None:
    data = build_marker(7, 3, committed=committed, coordinator_epoch=9, timestamp_ms=5)
    (info,) = scan(data)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (7, 3, -1)
    assert (info.is_control, info.is_transactional, info.record_count, info.max_timestamp) == (
        True,
        True,
        1,
        5,
    )
    plain = bytearray(data)
    plain[22] &= ~0x20
    (record,) = records(bytes(plain))
    assert record.key == b"\0\0\0\1" if committed else b"\0\0\0\0"
    assert record.value == b"\0\0\0\0\0\x09"


def test_a_marker_may_lie_many_segments_behind_what_it_aborts(tmp_path: Path) -> None:
    log = DiskLog(tmp_path, "t", 0, settings=SETTINGS)

    def put(producer_id: int, sequence: int = 0) -> None:
        append(
            log,
            build_batch(
                [None],
                [bytes(300)],
                timestamps_ms=1,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            ),
        )

    def abort(producer_id: int) -> None:
        append(log, build_marker(producer_id, 0, committed=False, coordinator_epoch=0, timestamp_ms=1))

    put(1)
    put(2)
    abort(2)
    for sequence in range(12):
        put(3, sequence)
    abort(1)
    abort(3)
    assert len(log.segment_base_offsets) > 4
    one, two, three = (
        AbortedTransaction(2, 1, 2, 0),
        AbortedTransaction(1, 0, 15, 3),
        AbortedTransaction(3, 3, 16, 17),
    )
    assert log.aborted_transactions(0, 1) == [two]
    assert log.aborted_transactions(0, 3) == [one, two]
    assert log.aborted_transactions(3, 5) == [two, three]
    assert log.aborted_transactions(16, 17) == [three]
    log.close()
