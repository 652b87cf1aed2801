"""Some planted errors of groups show within a few seeds; `python -m tests.mutants.groups` tries them all."""

from __future__ import annotations

import pytest

from ...tiers import slow_but
from ..worlds import hunt
from .planted import REGISTRY


@pytest.mark.parametrize(
    "name",
    slow_but(["GZ1", "GZ3", "GZ11", "GZ17", "GZ22", "GZ23", "GZ28", "GZ34", "GZ39", "GZ43"], "GZ1", "GZ17"),
)
def test_it_is_noticed_by_what_is_there_for_it(name: str) -> None:
    found = hunt(name, "groups", 6)
    assert found.by and found.invariant in found.by, found


def test_a_topic_that_is_made_again_while_an_assignment_is_under_way_is_noticed() -> None:
    found = hunt("GZ59", "groups", 1, first=1554)
    assert found.invariant == "G4", found


@pytest.mark.parametrize(
    ("name", "invariant", "seed"),
    [("GZ60", "GL1", 28), ("GZ61", "GL1", 162), ("GZ63", "GL1", 3922), ("GZ64", "GL1", 29)],
)
def test_what_shows_after_the_storm_is_noticed(name: str, invariant: str, seed: int) -> None:
    found = hunt(name, "groups", 1, first=seed)
    assert found.invariant == invariant, found


def test_every_planted_error_has_a_name_of_the_catalogue() -> None:
    assert all(name.startswith("GZ") and mutant.title for name, mutant in REGISTRY.mutants.items())
