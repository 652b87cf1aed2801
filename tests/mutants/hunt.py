"""Finds the first seed of the swarm under which a planted error shows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from types import FrameType
from typing import TypeVar

import attrs
import pytest

from insync.replication.cli.simulate import end_with_parent
from insync.replication.simulation import Settings, run, run_watched

from .catalogue import load

Result = TypeVar("Result")
CHECKED = (
    *(f"S{number}" for number in range(1, 44)),
    "S3b",
    *(f"L{number}" for number in range(1, 18)),
    *(f"G{number}" for number in range(1, 15) if number != 2),
    *(f"GL{number}" for number in (1, 2, 3, 4, 6)),
    "T11",
)
"""All that the oracle is there to notice."""
LONGEST = 10
"""Seconds of processor time that one seed may take."""


@attrs.frozen(kw_only=True)
class Limits:
    """Where a hunt begins and where it gives up: seeds `first` to before `end`, `seconds` of processor time."""

    first: int = 0
    end: int = 5000
    seconds: float = float("inf")


@attrs.frozen(kw_only=True)
class Found:
    """`events`: how many it took, over all seeds up to this one, in `seconds` of processor time.

    Only a seed that is clean without the mutant counts. `invariant` is empty if nothing was noticed in the `seeds`
    that were tried; `crashes` of them ended in an exception, which is no invariant: it may as well be the mutant's
    own fault.
    """

    mutant: str
    title: str
    invariant: str
    seed: int
    seeds: int
    events: int
    seconds: float
    crashes: int = 0

    @property
    def caught(self) -> bool:
        return bool(self.invariant)

    def __str__(self) -> str:
        where = f"seed {self.seed:5}" if self.caught else f"of {self.seeds:7}"
        verdict = f"{self.invariant or 'MISSED':10} {where} events {self.events:9} {self.seconds:7.1f} s"
        crashed = f"  ({self.crashes} seeds crashed)" if self.crashes else ""
        return f"{self.mutant:5} {verdict}  {self.title}{crashed}"


def hunt(name: str, limits: Limits) -> Found:
    """Run seed after seed with the mutant planted, until an invariant breaks."""
    mutant = load()[name]
    events, started = 0, time.process_time()

    def found(invariant: str, seed: int, seeds: int) -> Found:
        return Found(
            mutant=name,
            title=mutant.title,
            invariant=invariant,
            seed=seed,
            seeds=seeds,
            events=events,
            seconds=round(time.process_time() - started, 2),
            crashes=crashes,
        )

    tried, crashes = 0, 0
    for seed in range(limits.first, limits.end):
        if time.process_time() - started > limits.seconds:
            break
        settings = Settings.swarm(seed, profile=mutant.profile)
        tried += 1
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            try:
                with in_time():
                    result = run_watched(seed, settings)
            except TimeoutError:
                crashes += 1
                continue
        events += result.events
        if result.violation is None:
            continue
        if result.violation.invariant not in CHECKED:
            crashes += 1
        elif run_watched(seed, settings).violation is None:
            return found(result.violation.invariant, seed, tried)
    return found("", -1, tried)


@contextmanager
def in_time() -> Iterator[None]:
    """A seed takes no more than its time: an error may make something go round for ever.

    Raises:
      TimeoutError: It takes longer.
    """
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def broken_without(first: int, end: int) -> list[int]:
    """The seeds that break something with no error planted: there should be none."""
    return [seed for seed in range(first, end) if run(seed).violation is not None]


def hunt_all(names: Sequence[str], limits: Limits, jobs: int = 0) -> Iterator[Found]:
    """The same for many mutants, on all cores, as they are found."""
    yield from spread(partial(hunt, limits=limits), names, jobs)


def spread(work: Callable[[str], Result], names: Sequence[str], jobs: int = 0) -> Iterator[Result]:
    """`work` for each name in processes of its own, results in the order in which they are there."""
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=context, initializer=end_with_parent) as pool:
        futures: list[Future[Result]] = [pool.submit(work, name) for name in names]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
