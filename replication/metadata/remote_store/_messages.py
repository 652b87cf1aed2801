"""The messages of a remote store and its server: msgpack, one message for each request kind.

Numbers and field order are the format: fields are only ever added, at the end and with a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import msgspec
from msgspec import structs

from ....transport import ProtocolError
from .._limits import Limits
from .._values import (
    Changed,
    Committed,
    Compare,
    Conflict,
    Delete,
    Delta,
    Entry,
    Exists,
    Listing,
    Missing,
    Operation,
    Outcome,
    Put,
    Read,
    Resync,
    TooOld,
    Unknown,
    ValueIs,
    VersionIs,
    WatchEvent,
)

T = TypeVar("T")


class Kind(IntEnum):
    """Request kinds. They begin where those of nodes do not reach, so that neither is taken for the other."""

    GET = 201
    LIST = 202
    COMMIT = 203
    OPEN_SESSION = 204
    RENEW_SESSION = 205
    CLOSE_SESSION = 206
    WATCH = 207
    CHANGES = 208
    MORE = 209
    DESCRIBE = 210
    RAISE_REVISION = 211


class Failure(IntEnum):
    """Error codes of answers, one for each error of the interface that can come from the server."""

    UNAVAILABLE = 1
    SESSION_EXPIRED = 2
    INVALID = 3
    CORRUPT = 4
    CLOSED = 5
    TOO_LARGE = 6
    UNSUPPORTED = 7
    FAILED = 8
    """The store raised what the interface does not know: of a transaction nobody can tell what became."""


class _Message(msgspec.Struct, array_like=True):
    pass


class Key(_Message):
    """GET of a key, LIST of a prefix."""

    text: str


class WireEntry(_Message):
    key: str
    value: bytes
    version: int
    revision: int
    session_id: int | None

    @classmethod
    def of(cls, entry: Entry) -> WireEntry:
        return cls(entry.key, entry.value, entry.version, entry.revision, entry.session_id)

    def entry(self) -> Entry:
        return Entry(self.key, self.value, self.version, self.revision, self.session_id)


class Since(_Message):
    """CHANGES of a prefix."""

    prefix: str
    revision: int


class Cursor(_Message):
    """MORE of an answer that did not fit into a frame."""

    cursor: int


class Found(_Message):
    """Answer to GET (at most one entry), LIST and CHANGES, or a page of it.

    deleted: of CHANGES. too_old: of CHANGES, that the history does not reach as far. more: the cursor of the next
    page, 0 with the last one. All pages show one snapshot. store_id: of the store behind.
    """

    revision: int
    entries: list[WireEntry]
    deleted: list[str] = []
    too_old: bool = False
    more: int = 0
    store_id: str = ""

    @classmethod
    def of_read(cls, read: Read) -> Found:
        entries = [WireEntry.of(read.entry)] if read.entry is not None else []
        return cls(read.revision, entries, store_id=read.store_id)

    @classmethod
    def of_listing(cls, listing: Listing) -> Found:
        entries = [WireEntry.of(entry) for entry in listing.entries.values()]
        return cls(listing.revision, entries, store_id=listing.store_id)

    @classmethod
    def of_changes(cls, changes: Delta | TooOld) -> Found:
        if isinstance(changes, TooOld):
            return cls(changes.revision, [], too_old=True, store_id=changes.store_id)
        entries = [WireEntry.of(entry) for entry in changes.entries.values()]
        return cls(changes.revision, entries, sorted(changes.deleted), store_id=changes.store_id)

    def read(self) -> Read:
        return Read(self.revision, self.entries[0].entry() if self.entries else None, self.store_id)

    def listing(self) -> Listing:
        return Listing(self.revision, {each.key: each.entry() for each in self.entries}, self.store_id)

    def changes(self) -> Delta | TooOld:
        if self.too_old:
            return TooOld(self.revision, self.store_id)
        return Delta(self.revision, self.listing().entries, frozenset(self.deleted), self.store_id)

    def pages(self, page_bytes: int) -> list[Found]:
        """This answer in parts of about `page_bytes` at most, one entry at least; nothing is said twice."""
        pages = [structs.replace(self, entries=[], deleted=[])]
        room = page_bytes
        for key in self.deleted:
            room = _turn(pages, room, page_bytes, len(key.encode()) + _ITEM_BYTES)
            pages[-1].deleted.append(key)
        for entry in self.entries:
            room = _turn(pages, room, page_bytes, len(entry.key.encode()) + len(entry.value) + _ITEM_BYTES)
            pages[-1].entries.append(entry)
        return pages


_ITEM_BYTES = 48
"""The most that an entry's numbers and msgpack's own bytes take, beside key and value."""


def _turn(pages: list[Found], room: int, page_bytes: int, size: int) -> int:
    """The room left after an item of `size`, on a new page if the last one has none for it."""
    last = pages[-1]
    if size > room and (last.entries or last.deleted):
        pages.append(structs.replace(last, entries=[], deleted=[]))
        room = page_bytes
    return room - size


class WireCompare(_Message):
    """kind: 0 missing, 1 exists, 2 version is, 3 value is."""

    kind: int
    key: str
    version: int = 0
    value: bytes = b""

    @classmethod
    def of(cls, compare: Compare) -> WireCompare:
        match compare:
            case Missing(key=key):
                return cls(0, key)
            case Exists(key=key):
                return cls(1, key)
            case VersionIs(key=key, version=version):
                return cls(2, key, version)
            case ValueIs(key=key, value=value):
                return cls(3, key, 0, value)

    def compare(self) -> Compare:
        match self.kind:
            case 0:
                return Missing(self.key)
            case 1:
                return Exists(self.key)
            case 2:
                return VersionIs(self.key, self.version)
            case 3:
                return ValueIs(self.key, self.value)
        raise ProtocolError(f"a compare of the unknown kind {self.kind}")


class WireOperation(_Message):
    """A put, or without a value a delete."""

    key: str
    value: bytes | None
    ephemeral: bool = False

    @classmethod
    def of(cls, operation: Operation) -> WireOperation:
        if isinstance(operation, Delete):
            return cls(operation.key, None)
        return cls(operation.key, operation.value, operation.ephemeral)

    def operation(self) -> Operation:
        return Delete(self.key) if self.value is None else Put(self.key, self.value, self.ephemeral)


class Commit(_Message):
    """session: what OPEN_SESSION returned as `handle`."""

    compares: list[WireCompare]
    operations: list[WireOperation]
    session: bytes | None

    @classmethod
    def of(
        cls, compares: Sequence[Compare], operations: Sequence[Operation], session: bytes | None
    ) -> Commit:
        return cls(
            [WireCompare.of(each) for each in compares],
            [WireOperation.of(each) for each in operations],
            session,
        )


class Ended(_Message):
    """Answer to COMMIT: committed (versions is not None), a conflict on `text`, or unknown because of `text`."""

    revision: int
    versions: dict[str, int] | None
    conflict: bool
    text: str

    @classmethod
    def of(cls, outcome: Outcome) -> Ended:
        match outcome:
            case Committed(revision=revision, versions=versions):
                return cls(revision, dict(versions), False, "")
            case Conflict(key=key):
                return cls(0, None, True, key)
            case Unknown(reason=reason):
                return cls(0, None, False, reason)

    def outcome(self) -> Outcome:
        if self.versions is not None:
            return Committed(self.revision, self.versions)
        return Conflict(self.text) if self.conflict else Unknown(self.text)


class Nothing(_Message):
    """DESCRIBE."""


class Described(_Message):
    """Answer to DESCRIBE: the limits of the store behind, as `Limits` has them."""

    max_operations: int | None
    max_bytes: int | None
    item_bytes: int
    key_bytes: int

    @classmethod
    def of(cls, limits: Limits) -> Described:
        return cls(limits.max_operations, limits.max_bytes, limits.item_bytes, limits.key_bytes)

    def limits(self) -> Limits:
        return Limits(
            max_operations=self.max_operations,
            max_bytes=self.max_bytes,
            item_bytes=self.item_bytes,
            key_bytes=self.key_bytes,
        )


class RaiseRevision(_Message):
    floor: int
    store_id: str | None


class Revision(_Message):
    """Answer to RAISE_REVISION."""

    revision: int


class OpenSession(_Message):
    timeout_ms: int


class Opened(_Message):
    """id: as entries name it. handle: what only its owner knows."""

    id: int
    handle: bytes
    timeout_ms: int


class Handle(_Message):
    """RENEW_SESSION and CLOSE_SESSION."""

    handle: bytes


class WatchNext(_Message):
    """The next event of watch `number` of this connection, which the first request opens."""

    number: int
    prefix: str


class Event(_Message):
    revision: int
    resync: bool

    @classmethod
    def of(cls, event: WatchEvent) -> Event:
        return cls(event.revision, isinstance(event, Resync))

    def event(self, prefix: str) -> WatchEvent:
        return Resync(self.revision) if self.resync else Changed(prefix, self.revision)


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def decode(body: bytes, kind: type[T]) -> T:
    """Raises `ProtocolError` for what is no such message."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"malformed {kind.__name__}: {error}") from error
