"""How far a query is behind: by hand-made progress, and of a query that Spark runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from insync.plugins.spark import Lag, LagMetrics, lag
from insync.replication import BlockingAdmin, BlockingProducer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1"


def progress(*sources: dict[str, Any], name: str | None = "q") -> Any:
    told = json.dumps({"sources": sources})
    return SimpleNamespace(json=told, name=name, id=uuid4(), runId=uuid4())


def source(end: object, latest: object, description: str = OURS) -> dict[str, Any]:
    return {"description": description, "endOffset": end, "latestOffset": latest}


def test_each_partition_is_counted() -> None:
    end = {"a": {"0": 5, "1": 7, "id": "x"}, "b": {"0": 0, "id": "y"}}
    latest = {"a": {"0": 9, "1": 7, "2": 3, "id": "x"}, "b": {"0": 4, "id": "y"}}
    (found,) = lag(progress(source(end, latest)))
    assert found.behind == {("a", 0): 4, ("a", 1): 0, ("b", 0): 4}
    assert (found.most, found.total) == (4, 8)


@pytest.mark.parametrize(
    "latest", [{"a": {"0": 50, "id": "made again"}}, {"a": {"0": 2, "id": "x"}}, {}, None]
)
def test_offsets_of_another_topic_or_none_are_no_lag(latest: object) -> None:
    (found,) = lag(progress(source({"a": {"0": 5, "id": "x"}}, latest)))
    assert found.total == 0


def test_other_sources_are_left_out_and_the_order_stays() -> None:
    one, two = (
        source({"a": {"0": 1, "id": "x"}}, {"a": {"0": 2, "id": "x"}}),
        source({"a": {"0": 1, "id": "x"}}, {}),
    )
    kafkas = source({"a": {"0": 1}}, {"a": {"0": 9}}, "KafkaV2[Subscribe[a]]")
    others = source({"a": 1}, {"a": 2})
    rate = {"description": "RateStreamV2", "endOffset": 3, "latestOffset": 4}
    found = lag(progress(one, kafkas, others, rate, source({}, {}), two))
    assert found == [Lag({("a", 0): 1}), Lag({("a", 0): 0})]


def test_a_query_without_a_batch_has_no_lag() -> None:
    assert lag(SimpleNamespace(lastProgress=None)) == []  # type: ignore[arg-type]


def test_metrics_begin_with_a_batch_and_end_with_the_query() -> None:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    metrics = LagMetrics(registry)
    named = progress(source({"a": {"0": 1, "id": "x"}}, {"a": {"0": 4, "id": "x"}}))
    bare = progress(source({"a": {"0": 1, "id": "x"}}, {"a": {"0": 2, "id": "x"}}), name=None)

    def behind(query: str) -> float | None:
        labels = {"query": query, "topic": "a", "partition": "0"}
        return registry.get_sample_value("insync_spark_records_behind", labels)

    assert behind("q") is None
    for each in (named, bare):
        metrics.onQueryProgress(SimpleNamespace(progress=each))  # type: ignore[arg-type]
    assert (behind("q"), behind(str(bare.id))) == (3, 1)
    metrics.onQueryTerminated(SimpleNamespace(runId=named.runId))  # type: ignore[arg-type]
    assert (behind("q"), behind(str(bare.id))) == (None, 1)


@pytest.mark.jvm
def test_spark_reports_what_a_batch_leaves(
    spark: SparkSession, servers: str, admin: BlockingAdmin, tmp_path: Path
) -> None:
    from prometheus_client import CollectorRegistry

    admin.create_topic("late", 1, 1, {"min_insync_replicas": 1})
    with BlockingProducer(servers) as producer:
        producer.send_many("late", [b"x"] * 100, partition=0).result(30)
    registry = CollectorRegistry()
    ended = threading.Event()
    told: list[float | None] = []
    labels = {"query": "late", "topic": "late", "partition": "0"}

    class Looking(LagMetrics):
        """Notes what a scrape would see."""

        def onQueryProgress(self, event: Any) -> None:
            super().onQueryProgress(event)
            told.append(registry.get_sample_value("insync_spark_records_behind", labels))

        def onQueryTerminated(self, event: Any) -> None:
            super().onQueryTerminated(event)
            told.append(registry.get_sample_value("insync_spark_records_behind", labels))
            ended.set()

    metrics = Looking(registry)
    spark.streams.addListener(metrics)
    try:
        query = (
            spark.readStream.format("insync")
            .options(servers=servers, subscribe="late", startingOffsets="earliest", maxOffsetsPerTrigger="40")
            .load()
            .writeStream.queryName("late")
            .format("noop")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(150) and ended.wait(60)
    finally:
        spark.streams.removeListener(metrics)
    left = [lag(each)[0].behind for each in query.recentProgress]
    assert left == [{("late", 0): 60}, {("late", 0): 20}, {("late", 0): 0}]
    assert told == [60, 20, 0, None]
