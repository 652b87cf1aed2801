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
    MemoryHub,
    MemoryStore,
    Put,
    RemoteStore,
    Resync,
    StoreUnavailableError,
    Unknown,
    serve_store,
)
from insync.replication.metadata import _remote_messages as m
from insync.replication.metadata.remote import RemoteSession
from insync.transport import Identity, RemoteError

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
        with pytest.raises(StoreUnavailableError, match="no metadata store"):
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
