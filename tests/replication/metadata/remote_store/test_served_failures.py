"""A served store whose store, answers or connections fail: what was lost is never told as "nothing was written"."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from insync.replication.metadata import (
    Changed,
    Committed,
    Conflict,
    InvalidTransactionError,
    MemoryHub,
    MemoryStore,
    Put,
    RemoteStore,
    Resync,
    SessionExpiredError,
    StoreUnavailableError,
    Unknown,
    serve_store,
)
from insync.replication.metadata.remote_store import _cursors, serving
from insync.replication.metadata.remote_store import _messages as m
from insync.replication.metadata.remote_store.client import RemoteSession
from insync.transport import Identity, RemoteError, Request

_numbers = count()


@asynccontextmanager
async def served(inner: MemoryStore) -> AsyncIterator[RemoteStore]:
    async with inner, trio.open_nursery() as nursery:
        serving = await nursery.start(serve_store, inner, f"mem://failures/{next(_numbers)}")
        async with RemoteStore(serving.endpoints[0], identity=Identity(node_id=1)) as store:
            yield store
        nursery.cancel_scope.cancel()


def cut(store: RemoteStore) -> None:
    assert store._connection is not None
    store._connection.abort("a test cuts the connection")


class Foreign(MemoryStore):
    """After each commit, and in each read, it raises what the interface does not know."""

    async def get(self, key: str) -> Any:
        raise KeyError(key)

    async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Any:
        await super().commit(compares, operations, session=session)
        raise OSError("the disk is gone")


async def test_foreign_errors_of_a_served_store_end_neither_server_nor_transaction() -> None:
    async with served(Foreign()) as store:
        outcome = await store.commit([], [Put("k", b"")])
        assert isinstance(outcome, Unknown) and "OSError: the disk is gone" in outcome.reason
        assert "k" in (await store.list("")).entries
        with pytest.raises(StoreUnavailableError, match="KeyError: 'j'"):
            await store.get("j")
        assert "k" in (await store.list("")).entries


@pytest.mark.parametrize("answer", [b"", b"\xc1", msgspec.msgpack.encode(["text"])])
async def test_answer_that_cannot_be_read_leaves_a_transaction_unknown(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = MemoryHub()
    async with served(hub.store()) as store:
        asked = store.ask

        async def garble(*arguments: Any) -> bytes:
            await asked(*arguments)
            return answer

        monkeypatch.setattr(store, "ask", garble)
        assert isinstance(await store.commit([], [Put("k", b"")]), Unknown)
        assert hub.get("k").entry is not None
        with pytest.raises(StoreUnavailableError, match="not a metadata store"):
            await store.get("k")


async def test_code_that_is_not_the_stores_leaves_a_transaction_unknown() -> None:
    """Such as an answer that was too large to be sent, after the transaction was carried out."""
    store = RemoteStore("mem://failures/nowhere")
    assert not isinstance(store._raised(RemoteError(m.Failure.UNAVAILABLE, "busy")), type(_lost(store)))
    assert type(store._raised(RemoteError(m.Failure.FAILED, "?"))) is type(_lost(store))


def _lost(store: RemoteStore) -> Exception:
    return store._raised(RemoteError(12345, "the answer has a payload of 3 bytes, above 2"))


async def test_connection_lost_after_the_transaction_was_sent_leaves_it_unknown() -> None:
    class Cutting(MemoryStore):
        async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Any:
            outcome = await super().commit(compares, operations, session=session)
            cut(clients[0])
            await trio.testing.wait_all_tasks_blocked()
            return outcome

    clients: list[RemoteStore] = []
    hub = MemoryHub()
    async with served(Cutting(hub)) as store:
        clients.append(store)
        assert isinstance(await store.commit([], [Put("k", b"")]), Unknown)
        assert hub.get("k").entry is not None


# what an outside reader's errors survived


async def test_resync_after_a_lost_connection_reaches_the_watch() -> None:
    """The event that opened the watch is not it: it was taken before."""
    hub = MemoryHub()
    async with served(hub.store()) as store, store.watch("w/") as watch:
        assert await watch.__anext__() == Resync(0)
        await trio.testing.wait_all_tasks_blocked()
        cut(store)
        with trio.fail_after(20):
            event = await watch.__anext__()
        assert isinstance(event, Resync)
        await store.commit([], [Put("w/k", b"")])
        with trio.fail_after(20):
            assert await watch.__anext__() == Changed("w/", 1)


async def test_change_while_the_connection_is_away_comes_with_the_resync() -> None:
    hub = MemoryHub()
    async with served(hub.store()) as store, store.watch("w/") as watch, hub.store() as other:
        assert await watch.__anext__() == Resync(0)
        await trio.testing.wait_all_tasks_blocked()
        cut(store)
        await other.commit([], [Put("w/k", b"")])
        with trio.fail_after(20):
            event = await watch.__anext__()
        assert isinstance(event, Resync) and event.revision == 1


async def test_lease_counts_from_the_question(autojump_clock: MockClock) -> None:
    """The server may have renewed it when the question came, long before the answer is here."""
    hub = MemoryHub()
    async with served(hub.store()) as store:
        session = await store.open_session(10_000)
        assert isinstance(session, RemoteSession)
        began = trio.current_time()
        asked = store.ask

        async def late(kind: m.Kind, *arguments: Any) -> bytes:
            body = await asked(kind, *arguments)
            if kind == m.Kind.RENEW_SESSION:
                await trio.sleep(2)  # within the time that a renewal may take
                store.ask = never  # type: ignore[method-assign]
            return body

        async def never(kind: m.Kind, *arguments: Any) -> bytes:
            if kind != m.Kind.RENEW_SESSION:
                return await asked(kind, *arguments)
            raise StoreUnavailableError("no answer any more")

        store.ask = late  # type: ignore[method-assign]
        with trio.fail_after(60):
            await session.expired.wait()
        # The first renewal was asked after a quarter of the timeout, and holds for a timeout from then.
        assert trio.current_time() - began == pytest.approx(12.5, abs=0.2)


async def test_lease_of_a_new_session_counts_from_the_question(autojump_clock: MockClock) -> None:
    hub = MemoryHub()
    async with served(hub.store()) as store:
        asked = store.ask

        async def late(kind: m.Kind, *arguments: Any) -> bytes:
            if kind == m.Kind.RENEW_SESSION:
                raise StoreUnavailableError("no answer")
            body = await asked(kind, *arguments)
            if kind == m.Kind.OPEN_SESSION:
                await trio.sleep(4)
            return body

        store.ask = late  # type: ignore[method-assign]
        began = trio.current_time()
        session = await store.open_session(10_000)
        with trio.fail_after(60):
            await session.expired.wait()
        assert trio.current_time() - began == pytest.approx(10, abs=0.2)


async def test_server_ends_a_session_that_nobody_renews_in_time(autojump_clock: MockClock) -> None:
    hub = MemoryHub()
    async with served(hub.store()) as store, hub.store() as other, other.watch("e") as watch:
        session = await store.open_session(10_000)
        assert isinstance(session, RemoteSession)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        await trio.sleep(30)
        assert (await other.get("e")).entry is not None, "renewed, it lives"
        session.stop_renewing()
        began = trio.current_time()
        with trio.fail_after(60):
            while (await other.get("e")).entry is not None:
                await watch.__anext__()
        assert 7 < trio.current_time() - began < 10.3
        assert isinstance(await store.commit([], [Put("p", b"")]), Committed)


async def test_session_that_is_over_here_writes_nothing_though_the_server_has_it_still() -> None:
    """As after silence: the server counts from the last renewal that it heard of, and may give it some time yet."""
    hub = MemoryHub()
    async with served(hub.store()) as store:
        session = await store.open_session(60_000)
        session.expired.set()
        with pytest.raises(SessionExpiredError, match=f"session {session.id} is over"):
            await store.commit([], [Put("zombie", b"")], session=session)
        assert hub.get("zombie").entry is None


async def test_session_whose_end_the_store_refuses_for_now_is_over_at_once(autojump_clock: MockClock) -> None:
    """Nobody renews it any more, and the store behind cannot end it yet: it must not come back to life."""

    class Stuck(MemoryStore):
        async def open_session(self, timeout_ms: int) -> Any:
            session = await super().open_session(timeout_ms)

            async def close() -> None:
                raise StoreUnavailableError("not now")

            session.close = close  # type: ignore[method-assign]
            return session

    async with served(Stuck()) as store:
        session = await store.open_session(10_000)
        session.stop_renewing()
        await trio.sleep(15)
        with pytest.raises(SessionExpiredError):
            await store.ask(m.Kind.RENEW_SESSION, m.Handle(session.handle))
        with pytest.raises(SessionExpiredError):
            await store.commit([], [Put("zombie", b"")], session=session)
        assert "zombie" not in (await store.list("")).entries


async def test_watches_of_one_connection_are_bounded_and_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_MOST_WATCHES", 3)
    hub = MemoryHub()
    async with served(hub.store()) as store:
        for number in range(3):
            await store.ask(m.Kind.WATCH, m.WatchNext(number, "w/"))
        with pytest.raises(InvalidTransactionError, match="may watch 3 prefixes"):
            await store.ask(m.Kind.WATCH, m.WatchNext(3, "w/"))
        (handle,) = hub._handles
        assert len(handle.watches) == 3
        cut(store)
        await trio.testing.wait_all_tasks_blocked()
        assert len(handle.watches) == 0
        async with store.watch("w/") as watch:
            assert isinstance(await watch.__anext__(), Resync)


async def test_a_watch_that_is_left_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_MOST_WATCHES", 1)
    hub = MemoryHub()
    async with served(hub.store()) as store:
        for _ in range(3):
            async with store.watch("w/") as watch:
                assert isinstance(await watch.__anext__(), Resync)
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            (handle,) = hub._handles
            assert len(handle.watches) == 0


async def test_cursors_end_with_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[serving.Cursors] = []

    class Watched(serving.Cursors):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(serving, "Cursors", Watched)
    monkeypatch.setattr(_cursors, "PAGE_BYTES", 100)
    hub = MemoryHub()
    hub.commit([], [Put(f"k{number}", b"value") for number in range(20)], None)
    async with served(hub.store()) as store:
        await store.ask(m.Kind.LIST, m.Key(""))
        assert len(made[0]._readers) == 1
        cut(store)
        await trio.testing.wait_all_tasks_blocked()
        assert not made[0]._readers


class Slow(MemoryStore):
    seconds = 30.0

    async def commit(self, compares: Any, operations: Any, *, session: Any = None) -> Any:
        await trio.sleep(self.seconds)
        return await super().commit(compares, operations, session=session)


async def test_transaction_that_was_given_up_does_not_take_effect_later(autojump_clock: MockClock) -> None:
    """By the time it could, its sender has read what came of it: nothing."""
    hub = MemoryHub()
    slow = Slow(hub)
    slow.seconds = 3.0  # sooner than the server would give it up by itself
    async with served(slow) as store:
        with trio.move_on_after(1):
            await store.commit([], [Put("cancelled", b"")])
        await trio.sleep(100)
        assert hub.revision == 0


async def test_transaction_whose_time_is_over_does_not_take_effect_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the news that it was given up does not reach the server."""
    monkeypatch.setattr(Request, "on_cancel", lambda *_: None)
    hub = MemoryHub()
    async with served(Slow(hub)) as store:
        assert isinstance(await store.commit([], [Put("late", b"")]), Unknown)
        await trio.sleep(100)
        assert hub.revision == 0


@pytest.mark.parametrize(
    "outcome", [Committed(3, {"k": 2}), Committed(3, {}), Conflict("k"), Unknown("gone")]
)
def test_an_outcome_arrives_as_the_store_told_it(outcome: Committed | Conflict | Unknown) -> None:
    assert m.Ended.of(outcome).outcome() == outcome
