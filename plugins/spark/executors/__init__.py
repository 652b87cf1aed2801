"""Replicated logs that live on the executors of a Spark application, with no broker beside them.

`ExecutorLogs` on the driver; `LogsHandle` is what travels to tasks. How it works stands in
docs/spark-executor-logs.md.
"""

from ._handle import LogsHandle, PartitionWriter
from ._logs import ExecutorLogs
from .errors import (
    ExecutorLogsError,
    FolderError,
    KeeperError,
    NoRoomError,
    SessionError,
    TooFewExecutorsError,
)
from .transport import SparkTransport

__all__ = [
    "ExecutorLogs",
    "LogsHandle",
    "PartitionWriter",
    "SparkTransport",
    "ExecutorLogsError",
    "SessionError",
    "TooFewExecutorsError",
    "NoRoomError",
    "KeeperError",
    "FolderError",
]
