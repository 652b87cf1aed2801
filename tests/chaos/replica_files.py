"""Reads the logs of stopped nodes with kafka-python's decoder, which shares no line with ours."""

from __future__ import annotations

from pathlib import Path

from kafka.record import MemoryRecords

from .history import Place, Replica


def read_replica(folder: Path) -> Replica:
    """Every record of one partition folder, in the order of its segments."""
    found = []
    for path in sorted(folder.glob("*.log")):
        records = MemoryRecords(path.read_bytes())
        while (batch := records.next_batch()) is not None:
            if not batch.validate_crc():
                raise ValueError(f"{path}: the batch at offset {batch.base_offset} fails its CRC")
            found += [(record.offset, bytes(record.value or b"")) for record in batch]
    return found


def read_node(folders: list[Path]) -> dict[Place, Replica]:
    """All partitions in a node's log directories."""
    replicas: dict[Place, Replica] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()):
            topic, dash, partition = path.name.rpartition("-")
            if path.is_dir() and dash and partition.isdigit() and any(path.glob("*.log")):
                replicas[topic, int(partition)] = read_replica(path)
    return replicas
