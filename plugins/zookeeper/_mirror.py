"""A copy of all keys that follows ZooKeeper by watches, so that a listing reads only what has changed.

Each node read leaves a one-shot watch behind, and so does the listing of names. ZooKeeper delivers the event of a
watch before any answer that shows the change, and the connection keeps that order: when a read that was sent last
has been answered and no event has come, the copy is exactly what the server had at that answer. `sync` before it
makes this server have what any other had committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attrs
import trio
from kazoo.exceptions import NoNodeError
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import EventType, WatchedEvent

from insync.replication.metadata import Delta, Entry, Listing, StoreCorruptError, TooOld
from insync.replication.metadata.toolkit import History

from ._connection import Connection
from ._layout import Layout, Mark, Node, key_of, name_of


@attrs.frozen
class Snapshot:
    """The revision at which all keys were seen together, and those that changed since the snapshot before.

    repaired: the store's identity or its revisions are others than before.
    """

    revision: int
    changed: frozenset[str]
    store_id: str = ""
    repaired: bool = False


class _Stale:
    """The changes that watches have reported since it was last asked. Written by the connection's thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._wake = wake
        self._keys: set[str] = set()
        self._names = True

    def key_changed(self, event: WatchedEvent) -> None:
        # A lost connection also fires every watch, with an event of no type: then everything is read again anyway.
        if event.type != EventType.NONE:
            with self._lock:
                self._keys.add(key_of(event.path.rpartition("/")[2]))
            self._wake()

    def names_changed(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            with self._lock:
                self._names = True
            self._wake()

    def take(self) -> tuple[set[str], bool]:
        with self._lock:
            taken = self._keys, self._names
            self._keys, self._names = set(), False
        return taken

    def everything(self, keys: set[str]) -> None:
        with self._lock:
            self._keys |= keys
            self._names = True


class Mirror:
    """The copy. One refresh runs at a time; whoever asks gets one that began after the question."""

    def __init__(self, connection: Connection, layout: Layout, wake: Callable[[], None]) -> None:
        self._connection = connection
        self._layout = layout
        self._nodes: dict[str, Node] = {}
        self._stale = _Stale(wake)
        self._lock = trio.Lock()
        self._begun = 0
        self._done = 0
        self._snapshot = Snapshot(0, frozenset())
        self._unannounced: set[str] = set()
        self._ordered: dict[str, Entry] | None = None
        self._history: History | None = None
        self._mark = Mark("")

    def forget(self) -> None:
        """The connection was lost, and the watches with it."""
        self._stale.everything(set(self._nodes))

    async def listing(self, prefix: str, announce: Callable[[Snapshot], None]) -> Listing:
        snapshot = await self.refresh(announce)
        if self._ordered is None:
            self._ordered = {key: self._nodes[key].entry for key in sorted(self._nodes)}
        chosen = {key: entry for key, entry in self._ordered.items() if key.startswith(prefix)}
        return Listing(snapshot.revision, chosen, snapshot.store_id)

    async def changes(
        self, prefix: str, since_revision: int, announce: Callable[[Snapshot], None]
    ) -> Delta | TooOld:
        """By the zxids of the nodes that watches named. A key that was read again may be named without a change."""
        snapshot = await self.refresh(announce)
        changed = self._history.since(since_revision) if self._history is not None else None
        if changed is None or since_revision > snapshot.revision:
            return TooOld(snapshot.revision, snapshot.store_id)
        chosen = [key for key in changed if key.startswith(prefix)]
        entries = {key: self._nodes[key].entry for key in chosen if key in self._nodes}
        return Delta(snapshot.revision, entries, frozenset(chosen) - entries.keys(), snapshot.store_id)

    async def refresh(self, announce: Callable[[Snapshot], None]) -> Snapshot:
        """Everything that was committed before this call, and perhaps more. Raises `StoreUnavailableError`.

        `announce` is called once for each snapshot that shows a change. The nodes stay those of the snapshot until
        the caller waits for something.
        """
        wanted = self._begun + 1
        async with self._lock:
            if self._done < wanted:
                self._begun += 1
                number = self._begun
                snapshot = await self._read()
                self._done = number
                if snapshot.changed or snapshot.repaired:
                    announce(snapshot)
        return self._snapshot

    async def _read(self) -> Snapshot:
        self._connection.check_connected()
        pending: tuple[set[str], bool] = (set(), False)
        try:
            client, layout = self._connection.client, self._layout
            _, *marks = await self._connection.read(client.sync_async(layout.root), *self._marks())
            self._follow(self.mark_of(marks))
            while any(pending := self._stale.take()):
                await self._read_stale(*pending)
                marks = await self._connection.read(*self._marks())
        except BaseException:
            # What was installed stays unannounced, so that the next snapshot names it though it reads nothing new.
            self._stale.everything(pending[0] | self._unannounced)
            raise
        if self.mark_of(marks) != self._mark:
            return await self._read()  # it was repaired in between
        revision = self.revision_of(marks)
        changed, self._unannounced = frozenset(self._unannounced), set()
        repaired = self._history is None and self._done > 0
        if self._history is None or revision < self._snapshot.revision:
            self._history = History(revision)  # the first look, or servers that went back in time
        elif changed:
            self._history.add(revision, changed)
        self._snapshot = Snapshot(revision, changed, self._mark.store_id, repaired)
        return self._snapshot

    def _marks(self) -> tuple[IAsyncResult, IAsyncResult]:
        client = self._connection.client
        return client.exists_async(self._layout.revision), client.get_async(self._layout.keys)

    def _follow(self, mark: Mark) -> None:
        """Another identity, or revisions that were raised: nothing that was read before counts any more."""
        if mark != self._mark:
            self._mark, self._history = mark, None
            self.forget()

    def mark_of(self, marks: list[Any]) -> Mark:
        """Of the answers for `<root>/revision` and `<root>/keys`."""
        self._check(marks)
        return Mark.read(marks[1][0])

    def revision_of(self, marks: list[Any]) -> int:
        """The store's revision: of the last transaction, or of the last session that took keys with it."""
        offset = self.mark_of(marks).offset
        return int(max(marks[0].mzxid, marks[1][1].pzxid)) + offset

    def _check(self, marks: list[Any]) -> None:
        if any(mark is None or isinstance(mark, Exception) for mark in marks):
            raise StoreCorruptError(
                f"{self._layout.root} in ZooKeeper was deleted, or parts of it, while the store was in use"
            )

    async def _read_stale(self, keys: set[str], names: bool) -> None:
        """Read what watches spoke of."""
        client = self._connection.client
        if names:
            # Its data changes when the store is repaired; then nothing else may, and readers must hear of it.
            found, _ = await self._connection.read(
                client.get_children_async(self._layout.keys, watch=self._stale.names_changed),
                client.get_async(self._layout.keys, watch=self._stale.names_changed),
            )
            if isinstance(found, Exception):
                raise StoreCorruptError(f"{self._layout.keys} in ZooKeeper cannot be listed: {found!r}")
            present = {key_of(name) for name in found}
            keys |= present - self._nodes.keys()
            keys |= self._nodes.keys() - present
        ordered = sorted(keys)
        reads = [
            client.get_async(f"{self._layout.keys}/{name_of(key)}", watch=self._stale.key_changed)
            for key in ordered
        ]
        answers = await self._connection.read(*reads)
        for key, answer in zip(ordered, answers, strict=True):
            self._install(key, answer)

    def _install(self, key: str, answer: Any) -> None:
        """Take over what was read, and note whether it differs from what we had."""
        before = self._nodes.get(key)
        if isinstance(answer, NoNodeError):
            self._nodes.pop(key, None)
        elif isinstance(answer, Exception):
            raise StoreCorruptError(f"the key {key!r} in ZooKeeper cannot be read: {answer!r}")
        else:
            data, stat = answer
            self._nodes[key] = Node.read(key, data, stat, self._mark)
        if before != self._nodes.get(key):
            self._unannounced.add(key)
            self._ordered = None
