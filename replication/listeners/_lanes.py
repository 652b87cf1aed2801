"""The records of one partition that are being handled."""

from __future__ import annotations

import attrs
import trio

from ..core.types import PartitionId
from ._progress import Progress
from ._turns import Turn


@attrs.define(eq=False)
class Counts:
    """The counts of a listener since it began; see `ListenerStatus`."""

    handled: int = 0
    failures: int = 0
    retried: int = 0
    dead_letters: int = 0
    skipped: int = 0
    commit_failures: int = 0


@attrs.define(eq=False)
class Lane:
    """From the poll that returned them until the last one is done or dropped."""

    at: PartitionId
    progress: Progress
    ended: trio.Event = attrs.Factory(trio.Event)
    turns: set[Turn] = attrs.Factory(set)
    """That handlers are at."""
    attempts: int = 0
    is_over: bool = False
    """No further record is to be begun."""
    is_lost: bool = False
    """Another member may have the partition: nothing that is done for it counts."""
    _over: trio.Event = attrs.Factory(trio.Event)
    _released: trio.Event | None = None
    """There is one while it is held."""

    def give_up(self) -> None:
        """Begin no further record."""
        self.is_over = True
        self._over.set()
        self._end_turns()
        self.release()

    def _end_turns(self) -> None:
        for turn in self.turns:
            turn.is_over = True

    def lose(self) -> None:
        """The same, and nothing counts."""
        self.is_lost = True
        self.give_up()

    @property
    def is_held(self) -> bool:
        """Whether a pause holds it."""
        return self._released is not None

    def hold(self) -> None:
        """Begin no further record until `release`."""
        if self._released is None and not self.is_over:
            self._released = trio.Event()
            self._end_turns()

    def release(self) -> None:
        """Go on."""
        if self._released is not None:
            self._released.set()
            self._released = None

    async def released(self) -> None:
        """Come back when nothing holds it."""
        while self._released is not None:
            await self._released.wait()

    def busy_for(self, now: float) -> float:
        """Seconds for which a handler has been at work on what it has at hand."""
        return max((now - turn.began for turn in self.turns), default=0.0)

    async def wait(self, seconds: float) -> None:
        """Wait, unless it is over."""
        with trio.move_on_after(seconds):
            await self._over.wait()
