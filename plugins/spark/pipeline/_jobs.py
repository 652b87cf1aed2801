"""Running jobs of Spark over plain Python objects, and telling how far they are."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import attrs

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many tasks are done; of 0 as long as it is not known of how many."""

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
def watching(
    spark: SparkSession, doing: str, progress: Progress, total: int = 0, *, one_stage: bool = False
) -> Iterator[None]:
    """Tell `progress` of the tasks of jobs that this thread starts meanwhile; what is told never goes back.

    total: how many tasks there will be; 0 if only Spark knows. Then nothing is told of how many there are until it
    is over, as Spark starts stage after stage and says of none beforehand; unless there will be but `one_stage`.
    """
    context = spark.sparkContext
    group = f"insync-{uuid.uuid4().hex[:12]}"
    context.setJobGroup(group, doing, interruptOnCancel=True)
    over = threading.Event()
    watch = _Watch(context, group, doing, progress, total, one_stage)
    watcher = threading.Thread(target=watch.until, args=(over,), daemon=True)
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
    watch.end()


@attrs.define
class _Watch:
    """How far the jobs of a group are."""

    _context: SparkContext
    _group: str
    _doing: str
    _progress: Progress
    _total: int
    _one_stage: bool
    _done: int = 0

    def until(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_EVERY_S):
            self._look()
            self._progress(self._doing, self._done, self._total)

    def end(self) -> None:
        if not self._total:
            self._look()
        every = self._total or max(self._done, 1)
        self._progress(self._doing, every, every)

    def _look(self) -> None:
        tracker = self._context.statusTracker()
        done = known = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                about = tracker.getStageInfo(stage)
                if about is not None:
                    done += about.numCompletedTasks
                    known += about.numTasks
        if self._one_stage:
            self._total = max(self._total, known)
        # Of a stage that is run again, as an executor was lost, Spark counts anew.
        self._done = max(self._done, min(done, self._total) if self._total else done)
