"""Apache Spark reads and writes the logs: `spark.read.format("insync")`, `df.write.format("insync")`, and streams.

Importing this needs neither PySpark nor Java; what does is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._archive import archive_settings, make_archive
from ._java import LEAST_JAVA, check_java
from ._plan import check_repeatable, exactly_once
from ._session import FORMAT, check_pyspark, register, session
from .errors import (
    BatchHistoryError,
    ConnectError,
    DataLossError,
    JavaError,
    NotRepeatableError,
    OffsetError,
    OptionError,
    SchemaError,
    SparkError,
    SparkMissingError,
    StalledError,
    TopicRecreatedError,
)

if TYPE_CHECKING:
    from ._format import InsyncDataSource
    from ._lag import Lag, LagMetrics, lag
    from .executors import ExecutorLogs, LogsHandle

__all__ = [
    "session",
    "ExecutorLogs",
    "LogsHandle",
    "register",
    "exactly_once",
    "check_repeatable",
    "lag",
    "Lag",
    "LagMetrics",
    "InsyncDataSource",
    "FORMAT",
    "LEAST_JAVA",
    "check_java",
    "check_pyspark",
    "make_archive",
    "archive_settings",
    "SparkError",
    "SparkMissingError",
    "JavaError",
    "NotRepeatableError",
    "BatchHistoryError",
    "ConnectError",
    "OptionError",
    "SchemaError",
    "OffsetError",
    "DataLossError",
    "StalledError",
    "TopicRecreatedError",
]


def __getattr__(name: str) -> object:
    if name == "InsyncDataSource":
        check_pyspark()
        from ._format import InsyncDataSource

        return InsyncDataSource
    if name in ("lag", "Lag", "LagMetrics"):
        check_pyspark()
        from . import _lag

        return getattr(_lag, name)
    if name in ("ExecutorLogs", "LogsHandle"):
        from . import executors

        return getattr(executors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
