"""Snapshots as records: chunks and an end marker in a compacted topic; and a local file as a cache of the last.

A snapshot is whole when its marker stands behind all of its chunks and their checksum is right. One that is torn,
or was written for another topic of the name, is passed over for the one before.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs

from ._packing import PackingError, pack, unpack

CHUNK = 512 << 10
"""Bytes of a record, about: brokers take 1 MiB."""
FORMAT = 1
_LENGTH = struct.Struct(">I")
_MAGIC = b"insync state 1\n"
_CHECKSUM = 16
"""Bytes."""


@attrs.frozen(slots=True)
class Marker:
    """The end of a snapshot: what it is of, and how to know that it is whole."""

    name: str
    position: int
    """Of the state: it holds all records below this offset."""
    commands: int
    chunks: int
    size: int
    checksum: bytes
    topic_id: str


class Chunker:
    """Collects pieces into chunks of a good size; give `write` to a machine, and take what `full` has."""

    def __init__(self) -> None:
        self.full: list[bytes] = []
        self._open = bytearray()

    def write(self, piece: bytes) -> None:
        self._open += _LENGTH.pack(len(piece))
        self._open += piece
        while len(self._open) >= CHUNK:
            self.full.append(bytes(self._open[:CHUNK]))
            del self._open[:CHUNK]

    def end(self) -> list[bytes]:
        """All chunks."""
        if self._open:
            self.full.append(bytes(self._open))
            self._open.clear()
        return self.full


class Pieces:
    """Gives the pieces of a snapshot's chunks back, as they were written."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._data = b""
        self._at = 0

    def read(self) -> bytes | None:
        """The next piece; None at the end."""
        head = self._take(_LENGTH.size)
        return self._take(_LENGTH.unpack(head)[0]) if head else None

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end <= len(self._data):
            found = self._data[self._at : end]
            self._at = end
            return found
        parts = [self._data[self._at :]]
        missing = count - len(parts[0])
        self._data, self._at = b"", 0
        for chunk in self._chunks:
            if len(chunk) > missing:
                parts.append(chunk[:missing])
                self._data, self._at = chunk, missing
                break
            parts.append(chunk)
            missing -= len(chunk)
            if not missing:
                break
        return b"".join(parts)


def checksum(chunks: list[bytes]) -> bytes:
    found = blake2b(digest_size=_CHECKSUM)
    for chunk in chunks:
        found.update(chunk)
    return found.digest()


def new_name(position: int, copy: str, attempt: bytes) -> str:
    """Of one attempt to write a snapshot: two attempts never mix their chunks."""
    return f"{position:020}-{copy}-{attempt.hex()}"


def chunk_key(name: str, number: int) -> bytes:
    return f"{name}/{number:08}".encode()


def marker_key(name: str) -> bytes:
    return f"{name}/end".encode()


def encode_marker(marker: Marker) -> bytes:
    return pack([FORMAT, *attrs.astuple(marker)])


def decode_marker(value: bytes) -> Marker | None:
    """None: it is nothing that this version knows."""
    try:
        version, name, position, commands, chunks, size, check, topic_id = unpack(value)
    except (PackingError, TypeError, ValueError):
        return None
    shape: tuple[tuple[Any, type], ...] = (
        (name, str),
        (position, int),
        (commands, int),
        (chunks, int),
        (size, int),
        (check, bytes),
        (topic_id, str),
    )
    if version != FORMAT or not all(isinstance(value, kind) for value, kind in shape):
        return None
    return Marker(name, position, commands, chunks, size, check, topic_id)


class Shelf:
    """Reads the records of a snapshots partition in order, and keeps what may be the newest whole snapshots."""

    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self.chunks: dict[str, dict[int, bytes]] = {}
        self.markers: dict[str, Marker] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """One record; a tombstone takes away what it names."""
        name, slash, rest = (key or b"").decode("utf-8", "replace").rpartition("/")
        if not slash:
            return
        if rest == "end":
            marker = decode_marker(value) if value is not None else None
            if marker is not None and marker.name == name and marker.topic_id == self._topic_id:
                self.markers[name] = marker
            elif value is None:
                self.markers.pop(name, None)
                self.chunks.pop(name, None)
            return
        if not rest.isdigit():
            return
        if value is None:
            self.chunks.get(name, {}).pop(int(rest), None)
        else:
            self.chunks.setdefault(name, {})[int(rest)] = value

    def names(self) -> list[str]:
        """All that any record is left of, whole or not."""
        return sorted({*self.chunks, *self.markers})

    def whole(self) -> list[tuple[Marker, list[bytes]]]:
        """The snapshots that are complete, the newest first."""
        found = []
        for name, marker in self.markers.items():
            parts = self.chunks.get(name, {})
            chunks = [parts[number] for number in range(marker.chunks) if number in parts]
            if len(chunks) == marker.chunks and checksum(chunks) == marker.checksum:
                found.append((marker, chunks))
        return sorted(found, key=lambda each: each[0].position, reverse=True)


def save(file: Path, marker: Marker, chunks: list[bytes]) -> None:
    """Keep a snapshot in a file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}.new")
    head = encode_marker(marker)
    with draft.open("wb") as written:
        written.write(_MAGIC + _LENGTH.pack(len(head)) + checksum([head]) + head)
        written.writelines(chunks)
        written.flush()
        os.fsync(written.fileno())
    draft.replace(file)


def load(file: Path, topic_id: str) -> tuple[Marker, list[bytes]] | None:
    """A snapshot kept by `save`; None if there is none of use: a cache may be lost, torn, or of another topic."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    check = len(_MAGIC) + _LENGTH.size
    at = check + _CHECKSUM
    if not data.startswith(_MAGIC) or len(data) < at:
        return None
    end = at + _LENGTH.unpack_from(data, len(_MAGIC))[0]
    marker = decode_marker(data[at:end]) if checksum([data[at:end]]) == data[check:at] else None
    chunks = [data[end:]]
    if marker is None or marker.topic_id != topic_id or len(chunks[0]) != marker.size:
        return None
    return (marker, chunks) if checksum(chunks) == marker.checksum else None
