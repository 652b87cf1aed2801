"""What is the ZooKeeper store's own: its URL, paths, credentials, limits, and what it finds in its place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.client import KazooClient

from insync.plugins.zookeeper import ZookeeperAddress, ZookeeperStore
from insync.plugins.zookeeper._layout import Layout, key_of, name_of
from insync.replication.metadata import (
    Committed,
    GuardedStore,
    InvalidStoreUrlError,
    Put,
    StoreCorruptError,
    StoreUnavailableError,
    StoreVersionError,
    TransactionTooLargeError,
    open_store,
)

from .server import ZookeeperServer


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("zookeeper://h:1/a", ZookeeperAddress("h:1", "/a")),
        ("zookeeper://h/a/b-c", ZookeeperAddress("h:2181", "/a/b-c")),
        ("zookeeper://a:1,b,[::1]:3/x", ZookeeperAddress("a:1,b:2181,[::1]:3", "/x")),
        ("zookeeper://joe:p%40ss@h:1/a", ZookeeperAddress("h:1", "/a", "joe:p@ss")),
    ],
)
def test_urls(url: str, address: ZookeeperAddress) -> None:
    assert ZookeeperAddress.parse(url) == address
    store = open_store(url)
    assert isinstance(store, GuardedStore) and isinstance(store.inner, ZookeeperStore)
    assert store.default_session_timeout_ms == 6_000


@pytest.mark.parametrize(
    "url",
    [
        "zookeeper://h:1",
        "zookeeper://h:1/",
        "zookeeper:///a",
        "zookeeper://h:0/a",
        "zookeeper://h:99999/a",
        "zookeeper://[::1/a",
        "zookeeper://[h/a",
        "zookeeper://h]:1/a",
        "zookeeper://h/a#b",
        "zookeeper://h:x/a",
        "zookeeper://a,,b/a",
        "zookeeper://h/a//b",
        "zookeeper://h/../b",
        "zookeeper://h/zookeeper",
        "zookeeper://h/a?x=1",
        "zookeeper://joe@h/a",
    ],
)
def test_malformed_urls(url: str) -> None:
    with pytest.raises(InvalidStoreUrlError):
        open_store(url)


def test_a_password_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command line, which all users of a machine can read, needs to hold none."""
    file, url = tmp_path / "password", "zookeeper://jo%65@h:1/a"
    file.write_text(" p:@ss \n")
    for environment, password in (
        ({"INSYNC_ZOOKEEPER_PASSWORD_FILE": str(file)}, "p:@ss"),
        ({"INSYNC_ZOOKEEPER_PASSWORD": "other"}, "other"),
        ({"INSYNC_ZOOKEEPER_PASSWORD_FILE": str(file), "INSYNC_ZOOKEEPER_PASSWORD": "other"}, "p:@ss"),
    ):
        assert ZookeeperAddress.parse(url, environment) == ZookeeperAddress("h:1", "/a", f"joe:{password}")
        assert ZookeeperAddress.parse("zookeeper://joe:x@h:1/a", environment).credentials == "joe:x"
        assert ZookeeperAddress.parse("zookeeper://h:1/a", environment).credentials is None
    monkeypatch.setenv("INSYNC_ZOOKEEPER_PASSWORD", "secret")
    assert isinstance(open_store(url), GuardedStore)


def test_a_password_that_is_missing_is_told(tmp_path: Path) -> None:
    url = "zookeeper://joe@h:1/a"
    with pytest.raises(InvalidStoreUrlError, match="set INSYNC_ZOOKEEPER_PASSWORD_FILE or INSYNC_ZOOKEEPER"):
        ZookeeperAddress.parse(url, {})
    with pytest.raises(InvalidStoreUrlError, match="password file /nowhere cannot be read: No such file"):
        ZookeeperAddress.parse(url, {"INSYNC_ZOOKEEPER_PASSWORD_FILE": "/nowhere"})
    bad = tmp_path / "bad"
    bad.write_bytes(b"p\xe4ss")
    with pytest.raises(InvalidStoreUrlError, match="cannot be read: it is not UTF-8"):
        ZookeeperAddress.parse(url, {"INSYNC_ZOOKEEPER_PASSWORD_FILE": str(bad)})


def test_no_message_shows_a_password() -> None:
    with pytest.raises(InvalidStoreUrlError) as caught:
        open_store("zookeeper://joe:secret@h:1")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(ZookeeperAddress.parse("zookeeper://joe:secret@h:1/a"))


@given(st.text(min_size=1).filter(lambda key: ("\0" not in key and key.isprintable()) or "/" in key))
def test_names_of_keys(key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        return
    name = name_of(key)
    assert key_of(name) == key
    assert "/" not in name
    assert name not in (".", "..")
    assert name.isascii()


def raw(server: ZookeeperServer) -> KazooClient:
    client = KazooClient(server.hosts)
    client.start()
    return client


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"somebody else's", StoreCorruptError), (b"insync metadata 2", StoreVersionError)],
)
async def test_foreign_path_is_refused(server: ZookeeperServer, data: bytes, error: type[Exception]) -> None:
    path = f"/foreign-{len(data)}"
    client = raw(server)
    try:
        client.create(path, data)
        with pytest.raises(error, match=path):
            async with ZookeeperStore(ZookeeperAddress(server.hosts, path)):
                raise AssertionError("it was opened")
        assert client.get(path)[0] == data
    finally:
        client.stop()
        client.close()


async def test_foreign_node_among_the_keys_is_named(server: ZookeeperServer) -> None:
    address = ZookeeperAddress(server.hosts, "/spoiled")
    async with ZookeeperStore(address) as store:
        await store.commit([], [Put("good", b"1")])
        client = raw(server)
        try:
            client.create(f"{Layout('/spoiled').keys}/bad", b"\x07")
        finally:
            client.stop()
            client.close()
        with pytest.raises(StoreCorruptError, match="'bad'"):
            await store.get("bad")
        good = (await store.get("good")).entry
        assert good is not None and good.value == b"1"


async def test_too_large_a_transaction_is_refused_before_it_is_sent(server: ZookeeperServer) -> None:
    async with ZookeeperStore(ZookeeperAddress(server.hosts, "/large")) as store:
        with pytest.raises(TransactionTooLargeError, match="Split it"):
            await store.commit([], [Put("a", bytes(500_000)), Put("b", bytes(500_000))])
        assert isinstance(await store.commit([], [Put("a", bytes(800_000))]), Committed)
        entry = (await store.get("a")).entry
        assert entry is not None and entry.value == bytes(800_000)


async def test_credentials_keep_others_out(server: ZookeeperServer) -> None:
    mine = ZookeeperAddress(server.hosts, "/guarded", "joe:right")
    async with ZookeeperStore(mine) as store:
        await store.commit([], [Put("k", b"v")])
    for other in (None, "joe:wrong"):
        with pytest.raises(StoreUnavailableError, match="credentials"):
            async with ZookeeperStore(ZookeeperAddress(server.hosts, "/guarded", other)) as store:
                await store.get("k")
    async with ZookeeperStore(mine) as store:
        entry = (await store.get("k")).entry
        assert entry is not None and entry.value == b"v"


async def test_granted_timeout_is_told(server: ZookeeperServer) -> None:
    """The server bounds what it grants: 2 ticks (400 ms) to 20,000 ms here."""
    async with ZookeeperStore(ZookeeperAddress(server.hosts, "/granted")) as store:
        assert (await store.open_session(100)).timeout_ms == 400
        assert (await store.open_session(60_000)).timeout_ms == 20_000


async def test_store_of_a_release_without_identities_gets_one(server: ZookeeperServer) -> None:
    address = ZookeeperAddress(server.hosts, "/former")
    async with ZookeeperStore(address) as store:
        await store.commit([], [Put("k", b"v")])
    client = raw(server)
    try:
        client.set(Layout("/former").keys, b"")
        version = client.get(Layout("/former").keys)[1].version
        client.delete(Layout("/former").path("k"))
        client.delete(Layout("/former").keys)
        client.create(Layout("/former").keys, b"")
        assert version > 0
    finally:
        client.stop()
        client.close()
    async with ZookeeperStore(address) as one, ZookeeperStore(address) as two:
        assert (await one.get("k")).store_id == (await two.list("")).store_id != ""


async def test_credentials_and_long_paths_count_in_the_limits(server: ZookeeperServer) -> None:
    short = ZookeeperStore(ZookeeperAddress(server.hosts, "/a")).limits
    long = ZookeeperStore(ZookeeperAddress(server.hosts, "/a" * 50, "someone:secret")).limits
    assert long.item_bytes - short.item_bytes == 98 + len("someone")
    assert long.max_bytes == short.max_bytes
