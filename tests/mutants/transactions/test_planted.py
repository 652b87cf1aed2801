"""Planted errors of transactions show within some seeds; `python -m tests.mutants.transactions` tries them all."""

from __future__ import annotations

import pytest
import trio

from insync.replication.simulation.transactions import run

from ...tiers import slow_but
from ..worlds import hunt
from . import elsewhere
from .planted import REGISTRY

SEEDS = 60


@pytest.mark.slow
def test_no_promise_is_broken_in_any_of_some_seeds() -> None:
    results = [run(seed) for seed in range(SEEDS)]
    assert [(each.seed, str(each.violation)) for each in results if each.violation] == []
    for what in ("committed", "aborted", "fenced", "moves"):
        assert sum(getattr(each, what) for each in results) > SEEDS, what
    assert sum(each.timed_out for each in results) > 3


def test_the_same_seed_is_the_same_run() -> None:
    assert run(7) == run(7)


@pytest.mark.parametrize("name", slow_but(REGISTRY.mutants, "TZ17", "TZ32"))
def test_it_is_noticed(name: str) -> None:
    found = hunt(name, "transactions", 2_000)
    assert found.invariant.startswith("T"), found


@pytest.mark.parametrize("name", elsewhere.REGISTRY.mutants)
def test_a_test_notices_what_the_simulator_does_not_play(name: str) -> None:
    shown = elsewhere.SHOWN[name]
    shown()
    with pytest.MonkeyPatch.context() as patch:
        elsewhere.REGISTRY.mutants[name].plant(patch)
        with pytest.raises((AssertionError, trio.TooSlowError, ExceptionGroup)):
            shown()
