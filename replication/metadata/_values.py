"""The values that travel between a metadata store and its users."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


def _store_id() -> str:
    """The field of every read that names the store: a random text, written into the store when it was made.

    A reader that knows another id, or a greater revision of the same id, is at another store than before, or at an
    older state of it. It takes no part in comparisons of readings; empty from a store that does not tell.
    """
    field: str = attrs.field(default="", eq=False)
    return field


@attrs.frozen
class Entry:
    """One key as it stood at one moment.

    version: the key's own counter, 1 at creation, +1 at each put; it starts at 1 again after a delete.
    revision: the store's revision at the key's last put.
    session_id: the session that owns an ephemeral key, else None.
    """

    key: str
    value: bytes
    version: int
    revision: int
    session_id: int | None = None


@attrs.frozen
class Listing:
    """All keys under a prefix, in one snapshot and in key order (code points).

    The snapshot holds every commit up to `revision` and none after it; ephemeral keys of a session that has
    ended since may be gone already.
    """

    revision: int
    entries: dict[str, Entry]
    store_id: str = _store_id()


@attrs.frozen
class Delta:
    """The step from the listing of a prefix at an older revision to the one at `revision`.

    entries: keys that were put since, as they stand at `revision`, in no order. deleted: keys that are not there
    at `revision` and may have been before. Both may name keys that did not change, and keys that came and went in
    between: `apply` gives the same in any case.
    """

    revision: int
    entries: dict[str, Entry]
    deleted: frozenset[str] = frozenset()
    store_id: str = _store_id()

    def apply(self, listing: Listing) -> Listing:
        """The listing at `revision`; `listing` was taken at the revision that was asked about, with its prefix."""
        entries = {key: entry for key, entry in listing.entries.items() if key not in self.deleted}
        entries.update(self.entries)
        return Listing(self.revision, dict(sorted(entries.items())), self.store_id)


@attrs.frozen
class TooOld:
    """The store cannot tell what has changed since: list instead.

    Its history does not reach back as far, or it never was at the revision that was asked about, as a store that
    was restored from a backup. revision: the store's own.
    """

    revision: int
    store_id: str = _store_id()


@attrs.frozen
class Read:
    """One key (None: it does not exist), with the store's revision of the snapshot."""

    revision: int
    entry: Entry | None
    store_id: str = _store_id()


@attrs.frozen
class VersionIs:
    """Holds if the key exists at exactly this version."""

    key: str
    version: int


@attrs.frozen
class Exists:
    """Holds if the key exists."""

    key: str


@attrs.frozen
class Missing:
    """Holds if the key does not exist."""

    key: str


@attrs.frozen
class ValueIs:
    """Holds if the key exists with exactly these bytes."""

    key: str
    value: bytes


Compare = VersionIs | Exists | Missing | ValueIs


@attrs.frozen
class Put:
    """Create or overwrite a key. An ephemeral key belongs to the transaction's session and dies with it.

    A put takes a key over as it says: ephemeral for this session, or persistent, whatever it was before. Add
    `Missing(key)` to the compares to refuse instead.
    """

    key: str
    value: bytes
    ephemeral: bool = False


@attrs.frozen
class Delete:
    """Remove a key; of a key that does not exist, nothing (compare with `Exists` to refuse)."""

    key: str


Operation = Put | Delete


@attrs.frozen
class Committed:
    """The transaction took place at `revision`; `versions` has the new version of each key put.

    A transaction that changed nothing (only compares, or deletes of missing keys) raises no revision.
    """

    revision: int
    versions: Mapping[str, int]


@attrs.frozen
class Conflict:
    """Nothing was written: the first compare that did not hold was on `key`. Read again and decide anew."""

    key: str


@attrs.frozen
class Unknown:
    """Written in whole or not at all, and the store cannot tell which. Read again before doing anything."""

    reason: str


Outcome = Committed | Conflict | Unknown


@attrs.frozen
class Changed:
    """Something under `prefix` changed, up to and including `revision`. Several changes make one event."""

    prefix: str
    revision: int


@attrs.frozen
class Resync:
    """Anything may have changed (the watch just opened, or there was a gap): list, whatever you hold."""

    revision: int


WatchEvent = Changed | Resync
