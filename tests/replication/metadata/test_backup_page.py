"""The programs of docs/backup.md do what the page says."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from insync.replication.metadata import Delta, Put, SqliteStore, TooOld, open_store

PAGE = Path(__file__).parents[3] / "docs" / "backup.md"


@pytest.fixture
def page() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def put_in_place(copy: Path, path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-leases"):
        if os.path.exists(f"{path}{suffix}"):
            os.rename(f"{path}{suffix}", f"{path}.away{suffix}")
    os.rename(copy, path)


async def test_backup_of_an_open_store_is_restored_above_what_readers_know(
    tmp_path: Path, page: dict[str, Any]
) -> None:
    path, copy = tmp_path / "meta.db", tmp_path / "copy.db"
    async with SqliteStore(path) as store:
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"", ephemeral=True), Put("k", b"backed up")], session=session)
        page["back_up"](str(path), str(copy))
        for number in range(5):
            await store.commit([], [Put("k", b"%d" % number)])
        known = await store.list("")
    put_in_place(copy, path)
    async with SqliteStore(path) as store:
        restored = await store.list("")
        assert (restored.store_id, list(restored.entries)) == (known.store_id, ["k"])
        assert restored.revision < known.revision, "which a node sees, and refuses"
    revision = await page["lead_above"](f"sqlite://{path}", known.revision)
    assert revision > known.revision
    async with open_store(f"sqlite://{path}") as store:
        assert await store.changes("", known.revision) == TooOld(revision)
        assert isinstance(await store.changes("", revision), Delta)
        entry = (await store.get("k")).entry
        assert entry is not None and entry.value == b"backed up"


async def test_new_store_takes_the_place_of_a_lost_one(tmp_path: Path, page: dict[str, Any]) -> None:
    async with SqliteStore(tmp_path / "lost.db") as store:
        await store.commit([], [Put("k", b"")])
        lost = await store.get("k")
    revision = await page["lead_above"](f"sqlite://{tmp_path}/new.db", lost.revision, lost.store_id)
    async with SqliteStore(tmp_path / "new.db") as store:
        read = await store.get("k")
        assert (read.store_id, read.revision, read.entry) == (lost.store_id, revision, None)


async def test_what_sqlite_does_not_back_up_is_not_needed(tmp_path: Path, page: dict[str, Any]) -> None:
    """No lease lies beside the copy, so the sessions that it knows are over."""
    path, copy = tmp_path / "meta.db", tmp_path / "copy.db"
    async with SqliteStore(path) as store:
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        page["back_up"](str(path), str(copy))
        async with SqliteStore(copy) as restored:
            assert "e" not in (await restored.list("")).entries
