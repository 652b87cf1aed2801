"""The table of bounds names limits that the code has, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from insync.replication.core.broker import peers, producing
from insync.replication.core.messages import Kind

HERE = Path(__file__).parent
PAGE = (HERE.parents[3] / "docs" / "broker-machine.md").read_text(encoding="utf-8")
TABLE = PAGE.split("| request | bound | test |", 1)[1].split("\n\n", 1)[0]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.splitlines()[2:]]


def test_every_bound_has_a_test_that_exists() -> None:
    assert len(ROWS) >= 9
    for request, bound, tests in ROWS:
        named = re.findall(r"`(test_\w+\.py)::(\w+)`", tests)
        assert named, (request, bound)
        for file, name in named:
            assert re.search(rf"^(def )?{name}\b", (HERE / file).read_text(encoding="utf-8"), re.M), (
                file,
                name,
            )


def test_the_requests_are_kinds_that_there_are() -> None:
    kinds = {kind for request, _, _ in ROWS for kind in re.findall(r"`([A-Z_]+)`", request)}
    assert kinds == {"PRODUCE", "DELETE_RECORDS", "GET_REPLICA_LOG_INFO", "FETCH"}
    assert all(kind in Kind.__members__ for kind in kinds)


def test_the_numbers_are_those_of_the_code() -> None:
    limits = {
        "LONGEST_TIMEOUT": (producing.LONGEST_TIMEOUT, "300 s"),
        "MOST_QUEUED": (producing.MOST_QUEUED, "1,000"),
        "FORWARD_TIMEOUT": (peers.FORWARD_TIMEOUT, "10 s"),
    }
    for name, (value, text) in limits.items():
        (bound,) = [bound for _, bound, _ in ROWS if f"`{name}`" in bound]
        assert text in bound
        assert value == float(text.split()[0].replace(",", "")), name
