"""Plants a defect in stopped replicas, to show that the check finds it.

The files stay valid in every other respect: checksums match, offsets run on, and (but for a flipped byte) all
replicas agree. Only what they hold is wrong.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import attrs

from ....storage.batch import BatchInfo, Record, build_batch, records, scan
from ..errors import CommandError
from .check import segment_files


class Plant(StrEnum):
    """`drop` and `double` one record, `swap` two neighbours, `flip` one byte of one replica."""

    DROP = "drop"
    DOUBLE = "double"
    SWAP = "swap"
    FLIP = "flip"


class PlantError(CommandError):
    """The data is too small for such a defect."""


@attrs.frozen
class Planted:
    """The defect that was planted, for the record."""

    plant: Plant
    partition: int
    offset: int
    key: bytes | None
    nodes: tuple[int, ...]

    def __str__(self) -> str:
        key = (self.key or b"").decode("utf-8", "backslashreplace")
        nodes = ", ".join(map(str, self.nodes))
        where = f"partition {self.partition}, offset {self.offset}, key {key}"
        return f"planted a defect: {self.plant} at {where} on nodes {nodes}"


_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_EPOCH_AT = 12


@attrs.frozen
class _Place:
    """The record number `at` of a batch and the next one have one key and different values."""

    batch: BatchInfo
    records: list[Record]
    at: int


def plant(kind: Plant, replicas: Mapping[int, Mapping[int, Path]], rng: random.Random) -> Planted:
    """Rewrite the last segment of one partition: `replicas` maps partition -> node id -> folder.

    Raises `PlantError` if no partition has a batch with two neighbours of one key that differ.
    """
    partitions = sorted(replicas)
    rng.shuffle(partitions)
    for partition in partitions:
        folders = replicas[partition]
        place = _find_place(next(iter(folders.values())), rng)
        if place is not None:
            nodes = [rng.choice(sorted(folders))] if kind is Plant.FLIP else sorted(folders)
            for node in nodes:
                _rewrite(
                    segment_files(folders[node])[-1], place.batch, _CHANGES[kind](place.records, place.at)
                )
            record = place.records[place.at]
            return Planted(kind, partition, record.offset, record.key, tuple(nodes))
    raise PlantError(
        f"cannot plant {kind}: no batch has two neighbours of one key that differ; use more input"
    )


def _find_place(folder: Path, rng: random.Random) -> _Place | None:
    files = segment_files(folder)
    data = files[-1].read_bytes() if files else b""
    batches = scan(data)
    first = rng.randrange(len(batches)) if batches else 0
    for batch in batches[first:] + batches[:first]:
        rows = list(records(data[batch.position : batch.position + batch.size_bytes]))
        for at, (one, other) in enumerate(pairwise(rows)):
            if one.key == other.key and one.value and one.value != other.value:
                return _Place(batch, rows, at)
    return None


def _drop(rows: list[Record], at: int) -> list[Record]:
    return rows[:at] + rows[at + 1 :]


def _double(rows: list[Record], at: int) -> list[Record]:
    return rows[: at + 1] + rows[at:]


def _swap(rows: list[Record], at: int) -> list[Record]:
    return [*rows[:at], rows[at + 1], rows[at], *rows[at + 2 :]]


def _flip(rows: list[Record], at: int) -> list[Record]:
    value = rows[at].value or b""
    return [*rows[:at], rows[at]._replace(value=bytes([value[0] ^ 1]) + value[1:]), *rows[at + 1 :]]


_CHANGES: dict[Plant, Callable[[list[Record], int], list[Record]]] = {
    Plant.DROP: _drop,
    Plant.DOUBLE: _double,
    Plant.SWAP: _swap,
    Plant.FLIP: _flip,
}


def _rewrite(path: Path, batch: BatchInfo, rows: list[Record]) -> None:
    """Put `rows` in the place of a batch; the offsets of what follows move by as many as there are more."""
    data = bytearray(path.read_bytes())
    end = batch.position + batch.size_bytes
    for later in scan(data[end:], verify_crc=False):
        moved = later.base_offset + len(rows) - batch.record_count
        _BASE_OFFSET.pack_into(data, end + later.position, moved)
    data[batch.position : end] = _build(batch, rows)
    path.write_bytes(data)


def _build(batch: BatchInfo, rows: list[Record]) -> bytes:
    built = bytearray(
        build_batch(
            [row.key for row in rows],
            [row.value for row in rows],
            timestamps_ms=[row.timestamp_ms for row in rows],
            headers=[row.headers for row in rows],
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )
    )
    _BASE_OFFSET.pack_into(built, 0, batch.base_offset)
    _LEADER_EPOCH.pack_into(built, _EPOCH_AT, batch.leader_epoch)
    return bytes(built)
