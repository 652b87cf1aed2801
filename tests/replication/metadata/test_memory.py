"""What the memory store adds to the interface: virtual time, and the faults that a test may inject."""

import pytest
import trio
from trio.testing import MockClock

from insync.replication.metadata import (
    Changed,
    Committed,
    MemoryHub,
    MemoryStore,
    Missing,
    Put,
    Resync,
    SessionExpiredError,
    StoreUnavailableError,
    Unknown,
)


async def test_sessions_follow_trios_clock(autojump_clock: MockClock) -> None:
    hub = MemoryHub()
    async with hub.store() as store:
        session = await store.open_session(6_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        await trio.sleep(100)
        assert not session.expired.is_set()
        began = trio.current_time()
        hub.stop_renewing(session)
        await session.expired.wait()
        assert trio.current_time() - began == pytest.approx(6)
        assert (await store.get("e")).entry is None


async def test_expire_ends_a_session_at_once() -> None:
    hub = MemoryHub()
    async with hub.store() as store, hub.store() as other, other.watch("e") as watch:
        session = await store.open_session(6_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        assert await watch.__anext__() == Resync(1)
        hub.expire(session)
        assert session.expired.is_set()
        assert await watch.__anext__() == Changed("e", 2)
        with pytest.raises(SessionExpiredError, match=f"session {session.id} "):
            await store.commit([], [], session=session)


async def test_outage_refuses_calls_and_ends_in_a_resync(autojump_clock: MockClock) -> None:
    hub = MemoryHub()
    async with hub.store() as store, store.watch("k") as watch:
        short, long = await store.open_session(1_000), await store.open_session(9_000)
        assert await watch.__anext__() == Resync(0)
        hub.start_outage()
        for call in (store.get("k"), store.list(""), store.commit([], []), store.open_session(1)):
            with pytest.raises(StoreUnavailableError, match="outage"):
                await call
        with pytest.raises(StoreUnavailableError):
            await long.close()
        await trio.sleep(5)
        assert short.expired.is_set()
        hub.end_outage()
        assert await watch.__anext__() == Resync(1)
        await trio.sleep(20)
        assert not long.expired.is_set()
        assert await store.commit([Missing("k")], [Put("k", b"")], session=long) == Committed(2, {"k": 1})


@pytest.mark.parametrize(("how", "applied"), [("applied", True), ("dropped", False)])
async def test_lost_outcome_is_unknown_once(how: str, applied: bool) -> None:
    hub = MemoryHub()
    async with hub.store() as store:
        hub.lose_next_outcome("applied" if how == "applied" else "dropped")
        assert isinstance(await store.commit([], [Put("k", b"")]), Unknown)
        assert ((await store.get("k")).entry is not None) is applied
        assert isinstance(await store.commit([], [Put("k", b"")]), Committed)


async def test_watch_delay_holds_events_back_and_merges_them(autojump_clock: MockClock) -> None:
    hub = MemoryHub()
    hub.watch_delay = 3.0
    async with hub.store() as store, store.watch("k") as watch:
        began = trio.current_time()
        assert await watch.__anext__() == Resync(0)
        assert trio.current_time() - began == pytest.approx(3)
        await store.commit([], [Put("k", b"1")])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_put_later, store)
            assert await watch.__anext__() == Changed("k", 2)


async def _put_later(store: MemoryStore) -> None:
    await trio.sleep(2)
    await store.commit([], [Put("k", b"2")])


async def test_unrelated_prefixes_stay_quiet(autojump_clock: MockClock) -> None:
    async with MemoryStore() as store, store.watch("a/") as watch:
        await watch.__anext__()
        await store.commit([], [Put("b", b"")])
        with trio.move_on_after(1) as scope:
            await watch.__anext__()
        assert scope.cancelled_caught


async def test_error_in_the_body_is_not_wrapped() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with MemoryStore() as store:
            await store.open_session(1_000)
            raise KeyError("mine")
