"""Opening the SQLite file: connection settings, schema, and what SQLite's errors mean here."""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from ..errors import (
    MetadataError,
    StoreBusyError,
    StoreCorruptError,
    StoreDeviceError,
    StoreFullError,
    StoreUnavailableError,
    StoreVersionError,
)

APPLICATION_ID = 0x496E5379
"""SQLite's `application_id` of our files ("InSy")."""

SCHEMA_VERSION = 1
"""SQLite's `user_version`: raised when an older release could not work with the file."""

IDENTITY_BYTES = 16
"""Of the random number that a file is given when it is made."""

_SCHEMA = (
    """CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 0), identity BLOB NOT NULL, sequence INTEGER NOT NULL,
        revision INTEGER NOT NULL, last_session INTEGER NOT NULL, changes_floor INTEGER NOT NULL)""",
    """CREATE TABLE entries (
        key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, revision INTEGER NOT NULL,
        session_id INTEGER) WITHOUT ROWID""",
    "CREATE INDEX entries_by_session ON entries (session_id) WHERE session_id IS NOT NULL",
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY, slot INTEGER NOT NULL UNIQUE)",
    """CREATE TABLE changes (
        revision INTEGER NOT NULL, key BLOB NOT NULL, PRIMARY KEY (revision, key)) WITHOUT ROWID""",
)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EIO, errno.ENXIO}


def meaning(path: str, error: sqlite3.Error) -> MetadataError:
    """The store's error for one of SQLite's."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in _BUSY:
        return StoreBusyError(
            f"{path} is locked by another process (one that was stopped inside a transaction blocks all "
            "writers until it runs or dies); nothing was written"
        )
    if code == sqlite3.SQLITE_NOTADB:
        return StoreCorruptError(
            f"{path} is not a SQLite file, or its first page is damaged ({error}); restore it or move it away"
        )
    if code == sqlite3.SQLITE_CORRUPT:
        # SQLite also says so of some pages that the device did not read.
        return _damaged(path, error)
    if code == sqlite3.SQLITE_FULL:
        return _full(path, str(error))
    if code == sqlite3.SQLITE_IOERR:
        return _refused(path, f"{error}, {getattr(error, 'sqlite_errorname', code)}")
    return StoreUnavailableError(f"cannot use {path}: {error}")


def _damaged(path: str, reason: object) -> StoreCorruptError:
    return StoreCorruptError(
        f"{path} is damaged, or its device cannot read all of it ({reason}); look for errors of the device in "
        "the system's log, and check it; if there are none, restore the file or move it away"
    )


def _full(path: str, reason: str) -> StoreFullError:
    return StoreFullError(
        f"the device of {path} is full ({reason}): free space in {os.path.dirname(path) or '.'}, or raise its quota"
    )


def _refused(path: str, reason: str) -> StoreDeviceError:
    return StoreDeviceError(
        f"the device of {path} refused to read or write ({reason}): check the device and the system's log, and "
        f"whether there is space and quota left in {os.path.dirname(path) or '.'}"
    )


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn errors of SQLite and of the lease file into the store's."""
    try:
        yield
    except sqlite3.Error as error:
        raise meaning(path, error) from error
    except UnicodeDecodeError as error:
        # Of a name in the file, or of one that an error of SQLite's quotes.
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise _full(path, str(error)) from error
        if error.errno in _REFUSED:
            raise _refused(path, str(error)) from error
        raise StoreUnavailableError(f"cannot use {path} or a file beside it: {error}") from error


@attrs.frozen
class Place:
    """The identity of the file at a path: its device and its inode."""

    device: int
    inode: int

    @classmethod
    def of(cls, path: str) -> Place:
        """Raises `StoreUnavailableError`."""
        try:
            found = os.stat(path)
        except OSError as error:
            raise StoreUnavailableError(f"{path} cannot be found: {error.strerror}") from error
        return cls(found.st_dev, found.st_ino)

    def check(self, path: str) -> None:
        """Raise `StoreUnavailableError` unless the file is still there.

        SQLite goes on with a file that was deleted or replaced: what is written is lost, and nobody else sees it.
        """
        try:
            found = os.stat(path)
        except FileNotFoundError:
            raise StoreUnavailableError(
                f"{path} was deleted under this handle; stop what uses it, restore the file, and start again"
            ) from None
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise StoreUnavailableError(
                f"{path} was replaced under this handle by another file; stop what uses it, and start again"
            )


def connect(path: str) -> sqlite3.Connection:
    """Open the file, made if absent, with a schema of this release. May raise `StoreBusyError`: try again."""
    folder = os.path.dirname(path) or "."
    if not Path(folder).is_dir():
        raise StoreUnavailableError(
            f"cannot open {path}: the folder {folder} does not exist; create it first"
        )
    with translated(path):
        _make(path)
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            _prepare(path, connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _make(path: str) -> None:
    """Make the file, if it is not there, for its owner alone; SQLite gives its side files the same rights.

    Never opened otherwise: closing any descriptor of a file drops all locks that SQLite has on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _prepare(path: str, connection: sqlite3.Connection) -> None:
    # Each COMMIT syncs the log before other connections can see the transaction.
    connection.execute("PRAGMA synchronous = FULL")
    is_new = _check_identity(path, connection)
    if is_new:
        _sync_names(path)
    else:
        _check_content(path, connection)
    connection.execute("PRAGMA journal_mode = WAL")
    if is_new:
        _create(path, connection)
    else:
        _sync_log(path)


def _sync_names(path: str) -> None:
    """Make the names durable that lead to the file: SQLite does so only in its own folder."""
    folder = Path(os.path.realpath(path)).parent
    device = folder.stat().st_dev
    for each in (folder, *folder.parents):
        if each.stat().st_dev != device:
            break
        with suppress(PermissionError):  # somebody else made it
            _sync(each)


def _sync_log(path: str) -> None:
    """A process may have been killed between writing a transaction to the log and syncing it. If it was the last
    that had the file open, SQLite takes that transaction for a committed one, and never syncs it by itself.
    """
    with suppress(FileNotFoundError):  # the last process that closed the store removed it
        # SQLite has no locks on this file that closing it could drop.
        _sync(Path(os.path.realpath(path) + "-wal"))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_identity(path: str, connection: sqlite3.Connection) -> bool:
    """Whether the file is still empty; raises if it is not ours."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables:
        return True
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreCorruptError(
            f"{path} is a SQLite file of another program; give the store a file of its own"
        )
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        raise StoreVersionError(
            f"{path} has schema version {version}, this release knows {SCHEMA_VERSION}; "
            "use the release that wrote it, or a newer one"
        )
    return False


def _check_content(path: str, connection: sqlite3.Connection) -> None:
    """Raise StoreCorruptError if pages contradict each other, or tables are not as they were made.

    A page has no checksum: a changed byte may hide rows, or name other columns. That of a record shows when it is
    read, by the record's own checksum.
    """
    # As bytes: what is damaged may be no text.
    made = {sql for (sql,) in connection.execute("SELECT CAST(sql AS BLOB) FROM sqlite_master")}
    if not made.issuperset(each.encode() for each in _SCHEMA):
        raise _damaged(path, "its tables are not as they were made")
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise _damaged(path, found)


def _create(path: str, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _check_identity(path, connection):  # else another process was first
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO store VALUES (0, ?, 0, 0, 0, 0)", (secrets.token_bytes(IDENTITY_BYTES),)
            )
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
