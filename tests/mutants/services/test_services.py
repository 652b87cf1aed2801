"""Planted errors of replicated state show within some seeds, and nothing shows without one."""

from __future__ import annotations

import pytest

from ...tiers import slow_but
from .histories import histories
from .hunt import hunt
from .machines import SERVICES
from .planted import REGISTRY

SEEDS = range(8)
UNCLEAN = 52
"""A seed with an unclean election, which loses what was acknowledged."""


@pytest.mark.parametrize("service", slow_but(SERVICES, "queue"))
def test_histories_are_linearizable_under_all_faults(service: str) -> None:
    told = histories(service, SEEDS.start, SEEDS.stop)
    assert told.wrong == []
    assert told.commands > 100 and told.reads > 50


def test_nothing_is_promised_after_an_unclean_election() -> None:
    told = histories("queue", UNCLEAN, UNCLEAN + 1)
    assert (told.wrong, told.unclean) == ([], 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REGISTRY.mutants))
def test_it_is_noticed(name: str) -> None:
    assert hunt(name, 60).caught
