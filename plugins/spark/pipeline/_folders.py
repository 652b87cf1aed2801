"""The content of nodes' data folders: segments, checkpoints and whose they are.

The files are Kafka's (docs/storage-format.md); they are read here as any other tool would.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import attrs

from .errors import DataFolderError

_PARTITION_FOLDER = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]*)")
_SEGMENT = re.compile(r"[0-9]{20}\.log")
_META = "meta.properties"

HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
EPOCHS = "leader-epoch-checkpoint"

PartitionKey = tuple[str, int]


@attrs.frozen
class SegmentFile:
    """One `.log` file; `size_bytes` as it was when listed."""

    path: str
    base_offset: int
    size_bytes: int


@attrs.frozen
class ReplicaFiles:
    """One replica of one partition on disk, and what the data folder's checkpoints say of it."""

    replica: str
    """The node's id, or the folder if ids do not tell replicas apart."""
    folder: str
    topic: str
    partition: int
    segments: tuple[SegmentFile, ...]
    epochs: tuple[tuple[int, int], ...] | None
    """Epoch and start offset, as `leader-epoch-checkpoint` lists them; None if it is missing or unreadable."""
    high_watermark: int | None
    recovery_point: int
    log_start_offset: int
    cleaned_up_to: int
    """Compaction has gone over what lies below; 0: never."""

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.segments)


@attrs.define(eq=False)
class DataFolder:
    """A node's data folder; `broken` names its files that cannot be read as what they are."""

    path: Path
    cluster_id: str
    node_id: str
    broken: list[tuple[str, str]] = attrs.Factory(list)


def list_replicas(
    folders: Iterable[str | os.PathLike[str]], topics: Sequence[str] = ()
) -> tuple[list[ReplicaFiles], list[tuple[str, str]]]:
    """All replicas in the given data folders, by partition, and (path, reason) of each unreadable checkpoint.

    topics: only these; all by default.

    Raises DataFolderError if a folder is no data folder, two belong to different clusters, one is given twice, or
    none of the topics is there.
    """
    data = [_data_folder(Path(each)) for each in folders]
    _must_belong_together(data)
    ids = Counter(each.node_id for each in data)
    replicas: list[ReplicaFiles] = []
    broken: list[tuple[str, str]] = []
    for each in data:
        name = f"node {each.node_id}" if ids[each.node_id] == 1 else str(each.path)
        replicas += _replicas(each, name, topics)
        broken += each.broken
    if not replicas:
        wanted = f"partition of {', '.join(topics)}" if topics else "partition"
        where = ", ".join(str(each.path) for each in data)
        raise DataFolderError(f"there is no {wanted} in {where}")
    return sorted(replicas, key=lambda each: (each.key, each.replica)), broken


def _data_folder(path: Path) -> DataFolder:
    try:
        lines = (path / _META).read_text().splitlines()
    except OSError as error:
        raise DataFolderError(
            f"{path} is not a node's data folder: {_META} cannot be read ({error.strerror}); name folders such as "
            "data/node-1"
        ) from None
    pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    meta = {key.strip(): value.strip() for key, value in pairs.items()}
    return DataFolder(path.resolve(), meta.get("cluster.id", ""), meta.get("node.id", ""))


def _must_belong_together(data: Sequence[DataFolder]) -> None:
    if not data:
        raise DataFolderError("no data folder was given; name the folders of the nodes, such as data/node-1")
    clusters = {each.cluster_id: each.path for each in data}
    if len(clusters) > 1:
        (one, first), (other, second) = list(clusters.items())[:2]
        raise DataFolderError(
            f"{first} belongs to cluster {one} and {second} to cluster {other}: give one cluster's folders"
        )
    twice = [path for path, count in Counter(each.path for each in data).items() if count > 1]
    if twice:
        raise DataFolderError(f"{twice[0]} is given twice: a replica cannot be compared with itself")


def _replicas(data: DataFolder, name: str, topics: Sequence[str]) -> Iterable[ReplicaFiles]:
    tables = {
        table: _checkpoint(data, table) for table in (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEANED)
    }
    for folder in sorted(data.path.iterdir()):
        match = _PARTITION_FOLDER.fullmatch(folder.name)
        if match is None or not folder.is_dir() or (topics and match[1] not in topics):
            continue
        key = match[1], int(match[2])
        yield ReplicaFiles(
            replica=name,
            folder=str(folder),
            topic=key[0],
            partition=key[1],
            segments=_segments(folder),
            epochs=_epochs(data, folder),
            high_watermark=tables[HIGH_WATERMARKS].get(key),
            recovery_point=tables[RECOVERY_POINTS].get(key, 0),
            log_start_offset=tables[LOG_STARTS].get(key, 0),
            cleaned_up_to=tables[CLEANED].get(key, 0),
        )


def _segments(folder: Path) -> tuple[SegmentFile, ...]:
    paths = sorted(each for each in folder.iterdir() if _SEGMENT.fullmatch(each.name))
    return tuple(SegmentFile(str(each), int(each.stem), each.stat().st_size) for each in paths)


def _epochs(data: DataFolder, folder: Path) -> tuple[tuple[int, int], ...] | None:
    rows = _table(data, folder / EPOCHS, 2)
    if rows is None:
        return None
    found = tuple((int(epoch), int(start)) for epoch, start in rows)
    if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(found)):
        data.broken.append((str(folder / EPOCHS), "its epochs and offsets do not rise from line to line"))
        return None
    return found


def _checkpoint(data: DataFolder, name: str) -> dict[PartitionKey, int]:
    rows = _table(data, data.path / name, 3) or []
    return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}


def _table(data: DataFolder, path: Path, fields: int) -> list[list[str]] | None:
    """The lines of a checkpoint: version 0, a count, that many lines, whose fields are numbers after any topic."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    # The last row ends with its file's checksum, in white space, which a node verifies.
    rows = [line.rstrip(" \t").split(" ") for line in lines[2:]]
    wrong = ""
    if not lines or lines[0] != "0":
        wrong = "it does not begin with version 0"
    elif len(lines) < 2 or lines[1] != str(len(rows)):
        wrong = f"{len(rows)} lines follow, not as many as it says"
    elif any(len(row) != fields or not all(map(_is_number, row[fields - 2 :])) for row in rows):
        wrong = "a line has the wrong fields"
    if wrong:
        data.broken.append((str(path), wrong))
        return None
    return rows


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()
