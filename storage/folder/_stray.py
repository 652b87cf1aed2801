"""Stray logs: folders of logs that a node could not use any more, kept under another name.

`NAME-PARTITION.HEX-stray`, as Kafka names them. `stray.json` in the folder says why it is there, and what the
checkpoints of the data folder said of the log. A folder without a readable `stray.json` is never deleted by age.
The note stays in the folder of a restored log until its node has registered without counting on the log.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import attrs

from .._files import PartitionKey, replace_file, storage_error
from .._opening import read_file
from ._sealed import sealed, unsealed

STRAY_SUFFIX = "-stray"
DELETED_SUFFIX = "-delete"
"""Names of folders that a node removes, at the latest at its next start."""
_NOTE = "stray.json"
_NAME = re.compile(r"([a-zA-Z0-9._-]{1,200})-(0|[1-9][0-9]*)\.[0-9a-f]{32}" + STRAY_SUFFIX)


@attrs.frozen(kw_only=True)
class Stray:
    """A stray log.

    since_ms: time of the wall clock when it was set aside; None if that cannot be read.
    checkpoints: offsets that the data folder's checkpoints had for it, by file name.
    size_bytes: space that its files take up.
    """

    path: Path
    topic: str
    partition: int
    why: str = "unknown: its stray.json cannot be read"
    since_ms: int | None = None
    checkpoints: Mapping[str, int] = attrs.Factory(dict)
    size_bytes: int = 0

    @property
    def note(self) -> Path:
        """The file that says why it was set aside, and when."""
        return self.path / _NOTE

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


def stray_name(key: PartitionKey) -> str:
    """A new name for the folder of a partition. Like Kafka, it shortens the topic so that the name stays valid."""
    return f"{key[0][:200]}-{key[1]}.{uuid.uuid4().hex}{STRAY_SUFFIX}"


def write_note(
    folder: Path, key: PartitionKey, why: str, since_ms: int, checkpoints: Mapping[str, int]
) -> None:
    """Say in a folder why it is about to become a stray log, durably."""
    note = {
        "topic": key[0],
        "partition": key[1],
        "why": why,
        "since_ms": since_ms,
        "checkpoints": dict(checkpoints),
    }
    replace_file(folder / _NOTE, sealed(json.dumps(note) + "\n"))


def has_note(folder: Path) -> bool:
    return os.path.lexists(folder / _NOTE)


def remove_note(folder: Path) -> None:
    (folder / _NOTE).unlink(missing_ok=True)


def find_strays(data_folder: Path) -> list[Stray]:
    """The stray logs in a data folder, in order of their names. Raises OSError."""
    # A data folder has thousands of other names, and is looked at again and again.
    with os.scandir(data_folder) as entries:
        names = sorted(each.name for each in entries if each.name.endswith(STRAY_SUFFIX) and each.is_dir())
    named = [(data_folder / name, found) for name in names if (found := _NAME.fullmatch(name))]
    return [read_stray(path, (found[1], int(found[2]))) for path, found in named]


def remove_stray(stray: Stray) -> None:
    """Delete a stray log for good; nothing if it is gone. Raises StorageError if the device refuses."""
    try:
        # First a name by which the next start removes it, should this be cut short.
        shutil.rmtree(stray.path.rename(stray.path.with_name(stray.path.name + DELETED_SUFFIX)))
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, f"cannot remove {stray.path}") from error


def read_stray(path: Path, key: PartitionKey) -> Stray:
    """A stray log. `key`: its topic and partition by its name, where a long topic may be cut short.

    Raises OSError.
    """
    topic, partition = key
    size = sum(each.stat().st_size for each in path.iterdir() if each.is_file())
    try:
        note = json.loads(unsealed(read_file(path / _NOTE)) or "")
        return Stray(
            path=path,
            topic=str(note["topic"]),
            partition=partition,
            why=str(note["why"]),
            since_ms=int(note["since_ms"]),
            checkpoints={str(name): int(offset) for name, offset in note["checkpoints"].items()},
            size_bytes=size,
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return Stray(path=path, topic=topic, partition=partition, size_bytes=size)
