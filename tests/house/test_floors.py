"""The floors: rooms and their imports, heights, circles; and the pictures of docs/architecture.md."""

from __future__ import annotations

from graphlib import CycleError

import grimp
import pytest

from . import floors
from .scope import ROOT


def graph(*imports: tuple[str, str]) -> grimp.ImportGraph:
    built = grimp.ImportGraph()
    for importer, imported in imports:
        built.add_import(importer=importer, imported=imported)
    for module in list(built.modules):
        parts = module.split(".")
        for end in range(1, len(parts)):
            built.add_module(".".join(parts[:end]))
    return built


def test_a_room_has_the_imports_of_all_its_modules_and_not_those_within() -> None:
    built = graph(("p.high.a", "p.low.b"), ("p.high.sub.c", "p.mid"), ("p.high.a", "p.high.sub.c"))
    assert floors.rooms(built, ["p"]) == {"p.high": {"p.low", "p.mid"}, "p.low": set(), "p.mid": set()}


def test_private_modules_are_no_rooms() -> None:
    assert floors.rooms(graph(("p.a", "p._b"), ("p._b", "p.c")), ["p"]) == {"p.a": set(), "p.c": set()}


def test_a_divided_room_is_drawn_by_its_parts() -> None:
    built = graph(("p.a", "p.q.x"), ("p.q.x", "p.q.y"))
    assert floors.rooms(built, ["p", "p.q"]) == {"p.a": {"p.q.x"}, "p.q.x": {"p.q.y"}, "p.q.y": set()}


def test_a_room_stands_above_all_that_it_imports() -> None:
    assert floors.floors({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": set()}) == [["a"], ["b"], ["c", "d"]]


def test_rooms_that_import_one_another_are_refused() -> None:
    with pytest.raises(CycleError, match="cycle"):
        floors.floors({"a": {"b"}, "b": {"a"}})


def test_a_long_floor_takes_several_lines() -> None:
    lines = floors.drawn([[f"p.room{number:02}" for number in range(12)], ["p.below"]]).split("\n")
    assert len({*map(len, lines)}) == 1
    assert [line[0] for line in lines] == ["┌", "│", "│", "├", "│", "└"]
    assert "room11" in lines[2]
    assert "below" in lines[4]


def test_the_page_has_the_pictures() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    drawn = list(floors.pictures())
    assert len(drawn) == 2
    for picture in drawn:
        assert f"```text\n{picture}\n```" in page, f"docs/architecture.md is to have:\n{picture}"
