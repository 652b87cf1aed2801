"""What each partition must hold: the input again, dealt out by the acknowledgements that the producer got.

Records are remembered as 64-bit hashes of (key, value), in arrays: some 20 bytes a record, whatever its size.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat

import attrs

from .inputs import Lines

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
