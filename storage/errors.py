"""Everything this room raises. One root, `StorageError`; each message names the thing and the remedy."""

from __future__ import annotations

from collections.abc import Sequence


class StorageError(Exception):
    """Root of all errors of `insync.storage`."""


class CorruptBatchError(StorageError):
    """Bytes that should be whole record batches are not.

    `position` is where the bad batch starts in the data given (or in the file `path`), `offset` the base
    offset that it should have, when known.
    """

    def __init__(
        self, position: int, reason: str, *, path: str | None = None, offset: int | None = None
    ) -> None:
        where = f" of {path}" if path else ""
        due = "" if offset is None else f" (offset {offset})"
        super().__init__(f"corrupt record batch at byte {position}{where}{due}: {reason}")
        self.position = position
        self.reason = reason
        self.path = path
        self.offset = offset


class InvalidRecordsError(CorruptBatchError):
    """The records of a batch whose bytes are as they were written are not what its header says."""


class UnsupportedCompressionError(StorageError):
    """A codec that is none of Kafka's: gzip, snappy, lz4 and zstd."""

    def __init__(self, codec: str) -> None:
        super().__init__(f"no codec {codec!r}: use none, gzip, snappy, lz4 or zstd")
        self.codec = codec


class InflatedTooLargeError(StorageError):
    """The records of a compressed batch are larger than the reader allows."""

    def __init__(self, position: int, codec: str, max_bytes: int) -> None:
        super().__init__(
            f"the batch at byte {position}, compressed with {codec}, holds more than {max_bytes} bytes of records, "
            f"the limit of this reader (max_inflated_bytes)"
        )
        self.position = position
        self.codec = codec
        self.max_bytes = max_bytes


class BatchTooLargeError(StorageError):
    """Records that do not fit one batch (2 GiB)."""


class CorruptLogError(StorageError):
    """A log is damaged where data cannot simply have been cut off by a crash. Nothing was changed on disk."""

    def __init__(self, path: str, position: int, offset: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {position} (offset {offset}): {reason}; nothing was changed. "
            f"Move the partition's folder aside and restart: the replica is copied again from its leader"
        )
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason


class OffsetOutOfRangeError(StorageError):
    """A read below the log start or above the log end."""

    def __init__(self, name: str, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"offset {offset} of {name} is out of range: it holds {log_start_offset} to {log_end_offset} exclusive"
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class LookUpStoppedError(StorageError):
    """A look-up was given up because the one who asked does not wait any more."""


class AppendError(StorageError):
    """Batches that do not run on from the end of the log. Nothing was written."""


class StorageFullError(StorageError):
    """No room on the device (or a quota or file size limit). Nothing was written; the log goes on."""


class MisplacedError(StorageError):
    """Something else stands where a file or a folder must be: a FIFO, say, or a link to nowhere. It says nothing of
    the device.
    """


class TooManyOpenFilesError(StorageError):
    """The process, or the machine, has no descriptor left. It says nothing of the device, and may pass."""


class StorageBrokenError(StorageError):
    """The device failed; what is on disk past the last flush is unknown. The log takes no writes until reopened."""


class LogClosedError(StorageError):
    """A log was used after `close`."""


class LogNotFoundError(StorageError):
    """A partition has no folder here, and the caller did not ask to create one."""


class InvalidTopicError(StorageError):
    """A topic name that Kafka would not accept (KIP-29: 1 to 249 of `[a-zA-Z0-9._-]`, not `.` or `..`)."""


class LogDirectoryError(StorageError):
    """A data folder that cannot be used as it is."""


class LogDirectoryLockedError(LogDirectoryError):
    """Another process uses the data folder."""

    def __init__(self, path: str, pid: int | None) -> None:
        owner = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{path} is in use by {owner}: stop it first, or use another data folder")
        self.path = path
        self.pid = pid


class WrongClusterError(LogDirectoryError):
    """The data folder belongs to another cluster."""

    def __init__(self, path: str, found: str, expected: str) -> None:
        super().__init__(
            f"{path} holds data of cluster {found}, not of {expected}: use the right data folder or metadata store"
        )
        self.found = found
        self.expected = expected


class WrongNodeError(LogDirectoryError):
    """The data folder belongs to another node."""

    def __init__(self, path: str, found: int, expected: int) -> None:
        super().__init__(
            f"{path} holds data of node {found}, not of node {expected}: give each node its own data folder"
        )
        self.found = found
        self.expected = expected


class DuplicateLogError(LogDirectoryError):
    """A partition has a folder in two log directories of one node."""

    def __init__(self, partition: str, one: str, other: str) -> None:
        super().__init__(
            f"{partition} has a folder both in {one} and in {other}: move one of them out of "
            f"the log directories (the shorter one, if in doubt), then start the node again"
        )
        self.partition = partition


class WrongPartitionError(LogDirectoryError):
    """A folder that bears the name of one partition and holds another's data."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(
            f"{path} holds the data of {found}, as its partition.metadata says: give each folder its own name "
            f"again, or move it aside and restart: the replica is copied again from its leader"
        )
        self.path = path
        self.found = found


class CorruptMetadataError(LogDirectoryError):
    """A damaged `partition.metadata`. The records beside it may be sound."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(
            f"{path} ({size} bytes) is damaged: it does not name a topic id, or its checksum does not match, so "
            f"the owner of the records beside it is unknown. The replica is copied again once another one leads. "
            f"If there is no other, and the folder's name is right, delete this file alone and restart the node"
        )
        self.path = path


class WrongTopicIdError(StorageError):
    """The partition's folder was written by another topic of the same name."""

    def __init__(self, path: str, found: str, expected: str) -> None:
        super().__init__(f"{path} belongs to topic id {found}, not to {expected}")
        self.found = found
        self.expected = expected


class ForeignFolderError(StorageError):
    """A data folder of Kafka's cannot be copied. `problems`: all that stands against it, each with its remedy."""

    def __init__(self, path: object, problems: Sequence[str]) -> None:
        super().__init__(f"{path} cannot be adopted, and was left as it is: {'; '.join(problems)}")
        self.path = str(path)
        self.problems = tuple(problems)
