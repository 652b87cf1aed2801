"""Power fails at every moment of a log's life: what comes back was written, and what was flushed comes back."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from insync.storage import CorruptLogError, DiskLog, LogDirectory, LogSettings, StorageError
from insync.storage.batch import build_batch, records, scan

from .building import all_bytes, append, fill, offsets
from .recording import DATA, Op, Recorder

SETTINGS = LogSettings(segment_bytes=1024, segment_index_bytes=200, index_interval_bytes=100)


@attrs.frozen
class Moment:
    """What holds from an operation on: the offsets [start, end) are safe and have these values."""

    op: int
    start: int
    values: dict[int, bytes]


class Life:
    """A log in use; notes what was written, and what had to be safe when."""

    def __init__(self, root: Path, recorder: Recorder, directory: LogDirectory) -> None:
        self.root, self.recorder, self.directory = root, recorder, directory
        self.log: DiskLog = directory.open_log("t", 0, create=False)
        self.values: dict[int, bytes] = {}
        self.written: set[tuple[int, bytes]] = set()
        self.safe = [Moment(0, 0, {})]
        self._serial = 0

    def append(self, batches: int, epoch: int) -> None:
        for count in range(1, batches + 1):
            base = self.log.log_end_offset
            values = []
            for offset in range(base, base + count % 3 + 1):
                self._serial += 1
                values.append(b"%d:%d" % (offset, self._serial) + bytes(20))
                self.values[offset] = values[-1]
                self.written.add((offset, values[-1]))
            data = build_batch(
                [None] * len(values),
                values,
                timestamps_ms=1000 + self._serial,
                producer_id=count % 2,
                producer_epoch=0,
                base_sequence=self._serial,
            )
            append(self.log, data, leader_epoch=epoch)

    def note(self, below: int) -> None:
        values = {offset: value for offset, value in self.values.items() if offset < below}
        self.safe.append(Moment(len(self.recorder.ops), self.log.log_start_offset, values))

    def flush(self) -> None:
        self.log.flush()
        self.note(self.log.log_end_offset)

    def truncate(self, offset: int) -> None:
        cut = self.log.read(offset, max_bytes=1).first_base_offset
        self.note(min(cut, self.log.recovery_point))
        self.log.truncate(offset)
        self.values = {key: value for key, value in self.values.items() if key < self.log.log_end_offset}

    def retain(self, keep: int) -> None:
        start = self.log.segment_base_offsets[-keep]
        safe = self.safe[-1]
        self.safe.append(Moment(len(self.recorder.ops), start, safe.values))
        count = len(self.log.segment_base_offsets) - keep
        removed = self.log.delete_old_segments(
            5000, retention_bytes=self.size_of_last(keep), high_watermark=start
        )
        assert removed == count > 0
        self.log.remove_deleted_files(10**9)

    def size_of_last(self, keep: int) -> int:
        bases = self.log.segment_base_offsets
        return sum(os.path.getsize(self.log.folder / f"{base:020d}.log") for base in bases[-keep:])

    def restart(self, *, clean: bool) -> None:
        if not clean:
            self.directory.write_checkpoints({})
        self.directory.close(clean)
        if clean:
            self.note(self.log.log_end_offset)
        self.directory = opened(self.root)
        self.log = self.directory.open_log("t", 0, create=False)


def opened(root: Path) -> LogDirectory:
    return LogDirectory(root, cluster_id="c", node_id=1, settings=SETTINGS)


def live(life: Life) -> None:
    """Rolls, flushes, checkpoints, truncation over several segments, deletion, stops clean and not."""
    life.log.assign_epoch(1, 0)
    life.append(14, 1)
    life.log.flush(life.log.segment_base_offsets[-1])
    life.note(life.log.segment_base_offsets[-1])
    life.directory.write_checkpoints({("t", 0): 5})
    life.append(20, 1)
    life.flush()
    life.append(3, 2)
    life.directory.write_checkpoints({})
    life.truncate(life.log.segment_base_offsets[1] + 5)
    life.append(12, 3)
    life.restart(clean=True)
    life.append(25, 4)
    life.flush()
    life.directory.write_checkpoints({})
    life.retain(2)
    life.append(6, 4)
    life.restart(clean=False)
    life.append(12, 5)
    life.directory.flush_due(0.0)
    life.restart(clean=True)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    root = tmp_path_factory.mktemp("recorded")
    directory = opened(root)
    directory.open_log("t", 0, create=True)
    directory.write_checkpoints({})
    with pytest.MonkeyPatch.context() as patch:
        found = Life(root, Recorder(root, patch), directory)
        live(found)
    found.directory.close(clean=False)
    return found


def recovered(life: Life, folder: Path, at: int, keep: Callable[[Op], bool]) -> bool:
    """Crash, open again and check what is there; False if opening refuses."""
    shutil.rmtree(folder, ignore_errors=True)
    life.recorder.crash(at, keep).put(folder)
    (folder / "t-0").mkdir(parents=True, exist_ok=True)
    directory = opened(folder)
    try:
        log = directory.open_log("t", 0, create=False)
    except CorruptLogError:
        return False
    else:
        check(life, log, at)
        return True
    finally:
        directory.close(clean=False)


def check(life: Life, log: DiskLog, at: int) -> None:
    safe = [moment for moment in life.safe if moment.op <= at][-1]
    found = {each.offset: each.value or b"" for each in records(all_bytes(log))}
    shown = range(log.log_start_offset, log.log_end_offset)
    assert all(offset in found for offset in shown), "without a gap"
    assert {*found.items()} <= life.written, "nothing that was not written"
    assert log.log_start_offset <= safe.start
    for offset, value in safe.values.items():
        if offset >= safe.start:
            assert found.get(offset) == value, f"offset {offset} was flushed"
    for offset in shown[::5]:
        result = log.read(offset, max_bytes=1)
        assert result.first_base_offset <= offset < result.next_offset, "the indexes are right"
    stamps = [(each.offset, each.timestamp_ms) for each in records(all_bytes(log)) if each.offset in shown]
    for offset, stamp in stamps[::19]:
        first = next(each for each in stamps if each[1] >= stamp)
        assert log.offset_for_timestamp(stamp) == first, offset


def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_the_recorder_sees_all_that_reaches_the_files(life: Life) -> None:
    """With everything kept, the files are as they are on disk, but for the mapped indexes."""
    left = life.recorder.crash(len(life.recorder.ops), lambda _: True)
    for name, file in left.names.items():
        if "index" not in name and ".lock" not in name:
            assert bytes(left.contents.get(file, b"")) == (life.root / name).read_bytes(), name
    on_disk = {str(path.relative_to(life.root)) for path in life.root.rglob("*") if path.is_file()}
    assert on_disk == set(left.names)
    assert len(life.recorder.ops) > 300
    assert len(life.safe) > 7


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_every_prefix_opens(life: Life, tmp_path: Path, monkeypatch, kept: bool) -> None:
    """All that was unsynced is there, as after a kill; or none of it."""
    fast(monkeypatch)
    for at in range(0, len(life.recorder.ops) + 1, 3 if kept else 2):
        assert recovered(life, tmp_path / "crash", at, lambda _: kept), at


def test_any_part_of_what_was_not_synced(life: Life, tmp_path: Path, monkeypatch) -> None:
    """Writes reach the device in any order; names change in theirs, as every journal has it. A hole before data
    that did arrive is refused, never read over.
    """
    fast(monkeypatch)
    chance = random.Random(7)
    opens = refused = 0
    for at in range(0, len(life.recorder.ops) + 1, 3):
        named = chance.randrange(at + 1)
        kept = {
            op: chance.random() < 0.5 if op.kind == DATA else number < named
            for number, op in enumerate(life.recorder.ops[:at])
        }
        if recovered(life, tmp_path / "crash", at, kept.__getitem__):
            opens += 1
        else:
            refused += 1
            assert out_of_order(life, at, kept), at
    assert opens > refused


def out_of_order(life: Life, at: int, kept: dict[Op, bool]) -> bool:
    """Whether an unsynced change of a file is lost although a later one is there."""
    lost = False
    for op in life.recorder.ops[:at]:
        if op.kind == DATA and not life.recorder.is_synced(op, at):
            if lost and kept[op]:
                return True
            lost = lost or not kept[op]
    return False


@pytest.mark.slow
@pytest.mark.parametrize("data", [True, False])
def test_any_beginning_of_the_names_that_were_not_synced(
    life: Life, tmp_path: Path, monkeypatch, data: bool
) -> None:
    fast(monkeypatch)
    chance = random.Random(8)
    for at in range(0, len(life.recorder.ops) + 1, 2):
        named = chance.randrange(at + 1)
        kept = {
            op: data if op.kind == DATA else number < named
            for number, op in enumerate(life.recorder.ops[:at])
        }
        assert recovered(life, tmp_path / "crash", at, kept.__getitem__), at


def test_power_fails_behind_a_recovery_that_dropped_segments(tmp_path: Path, monkeypatch) -> None:
    """Batches that come then have offsets of those segments, which must not be back with the next start."""
    root = tmp_path / "log"
    directory = opened(root)
    log = directory.open_log("t", 0, create=True)
    log.assign_epoch(1, 0)
    fill(log, [2] * 4, leader_epoch=1)
    log.flush()
    directory.write_checkpoints({})
    fill(log, [2] * 36, leader_epoch=1)
    bases, folder = log.segment_base_offsets, log.folder
    directory.close(clean=False)
    assert len(bases) > 3
    for base in bases[1:]:
        (folder / f"{base:020d}.log").write_bytes(b"")
    first = folder / f"{0:020d}.log"
    first.write_bytes(first.read_bytes()[: scan(first.read_bytes())[-1].position + 1])
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root, patch)
        directory = opened(root)
        log = directory.open_log("t", 0, create=False)
        assert log.recovery.bytes_cut == 1 and log.segment_base_offsets == (0,)
        fill(log, [3] * 2, leader_epoch=1)
        assert log.log_end_offset > bases[1]
    directory.close(clean=False)
    fast(monkeypatch)
    for named in range(len(recorder.ops) + 1):
        kept = {op: op.kind == DATA or number < named for number, op in enumerate(recorder.ops)}
        crashed = tmp_path / f"crashed-{named}"
        recorder.crash(len(recorder.ops), kept.__getitem__).put(crashed)
        directory = opened(crashed)
        log = directory.open_log("t", 0, create=False)
        assert offsets(log) == list(range(log.log_end_offset))
        directory.close(clean=False)


def value_of(log: DiskLog, size: int) -> None:
    append(log, build_batch([None], [bytes(size)], timestamps_ms=1000), leader_epoch=1)


def full(patch: pytest.MonkeyPatch) -> None:
    """The next write finds room for a part of it alone."""
    write = os.pwritev

    def half(fd: int, buffers: Sequence[bytes], position: int) -> int:
        patch.setattr(os, "pwritev", write)
        write(fd, [bytes(buffers[0])[:40]], position)
        raise OSError(errno.ENOSPC, "no space left")

    patch.setattr(os, "pwritev", half)


@pytest.mark.parametrize("cut_by", ["recovery", "a failed write"])
def test_power_fails_when_a_segment_was_cut_where_it_was_flushed_and_another_one_was_begun(
    tmp_path: Path, monkeypatch, cut_by: str
) -> None:
    """The device may have what was cut off; all that was flushed comes back though."""
    root = tmp_path / "log"
    directory = opened(root)
    log = directory.open_log("t", 0, create=True)
    log.assign_epoch(1, 0)
    for _ in range(3):
        value_of(log, 200)
    log.flush()
    directory.write_checkpoints({})
    if cut_by == "recovery":
        value_of(log, 50)
        directory.close(clean=False)
        path = log.folder / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root, patch)
        if cut_by == "recovery":
            directory = opened(root)
            log = directory.open_log("t", 0, create=False)
        else:
            with pytest.MonkeyPatch.context() as inner:
                full(inner)
                with pytest.raises(StorageError):
                    value_of(log, 50)
        assert log.log_end_offset == log.recovery_point == 3
        cut = len(recorder.ops)
        value_of(log, 600)
        assert len(log.segment_base_offsets) == 2
        log.flush()
        directory.write_checkpoints({})
    directory.close(clean=False)
    fast(monkeypatch)
    # The half of a write may have come to the device, and the cut not.
    kept = {op for op in recorder.ops[: cut - 1] if op.kind == DATA}
    recorder.crash(len(recorder.ops), kept.__contains__).put(tmp_path / "crashed")
    directory = opened(tmp_path / "crashed")
    log = directory.open_log("t", 0, create=False)
    assert offsets(log) == [0, 1, 2, 3]
    directory.close(clean=False)
