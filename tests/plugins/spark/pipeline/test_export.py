"""An export has each record once, however its runs end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark import SparkMissingError
from insync.storage import LogDirectory
from insync.storage.batch import build_batch, records
from tests.requires import missing

from . import data_folders as data

try:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    from insync.plugins.spark.pipeline import (
        DamagedSegmentError,
        ExportStateError,
        FolderInput,
        LostRecordsError,
        export,
    )
    from insync.plugins.spark.pipeline._manifest import Manifest
    from insync.plugins.spark.pipeline._parquet import ByKeyRange, key_bounds
except (ImportError, SparkMissingError) as error:
    missing(str(error))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


def content(number: int, start: int = 0) -> list[tuple[int, bytes]]:
    """Batches of ten, each a quarter of a day after the one before."""
    found = []
    for at in range(start, start + number):
        time = data.TIME_MS + at * DAY_MS // 4
        keys: list[bytes | None] = [None if each == 9 else b"key-%d" % (each % 7) for each in range(10)]
        values: list[bytes | None] = [b"%d/%d" % (at, each) for each in range(10)]
        found.append((0, build_batch(keys, values, timestamps_ms=time, headers=[[("h", b"%d" % at)]] * 10)))
    return found


def grow(folder: Path, batches: list[tuple[int, bytes]]) -> None:
    """What a node does that runs on."""
    directory = LogDirectory(folder, cluster_id=data.CLUSTER, node_id=1, settings=data.SMALL)
    marks = directory.high_watermarks()
    for (topic, partition), _ in marks.items():
        log = directory.open_log(topic, partition, create=False)
        data.append(log, batches)
        marks[topic, partition] = log.log_end_offset
    directory.write_checkpoints(marks)
    directory.close(True)


def exported(target: Path) -> pa.Table:
    return ds.dataset(target, partitioning="hive", ignore_prefixes=["_", "."]).to_table()


def places(target: Path) -> list[tuple[int, int]]:
    table = exported(target)
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data.write_folder(tmp_path / "node-1", 1, {0: content(20), 1: content(8)})


def test_every_record_as_it_is(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    report = export(spark, FolderInput(folder, data.TOPIC), tmp_path / "out", range_bytes=500)
    table = exported(tmp_path / "out").sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert (report.rows, table.num_rows) == (280, 280)
    found = table.select(["key", "value", "offset", "partition"]).to_pylist()
    expected = []
    for partition in (0, 1):
        for path in sorted((folder / f"orders-{partition}").glob("*.log")):
            for record in records(path.read_bytes()):
                expected.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "offset": record.offset,
                        "partition": partition,
                    }
                )
    assert found == expected
    assert report.bytes == sum(len(each["key"] or b"") + len(each["value"]) for each in expected)
    assert table["headers"][0].as_py() == [{"key": "h", "value": b"0"}]
    days = {str(time.date()) for time in table["timestamp"].to_pylist()}
    assert {path.name.removeprefix("date=") for path in (tmp_path / "out").glob("date=*")} == days


def test_days_that_no_calendar_has(spark: SparkSession, tmp_path: Path) -> None:
    """Of a producer that writes microseconds where milliseconds belong, and of one that writes anything."""
    times = [data.TIME_MS, data.TIME_MS * 1000, 2**62]
    batch = build_batch([None] * 3, [b"x"] * 3, timestamps_ms=times)
    folder, out = data.write_folder(tmp_path / "node-1", 1, {0: [(0, batch)]}), tmp_path / "out"
    assert export(spark, FolderInput(folder, data.TOPIC), out).rows == 3
    parts = {path.name: pq.read_table(path) for path in out.glob("date=*")}
    found = {day: table["timestamp"].cast(pa.int64()).to_pylist() for day, table in parts.items()}
    last = (2**63 - 1) // 1000 * 1000
    assert found == {
        "date=2023-11-14": [times[0] * 1000],
        "date=9999-12-31": [times[1] * 1000, last],
    }


def test_the_next_run_has_only_what_is_new(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    source, out = FolderInput(folder, data.TOPIC), tmp_path / "out"
    assert export(spark, source, out).rows == 280
    assert export(spark, source, out).rows == 0
    grow(folder, content(3, 20))
    report = export(spark, source, out)
    assert (report.rows, report.offsets) == (60, {0: 230, 1: 110})
    assert places(out) == [(0, at) for at in range(230)] + [(1, at) for at in range(110)]


def test_what_is_not_committed_stays_out(spark: SparkSession, tmp_path: Path) -> None:
    folder = data.write_folder(tmp_path / "node-1", 1, {0: content(20)}, high_watermark=150)
    assert export(spark, FolderInput(folder, data.TOPIC), tmp_path / "out").rows == 150
    assert places(tmp_path / "out")[-1] == (0, 149)


def test_key_ranges(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    source, out = FolderInput(folder, data.TOPIC), tmp_path / "out"
    export(spark, source, out, by="keys", key_ranges=3)
    state = json.loads((out / "_insync" / "state.json").read_text())
    grow(folder, content(3, 20))
    export(spark, source, out, by="keys", key_ranges=3)
    assert json.loads((out / "_insync" / "state.json").read_text())["bounds"] == state["bounds"]
    assert len(places(out)) == 340
    ranges = {}
    for part in sorted(out.glob("keys=*")):
        keys = set(ds.dataset(part).to_table()["key"].to_pylist())
        ranges[part.name] = keys
    assert ranges.pop("keys=null") == {None}
    edges = [(min(keys), max(keys)) for _, keys in sorted(ranges.items())]
    assert len(edges) == 3
    assert all(a[1] < b[0] for a, b in pairwise(edges))


def test_bounds_share_what_was_seen() -> None:
    keys = [b"%03d" % each for each in range(100)]
    assert key_bounds(keys, 4) == (b"025", b"050", b"075")
    assert key_bounds([b"same"] * 50, 4) == ()
    assert key_bounds([], 4) == ()
    assert [name for name, _ in ByKeyRange(()).folders(pa.record_batch({"key": pa.array([b"x"])}))] == [
        "keys=00"
    ]


def test_damage_stops_an_export(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    data.flip_bit(folder, 105)
    with pytest.raises(Exception, match="offset 100: CRC-32C does not match") as caught:
        export(spark, FolderInput(folder, data.TOPIC), tmp_path / "out")
    assert DamagedSegmentError.__name__ in str(caught.value)
    assert not list((tmp_path / "out").glob("date=*"))


def test_what_was_deleted_before(spark: SparkSession, tmp_path: Path) -> None:
    folder = data.write_folder(tmp_path / "node-1", 1, {0: content(10)})
    out, source = tmp_path / "out", FolderInput(folder, data.TOPIC)
    export(spark, source, out)
    data.write_folder(
        tmp_path / "other", 1, {0: content(20)}, then=lambda log: log.advance_log_start_offset(105)
    )
    other = FolderInput(tmp_path / "other", data.TOPIC)
    with pytest.raises(LostRecordsError, match="offsets 100 to 104 of partition 0"):
        export(spark, other, out)
    report = export(spark, other, out, fail_on_data_loss=False)
    assert (report.rows, report.lost) == (95, 5)
    with pytest.raises(ExportStateError, match="it is not the same log"):
        export(spark, source, out)


def test_an_export_of_something_else(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    source, out = FolderInput(folder, data.TOPIC), tmp_path / "out"
    export(spark, source, out)
    with pytest.raises(ExportStateError, match="by date, not of orders by keys"):
        export(spark, source, out, by="keys")
    with Manifest.locked(out), pytest.raises(ExportStateError, match="another export"):
        export(spark, source, out)
    (out / "_insync" / "state.json").write_text('{"version": 2}')
    with pytest.raises(ExportStateError, match="is not what an export writes"):
        export(spark, source, out)


KILLED = """
import os, signal, sys
from pathlib import Path
from insync.plugins.spark.pipeline import _manifest
from insync.plugins.spark.pipeline._manifest import ExportState, Manifest
from insync.plugins.spark.pipeline._parquet import WrittenFile

left = [1000]

def step(*arguments, really):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return really(*arguments)

for place, name in ((_manifest.os, "replace"), (_manifest, "sync"), (Path, "unlink")):
    really = getattr(place, name)
    setattr(place, name, lambda *arguments, really=really: step(*arguments, really=really))

def run(root, steps):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left[0] = steps
    with Manifest.locked(root) as manifest:
        state = manifest.state() or ExportState("t", "date")
        staged = manifest.staging()
        files = []
        for day in range(3):
            (staged / f"date={day}").mkdir()
            name = f"date={day}/part-{state.runs}-{os.getpid()}"
            (staged / name).write_text(name)
            files.append(WrittenFile(name, 1, 1, 0, day, day))
        state.runs += 1
        manifest.commit(staged, files, state)
    os._exit(0)

for steps in range(100):
    root = Path(sys.argv[1]) / str(steps)
    root.mkdir()
    ends = [run(root, 1000), run(root, steps), run(root, 1000)]
    print(steps, *ends)
    if ends[1] == 0:
        break
"""


def test_a_run_that_is_killed_at_any_step_took_effect_as_a_whole_or_not(tmp_path: Path) -> None:
    """SIGKILL before each rename, sync and removal of a second run; the third finishes or forgets it."""
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    outcomes = []
    for line in ended.stdout.splitlines():
        steps, *ends = map(int, line.split())
        assert ends[::2] == [0, 0]
        assert ends[1] in (0, -signal.SIGKILL)
        root = tmp_path / f"{steps}"
        # Of which process a file is does not matter, but there must be one for each day and run.
        files = sorted(str(path.relative_to(root)).rpartition("-")[0] for path in root.glob("date=*/*"))
        runs = json.loads((root / "_insync" / "state.json").read_text())["runs"]
        assert files == [f"date={day}/part-{run}" for day in range(3) for run in range(runs)]
        assert sorted(os.listdir(root / "_insync")) == ["lock", "state.json"]
        outcomes.append(runs)
    assert ends[1] == 0
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {2, 3}
    assert len(outcomes) > 10
