"""The synchronous half of the SQLite store: reads, write transactions, the sweep of dead sessions, the changes.

Everything here runs in the store's worker thread, or, what writes, in the process that writes for it. Nothing here
waits: a lock held elsewhere is `StoreBusyError`.
"""

from __future__ import annotations

import itertools
import math
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import attrs

from .._history import KEPT_KEYS, KEPT_REVISIONS
from .._transaction import holds
from .._values import (
    Committed,
    Compare,
    Conflict,
    Delta,
    Entry,
    Listing,
    Operation,
    Outcome,
    Put,
    Read,
    TooOld,
    Unknown,
)
from ..errors import SessionExpiredError, StoreBusyError, StoreUnavailableError
from ._leases import FIRST_SLOT, HeldLease, LeaseFile, SeenLease
from ._schema import Place, connect, meaning, translated

_PRUNE_EVERY = 256
"""Revisions after which the history of changed keys is cut to its bounds, or sooner after many keys."""

_GET = """SELECT m.revision, hex(m.identity), e.value, e.version, e.revision, e.session_id, s.slot FROM store m
    LEFT JOIN entries e ON e.key = ? LEFT JOIN sessions s ON s.id = e.session_id"""
_LIST = """SELECT m.revision, hex(m.identity), e.key, e.value, e.version, e.revision, e.session_id, s.slot
    FROM store m
    LEFT JOIN entries e ON e.key >= ? AND e.key < ? LEFT JOIN sessions s ON s.id = e.session_id
    ORDER BY e.key"""
_ENTRY = "SELECT value, version, revision, session_id FROM entries WHERE key = ?"
_PUT = """INSERT INTO entries VALUES (?, ?, 1, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value,
    version = version + 1, revision = excluded.revision, session_id = excluded.session_id RETURNING version"""
_CHANGES = """SELECT m.sequence, m.revision, m.changes_floor, c.key FROM store m
    LEFT JOIN changes c ON c.revision > ?"""
_CHANGED = """SELECT m.revision, hex(m.identity), m.changes_floor, c.key, e.value, e.version, e.revision,
    e.session_id, s.slot FROM store m
    LEFT JOIN (SELECT DISTINCT key FROM changes WHERE revision > ? AND key >= ? AND key < ?) c
    LEFT JOIN entries e ON e.key = c.key LEFT JOIN sessions s ON s.id = e.session_id"""
_OWNED = """SELECT e.key, s.id, s.slot FROM sessions s CROSS JOIN entries e INDEXED BY entries_by_session
    WHERE e.session_id = s.id AND e.key >= ? AND e.key < ?"""
_OVERLONG = (
    "SELECT max(revision) FROM (SELECT revision FROM changes ORDER BY revision DESC LIMIT -1 OFFSET ?)"
)
_DELETE = "DELETE FROM entries WHERE key = ?"


@attrs.frozen
class Announcement:
    """Keys that changed up to `revision`, for the watches of this handle; None: anything may have changed."""

    revision: int
    keys: tuple[str, ...] | None


class OutcomeUnknownError(StoreUnavailableError):
    """COMMIT itself failed: the transaction may be found in the write-ahead log after a restart, or not."""


@attrs.define(eq=False)
class _Writing:
    """An open write transaction: the revision it started from, the one it makes, the keys it changed.

    sequence: number of the last transaction before it (those that raised no revision are counted too).
    """

    sequence: int
    base: int
    revision: int
    changed: list[tuple[int, bytes]] = attrs.field(factory=list)
    written: bool = False


def _range_of(prefix: str) -> tuple[bytes, bytes]:
    """The half-open range of keys with this prefix; UTF-8 has no byte 0xff, so the last byte can be raised."""
    lower = prefix.encode()
    return lower, lower[:-1] + bytes((lower[-1] + 1,)) if lower else b"\xff"


class Database:
    """An open connection with its lease file, and what the watches have been told so far.

    announce: called, in the calling thread, with everything that changes here or is seen to have changed.
    sweep: given where another process writes for this one, which then only reads: called when sessions are over, so
    that the other one removes them. That process must have opened the store before.
    """

    def __init__(
        self,
        path: str,
        boot: int,
        announce: Callable[[Announcement], None],
        sweep: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self._announce = announce
        self._sweep = sweep
        self._seen = 0
        self._seen_sequence = 0
        self._next_deadline: float = 0
        self._resynced_for: set[int] = set()
        self._unpruned = 0
        with ExitStack() as undo:
            self._connection = undo.enter_context(closing(connect(path)))
            self._place = Place.of(path)
            self._leases = undo.enter_context(closing(LeaseFile(os.path.realpath(path) + "-leases", boot)))
            if sweep is None:
                with self._writing() as writing:
                    self._leases.adopt(self._connection.execute("SELECT identity FROM store").fetchone()[0])
                    self._seen, self._seen_sequence = writing.base, writing.sequence
            else:
                with translated(path):
                    self._connection.execute("PRAGMA query_only = ON")
                    self._seen_sequence, self._seen = self._connection.execute(
                        "SELECT sequence, revision FROM store"
                    ).fetchone()
            self._resources = undo.pop_all()

    def close(self) -> None:
        self._resources.close()

    @property
    def leases(self) -> LeaseFile:
        return self._leases

    def _check_files(self) -> None:
        """Raise `StoreUnavailableError` if other files lie there now: who opens the store sees another one."""
        self._place.check(self.path)
        self._leases.check_linked()

    # reads

    def read(self, key: str) -> Read:
        """One statement, so one snapshot; an ephemeral key of a session that is over is not there."""
        with translated(self.path):
            self._check_files()
            row = self._connection.execute(_GET, (key.encode(),)).fetchone()
            revision, store_id, value, version, changed, owner, slot = row
            there = version is not None and self._is_owned(owner, slot)
        entry = Entry(key, value, version, changed, owner) if there else None
        return Read(revision, entry, store_id.lower())

    def read_range(self, prefix: str) -> Listing:
        entries = {}
        with translated(self.path):
            self._check_files()
            rows = self._connection.execute(_LIST, _range_of(prefix)).fetchall()
            for _, _, raw, value, version, changed, owner, slot in rows:
                if version is not None and self._is_owned(owner, slot):
                    key = raw.decode()
                    entries[key] = Entry(key, value, version, changed, owner)
        return Listing(rows[0][0], entries, rows[0][1].lower())

    def read_changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        """A session that is over takes its keys along at once, though no revision says so yet."""
        lower, upper = _range_of(prefix)
        with translated(self.path):
            self._check_files()
            with self._snapshot():
                rows = self._connection.execute(_CHANGED, (since_revision, lower, upper)).fetchall()
                owned = self._connection.execute(_OWNED, (lower, upper)).fetchall()
            revision, store_id, floor = rows[0][0], rows[0][1].lower(), rows[0][2]
            if not floor <= since_revision <= revision:
                return TooOld(revision, store_id)
            deleted = {raw.decode() for raw, owner, slot in owned if not self._is_owned(owner, slot)}
            entries = {}
            for _, _, _, raw, value, version, changed, owner, slot in rows:
                if raw is None:
                    continue
                key = raw.decode()
                if version is None or not self._is_owned(owner, slot):
                    deleted.add(key)
                elif key not in deleted:
                    entries[key] = Entry(key, value, version, changed, owner)
        return Delta(revision, entries, frozenset(deleted), store_id)

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several reads of one state."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _is_owned(self, owner: int | None, slot: int | None) -> bool:
        return owner is None or (slot is not None and self._leases.is_alive(owner, slot))

    # transactions

    def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], held: HeldLease | SeenLease | None
    ) -> Outcome:
        try:
            with self._swept() as writing:
                return self._decide(writing, compares, operations, held)
        except OutcomeUnknownError as error:
            return Unknown(str(error))

    def _decide(
        self,
        writing: _Writing,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        held: HeldLease | SeenLease | None,
    ) -> Outcome:
        self._check_session(held)
        for compare in compares:
            if not holds(compare, self._entry(compare.key)):
                return Conflict(compare.key)
        versions = self._apply(writing, operations, held)
        self._check_session(held)
        return Committed(writing.revision, versions)

    def open_session(self, timeout_ms: int) -> HeldLease:
        """The lease is written before the row is committed: whoever sees the row finds the lease."""
        with self._swept():
            session_id = self._scalar(
                "UPDATE store SET last_session = last_session + 1 RETURNING last_session"
            )
            slot = self._free_slot()
            self._connection.execute("INSERT INTO sessions VALUES (?, ?)", (session_id, slot))
            held = HeldLease(self._leases, slot, session_id, timeout_ms)
        self._next_deadline = min(self._next_deadline, held.deadline_ns)
        return held

    def remove_sessions(self, session_ids: Collection[int]) -> None:
        """Delete those sessions that are still there, with their keys."""
        with self._swept(session_ids):
            pass

    def raise_revision(self, floor: int, identity: bytes | None) -> int:
        """Readers of other processes find their own place before the floor of the history, and resync."""
        with self._swept() as writing:
            writing.revision = max(writing.revision, floor) + 1
            execute = self._connection.execute
            execute("DELETE FROM changes")
            execute(
                "UPDATE store SET changes_floor = ?1, last_session = max(last_session, ?1)",
                (writing.revision,),
            )
            if identity is not None:
                execute("UPDATE store SET identity = ?", (identity,))
                self._leases.rename(identity)
        self._announce(Announcement(writing.revision, None))
        return writing.revision

    def _scalar(self, sql: str, parameters: tuple[int, ...] = ()) -> int:
        value: int = self._connection.execute(sql, parameters).fetchone()[0]
        return value

    def _free_slot(self) -> int:
        used = {slot for (slot,) in self._connection.execute("SELECT slot FROM sessions")}
        return next(slot for slot in itertools.count(FIRST_SLOT) if slot not in used)

    def _check_session(self, held: HeldLease | SeenLease | None) -> None:
        if held is None:
            return
        row = self._connection.execute("SELECT 1 FROM sessions WHERE id = ?", (held.session_id,)).fetchone()
        if row is None or not held.is_alive():
            raise SessionExpiredError(held.session_id)

    def _entry(self, key: str) -> Entry | None:
        row = self._connection.execute(_ENTRY, (key.encode(),)).fetchone()
        return None if row is None else Entry(key, *row)

    def _apply(
        self, writing: _Writing, operations: Iterable[Operation], held: HeldLease | SeenLease | None
    ) -> dict[str, int]:
        revision = writing.revision + 1
        versions: dict[str, int] = {}
        changed = []
        for operation in operations:
            key = operation.key.encode()
            if isinstance(operation, Put):
                owner = held.session_id if operation.ephemeral and held is not None else None
                row = self._connection.execute(_PUT, (key, operation.value, revision, owner)).fetchone()
                versions[operation.key] = row[0]
                changed.append((revision, key))
            elif self._connection.execute(_DELETE, (key,)).rowcount:
                changed.append((revision, key))
        if changed:
            writing.revision = revision
            writing.changed += changed
        return versions

    @contextmanager
    def _writing(self) -> Iterator[_Writing]:
        """A write transaction: kept at the end of the block, rolled back if the block raises."""
        with translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                sequence, revision = self._connection.execute(
                    "SELECT sequence, revision FROM store"
                ).fetchone()
                writing = _Writing(sequence, revision, revision)
                rows = self._connection.total_changes
                yield writing
                if self._connection.total_changes > rows:
                    self._record(writing)
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        self._commit_transaction()
        self._follow(writing)

    def _follow(self, writing: _Writing) -> None:
        """After our own commit: tell our watches, and do not look for it again unless others came between."""
        if writing.written and writing.sequence == self._seen_sequence:
            self._seen, self._seen_sequence = writing.revision, writing.sequence + 1
        if writing.revision > writing.base:
            keys = tuple(key.decode() for _, key in writing.changed)
            self._announce(Announcement(writing.revision, keys))

    def _commit_transaction(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            known = meaning(self.path, error)
            if isinstance(known, StoreBusyError):
                raise known from error
            raise OutcomeUnknownError(
                f"a commit failed, and may take effect at a restart: {known}"
            ) from error

    def _record(self, writing: _Writing) -> None:
        """Write down what changed. The sequence is published before COMMIT, so that a crash after it hides nothing:
        whoever sees it ahead of the database looks again until it is not.
        """
        writing.written = True
        execute = self._connection.execute
        self._connection.executemany("INSERT OR IGNORE INTO changes VALUES (?, ?)", writing.changed)
        execute("UPDATE store SET sequence = ?, revision = ?", (writing.sequence + 1, writing.revision))
        self._unpruned += len(writing.changed)
        if writing.revision // _PRUNE_EVERY > writing.base // _PRUNE_EVERY or self._unpruned > KEPT_KEYS:
            self._prune(writing.revision)
        self._leases.publish(writing.sequence + 1)

    def _prune(self, revision: int) -> None:
        """Keep the history bounded, by revisions and by keys: one transaction may change thousands."""
        self._unpruned = 0
        overlong = self._scalar(_OVERLONG, (KEPT_KEYS,)) or 0
        floor = max(0, revision - KEPT_REVISIONS, overlong)
        self._connection.execute("DELETE FROM changes WHERE revision <= ?", (floor,))
        self._connection.execute("UPDATE store SET changes_floor = max(changes_floor, ?)", (floor,))

    # sessions that are over

    @contextmanager
    def _swept(self, leaving: Collection[int] = ()) -> Iterator[_Writing]:
        """A write transaction that first removes every session that is over, and those being closed."""
        with translated(self.path):
            self._check_files()
        with self._writing() as writing:
            rows = self._connection.execute("SELECT id, slot FROM sessions").fetchall()
            dead = [row for row in rows if row[0] in leaving or not self._leases.is_alive(*row)]
            if dead:
                writing.revision += 1
                for session_id, slot in dead:
                    self._remove_session(writing, session_id, slot)
            yield writing

    def _remove_session(self, writing: _Writing, session_id: int, slot: int) -> None:
        """Clearing the slot before COMMIT is right either way: the session is over even if this rolls back."""
        self._leases.clear(slot)
        keys = self._connection.execute(
            "SELECT key FROM entries WHERE session_id = ?", (session_id,)
        ).fetchall()
        self._connection.execute("DELETE FROM entries WHERE session_id = ?", (session_id,))
        self._connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        writing.changed += [(writing.revision, key) for (key,) in keys]

    # what other processes do

    def catch_up(self) -> int:
        """Announce what is news, and return the store's revision."""
        with translated(self.path):
            self._check_files()
            self._announce_changes()
        return self._seen

    def poll(self) -> bool:
        """Announce what changed since the last look; reads eight bytes of the lease file if nothing did.

        Returns whether a transaction has begun to commit and cannot be seen yet: it is to be looked for again.
        """
        with translated(self.path):
            self._check_files()
            published = self._leases.published()
            if published != self._seen_sequence:
                self._announce_changes()
            if time.monotonic_ns() >= self._next_deadline:
                self._look_at_leases()
            return published != self._seen_sequence

    @property
    def seen(self) -> int:
        """The revision up to which changes were announced."""
        return self._seen

    @property
    def next_deadline(self) -> float:
        """When a session may be over that `poll` would remove: seconds of the monotonic clock.

        0: `poll` is to look now. Infinity: there is no session.
        """
        return self._next_deadline / 1e9

    def _announce_changes(self) -> None:
        rows = self._connection.execute(_CHANGES, (self._seen,)).fetchall()
        sequence, revision, floor, _ = rows[0]
        before, self._seen = self._seen, revision
        if sequence != self._seen_sequence:
            self._seen_sequence = sequence
            self._next_deadline = 0  # there may be new sessions
        if before < floor:
            self._announce(Announcement(revision, None))
        elif revision > before:
            self._announce(Announcement(revision, tuple(key.decode() for *_, key in rows if key is not None)))

    def _look_at_leases(self) -> None:
        """Sweep what has expired; if the lock is held, tell the watches at least once, and try again."""
        self._next_deadline, dead = self._survey()
        if not dead:
            return
        if self._sweep is not None:
            self._sweep()
            return
        try:
            with self._swept():
                pass
        except StoreBusyError:
            self._not_swept(dead)

    def swept(self) -> None:
        """The process that writes has removed dead sessions."""
        with translated(self.path):
            self._announce_changes()

    def not_swept(self) -> None:
        """It could not, because the lock is held: the watches are told, and it is tried again."""
        with translated(self.path):
            _, dead = self._survey()
        self._not_swept(dead)

    def _not_swept(self, dead: set[int]) -> None:
        self._next_deadline = 0
        fresh, self._resynced_for = dead - self._resynced_for, dead
        if fresh:
            self._announce(Announcement(self._seen, None))

    def _survey(self) -> tuple[float, set[int]]:
        """When the next live lease ends, and which sessions are over."""
        now = time.monotonic_ns()
        earliest = math.inf
        dead = set()
        for session_id, slot in self._connection.execute("SELECT id, slot FROM sessions").fetchall():
            deadline = self._leases.deadline(session_id, slot)
            if deadline is None or deadline <= now:
                dead.add(session_id)
            else:
                earliest = min(earliest, deadline)
        return earliest, dead
