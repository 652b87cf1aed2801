"""Partitioned, replicated, append-only logs with Kafka's semantics, for embedding in a Python service.

`Node` is a member of a cluster; `Producer`, `Consumer` and `Admin` are its trio clients, the `Blocking...` ones do
the same for threads, and those of `insync.replication.asyncio` for asyncio. All of them raise subclasses of
`ReplicationError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import ReplicationError

if TYPE_CHECKING:
    from .client import (
        Admin,
        BlockingAdmin,
        BlockingConsumer,
        BlockingProducer,
        Consumer,
        Producer,
    )
    from .node import BlockingNode, Node, NodeSettings

__all__ = [
    "Node",
    "NodeSettings",
    "BlockingNode",
    "Producer",
    "Consumer",
    "Admin",
    "BlockingProducer",
    "BlockingConsumer",
    "BlockingAdmin",
    "ReplicationError",
]

_ROOMS = {
    "Node": "node",
    "NodeSettings": "node",
    "BlockingNode": "node",
    "Producer": "client",
    "Consumer": "client",
    "Admin": "client",
    "BlockingProducer": "client",
    "BlockingConsumer": "client",
    "BlockingAdmin": "client",
}


def __getattr__(name: str) -> object:
    """Import a room when it is first asked for: a client needs no node, and a command line starts quickly."""
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{room}", __name__), name)
    globals()[name] = value
    return value
