"""How far a job is: what is told of it never goes back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark import SparkMissingError
from tests.requires import missing

from . import data_folders as data

try:
    from insync.plugins.spark.pipeline import FolderInput, _jobs, load, stats
except (ImportError, SparkMissingError) as error:
    missing(str(error))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from insync.replication import BlockingAdmin

Told = list[tuple[int, int]]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jobs, "_LOOK_EVERY_S", 0.005)


def check(told: Told) -> None:
    """What is done only grows, of how many is not known or does not change, and in the end all is done."""
    for (done, total), (later, later_total) in pairwise(told):
        assert later >= done
        assert total in (0, later_total)
        assert not total or later <= total
    assert told[-1][0] == told[-1][1] > 0


def test_of_many_stages(spark: SparkSession, tmp_path: Path) -> None:
    """Spark starts them one after the other, so of how many tasks is known at the end."""
    folder = data.write_folder(tmp_path / "node-1", 1, {at: data.batches(20) for at in range(3)})
    told: Told = []
    stats(spark, FolderInput(folder, data.TOPIC), progress=lambda doing, *far: told.append(far))
    check(told)
    assert {total for _, total in told[:-1]} == {0}
    assert told[-1][0] > 3


def test_of_one_stage(
    spark: SparkSession, admin: BlockingAdmin, servers: str, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, 3)
    (tmp_path / "log.txt").write_text("a line\n" * 1000)
    told: Told = []
    for _ in range(10):
        told.clear()
        load(spark, [tmp_path / "log.txt"], servers, topic, progress=lambda doing, *far: told.append(far))
        check(told)
        assert told[-1] == (1, 1)
        if (0, 1) in told:
            break  # else the one task was over before anybody looked
    assert (0, 1) in told, "of how many is known before it is over"


def test_of_so_many_tasks(spark: SparkSession) -> None:
    def double(numbers: Sequence[int]) -> list[int]:
        return [2 * number for number in numbers]

    told: Told = []
    found = _jobs.run_tasks(
        spark, double, [[1, 2], [3], [4]], "doubling", lambda doing, *far: told.append(far)
    )
    assert found == [2, 4, 6, 8]
    check(told)
    assert {total for _, total in told} == {3}
