"""The entries in the records of a state's log.

A record holds the commands that one session had ready at a moment: whoever waits for a round trip anyway shares it
with others. Each command has a number of its own, so that a record that is sent twice is applied once.
"""

from __future__ import annotations

from typing import Any

import attrs

from ._packing import PackingError, pack, unpack
from .errors import UnknownEntryError

VERSION = 1
_OPEN, _COMMANDS, _DIGEST, _LEASE, _SNAPSHOT, _CLOSE, _JOIN, _CALL, _RAISE = range(9)
LARGEST_BATCH = 1 << 16
"""Commands in one record: their index has 16 bits."""
MOST_NAME = 256
"""Characters of a session's name, and of an idempotency key."""


@attrs.frozen(slots=True)
class Open:
    """Begins a session; its token is the offset of this record. The name's former session is shut out."""

    name: str
    nonce: bytes
    """By which its sender recognises it."""


@attrs.frozen(slots=True)
class Close:
    """Ends a session: its answers are no longer needed."""

    name: str
    token: int


@attrs.frozen(slots=True)
class Commands:
    """Commands number `first`, `first + 1`, ...; answers to commands below `low` are no longer needed."""

    name: str
    token: int
    low: int
    first: int
    commands: list[bytes]
    keys: dict[int, str] = attrs.Factory(dict)
    """Idempotency keys, by the index of the command."""
    deduplicate_for_ms: int = 0


@attrs.frozen(slots=True)
class Digest:
    """The digest of a copy's state before the record at `offset`."""

    offset: int
    digest: bytes
    copy: str


@attrs.frozen(slots=True)
class Lease:
    """A copy takes over the partition's snapshots and digests for this time, if no other has them."""

    copy: str
    lasts_ms: int


@attrs.frozen(slots=True)
class Snapshotted:
    """There is a whole snapshot, called `name`, of the state before the record at `offset`."""

    offset: int
    name: str
    chunks: int


@attrs.frozen(slots=True)
class Join:
    """The code of a session's copy: the class's name, and its version. The first one names the topic's class."""

    name: str
    token: int
    state: str
    version: int


@attrs.frozen(slots=True)
class Call:
    """A roll call of `copy`: each living copy joins again."""

    copy: str


@attrs.frozen(slots=True)
class Raise:
    """Raises the topic's version, unless a session has begun at or behind `seen`: its copy was not looked at."""

    state: str
    version: int
    seen: int


Entry = Open | Close | Commands | Digest | Lease | Snapshotted | Join | Call | Raise


def encode(entry: Entry) -> bytes:
    """The value of a record."""
    match entry:
        case Open():
            return pack([VERSION, _OPEN, entry.name, entry.nonce])
        case Close():
            return pack([VERSION, _CLOSE, entry.name, entry.token])
        case Commands():
            fields: list[Any] = [VERSION, _COMMANDS, entry.name, entry.token, entry.low, entry.first]
            fields.append(entry.commands)
            if entry.keys:
                fields += [list(entry.keys.items()), entry.deduplicate_for_ms]
            return pack(fields)
        case Digest():
            return pack([VERSION, _DIGEST, entry.offset, entry.digest, entry.copy])
        case Lease():
            return pack([VERSION, _LEASE, entry.copy, entry.lasts_ms])
        case Snapshotted():
            return pack([VERSION, _SNAPSHOT, entry.offset, entry.name, entry.chunks])
        case Join():
            return pack([VERSION, _JOIN, entry.name, entry.token, entry.state, entry.version])
        case Call():
            return pack([VERSION, _CALL, entry.copy])
        case Raise():
            return pack([VERSION, _RAISE, entry.state, entry.version, entry.seen])


def decode(value: bytes | None) -> Entry | None:
    """The entry in a record; None if it is none.

    Such a record changes nothing, on any copy: anybody may write to a topic, and one bad record must not end all
    copies.

    Raises:
      UnknownEntryError: An entry of a kind that only a later release knows: to pass over it would be to diverge.
    """
    if value is None:
        return None
    try:
        fields = unpack(value)
    except PackingError:
        return None
    if not isinstance(fields, list) or len(fields) < 3 or fields[0] != VERSION:
        return None
    try:
        return _checked(fields[1], fields[2:])
    except (TypeError, ValueError, IndexError):
        return None


def _checked(kind: Any, fields: list[Any]) -> Entry | None:
    if kind == _OPEN:
        name, nonce = fields
        return Open(_text(name), _bytes(nonce))
    if kind == _CLOSE:
        name, token = fields
        return Close(_text(name), _whole(token))
    if kind == _COMMANDS:
        name, token, low, first, commands, *more = fields
        if not isinstance(commands, list) or len(commands) > LARGEST_BATCH:
            raise ValueError("commands")
        keys: dict[int, str] = {}
        lasts = 0
        if more:
            pairs, lasts = more
            keys = {_whole(index): _text(key) for index, key in pairs}
        return Commands(
            _text(name),
            _whole(token),
            _whole(low),
            _whole(first),
            [_bytes(command) for command in commands],
            keys,
            _whole(lasts),
        )
    if kind == _DIGEST:
        offset, digest, copy = fields
        return Digest(_whole(offset), _bytes(digest), _text(copy))
    if kind == _LEASE:
        copy, lasts = fields
        return Lease(_text(copy), _whole(lasts))
    if kind == _SNAPSHOT:
        offset, name, chunks = fields
        return Snapshotted(_whole(offset), _text(name), _whole(chunks))
    if kind == _JOIN:
        name, token, state, version = fields
        return Join(_text(name), _whole(token), _text(state), _whole(version))
    if kind == _CALL:
        (copy,) = fields
        return Call(_text(copy))
    if kind == _RAISE:
        state, version, seen = fields
        return Raise(_text(state), _whole(version), _whole(seen))
    if _whole(kind) > _RAISE:
        raise UnknownEntryError(
            f"the log has an entry of kind {kind}, which a later release of insync wrote: use that release"
        )
    return None


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_NAME:
        raise ValueError("text")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("bytes")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("number")
    return value
