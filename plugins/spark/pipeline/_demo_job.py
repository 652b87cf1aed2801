"""The process behind the demo's Spark step: told by its argument what to count, it answers in lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import JavaError, SparkMissingError, check_java, check_pyspark, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TABLE = "counts"
_PAUSE_S = 0.1
_PATIENCE_S = 120.0
_ATTEMPTS = 4
_WORKER_WAS_LATE = "failed to connect back"
_OPTIONS = {
    "tls_certificate": "tlsCertificate",
    "tls_key": "tlsKey",
    "tls_authorities": "tlsAuthorities",
    "secret_file": "secretFile",
}
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""The job is over before a better compiler would pay."""

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    tell = take_stdout()
    try:
        check_pyspark()
        check_java()
    except (SparkMissingError, JavaError) as error:
        tell({"state": "unavailable", "why": str(error)})
        return
    try:
        _run(json.loads(sys.argv[1]), tell)
    except Exception as error:  # noqa: BLE001 - whatever it is, the demo tells it in one line
        lines = str(error).strip().splitlines() or [type(error).__name__]
        tell({"state": "failed", "why": lines[0]})


def take_stdout() -> Tell:
    """Output of the JVM and the workers goes to standard error; lines of ours do not."""
    ours = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(told: dict[str, Any]) -> None:
        ours.write(json.dumps(told) + "\n")
        ours.flush()

    return tell


def _run(about: dict[str, Any], tell: Tell) -> None:
    folder = about["folder"]
    # The job is ended by a signal: whatever it leaves must lie where the demo removes it.
    os.mkdir(f"{folder}/tmp")
    spark = session(
        "local[2,4]",
        app_name="insync demo",
        config={
            "spark.driver.extraJavaOptions": f"{_JAVA} -Djava.io.tmpdir={folder}/tmp",
            "spark.driver.memory": "512m",
            "spark.local.dir": f"{folder}/local",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    query, checkpoint = _first_batch(spark, about)
    tell({"state": "ready"})
    line = sys.stdin.readline()
    if line:
        counts = _counts(spark, query, json.loads(line)["records"])
        tell({"state": "counted", "counts": counts, "batches": _batches(checkpoint)})


def _batches(checkpoint: Path) -> int:
    """How many batches a query has begun: each plans its offsets first. Its reports of progress come later than the
    counts of the batch."""
    return 1 + max(int(file.name) for file in (checkpoint / "offsets").iterdir() if file.name.isdecimal())


def _first_batch(spark: SparkSession, about: dict[str, Any]) -> tuple[StreamingQuery, Path]:
    """The query, once it has committed a batch, and its checkpoint.

    Spark gives a Python worker 10 s to start and no second chance, which a busy machine may need.
    """
    for attempt in range(_ATTEMPTS):
        try:
            checkpoint = Path(about["folder"]) / f"checkpoint-{attempt}"
            query = _start(spark, about, checkpoint)
            while query.lastProgress is None:
                _must_live(query)
                time.sleep(_PAUSE_S)
            return query, checkpoint
        except Exception as error:
            if _WORKER_WAS_LATE not in str(error) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def _start(spark: SparkSession, about: dict[str, Any], checkpoint: Path) -> StreamingQuery:
    reader = spark.readStream.format("insync").option("kafka.bootstrap.servers", about["servers"])
    for name, value in about["access"].items():
        reader = reader.option(_OPTIONS[name], value)
    records = reader.option("subscribe", about["topic"]).option("startingOffsets", "earliest").load()
    return (
        records.groupBy("key")
        .count()
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName(_TABLE)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="500 milliseconds")
        .start()
    )


def _counts(spark: SparkSession, query: StreamingQuery, records: int) -> dict[str, int]:
    """By key in hexadecimal, as soon as there are so many in all, or when patience ends."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        _must_live(query)
        rows = spark.table(_TABLE).collect()
        counts = {bytes(row["key"] or b"").hex(): row["count"] for row in rows}
        if sum(counts.values()) >= records or time.monotonic() > deadline:
            return counts
        time.sleep(_PAUSE_S)


def _must_live(query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        raise error
    if not query.isActive:
        raise RuntimeError("the streaming query ended by itself")


if __name__ == "__main__":
    main()
