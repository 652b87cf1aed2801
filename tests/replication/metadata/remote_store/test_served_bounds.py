"""What a request to a served store may cost: the table of docs/writing-a-metadata-store.md, and its bounds."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication.metadata import (
    Listing,
    MemoryHub,
    MemoryStore,
    Put,
    SessionExpiredError,
    StoreUnavailableError,
    serve_store,
)
from insync.replication.metadata.remote_store import _cursors, serving
from insync.replication.metadata.remote_store import _messages as m
from insync.transport import Connection, Identity, Limits, Link, ProtocolError
from insync.transport.connections._handshake import introduce, judge_acceptor, make_hello
from insync.transport.frames import FrameType, encode_header
from insync.transport.registry import resolve

from .test_served_failures import served

HERE = Path(__file__).parents[1]
PAGE = (HERE.parents[2] / "docs" / "writing-a-metadata-store.md").read_text(encoding="utf-8")
TABLE = PAGE.split("| request | bound | test |", 1)[1].split("\n\n", 1)[0]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.splitlines()[2:]]


def test_every_kind_of_request_has_a_bound_and_every_bound_a_test() -> None:
    """A new kind comes with a row that says what its requests may cost, and a test of that."""
    assert {kind for row in ROWS for kind in re.findall(r"`([A-Z_]+)`", row[0])} == {k.name for k in m.Kind}
    for request, bound, tests in ROWS:
        named = re.findall(r"`(\w+\.py)::(\w+)`", tests)
        assert named, (request, bound)
        for file, name in named:
            (found,) = HERE.rglob(file)
            text = found.read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\b", text, re.MULTILINE), (file, name)


def test_the_numbers_are_those_of_the_code() -> None:
    limits = {
        "_MOST_UNSENT": (_cursors._MOST_UNSENT >> 20, "8 MiB"),
        "_MOST_CURSORS": (_cursors._MOST_CURSORS, "8 snapshots"),
        "_MOST_READINGS": (serving._MOST_READINGS, "8 are made"),
        "_MOST_SESSIONS": (serving._MOST_SESSIONS, "10,000 sessions"),
        "_MOST_WATCHES": (serving._MOST_WATCHES, "1,000 of"),
    }
    for name, (value, text) in limits.items():
        (bound,) = [bound for _, bound, _ in ROWS if f"`{name}`" in bound]
        assert text in bound
        assert value == int(text.split()[0].replace(",", "")), name


class Told(serving.Cursors):
    """Remembers for whom it has pages."""

    made: Told

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[Connection] = []
        Told.made = self

    def first_page(self, connection: Connection, found: m.Found) -> bytes:
        self.connections.append(connection)
        return super().first_page(connection, found)


@asynccontextmanager
async def deaf(store: MemoryStore) -> AsyncIterator[Link]:
    """A link to a server of the store, after the handshake, that nobody reads."""
    async with store, trio.open_nursery() as nursery:
        serving = await nursery.start(serve_store, store, "mem://bounds/deaf")
        transport, endpoint = resolve(serving.endpoints[0])
        link = await transport.connect(endpoint)
        await introduce(link, make_hello(Identity(node_id=1), "", Limits()), judge_acceptor, dialer=True)
        yield link
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [m.Kind.GET, m.Kind.LIST], ids=["entries", "listings"])
async def test_who_takes_no_answers_is_told_no_more(monkeypatch: pytest.MonkeyPatch, kind: m.Kind) -> None:
    monkeypatch.setattr(serving, "Cursors", Told)
    monkeypatch.setattr(_cursors, "PAGE_BYTES", 20_000)
    monkeypatch.setattr(_cursors, "_MOST_UNSENT", 200_000)
    hub = MemoryHub()
    hub.commit([], [Put(f"k{number}", bytes(15_000)) for number in range(3)], None)
    async with deaf(hub.store()) as link:
        await link.send(encode_header(FrameType.REQUEST, 1, kind=m.Kind.LIST, body=m.encode(m.Key(""))), ())
        await trio.testing.wait_all_tasks_blocked()
        (connection,) = Told.made.connections
        body = m.encode(m.Key("k0" if kind == m.Kind.GET else ""))
        # What lies in the network between both is more than some megabytes.
        for number in range(1_000):
            await link.send(encode_header(FrameType.REQUEST, 3 + 2 * number, kind=kind, body=body), ())
        await trio.testing.wait_all_tasks_blocked()
        assert 200_000 < connection.unsent < 200_000 + 20_000 + 1_000 * 200
        link.abort()


class Gated(MemoryStore):
    """Listings begin, and end when they may."""

    begun = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.may_end = trio.Event()

    async def list(self, prefix: str) -> Listing:
        self.begun += 1
        await self.may_end.wait()
        return await super().list(prefix)


async def test_so_many_listings_are_made_at_a_time() -> None:
    store = Gated(MemoryHub())
    async with served(store) as remote, trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(remote.list, "")
        await trio.testing.wait_all_tasks_blocked()
        assert store.begun == serving._MOST_READINGS
        store.may_end.set()
    assert store.begun == 30


async def test_so_many_snapshots_of_a_connection_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "Cursors", Told)
    monkeypatch.setattr(_cursors, "PAGE_BYTES", 100)
    hub = MemoryHub()
    hub.commit([], [Put(f"k{number}", b"value") for number in range(20)], None)
    async with served(hub.store()) as store:
        cursors = []
        for _ in range(_cursors._MOST_CURSORS + 1):
            page = m.decode(await store.ask(m.Kind.LIST, m.Key("")), m.Found)
            cursors.append(page.more)
        (reader,) = Told.made._readers.values()
        assert len(reader.pages) == _cursors._MOST_CURSORS
        with pytest.raises(StoreUnavailableError, match="read again from the start"):
            await store.ask(m.Kind.MORE, m.Cursor(cursors[0]))
        await store.ask(m.Kind.MORE, m.Cursor(cursors[1]))


async def test_so_many_sessions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_MOST_SESSIONS", 3)
    async with served(MemoryHub().store()) as store:
        sessions = [await store.open_session(60_000) for _ in range(3)]
        with pytest.raises(StoreUnavailableError, match="all 3 sessions"):
            await store.open_session(60_000)
        await sessions[0].close()
        await trio.testing.wait_all_tasks_blocked()
        await store.open_session(60_000)


async def test_a_handle_that_is_none_is_refused() -> None:
    async with served(MemoryHub().store()) as store:
        with pytest.raises(SessionExpiredError):
            await store.ask(m.Kind.RENEW_SESSION, m.Handle(bytes(16)))
        assert await store.ask(m.Kind.CLOSE_SESSION, m.Handle(bytes(16))) == b""


async def test_sessions_that_could_not_be_opened_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(MemoryStore):
        left = 3

        async def open_session(self, timeout_ms: int) -> Any:
            if self.left:
                self.left -= 1
                raise StoreUnavailableError("the disk is slow")
            return await super().open_session(timeout_ms)

    monkeypatch.setattr(serving, "_MOST_SESSIONS", 2)
    async with served(Failing()) as store:
        for _ in range(3):
            with pytest.raises(StoreUnavailableError, match="the disk is slow"):
                await store.open_session(60_000)
        assert await store.open_session(60_000)


def test_values_within_values_without_end_are_no_message() -> None:
    nested = m.encode(m.Key("k"))[:-2].replace(b"\x91", b"\x92") + b"\xa1k" + b"\x91" * 100_000
    with pytest.raises(ProtocolError, match="malformed Key"):
        m.decode(nested, m.Key)
