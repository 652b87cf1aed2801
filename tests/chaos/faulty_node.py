"""A node process that can be made to suffer: the command `insync`, with what it asks of its machine in a wrapper.

Each fault is a file in the folder INSYNC_CHAOS_FAULTS, there while the fault lasts; every call that met it leaves a
byte in a file beside it (`NAME.bitten`), so that the fault is seen to bite.

    disk_ms   how many milliseconds longer each write and each fsync takes
    hang      a folder below which no call that changes files comes back before the file is gone
    clock_s   how many seconds the wall clock is ahead; less than 0: behind. The monotonic clock is nobody's to set
    store     the SQLite store and its leases cannot be used: every call fails, a commit after it was done
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

FAULTS = Path(os.environ["INSYNC_CHAOS_FAULTS"])
_LOOK_SECONDS = 0.02


def _fault(name: str) -> str:
    """What the fault says; empty while there is none."""
    try:
        return (FAULTS / name).read_text()
    except FileNotFoundError:
        return ""


def _bitten(name: str) -> None:
    with (FAULTS / f"{name}.bitten").open("ab") as file:
        file.write(b".")


# The disk


def _place(target: Any) -> str:
    """The path behind what a call is given: a path or a descriptor."""
    return os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)


def _hang(target: Any) -> None:
    waited = False
    while (folder := _fault("hang")) and _place(target).startswith(folder):
        if not waited:
            _bitten("hang")
        waited = True
        time.sleep(_LOOK_SECONDS)


def _changing(call: Callable[..., Any], *, is_slow: bool = False) -> Callable[..., Any]:
    """A call that changes a file; `is_slow` if it is one of those that a slow device is slow at."""

    @wraps(call)
    def suffering(target: Any, *arguments: Any, **options: Any) -> Any:
        _hang(target)
        if is_slow and (milliseconds := _fault("disk_ms")):
            time.sleep(float(milliseconds) / 1000)
            _bitten("disk_ms")
        return call(target, *arguments, **options)

    return suffering


def _opening(call: Callable[..., Any]) -> Callable[..., Any]:
    """Only who may make the file changes something."""
    changing = _changing(call)

    @wraps(call)
    def opened(path: Any, flags: int, *arguments: Any, **options: Any) -> Any:
        return (changing if flags & os.O_CREAT else call)(path, flags, *arguments, **options)

    return opened


def _spoil_disk() -> None:
    for name in ("pwritev", "fsync"):
        setattr(os, name, _changing(getattr(os, name), is_slow=True))
    for name in (
        "pwrite",
        "fdatasync",
        "ftruncate",
        "posix_fallocate",
        "unlink",
        "rename",
        "replace",
        "mkdir",
    ):
        setattr(os, name, _changing(getattr(os, name)))
    os.open = _opening(os.open)


# The wall clock


def _spoil_clock() -> None:
    right = time.time_ns

    def wrong() -> int:
        return right() + int(float(_fault("clock_s") or 0) * 1e9)

    def time_ns() -> int:
        if _fault("clock_s"):
            # Not counted for `time.time`: that is but what lines of the log are stamped with.
            _bitten("clock_s")
        return wrong()

    time.time_ns = time_ns
    time.time = lambda: wrong() / 1e9


# The SQLite store


class CutConnection(sqlite3.Connection):
    """A connection to a file that is out of reach now and then."""

    def _check(self, sql: str) -> None:
        if sql != "ROLLBACK" and _fault("store"):
            _bitten("store")
            raise sqlite3.OperationalError("disk I/O error (a fault of the test)")

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self._check(sql)
        return super().execute(sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self._check(sql)
        return super().executemany(sql, *arguments)


def _spoil_store() -> None:
    from insync.replication.metadata import StoreUnavailableError
    from insync.replication.metadata.sqlite_store._leases import LeaseFile
    from insync.replication.metadata.sqlite_store._writer import Writer, WriterLostError

    connect = sqlite3.connect
    sqlite3.connect = lambda *arguments, **options: connect(  # type: ignore[assignment]
        *arguments, factory=CutConnection, **options
    )

    def cut(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def reached(*arguments: Any) -> Any:
            if _fault("store"):
                _bitten("store")
                raise OSError(errno.EIO, "Input/output error (a fault of the test)")
            return call(*arguments)

        return reached

    for name in ("raw", "write", "clear", "publish", "published", "is_linked"):
        setattr(LeaseFile, name, cut(getattr(LeaseFile, name)))

    run = Writer.run

    @wraps(run)
    async def cut_run(*arguments: Any, **options: Any) -> Any:
        """A commit under way is done by the process that writes, and nobody is told what became of it."""
        if _fault("store"):
            _bitten("store")
            raise StoreUnavailableError("Input/output error (a fault of the test)")
        result = await run(*arguments, **options)
        if _fault("store"):
            raise WriterLostError("Input/output error (a fault of the test)")
        return result

    Writer.run = cut_run  # type: ignore[method-assign]


if __name__ == "__main__":
    _spoil_disk()
    _spoil_clock()
    _spoil_store()
    if os.environ.get("INSYNC_CHAOS_DEFECT"):
        from tests.chaos.defects import plant

        plant()
    from insync.replication.cli import main

    sys.exit(main(sys.argv[1:]))
