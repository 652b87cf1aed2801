"""`insync plugins` lists what is installed in all groups, and goes on after a plugin that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = """
import sys

print("a word of a module")
print("imported", file=sys.stderr)

from insync.replication.metadata import MemoryStore
from insync.replication.node.gateways import Gateway
from insync.transport import Capabilities, StreamTransport


class Transport(StreamTransport):
    api_version = (1, 0)
    schemes = ("good", "later")
    caps = Capabilities()

    def parse(self, url): ...
    async def open_stream(self, endpoint): ...
    async def listen_streams(self, endpoint): ...


class Later(Transport):
    api_version = (1, 99)


class G(Gateway):
    api_version = (1, 1)
    schemes = ("good",)

    def parse(self, url): ...
    async def serve(self, endpoint, service, security, *, task_status): ...


class Assignor:
    name = "good"

    def assign(self, counts, members): ...


def make(url):
    return MemoryStore()


def good(): ...


nothing = None
"""
GROUPS = {
    "insync.transports": {"good": "good_one:Transport", "later": "good_one:Later", "torn": "torn:Transport"},
    "insync.metadata_stores": {"good": "good_one:make", "none": "good_one:nothing", "torn": "torn:make"},
    "insync.gateways": {"good": "good_one:G", "none": "good_one:nothing", "torn": "torn:G"},
    "insync.assignors": {"good": "good_one:Assignor", "none": "good_one:nothing", "torn": "torn:Assignor"},
    "insync.election_policies": {"good": "good_one:good", "none": "good_one:nothing", "torn": "torn:good"},
    "insync.commands": {"good": "good_one:good", "topic": "good_one:good", "torn": "torn:good"},
    "insync.demo_steps": {"good": "good_one:good", "none": "good_one:nothing", "torn": "torn:good"},
}
WHY_NOT = {
    "later": "written for version 1.99 of the interface",
    "none": "good_one:nothing",
    "topic": "insync's own",
    "torn": "a long way",
}


def install(folder: Path, name: str, version: str, groups: dict[str, dict[str, str]]) -> None:
    """A distribution as pip would install it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    text = "\n".join(
        f"[{group}]\n" + "".join(f"{point} = {value}\n" for point, value in points.items())
        for group, points in groups.items()
    )
    (info / "entry_points.txt").write_text(text)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "insync.replication.cli", "plugins", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good_one.py").write_text(MODULE)
    (tmp_path / "torn.py").write_text("raise SystemExit('a long\\nway' + '.' * 5_000)\n")
    install(tmp_path, "mine", "3.2.1", GROUPS)
    return tmp_path


def of_mine(shown: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (each["group"], each["name"]): each
        for each in json.loads(shown)
        if (each["distribution"], each["version"]) == ("mine", "3.2.1")
    }


def test_all_seven_groups_are_shown_with_the_reason_of_each_that_does_not_load(folder: Path) -> None:
    done = run(folder, "--json")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    found = of_mine(done.stdout)
    assert found.keys() == {(group, name) for group, points in GROUPS.items() for name in points}
    for (group, name), each in found.items():
        assert each["object"] == GROUPS[group][name]
        assert each["loads"] == (name == "good"), each
        assert WHY_NOT.get(name, "") in each["why_not"] and "\n" not in each["why_not"]
        assert len(each["why_not"]) < 600


def test_people_get_a_line_for_each(folder: Path) -> None:
    lines = run(folder).stdout.splitlines()
    assert any(line.split() == ["insync.assignors", "good", "mine", "3.2.1", "loads"] for line in lines)
    (torn,) = (line for line in lines if line.startswith("insync.gateways") and " torn " in line)
    assert "mine 3.2.1" in torn and "does not load: SystemExit: a long way" in torn
    assert any(line.split()[:2] == ["insync.transports", "tcp"] and line.endswith("loads") for line in lines)


def test_names_import_nothing(folder: Path) -> None:
    done = run(folder, "--names", "--json")
    assert done.returncode == 0 and done.stderr == ""
    assert {(each["loads"], each["why_not"]) for each in of_mine(done.stdout).values()} == {(None, "")}


def test_two_distributions_of_one_name_are_both_told(tmp_path: Path) -> None:
    groups = ("insync.transports", "insync.metadata_stores", "insync.gateways", "insync.commands")
    for name in ("one", "two"):
        install(tmp_path, name, "1.0", {group: {"twice": f"{name}:make"} for group in groups})
    told = [each for each in json.loads(run(tmp_path, "--json").stdout) if each["name"] == "twice"]
    assert sorted((each["group"], each["distribution"]) for each in told) == sorted(
        (group, name) for group in groups for name in ("one", "two")
    )
    assert all("uninstall all but one" in each["why_not"] for each in told)


def test_a_healthy_installation_has_status_0(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
