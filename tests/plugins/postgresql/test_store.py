"""The PostgreSQL store's own: its URL, passwords, other things in its place, and errors of the server."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
import trio

from insync.plugins.postgresql import PostgresqlAddress, PostgresqlStore
from insync.plugins.postgresql._link import CALL_SECONDS
from insync.plugins.postgresql._schema import KEPT_TOMBSTONES, channel
from insync.replication.metadata import (
    Changed,
    Committed,
    Delete,
    Delta,
    GuardedStore,
    InvalidStoreUrlError,
    InvalidTransactionError,
    Missing,
    Outcome,
    Put,
    StoreCorruptError,
    StoreDeviceError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnsupportedError,
    StoreVersionError,
    TooOld,
    Unknown,
    open_store,
)

from .server import PostgresqlServer

_numbers = count()


def fresh(server: PostgresqlServer, **more: str) -> str:
    """The URL of a namespace that nobody has used."""
    return server.url(f"own_{next(_numbers)}", **more)


def store_at(url: str) -> PostgresqlStore:
    return PostgresqlStore(PostgresqlAddress.parse(url))


def namespace_of(url: str) -> str:
    return url.rpartition("=")[2]


async def refusal(url: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        async with store_at(url):
            raise AssertionError("it was opened")


# the URL


def test_urls() -> None:
    address = PostgresqlAddress.parse("postgresql://joe@a,b:6432/shop?sslmode=require&namespace=orders")
    assert (address.namespace, address.user) == ("orders", "joe")
    found = dict(address.parameters)
    assert (found["host"], found["port"], found["dbname"]) == ("a,b", ",6432", "shop")
    assert (found["sslmode"], found["target_session_attrs"]) == ("require", "read-write")
    other = PostgresqlAddress.parse(
        "postgresql:///shop?host=/run/pg&target_session_attrs=any&connect_timeout=9"
    )
    assert (other.namespace, other.user) == ("insync", None)
    assert (other.parameters["target_session_attrs"], other.parameters["connect_timeout"]) == (
        "read-write",
        "9",
    )
    store = open_store("postgresql://h/shop")
    assert isinstance(store, GuardedStore) and isinstance(store.inner, PostgresqlStore)
    assert store.inner.address.parameters["host"] == "h"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/db?namespace=",
        "postgresql://h/db?namespace=public",
        "postgresql://h/db?namespace=pg_x",
        "postgresql://h/db?namespace=Orders",
        "postgresql://h/db?namespace=1st",
        'postgresql://h/db?namespace=a"b',
        "postgresql://h/db?namespace=" + "a" * 49,
        "postgresql://h/db?no_such_parameter=1",
        "postgresql://joe:secret@[::1/db",
        "postgresql://h/db?user=joe&password=secret",
        "postgresql://h/db?sslpassword=secret",
    ],
)
def test_malformed_urls(url: str) -> None:
    with pytest.raises(InvalidStoreUrlError) as caught:
        open_store(url)
    assert "secret" not in "".join(map(str, (caught.value, caught.value.__cause__)))


# passwords


@pytest.fixture(scope="module")
def locked(server: PostgresqlServer) -> PostgresqlServer:
    """With a user that needs a password, and a database of its own."""
    server.execute("CREATE ROLE locked LOGIN PASSWORD 'right'", "CREATE DATABASE locked OWNER locked")
    return server


async def test_a_password_comes_from_a_file_the_environment_or_the_url(
    locked: PostgresqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh(locked, user="locked", database="locked")
    await refusal(url, StoreRefusedError, r"no password supplied.*PGPASSFILE")
    file = tmp_path / "pgpass"
    file.write_text("*:*:*:locked:right\n")
    file.chmod(0o600)
    with monkeypatch.context() as environment:
        environment.setenv("PGPASSFILE", str(file))
        async with store_at(url) as store:
            assert isinstance(await store.commit([], [Put("k", b"v")]), Committed)
    with monkeypatch.context() as environment:
        environment.setenv("PGPASSWORD", "right")
        async with store_at(url):
            pass
    async with store_at(url.replace("locked@", "locked:right@")):
        pass


async def test_no_message_shows_a_password(
    locked: PostgresqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = fresh(locked, user="locked:wrong%2Fsecret", database="locked")
    with pytest.raises(StoreRefusedError, match=r"authentication failed.*PGPASSFILE") as caught:
        async with open_store(url) as store:
            raise AssertionError("it was opened")
    store = open_store(url)
    assert isinstance(store.inner, PostgresqlStore)
    seen = [caplog.text, str(caught.value), repr(caught.value.__cause__), store.name]
    seen += [str(store.inner.address), repr(store.inner.address)]
    assert not [text for text in seen if "secret" in text]


# opening


async def test_what_is_missing_is_named(server: PostgresqlServer) -> None:
    await refusal(
        fresh(server, database="nowhere"), StoreUnavailableError, '"nowhere" does not exist.*createdb'
    )
    await refusal(fresh(server, user="nobody_such"), StoreRefusedError, "does not exist.*check the user")
    await refusal("postgresql://127.0.0.1:1/x", StoreUnavailableError, r"127\.0\.0\.1.*refused")


async def test_a_role_without_rights_uses_what_an_administrator_has_made(server: PostgresqlServer) -> None:
    server.execute('CREATE ROLE "Ordinary" LOGIN')
    url = fresh(server, user="Ordinary")
    await refusal(
        url, StoreRefusedError, r"permission denied.*insync store ddl URL.*42501|42501.*insync store ddl URL"
    )
    printed = await trio.run_process(
        [sys.executable, "-m", "insync", "store", "ddl", url], capture_stdout=True
    )
    server.execute(printed.stdout.decode())
    async with store_at(url) as store:
        session = await store.open_session(60_000)
        await store.commit([Missing("k")], [Put("k", b"v", ephemeral=True), Put("l", b"")], session=session)
        await store.commit([], [Delete("l")])
        assert await store.raise_revision(100) > 100


async def test_a_schema_that_an_administrator_has_made_is_filled(server: PostgresqlServer) -> None:
    url = fresh(server)
    server.execute(f"CREATE SCHEMA {namespace_of(url)}")
    async with store_at(url) as store:
        assert isinstance(await store.commit([], [Put("k", b"v")]), Committed)


def test_a_store_without_statements_says_so() -> None:
    with pytest.raises(StoreUnsupportedError, match="MemoryStore is made without statements"):
        open_store("memory://").ddl()


async def test_a_newer_schema_is_refused(server: PostgresqlServer) -> None:
    url = fresh(server)
    async with store_at(url):
        pass
    server.execute(f"UPDATE {namespace_of(url)}.store SET schema_version = 2")
    await refusal(url, StoreVersionError, "has schema version 2, this release knows 1")
    assert server.execute(f"SELECT schema_version FROM {namespace_of(url)}.store") == [(2,)]


@pytest.mark.parametrize("table", ["orders (id int)", "store (id int)"])
async def test_a_schema_of_another_program_is_left_alone(server: PostgresqlServer, table: str) -> None:
    url = fresh(server)
    server.execute(f"CREATE SCHEMA {namespace_of(url)}", f"CREATE TABLE {namespace_of(url)}.{table}")
    await refusal(url, StoreCorruptError, "choose another namespace")
    tables = f"SELECT count(*) FROM pg_class WHERE relnamespace = '{namespace_of(url)}'::regnamespace"
    assert server.execute(tables) == [(1,)]


async def test_a_database_that_cannot_hold_all_keys_is_refused(server: PostgresqlServer) -> None:
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    await refusal(
        fresh(server, database="latin"), StoreUnsupportedError, "encoding LATIN1.*createdb --encoding UTF8"
    )


async def test_many_handles_may_make_the_store_at_once(server: PostgresqlServer) -> None:
    won, url = [], fresh(server)

    async def race(number: int) -> None:
        async with store_at(url) as store:
            outcome = await store.commit([Missing("first")], [Put("first", b"%d" % number)])
            if isinstance(outcome, Committed):
                won.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(race, number)
    assert len(won) == 1


# history, and notifications


async def test_tombstones_are_bounded(server: PostgresqlServer) -> None:
    url = fresh(server)
    async with store_at(url) as store:
        await store.commit([], [Put("a", b"")])
        await store.commit([], [Delete("a")])
        server.execute(
            f"INSERT INTO {namespace_of(url)}.tombstones SELECT 'x' || n, 100 "
            f"FROM generate_series(1, {KEPT_TOMBSTONES - 1}) n",
            f"UPDATE {namespace_of(url)}.store SET revision = 254",
        )
        await store.commit([], [Put("b", b"")])
        assert isinstance(await store.changes("", 1), Delta)
        await store.commit([], [Put("c", b"")])
        assert isinstance(await store.changes("", 1), Delta)
        server.execute(
            f"INSERT INTO {namespace_of(url)}.tombstones VALUES ('y', 200)",
            f"UPDATE {namespace_of(url)}.store SET revision = 511",
        )
        await store.commit([], [Put("d", b"")])
        assert await store.changes("", 1) == TooOld(512)
        found = await store.changes("", 2)
        assert isinstance(found, Delta) and set(found.entries) == {"b", "c", "d"}
        assert len(found.deleted) == KEPT_TOMBSTONES
        kept = f"SELECT count(*) FROM {namespace_of(url)}.tombstones"
        assert server.execute(kept) == [(KEPT_TOMBSTONES,)]


async def test_a_change_that_comes_with_an_answer_is_seen_at_once(server: PostgresqlServer) -> None:
    """A notification may be read together with the answer to a renewal, whose snapshot is older."""
    url = fresh(server)
    async with store_at(url) as store, store_at(url) as other, store.watch("k") as watch:
        await watch.__anext__()
        session = await store.open_session(60_000)
        with server.connect() as holder, holder.transaction():
            holder.execute(f"SELECT FROM {namespace_of(url)}.sessions FOR UPDATE")
            session.renewed -= session.timeout_ms / 1000 / 2
            await other.open_session(60_000)  # wakes the handle, which finds that a renewal is due
            await until_waiting(server, f"%{namespace_of(url)}%renew%")
            done = await other.commit([], [Put("k", b"v")])
            assert isinstance(done, Committed)
        with trio.fail_after(10):
            assert await watch.__anext__() == Changed("k", done.revision)


async def test_whoever_finds_that_a_session_is_over_ends_it(server: PostgresqlServer) -> None:
    """Nobody looks by itself here: the sessions' time passes by a change that nobody is told of."""
    url = fresh(server)
    pass_away = f"UPDATE {namespace_of(url)}.sessions SET deadline = clock_timestamp() - interval '1 s'"
    async with store_at(url) as store, store_at(url) as other:
        session = await store.open_session(60_000)
        done = await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        assert isinstance(done, Committed)
        server.execute(pass_away)
        read = await other.get("e")
        assert (read.entry, read.revision) == (None, done.revision + 1)
        session = await store.open_session(60_000)
        session.renewed -= session.timeout_ms / 1000 / 2
        server.execute(pass_away, f"NOTIFY {channel(namespace_of(url))}")
        with trio.fail_after(10):
            await session.expired.wait()  # a renewal that is due comes too late


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - what the server does by itself
            await trio.sleep(0.01)


async def until_waiting(server: PostgresqlServer, query: str) -> int:
    """The process of the server in which a statement waits for a lock, or for a standby."""
    found = list[tuple[int]]()
    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type IN ('Lock', 'IPC') AND pid <> pg_backend_pid() "
        f"AND query LIKE '{query}'"
    )
    await until(lambda: found.extend(server.execute(waiting)) or found)
    return found[0][0]


# errors of the server


@contextmanager
def locked_store(server: PostgresqlServer, url: str) -> Iterator[psycopg.Connection]:
    """Somebody else holds the lock that all writers take."""
    with server.connect() as holder, holder.transaction():
        holder.execute(f"SELECT FROM {namespace_of(url)}.store FOR UPDATE")
        yield holder


async def test_sessions_are_renewed_while_the_lock_is_held(server: PostgresqlServer) -> None:
    """Whoever ends another session waits for the lock; the renewals of its own do not wait for that."""
    url = fresh(server)
    async with store_at(url) as store:
        session, lost = await store.open_session(2_000), await store.open_session(100)
        lost.stop_renewing()
        with locked_store(server, url):
            await until_waiting(server, "%begin_writing%")
            opened = session.renewed
            await until(lambda: session.renewed > opened + 2 or session.expired.is_set())
        assert not session.expired.is_set()


@pytest.mark.slow
async def test_a_held_lock_is_named(server: PostgresqlServer) -> None:
    url = fresh(server)
    async with store_at(url) as store:
        with (
            locked_store(server, url),
            pytest.raises(StoreUnavailableError, match=r"lock timeout.*pg_blocking_pids"),
        ):
            await store.commit([], [Put("k", b"v")])
        assert (await store.get("k")).entry is None
        assert isinstance(await store.commit([], [Put("k", b"v")]), Committed)


async def test_a_statement_timeout_is_named(server: PostgresqlServer) -> None:
    url = fresh(server, user="hurried")
    server.execute("CREATE ROLE hurried SUPERUSER LOGIN", "ALTER ROLE hurried SET statement_timeout = 300")
    async with store_at(url) as store:
        with (
            locked_store(server, url),
            pytest.raises(StoreUnavailableError, match=r"57014.*statement_timeout = 0"),
        ):
            await store.commit([], [Put("k", b"v")])
        assert isinstance(await store.commit([], [Put("k", b"v")]), Committed)


async def test_a_killed_backend_leaves_a_transaction_unknown(server: PostgresqlServer) -> None:
    url, outcomes = fresh(server), list[Outcome]()
    async with store_at(url) as store:

        async def commit() -> None:
            outcomes.append(await store.commit([], [Put("k", b"v")]))

        with locked_store(server, url):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit)
                pid = await until_waiting(server, "%transact%")
                server.execute(f"SELECT pg_terminate_backend({pid})")
        assert isinstance(outcomes[0], Unknown) and "57P01" in outcomes[0].reason
        assert (await store.get("k")).entry is None
        # One that rests is noticed before anything is asked of it.
        server.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'insync'"
        )
        assert isinstance(await store.commit([], [Put("k", b"v")]), Committed)


@pytest.mark.parametrize(
    ("code", "error", "remedy"),
    [
        ("53100", StoreFullError, "free space"),
        ("58030", StoreDeviceError, "check the server's device"),
        ("53200", StoreUnavailableError, "out of memory"),
        ("25006", StoreUnavailableError, "promote a standby"),
        ("55P03", StoreUnavailableError, r"pg_blocking_pids\(\)"),
        ("40001", StoreUnavailableError, "read committed"),
        ("XX001", StoreCorruptError, "restore a backup"),
        ("XX002", StoreCorruptError, "REINDEX"),
        ("22000", StoreUnavailableError, "22000"),
    ],
)
async def test_errors_of_a_code(
    server: PostgresqlServer, code: str, error: type[Exception], remedy: str
) -> None:
    """Such as a full disk, which a trigger plays: nothing is written, and the next transaction is."""
    url = fresh(server)
    async with store_at(url) as store:
        server.execute(
            f"CREATE FUNCTION {namespace_of(url)}.fail() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'; END $$",
            f"CREATE TRIGGER fail BEFORE INSERT ON {namespace_of(url)}.entries "
            f"EXECUTE FUNCTION {namespace_of(url)}.fail()",
        )
        with pytest.raises(error, match=f"planted.*{remedy}") as caught:
            await store.commit([], [Put("k", b"v")])
        assert type(caught.value) is error
        server.execute(f"DROP TRIGGER fail ON {namespace_of(url)}.entries")
        assert isinstance(await store.commit([], [Put("k", b"v")]), Committed)
        assert (await store.list("")).revision == 1


async def test_a_schema_that_was_dropped_is_named(server: PostgresqlServer) -> None:
    url = fresh(server)
    async with store_at(url) as store:
        server.execute(f"DROP SCHEMA {namespace_of(url)} CASCADE")
        with pytest.raises(StoreCorruptError, match="dropped"):
            await store.get("k")


async def test_too_many_connections_are_named(own_server: PostgresqlServer) -> None:
    own_server.execute("CREATE ROLE many LOGIN CONNECTION LIMIT 1", "CREATE DATABASE many OWNER many")
    url = fresh(own_server, user="many", database="many")
    await refusal(url, StoreUnavailableError, "too many connections.*max_connections")


async def test_a_primary_that_became_read_only_is_left(own_server: PostgresqlServer) -> None:
    url = fresh(own_server)
    async with store_at(url) as store:
        own_server.set("default_transaction_read_only", "on")
        with pytest.raises(StoreUnavailableError, match=r"read-only.*promote a standby"), trio.fail_after(30):
            while True:
                await store.commit([], [Put("k", b"v")])
        await refusal(url, StoreUnavailableError, "read-only.*promote a standby")


async def test_commits_are_durable_though_the_role_waives_it(server: PostgresqlServer) -> None:
    """`synchronous_commit=off` of a role would lose commits that were answered."""
    server.execute("CREATE ROLE hasty SUPERUSER LOGIN", "ALTER ROLE hasty SET synchronous_commit = off")
    url = fresh(server, user="hasty")
    async with store_at(url) as store:
        server.execute(
            f"CREATE TABLE {namespace_of(url)}.noted AS SELECT 'x' AS setting WHERE false",
            f"CREATE FUNCTION {namespace_of(url)}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"INSERT INTO {namespace_of(url)}.noted VALUES (current_setting('synchronous_commit')); "
            f"RETURN NULL; END $$",
            f"CREATE TRIGGER note AFTER INSERT OR UPDATE ON {namespace_of(url)}.entries "
            f"EXECUTE FUNCTION {namespace_of(url)}.note()",
        )
        await store.commit([], [Put("k", b"v")])
    assert server.execute(f"SELECT setting FROM {namespace_of(url)}.noted WHERE setting <> 'on'") == []


async def test_a_session_is_renewed_though_its_notification_came_before_it(server: PostgresqlServer) -> None:
    """The notification may be heard before the answer, when nothing is to be renewed yet: here none is heard."""
    async with store_at(fresh(server)) as store:
        await store.listener.run(lambda connection: connection.execute("UNLISTEN *"))
        session = await store.open_session(4_000)
        opened = session.renewed
        await until(lambda: session.renewed > opened or session.expired.is_set())
        assert not session.expired.is_set()


async def test_ids_are_new_after_a_raise(server: PostgresqlServer) -> None:
    async with store_at(fresh(server)) as store:
        raised = await store.raise_revision(1_000)
        assert (await store.open_session(60_000)).id > raised


async def test_an_id_is_checked(server: PostgresqlServer) -> None:
    async with store_at(fresh(server)) as store:
        with pytest.raises(InvalidTransactionError, match="32 hexadecimal digits"):
            await store.raise_revision(1, store_id="x")


def test_calls_end_before_the_guard_gives_them_up() -> None:
    from insync.replication.metadata.guarded import CALL_SECONDS as OF_THE_GUARD

    assert CALL_SECONDS < OF_THE_GUARD
