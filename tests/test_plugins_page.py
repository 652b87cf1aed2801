"""docs/plugins.md has every kind of plugin and the versions of the interfaces, and no case is of a later one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from insync import transport
from insync.replication import metadata
from insync.replication.cli.plugins import groups
from insync.replication.metadata import testing as store_kit
from insync.replication.node import gateway_testing as gateway_kit
from insync.replication.node import gateways
from insync.replication.promises import Promise, collect
from insync.transport.kit import _frame as transport_kit

from .transport.test_conformance import MemoryEnv

PAGE = (Path(__file__).parent.parent / "docs" / "plugins.md").read_text(encoding="utf-8")
VERSIONS = {
    "transport": transport.API_VERSION,
    "metadata store": metadata.API_VERSION,
    "gateway": gateways.API_VERSION,
}
CASES = {
    "transport": transport_kit.cases_for(MemoryEnv()) + transport_kit.skipped_for(MemoryEnv()),
    "metadata store": store_kit.CASES,
    "gateway": gateway_kit.CASES,
}


def test_the_table_and_the_example_have_every_group() -> None:
    assert len(groups()) == 7
    assert re.findall(r"^\| `(insync\.\w+)` \|", PAGE, re.M) == list(groups())
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert list(tomllib.loads(toml)["project"]["entry-points"]) == list(groups())


def test_the_versions_of_the_interfaces_are_told() -> None:
    told = re.findall(r"^\| ([a-z ]+) \| (\d+)\.(\d+) \|", PAGE, re.M)
    assert {name: (int(major), int(minor)) for name, major, minor in told} == VERSIONS


@pytest.mark.parametrize("kind", VERSIONS)
def test_no_case_is_of_a_version_that_is_yet_to_come(kind: str) -> None:
    assert {case.name for case in CASES[kind] if case.since > VERSIONS[kind]} == set()
    assert any(case.since == (1, 0) for case in CASES[kind])


def test_a_later_case_is_tagged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: object) -> None:
        """It holds."""

    cases: list[Promise[object]] = []
    collect(Promise, cases)(check)
    collect(Promise, cases, since=(1, 3))(check)
    assert [each.since for each in cases] == [(1, 0), (1, 3)]
    added: list[transport_kit.Case] = []
    monkeypatch.setattr(transport_kit, "_CASES", added)
    transport_kit.case("X")(check)
    transport_kit.case("X", since=(1, 3))(check)
    assert [each.since for each in added] == [(1, 0), (1, 3)]
