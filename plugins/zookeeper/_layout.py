"""How keys lie in ZooKeeper's tree.

    <root>            what this is, and its version
    <root>/keys       one child for each key, its name escaped: flat, so that one look lists all names; its data is
                      the store's identity, and what is added to zxids for revisions (a repair raises them)
    <root>/revision   set by every transaction that changes something: by its mzxid goes the store's revision
    <root>/created    set by every transaction that creates a node: while its version stands still, a node that
                      is there is the node that was there, so that a check of a node's version means what it says

A key's version is one more than its node's, plus a base that lies in front of the value: a key that changes
from ephemeral to persistent, or back, becomes another node and counts on.
"""

from __future__ import annotations

import re
import secrets
import struct
from urllib.parse import quote, unquote

import attrs
from kazoo.protocol.states import ZnodeStat

from insync.replication.metadata import Entry, Limits, StoreCorruptError

FORMAT = b"insync metadata 1"
MAX_BYTES = 900_000
"""Of one transaction, or one value: ZooKeeper's own limit is 1 MiB with everything (`jute.maxbuffer`)."""

_ITEM_BYTES = 160
"""The most bytes of an operation in ZooKeeper's protocol, beside path, data and the user of its list of rights."""

_PLAIN = b"\x00"
_BASED = struct.Struct(">BQ")


@attrs.frozen
class Node:
    """A key as it stands in ZooKeeper."""

    entry: Entry
    base: int
    znode_version: int

    @classmethod
    def read(cls, key: str, data: bytes, stat: ZnodeStat, mark: Mark) -> Node:
        """Raises `StoreCorruptError` if the data is not ours."""
        base, value = _decode(key, data)
        owner = stat.ephemeralOwner or None
        revision = stat.mzxid + mark.offset
        return cls(Entry(key, value, base + stat.version + 1, revision, owner), base, stat.version)


@attrs.frozen
class Mark:
    """The store's identity, and what its revisions are ahead of ZooKeeper's own numbers."""

    store_id: str
    offset: int = 0

    @classmethod
    def new(cls) -> Mark:
        return cls(secrets.token_hex(16))

    @classmethod
    def read(cls, data: bytes) -> Mark:
        """Raises `StoreCorruptError`."""
        found = re.fullmatch(rb"([0-9a-f]{32})(?: (\d{1,18}))?", data)
        if found is None:
            raise StoreCorruptError(
                f"the data of the node of all keys in ZooKeeper is {data[:60]!r}: not insync's"
            )
        return cls(found[1].decode(), int(found[2] or 0))

    def encode(self) -> bytes:
        return f"{self.store_id} {self.offset}".encode()


@attrs.frozen
class Layout:
    """The paths of one cluster. credentials: `user:password` of who owns what is made."""

    root: str
    credentials: str = attrs.field(default="", repr=False)

    @property
    def limits(self) -> Limits:
        """Of one transaction. Keys count three times: any byte of theirs may have to be escaped."""
        overhead = _ITEM_BYTES + len(self.keys) + len(self.credentials.partition(":")[0].encode())
        return Limits(max_bytes=MAX_BYTES, item_bytes=overhead, key_bytes=3)

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
