"""A standby becomes the primary: with synchronous replication nothing is lost, else nodes refuse the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from insync.plugins.postgresql import PostgresqlAddress, PostgresqlStore
from insync.replication import Admin
from insync.replication.metadata import Committed, Outcome, Put, StoreUnavailableError, Unknown
from insync.replication.node import Node, NodeSettings, StorePutBackError

from .server import PostgresqlServer, postgresql
from .test_processes import TIMEOUT_MS, eventually, gap
from .test_store import until, until_waiting


@pytest.fixture
def standby(own_server: PostgresqlServer) -> Iterator[PostgresqlServer]:
    with postgresql(standby_of=own_server) as standby:
        yield standby


def both(one: PostgresqlServer, two: PostgresqlServer) -> str:
    """The standby first: it must not be taken for the primary."""
    return f"postgresql://postgres@{two.host},{one.host}/postgres?namespace=orders"


async def fail_over(primary: PostgresqlServer, standby: PostgresqlServer) -> None:
    primary.kill()
    await trio.to_thread.run_sync(standby.execute, "SELECT pg_promote()")


async def test_synchronous_standby_has_every_commit(
    own_server: PostgresqlServer, standby: PostgresqlServer
) -> None:
    own_server.set("synchronous_standby_names", "standby")
    store = PostgresqlStore(PostgresqlAddress.parse(both(own_server, standby)))
    async with store, store.watch("") as watch:
        session = await store.open_session(60_000)
        last = await store.commit([], [Put("e", b"1", ephemeral=True)], session=session)
        for number in range(50):
            last = await store.commit([], [Put("k", b"%d" % number)])
        assert isinstance(last, Committed)
        await watch.__anext__()
        await fail_over(own_server, standby)
        await gap(watch)
        listing = await store.list("")
        assert listing.revision == last.revision and listing.entries["k"].value == b"49"
        assert isinstance(await eventually(store, Put("e", b"2", ephemeral=True), session), Committed)


async def test_a_primary_that_was_made_read_only_is_left_for_the_next(
    own_server: PostgresqlServer, standby: PostgresqlServer
) -> None:
    own_server.set("synchronous_standby_names", "standby")
    store = PostgresqlStore(PostgresqlAddress.parse(both(own_server, standby)))
    async with store, store.watch("") as watch:
        assert isinstance(await store.commit([], [Put("k", b"1")]), Committed)
        await watch.__anext__()
        own_server.set("default_transaction_read_only", "on")
        await trio.to_thread.run_sync(standby.execute, "SELECT pg_promote()")
        assert isinstance(await eventually(store, Put("k", b"2")), Committed)
        await gap(watch)
        assert standby.execute("SELECT value FROM orders.entries") == [(b"2",)]


async def test_a_wait_for_a_standby_that_is_cut_short_is_unknown(
    own_server: PostgresqlServer, standby: PostgresqlServer
) -> None:
    """PostgreSQL answers with success and a warning then, though the standby lacks the commit."""
    async with PostgresqlStore(PostgresqlAddress.parse(own_server.url("orders"))) as store:
        standby.kill()
        outcomes = list[Outcome]()

        async def commit() -> None:
            outcomes.append(await store.commit([], [Put("k", b"v")]))

        session = await store.open_session(TIMEOUT_MS)
        own_server.set("synchronous_standby_names", "standby")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            waiting = await until_waiting(own_server, "%transact%")
            assert (
                await trio.to_thread.run_sync(own_server.execute, "SELECT count(*) FROM orders.entries")
            ) == [(0,)]
            before = session.renewed
            await until(lambda: session.renewed > before or session.expired.is_set())
            assert not session.expired.is_set()  # renewals do not wait
            own_server.execute(f"SELECT pg_cancel_backend({waiting})")
        assert isinstance(outcomes[0], Unknown) and "synchronous replication" in outcomes[0].reason
        own_server.set("synchronous_standby_names", "''")


async def test_nodes_refuse_a_standby_that_lacks_the_last_commits(
    own_server: PostgresqlServer, standby: PostgresqlServer, tmp_path: Path
) -> None:
    settings = NodeSettings(
        node_id=1,
        data_dir=tmp_path / "node",
        store=both(own_server, standby),
        listeners=("tcp://127.0.0.1:0",),
        proof_interval_ms=100,
    )
    refused = pytest.RaisesExc(StorePutBackError, match="older state")
    with pytest.RaisesGroup(refused, flatten_subgroups=True, allow_unwrapped=True):
        async with Node(settings) as node, Admin(node.endpoints) as admin:
            standby.set("primary_conninfo", "''")
            await until(lambda: own_server.execute("SELECT FROM pg_stat_replication") == [])
            await admin.create_topic("t", 1, 1)
            for _ in range(2):  # signs of life that the standby lacks, too
                await until_changed(tmp_path / "node" / "insync.proof")
            await fail_over(own_server, standby)
            with trio.fail_after(60):
                await trio.sleep_forever()
    with pytest.raises(StorePutBackError, match=r"older state than this node has seen.*insync store repair"):
        async with Node(settings):
            pytest.fail("it must not start")


async def until_changed(file: Path) -> None:
    before = file.read_bytes()  # noqa: ASYNC240 - a few bytes
    await until(lambda: file.read_bytes() != before)


async def test_without_a_primary_the_store_is_away(
    own_server: PostgresqlServer, standby: PostgresqlServer
) -> None:
    async with PostgresqlStore(PostgresqlAddress.parse(both(own_server, standby))) as store:
        own_server.kill()
        with pytest.raises(StoreUnavailableError):
            await store.get("k")
        with pytest.raises(StoreUnavailableError, match=r"read-only|hot standby"):
            await store.get("k")
