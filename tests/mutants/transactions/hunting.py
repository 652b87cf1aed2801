"""Finds the first seed under which a planted error of transactions shows."""

from __future__ import annotations

import signal
import time
from types import FrameType

import attrs
import pytest

from insync.replication.simulation.transactions import run

from .planted import MUTANTS

LONGEST = 10
"""Seconds of processor time that one seed may take: an error may make something go round for ever."""

SEEDS = 5_000


@attrs.frozen(kw_only=True)
class Found:
    """`invariant`: empty if nothing was noticed, `crash` if only an exception was."""

    mutant: str
    title: str
    invariant: str
    seed: int
    seconds: float


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def hunt(name: str, seeds: int = SEEDS) -> Found:
    """Seed after seed with the error planted, until an invariant breaks."""
    began = time.process_time()
    crashed = -1
    for seed in range(seeds):
        with pytest.MonkeyPatch.context() as patch:
            MUTANTS[name].plant(patch)
            signal.signal(signal.SIGVTALRM, _give_up)
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
            try:
                violation = run(seed).violation
            except Exception:  # noqa: BLE001 - what a planted error raises is no concern of the hunt
                crashed = seed if crashed < 0 else crashed
                continue
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if violation is not None:
            return _found(name, violation.invariant, seed, began)
    return _found(name, "crash" if crashed >= 0 else "", crashed, began)


def _found(name: str, invariant: str, seed: int, began: float) -> Found:
    seconds = round(time.process_time() - began, 1)
    return Found(mutant=name, title=MUTANTS[name].title, invariant=invariant, seed=seed, seconds=seconds)
