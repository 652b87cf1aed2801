"""Small misfortunes of single messages, store writes, watches and disk writes; recorded, so that they can be
played again, and left out one by one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from ..settings import Settings

Mishap = tuple[str, float]
"""The mishap, and how long it takes (seconds; 0 where that means nothing)."""


class Weather:
    """`message`, `write`, `watch` and `job` say what befalls the next one of its kind; None for nothing.

    `happened` is the record of a run. Given one as `script`, exactly that happens and nothing is drawn.
    """

    def __init__(self, seed: int, settings: Settings, script: Mapping[str, Mishap] | None) -> None:
        self.calm = False
        self.happened: dict[str, Mishap] = {}
        self._script = script
        self._draw = random.Random(f"weather {seed}")
        faults = settings.faults
        wet, store, disk = "ML" in faults, "MS" in faults, "ST" in faults
        late = settings.late if wet else 0.0
        double = late + (settings.double if wet else 0.0)
        drop = double + (settings.drop if wet else 0.0)
        self._message = (late, double, drop)
        self._unclear = settings.unclear if store else 0.0
        self._unseen = settings.unseen if store else 0.0
        slow = settings.slow_disk if disk else 0.0
        self._job = (slow, slow + (settings.log_failure if disk else 0.0))
        self._counts = {"m": 0, "s": 0, "w": 0, "d": 0}

    def message(self) -> Mishap | None:
        """`late`, `double` (the second copy comes that much later) or `drop`."""
        if self.calm:
            return None
        self._counts["m"] += 1
        if self._script is not None:
            return self._replay("m")
        roll = self._draw.random()
        late, double, drop = self._message
        if roll >= drop:
            return None
        if roll < late:
            return self._note("m", "late", self._draw.uniform(0.5, 8.0))
        if roll < double:
            return self._note("m", "double", self._draw.choice((0.05, 0.5, 4.0)))
        return self._note("m", "drop")

    def write(self) -> Mishap | None:
        """A store write that comes `late`, is `slow` to be answered, or whose outcome nobody learns.

        The last is `lost`, or `landed` so much later.
        """
        if self.calm:
            return None
        self._counts["s"] += 1
        if self._script is not None:
            return self._replay("s")
        if self._draw.random() >= self._unclear:
            return None
        kind = self._draw.random()
        if kind < 0.2:
            return self._note("s", "lost")
        if kind < 0.6:
            return self._note("s", "landed", self._draw.choice((0.05, 0.5, 4.0)))
        if kind < 0.8:
            return self._note("s", "late", self._draw.choice((0.3, 1.0, 3.0)))
        return self._note("s", "slow", self._draw.choice((0.5, 2.0, 6.0)))

    def watch(self) -> Mishap | None:
        """A change of the store that a node is told `late`, or not at all: `unseen`."""
        if self.calm:
            return None
        self._counts["w"] += 1
        if self._script is not None:
            return self._replay("w")
        if self._draw.random() >= self._unseen:
            return None
        if self._draw.random() < 0.7:
            return self._note("w", "unseen")
        return self._note("w", "late", self._draw.uniform(0.3, 5.0))

    def job(self) -> Mishap | None:
        """A write to a log that is `slow` or `fails` (and the log opens again after so long)."""
        if self.calm:
            return None
        self._counts["d"] += 1
        if self._script is not None:
            return self._replay("d")
        roll = self._draw.random()
        slow, fails = self._job
        if roll >= fails:
            return None
        if roll < slow:
            return self._note("d", "slow", self._draw.uniform(0.3, 1.5))
        return self._note("d", "fails", self._draw.uniform(0.1, 3.0))

    def _replay(self, kind: str) -> Mishap | None:
        assert self._script is not None
        key = f"{kind}{self._counts[kind]}"
        mishap = self._script.get(key)
        if mishap is not None:
            self.happened[key] = mishap
        return mishap

    def _note(self, kind: str, what: str, seconds: float = 0.0) -> Mishap:
        mishap = what, round(seconds, 3)
        self.happened[f"{kind}{self._counts[kind]}"] = mishap
        return mishap
