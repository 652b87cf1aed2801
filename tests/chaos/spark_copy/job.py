"""The driver of the copy, which is killed and started again under the same checkpoint.

Told what to do by JSON in its argument, then by lines on standard input: `finish` copies what is there and ends the
query, `audit FOLDER...` checks the nodes' files on the same executors. Answers with one line of JSON each.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from insync.plugins.spark import exactly_once, session
from insync.plugins.spark.pipeline import audit
from insync.plugins.spark.pipeline._demo_job import take_stdout

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOOK_EVERY_S = 0.2
_WORKER_WAS_LATE = "failed to connect back"
_SMALL_ROWS = "500"
"""Of an Arrow batch, so that a task has written some rows, and not others, for most of its life."""


def main() -> None:
    tell = take_stdout()
    about = json.loads(sys.argv[1])
    began = time.monotonic()
    spark = session(about["master"], app_name="copy", config=_config(about["folder"]))
    there = time.monotonic()
    query = _start(spark, about)
    tell({"state": "started", "session_s": there - began, "query_s": time.monotonic() - there})
    orders = _orders()
    while not _copied(query, orders):
        query = _start(spark, about)
    query.stop()
    tell({"state": "finished"})
    for order in _next(orders):
        report = audit(spark, order.split()[1:])
        tell({"ok": report.ok, "replicas": report.replicas, "records": report.records, "report": str(report)})
    spark.stop()


def _copied(query: StreamingQuery, orders: list[str]) -> bool:
    """True as soon as there is an order and all is copied; False if the query has to be started again.

    Spark gives a Python worker 10 s to start and no second chance, which a busy machine may need.
    """
    try:
        while not orders:
            if query.awaitTermination(_LOOK_EVERY_S):
                raise SystemExit("the query ended by itself")
        query.processAllAvailable()
    except StreamingQueryException as error:
        if _WORKER_WAS_LATE not in str(error):
            raise
        return False
    return True


def _config(folder: str) -> dict[str, str]:
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={folder}/tmp"
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": java,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": java,
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.execution.arrow.maxRecordsPerBatch": _SMALL_ROWS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _start(spark: Any, about: dict[str, Any]) -> Any:
    rows = (
        spark.readStream.format("insync")
        .options(servers=about["servers"], subscribe=about["source"], startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", about["rows"])
        .load()
        .select("key", "value")
    )
    if about["transactional"]:
        writer = exactly_once(rows.selectExpr("CAST(uuid() AS BINARY) AS key", "value"), transactional=True)
    else:
        writer = exactly_once(rows) if about["exactly_once"] else rows.writeStream.format("insync")
    return (
        writer.options(servers=about["servers"], topic=about["target"], batchBytes="4096")
        .option("checkpointLocation", about["checkpoint"])
        .trigger(processingTime="0 seconds")
        .start()
    )


def _orders() -> list[str]:
    """Filled by a thread, as standard input blocks."""
    orders: list[str] = []
    threading.Thread(target=lambda: orders.append(sys.stdin.readline().strip()), daemon=True).start()
    return orders


def _next(orders: list[str]) -> Any:
    """What follows the order to finish, up to the end of standard input."""
    assert orders == ["finish"], orders
    return (line for line in map(str.strip, sys.stdin) if line)


if __name__ == "__main__":
    main()
