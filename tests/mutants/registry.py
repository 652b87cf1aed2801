"""What a planted error is: a name, a title, and a few lines over a correct product."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


@attrs.frozen
class Mutant:
    """`name`: Z and a number for errors that others have made, K and a number for our own; GZ of groups, TZ of
    transactions.
    """

    name: str
    title: str
    plant: Plant

    @property
    def profile(self) -> str:
        """The profile of the runs that are tried, where only runs with groups, or transactions, can show it."""
        file = self.plant.__module__.rsplit(".", 1)[-1]
        if file.startswith("transact"):
            return "transactions"
        return "groups" if file.startswith(("groups_", "shards")) else ""


class Registry:
    """Planted errors by name, in the order in which they stand in their files."""

    def __init__(self) -> None:
        self.mutants: dict[str, Mutant] = {}

    def mutant(self, name: str, title: str) -> Callable[[Plant], Plant]:
        """Register what is below as the way to plant an error."""

        def add(plant: Plant) -> Plant:
            assert name not in self.mutants, f"two mutants are called {name}"
            self.mutants[name] = Mutant(name, title, plant)
            return plant

        return add
