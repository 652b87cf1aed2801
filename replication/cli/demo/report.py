"""The verdict: all figures of one run, what the public consumer read back, and what a plugin's step saw.

A step is found by its name in the entry point group `insync.demo_steps`, so that nothing here imports a plugin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from itertools import groupby
from operator import itemgetter, ne
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio

from ...client import Admin, Consumer, ConsumerRecord, NodeReport
from ...core.wording import counted
from ..errors import CommandError, one_line
from .check import Kind, Verification
from .inputs import Expectation, Lines, fingerprints
from .scene import Progress, Scene


@attrs.define(eq=False, kw_only=True)
class Report:
    """One run's figures; durations in ms or s as named, MB are 10^6 bytes of keys and values."""

    nodes: int
    seed: int
    records: int
    transport: str = "tcp"
    records_acked: int = 0
    records_read: int = 0
    killed_node: int = -1
    kill_at_record: int = -1
    in_flight_at_kill: int = 0
    failover_ms: float | None = None
    failover_ms_by_partition: dict[int, float] = attrs.Factory(dict)
    idle_partitions: list[int] = attrs.Factory(list)
    rejoin_ms: float | None = None
    produce_mb_per_s: float = 0.0
    produce_s: float = 0.0
    elapsed_s: float = 0.0
    rss_mb: dict[str, float] = attrs.Factory(dict)
    planted: str | None = None
    spark: dict[str, int] | None = None
    """The counts of the Spark step: rows, wrong_keys, batches; None without the step."""
    verification: Verification | None = None
    problems: list[str] = attrs.Factory(list)
    """Problems beside the defects that the verification names."""

    @property
    def ok(self) -> bool:
        return self.verification is not None and self.verification.ok and not self.problems

    def conclude(self) -> None:
        """Turn figures that cannot be right into problems."""
        if self.records_acked != self.records:
            self.problems.append(
                f"{self.records - self.records_acked} of {self.records} records were not acknowledged"
            )
        if self.records_read != self.records:
            self.problems.append(f"the consumer read {self.records_read} records of {self.records}")
        if self.in_flight_at_kill == 0:
            self.problems.append("nothing was in flight when the leader was killed, so the run proves little")
        if self.failover_ms is None:
            self.problems.append(
                "no record came for the killed leader's partitions afterwards; use more --records"
            )

    def count(self, kind: Kind) -> int:
        return 0 if self.verification is None else self.verification.counts[kind]

    def lines(self) -> list[tuple[str, str]]:
        """The defects and problems, if any, and the verdict: (tone, line)."""
        found = [] if self.verification is None else self.verification.defects
        lines = [("bad", str(defect)) for defect in found]
        if self.verification is not None and len(found) < self.verification.counts.total():
            lines.append(("bad", f"... {self.verification.counts.total()} defects in all"))
        lines += [("bad", problem) for problem in self.problems]
        return [*lines, ("good" if self.ok else "bad", self._verdict())]

    def _verdict(self) -> str:
        if not self.ok:
            return f"FAILED: {self._counts()}"
        return (
            f"PASSED: {self.records_acked:,} records acknowledged, {self.records_read:,} read back; "
            f"{self._counts()}; failover {self.failover_ms or 0:.0f} ms, rejoin {self.rejoin_ms or 0:.0f} ms, "
            f"{self.produce_mb_per_s:.1f} MB/s"
        )

    def _counts(self) -> str:
        same = self.verification is not None and self.verification.replicas_identical
        return (
            f"{self.count(Kind.LOST)} lost, {self.count(Kind.DUPLICATED)} duplicated, "
            f"{self.count(Kind.OUT_OF_ORDER)} out of order, {self.count(Kind.FOREIGN)} foreign, "
            f"replicas {'identical' if same else 'DIFFER'}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; numbers are plain, what is not known is null."""
        checked = self.verification
        return {
            "verdict": "passed" if self.ok else "failed",
            "records": self.records,
            "records_acked": self.records_acked,
            "records_read": self.records_read,
            "lost": self.count(Kind.LOST),
            "duplicated": self.count(Kind.DUPLICATED),
            "out_of_order": self.count(Kind.OUT_OF_ORDER),
            "foreign": self.count(Kind.FOREIGN),
            "misplaced": self.count(Kind.MISPLACED),
            "unreadable": self.count(Kind.UNREADABLE),
            "replicas_identical": checked is not None and checked.replicas_identical,
            "killed_node": self.killed_node,
            "kill_at_record": self.kill_at_record,
            "in_flight_at_kill": self.in_flight_at_kill,
            "failover_ms": _rounded(self.failover_ms),
            "failover_ms_by_partition": {
                str(k): _rounded(v) for k, v in self.failover_ms_by_partition.items()
            },
            "idle_partitions": self.idle_partitions,
            "rejoin_ms": _rounded(self.rejoin_ms),
            "produce_mb_per_s": round(self.produce_mb_per_s, 2),
            "produce_s": round(self.produce_s, 3),
            "elapsed_s": round(self.elapsed_s, 3),
            "nodes": self.nodes,
            "transport": self.transport,
            "seed": self.seed,
            "rss_mb": {name: round(size, 1) for name, size in self.rss_mb.items()},
            "planted": self.planted,
            "spark": self.spark,
            "defects": [] if checked is None else [str(defect) for defect in checked.defects],
            "problems": self.problems,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


IDLE_TIMEOUT = 15.0
_POLL_MS = 1000
_PARTITION = ConsumerRecord._fields.index("partition")


@attrs.define(eq=False)
class ReadBack:
    """The records that the consumer handed out: a count per partition and the sums of their fingerprints.

    `out_of_sequence` counts records whose offset was not the next one of their partition.
    """

    records: Counter[int] = attrs.Factory(Counter)
    sums: Counter[int] = attrs.Factory(Counter)
    out_of_sequence: int = 0

    def add(self, partition: int, rows: list[ConsumerRecord]) -> int:
        """Take note of records of one partition; gives the bytes of their keys and values."""
        offsets = [row.offset for row in rows]
        due = range(self.records[partition], self.records[partition] + len(rows))
        if offsets != list(due):
            self.out_of_sequence += sum(map(ne, offsets, due))
        pairs = [(row.key, row.value) for row in rows]
        self.records[partition] += len(rows)
        self.sums[partition] += sum(fingerprints(pairs))
        return sum(len(key or b"") + len(value or b"") for key, value in pairs)

    @property
    def total(self) -> int:
        return self.records.total()

    def defects(self, expectation: Expectation) -> list[str]:
        """How what was read differs from what was acknowledged."""
        found = [
            f"the consumer read other records of partition {partition} than were acknowledged"
            for partition, expected in expectation.partitions.items()
            if (self.records[partition], self.sums[partition]) != (len(expected), sum(expected.fingerprints))
        ]
        if self.out_of_sequence:
            found.append(f"the consumer skipped or repeated offsets {counted(self.out_of_sequence, 'time')}")
        return found


async def read_back(
    servers: str, topic: str, total: int, progress: Progress, access: Mapping[str, Any]
) -> ReadBack:
    """Read the topic from its beginning: `total` records, and whatever more comes; or less if nothing comes."""
    read = ReadBack()
    async with Consumer(servers, auto_offset_reset="earliest", max_poll_records=5000, **access) as consumer:
        await consumer.assign_topic(topic)
        last = trio.current_time()
        while progress.done < total and trio.current_time() - last < IDLE_TIMEOUT:
            batch = await consumer.poll(_POLL_MS)
            if batch:
                last = trio.current_time()
            for partition, group in groupby(batch, itemgetter(_PARTITION)):
                progress.size_bytes += read.add(partition, list(group))
            progress.done += len(batch)
    progress.end()
    return read


def watermark_defects(
    reports: Sequence[NodeReport], topic: str, counts: Mapping[int, int], replicas: int
) -> list[str]:
    """Reasons why "high watermark = log end offset = number of records" is not true on every replica."""
    found: list[str] = [
        f"node {each.node_id} does not answer: {each.error}" for each in reports if not each.alive
    ]
    seen: Counter[int] = Counter()
    for report in reports:
        for replica in report.replicas:
            if replica.topic != topic:
                continue
            seen[replica.partition] += 1
            expected = counts.get(replica.partition, 0)
            if not replica.high_watermark == replica.log_end_offset == expected:
                found.append(
                    f"partition {replica.partition} on node {report.node_id}: high watermark "
                    f"{replica.high_watermark}, log end offset {replica.log_end_offset}, {expected} acknowledged"
                )
    found += [
        f"partition {partition}: {seen[partition]} of {replicas} replicas answer"
        for partition in counts
        if seen[partition] != replicas
    ]
    return found


async def wait_for_watermarks(
    admin: Admin, topic: str, counts: Mapping[int, int], replicas: int, *, timeout: float = IDLE_TIMEOUT
) -> list[str]:
    """Ask every node until all replicas are level; gives what is still wrong after `timeout` seconds."""
    defects: list[str] = ["no node was asked"]
    with trio.move_on_after(timeout):
        while defects:
            defects = watermark_defects(await admin.describe_replicas([topic]), topic, counts, replicas)
            await trio.sleep(0.02 if defects else 0)
    return defects


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
        """Wait for this number of records, or until no more come. Raises CommandError."""

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
