"""A step that a plugin adds to the demo: it reads the topic along while the leader dies, and says what it saw.

Found through the entry point group `insync.demo_steps` by its name, so that nothing here imports a plugin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio

from ..errors import CommandError, one_line
from .inputs import Lines
from .report import Report
from .scene import Scene

STEPS_GROUP = "insync.demo_steps"
SPARK = "spark"


class StepUnavailableError(CommandError):
    """The step cannot run here; the message says what is missing and how to get it."""


@attrs.frozen
class StepTask:
    """Where to read. `access`: what clients need beside addresses, by the names of their settings."""

    servers: str
    topic: str
    folder: Path
    """Of the step's own; removed with the cluster's."""
    access: Mapping[str, Any]


@attrs.frozen
class Counted:
    """How many records of each key the step has seen, in how many batches."""

    counts: Mapping[bytes, int]
    batches: int


class DemoStep(Protocol):
    """Made without arguments; `close` is called however the demo ends."""

    async def start(self, task: StepTask) -> None:
        """Comes back when the first batch is committed. Raises StepUnavailableError, or another CommandError."""

    async def finish(self, records: int) -> Counted:
        """Wait until so many records were seen, or no more come. Raises CommandError."""

    async def close(self) -> None:
        """End all that was started."""


@attrs.define(eq=False)
class ReadingAlong:
    """The step, while the demo runs; None stands for one that does not."""

    step: DemoStep | None
    scene: Scene
    report: Report

    async def compare(self, expected: Callable[[], Iterable[Lines]]) -> None:
        """Hold what the step counted against the input itself, and note it in the report."""
        if self.step is None:
            return
        try:
            found = await self.step.finish(self.report.records)
        except CommandError as error:
            self.report.problems.append(f"the Spark step failed: {one_line(str(error))}")
            return
        counts = await trio.to_thread.run_sync(_count, expected, abandon_on_cancel=True)
        wrong = sum(counts[key] != found.counts.get(key, 0) for key in {*counts, *found.counts})
        rows = sum(found.counts.values())
        self.report.spark = {"rows": rows, "wrong_keys": wrong, "batches": found.batches}
        if wrong or rows != self.report.records:
            self.report.problems.append(f"Spark counted {rows} records, {wrong} keys of them wrongly")
        else:
            self.scene.happen(
                f"Spark counted {rows:,} lines of {len(counts):,} modules in {found.batches} batches, every module "
                "right",
                "good",
            )


@asynccontextmanager
async def reading_along(
    task: StepTask, scene: Scene, report: Report, *, wanted: bool = True
) -> AsyncIterator[ReadingAlong]:
    """Start the step before the block, if there is one that can run here; it ends with the block."""
    step = _find() if wanted else None
    try:
        if step is not None and not await _started(step, task, scene, report):
            await step.close()
            step = None
        yield ReadingAlong(step, scene, report)
    finally:
        if step is not None:
            with trio.CancelScope(shield=True):
                await step.close()


def _find() -> DemoStep | None:
    for point in entry_points(group=STEPS_GROUP, name=SPARK):
        step: DemoStep = point.load()()
        return step
    return None


async def _started(step: DemoStep, task: StepTask, scene: Scene, report: Report) -> bool:
    scene.happen("starting a Spark job that counts the lines of each module")
    try:
        await step.start(task)
    except StepUnavailableError as error:
        scene.happen(f"without Spark: {one_line(str(error))}", "warning")
        return False
    except CommandError as error:
        report.problems.append(f"the Spark step failed: {one_line(str(error))}")
        return False
    scene.happen("Spark has committed its first batch", "good")
    return True


def _count(expected: Callable[[], Iterable[Lines]]) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    for lines in expected():
        counts[lines.key] += len(lines.values)
    return counts
