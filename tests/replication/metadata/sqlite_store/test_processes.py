"""The SQLite store between processes: killed, stopped and continued ones, and many writers at once."""

import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from insync.replication.metadata import (
    Committed,
    Conflict,
    Exists,
    MetadataStore,
    Put,
    Read,
    Watch,
    open_store,
)
from tests.processors import waited_for_a_processor

from ..children import Child, Family, check_no_update_is_lost, gone_after

TIMEOUT_MS = 4000
"""Long against the moments for which a busy machine lets a process wait, between two renewals too."""
GRACE_SECONDS = 0.5


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    family = Family(f"sqlite://{tmp_path / 'meta.db'}")
    yield family
    family.end()


@asynccontextmanager
async def watching(family: Family) -> AsyncIterator[tuple[MetadataStore, Watch]]:
    async with open_store(family.url) as store, store.watch("node/") as watch:
        await watch.__anext__()
        yield store, watch


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_session_of_a_dead_process_ends_in_time(family: Family, how: signal.Signals) -> None:
    child = await family.child()
    async with watching(family) as (store, watch):
        await child.ask(f"hold {TIMEOUT_MS} node/1")
        assert (await store.get("node/1")).entry is not None
        child.process.send_signal(how)
        gone = await gone_after(store, watch, time.monotonic())
        assert gone.is_in_time(TIMEOUT_MS, 0.25, GRACE_SECONDS), gone
        assert await store.commit([Exists("node/1")], []) == Conflict("node/1")


async def test_continued_process_learns_that_its_session_is_over(family: Family) -> None:
    child = await family.child()
    async with watching(family) as (store, watch):
        await child.ask(f"hold {TIMEOUT_MS} node/1")
        assert await child.ask("fence before") == "committed"
        child.process.send_signal(signal.SIGSTOP)
        await gone_after(store, watch, time.monotonic())
        child.process.send_signal(signal.SIGCONT)
        assert await child.ask("fence zombie") == "expired"
        assert await child.ask("learn") == "learned"
        assert (await store.get("zombie")).entry is None
        assert not (await store.list("node/")).entries


async def test_continued_process_learns_without_writing(family: Family) -> None:
    child = await family.child()
    async with watching(family) as (store, watch):
        await child.ask(f"hold {TIMEOUT_MS} node/1")
        child.tell("learn")
        child.process.send_signal(signal.SIGSTOP)
        await gone_after(store, watch, time.monotonic())
        child.process.send_signal(signal.SIGCONT)
        began = time.monotonic()
        assert await child.answer() == "learned"
        assert time.monotonic() - began < TIMEOUT_MS / 1000


async def test_commit_of_another_process_is_seen_soon(family: Family) -> None:
    child = await family.child()
    delays = []
    async with watching(family) as (_, watch):
        for number in range(15):
            waited = waited_for_a_processor()
            child.tell(f"put node/{number} v")
            await watch.__anext__()
            seen = time.monotonic_ns()
            waited = max(0.0, waited_for_a_processor() - waited)
            delays.append((seen - int((await child.answer()).split()[2])) / 1e6 - waited * 1000)
    assert sorted(delays)[len(delays) // 2] < 25, delays


async def test_writers_of_several_processes_lose_no_update(family: Family) -> None:
    async with open_store(family.url) as store:
        await check_no_update_is_lost(store, family, 60)


async def test_killed_writer_leaves_whole_transactions(family: Family) -> None:
    for _ in range(3):
        child = await family.child()
        assert await child.ask("write") == "writing"
        async with open_store(family.url) as store:
            start = await first_pair(store)
            with trio.fail_after(30):
                while (await store.list("pair/")).revision < start.revision + 20:
                    await trio.lowlevel.checkpoint()
            child.process.kill()
            child.process.wait()
            entries = (await store.list("pair/")).entries
            assert entries["pair/a"].value == entries["pair/b"].value
            assert isinstance(await store.commit([], [Put("after", b"")]), Committed)


async def first_pair(store: MetadataStore) -> Read:
    with trio.fail_after(30):
        async with store.watch("pair/") as watch:
            async for _ in watch:
                if (read := await store.get("pair/a")).entry is not None:
                    return read
    raise AssertionError("the watch ended")


async def test_many_processes_may_make_the_file_at_once(tmp_path: Path) -> None:
    family = Family(f"sqlite://{tmp_path / 'fresh.db'}")
    try:
        family.children = [Child(family.url) for _ in range(4)]
        assert [await child.answer() for child in family.children] == ["ready"] * 4
        assert (await family.children[0].ask("put k v")).startswith("revision 1 ")
        assert (await family.children[3].ask("put k v")).startswith("revision 2 ")
    finally:
        family.end()
