"""Finds the first seed of the swarm under which a planted error shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import attrs
import pytest

from insync.replication.cli.simulate import end_with_parent
from insync.replication.simulation import run

from .catalogue import load


@attrs.frozen(kw_only=True)
class Found:
    """`events`: how many it took, over all seeds up to this one. `invariant` is empty if nothing was noticed."""

    mutant: str
    title: str
    invariant: str
    seed: int
    events: int

    @property
    def caught(self) -> bool:
        return bool(self.invariant)

    def __str__(self) -> str:
        verdict = f"{self.invariant or 'MISSED':18} seed {self.seed:5} events {self.events:9}"
        return f"{self.mutant:5} {verdict}  {self.title}"


def hunt(name: str, first: int, end: int) -> Found:
    """Run seed after seed with the mutant planted, until an invariant breaks."""
    mutant = load()[name]
    events = 0
    for seed in range(first, end):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            result = run(seed)
        events += result.events
        if result.violation is not None:
            return Found(
                mutant=name,
                title=mutant.title,
                invariant=result.violation.invariant,
                seed=seed,
                events=events,
            )
    return Found(mutant=name, title=mutant.title, invariant="", seed=-1, events=events)


def hunt_all(names: list[str], first: int, end: int) -> Iterator[Found]:
    """The same for many mutants, on all cores, in their order."""
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=get_context("spawn"), initializer=end_with_parent
    ) as pool:
        futures = [pool.submit(hunt, name, first, end) for name in names]
        try:
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
