"""The Spark plugin's own errors; the cluster's refusals come as the client's errors."""

from __future__ import annotations

from ...replication import ReplicationError


class SparkError(ReplicationError):
    """Root of the plugin's errors."""


class SparkMissingError(SparkError):
    """PySpark, or a library that it needs, is not installed."""


class JavaError(SparkError):
    """There is no Java that Spark can run on."""


class OptionError(SparkError, ValueError):
    """A reader or writer was given an option that does not exist, or a value that cannot be."""


class SchemaError(SparkError, ValueError):
    """Columns that a topic cannot give, or that cannot be written to one."""


class OffsetError(SparkError):
    """Offsets that were asked for are not in the log, and were never there."""


class DataLossError(SparkError):
    """Offsets that were asked for have been deleted; see `failOnDataLoss`."""


class TopicRecreatedError(DataLossError):
    """A topic that was being read was deleted, and another one has its name; see `failOnDataLoss`."""


class NotRepeatableError(SparkError):
    """`exactlyOnce` was asked for rows that may differ, or come in another order, when a task is run again."""


class ConnectError(SparkError):
    """Spark Connect shows a session no plan of the driver's JVM, and something needs one."""


class BatchHistoryError(SparkError):
    """A batch of a stream with `transactional` may have been written before, or later ones were."""


class StalledError(SparkError):
    """Nothing could be read or written for as long as the options allow."""
