"""Requests whose shard is not loaded yet: they wait for it a moment, instead of being refused at once.

A client that asks for a coordinator gets the leader of its partition, by a view that may be ahead of that leader:
its log may still have to be made, or to be read. An administrator's request is not repeated by every client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ...types import PartitionId

if TYPE_CHECKING:
    from ..context import Context
    from ..timers import Timer

PATIENCE = 4.0
"""Seconds that a request waits at most; then it is told that the coordinator loads, and its client looks again.

Less than clients wait for an answer, more than fifty logs take to be made on a machine that is busy.
"""
MOST = 100
"""Requests that wait on a node. Each keeps its body, also when its client has withdrawn it or is gone, and no other
budget counts that: 1 MiB at most, decoded. Those above are told at once that the coordinator loads.
"""


@attrs.define(eq=False, slots=True)
class _Waiting:
    ask: Callable[[], None]
    timer: Timer | None = None


class Loading:
    """Requests by the partition of their shard, in the order in which they came."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: dict[PartitionId, deque[_Waiting]] = {}

    def __bool__(self) -> bool:
        """Whether any request waits."""
        return bool(self._waiting)

    def __contains__(self, partition: PartitionId) -> bool:
        """Whether a request for this shard waits."""
        return partition in self._waiting

    def wait(self, partition: PartitionId, deadline: float, ask: Callable[[], None]) -> bool:
        """Have `ask` called by `release`, or after a moment, and by `deadline` (context.now).

        False, and it is not called: too many wait already.
        """
        if sum(map(len, self._waiting.values())) >= MOST:
            return False
        waiting = _Waiting(ask)
        self._waiting.setdefault(partition, deque()).append(waiting)
        until = min(deadline, self._context.now + PATIENCE)
        waiting.timer = self._context.timers.call_at(until, partial(self._over, partition, waiting))
        return True

    def release(self, is_loading: Callable[[PartitionId], bool]) -> None:
        """Ask for all whose shard is loaded now, or is another node's."""
        for partition in [each for each in self._waiting if not is_loading(each)]:
            released = self._waiting.pop(partition)
            for waiting in released:
                if waiting.timer is not None:
                    waiting.timer.cancel()
            for waiting in released:
                waiting.ask()

    def _over(self, partition: PartitionId, waiting: _Waiting) -> None:
        waiting.timer = None
        left = self._waiting[partition]
        left.remove(waiting)
        if not left:
            del self._waiting[partition]
        waiting.ask()
