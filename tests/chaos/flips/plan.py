"""Every byte of every small file: one fault at a time in the folders of three nodes, and what its nodes then do."""

from __future__ import annotations

import logging
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import trio

from ..run import say
from .cluster import Ending, Template, make_template
from .round import FlipRound, Outcome
from .table import Fault, faults

_ENDINGS: tuple[Ending, ...] = ("killed", "stopped")
_TOLD = 20
"""Faults after which a line says how far the run is."""


@attrs.frozen(kw_only=True)
class FlipPlan:
    """The arguments of the command.

    sample: number of faults, from each kind of file and damage before a second one of a kind; 0: the whole table.
    jobs: number of faults at a time. processes: each node is a process.
    """

    seed: int = 1
    sample: int = 0
    jobs: int = 2
    processes: bool = False


@attrs.define
class Flips:
    """The faults that were tried, and what came of them."""

    plan: FlipPlan
    of: int = 0
    """Size of the whole table."""
    outcomes: list[Outcome] = attrs.field(factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.outcomes) and not any(each.broken for each in self.outcomes)

    def summary(self, seconds: float) -> dict[str, Any]:
        """The report as one object."""
        return {
            "flips": True,
            "seed": self.plan.seed,
            "of": self.of,
            "faults": len(self.outcomes),
            "lost": sum(bool(each.lost) for each in self.outcomes),
            "unnamed": sum(each.unnamed for each in self.outcomes),
            "harmed": sum(bool(each.harmed) for each in self.outcomes),
            "named": sum(bool(each.named) for each in self.outcomes),
            "withheld": sum(bool(each.withheld) for each in self.outcomes),
            "refused": sum(bool(each.refused) for each in self.outcomes),
            "kinds": dict(Counter(each.fault.kind for each in self.outcomes)),
            "files": dict(Counter(_kind_of(each.fault.path) for each in self.outcomes)),
            "seconds": round(seconds, 1),
            "passed": self.passed,
        }


def _kind_of(path: str) -> str:
    name = Path(path).name
    return name.lstrip("0123456789") if name[0].isdigit() else name


def try_one(template: Template, fault: Fault, folder: Path, processes: bool = False) -> Outcome:
    """Carry out one fault in a folder of its own, which is removed."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return trio.run(FlipRound(template, fault, Path(place) / "cluster", processes).carry_out)


def sampled(table: list[Fault], plan: FlipPlan) -> list[Fault]:
    """The faults that the plan asks for."""
    if not plan.sample:
        return table
    before: Counter[tuple[str, ...]] = Counter()
    turns: list[tuple[int, Fault]] = []
    for fault in random.Random(plan.seed).sample(table, len(table)):
        kind = fault.ending, _kind_of(fault.path), fault.kind
        turns.append((before[kind], fault))
        before[kind] += 1
    return [fault for _, fault in sorted(turns, key=lambda turn: turn[0])[: plan.sample]]


def _quiet() -> None:
    logging.getLogger("insync").addHandler(logging.NullHandler())


def _tell(flips: Flips, of: int, seconds: float) -> None:
    outcome, count = flips.outcomes[-1], len(flips.outcomes)
    if count % _TOLD == 0:
        say(f"{count} of {of} after {seconds:.0f} s")
    if outcome.broken:
        say(f"{count}: {outcome.fault}: {'; '.join(outcome.broken)}")
        for words in (*outcome.said[:6], *outcome.refused.values()):
            say(f"    {words[:400]}")


def timed_flips(plan: FlipPlan, folder: Path) -> tuple[Flips, float]:
    """Make the clusters, carry out and measure."""
    began = time.monotonic()
    templates = [trio.run(make_template, folder / each, each) for each in _ENDINGS]
    return carry_out(plan, templates, folder), time.monotonic() - began


def carry_out(plan: FlipPlan, made: Sequence[Template], folder: Path) -> Flips:
    """Damage copies of the clusters, in `folder`."""
    began, templates = time.monotonic(), {each.ending: each for each in made}
    table = [fault for each in made for fault in faults(each.root, each.ending, plan.seed)]
    flips = Flips(plan, of=len(table))
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(plan.jobs, mp_context=spawning, initializer=_quiet) as pool:
        tried = [
            pool.submit(try_one, templates[fault.ending], fault, folder, plan.processes)
            for fault in sampled(table, plan)
        ]
        try:
            for each in tried:
                flips.outcomes.append(each.result())
                _tell(flips, len(tried), time.monotonic() - began)
        finally:
            # Those under way end with their nodes.
            pool.shutdown(cancel_futures=True)
    return flips
