"""Stores are found by the scheme of their URL."""

import os
import sys
from pathlib import Path

import pytest

from insync.replication.metadata import (
    GuardedStore,
    InvalidStoreUrlError,
    MemoryStore,
    Put,
    SqliteStore,
    StoreLoadError,
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
        "memory://[a",
        "sqlite://[a/b",
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


def install(folder: Path, patch: pytest.MonkeyPatch, name: str, points: str, module: str) -> None:
    """A distribution as pip would install it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[insync.metadata_stores]\n{points}\n")
    (folder / f"{name}_store.py").write_text(module)
    patch.syspath_prepend(folder)


def store_of(version: str) -> str:
    return (
        "from insync.replication.metadata import MemoryStore\n\n\n"
        f"class Store(MemoryStore):\n    api_version = {version}\n\n\n"
        "def make(url):\n    return Store()\n"
    )


def test_plugins_are_found_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        monkeypatch,
        "third",
        "third = third_store:make",
        "from insync.replication.metadata import MemoryStore\n\n\n"
        "def make(url):\n    store = MemoryStore()\n    store.url = url\n    return store\n",
    )
    assert "third" in installed_schemes()
    store = open_store("third://somewhere")
    assert isinstance(store, GuardedStore) and isinstance(store.inner, MemoryStore)
    assert vars(store.inner)["url"] == "third://somewhere"
    with pytest.raises(UnknownStoreSchemeError, match="did you mean third://"):
        open_store("thrid://somewhere")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("import nowhere_to_be_found", ["cannot be loaded", "ModuleNotFoundError", "nowhere_to_be_found"]),
        ("x = 1", ["cannot be loaded", "AttributeError", "make"]),
        (
            "def make(url):\n    return 1 // 0\n",
            ["'bad://...@h'", "ZeroDivisionError", "bad_store.py:2 in make"],
        ),
        ("def make(url):\n    return url\n", ["gave str", "MetadataStore"]),
        (store_of("(1, 1)"), ["is written for version 1.1 of the interface, this is 1.0"]),
        (store_of("(2, 0)"), ["is written for version 2.0 of the interface, this is 1.0"]),
        (store_of("'1.0'"), ["has api_version='1.0': write two numbers, (1, 0)"]),
    ],
)
def test_plugin_that_fails_is_named(
    module: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "bad_store", raising=False)
    install(tmp_path, monkeypatch, "bad", "bad = bad_store:make", module)
    with pytest.raises(StoreLoadError) as caught:
        open_store("bad://me:secret@h")
    for word in ("bad (bad_store:make)", *words):
        assert word in str(caught.value)
    assert "secret" not in str(caught.value)


def test_two_plugins_of_one_scheme_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        install(tmp_path / name, monkeypatch, name, f"twice = {name}_store:make", "")
    with pytest.raises(StoreLoadError, match=r"several.*two_store.*uninstall all but one"):
        open_store("twice://h")
