"""The trio host of the replication core: a node, embedded in a program or as a process of its own."""

import logging

from ...transport.repeats import limited
from ._node import Node
from .configuration import load_settings
from .errors import (
    ClusterMismatchError,
    DuplicateNodeError,
    InvalidSettingError,
    LogDirectoryFailedError,
    NodeError,
    NodeStartError,
    NodeStoppedError,
    StoreLostError,
    StorePutBackError,
    StoreRepairError,
)
from .process.blocking import BlockingNode
from .settings import NodeSettings

limited(logging.getLogger("insync.node"))

__all__ = [
    "Node",
    "NodeSettings",
    "BlockingNode",
    "load_settings",
    "NodeError",
    "ClusterMismatchError",
    "DuplicateNodeError",
    "InvalidSettingError",
    "LogDirectoryFailedError",
    "NodeStartError",
    "NodeStoppedError",
    "StoreLostError",
    "StorePutBackError",
    "StoreRepairError",
]
