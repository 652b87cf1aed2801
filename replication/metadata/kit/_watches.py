"""Conformance cases: watches."""

from __future__ import annotations

import trio
import trio.testing

from ....transport.patience import PATIENCE
from ...promises import PromiseBrokenError, collect, expect
from .._values import Delete, Operation, Put
from ..abc import MetadataStore, Session, Watch
from ..errors import StoreClosedError
from ._frame import CASE_SECONDS, LONG_MS, Bench, Case, commit, expect_equal, raising, see, value_of

CASES: list[Case] = []
_case = collect(Case, CASES)

_PAUSES = 40
"""The number of different pauses between two changes."""


async def _is_quiet(watch: Watch, seconds: float) -> bool:
    with trio.move_on_after(seconds) as scope:
        await watch.__anext__()
    return scope.cancelled_caught


@_case
async def first_event_comes_at_once(bench: Bench) -> None:
    """A new watch has an event ready, at the store's revision, and then waits."""
    async with bench.handle() as store:
        done = await commit(store, Put("k", b""))
        async with store.watch("w/") as watch:
            await see(bench, watch, done.revision, "the opening of the watch")
            expect(await _is_quiet(watch, 0.05), "an event came though nothing changed")


@_case
async def own_and_foreign_commits_are_seen(bench: Bench) -> None:
    """Puts and deletes by this handle and by another one are seen in time."""
    steps: list[Operation] = [Put("w/k", b"1"), Put("w/k", b"1"), Put("w/j", b""), Delete("w/k")]
    async with bench.handle() as store, bench.handle() as other, store.watch("w/") as watch:
        await watch.__anext__()
        for writer in (store, other):
            for step in steps:
                done = await commit(writer, step)
                await see(bench, watch, done.revision, f"{step}")


@_case
async def end_of_a_session_is_seen(bench: Bench) -> None:
    """When a session is closed, or is lost, a watch of its ephemeral keys tells so, and they are gone."""
    async with bench.handle() as store, bench.handle() as other, other.watch("e/") as watch:
        for timeout_ms, end in ((LONG_MS, _close), (bench.short_ms, _lose)):
            session = await store.open_session(timeout_ms)
            done = await commit(store, Put("e/k", b"", ephemeral=True), session=session)
            await see(bench, watch, done.revision, "the ephemeral put")
            await end(bench, session)
            with trio.fail_after(bench.short_seconds + bench.late):
                while await value_of(other, "e/k") is not None:
                    await watch.__anext__()


async def _close(bench: Bench, session: Session) -> None:
    await session.close()


async def _lose(bench: Bench, session: Session) -> None:
    bench.lose(session)


@_case
async def events_are_coalesced(bench: Bench) -> None:
    """While nobody asks, any number of changes makes one event, which names the newest revision in time."""
    async with bench.handle() as store, store.watch("w/") as watch:
        await watch.__anext__()
        for number in range(50):
            done = await commit(store, Put(f"w/{number}", b""))
        events = 0
        revision = -1
        while revision < done.revision:
            revision = (await watch.__anext__()).revision
            events += 1
        expect(events <= 3, f"50 changes that nobody asked for made {events} events")


@_case
async def the_last_change_is_never_missed(bench: Bench) -> None:
    """A reader that lists after each event ends with the newest state, whatever the timing."""
    until = trio.current_time() + CASE_SECONDS * PATIENCE / 2
    async with bench.handle() as reader, bench.handle() as writer, reader.watch("w/") as watch:
        await watch.__anext__()
        for number in range(1, 2 * _PAUSES, 2):
            if trio.current_time() < until:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_write_two, writer, number)
                    await _read_up_to(bench, reader, watch, number)


async def _write_two(store: MetadataStore, last: int) -> None:
    """The second so many moments after the first, or so long; none follows that makes up for its event."""
    await commit(store, Put("w/k", b"%d" % (last - 1)))
    steps = last // 4
    if last % 4 == 1:
        await trio.sleep(0.0002 * steps**2)
    else:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
    await commit(store, Put("w/k", b"%d" % last))


async def _read_up_to(bench: Bench, store: MetadataStore, watch: Watch, last: int) -> None:
    seen = last - 2
    with trio.move_on_after(bench.late + PATIENCE):
        while seen < last:
            await watch.__anext__()
            now = int(await value_of(store, "w/k") or b"-1")
            expect(now >= seen, f"the reader went back from {seen} to {now}")
            seen = now
    expect(seen == last, f"no event led from change {seen} to {last}, which was the last for a while")


@_case
async def watches_are_independent(bench: Bench) -> None:
    """Every watch gets the news, whatever others of the same or another prefix have taken or left."""
    async with bench.handle() as store, store.watch("a") as wide, store.watch("a/b/") as narrow:
        async with store.watch("a/b/") as left:
            await left.__anext__()
        await wide.__anext__()
        await narrow.__anext__()
        done = await commit(store, Put("a/b/c", b""))
        await see(bench, wide, done.revision, "the wide watch")
        await see(bench, narrow, done.revision, "the narrow watch")
        done = await commit(store, Put("a/x", b""))
        await see(bench, wide, done.revision, "the wide watch alone")


@_case
async def cancelled_wait_loses_no_event(bench: Bench) -> None:
    """An event that comes after a cancelled wait is there for the next one."""
    async with bench.handle() as store, store.watch("w/") as watch:
        await watch.__anext__()
        expect(await _is_quiet(watch, 0.02), "an event came though nothing changed")
        done = await commit(store, Put("w/k", b""))
        with trio.CancelScope() as scope:
            scope.cancel()
            await watch.__anext__()
        await see(bench, watch, done.revision, "the change before a cancelled wait")


@_case
async def iteration_ends_with_the_watch(bench: Bench) -> None:
    """Leaving the watch ends the iteration of a waiting task."""
    async with bench.handle() as store, trio.open_nursery() as nursery:
        events: list[int] = []
        finished = trio.Event()
        async with store.watch("w/") as watch:
            nursery.start_soon(_follow, watch, events, finished)
            await trio.testing.wait_all_tasks_blocked(0.01)
        await finished.wait()
        expect_equal(len(events), 1, "the events of a watch without changes")


async def _follow(watch: Watch, events: list[int], finished: trio.Event) -> None:
    async for event in watch:
        events.append(event.revision)
    finished.set()


@_case
async def leaving_the_store_wakes_its_watches(bench: Bench) -> None:
    """A task that waits for an event when the store is left gets `StoreClosedError`."""
    async with trio.open_nursery() as nursery:
        waiting, raised = trio.Event(), trio.Event()
        async with bench.handle() as store:
            nursery.start_soon(_wait_for_the_end, store, waiting, raised)
            await waiting.wait()
        await raised.wait()


async def _wait_for_the_end(store: MetadataStore, waiting: trio.Event, raised: trio.Event) -> None:
    with raising(StoreClosedError):
        async with store.watch("w/") as watch:
            await watch.__anext__()
            waiting.set()
            raise PromiseBrokenError(f"an event came though nothing changed: {await watch.__anext__()}")
    raised.set()
