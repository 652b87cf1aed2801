"""An assignor of somebody else in a client: what it gives has an end, whatever it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from insync.replication.client._assignors import find_assignors
from insync.replication.core.groups.assignors.assignment import Subscription

MEMBERS = {name: Subscription(topics=frozenset({"t"})) for name in ("a", "b")}


class Endless:
    name = "endless"

    def __init__(self, given: Callable[[], Any]) -> None:
        self._given = given

    def assign(self, counts: Any, members: Any) -> Any:
        return self._given()


class Items:
    """Has pairs as a mapping has."""

    def __init__(self, made: Callable[[int], tuple[str, Any]]) -> None:
        self._made = made

    def items(self) -> Iterator[tuple[str, Any]]:
        return map(self._made, itertools.count())


@pytest.mark.parametrize(
    ("given", "members", "partitions"),
    [
        (lambda: {"a": (("t", number) for number in itertools.count())}, 1, 4),
        (lambda: {"a": itertools.repeat(("t", 0)), "b": [("t", 1)]}, 2, 4),
        (lambda: Items(lambda number: (f"member {number}", [("t", number)])), 3, 1),
        (lambda: Items(lambda number: ("a", itertools.repeat(("t", number)))), 1, 4),
    ],
    ids=["partitions", "one partition", "members", "one member"],
)
def test_an_answer_without_end_is_cut_where_it_is_known_to_be_wrong(
    given: Callable[[], Any], members: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One member more than there are, or one partition: that is enough to refuse it."""
    # The machine may stand still for longer than an assignor may take.
    monkeypatch.setattr("insync.replication.client._assignors.WITHIN", 30)
    (assignor,) = find_assignors([Endless(given)])
    found = assignor.assign({"t": 3}, MEMBERS)
    assert len(found) == members
    assert max(len(each) for each in found.values()) == partitions
