"""Processes that use a store, each running `holder.py`, ended by their ids."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import attrs
import trio

from insync.replication.metadata import MetadataStore, Put, Watch
from insync.transport.patience import StandstillWatch

HOLDER = Path(__file__).with_name("holder.py")


class Child:
    """A process running `holder.py`."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HOLDER), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def answer(self) -> str:
        assert self.process.stdout is not None
        with trio.fail_after(60):
            return (await trio.to_thread.run_sync(self.process.stdout.readline)).strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    async def ask(self, line: str) -> str:
        self.tell(line)
        return await self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Family:
    """The children of one test, ended with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.children: list[Child] = []

    async def child(self) -> Child:
        child = Child(self.url)
        self.children.append(child)
        assert await child.answer() == "ready"
        return child

    def end(self) -> None:
        for child in self.children:
            child.end()


@attrs.frozen
class Gone:
    """When it was seen that no node is left.

    took: seconds. held_up: those of them in which this process could not run, and so could not see it.
    """

    took: float
    held_up: float

    def is_in_time(self, timeout_ms: int, soonest: float, grace: float) -> bool:
        """Not sooner than `soonest` times the timeout, and `grace` seconds after it at the latest."""
        timeout = timeout_ms / 1000
        return soonest * timeout < self.took < timeout + grace + self.held_up


async def gone_after(store: MetadataStore, watch: Watch, began: float, *, within: float = 30) -> Gone:
    """How long it took from `began` until a watch event showed that no node is left."""
    with StandstillWatch() as standstills, trio.fail_after(within):
        while (await store.list("node/")).entries:
            await watch.__anext__()
        took = time.monotonic() - began
    return Gone(took, standstills.seconds)


async def check_no_update_is_lost(store: MetadataStore, family: Family, each: int) -> None:
    """Three processes count up one key, each so many times."""
    await store.commit([], [Put("counter", b"0")])
    children = [await family.child() for _ in range(3)]
    for child in children:
        child.tell(f"count {each}")
    assert [await child.answer() for child in children] == ["counted"] * 3
    entry = (await store.get("counter")).entry
    assert entry is not None
    assert (entry.value, entry.version) == (b"%d" % (3 * each), 3 * each + 1)
