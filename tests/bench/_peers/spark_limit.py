"""A source with nothing behind it: how quickly Spark takes Arrow batches from Python at all.

It gives the same batch of our columns again and again, and as a stream so many rows more whenever it is asked. No
source that is written in Python can be quicker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "prepared"
_ROWS = 10_000
_BYTES = 4 << 20
"""Of a batch at most, as in our source."""


def register(spark: SparkSession) -> None:
    """Make the format known to the session. Defined here, so that it goes to Python workers by value."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from insync.plugins.spark._columns import ARROW_TYPES, source_schema
    from insync.plugins.spark._workers import Sent, settle

    most_rows, most_bytes = _ROWS, _BYTES

    class Rows(Sent):
        def __init__(self, options: dict[str, str]) -> None:
            self._rows, self._size, self._parts = (int(options[each]) for each in ("rows", "size", "parts"))

        def parts(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(self._parts)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            left = self._rows // self._parts + (partition.value < self._rows % self._parts)
            many = max(1, min(most_rows, most_bytes // self._size))
            columns: dict[str, Any] = {
                "key": [b"key-%d" % (n % 1000) for n in range(many)],
                "value": [bytes(self._size)] * many,
                "topic": ["prepared"] * many,
                "partition": [partition.value] * many,
                "offset": range(many),
                "timestamp": range(many),
                "timestampType": [0] * many,
            }
            kinds = {name: ARROW_TYPES[name] for name in columns}
            batch = pa.record_batch({name: pa.array(columns[name], kind) for name, kind in kinds.items()})
            while left > 0:
                yield batch.slice(0, left)
                left -= many
            settle()

    class Reader(Rows, DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return self.parts()

    class Stream(Rows, DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"rows": 0}

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
            return {"rows": start["rows"] + self._rows}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return self.parts()

    class Prepared(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType:
            return source_schema(None, False)

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader(dict(self.options))

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Stream(dict(self.options))

    spark.dataSource.register(Prepared)


def read(spark: SparkSession, rows: int, size: int, parts: int) -> DataFrame:
    """So many rows with values of `size` bytes."""
    return spark.read.format(FORMAT).options(**_options(rows, size, parts)).load()


def stream(spark: SparkSession, rows: int, size: int, parts: int) -> DataFrame:
    """So many in each trigger."""
    return spark.readStream.format(FORMAT).options(**_options(rows, size, parts)).load()


def _options(rows: int, size: int, parts: int) -> dict[str, str]:
    return {"rows": str(rows), "size": str(size), "parts": str(parts)}
