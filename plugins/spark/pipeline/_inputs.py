"""Where jobs read records from: a topic of running nodes, or the segment files of a data folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from ....replication.client import BlockingAdmin, BlockingConsumer
from ._folders import ReplicaFiles, list_replicas
from ._plan import RANGE_BYTES, log_start
from ._segments import SOURCE_COLUMNS, ReadTask, frame, read_tasks
from .errors import DataFolderError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Span = tuple[int, int]
"""Offsets [start, end) of a partition."""

SEQUENCE_COLUMNS = ("producer_id", "producer_epoch", "sequence")
_FORMAT = "insync"


@attrs.frozen
class TopicInput:
    """A topic, read through the nodes that serve it, up to the high watermarks of the moment.

    servers: URLs of some nodes, comma separated. The secret and the certificates come from the environment
    (INSYNC_SECRET_FILE and so on), as for all commands.
    """

    servers: str
    topic: str

    @property
    def name(self) -> str:
        return f"topic {self.topic}"

    def spans(self) -> dict[int, Span]:
        """The committed offsets that each partition holds. Raises ClientError."""
        with BlockingAdmin(self.servers) as admin:
            count = len(admin.describe_topics([self.topic])[0].partitions)
        wanted = [(self.topic, partition) for partition in range(count)]
        with BlockingConsumer(self.servers) as consumer:
            first, last = consumer.beginning_offsets(wanted), consumer.end_offsets(wanted)
        return {at.partition: (first[at], last[at]) for at in last}

    def frame(
        self, spark: SparkSession, spans: Mapping[int, Span], columns: Sequence[str] = SOURCE_COLUMNS
    ) -> DataFrame:
        """The records of these offsets."""
        unknown = sorted(set(columns) & set(SEQUENCE_COLUMNS))
        if unknown:
            raise PipelineError(
                f"{', '.join(unknown)} cannot be read through a topic's nodes: name a data folder instead"
            )
        starts = {str(partition): start for partition, (start, _) in spans.items()}
        ends = {str(partition): end for partition, (_, end) in spans.items()}
        reader = spark.read.format(_FORMAT).option("kafka.bootstrap.servers", self.servers)
        return (
            reader.option("assign", json.dumps({self.topic: sorted(spans)}))
            .option("startingOffsets", json.dumps({self.topic: starts}))
            .option("endingOffsets", json.dumps({self.topic: ends}))
            .option("includeHeaders", str("headers" in columns).lower())
            .load()
            .select(*columns)
        )


@attrs.frozen
class FolderInput:
    """A topic's replicas in one node's data folder, up to the high watermarks that its checkpoint has.

    No node need run. It can be read only where every executor sees the folder under the same path.
    """

    folder: str | os.PathLike[str]
    topic: str

    @property
    def name(self) -> str:
        return f"topic {self.topic} in {self.folder}"

    def spans(self) -> dict[int, Span]:
        """The committed offsets that each partition holds, as far as the folder's checkpoint knows.

        Raises DataFolderError.
        """
        found = {}
        for each in self._replicas():
            if each.high_watermark is None and each.size_bytes:
                raise DataFolderError(
                    f"{self.folder} has no high watermark of {each.topic}-{each.partition}, so what of it is "
                    "committed is not known: take a folder whose node was stopped, or start it once"
                )
            start = log_start(each)
            found[each.partition] = (start, max(each.high_watermark or 0, start))
        return found

    def frame(
        self, spark: SparkSession, spans: Mapping[int, Span], columns: Sequence[str] = SOURCE_COLUMNS
    ) -> DataFrame:
        """The records of these offsets; of all columns, whose sequence they have too."""
        return frame(spark, self.tasks(spans), columns)

    def tasks(self, spans: Mapping[int, Span], *, range_bytes: int = RANGE_BYTES) -> list[ReadTask]:
        return [
            task
            for each in self._replicas()
            if each.partition in spans
            for task in read_tasks(each, *spans[each.partition], range_bytes=range_bytes)
        ]

    def _replicas(self) -> list[ReplicaFiles]:
        replicas, broken = list_replicas([self.folder], [self.topic])
        if broken:
            path, reason = broken[0]
            raise DataFolderError(
                f"{path} cannot be used: {reason}; insync log verify says what else is wrong"
            )
        return replicas


Input = TopicInput | FolderInput
