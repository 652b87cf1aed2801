"""Stores are found by the scheme of their URL."""

import os
from pathlib import Path

import pytest

from insync.replication.metadata import (
    GuardedStore,
    InvalidStoreUrlError,
    MemoryStore,
    Put,
    SqliteStore,
    UnknownStoreSchemeError,
    open_store,
)
from insync.replication.metadata.registry import installed_schemes


async def test_memory_stores_of_one_name_are_one_store() -> None:
    one, two, other = (open_store(f"memory://{name}") for name in ("same", "same", "other"))
    async with one, two, other:
        await one.commit([], [Put("k", b"v")])
        assert (await two.get("k")).entry is not None
        assert (await other.get("k")).entry is None


async def test_memory_store_without_a_name_is_its_own() -> None:
    async with open_store("memory://") as one, open_store("memory://") as two:
        await one.commit([], [Put("k", b"v")])
        assert (await two.get("k")).entry is None


async def test_memory_store_ends_with_its_last_handle() -> None:
    async with open_store("memory://brief") as store:
        await store.commit([], [Put("k", b"v")])
    del store
    async with open_store("memory://brief") as store:
        assert (await store.get("k")).entry is None


async def test_sqlite_url_names_a_file(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/with%20space.db"
    async with open_store(url) as store:
        assert isinstance(store, GuardedStore) and isinstance(store.inner, SqliteStore)
        await store.commit([], [Put("k", b"v")])
    assert sorted(os.listdir(tmp_path)) == ["with space.db", "with space.db-leases"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "meta.db",
        "://x",
        "sqlite://relative.db",
        "sqlite:///",
        "sqlite:///dir/",
        "sqlite:///a?b=c",
        "memory://a/b",
    ],
)
def test_malformed_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidStoreUrlError):
        open_store(url)


def test_unknown_scheme_names_what_is_installed() -> None:
    with pytest.raises(UnknownStoreSchemeError) as caught:
        open_store("etcd://host:2379")
    assert {"memory", "sqlite"} <= set(caught.value.installed)
    assert all(
        word in str(caught.value) for word in ("'etcd'", "memory, ", "sqlite", "insync.metadata_stores")
    )


def test_plugins_are_found_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "third_party-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[insync.metadata_stores]\nthird = third_party_store:make\n")
    (tmp_path / "third_party_store.py").write_text(
        "from insync.replication.metadata import MemoryStore\n\n\n"
        "def make(url):\n    store = MemoryStore()\n    store.url = url\n    return store\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "third" in installed_schemes()
    store = open_store("third://somewhere")
    assert isinstance(store, GuardedStore) and isinstance(store.inner, MemoryStore)
    assert vars(store.inner)["url"] == "third://somewhere"
