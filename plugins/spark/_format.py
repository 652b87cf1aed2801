"""The format `insync`, as Spark asks for it."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from ...replication import ReplicationError
from ._columns import source_schema
from ._options import Options
from ._session import FORMAT
from ._sink import WRITE_OPTIONS, InsyncStreamWriter, InsyncWriter, write_options
from ._source import (
    BATCH_OPTIONS,
    STREAM_OPTIONS,
    InsyncReader,
    InsyncStreamReader,
    RefusedStreamReader,
    check_options,
)
from ._tracebacks import plainly
from ._workers import settle
from .errors import OptionError


class InsyncDataSource(DataSource):
    """`spark.read.format("insync")`: topics as a table with the columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @plainly
    def schema(self) -> StructType:
        options = Options(self.options, (*BATCH_OPTIONS, *STREAM_OPTIONS))
        columns = options.text("columns")
        names = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
        found = source_schema(names, options.flag("includeHeaders", False))
        check_options(options, found)
        settle()
        return found

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        return InsyncReader(Options(self.options, BATCH_OPTIONS), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return InsyncStreamReader(Options(self.options, STREAM_OPTIONS), schema)
        except ReplicationError as error:
            return RefusedStreamReader(error)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError("a log can only be appended to: use mode append")
        return InsyncWriter(write_options(Options(self.options, WRITE_OPTIONS), schema))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        # With output mode complete all rows of a result are written each time, as by Spark's Kafka sink.
        return InsyncStreamWriter(write_options(Options(self.options, WRITE_OPTIONS), schema))
