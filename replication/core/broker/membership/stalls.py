"""When work on a device has come to a standstill, so that its directory is given up and others take over."""

from __future__ import annotations

from collections.abc import Sequence


class StallWatch:
    """Looks again and again at what the workers of a device are at.

    It counts checks, not time: a pause of the process does not mean that a device hangs.
    """

    def __init__(self, timeout: float) -> None:
        """timeout: maximum seconds that a worker may spend on one operation."""
        self._timeout = timeout
        self._seen: list[int] = []
        self._for: list[float] = []

    def look(self, at: Sequence[int], elapsed: float) -> bool:
        """Whether some worker hangs. `at`: for each the number of the work that it is at, 0 for none; always as
        many. `elapsed`: seconds since the last look, as far as they count.
        """
        if not self._seen:
            self._seen, self._for = [0] * len(at), [0.0] * len(at)
        for worker, number in enumerate(at):
            if number and number == self._seen[worker]:
                self._for[worker] += elapsed
            else:
                self._seen[worker], self._for[worker] = number, 0.0
        return max(self._for) >= self._timeout
