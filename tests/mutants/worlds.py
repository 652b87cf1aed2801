"""Hunts in a simulator of one subject's own: which planted errors does it notice, by what, and at what seed?

A world is a package beside this module (`groups`, `exactly_once`, `services`) and a simulator of the same name in
`insync.replication.simulation`, with `run(seed)`. The package has a module `planted` with a `REGISTRY` and
`SEEDS`, how many to try. If it has a function `play(seed)`, that is the simulator; `ELSEWHERE`, if it is there,
says of errors that it cannot show what does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import attrs
import pytest

from .hunt import in_time, spread
from .registry import Registry


@attrs.frozen(kw_only=True)
class Found:
    """`invariant`: what noticed it at `seed`; empty if nothing did, `crash` if only an exception was.

    `others`: seeds up to then at which an invariant broke that is not there to notice it.
    """

    mutant: str
    title: str
    by: tuple[str, ...]
    invariant: str
    seed: int
    seconds: float
    others: dict[str, int]

    @property
    def caught(self) -> bool:
        return bool(self.invariant) and self.invariant != "crash"


def mutants(world: str) -> Registry:
    """The planted errors of a world."""
    registry = import_module(f"{__package__}.{world}.planted").REGISTRY
    assert isinstance(registry, Registry)
    return registry


def hunt(name: str, world: str, seeds: int, first: int = 0) -> Found:
    """Seed after seed with the error planted, until an invariant breaks that is there to notice it."""
    play = _player(world)
    mutant = mutants(world).mutants[name]
    began = time.process_time()
    others: dict[str, int] = {}

    def found(invariant: str, seed: int) -> Found:
        seconds = round(time.process_time() - began, 1)
        return Found(
            mutant=name,
            title=mutant.title,
            by=mutant.by,
            invariant=invariant,
            seed=seed,
            seconds=seconds,
            others=others,
        )

    crashed = -1
    for seed in range(first, first + seeds):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            try:
                with in_time():
                    violation = play(seed).violation
            except Exception:  # noqa: BLE001 - what a planted error raises is no concern of the hunt
                crashed = seed if crashed < 0 else crashed
                continue
        if violation is None:
            continue
        if not mutant.by or violation.invariant in mutant.by:
            return found(violation.invariant, seed)
        others[violation.invariant] = others.get(violation.invariant, 0) + 1
    return found("crash" if crashed >= 0 else "", crashed)


def _player(world: str) -> Callable[[int], Any]:
    own = getattr(import_module(f"{__package__}.{world}.planted"), "play", None)
    play: Callable[[int], Any] = own or import_module(f"insync.replication.simulation.{world}").run
    return play


def main(world: str) -> int:
    """The command of a world: a line for each planted error as it is found, or a table of all."""
    package = f"{__package__}.{world}"
    seeds = import_module(f"{package}.planted").SEEDS
    parser = argparse.ArgumentParser(
        prog=f"python -m {package}",
        description=f"Is every planted error of {world} noticed, by what, and at what seed?",
    )
    parser.add_argument("--only", default="", metavar="NAME,...", help="these errors (default: all)")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with (default 0)")
    parser.add_argument("--seeds", type=int, default=seeds, help=f"seeds to try for each (default {seeds})")
    parser.add_argument(
        "--table", action="store_true", help="a table of Markdown at the end, no lines of JSON"
    )
    chosen = parser.parse_args()
    known = mutants(world).mutants
    names = chosen.only.split(",") if chosen.only else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no planted error is called {unknown[0]!r}: there are {', '.join(known)}")
    work = partial(hunt, world=world, seeds=chosen.seeds, first=chosen.first)
    results: list[Found] = []
    for found in spread(work, names, chosen.jobs):
        results.append(found)
        if not chosen.table:
            print(json.dumps(attrs.asdict(found)), flush=True)
    if chosen.table:
        elsewhere: dict[str, str] = getattr(import_module(f"{package}.planted"), "ELSEWHERE", {})
        print(table(sorted(results, key=lambda each: names.index(each.mutant))))
        for name, why in elsewhere.items():
            print(f"| {name} | not here: {why} | | |")
    return 1 if any(not each.caught for each in results) else 0


def table(results: list[Found]) -> str:
    """Markdown: a row for each planted error."""
    lines = ["| planted error | | noticed by | seed |", "|---|---|---|---|"]
    for each in results:
        by = each.invariant if each.caught else f"nothing ({each.invariant})" if each.invariant else "nothing"
        lines.append(f"| {each.mutant} | {each.title} | {by} | {each.seed if each.caught else ''} |")
    return "\n".join(lines)
