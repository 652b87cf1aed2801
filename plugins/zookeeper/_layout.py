"""How keys lie in ZooKeeper's tree.

    <root>            what this is, and its version
    <root>/keys       one child for each key, its name escaped: flat, so that one look lists all names
    <root>/revision   set by every transaction that changes something: its mzxid is the store's revision
    <root>/created    set by every transaction that creates a node: while its version stands still, a node that
                      is there is the node that was there, so that a check of a node's version means what it says

A key's version is one more than its node's, plus a base that lies in front of the value: a key that changes
from ephemeral to persistent, or back, becomes another node and counts on.
"""

from __future__ import annotations

import struct
from urllib.parse import quote, unquote

import attrs
from kazoo.protocol.states import ZnodeStat

from insync.replication.metadata import Entry, InvalidTransactionError, StoreCorruptError

FORMAT = b"insync metadata 1"
MAX_BYTES = 900_000
"""Of one transaction, or one value: ZooKeeper's own limit is 1 MiB with everything (`jute.maxbuffer`)."""

_PLAIN = b"\x00"
_BASED = struct.Struct(">BQ")


@attrs.frozen
class Node:
    """A key as it stands in ZooKeeper."""

    entry: Entry
    base: int
    znode_version: int

    @classmethod
    def read(cls, key: str, data: bytes, stat: ZnodeStat) -> Node:
        """Raises `StoreCorruptError` if the data is not ours."""
        base, value = _decode(key, data)
        owner = stat.ephemeralOwner or None
        return cls(Entry(key, value, base + stat.version + 1, stat.mzxid, owner), base, stat.version)


@attrs.frozen
class Layout:
    """The paths of one cluster."""

    root: str

    @property
    def keys(self) -> str:
        return f"{self.root}/keys"

    @property
    def revision(self) -> str:
        return f"{self.root}/revision"

    @property
    def created(self) -> str:
        return f"{self.root}/created"

    def path(self, key: str) -> str:
        return f"{self.keys}/{name_of(key)}"


def name_of(key: str) -> str:
    """The name of a key's node. ZooKeeper forbids '/', control characters, '.' and '..'."""
    return "%2E" + quote(key[1:], safe=_SAFE) if key.startswith(".") else quote(key, safe=_SAFE)


def key_of(name: str) -> str:
    return unquote(name, errors="strict")


_SAFE = ":@=+,!$&'()*;"


def encode(value: bytes, base: int) -> bytes:
    """A node's data."""
    return _BASED.pack(1, base) + value if base else _PLAIN + value


def _decode(key: str, data: bytes) -> tuple[int, bytes]:
    if data[:1] == _PLAIN:
        return 0, data[1:]
    if len(data) >= _BASED.size and data[0] == 1:
        return _BASED.unpack_from(data)[1], data[_BASED.size :]
    raise StoreCorruptError(f"the node of the key {key!r} in ZooKeeper was not written by insync")


def check_size(size: int) -> None:
    """Raise `InvalidTransactionError` for what ZooKeeper would answer by dropping the connection."""
    if size > MAX_BYTES:
        raise InvalidTransactionError(
            f"the transaction has {size} bytes; ZooKeeper takes {MAX_BYTES} at once. Split it"
        )
