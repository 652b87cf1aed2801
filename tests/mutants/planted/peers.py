"""Errors in what nodes ask each other outside the fetches."""

from __future__ import annotations

from typing import Any

from insync.replication.core.broker.membership import peers

from ..catalogue import Patch, mutant

Round = peers._Round


@mutant("K150", "wait forever for a node that does not report its logs")
def _(patch: Patch) -> None:
    right = Round.begin

    def begin(self: Any) -> None:
        right(self)
        self._timers["end"].cancel()

    patch.setattr(Round, "begin", begin)
