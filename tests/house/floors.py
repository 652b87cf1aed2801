"""The floors of the package, drawn from its imports: each room imports only what stands on floors beneath it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from graphlib import TopologicalSorter
from textwrap import wrap

import grimp

ROOMS = ("insync", "insync.replication")
"""Packages whose public members are the rooms of the first picture. A room that is divided is not drawn itself."""
WINGS = ("insync.replication.core",)
"""The same of the second picture."""
ATTIC = "insync.plugins"
"""Nothing imports what lies in it, so it is drawn above all others."""
_WIDTH = 76


def rooms(graph: grimp.ImportGraph, divided: Iterable[str]) -> dict[str, Set[str]]:
    """The public rooms of these packages, each with the others that it imports. Imports within functions count."""
    inner = sorted(each for package in divided for each in graph.find_children(package))
    names = [each for each in inner if each not in divided and not each.rpartition(".")[2].startswith("_")]
    home = {module: name for name in names for module in (name, *graph.find_descendants(name))}
    return {
        name: {
            home[imported]
            for module, of in home.items()
            if of == name
            for imported in graph.find_modules_directly_imported_by(module)
            if imported in home
        }
        - {name}
        for name in names
    }


def floors(imports: Mapping[str, Set[str]]) -> list[list[str]]:
    """Rooms by their heights, the highest first. A room stands one floor above the highest that it imports.

    Raises graphlib.CycleError, with the rooms of a circle.
    """
    heights: dict[str, int] = {}
    for room in TopologicalSorter(imports).static_order():
        heights[room] = 1 + max((heights[each] for each in imports.get(room, ())), default=-1)
    return [
        sorted(room for room, height in heights.items() if height == floor)
        for floor in range(max(heights.values()), -1, -1)
    ]


def drawn(storeys: Iterable[Iterable[str]]) -> str:
    """A frame with one floor above another. A room has the last part of its name."""
    said = [wrap("   ".join(each.rpartition(".")[2] for each in floor), _WIDTH - 4) for floor in storeys]
    rule = "─" * (_WIDTH - 2)
    between = f"├{rule}┤\n"
    framed = ("".join(f"│ {line:{_WIDTH - 4}} │\n" for line in floor) for floor in said)
    return f"┌{rule}┐\n{between.join(framed)}└{rule}┘"


def pictures() -> Iterator[str]:
    """The rooms, below the plugins; then the wings of the core."""
    graph = grimp.build_graph(*{"insync", ATTIC}, cache_dir=None, exclude_type_checking_imports=True)
    below = rooms(graph, ROOMS)
    below.pop(ATTIC, None)
    attic = ["plugins:", *sorted(graph.find_children(ATTIC))]
    yield drawn([attic, *floors(below)])
    yield drawn(floors(rooms(graph, WINGS)))
