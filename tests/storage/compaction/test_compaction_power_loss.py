"""Power fails at every moment of a log that is compacted: no key loses its latest record, none that was deleted
comes back, and the log opens.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from insync.storage import CorruptLogError, DiskLog, LogDirectory, LogSettings
from insync.storage.batch import build_batch, records

from ..building import all_bytes, append
from ..recording import DATA, NAMES, Op, Recorder

SETTINGS = LogSettings(
    segment_bytes=1024,
    segment_index_bytes=200,
    index_interval_bytes=100,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0,
    delete_retention_ms=100,
    file_delete_delay_ms=0,
)
KEYS = 12


@attrs.frozen
class Moment:
    """From an operation on, each key's record at that offset, or a later one, is safe; None: it is deleted."""

    op: int
    latest: dict[bytes, tuple[int, bytes | None]]


class Life:
    def __init__(self, root: Path, recorder: Recorder, directory: LogDirectory) -> None:
        self.root, self.recorder, self.directory = root, recorder, directory
        self.log: DiskLog = directory.open_log("t", 0, create=False)
        self.latest: dict[bytes, tuple[int, bytes | None]] = {}
        self.written: set[tuple[int, bytes, bytes | None]] = set()
        self.safe = [Moment(0, {})]
        self.compactions = self.merged = 0
        self._chance = random.Random(2)
        self._now = 1000

    def append(self, batches: int, epoch: int) -> None:
        for at in range(batches):
            self._now += 1
            base, keys, values = self.log.log_end_offset, [], []
            for offset in range(base, base + at % 3 + 1):
                keys.append(b"k%d" % self._chance.randrange(KEYS))
                values.append(None if self._chance.random() < 0.2 else b"%d" % offset + bytes(30))
                self.written.add((offset, keys[-1], values[-1]))
                self.latest[keys[-1]] = (offset, values[-1])
            data = build_batch(keys, values, timestamps_ms=self._now, compression=("none", "lz4")[at % 2])
            append(self.log, data, leader_epoch=epoch)

    def flush(self) -> None:
        self.log.flush()
        self.safe.append(Moment(len(self.recorder.ops), dict(self.latest)))

    def compact(self, wait: int = 0) -> None:
        self._now += wait
        done = self.log.maintain(self._now, high_watermark=self.log.log_end_offset).compaction
        assert done is not None
        self.compactions += done.segments_before
        self.merged += done.segments_before - done.segments_after

    def restart(self, *, clean: bool) -> None:
        self.directory.close(clean)
        if clean:
            self.safe.append(Moment(len(self.recorder.ops), dict(self.latest)))
        self.directory = opened(self.root)
        self.log = self.directory.open_log("t", 0, create=False)


def opened(root: Path) -> LogDirectory:
    return LogDirectory(root, cluster_id="c", node_id=1, settings=SETTINGS)


def live(life: Life) -> None:
    life.append(20, 1)
    life.flush()
    life.compact()
    life.append(15, 2)
    life.compact(wait=200)
    life.flush()
    life.restart(clean=True)
    life.append(15, 3)
    life.directory.write_checkpoints({})
    life.flush()
    life.compact(wait=200)
    life.append(6, 3)
    life.restart(clean=False)
    life.append(12, 4)
    life.compact(wait=200)
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
    found = [(each.offset, each.key or b"", each.value) for each in records(all_bytes(log))]
    assert {*found} <= life.written, "nothing that was not written"
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    last = {key: (offset, value) for offset, key, value in found}
    for key, (offset, value) in safe.latest.items():
        if value is None and key not in last:
            continue
        assert key in last, f"{key!r} is gone"
        assert last[key][0] >= offset, f"an old record of {key!r} came back"
    assert not [path for path in log.folder.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=1)
        assert offset < result.next_offset, "the indexes are right"
        offset = result.next_offset


def moments(life: Life) -> list[int]:
    """After each change of a segment's name, and some others."""
    ops = life.recorder.ops
    named = [at for at in range(1, len(ops)) if ops[at - 1].kind == NAMES and ops[at - 1].owner == "t-0"]
    return sorted({*named[::2], *range(0, len(ops) + 1, 9)})


def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_the_life_has_all_that_it_should(life: Life) -> None:
    assert life.compactions > 10
    assert life.merged > 3
    names = [name for op in life.recorder.ops if op.kind != DATA for name in [str(op.owner)]]
    assert len(names) > 150
    left = life.recorder.crash(len(life.recorder.ops), lambda _: True)
    on_disk = {str(path.relative_to(life.root)) for path in life.root.rglob("*") if path.is_file()}
    assert on_disk == set(left.names)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_every_prefix_opens(life: Life, tmp_path: Path, monkeypatch, kept: bool) -> None:
    """All that was unsynced is there, as after a kill; or none of it."""
    fast(monkeypatch)
    for at in moments(life):
        assert recovered(life, tmp_path / "crash", at, lambda _: kept), at


@pytest.mark.slow
@pytest.mark.parametrize("data", [True, False])
def test_any_beginning_of_the_names_that_were_not_synced(
    life: Life, tmp_path: Path, monkeypatch, data: bool
) -> None:
    fast(monkeypatch)
    chance = random.Random(8)
    for at in moments(life):
        named = chance.randrange(at + 1)
        kept = {
            op: data if op.kind == DATA else number < named
            for number, op in enumerate(life.recorder.ops[:at])
        }
        assert recovered(life, tmp_path / "crash", at, kept.__getitem__), at


@pytest.mark.slow
def test_power_fails_again_while_a_swap_is_finished(life: Life, tmp_path: Path, monkeypatch) -> None:
    """At each moment of opening after each moment of a compaction."""
    crashes = 0
    lefts = [(at, life.recorder.crash(at, lambda _: True)) for at in moments(life)]
    swapping = [each for each in lefts if any(name.endswith(".log.swap") for name in each[1].names)]
    for at, left in swapping[::7]:
        folder = tmp_path / "crash"
        shutil.rmtree(folder, ignore_errors=True)
        left.put(folder)
        with monkeypatch.context() as patch:
            again = Recorder(folder, patch)
            directory = opened(folder)
            directory.open_log("t", 0, create=False)
        directory.close(clean=False)
        for second in range(0, len(again.ops) + 1, 2):
            shutil.rmtree(tmp_path / "twice", ignore_errors=True)
            again.crash(second, lambda _: True).put(tmp_path / "twice")
            directory = opened(tmp_path / "twice")
            check(life, directory.open_log("t", 0, create=False), at)
            directory.close(clean=False)
            crashes += 1
    assert crashes > 20
