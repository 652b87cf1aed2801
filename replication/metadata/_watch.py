"""Watches inside one process: prefixes, coalescing, delivery. Used by every store of this package."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from ._values import Changed, Resync, WatchEvent
from .abc import Watch
from .errors import StoreClosedError


def merge(pending: WatchEvent | None, event: WatchEvent) -> WatchEvent:
    """The one event that says as much as both."""
    if pending is None:
        return event
    revision = max(pending.revision, event.revision)
    if isinstance(pending, Resync) or isinstance(event, Resync):
        return Resync(revision)
    return Changed(event.prefix, revision)


class PrefixWatch(Watch):
    """A watch that keeps at most one pending event.

    delay: asked at each delivery how many seconds to hold the event back (tests only); changes that come
    meanwhile are merged into it.
    """

    def __init__(self, prefix: str, delay: Callable[[], float]) -> None:
        self.prefix = prefix
        self._delay = delay
        self._pending: WatchEvent | None = None
        self._arrived = trio.Event()
        self._revision = -1
        self._ended = False
        self._store_closed = False

    def changed(self, keys: Iterable[str], revision: int) -> None:
        """Note a commit; one at or below the last noted revision was covered by an earlier event.

        That holds because revisions become visible in order: who lists after the event of revision r sees all
        that was committed up to r.
        """
        if revision > self._revision and any(key.startswith(self.prefix) for key in keys):
            self._offer(Changed(self.prefix, revision))

    def resync(self, revision: int) -> None:
        """Note a gap."""
        self._offer(Resync(revision))

    def pass_on(self, event: WatchEvent) -> None:
        """Note what another watch of the same prefix has told."""
        self._offer(event)

    def _offer(self, event: WatchEvent) -> None:
        self._pending = merge(self._pending, event)
        self._revision = max(self._revision, event.revision)
        self._arrived.set()

    def end(self, store_closed: bool) -> None:
        """Wake the consumer for the last time."""
        self._ended = True
        self._store_closed = store_closed
        self._arrived.set()

    async def __anext__(self) -> WatchEvent:
        await trio.lowlevel.checkpoint()
        while True:
            await self._arrived.wait()
            if not self._ended and (delay := self._delay()) > 0:
                await trio.sleep(delay)
            if self._ended:
                raise self._end_of_watch()
            if self._pending is not None:
                event, self._pending, self._arrived = self._pending, None, trio.Event()
                return event

    def _end_of_watch(self) -> Exception:
        if self._store_closed:
            return StoreClosedError(f"the store was closed while {self.prefix!r} was watched")
        return StopAsyncIteration()


class WatchHub:
    """The open watches of one handle."""

    def __init__(self, delay: Callable[[], float] = lambda: 0.0) -> None:
        self._watches: set[PrefixWatch] = set()
        self._delay = delay

    def __len__(self) -> int:
        return len(self._watches)

    @asynccontextmanager
    async def open(self, prefix: str, start: Callable[[], Awaitable[int]]) -> AsyncIterator[Watch]:
        """Register first, then await `start()` for the revision of the first event: so nothing falls between."""
        watch = PrefixWatch(prefix, self._delay)
        self._watches.add(watch)
        try:
            watch.resync(await start())
            yield watch
        finally:
            self._watches.discard(watch)
            watch.end(store_closed=False)

    def changed(self, keys: Iterable[str], revision: int) -> None:
        """Tell every watch whose prefix has one of `keys`."""
        for watch in self._watches:
            watch.changed(keys, revision)

    def resync(self, revision: int) -> None:
        """Tell every watch that there was a gap."""
        for watch in self._watches:
            watch.resync(revision)

    def close(self) -> None:
        """End every watch because the store is being left."""
        for watch in self._watches:
            watch.end(store_closed=True)
        self._watches.clear()
