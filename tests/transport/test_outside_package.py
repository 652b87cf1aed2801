"""Somebody else's package: the message transport and the store of the docs, installed by pip beside insync."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..replication.cli.command_process import command
from ..tiers import uses
from .test_docs_page import PAGE, TRANSPORTS

(SOURCE,) = (block for block in TRANSPORTS if "class PacketTransport" in block)
STORE = Path(__file__).parents[2] / "docs" / "examples" / "json_store.py"
(TOML,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PROJECT = tomllib.loads(TOML)["project"]
MODULES = {"packets": SOURCE, "json_store": STORE.read_text(encoding="utf-8")}
NAME = f"{PROJECT['name']}-{PROJECT['version']}"
INFO = f"{NAME}.dist-info"
WHEEL = {
    **{f"{name}.py": MODULES[name] for name in tomllib.loads(TOML)["tool"]["setuptools"]["py-modules"]},
    f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items())
        for group, points in PROJECT["entry-points"].items()
    ),
}
"""What a build of the page's package gives; building needs tools that are not everywhere."""
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
KIT = """
import itertools, socket, sys, tempfile, trio
from insync.transport.registry import get
from insync.transport.testing import Env, cases_for, run_case, skipped_for

class PacketEnv(Env):
    transport = get("packet")
    numbers = itertools.count()

    def __init__(self, folder):
        self.folder = folder

    def listen_url(self):
        return f"packet://{self.folder}/socket-{next(self.numbers)}"

    def dead_url(self):
        return f"packet://{self.folder}/no-socket"

    def malformed_urls(self):
        return ["packet://", "packet://host/path", "packet:///", "packet:///" + "x" * 200]

    async def open_raw(self, url):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stranger.connect(url.removeprefix("packet://"))
        return stranger

failed = []
with tempfile.TemporaryDirectory() as folder:
    env = PacketEnv(folder)
    for case in cases_for(env):
        try:
            trio.run(run_case, case, env)
        except AssertionError as error:
            failed.append(str(error))
    print(len(cases_for(env)), sorted(case.name for case in skipped_for(env)))
sys.exit("\\n".join(failed) or 0)
"""

STORE_KIT = """
import sys, tempfile, trio
from insync.replication.metadata import open_store
from insync.replication.metadata.testing import CASES, Bench
from json_store import JsonStore

class JsonBench(Bench):
    timeout_ms = 600
    late_seconds = 1.0
    has_connections = False

    def __init__(self, path):
        self.path = path

    def handle(self):
        return JsonStore(self.path)

    def lose(self, session):
        session.renewals.cancel()

async def found(folder):
    async with open_store(f"json://{folder}/opened.json") as store:
        assert isinstance(store.inner, JsonStore), store.inner

failed = []
with tempfile.TemporaryDirectory() as folder:
    trio.run(found, folder)
    for case in CASES:
        try:
            trio.run(case.run, JsonBench(f"{folder}/{case.name}.json"))
        except AssertionError as error:
            failed.append(str(error))
print(len(CASES))
sys.exit("\\n".join(failed) or 0)
"""


@pytest.fixture(scope="module")
@uses("slow")
def beside() -> Iterator[dict[str, str]]:
    """The environment of a process that finds the installed package."""
    # Not pytest's folder: a socket's path has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="insync-outside-"))
    try:
        wheel, site = folder / f"{NAME}-py3-none-any.whl", folder / "site"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in WHEEL.items():
                archive.writestr(name, text)
            archive.writestr(f"{INFO}/RECORD", "".join(f"{name},,\n" for name in (*WHEEL, f"{INFO}/RECORD")))
        installed = subprocess.run(
            [*PIP, "--target", str(site), str(wheel)], capture_output=True, text=True, timeout=120
        )
        assert installed.returncode == 0, installed.stderr
        # Nodes find it by its metadata, and nothing else of this folder.
        path = os.pathsep.join([str(site), *(each for each in sys.path if each)])
        yield {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}
    finally:
        shutil.rmtree(folder)


@pytest.mark.timeout(300)
def test_the_demo_runs_over_both_with_a_killed_leader(beside: dict[str, str]) -> None:
    url, store = f"packet://{beside['TMPDIR']}/node-{{node}}", f"json://{beside['TMPDIR']}/meta.json"
    arguments = ["demo", "--listen", url, "--store", store, "--no-spark", "--records", "20000"]
    arguments += ["--seed", "5", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "insync.replication.cli", *arguments],
        env=beside,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["transport"] == url
    assert (Path(beside["TMPDIR"]) / "meta.json").exists()


def test_a_cluster_to_work_with_stands_on_both(
    beside: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", beside["PYTHONPATH"])
    folder = Path(beside["TMPDIR"]) / "up"
    folder.mkdir()
    urls = ["--listen", f"packet://{folder}/node-{{node}}", "--store", f"json://{folder}/meta.json"]
    with command(["up", "--nodes", "2", *urls, "--json"], tmp_path) as run:
        ready = json.loads(run.wait_for_line('"ready"'))
        assert sorted(ready["servers"]) == [f"packet://{folder}/node-1", f"packet://{folder}/node-2"]
        made = subprocess.run(
            [
                sys.executable,
                "-m",
                "insync.replication.cli",
                "topic",
                "create",
                "t",
                "--replication-factor",
                "2",
            ],
            env={**beside, "INSYNC_SERVERS": ",".join(ready["servers"])},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert made.returncode == 0, made.stderr
        run.signal(signal.SIGINT)
        run.finish()


@pytest.mark.timeout(450)
def test_the_kit_of_stores_is_green(beside: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORE_KIT], env=beside, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 40


@pytest.mark.timeout(450)
def test_the_kit_is_green_with_other_processes_too(beside: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KIT], env=beside, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    count, _, skipped = done.stdout.strip().partition(" ")
    assert int(count) > 60
    assert "processes" not in skipped and "killed" not in skipped


def test_without_the_package_the_scheme_is_unknown() -> None:
    code = "from insync.transport.registry import resolve; resolve('packet:///x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "UnknownSchemeError: no transport for packet:// is installed" in done.stderr
