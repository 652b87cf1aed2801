"""Reads that may wait for the device happen in a thread first, so that the event loop never does.

The thread finds what is asked for; with that the pages are in memory, and the event loop finds it again without a
wait. Each log directory has its own threads: one whose device hangs holds up its own reads alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from ...storage import Log, StorageError
from ..core.broker.effects import Warm
from ..core.broker.events import Warmed
from ..core.types import PartitionId

if TYPE_CHECKING:
    from ._directories import Home
    from ._replicas import Replicas

THREADS = 4
"""For each log directory."""
REMEMBERED = 1000

_Place = tuple[PartitionId, int]


class ColdReads:
    """For the event loop."""

    def __init__(self, node: Replicas, nursery: trio.Nursery) -> None:
        self._node = node
        self._nursery = nursery
        self._found: dict[_Place, None] = {}
        self._limits: dict[Home | None, trio.CapacityLimiter] = {}

    def is_at_hand(self, partition: PartitionId, log: Log, offset: int) -> bool:
        """Whether reading a log from `offset` on will not wait for the device."""
        return log.is_at_hand(offset) or (partition, offset) in self._found

    def warm(self, effect: Warm) -> None:
        """Have a thread read a range, and tell the broker when it has."""
        host = self._node.hosts.get(effect.partition)
        if host is None or host.log is None:
            self._node.step(
                Warmed(effect.partition, effect.offset)
            )  # deleted meanwhile: asked, it will say so
            return
        read = partial(
            host.log.read, effect.offset, max_bytes=effect.max_bytes, limit_offset=effect.limit_offset
        )
        self._nursery.start_soon(self._read, (effect.partition, effect.offset), host.home, read)

    async def look_up(self, partition: PartitionId, timestamp_ms: int) -> None:
        """Have it found in a thread; after that the event loop finds it without a wait."""
        host = self._node.hosts.get(partition)
        if host is not None and host.log is not None:
            await self._in_thread(host.home, partial(host.log.offset_for_timestamp, timestamp_ms))

    async def _in_thread(self, home: Home | None, look: Callable[[], object]) -> None:
        limit = self._limits.setdefault(home, trio.CapacityLimiter(THREADS))
        await trio.to_thread.run_sync(_find, look, limiter=limit, abandon_on_cancel=True)

    async def _read(self, place: _Place, home: Home | None, read: Callable[[], object]) -> None:
        await self._in_thread(home, read)
        self._found[place] = None
        while len(self._found) > REMEMBERED:
            del self._found[next(iter(self._found))]
        self._node.step(Warmed(*place))
        self._node.settle()


def _find(look: Callable[[], object]) -> None:
    try:
        look()
    except StorageError:
        # The one who asked is told when the event loop reads.
        return
