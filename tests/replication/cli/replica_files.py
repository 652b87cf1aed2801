"""Small replicas on disk for the tests of the demo's check: real batches, written without any node."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

from insync.replication.cli.demo.inputs import Acknowledgements, Expectation, Lines, expect
from insync.storage.batch import build_batch

PARTITIONS = 2
Batch = Sequence[tuple[bytes, bytes]]


def input_lines(records: int = 60) -> list[Lines]:
    """A few keys with alternating runs; some values are equal, as lines of real files are."""
    lines = []
    for start in range(0, records, 6):
        key = b"key-%d" % (start // 6 % 4)
        count = min(6, records - start)
        lines.append(Lines(key, [b"same" if n % 3 == 0 else b"value-%d" % (start + n) for n in range(count)]))
    return lines


def partition_of(key: bytes) -> int:
    return int(key[-1:]) % PARTITIONS


def acknowledge(lines: list[Lines]) -> Acknowledgements:
    acks = Acknowledgements(array("h"), array("q"))
    ends = [0] * PARTITIONS
    for chunk in lines:
        partition = partition_of(chunk.key)
        for _ in chunk.values:
            acks.partitions.append(partition)
            acks.offsets.append(ends[partition])
            ends[partition] += 1
    return acks


def expectation(lines: list[Lines]) -> Expectation:
    return expect(lambda: lines, acknowledge(lines), PARTITIONS)


def batches(lines: list[Lines], partition: int, size: int = 7) -> list[Batch]:
    rows = [
        (chunk.key, value)
        for chunk in lines
        if partition_of(chunk.key) == partition
        for value in chunk.values
    ]
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def write_replicas(
    root: Path, lines: list[Lines], nodes: Sequence[int] = (1, 2, 3)
) -> dict[int, dict[int, Path]]:
    """The same content for all nodes, in folders as nodes lay them out; two batches a segment."""
    return {
        partition: {
            node: write_replica(root / f"node-{node}/demo-{partition}", batches(lines, partition))
            for node in nodes
        }
        for partition in range(PARTITIONS)
    }


def write_replica(folder: Path, content: Sequence[Batch], *, batches_per_segment: int = 2) -> Path:
    folder.mkdir(parents=True)
    offset = 0
    for number, batch in enumerate(content):
        if number % batches_per_segment == 0:
            path = folder / f"{offset:020d}.log"
        with path.open("ab") as file:
            file.write(encode(batch, offset))
        offset += len(batch)
    return folder


def encode(batch: Batch, offset: int, epoch: int = 3) -> bytes:
    keys, values = [key for key, _ in batch], [value for _, value in batch]
    data = bytearray(
        build_batch(
            keys,
            values,
            timestamps_ms=1_700_000_000_000,
            producer_id=9,
            producer_epoch=0,
            base_sequence=offset,
        )
    )
    struct.pack_into(">q", data, 0, offset)
    struct.pack_into(">i", data, 12, epoch)
    return bytes(data)
