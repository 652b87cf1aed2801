"""Processes are killed and started with other code, while all of them write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from insync.replication.state import replicate
from tests.replication.state.shops import ShopV2


class Shops:
    """Processes of the shop by name, each with one version of the code."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "shops.err"
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._runs = 0
        self.acknowledged: list[str] = []

    async def start(self, servers: list[str], name: str, version: int) -> int:
        """Start one; the topic's version as it opens."""
        self._runs += 1
        module = "tests.replication.state.shop_process"
        command = [sys.executable, "-m", module, ",".join(servers), name, str(version), str(self._runs)]
        self._begin(name, command)
        line = await trio.to_thread.run_sync(self._line, name)
        assert line, self._errors.read_text()[-3000:]
        return int(line)

    def _begin(self, name: str, command: list[str]) -> None:
        with self._errors.open("a") as errors:
            self._running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def _line(self, name: str) -> str:
        output = self._running[name].stdout
        assert output is not None
        return output.readline()

    async def work(self, name: str, items: int) -> int:
        """Wait for so many acknowledgements; the topic's version with the last."""
        version = 0
        for _ in range(items):
            line = await trio.to_thread.run_sync(self._line, name)
            assert line, self._errors.read_text()[-3000:]
            item, told = line.split()
            self.acknowledged.append(item)
            version = int(told)
        return version

    def kill(self, name: str) -> None:
        """SIGKILL; what it has told up to then is acknowledged, too."""
        process = self._running.pop(name)
        process.kill()
        rest, _ = process.communicate()
        self.acknowledged += [line.split()[0] for line in rest.splitlines() if line.count(" ") == 1]

    def end(self) -> None:
        for name in list(self._running):
            self.kill(name)


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[Shops]:
    made = Shops(tmp_path)
    yield made
    made.end()


@pytest.mark.slow
async def test_no_order_is_lost_or_done_twice_while_processes_are_killed_and_get_new_code(
    servers: list[str], shops: Shops
) -> None:
    names = ("a", "b", "c")
    for name in (*names, "gone"):
        assert await shops.start(servers, name, 1) == 1
    shops.kill("gone")
    for name, version in (("a", 2), ("b", 2), ("a", 1), ("a", 2)):
        # One process after the other, with a step back in between.
        await shops.work(name, 40)
        shops.kill(name)
        assert await shops.start(servers, name, version) == 1
        assert await shops.work("c", 10) == 1
    await shops.work("c", 40)
    shops.kill("c")
    await shops.start(servers, "c", 2)
    with trio.fail_after(60):
        while {await shops.work(name, 1) for name in names} != {2}:
            pass
    for name in names:
        await shops.work(name, 20)
    shops.end()
    async with replicate(ShopV2, servers, "shop", name="judge") as shop:
        await shop.note("judged")
        left = shop.stale.left  # type: ignore[attr-defined]
        assert {left[item] for item in shops.acknowledged} == {1} == set(left.values())
        assert len(shops.acknowledged) > 250
        assert len(left) <= len(shops.acknowledged) + 9, "at most one was under way in each that was killed"
