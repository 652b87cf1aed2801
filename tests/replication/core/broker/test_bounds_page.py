"""The table of bounds names limits that the code has, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from insync.replication.core.broker import ports
from insync.replication.core.broker.membership import peers
from insync.replication.core.broker.producing import producing
from insync.replication.core.control import admin_requests
from insync.replication.core.messages import MOST_DESCRIBED, MOST_LOOK_UPS, MOST_PRODUCERS, Kind
from insync.replication.wire._codec import REQUEST_TYPES

HERE = Path(__file__).parent
PAGE = (HERE.parents[3] / "docs" / "broker-machine.md").read_text(encoding="utf-8")
TABLE = PAGE.split("| request | bound | test |", 1)[1].split("\n\n", 1)[0]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.splitlines()[2:]]


def test_every_bound_has_a_test_that_exists() -> None:
    assert len(ROWS) >= 9
    for request, bound, tests in ROWS:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert named, (request, bound)
        for file, name in named:
            text = place(file).read_text(encoding="utf-8")
            assert re.search(rf"^((async )?def )?{name}\b", text, re.M), (file, name)


def place(file: str) -> Path:
    """A test of the broker by its name alone, others by their path; a kit's cases stand with the kit."""
    if "/" not in file:
        (found,) = HERE.rglob(file)
        return found
    return HERE.parents[3] / ("" if "/kit/" in file else "tests") / file


def test_every_kind_of_request_has_a_bound() -> None:
    """A new kind comes with a row that says what its requests may cost, and a test of that."""
    kinds = {kind for request, _, _ in ROWS for kind in re.findall(r"`([A-Z_]+)`", request)}
    assert kinds == {kind.name for kind in Kind} == {Kind(kind).name for kind in REQUEST_TYPES}


def test_the_numbers_are_those_of_the_code() -> None:
    limits = {
        "LONGEST_TIMEOUT": (producing.LONGEST_TIMEOUT, "300 s"),
        "MOST_QUEUED": (producing.MOST_QUEUED, "1,000"),
        "FORWARD_TIMEOUT": (peers.FORWARD_TIMEOUT, "10 s"),
        "LOOK_UP_TIME": (ports.LOOK_UP_TIME, "5 s"),
        "MOST_LOOK_UPS": (MOST_LOOK_UPS, "1,000"),
        "MOST_DESCRIBED": (MOST_DESCRIBED, "2,000"),
        "MOST_PRODUCERS": (MOST_PRODUCERS, "10,000"),
        "MOST_QUOTAS": (admin_requests.MOST_QUOTAS, "2,000"),
        "MOST_USERS": (admin_requests.MOST_USERS, "2,000"),
    }
    for name, (value, text) in limits.items():
        (bound,) = [bound for _, bound, _ in ROWS if f"`{name}`" in bound]
        assert text in bound
        assert value == float(text.split()[0].replace(",", "")), name
