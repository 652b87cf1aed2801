"""Replicated state in three processes, each with a node and a copy, beside PySyncObj (`pip install pysyncobj`)."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from .report import Result, against, at_most

UNDER_WAY = (1, 16, 256)


class Peer:
    """A process that does what it is asked, one line at a time."""

    def __init__(self, who: str, number: int, where: str, *ports: int) -> None:
        self.endpoints: list[str] = []
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.bench._peers.state_peer",
                who,
                str(number),
                where,
                *map(str, ports),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **asked: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def _three(who: str, where: str, *ports: int) -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        peers = []
        for number in (1, 2, 3):
            peers.append(Peer(who, number, where, *ports))
            stack.callback(peers[-1].end)
        for peer in peers:
            peer.endpoints = peer.answer().get("endpoints", [])
        yield peers


def _free_ports() -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def run(*, smoke: bool) -> Sequence[Result]:
    counts = {1: 50, 16: 500, 256: 2000} if smoke else {1: 2000, 16: 30_000, 256: 150_000}
    keys = 20_000 if smoke else 1_000_000
    beside: dict[int, dict[str, Any]] = {}
    if importlib.util.find_spec("pysyncobj") is not None:
        with _three("theirs", "-", *_free_ports()) as peers:
            for under_way in UNDER_WAY:
                count = counts[under_way] // (20 if under_way == 1 else 4)
                beside[under_way] = peers[0].ask(do="write", under_way=under_way, count=count)
    else:
        print("PySyncObj is missing: nothing is measured beside it (pip install pysyncobj)", file=sys.stderr)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name, _three("ours", name) as peers:
        peers[0].ask(do="write", under_way=16, count=200)
        for under_way in UNDER_WAY:
            found = peers[0].ask(do="write", under_way=under_way, count=counts[under_way])
            results += _told(f"commands, {under_way} under way", found, beside.get(under_way), under_way)
        for under_way in UNDER_WAY:
            found = peers[1].ask(do="read", under_way=under_way, count=counts[under_way])
            results += _told(f"current reads, {under_way} under way", found, None, 0)
        digests = {peer.ask(do="digest")["digest"] for peer in peers}
        assert len(digests) == 1, "copies differ"
        peers[0].ask(do="fill", count=keys)
        servers = ",".join(url for peer in peers for url in peer.endpoints)
        fresh = Peer("restore", 0, servers)
        try:
            told = fresh.answer()
        finally:
            fresh.end()
        assert told["keys"] >= keys and told["from"] > 0, told
        results.append(Result(name=f"restore of {keys:,} keys", value=round(told["seconds"], 3), unit="s"))
    return results


def _told(
    name: str, found: dict[str, Any], beside: dict[str, Any] | None, under_way: int
) -> Iterator[Result]:
    per_second, p50 = found["per_second"], found["p50_ms"]
    if beside is None:
        yield Result(name=name, value=round(per_second, 1), unit="/s")
    else:
        yield against(name, per_second, "/s", beside["per_second"], 3.0 if under_way == 256 else None)
    if under_way == 1:
        yield at_most(f"{name}: p50", p50, "ms", 3)
    else:
        yield Result(name=f"{name}: p50", value=round(p50, 3), unit="ms")
    yield Result(
        name=f"{name}: p99",
        value=round(found["p99_ms"], 3),
        unit="ms",
        beside=None if beside is None else round(beside["p99_ms"], 3),
    )
