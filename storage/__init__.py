"""One partition's log, on disk or in memory, and the data folder that holds a node's logs. Knows no network."""

from .batch import BatchInfo, Buffer
from .directory import LogDirectory, check_topic, read_identity
from .disk_log import DiskLog
from .errors import (
    AppendError,
    BatchTooLargeError,
    CorruptBatchError,
    CorruptLogError,
    DuplicateLogError,
    InflatedTooLargeError,
    InvalidTopicError,
    LogClosedError,
    LogDirectoryError,
    LogDirectoryLockedError,
    LogNotFoundError,
    OffsetOutOfRangeError,
    StorageBrokenError,
    StorageError,
    StorageFullError,
    UnsupportedCompressionError,
    WrongClusterError,
    WrongNodeError,
    WrongTopicIdError,
)
from .file_range import FileRange
from .log import (
    Chunk,
    EpochEntry,
    Log,
    ProducedBatch,
    ProducerSnapshot,
    ReadResult,
    RecoveryReport,
    TimestampedOffset,
)
from .memory_log import MemoryLog
from .settings import LogSettings
from .verification import Defect, Verification, verify

__all__ = [
    "LogDirectory",
    "LogSettings",
    "check_topic",
    "read_identity",
    "Defect",
    "Verification",
    "verify",
    "Log",
    "DiskLog",
    "MemoryLog",
    "BatchInfo",
    "Buffer",
    "Chunk",
    "EpochEntry",
    "FileRange",
    "ProducedBatch",
    "ProducerSnapshot",
    "ReadResult",
    "RecoveryReport",
    "TimestampedOffset",
    "AppendError",
    "BatchTooLargeError",
    "CorruptBatchError",
    "CorruptLogError",
    "DuplicateLogError",
    "InflatedTooLargeError",
    "InvalidTopicError",
    "LogClosedError",
    "LogDirectoryError",
    "LogDirectoryLockedError",
    "LogNotFoundError",
    "OffsetOutOfRangeError",
    "StorageBrokenError",
    "StorageError",
    "StorageFullError",
    "UnsupportedCompressionError",
    "WrongClusterError",
    "WrongNodeError",
    "WrongTopicIdError",
]
