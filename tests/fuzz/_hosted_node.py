"""A whole node in the fuzzer's own thread, step by step, so that its lines count as coverage.

Trio runs as a guest of a loop that turns only while an input is tried (`trio.lowlevel.start_guest_run`).
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import trio

from insync.replication import Admin, Node, NodeSettings
from insync.transport import Connection, Identity, Response, TransportError, connect

TOPIC = "t"


class HostedNode:
    """A node with a topic of two partitions, and one connection to it. more: listeners of other kinds."""

    def __init__(self, *more: str) -> None:
        self._more = more
        self.endpoints: list[str] = []
        """Of those other listeners."""
        self.folder = Path(tempfile.mkdtemp(prefix="insync-fuzz-node-"))
        self.connection: Connection
        self._steps: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._scope = trio.CancelScope()
        self._up = False
        self._over: Any = None

    def __enter__(self) -> Self:
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._steps.put,
            done_callback=self._ended,
            host_uses_signal_set_wakeup_fd=True,
        )
        self.turn(lambda: self._up, 20)
        if not self._up:
            # A run that is left half-way would be in the way of every other one in this thread.
            self.__exit__()
            raise RuntimeError(f"the node has not started: {self._over}")
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.cancel()
        self.turn(lambda: self._over is not None, 20)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def alive(self) -> bool:
        return self._over is None

    def turn(self, until: Callable[[], bool], seconds: float) -> bool:
        """Let the node run until that holds; False if it does not so soon."""
        end = time.monotonic() + seconds
        while not until():
            left = end - time.monotonic()
            if left <= 0 or self._over is not None:
                return until()
            try:
                self._steps.get(timeout=left)()
            except queue.Empty:
                return until()
        return True

    def ask(
        self, kind: int, body: bytes, payload: Sequence[bytes], seconds: float
    ) -> Response | TransportError | None:
        """The outcome of one request; None if there is none so soon: then it is given up."""
        outcomes: list[Response | TransportError] = []
        handle = self.connection.request_nowait(
            kind, body, payload, timeout=60, max_response=1 << 24, on_done=outcomes.append
        )
        if not self.turn(lambda: bool(outcomes), seconds):
            handle.cancel()
            return None
        return outcomes[0]

    def _ended(self, outcome: Any) -> None:
        self._over = outcome

    async def _main(self) -> None:
        name = uuid4().hex
        settings = NodeSettings(
            node_id=1,
            data_dir=self.folder,
            store=f"memory://{name}",
            listeners=(f"mem://{name}/1", *self._more),
        )
        with self._scope:
            await self._serve(settings)

    async def _serve(self, settings: NodeSettings) -> None:
        async with Node(settings) as node, trio.open_nursery() as nursery:
            async with Admin(node.endpoints) as admin:
                await admin.create_topic(TOPIC, 2, 1, {"min_insync_replicas": 1})
            self.connection = await connect(node.endpoints[0], identity=Identity(), nursery=nursery)
            self.endpoints = list(node.gateway_endpoints)
            self._up = True
            await trio.sleep_forever()
