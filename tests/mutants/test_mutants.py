"""Some planted errors are noticed within a few seeds; `python -m tests.mutants` tries them all."""

from __future__ import annotations

import pytest

from insync.replication.simulation import Run, Violated, run
from insync.replication.simulation.oracles.recheck import recheck

from ..tiers import slow_but
from .catalogue import load
from .hunt import Limits, hunt
from .impossible import IMPOSSIBLE

QUICK = (
    "Z1",
    "Z2",
    "Z3",
    "Z6",
    "Z13",
    "Z18",
    "Z28",
    "Z30",
    "Z33",
    "Z37",
    "Z40",
    "Z53",
    "K9",
    "K10",
)

RARE = ("K250", "TZ3", "TZ45", "TZ50")
"""Errors of transactions that take hundreds of seeds."""
OF_TRANSACTIONS = [each.name for each in load().values() if each.profile == "transactions"]
OF_GROUPS = (
    "GZ1",
    "GZ3",
    "GZ8",
    "GZ9",
    "GZ10",
    "GZ11",
    "GZ17",
    "GZ21",
    "GZ22",
    "GZ23",
    "GZ39",
    "GZ40",
    "GZ42",
    "GZ51",
)
"""Errors of groups that take a few seeds."""

STATE = ("Z1", "Z9", "Z28", "Z30", "Z53")
"""Those that leave the cluster in a state that is wrong by itself."""


def test_the_first_seed_is_clean_without_a_mutant() -> None:
    assert run(0).violation is None


@pytest.mark.parametrize("name", slow_but(QUICK, "Z13", "Z18", "Z53", "K9"))
def test_it_is_noticed(name: str) -> None:
    found = hunt(name, Limits(end=20))
    assert found.caught, f"{name} ({found.title}) went unnoticed for {found.events} events"


@pytest.mark.parametrize(
    "name", slow_but([each for each in OF_TRANSACTIONS if each not in RARE], "K254", "TZ2", "TZ16", "TZ27")
)
def test_an_error_of_transactions_is_noticed(name: str) -> None:
    found = hunt(name, Limits(end=60))
    assert found.caught, f"{name} ({found.title}) went unnoticed for {found.events} events"


@pytest.mark.parametrize("name", slow_but(OF_GROUPS, "GZ1", "GZ17", "GZ51"))
def test_an_error_of_groups_is_noticed(name: str) -> None:
    found = hunt(name, Limits(end=20))
    assert found.caught, f"{name} ({found.title}) went unnoticed for {found.events} events"


@pytest.mark.parametrize("name", slow_but(STATE, "Z53"))
def test_step_by_step_and_from_scratch_the_same_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load()[name].plant(monkeypatch)
    one, found, again = _first_wrong_state()
    assert found.invariant in (again.invariant, "S7", "S3b")
    assert run(one.cluster.seed, recheck_every=1).events == one.cluster.events, "a full look found it earlier"


def _first_wrong_state() -> tuple[Run, Violated, Violated]:
    """The first seed that ends in a state that is wrong by itself; some are stopped before anything is written."""
    for seed in range(80):
        one = Run(seed)
        try:
            one.play()
        except Violated as found:
            try:
                recheck(one.cluster)
            except Violated as again:
                return one, found, again
    raise AssertionError("no seed ends in a wrong state")


def test_every_known_error_is_planted_or_cannot_be_made() -> None:
    numbers = {name for name in load() if name.startswith("Z")} | IMPOSSIBLE.keys()
    assert {f"Z{number}" for number in range(1, 57)} <= numbers
    assert not load().keys() & IMPOSSIBLE.keys()
