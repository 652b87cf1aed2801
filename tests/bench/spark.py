"""Spark on local[2]: our source and sink beside Spark's own Kafka connector with a real Kafka, and beside Parquet.

One session reads and writes the same rows in all of them, in turn: one node of ours and one broker of Kafka's, each
with replication factor 1, acks=all, no compression, two partitions. Spark's own Parquet reader runs in the JVM and
skips the columns that nobody asks for: it is the bar that a file format sets, not one that a log has to reach. How
quickly Spark takes rows from Python at all is shown by a source that gives the same batch again and again. A
trigger is compared with one of `rate`, Spark's source of made-up rows, of the connector, and of that source with
nothing behind it, which no source that is written in Python can beat. Needs Java, Maven and Maven Central. Some 9
minutes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from insync.plugins.spark import session

from ..processes import cluster
from ._peers import spark_limit
from ._spark_logs import Log, connector_jars, kafka
from .report import Result, against, interleaved, within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
ROUNDS = 5
SIZES = (("100 B", 100), ("1 KiB", 1024))
MEGABYTES = 300
"""Of values, for each size."""
TRIGGERS = 20
"""In each round."""
TRIGGER_ROWS = 200
TRIGGER_BAR = 1.0
SOURCE_BAR = 2.0
SINK_BAR = 1.5
"""Times the connector's rows a second."""


class Bench:
    """The same rows in both logs and in Parquet; copies of them, written and removed."""

    def __init__(self, spark: SparkSession, ours: Log, theirs: Log, folder: Path) -> None:
        self._spark = spark
        self.ours = ours
        self.theirs = theirs
        self._folder = folder
        self._copies = 0

    def fill(self, name: str, size: int, rows: int) -> None:
        """Parquet first, and both topics from that."""
        # No two values are alike, so that Parquet's dictionaries cannot help.
        text = f"substring(repeat(sha2(CAST(id AS STRING), 256), {size // 64 + 1}), 1, {size})"
        frame = self._spark.range(0, rows, 1, PARTITIONS).selectExpr(
            "CAST(CONCAT('key-', id % 1000) AS BINARY) AS key", f"CAST({text} AS BINARY) AS value"
        )
        frame.write.option("compression", "uncompressed").parquet(self._path(name))
        for log in (self.ours, self.theirs):
            log.create(name, PARTITIONS)
            log.save(self.parquet(name), name)
            found = log.read(name).groupBy("partition").count().collect()
            if sum(row["count"] for row in found) != rows or len(found) != PARTITIONS:
                raise RuntimeError(f"{log.format} holds {found} of {rows} rows")

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    def prepared(self, rows: int, size: int) -> DataFrame:
        return spark_limit.read(self._spark, rows, size, PARTITIONS)

    def parquet(self, name: str) -> DataFrame:
        return self._spark.read.parquet(self._path(name))

    def write(self, log: Log, name: str) -> float:
        """Seconds for all rows of the Parquet files into a new topic, which then goes."""
        self._copies += 1
        copy = f"{name}-{self._copies}"
        log.create(copy, PARTITIONS)
        took = timed(lambda: log.save(self.parquet(name), copy))
        log.delete(copy)
        return took

    def trigger(self, rows: DataFrame, count: int) -> float:
        """The median of seconds that a trigger takes, with some rows each time, into `noop`."""
        place = tempfile.mkdtemp(dir=self._folder)
        writer = rows.writeStream.format("noop").option("checkpointLocation", place)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            while len(done := [p for p in query.recentProgress if p.numInputRows]) < count:
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                query.awaitTermination(1)
        finally:
            query.stop()
        return statistics.median(p.durationMs["triggerExecution"] for p in done[2:]) / 1000

    def made(self, rows: int) -> DataFrame:
        return spark_limit.stream(self._spark, rows, SIZES[0][1], PARTITIONS)

    def rate(self) -> DataFrame:
        options = {"rowsPerBatch": str(TRIGGER_ROWS), "numPartitions": str(PARTITIONS)}
        return self._spark.readStream.format("rate-micro-batch").options(**options).load()


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def count(frame: DataFrame) -> float:
    return timed(frame.count)


def noop(frame: DataFrame) -> float:
    return timed(lambda: frame.write.format("noop").mode("overwrite").save())


def run(*, smoke: bool) -> Sequence[Result]:
    megabytes, rounds, triggers = (4, 1, 6) if smoke else (MEGABYTES, ROUNDS, TRIGGERS)
    config = {
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.jars": connector_jars(),
    }
    spark = session("local[2]", app_name="bench", config=config)
    results: list[Result] = []
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with cluster(folder, 1) as nodes, kafka(spark, folder / "broker") as theirs:
                spark_limit.register(spark)
                bench = Bench(spark, Log(spark, "insync", nodes[0].endpoint), theirs, folder)
                for label, size in SIZES:
                    results += _sizes(bench, label, size, megabytes * 1_000_000 // size, rounds)
                results += _triggers(bench, triggers, rounds)
    finally:
        spark.stop()
    return results


def _sizes(bench: Bench, label: str, size: int, rows: int, rounds: int) -> list[Result]:
    name = label.replace(" ", "")
    bench.fill(name, size, rows)
    found = []
    for what, measure in (("count", count), ("noop", noop)):
        ours, connector, parquet, prepared = _medians(
            rounds,
            lambda measure=measure: measure(bench.ours.read(name)),
            lambda measure=measure: measure(bench.theirs.read(name)),
            lambda measure=measure: measure(bench.parquet(name)),
            lambda measure=measure: measure(bench.prepared(rows, size)),
        )
        title = f"source, {label}, {what}, beside"
        found.append(against(f"{title} the connector", rows / ours, "rows/s", rows / connector, SOURCE_BAR))
        found.append(against(f"{title} Parquet", rows / ours, "rows/s", rows / parquet))
        found.append(against(f"{title} batches prepared in Python", rows / ours, "rows/s", rows / prepared))
    ours, connector = _medians(
        rounds, lambda: bench.write(bench.ours, name), lambda: bench.write(bench.theirs, name)
    )
    title = f"sink, {label}, beside the connector"
    return [*found, against(title, rows / ours, "rows/s", rows / connector, SINK_BAR)]


def _medians(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """Once before it counts: Java compiles what runs often."""
    interleaved(1, *measures)
    return interleaved(rounds, *measures)


def _triggers(bench: Bench, count: int, rounds: int) -> list[Result]:
    """In turn, each once before it counts: what was measured first would pay for what Java has not compiled yet."""
    name = SIZES[0][0].replace(" ", "")
    streams: tuple[Callable[[], DataFrame], ...] = (
        lambda: bench.ours.stream(name, TRIGGER_ROWS),
        lambda: bench.theirs.stream(name, TRIGGER_ROWS),
        bench.rate,
        lambda: bench.made(TRIGGER_ROWS),
    )
    ours, connector, rate, made = (
        1000 * seconds
        for seconds in _medians(
            rounds, *(lambda stream=stream: bench.trigger(stream(), count) for stream in streams)
        )
    )
    title = f"a trigger of {TRIGGER_ROWS} rows, beside"
    return [
        within(f"{title} rate", ours, "ms", rate),
        within(f"{title} the connector", ours, "ms", connector, TRIGGER_BAR),
        within(f"{title} a Python source with nothing behind it", ours, "ms", made),
        within("a trigger of such a source, beside the connector", made, "ms", connector),
    ]
