"""Seed after seed of replicated state with an error planted, until an invariant breaks."""

from __future__ import annotations

import time

import attrs
import pytest

from ..hunt import in_time
from .planted import REGISTRY, play


@attrs.frozen(kw_only=True)
class Found:
    """`invariant`: what noticed it at `seed`; empty if nothing did, `crash` if only an exception was."""

    mutant: str
    title: str
    invariant: str
    seed: int
    seconds: float

    @property
    def caught(self) -> bool:
        return bool(self.invariant) and self.invariant != "crash"


def hunt(name: str, seeds: int, first: int = 0) -> Found:
    """Plant an error, and try so many seeds."""
    mutant, crashed = REGISTRY.mutants[name], -1
    began = time.process_time()

    def found(invariant: str, seed: int) -> Found:
        seconds = round(time.process_time() - began, 1)
        return Found(mutant=name, title=mutant.title, invariant=invariant, seed=seed, seconds=seconds)

    for seed in range(first, first + seeds):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            try:
                with in_time():
                    violation = play(seed).violation
            except Exception:  # noqa: BLE001 - what a planted error raises is no concern of the hunt
                crashed = seed if crashed < 0 else crashed
                continue
        if violation is not None:
            return found(violation.invariant, seed)
    return found("crash" if crashed >= 0 else "", crashed)
