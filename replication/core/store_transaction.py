"""One value for every write to the metadata store: what must hold, what is put, and what came of it.

Records travel as they are; whoever drives the machine turns them into bytes. A stored value that is only compared
travels as an opaque token, so that a record of a later release is compared whole though its fields are not known.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A key as one reading of the store shows it.

    record: None if the value is no readable record; `problem` says why.
    value: token of the stored bytes, good for `SameValue` and nothing else.
    session: token of the session that owns an ephemeral key, else None.
    """

    key: str
    record: object
    version: int
    value: object
    session: object = None
    problem: str = ""


class Absent(msgspec.Struct, frozen=True):
    """Holds if the key does not exist."""

    key: str


class AtVersion(msgspec.Struct, frozen=True):
    """Holds if the key exists at exactly this version."""

    key: str
    version: int


class SameValue(msgspec.Struct, frozen=True):
    """Holds if the key exists with the value that was seen.

    Stronger than a version where a key may be deleted and made again: its versions begin at 1 then.
    """

    key: str
    value: object


Compare = Absent | AtVersion | SameValue


class Put(msgspec.Struct, frozen=True):
    """Write a record under a key; None deletes the key. An ephemeral key ends with the session that wrote it."""

    key: str
    record: object | None
    ephemeral: bool = False


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """All of `puts`, if all of `compares` hold and, with `session`, if the node's own session still lives."""

    compares: tuple[Compare, ...]
    puts: tuple[Put, ...]
    session: bool = True


class Committed(msgspec.Struct, frozen=True):
    """It took place at `revision`; `versions` has the new version of each key that was put."""

    revision: int
    versions: Mapping[str, int]


class Conflict(msgspec.Struct, frozen=True):
    """Nothing was written: the compare of `key` did not hold."""

    key: str


class SessionOver(msgspec.Struct, frozen=True):
    """Nothing was written: the session has ended."""


class Unclear(msgspec.Struct, frozen=True):
    """It was written in whole or not at all, and nobody can tell which, or when."""

    reason: str = ""


Outcome = Committed | Conflict | SessionOver | Unclear


def unchanged(key: str, seen: Seen | None) -> Compare:
    """Holds as long as a key is as it was seen (None: it was not there)."""
    return Absent(key) if seen is None else AtVersion(key, seen.version)
