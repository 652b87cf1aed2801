"""A node for programs without trio: it runs in a thread of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from ..._portal import Held, Portal
from .._node import Node
from ..errors import NodeStoppedError
from ..settings import NodeSettings

R = TypeVar("R")

_CLOSE_MARGIN = 10.0
"""For what comes after the leaderships are handed over: flushing and closing logs."""


def node_portal(settings: NodeSettings, *, own_process: bool) -> Portal[Node]:
    """A thread for a node, or for what looks after the process of one."""
    return Portal(
        lambda: Node(settings, own_process=own_process),
        name=f"insync-node-{settings.node_id}",
        closed_error=lambda what: NodeStoppedError(f"node {settings.node_id} was {what}"),
    )


def close_seconds(settings: NodeSettings) -> float:
    """How long a node may take to stop."""
    return settings.controlled_shutdown_timeout_ms / 1000 + _CLOSE_MARGIN


class NodeFacts(ABC):
    """The facts of a node in another thread, for any thread."""

    @property
    @abstractmethod
    def _running(self) -> Node: ...

    @property
    def endpoints(self) -> list[str]:
        """The URLs at which the node is reached."""
        return self._running.endpoints

    @property
    def gateway_endpoints(self) -> list[str]:
        """The URLs at which clients of other protocols reach it."""
        return self._running.gateway_endpoints

    @property
    def store_url(self) -> str:
        """The URL that other nodes may be given as their store."""
        return self._running.store_url

    @property
    def cluster_id(self) -> str:
        return self._running.cluster_id

    @property
    def incarnation(self) -> int:
        """The number of this process among those that have been this node, from 1 on."""
        return self._running.incarnation


class BlockingNode(NodeFacts, Held[Node]):
    """`Node` for programs without trio, from any thread: `with BlockingNode(settings) as node: ...`.

    The node runs in a daemon thread of this process and shares the interpreter's lock with all others: a thread
    that keeps it for long (a call into C that does not release it) holds up the node, too; beyond
    `session_timeout_ms` others take over what it leads. A program that computes a lot puts the node into a process
    of its own: `own_process=True`.

    Leaving the block stops the node cleanly, as `Node` does. If it is still running when the interpreter exits it
    is given 5 seconds.

    Raises:
      NodeError: It cannot start; see `Node`. When the block is left: it had failed, or could not be stopped
        cleanly.
    """

    _runs_without_owner = True

    def __init__(self, settings: NodeSettings, *, own_process: bool = False) -> None:
        self.settings = settings
        self.node_id = settings.node_id
        self.close_seconds = close_seconds(settings)
        super().__init__(node_portal(settings, own_process=own_process))

    @property
    def _running(self) -> Node:
        return self._held

    def wait(self, timeout: float | None = None) -> None:
        """Come back when the node has ended.

        Raises:
          NodeError: It has failed.
          TimeoutError: It has not ended within `timeout` seconds.
        """
        self._portal.ended.result(timeout)

    def when_ended(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call, in the node's thread, with the error that ended it, or None; at once if it has ended."""
        self._portal.ended.add_done_callback(lambda ended: callback(ended.exception()))

    def close(self, timeout: float | None = None) -> None:
        """Stop the node cleanly; after `timeout` seconds not so cleanly.

        By default `controlled_shutdown_timeout_ms` and 10 s. May be called again.

        Raises:
          NodeError: It had failed, or its logs could not be closed cleanly.
        """
        super().close(timeout)
        if self._portal.ended.done():
            self._portal.ended.result()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Exception:
            # What the block raised says more; that the node has failed stands in the log.
            if kind is None:
                raise
