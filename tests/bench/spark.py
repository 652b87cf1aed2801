"""Spark on local[2]: the source and the sink with one node, beside Parquet; what a trigger costs beside `rate`.

Replication factor 1, acks=all, no compression, two partitions. Spark's own Parquet reader runs in the JVM and skips
the columns that nobody asks for: it is the bar that a file format sets, not one that a log has to reach.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insync.plugins.spark import session
from insync.replication import BlockingAdmin

from ..processes import cluster
from .report import Result, against, interleaved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
ROUNDS = 3
SIZES = (("100 B", 100), ("1 KiB", 1024))
SOLE = {"min_insync_replicas": 1}


class Bench:
    """A session, a node, and the same rows in a topic and in Parquet."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._folder = folder

    def fill(self, name: str, size: int, rows: int) -> None:
        """The same rows as Parquet files and in a topic, read from those."""
        # No two values are alike, so that Parquet's dictionaries cannot help.
        text = f"substring(repeat(sha2(CAST(id AS STRING), 256), {size // 64 + 1}), 1, {size})"
        frame = self._spark.range(0, rows, 1, PARTITIONS).selectExpr(
            "CAST(CONCAT('key-', id % 1000) AS BINARY) AS key", f"CAST({text} AS BINARY) AS value"
        )
        frame.write.option("compression", "uncompressed").parquet(self._path(name))
        with BlockingAdmin(self._servers) as admin:
            admin.create_topic(name, PARTITIONS, 1, SOLE)
        self._save(self._spark.read.parquet(self._path(name)), name)

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    def _save(self, frame: DataFrame, topic: str) -> None:
        writer = frame.write.format("insync").mode("append").option("servers", self._servers)
        writer.option("topic", topic).save()

    def log(self, name: str) -> DataFrame:
        return self._spark.read.format("insync").options(servers=self._servers, subscribe=name).load()

    def parquet(self, name: str) -> DataFrame:
        return self._spark.read.parquet(self._path(name))

    def write(self, name: str, copy: str) -> float:
        """Seconds for all rows of the Parquet files into a new topic."""
        with BlockingAdmin(self._servers) as admin:
            admin.create_topic(copy, PARTITIONS, 1, SOLE)
        return timed(lambda: self._save(self.parquet(name), copy))

    def triggers(self, source: str, count: int) -> float:
        """The median of seconds that a trigger takes, with some rows each time, into `noop`."""
        reader = self._spark.readStream.format(source)
        if source == "insync":
            reader = reader.options(
                servers=self._servers, subscribe=SIZES[0][0].replace(" ", ""), startingOffsets="earliest"
            ).option("maxOffsetsPerTrigger", "200")
        else:
            reader = reader.option("rowsPerBatch", "200").option("numPartitions", str(PARTITIONS))
        place = tempfile.mkdtemp(dir=self._folder)
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", place)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            while len(done := [p for p in query.recentProgress if p.numInputRows]) < count:
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                query.awaitTermination(1)
        finally:
            query.stop()
        return statistics.median(p.durationMs["triggerExecution"] for p in done[2:]) / 1000


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def run(*, smoke: bool) -> Sequence[Result]:
    megabytes, rounds, triggers = (4, 1, 6) if smoke else (400, ROUNDS, 40)
    spark = session("local[2]", app_name="bench", config={"spark.log.level": "OFF"})
    results: list[Result] = []
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with cluster(folder, 1) as nodes:
                bench = Bench(spark, nodes[0].endpoint, folder)
                for label, size in SIZES:
                    results += _sizes(bench, label, megabytes * 1_000_000 // size, size, rounds)
                ours, rate = bench.triggers("insync", triggers), bench.triggers("rate-micro-batch", triggers)
                results.append(against("a trigger of 200 rows", ours * 1000, "ms", rate * 1000))
    finally:
        spark.stop()
    return results


def _sizes(bench: Bench, label: str, rows: int, size: int, rounds: int) -> list[Result]:
    name = label.replace(" ", "")
    bench.fill(name, size, rows)
    copies = iter(range(1000))
    measures = {
        "count": (lambda: timed(bench.log(name).count), lambda: timed(bench.parquet(name).count)),
        "noop": (
            lambda: timed(lambda: noop(bench.log(name))),
            lambda: timed(lambda: noop(bench.parquet(name))),
        ),
    }
    found = []
    for what, pair in measures.items():
        ours, parquet = interleaved(rounds, *pair)
        found.append(against(f"source, {label}, {what}", rows / ours, "rows/s", rows / parquet))
    (written,) = interleaved(rounds, lambda: bench.write(name, f"{name}-{next(copies)}"))
    found.append(against(f"sink, {label}", rows / written, "rows/s", rows / ours))
    return found
