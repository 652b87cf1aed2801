"""A fake cluster for code without trio: it runs in a thread of its own, on tcp."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from .fake_cluster import FakeCluster, fake_cluster


class ThreadedCluster:
    """A fake cluster on tcp in a thread of its own."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()
        self._up = threading.Event()
        self.cluster: FakeCluster
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        assert self._up.wait(10)

    @property
    def urls(self) -> list[str]:
        return self.cluster.urls

    def do(self, function: Callable[[], object]) -> None:
        async def run() -> None:
            function()

        trio.from_thread.run(run, trio_token=self._token)

    def close(self) -> None:
        assert self._token is not None
        self._token.run_sync_soon(self._stop.set)
        self._thread.join(10)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with fake_cluster(nodes=2, scheme="tcp", t=1) as self.cluster:
            self._up.set()
            await self._stop.wait()


@contextmanager
def threaded_cluster() -> Iterator[ThreadedCluster]:
    cluster = ThreadedCluster()
    try:
        yield cluster
    finally:
        cluster.close()
