"""`insync pipeline audit` on two cores: 1 GiB of records in three replicas, from the page cache.

First as they should be: how fast, and that nothing is found. Then with one defect at a time, planted far inside the
log of one replica and put right again after it: the audit has to name the replica and the exact offset, and nothing
else. About two minutes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from insync.plugins.spark import session
from insync.plugins.spark.pipeline import AuditReport, audit
from insync.storage import LogSettings

from ..plugins.spark.pipeline import data_folders as data
from .report import Result, at_least

PARTITIONS = 4
RECORDS_OF_BATCH = 16
RECORD_BYTES = 1000
"""So that a batch has about 16 KiB, which is a producer's default."""
BATCHES_AT_ONCE = 64
EPOCHS = (0, 3, 4)
REPLICAS = 3
ROUNDS = 5
BAR = 400.0
"""Megabytes a second."""
GIB = 1 << 30


def content(batches: int) -> Iterator[tuple[int, bytes]]:
    """A partition's batches, several at a time; the epochs taking equal shares of them."""
    made = [
        b"".join(data.batch(RECORDS_OF_BATCH, f"{group}-{at}", RECORD_BYTES) for at in range(BATCHES_AT_ONCE))
        for group in range(8)
    ]
    steps = batches // BATCHES_AT_ONCE
    for step in range(steps):
        yield EPOCHS[step * len(EPOCHS) // steps], made[step % len(made)]


@attrs.frozen
class Defect:
    """Something planted; `first` is where it has to be found, which lies in the batch that holds the offset."""

    name: str
    plant: Callable[[Path, int], object]
    reason: str
    in_itself: bool = True
    """Seen in the replica alone, and not only beside the others."""
    names_record: bool = False
    """Found at the very record, not at its batch."""

    def is_found(self, report: AuditReport, replica: str, offset: int) -> bool:
        """That it is, where it is, and nothing else."""
        first = offset if self.names_record else offset // RECORDS_OF_BATCH * RECORDS_OF_BATCH
        by_itself = [(each.replica, each.partition, each.offset) for each in report.defects]
        beside = [(each.partition, each.offset, each.outvoted) for each in report.differences]
        said = [each.reason for each in (*report.defects, *report.differences)]
        return (
            by_itself == ([(replica, 0, first)] if self.in_itself else [])
            and beside == [(0, first, (replica,))]
            and self.reason in said[0]
        )


DEFECTS = (
    Defect("a flipped bit", data.flip_bit, "CRC-32C does not match"),
    Defect("a missing batch", data.remove_batch, "should follow"),
    Defect(
        "a divergent suffix", data.diverge, "the content of the record", in_itself=False, names_record=True
    ),
    Defect(
        "a wrong epoch",
        lambda folder, offset: data.change_epoch(folder, offset, 1),
        "leader epoch 1 is not the",
    ),
)


@contextmanager
def restored(folder: Path, offset: int) -> Iterator[None]:
    """What is behind the offset is put back afterwards."""
    segments = sorted((folder / f"{data.TOPIC}-0").glob("*.log"))
    kept = {each: each.read_bytes() for each in segments if each >= data.find(folder, offset)[0]}
    try:
        yield
    finally:
        for path, was in kept.items():
            path.write_bytes(was)


def run(*, smoke: bool) -> Sequence[Result]:
    size, rounds = (GIB // 64, 1) if smoke else (GIB, ROUNDS)
    batches = (
        size // PARTITIONS // (RECORDS_OF_BATCH * (RECORD_BYTES + 24)) // BATCHES_AT_ONCE * BATCHES_AT_ONCE
    )
    settings = LogSettings(segment_bytes=max(size // 16, 1 << 20))
    config = {
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
    }
    with tempfile.TemporaryDirectory() as name:
        folders = [
            data.write_folder(
                Path(name) / f"node-{node}",
                node,
                {partition: content(batches) for partition in range(PARTITIONS)},
                settings=settings,
            )
            for node in range(1, REPLICAS + 1)
        ]
        spark = session("local[2]", app_name="bench", config=config)
        try:
            audit(spark, folders)
            reports = [audit(spark, folders) for _ in range(rounds)]
            return [*_speed(reports), *_found(lambda: audit(spark, folders), folders, batches)]
        finally:
            spark.stop()


def _speed(reports: Sequence[AuditReport]) -> list[Result]:
    read = reports[0].bytes / 1e6
    return [
        at_least("healthy replicas that pass", sum(each.ok for each in reports), "runs", len(reports)),
        at_least("reading and checking", statistics.median(each.mb_per_s for each in reports), "MB/s", BAR),
        at_least("start to end", statistics.median(read / each.elapsed_s for each in reports), "MB/s", BAR),
        Result(name="segment files read", value=read, unit="MB"),
    ]


def _found(look: Callable[[], AuditReport], folders: Sequence[Path], batches: int) -> list[Result]:
    results = []
    for number, defect in enumerate(DEFECTS):
        folder = folders[number % REPLICAS]
        # Inside a batch, and in the last third of the log, whose epoch is not the one that is planted.
        offset = (batches * (70 + 5 * number) // 100) * RECORDS_OF_BATCH + 5
        with restored(folder, offset):
            defect.plant(folder, offset)
            found = defect.is_found(look(), f"node {number % REPLICAS + 1}", offset)
        results.append(at_least(f"{defect.name}, at its exact offset", float(found), "of 1", 1.0))
    results.append(at_least("healthy again", float(look().ok), "of 1", 1.0))
    return results
