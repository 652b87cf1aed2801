"""Running jobs of Spark over plain Python objects, and telling how far they are."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many tasks are done."""

_LOOK_EVERY_S = 0.2


def quiet(doing: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


def run_tasks(
    spark: SparkSession,
    work: Callable[[Sequence[T]], list[R]],
    groups: Sequence[Sequence[T]],
    doing: str,
    progress: Progress = quiet,
) -> list[R]:
    """Run `work` on each group in a task of its own; the results of all, in order. Results must be small."""
    if not groups:
        return []
    context = spark.sparkContext
    with watching(spark, doing, progress, len(groups)):
        parts = context.parallelize(groups, len(groups)).map(work).collect()
    return [result for part in parts for result in part]


@contextmanager
def watching(spark: SparkSession, doing: str, progress: Progress, total: int = 0) -> Iterator[None]:
    """Tell `progress` of the tasks of jobs that this thread starts meanwhile.

    total: how many tasks there will be; 0 if only Spark knows, as it starts stage after stage.
    """
    context = spark.sparkContext
    group = f"insync-{uuid.uuid4().hex[:12]}"
    context.setJobGroup(group, doing, interruptOnCancel=True)
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(context, group, doing, progress, total, over), daemon=True
    )
    progress(doing, 0, total)
    watcher.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        over.set()
        watcher.join()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
    progress(doing, total or 1, total or 1)


def _watch(
    context: SparkContext, group: str, doing: str, progress: Progress, total: int, over: threading.Event
) -> None:
    tracker = context.statusTracker()
    while not over.wait(_LOOK_EVERY_S):
        done = known = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                about = tracker.getStageInfo(stage)
                if about is not None:
                    done += about.numCompletedTasks
                    known += about.numTasks
        progress(doing, done, total or known)
