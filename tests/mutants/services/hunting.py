"""Runs services seed by seed: with no error planted, or with one until it is noticed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs

from insync.replication.simulation.service import run_service

from ..catalogue import Patch
from .machines import SERVICES
from .planted import load_all


@attrs.frozen(kw_only=True)
class Found:
    """`invariant`: empty if nothing was noticed in all the seeds."""

    mutant: str
    title: str
    invariant: str
    service: str
    seed: int
    seconds: float


def hunt(name: str, seeds: int = 2000) -> Found:
    """Seed after seed with the error planted, of each service, until something is noticed."""
    mutant, began = load_all()[name], time.process_time()
    invariant, where, at = "", "", -1
    for seed in range(seeds):
        for service, make in SERVICES.items():
            with Patch.context() as patch:
                mutant.plant(patch)
                violation = run_service(make(), seed).result.violation
            if violation is not None:
                invariant, where, at = violation.invariant, service, seed
                break
        if invariant:
            break
    seconds = round(time.process_time() - began, 1)
    return Found(
        mutant=name, title=mutant.title, invariant=invariant, service=where, seed=at, seconds=seconds
    )


@attrs.define
class Histories:
    """What was played without an error: `wrong` names each seed that broke something."""

    service: str
    seeds: int = 0
    commands: int = 0
    reads: int = 0
    unclean: int = 0
    """Seeds in which nothing is promised, after an unclean election."""
    wrong: list[str] = attrs.Factory(list)


def histories(service: str, seeds: Sequence[int]) -> Histories:
    """Play a service; everything that was acknowledged is in one order with all current reads."""
    told = Histories(service)
    for seed in seeds:
        found = run_service(SERVICES[service](), seed)
        told.seeds += 1
        told.unclean += bool(found.history.unclean)
        for operation in found.history.operations:
            if operation.outcome is not None and operation.outcome.kind == "ok":
                is_read = type(operation.command).__name__ == "CurrentRead"
                told.reads += is_read
                told.commands += not is_read
        if found.result.violation is not None:
            told.wrong.append(f"seed {seed}: {found.result.violation}")
    return told
