"""Some planted errors of groups show within a few seeds; `python -m tests.mutants.groups` tries them all."""

from __future__ import annotations

import pytest

from ..worlds import hunt
from .planted import REGISTRY


@pytest.mark.parametrize(("name", "invariant"), [("GZ1", "G1"), ("GZ3", "G7"), ("GZ5", "G7"), ("GZ52", "G9")])
def test_it_is_noticed(name: str, invariant: str) -> None:
    assert hunt(name, "groups", 4).invariant == invariant


def test_every_planted_error_has_a_name_of_the_catalogue() -> None:
    assert all(name.startswith("GZ") and mutant.title for name, mutant in REGISTRY.mutants.items())
