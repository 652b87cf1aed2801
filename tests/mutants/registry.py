"""What a planted error is: a name, a title, and a few lines over a correct product."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


@attrs.frozen
class Mutant:
    """`name`: Z and a number for errors that others have made, K and a number for our own.

    `by`: the invariants of which one has to notice it; none: any.
    """

    name: str
    title: str
    plant: Plant
    by: tuple[str, ...] = ()

    @property
    def is_of_transactions(self) -> bool:
        """Whether only a run that hosts transactions can show it: then all runs that are tried do."""
        return self.plant.__module__.endswith((".transacting", ".transactions"))


class Registry:
    """Planted errors by name, in the order in which they stand in their files."""

    def __init__(self) -> None:
        self.mutants: dict[str, Mutant] = {}

    def mutant(self, name: str, title: str, *by: str) -> Callable[[Plant], Plant]:
        """Register what is below as the way to plant an error."""

        def add(plant: Plant) -> Plant:
            assert name not in self.mutants, f"two mutants are called {name}"
            self.mutants[name] = Mutant(name, title, plant, by)
            return plant

        return add
