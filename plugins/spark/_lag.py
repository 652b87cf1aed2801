"""Records that a query has not read yet, from the progress that Spark reports of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.streaming.listener import StreamingQueryListener

from ._offsets import Partition, from_json

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )
    from pyspark.sql.streaming.query import StreamingQuery


@attrs.frozen
class Lag:
    """Of one source of a query, after its last batch.

    behind: records between the end of the batch and the end of the log as the source last saw it, by topic and
    partition; more when transactions were aborted, or compaction left gaps.
    """

    behind: Mapping[Partition, int]

    @property
    def total(self) -> int:
        return sum(self.behind.values())

    @property
    def most(self) -> int:
        return max(self.behind.values(), default=0)


def lag(query: StreamingQuery | StreamingQueryProgress) -> list[Lag]:
    """How far each source that reads insync is behind, in the order of the query's sources.

    Empty before the first batch, and for a query without such a source.
    """
    progress: Any = getattr(query, "lastProgress", query)
    if progress is None:
        return []
    sources = json.loads(progress.json)["sources"]
    return [Lag(_behind(each)) for each in sources if _is_ours(each)]


def _is_ours(source: Mapping[str, Any]) -> bool:
    """Spark's own name of the source is that of every source in Python; offsets with ids of topics are ours."""
    end = source.get("endOffset")
    return (
        "python" in source.get("description", "")
        and isinstance(end, dict)
        and bool(end)
        and all(isinstance(each, dict) and "id" in each for each in end.values())
    )


def _behind(source: Mapping[str, Any]) -> dict[Partition, int]:
    end, ids = from_json(source["endOffset"])
    latest, seen = from_json(source.get("latestOffset") or {})
    # A topic that was made again since is another one, and its offsets are no later ones of this.
    return {
        at: max(0, latest.get(at, offset) - offset)
        for at, offset in sorted(end.items())
        if seen.get(at[0], ids[at[0]]) == ids[at[0]]
    }


class LagMetrics(StreamingQueryListener):
    """A gauge of Prometheus, `insync_spark_records_behind`, for each partition that a query reads.

    `spark.streams.addListener(LagMetrics())` begins it, `removeListener` ends it. registry: of prometheus_client,
    by default the one of the process. The labels are the query's name (without one its id), topic and partition.

    Raises:
      ImportError: prometheus_client is not installed: `pip install 'insync[metrics]'`.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY

        self._behind: dict[str, tuple[str, list[Lag]]] = {}
        """By run of a query: its name, and its sources."""
        (registry or REGISTRY).register(self)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to do: there is no batch yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        self._behind[str(progress.runId)] = progress.name or str(progress.id), lag(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to do: the last progress holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._behind.pop(str(event.runId), None)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "insync_spark_records_behind",
            "Records that a query of Spark has not read yet.",
            labels=("query", "topic", "partition"),
        )
        for name, sources in list(self._behind.values()):
            for each in sources:
                for (topic, number), behind in each.behind.items():
                    family.add_metric((name, topic, str(number)), behind)
        yield family
