"""The input that the demo produces, and the contents that each partition must have afterwards.

The input is the lines of text files, streamed in a fixed order as often as asked. Nothing is held beyond one block
of one file, so the input may be larger than memory. An acknowledged record is kept as a 64-bit hash of (key, value)
in an array: some 20 bytes a record, whatever its size.
"""

from __future__ import annotations

import os
import sysconfig
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from pathlib import Path

import attrs

from ..errors import CommandError

BLOCK_BYTES = 1 << 18
LINE_BYTES_MAX = 900_000
"""Somewhat below the producer's default `max_request_size` of 1 MiB."""

_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages"})


class InputError(CommandError):
    """The input is missing, empty or not text; the message names it."""


@attrs.frozen
class Lines:
    """Consecutive lines of one file, without their newlines; `key` is the file's path below the input."""

    key: bytes
    values: list[bytes]


@attrs.frozen
class Source:
    """One input file and how many lines it has."""

    key: bytes
    path: Path
    records: int
    size_bytes: int


@attrs.frozen
class Input:
    """Files in order of their keys, each with at least one line."""

    name: str
    sources: tuple[Source, ...]

    @property
    def records(self) -> int:
        """Lines of one pass over all files."""
        return sum(source.records for source in self.sources)

    def stream(self, records: int, chunk: int) -> Iterator[Lines]:
        """Exactly `records` lines, at most `chunk` at a time: passes over all files, the last one cut."""
        left = records
        while left:
            for source in self.sources:
                for lines in read_lines(source.path, source.key):
                    for part in _cut(lines, chunk):
                        values = part.values[:left]
                        yield Lines(part.key, values)
                        left -= len(values)
                        if not left:
                            return

    def last_index_of_keys(self, records: int) -> dict[bytes, int]:
        """For each key the index of its last record in a stream of `records`, without reading the files."""
        last: dict[bytes, int] = {}
        at = 0
        while at < records:
            for source in self.sources:
                if at >= records:
                    break
                at += source.records
                last[source.key] = min(at, records) - 1
        return last


def standard_library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def open_input(path: Path | None) -> Input:
    """The input at `path`: a file, or a folder of text; None is the `.py` files of the standard library.

    Raises `InputError` if there is nothing to read, or a line is longer than `LINE_BYTES_MAX`.
    """
    if path is None:
        root = standard_library()
        return _count(f"Python standard library ({root})", root, sorted(_walk(root, ".py")))
    if path.is_file():
        return _count(str(path), path.parent, [path])
    if path.is_dir():
        return _count(str(path), path, sorted(_walk(path, "")))
    raise InputError(
        f"input {path}: no such file or folder; give --input a text file or a folder of text files"
    )


def read_lines(path: Path, key: bytes) -> Iterator[Lines]:
    """The lines of one file, block by block; a last line without a newline counts, an empty rest does not."""
    with path.open("rb") as file:
        rest = b""
        while block := file.read(BLOCK_BYTES):
            values = (rest + block).split(b"\n")
            rest = values.pop()
            if len(rest) > LINE_BYTES_MAX:
                raise InputError(
                    f"input {path}: a line is longer than {LINE_BYTES_MAX} bytes; "
                    "give a text file whose lines fit into one request"
                )
            if values:
                yield Lines(key, values)
        if rest:
            yield Lines(key, [rest])


def _cut(lines: Lines, chunk: int) -> Iterator[Lines]:
    if len(lines.values) <= chunk:
        yield lines
        return
    for at in range(0, len(lines.values), chunk):
        yield Lines(lines.key, lines.values[at : at + chunk])


def _walk(root: Path, suffix: str) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(suffix):
                path = Path(folder, name)
                if path.is_file():
                    yield path


def _count(name: str, root: Path, paths: list[Path]) -> Input:
    sources = tuple(source for path in paths if (source := _source(root, path)).records)
    if not sources:
        raise InputError(f"input {name} has no lines; give --input a text file with at least one line")
    return Input(name, sources)


def _source(root: Path, path: Path) -> Source:
    key = os.fsencode(path.relative_to(root))
    records = size = 0
    for lines in read_lines(path, key):
        records += len(lines.values)
        size += sum(map(len, lines.values))
    return Source(key, path, records, size)


UNACKNOWLEDGED = -1


def fingerprints(records: Iterable[tuple[bytes | None, bytes | None]]) -> Iterator[int]:
    """64 bits for each (key, value) that tell records apart (SipHash of this process; never stored)."""
    return map(hash, records)


@attrs.define(eq=False)
class Acknowledgements:
    """Partition and offset of each record, by its index in the input; -1 until it is acknowledged."""

    partitions: array[int]
    offsets: array[int]

    @classmethod
    def of_records(cls, records: int) -> Acknowledgements:
        return cls(array("h", [UNACKNOWLEDGED]) * records, array("q", [UNACKNOWLEDGED]) * records)

    def note(self, index: int, partition: int, offset: int) -> None:
        self.partitions[index] = partition
        self.offsets[index] = offset

    @property
    def count(self) -> int:
        return len(self.partitions) - self.partitions.count(UNACKNOWLEDGED)


@attrs.define(eq=False)
class Expected:
    """One partition: hashes of its acknowledged records in input order, and the offsets they were given."""

    fingerprints: array[int] = attrs.Factory(lambda: array("q"))
    offsets: array[int] = attrs.Factory(lambda: array("q"))

    def __len__(self) -> int:
        return len(self.fingerprints)


@attrs.define(eq=False)
class Expectation:
    """All partitions; `unacknowledged` are hashes of records without an acknowledgement: they may be there.

    `key_of(partition, position)` names the key of an acknowledged record by its place among those of its
    partition; it may read the whole input again, so it is asked only about defects.
    """

    partitions: Mapping[int, Expected]
    unacknowledged: frozenset[int]
    key_of: Callable[[int, int], bytes]

    @property
    def records(self) -> int:
        return sum(map(len, self.partitions.values()))


def expect(stream: Callable[[], Iterable[Lines]], acks: Acknowledgements, partitions: int) -> Expectation:
    """Read the input once more and deal its records out to the partitions that acknowledged them."""
    expected = {partition: Expected() for partition in range(partitions)}
    unacknowledged: set[int] = set()
    index = 0
    for lines in stream():
        prints = array("q", fingerprints(zip(repeat(lines.key), lines.values, strict=False)))
        until = index + len(prints)
        for partition, start, stop in _runs(acks.partitions, index, until):
            here = prints[start - index : stop - index]
            if partition == UNACKNOWLEDGED:
                unacknowledged.update(here)
            else:
                expected[partition].fingerprints.extend(here)
                expected[partition].offsets.extend(acks.offsets[start:stop])
        index = until

    def key_of(partition: int, position: int) -> bytes:
        return _key_of(stream(), acks, partition, position)

    return Expectation(expected, frozenset(unacknowledged), key_of)


def _runs(partitions: array[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(partition, start, stop) of each stretch of records with the same partition; a key's are one stretch."""
    while start < stop:
        partition = partitions[start]
        if partitions[start:stop].count(partition) == stop - start:
            until = stop
        else:
            until = next(at for at in range(start, stop) if partitions[at] != partition)
        yield partition, start, until
        start = until


def _key_of(stream: Iterable[Lines], acks: Acknowledgements, partition: int, position: int) -> bytes:
    """Counts in C, a chunk at a time, until the chunk that holds the record."""
    index = 0
    for lines in stream:
        here = acks.partitions[index : index + len(lines.values)].count(partition)
        if position < here:
            return lines.key
        position -= here
        index += len(lines.values)
    raise LookupError(f"partition {partition} has fewer acknowledged records than {position}")
