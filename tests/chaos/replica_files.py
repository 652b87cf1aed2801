"""Reads the logs of stopped nodes, whole ones with kafka-python's decoder, which shares no line with ours."""

from __future__ import annotations

import struct
from pathlib import Path

from kafka.record import MemoryRecords

from insync.storage.batch import records
from insync.storage.inspection import batches_in

from .history import Place, Replica

_HEAD = struct.Struct(">qi")
"""Base offset and length, with which every batch begins."""


class DamagedReplicaError(Exception):
    """A batch of a replica is not as it was written."""


def read_replica(folder: Path) -> Replica:
    """Every record of one partition folder, in the order of its segments. Raises DamagedReplicaError."""
    found = []
    for path in sorted(folder.glob("*.log")):
        records = MemoryRecords(path.read_bytes())
        while (batch := records.next_batch()) is not None:
            if not batch.validate_crc():
                raise DamagedReplicaError(f"{path}: the batch at offset {batch.base_offset} fails its CRC")
            found += [(record.offset, bytes(record.value or b"")) for record in batch]
    return found


def surviving_records(folder: Path) -> Replica:
    """Every record of one partition folder up to the first batch that is not whole: what a power cut left of it.

    It is read as nodes read it: only they know which torn batch ends a log.
    """
    found: list[tuple[int, bytes]] = []
    for path in sorted(folder.glob("*.log")):
        for batch, data in batches_in(path):
            if batch.info is None or batch.reason:
                return found
            if not batch.info.is_control:
                found += [(record.offset, record.value or b"") for record in records(bytes(data))]
    return found


def flushed_bytes(segment: Path) -> int:
    """How much of a segment the folder's recovery point says is on the device, up to a whole batch."""
    topic, _, partition = segment.parent.name.rpartition("-")
    point = 0
    checkpoint = segment.parent.parent / "recovery-point-offset-checkpoint"
    for line in checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else ():
        if line.split()[:2] == [topic, partition]:
            point = int(line.split()[2])
    raw, position = segment.read_bytes(), 0
    while position + _HEAD.size <= len(raw):
        base_offset, length = _HEAD.unpack_from(raw, position)
        if base_offset >= point:
            break
        position += _HEAD.size + length
    return min(position, len(raw))


def read_node(folders: list[Path]) -> tuple[dict[Place, Replica], list[str]]:
    """All partitions in a node's log directories; and what is damaged, which stands in no replica."""
    replicas: dict[Place, Replica] = {}
    damaged = []
    for folder in folders:
        for path in sorted(folder.iterdir()):
            topic, dash, partition = path.name.rpartition("-")
            if path.is_dir() and dash and partition.isdigit() and any(path.glob("*.log")):
                try:
                    replicas[topic, int(partition)] = read_replica(path)
                except DamagedReplicaError as error:
                    damaged.append(str(error))
    return replicas, damaged
