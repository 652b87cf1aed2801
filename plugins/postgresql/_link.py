"""One connection to PostgreSQL, used in threads, one call at a time, and PostgreSQL's errors as the interface's."""

from __future__ import annotations

import os
import re
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg
import trio
from psycopg import Connection, Notify
from psycopg.conninfo import make_conninfo
from psycopg.errors import Diagnostic

from insync.replication.metadata import (
    MetadataError,
    StoreCorruptError,
    StoreDeviceError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)

from ._address import PostgresqlAddress

CALL_SECONDS = 10.0
"""Less than what the framework waits for a call of a store."""

T = TypeVar("T")


class StoreSilentError(StoreUnavailableError):
    """The connection was lost, or stayed silent, while a call was under way: a transaction may have taken place."""


_READ_ONLY = (
    StoreUnavailableError,
    "the server takes no writes (a standby, or default_transaction_read_only): name the primary in the URL, or "
    "promote a standby",
)
_NO_RIGHT = (
    StoreRefusedError,
    "grant the role CREATE on the database, or let an administrator run the output of `insync store ddl URL`",
)
_PASSWORD = (
    StoreRefusedError,
    "check the user, pg_hba.conf, and the password, which PGPASSFILE (a file) or PGPASSWORD holds",
)
_NO_DATABASE = (StoreUnavailableError, "create the database (`createdb`), or correct the URL")
_FULL_HOUSE = (StoreUnavailableError, "raise max_connections; each node holds two connections")
_MEANINGS: dict[str, tuple[type[MetadataError], str]] = {
    "25006": _READ_ONLY,
    "28000": _PASSWORD,
    "28P01": _PASSWORD,
    "3D000": _NO_DATABASE,
    "40001": (
        StoreUnavailableError,
        "let the role use read committed (`ALTER ROLE ... SET default_transaction_isolation = 'read committed'`)",
    ),
    "42501": _NO_RIGHT,
    "53100": (StoreFullError, "free space on the server's device"),
    "53200": (StoreUnavailableError, "the server is out of memory"),
    "53300": _FULL_HOUSE,
    "55P03": (
        StoreUnavailableError,
        "another transaction holds the lock of the store's row: pg_blocking_pids() and pg_stat_activity show "
        "whose, and pg_terminate_backend() ends it",
    ),
    "57014": (
        StoreUnavailableError,
        "a statement was cancelled: raise the role's limit (`ALTER ROLE ... SET statement_timeout = 0`)",
    ),
    "58030": (StoreDeviceError, "check the server's device and its log"),
    "3F000": (StoreCorruptError, "the schema was dropped: restore it"),
    "42703": (StoreCorruptError, "its tables are another program's: choose another namespace"),
    "42883": (StoreCorruptError, "its functions were dropped: restore them"),
    "42P01": (StoreCorruptError, "its tables were dropped: restore them"),
    "XX001": (StoreCorruptError, "data of the server are damaged: restore a backup"),
    "XX002": (StoreCorruptError, "an index of the server is damaged: REINDEX it"),
}
# libpq gives no code for a connection that was refused. In another language of the server nothing is found.
_REFUSALS = {
    r"too many (clients|connections)|connection slots": _FULL_HOUSE,
    r"permission denied": _NO_RIGHT,
    r"password|pg_hba\.conf|role .* (does not exist|is not permitted)": _PASSWORD,
    r"database .* does not exist": _NO_DATABASE,
    r"read-only|hot standby": _READ_ONLY,
}


def meaning(address: PostgresqlAddress, error: psycopg.Error) -> MetadataError:
    """The store's error for one of PostgreSQL's."""
    text = " ".join(str(error).split())
    if error.sqlstate is None:
        found = next((each for words, each in _REFUSALS.items() if re.search(words, text)), None)
    else:
        found = _MEANINGS.get(error.sqlstate)
    kind, remedy = found or (StoreUnavailableError, "")
    return kind(
        f"{address}: {text}{f' ({error.sqlstate})' if error.sqlstate else ''}{remedy and f'; {remedy}'}"
    )


def connect(address: PostgresqlAddress) -> Connection:
    """A connection to the first server that takes writes. Raises what psycopg does."""
    # Statements that a connection keeps are lost behind a pooler.
    return psycopg.connect(make_conninfo("", **address.parameters), autocommit=True, prepare_threshold=None)


class Link:
    """A connection that is made when it is needed, again after it was lost.

    connected: called in the thread with each new connection.
    """

    def __init__(self, address: PostgresqlAddress, connected: Callable[[Connection], None]) -> None:
        self._address = address
        self._connected = connected
        self._limiter = trio.CapacityLimiter(1)
        self._connection: Connection | None = None
        self._warning = ""
        self.notified = False
        """Whether a notification came during the last call, which may not have seen the change."""
        self.socket: socket.socket | None = None
        """Of the connection, by a descriptor of its own: libpq may close its own at any time."""

    async def run(self, call: Callable[[Connection], T], seconds: float = CALL_SECONDS) -> T:
        """The result of `call` in a thread. If cancelled, a call that has begun goes on there.

        Raises `StoreSilentError` if it may have taken effect, other errors of stores if it has not.
        """
        with trio.move_on_after(seconds):
            return await trio.to_thread.run_sync(
                self._perform, call, abandon_on_cancel=True, limiter=self._limiter
            )
        self.cut()
        raise StoreSilentError(
            f"{self._address} did not answer within {seconds:g} s: look whether the server runs, and whether it "
            "waits for a synchronous standby that is away"
        )

    def _perform(self, call: Callable[[Connection], T]) -> T:
        connection = self._usable()
        self._warning, self.notified = "", False
        try:
            result = call(connection)
        except psycopg.Error as error:
            known = meaning(self._address, error)
            if connection.closed:
                raise StoreSilentError(f"the connection was lost: {known}") from error
            if error.sqlstate == "25006":
                self._drop()  # the next one is sought among all servers
            raise known from error
        if self._warning:
            # A wait for a standby that was cancelled ends in a commit that the standby may lack.
            raise StoreSilentError(f"{self._address} warns: {self._warning}")
        return result

    def _usable(self) -> Connection:
        """A connection that the server has not closed, as far as can be seen without asking."""
        if self._connection is not None and _has_ended(self._connection):
            self._drop()
        if self._connection is None:
            try:
                self._connection = connection = connect(self._address)
                self.socket = socket.socket(fileno=os.dup(connection.fileno()))
                connection.add_notice_handler(self._heed)
                connection.add_notify_handler(self._hear)
                self._connected(connection)
            except psycopg.Error as error:
                self._drop()
                raise meaning(self._address, error) from error
            except BaseException:
                self._drop()
                raise
        return self._connection

    def _heed(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warning = notice.message_primary or "something"

    def _hear(self, notification: Notify) -> None:
        self.notified = True

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self.socket is not None:
            self.socket.close()
        self._connection = self.socket = None

    def cut(self) -> None:
        """End the connection as a network does, also under a call that waits."""
        if self.socket is not None:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Give the connection back, after a call that is under way."""
        with trio.move_on_after(1):
            await trio.to_thread.run_sync(self._drop, limiter=self._limiter)
            return
        self.cut()
        await trio.to_thread.run_sync(self._drop, limiter=self._limiter)


def _has_ended(connection: Connection) -> bool:
    poller = select.poll()
    with suppress(psycopg.Error):
        poller.register(connection.fileno(), select.POLLIN)
        while poller.poll(0):
            connection.pgconn.consume_input()
        while connection.pgconn.notifies():
            pass  # what is asked next sees what these tell of
    return connection.closed
