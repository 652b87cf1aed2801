"""What `stats` counts equals what a plain loop counts."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark import SparkMissingError
from insync.storage.batch import build_batch
from tests.requires import missing

from . import data_folders as data

try:
    from insync.plugins.spark.pipeline import FolderInput, stats
    from insync.plugins.spark.pipeline._plot import _figure
    from insync.plugins.spark.pipeline._stats import KeyCount, Minute, StatsReport
except (ImportError, SparkMissingError) as error:
    missing(str(error))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[bytes | None, bytes | None, int]


def rows(seed: int) -> list[Row]:
    """Times that mostly rise; some keys and values are null, one key minds pages and formulas."""
    rng = random.Random(seed)
    keys = [None, b"", b"<b>$a_b$", b"\xff\xfe", *(b"key-%d" % at for at in range(20))]
    found, now = [], data.TIME_MS
    for _ in range(400):
        now += rng.randrange(3000)
        late = rng.randrange(1, 50_000) if rng.random() < 0.1 else 0
        value = None if rng.random() < 0.05 else rng.randbytes(rng.randrange(30))
        found.append((rng.choice(keys), value, now - late))
    return found


def test_counts(spark: SparkSession, tmp_path: Path) -> None:
    partitions = {at: rows(at) for at in range(2)}
    folder = data.write_folder(
        tmp_path / "node-1",
        1,
        {
            at: [
                (
                    0,
                    build_batch(
                        [row[0] for row in part],
                        [row[1] for row in part],
                        timestamps_ms=[row[2] for row in part],
                    ),
                )
                for part in (found[first : first + 20] for first in range(0, 400, 20))
            ]
            for at, found in partitions.items()
        },
    )
    png, page = tmp_path / "plot.png", tmp_path / "page.html"
    report = stats(spark, FolderInput(folder, data.TOPIC), top=5, plot=png, html=page)

    records: Counter[bytes | None] = Counter()
    sizes: Counter[bytes | None] = Counter()
    minutes: Counter[int] = Counter()
    late: list[int] = []
    for found in partitions.values():
        highest = 0
        for key, value, time in found:
            records[key] += 1
            sizes[key] += len(key or b"") + len(value or b"")
            minutes[time // 60_000] += 1
            if time < highest:
                late.append(highest - time)
            highest = max(highest, time)
    assert (report.records, report.bytes, report.keys) == (800, sizes.total(), len(records))
    assert (report.late, report.max_late_ms) == (len(late), max(late))
    assert {int(each.at.timestamp()) // 60: each.records for each in report.minutes} == minutes
    assert sum(each.late for each in report.minutes) == len(late)
    best = sorted(sizes, key=lambda key: (-sizes[key], -records[key], key is not None, key))[:5]
    assert [(each.key, each.records, each.bytes) for each in report.top_keys] == [
        (key, records[key], sizes[key]) for key in best
    ]
    assert report.late_quantiles_ms["p50"] == pytest.approx(sorted(late)[len(late) // 2], rel=0.1)
    assert [(each.first_offset, each.end_offset) for each in report.partitions] == [(0, 400), (0, 400)]
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<svg" in text
    assert "http-equiv" not in text and "<script" not in text
    assert f"{len(late):,} records out of order" in text


def test_a_topic_without_records(spark: SparkSession, tmp_path: Path) -> None:
    folder = data.write_folder(tmp_path / "node-1", 1, {0: []})
    report = stats(spark, FolderInput(folder, data.TOPIC), html=tmp_path / "page.html")
    assert (report.records, report.keys, report.minutes, report.late_quantiles_ms) == (0, 0, [], {})


def test_times_that_no_calendar_has(spark: SparkSession, tmp_path: Path) -> None:
    """Of a producer that writes microseconds where milliseconds belong, and of one that writes anything."""
    times = [data.TIME_MS, data.TIME_MS * 1000, 2**62, 2**63 - 1]
    batch = build_batch([None] * 4, [b"x"] * 4, timestamps_ms=times)
    folder = data.write_folder(tmp_path / "node-1", 1, {0: [(0, batch)]})
    report = stats(spark, FolderInput(folder, data.TOPIC), plot=tmp_path / "a.png", html=tmp_path / "a.html")
    last = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    assert [(each.at, each.records) for each in report.minutes] == [
        (datetime.fromtimestamp(data.TIME_MS // 60_000 * 60, UTC), 1),
        (last, 3),
    ]
    assert report.late == 0


def made_up(minutes: int, keys: list[bytes | None]) -> StatsReport:
    begin = datetime(2026, 1, 1, 23, 59, tzinfo=UTC)
    return StatsReport(
        name="made up",
        records=0,
        bytes=0,
        keys=len(keys),
        late=0,
        max_late_ms=0,
        late_quantiles_ms={},
        partitions=[],
        top_keys=[KeyCount(key, 1, 1000) for key in keys],
        minutes=[Minute(begin + timedelta(minutes=n), 10, 1000, 0) for n in range(minutes)],
        elapsed_s=1.0,
    )


@pytest.mark.parametrize(("minutes", "keys"), [(0, []), (1, [b"one"]), (3, [None, b"$a$", b"\xff\x00"])])
def test_a_plot_of_little_is_a_plot(minutes: int, keys: list[bytes | None]) -> None:
    """One minute is not shown in a span of years, nothing below 0, and any key can be a label."""
    report = made_up(minutes, keys)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = _figure(report)
        figure.canvas.draw()
    rates, late, bars, volume = figure.axes
    if not minutes:
        assert [text.get_text() for text in rates.texts] == ["no records"]
        return
    days = rates.get_xlim()[1] - rates.get_xlim()[0]
    assert days * 24 * 60 == pytest.approx(minutes - 1 + 4, abs=0.01)
    assert all(axes.get_ylim()[0] == 0 for axes in (rates, late, volume))
    assert len({label.get_text() for label in bars.get_yticklabels()}) == len(keys)
    assert any(label.get_text() == r"\xff\x00" for label in bars.get_yticklabels()) == (b"\xff\x00" in keys)
