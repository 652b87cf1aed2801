"""The errors of ExecutorLogs; the nodes' refusals come as the client's errors."""

from __future__ import annotations

from ..errors import SparkError


class ExecutorLogsError(SparkError):
    """Logs on executors cannot be had, or have failed."""


class SessionError(ExecutorLogsError, ValueError):
    """The session is one of Spark Connect, or has been stopped."""


class TooFewExecutorsError(ExecutorLogsError):
    """There are not as many executors as replicas are wanted."""


class NoRoomError(ExecutorLogsError):
    """A node would leave an executor without a core for tasks."""


class KeeperError(ExecutorLogsError):
    """The process beside the driver that keeps the metadata does not start, or has ended."""


class FolderError(ExecutorLogsError):
    """The folder for logs on an executor's host cannot be used."""
