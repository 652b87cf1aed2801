"""The process in which the write transactions of one SQLite store run: what it does, and how it is spoken to.

A process that is stopped (SIGSTOP, a debugger) inside a transaction keeps SQLite's write lock. So a node hands each
transaction over as a whole, and this process, which does nothing else, finishes it whatever becomes of the node. It
ends when its standard input does.

Frames, both ways: 4 bytes of length (little-endian), then a pickle; between a process and its own child, so nobody
else can write one. Request: (number, name, arguments); without a name: try the last one once more. Reply: (number,
outcome, value).
"""

from __future__ import annotations

import pickle
import signal
import struct
import sys
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, BinaryIO

from .._values import Compare, Delete, Exists, Missing, Operation, Outcome, Put, ValueIs, VersionIs
from ..errors import MetadataError, StoreBusyError, StoreUnavailableError
from ._database import Database
from ._leases import SeenLease

FORMAT = 2
"""Of what is asked and answered; another number for each change of it."""
LENGTH = struct.Struct("<I")
DONE, BUSY, FAILED = "done", "busy", "failed"
PACKAGES = ("insync", "insync.replication", "insync.replication.metadata")

START = """
import sys, pickle, types
found, sys.path[:] = pickle.load(sys.stdin.buffer)
for name, place in found.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = place
from insync.replication.metadata.sqlite_store._child import main
main(sys.argv[2])
"""
"""Run by a bare interpreter. The packages are given their folders and not imported: with all that they import, the
start would take 300 ms and 35 MB, and takes 60 ms and 15 MB."""


def frame(value: object) -> bytes:
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


_PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    VersionIs: attrgetter("key", "version"),
    ValueIs: attrgetter("key", "value"),
    Put: attrgetter("key", "value", "ephemeral"),
    **{cls: lambda item: (item.key,) for cls in (Exists, Missing, Delete)},
}
_KINDS: dict[str, type] = {cls.__name__: cls for cls in _PARTS}


def flat(items: Iterable[Compare | Operation]) -> list[tuple[str, tuple[Any, ...]]]:
    """Compares or operations as tuples, for a request.

    A pickle of the values themselves takes thirty times as long, because attrs collects the fields of each in
    Python: 17 ms of a controller's 2,000 elections.
    """
    return [(type(item).__name__, _PARTS[type(item)](item)) for item in items]


def unflat(items: Iterable[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """The values that `flat` was given."""
    return [_KINDS[name](*parts) for name, parts in items]


class _Writing:
    """The store, opened when it is first asked for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._database: Database | None = None
        self.calls: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "commit": self._commit,
            "open_session": self._open_session,
            "remove_sessions": lambda ids: self._opened.remove_sessions(ids),
            "raise_revision": lambda floor, identity: self._opened.raise_revision(floor, identity),
        }

    @property
    def _opened(self) -> Database:
        assert self._database is not None, "the first request is to open the store"
        return self._database

    def _open(self, boot: int, form: int = 1) -> None:
        if form != FORMAT:
            # This process is started from the files on disk, when the one before it was lost.
            raise StoreUnavailableError(
                "the package was replaced while this process ran "
                f"(requests of form {form}, not {FORMAT}): restart it"
            )
        self._database = Database(self._path, boot, lambda _: None)

    def _commit(
        self,
        compares: list[tuple[str, tuple[Any, ...]]],
        operations: list[tuple[str, tuple[Any, ...]]],
        owner: tuple[int, int] | None,
    ) -> Outcome:
        """Both as `flat` gives them."""
        lease = None if owner is None else SeenLease(self._opened.leases, *owner)
        return self._opened.commit(unflat(compares), unflat(operations), lease)

    def _open_session(self, timeout_ms: int) -> tuple[int, bytes]:
        held = self._opened.open_session(timeout_ms)
        return held.slot, held.written

    def attempt(self, name: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        try:
            return DONE, self.calls[name](*arguments)
        except StoreBusyError as error:
            return BUSY, error
        except MetadataError as error:
            return FAILED, error
        except Exception as error:  # noqa: BLE001 - told to the process that asked
            return FAILED, StoreUnavailableError(
                f"the process that writes {self._path} failed: {type(error).__name__}: {error}"
            )


def _receive(source: BinaryIO) -> Any:
    """The next request, read as a whole before anything is locked; None at the end."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = source.read(length)
    return pickle.loads(body) if len(body) == length else None


def main(path: str) -> None:
    """Serve until standard input ends. Signals meant for a whole group of processes are its parent's to answer."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    writing = _Writing(path)
    name, arguments = "", ()
    while (request := _receive(source)) is not None:
        if request[1] is not None:
            _, name, arguments = request
        outcome, value = writing.attempt(name, arguments)
        try:
            sink.write(frame((request[0], outcome, value)))
            sink.flush()
        except BrokenPipeError:
            return
