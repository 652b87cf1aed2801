"""A node inside a program on asyncio."""

from __future__ import annotations

from types import TracebackType

from ..node import Node as TrioNode
from ..node import NodeSettings, NodeStoppedError
from ..node.process.blocking import NodeFacts, close_seconds, node_portal
from ._bridge import Bridge, done


class Node(NodeFacts, Bridge[TrioNode]):
    """`insync.replication.Node` for asyncio: `async with Node(settings) as node: ...`.

    It runs in a thread of its own: a loop that is busy does not hold it up, but what keeps the interpreter's lock
    does, unless `own_process=True` puts it into a child process. If it fails, `wait` raises; the block goes on, so
    have a task wait.

    Leaving the block stops the node cleanly; if it is left by cancellation, at once.

    Raises:
      NodeError: It cannot start; see `insync.replication.Node`. When the block is left: it had failed, or could not
        be stopped cleanly.
    """

    _not_open = NodeStoppedError

    def __init__(self, settings: NodeSettings, *, own_process: bool = False) -> None:
        self.settings = settings
        self.node_id = settings.node_id
        self.close_seconds = close_seconds(settings)
        super().__init__(lambda: node_portal(settings, own_process=own_process))

    @property
    def _running(self) -> TrioNode:
        return self._held

    async def wait(self) -> None:
        """Come back when the node has ended; raises `NodeError` if it has failed."""
        await done(self._portal.ended)
        self._portal.ended.result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        if kind is None and self._portal.ended.done():
            self._portal.ended.result()
