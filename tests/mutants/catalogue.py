"""The register of planted errors: each a few lines over a correct core, by the names of docs/protocol.md."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import attrs
import pytest

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
_FILES = (
    "followers",
    "leaders",
    "isr",
    "producers",
    "controllers",
    "hosts",
    "deletions",
    "departures",
    "topics",
    "directories",
    "reassignments",
    "sessions",
    "members",
    "following",
    "requests",
    "peers",
    "damage",
    "current_reads",
    "restores",
)


@attrs.frozen
class Mutant:
    """`name`: Z and a number for errors that others have made, K and a number for our own."""

    name: str
    title: str
    plant: Plant


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, title: str) -> Callable[[Plant], Plant]:
    """Register what is below as the way to plant an error."""

    def add(plant: Plant) -> Plant:
        assert name not in MUTANTS, f"two mutants are called {name}"
        MUTANTS[name] = Mutant(name, title, plant)
        return plant

    return add


def load() -> dict[str, Mutant]:
    """All mutants by name."""
    for file in _FILES:
        import_module(f"{__package__}.{file}")
    return MUTANTS
