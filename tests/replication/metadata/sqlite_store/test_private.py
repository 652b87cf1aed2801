"""The files of a SQLite store are for their owner alone."""

import os
import stat
from pathlib import Path

from insync.replication.metadata import Put, SqliteStore


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_nobody_else_may_read_the_store_under_a_lax_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        async with SqliteStore(str(tmp_path / "meta.db")) as store:
            await store.commit([], [Put("a", b"secret")])
            modes = modes_in(tmp_path)
    finally:
        os.umask(umask)
    assert len(modes) > 2 and set(modes.values()) == {0o600}, modes
