"""The SQLite store across a power cut: what somebody has seen of it, or was told, is on the device."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from insync.replication.metadata import Put, SqliteStore
from tests.requires import missing

HELD_SYNCS = Path(__file__).with_name("held_syncs.c")
WRITER = """
import sys, trio
from insync.replication.metadata import Put, SqliteStore

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        for value in b"1", b"2":
            await store.commit([], [Put("a", value)])
            print("committed", flush=True)
            sys.stdin.readline()

trio.run(main)
"""


@attrs.define
class Writer:
    """A process that has committed a = 1, and writes a = 2 when it is told to, while the device does not answer."""

    process: subprocess.Popen[str]
    hold: Path

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begin_to_commit(self) -> None:
        """Up to the sync."""
        self.hold.touch()
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.answer() == "held"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        missing("no C compiler on the path")
    library, hold = tmp_path / "held_syncs.so", tmp_path / "hold"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HELD_SYNCS, "-ldl"], check=True)
    (tmp_path / "store").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path / "store" / "meta.db"],
        env={**os.environ, "LD_PRELOAD": str(library), "HELD_SYNCS": str(hold)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        found = Writer(process, hold)
        assert found.answer() == "committed"
        yield found
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were synced here, in order; SQLite's own syncs are not seen."""
    paths: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


async def value_in(store: SqliteStore) -> bytes | None:
    entry = (await store.get("a")).entry
    return None if entry is None else entry.value


async def test_a_commit_is_on_the_device_before_anybody_sees_it(writer: Writer, tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "store" / "meta.db") as store:
        writer.begin_to_commit()
        assert await value_in(store) == b"1", "another process sees it when it is synced"
        writer.hold.unlink()
        assert writer.answer() == "committed"
        assert await value_in(store) == b"2"


async def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_seen(
    writer: Writer, tmp_path: Path, synced: list[str]
) -> None:
    """It was the last to have the file open, so SQLite goes by the log."""
    path = tmp_path / "store" / "meta.db"
    writer.begin_to_commit()
    writer.process.kill()
    writer.process.wait()
    async with SqliteStore(path) as store:
        assert f"{path}-wal" in synced
        assert await value_in(store) == b"2"


async def test_the_folders_above_a_new_store_are_durable_before_it_has_content(
    tmp_path: Path, synced: list[str]
) -> None:
    path = tmp_path / "above" / "folder" / "meta.db"
    path.parent.mkdir(parents=True)
    async with SqliteStore(path) as store:
        assert synced[:3] == [str(each) for each in (path.parent, path.parent.parent, tmp_path)]
        await store.commit([], [Put("a", b"1")])
    synced.clear()
    async with SqliteStore(path) as store:
        assert await value_in(store) == b"1"
    assert synced == [f"{path}-wal"], "once is enough"
