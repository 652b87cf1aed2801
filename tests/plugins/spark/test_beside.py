"""The source and the sink beside other parts of PySpark: Connect, and state that Python keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from insync.plugins.spark import ConnectError, check_repeatable, exactly_once
from insync.replication import BlockingAdmin, BlockingProducer
from tests.requires import missing

try:
    import pandas as pd
    from pyspark.errors import PySparkAttributeError
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
except ImportError as error:
    missing(f"{error.name} is not installed")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Counting(StatefulProcessor):
    """How many rows each key has had."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Any:
        before = self._seen.get()[0] if self._seen.exists() else 0
        count = before + sum(len(frame) for frame in rows)
        self._seen.update((count,))
        yield pd.DataFrame({"partition": key, "count": [count]})

    def close(self) -> None:
        pass


def test_state_in_pandas_over_a_topic(
    spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str, tmp_path: Path
) -> None:
    """`transformWithStateInPandas` needs protobuf, which PySpark does not require."""
    admin.create_topic(topic, 2, 1, {"min_insync_replicas": 1})
    store = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(store, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        for start, stop in ((0, 10), (10, 30)):
            with BlockingProducer(servers) as producer:
                for n in range(start, stop):
                    producer.send(topic, b"%d" % n, partition=n % 2)
            rows = spark.readStream.format("insync").options(servers=servers, subscribe=topic)
            counts = (
                rows.option("startingOffsets", "earliest")
                .load()
                .select("partition")
                .groupBy("partition")
                .transformWithStateInPandas(Counting(), "partition INT, count LONG", "Append", "None")
            )
            query = (
                counts.writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(tmp_path / "counts"))
            )
            assert query.awaitTermination(150)
    finally:
        spark.conf.unset(store)
    found = spark.read.parquet(str(tmp_path / "counts")).collect()
    assert sorted(map(tuple, found)) == [(0, 5), (0, 15), (1, 5), (1, 15)]


class Remote:
    """As much as matters here of a DataFrame of Spark Connect, whose libraries are not needed for this test."""

    isStreaming = False
    write: Any

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.tasks = 0

    @property
    def _jdf(self) -> Any:
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "_jdf"}
        )

    def repartition(self, tasks: int) -> Remote:
        self.tasks = tasks
        self.write = self
        return self

    def format(self, name: str) -> Remote:
        return self

    mode = format


def test_the_plan_of_a_remote_session_is_not_to_be_seen() -> None:
    for check in (check_repeatable, exactly_once):
        with pytest.raises(ConnectError, match="Spark Connect") as caught:
            check(Remote())  # type: ignore[operator]
        for remedy in ("transactional=True", "exactlyOnce='true'", "repeatablePlan='true'"):
            assert remedy in str(caught.value)


def test_a_transaction_of_a_remote_session() -> None:
    class Writer(Remote):
        def options(self, **given: str) -> dict[str, str]:  # type: ignore[override]
            return given

        def __init__(self) -> None:
            pass

    assert exactly_once(Writer(), transactional=True) == {"transactional": "true"}  # type: ignore[arg-type]
