"""Which invariants a planted error breaks at all, when none of them ends the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

import attrs
import pytest

from insync.replication.simulation import Run, Settings
from insync.replication.simulation.run import outcome_of

from .catalogue import load
from .hunt import spread

ROOM = "insync.replication.simulation"


@attrs.frozen(kw_only=True)
class Surveyed:
    """`tripped`: the first seed under which each invariant was broken; `seeds` were tried."""

    mutant: str
    tripped: dict[str, int]
    seeds: int


def note_all(patch: pytest.MonkeyPatch, noted: set[str]) -> None:
    """Let the oracle write down what it finds broken, and go on."""

    def require(holds: bool, invariant: str, detail: object, *values: object) -> None:
        if not holds:
            noted.add(invariant)

    for name, module in list(sys.modules.items()):
        if name.startswith(ROOM) and hasattr(module, "require"):
            patch.setattr(module, "require", require)


def survey(name: str, seeds: Sequence[int], seconds: float = float("inf")) -> Surveyed:
    """Play all `seeds` with the mutant planted, whatever breaks."""
    mutant = load()[name]
    tripped: dict[str, int] = {}
    started, tried = time.process_time(), 0
    for seed in seeds:
        if time.process_time() - started > seconds:
            break
        noted: set[str] = set()
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            note_all(patch, noted)
            outcome_of(Run(seed, Settings.swarm(seed, profile=mutant.profile)))
        for invariant in sorted(noted):
            tripped.setdefault(invariant, seed)
        tried += 1
    return Surveyed(mutant=name, tripped=tripped, seeds=tried)


def survey_all(
    names: Sequence[str], seeds: Sequence[int], seconds: float, jobs: int = 0
) -> Iterator[Surveyed]:
    """The same for many mutants, on all cores."""
    if seeds:
        yield from spread(partial(survey, seeds=seeds, seconds=seconds), names, jobs)
