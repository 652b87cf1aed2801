"""The format `insync`, as Spark asks for it."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from ._session import FORMAT


class InsyncDataSource(DataSource):
    """`spark.read.format("insync")`: a topic as a table with the columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        return FORMAT
