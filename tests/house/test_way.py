"""The way of a record in a real cluster of one process, and the dispatches on it."""

from __future__ import annotations

import functools
import threading
from collections import Counter

import pytest

from ..tiers import uses
from .scope import Tree
from .way import BEGINS, ENDS, Trace, Way, dispatch_lines, product_file, shortest_way


@pytest.fixture(scope="module")
@uses("slow")
def way() -> Way:
    return shortest_way(Tree.tracked())


def test_client_broker_and_log_writer_are_on_the_way_of_a_record(way: Way) -> None:
    names = {code.co_qualname for code in way.calls}
    assert names >= {"Producer.send", "Delivery.wait", BEGINS, ENDS}
    assert all(product_file(code.co_filename) for code in way.calls)


def test_the_three_logs_are_written_in_other_threads(way: Way) -> None:
    appends = [count for code, count in way.beside.items() if code.co_qualname == "DiskLog.append"]
    assert appends == [3]
    assert not any(code.co_qualname == "DiskLog.append" for code in way.calls)


def test_the_dispatches_of_an_append_are_seen_as_they_run(way: Way) -> None:
    dispatches = way.dispatches()
    assert dispatches
    assert any(BEGINS in each for each in dispatches)


def test_dispatches_count_between_the_leaders_step_and_its_append() -> None:
    events = (BEGINS, "a tick", BEGINS, "one", "two", ENDS, "later", BEGINS, ENDS)
    assert Way(Counter(), Counter(), events).dispatches() == ("one", "two")
    with pytest.raises(RuntimeError, match=f"no record passed {BEGINS}"):
        Way(Counter(), Counter(), (ENDS, BEGINS)).dispatches()


@pytest.mark.parametrize(
    "line",
    [
        "table[type(event)](event)",
        "table.get(type(event))",
        "table[event.kind](event)",
        "table[event.__class__](event)",
        "table[key](event)",
    ],
)
def test_a_choice_by_type_is_a_dispatch(line: str) -> None:
    assert dispatch_lines(f"def step(event):\n    key = type(event)\n    {line}\n") == {3}


def test_a_match_on_classes_is_a_dispatch_and_one_on_values_is_none() -> None:
    classes = "match event:\n    case Append():\n        pass\n"
    values = "match text:\n    case 'a':\n        pass\n"
    assert dispatch_lines(classes + values) == {1}


@pytest.mark.parametrize("line", ["table[name](event)", "table.get(name)", "table[type(event)] = 1"])
def test_other_look_ups_are_no_dispatches(line: str) -> None:
    assert dispatch_lines(line) == set()


def test_calls_of_generic_functions_are_seen() -> None:
    @functools.singledispatch
    def take(event: object) -> str:
        return "any"

    trace = Trace(frozenset())
    try:
        with trace:
            assert take(1) == "any"
    finally:
        trace.close()
    assert trace.way().events == ("singledispatch.<locals>.dispatch",)


def test_nothing_is_traced_afterwards(way: Way) -> None:
    assert threading.getprofile() is None
