"""Planted errors of groups that feed transactions show within some seeds."""

from __future__ import annotations

import pytest

from ..worlds import hunt
from .planted import REGISTRY


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY.mutants)
def test_it_is_noticed(name: str) -> None:
    found = hunt(name, "exactly_once", 200)
    assert found.invariant in found.by, found
