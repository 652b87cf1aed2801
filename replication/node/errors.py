"""Errors of a node. `NodeError` is their root; the cause in another room is the `__cause__`."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ReplicationError


class NodeError(ReplicationError):
    """Root of what a node raises."""


class InvalidSettingError(NodeError, ValueError):
    """A setting has a value that cannot work; the text says which would."""


class DuplicateNodeError(NodeError):
    """Another living process is registered under this node id."""


class ClusterMismatchError(NodeError):
    """The store belongs to another cluster than the settings ask for."""


class StoreLostError(NodeError):
    """The metadata store is empty though the node's log directories belong to a cluster."""


class StorePutBackError(NodeError):
    """The metadata store is older than what this node has seen of it, so nothing that it says is acted upon."""


class StoreRepairError(NodeError):
    """The metadata store cannot be repaired from these folders; what was written so far is harmless."""


class KafkaAdoptionError(NodeError):
    """Kafka's folders cannot be adopted; nothing was changed. `problems`: all that stands against it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"nothing was adopted, and Kafka's folders are as they were: {'; '.join(problems)}")
        self.problems = tuple(problems)


class AdoptionUnclearError(NodeError):
    """The metadata store may or may not have become that of an adopted cluster; the copies were kept."""


class NodeStartError(NodeError):
    """The node could not start; the text of the cause says why and what to do."""


class LogDirectoryFailedError(NodeError):
    """The node's only log directory failed while it was serving, so it has stopped; others take over."""


class NodeStoppedError(NodeError):
    """The node that runs in another thread has stopped, or was stopped."""
