"""For how long a node may leave a request open before other nodes are asked who leads."""

from __future__ import annotations

import attrs

LEAST = 0.25
MOST = 1.0
_SLOWNESS = 4.0
_FORGETS = 0.9


@attrs.define(eq=False, slots=True)
class Patience:
    """A multiple of what the slowest recent answer took: where all answers are slow, a slow one says nothing."""

    _slowest: float = 0.0

    def answered(self, seconds: float) -> None:
        """Note the time of an answer, without the wait that the request itself allowed."""
        self._slowest = max(seconds, _FORGETS * self._slowest)

    @property
    def seconds(self) -> float:
        return min(max(LEAST, _SLOWNESS * self._slowest), MOST)
