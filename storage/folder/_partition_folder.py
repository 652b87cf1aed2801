"""The owner of a partition's folder: `partition.metadata` names the topic, by name and id, and the partition."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from .._files import PartitionKey, fsync_file, fsync_folder, replace_file
from .._opening import read_file
from ..errors import CorruptMetadataError, WrongPartitionError, WrongTopicIdError
from ..segment._segment import LOG_SUFFIX
from ._sealed import sealed, unsealed

PARTITION_METADATA = "partition.metadata"
_PRIVATE = 0o700

_OURS = re.compile(r"version: 0\ntopic_id: (\S+)\ntopic: (\S+)\npartition: (\S+)\n")
# Without a line end the id may be cut short. Kafka's ids have 22 characters, of which the last has four bits.
_KAFKAS = re.compile(r"version: 0\ntopic_id: (?:(\S+)\n|([A-Za-z0-9_-]{21}[AQgw]))")


@attrs.frozen
class _Owner:
    """key: None in a file that Kafka wrote, which names the topic's id alone."""

    topic_id: str
    key: tuple[str, str] | None
    is_sealed: bool


def make_folder(folder: Path) -> None:
    """For its owner alone, whatever the process's umask lets others have. Its name is not durable yet."""
    folder.mkdir(mode=_PRIVATE)


def check_folder(folder: Path, key: PartitionKey, topic_id: str | None) -> None:
    """Compare the folder's `partition.metadata` with its name and with the topic's id.

    A file of Kafka's or of an earlier version is believed once: it gets the folder's names and a checksum. Without
    a file the folder is believed, and gets one if the topic's id is known.

    Raises:
      WrongPartitionError: It is the folder of another partition.
      WrongTopicIdError: It is the folder of another topic of that name.
      CorruptMetadataError: The file is damaged, or names no topic.
    """
    if folder.stat().st_mode & 0o077:
        folder.chmod(_PRIVATE)
    path = folder / PARTITION_METADATA
    try:
        content = read_file(path)
    except FileNotFoundError:
        if topic_id is not None:
            write_metadata(folder, key, topic_id)
        return
    owner = _owner(content)
    if owner is None:
        if any(folder.glob(f"*{LOG_SUFFIX}")):
            raise CorruptMetadataError(str(path), len(content))
        # A crash came before the file was on the device, and so before there was any record.
        path.unlink()
        check_folder(folder, key, topic_id)
        return
    if owner.key not in (None, (key[0], str(key[1]))):
        raise WrongPartitionError(str(folder), "-".join(owner.key))
    if topic_id is not None and owner.topic_id != topic_id:
        raise WrongTopicIdError(str(folder), owner.topic_id, topic_id)
    if not owner.is_sealed:
        write_metadata(folder, key, owner.topic_id)


def read_topic_id(folder: Path) -> str:
    """The topic id in a partition's folder; empty if there is none, or if it cannot be relied on."""
    try:
        owner = _owner(read_file(folder / PARTITION_METADATA))
    except FileNotFoundError:
        return ""
    return owner.topic_id if owner is not None else ""


def write_metadata(folder: Path, key: PartitionKey, topic_id: str, *, sync: bool = True) -> None:
    """Kafka reads the first two lines and passes over the others."""
    text = f"version: 0\ntopic_id: {topic_id}\ntopic: {key[0]}\npartition: {key[1]}\n"
    replace_file(folder / PARTITION_METADATA, sealed(text), sync=sync)


def sync_metadata(folder: Path) -> None:
    """Make durable the file that `write_metadata` did not wait for."""
    fsync_file(folder / PARTITION_METADATA)
    fsync_folder(folder)


def _owner(content: bytes) -> _Owner | None:
    """The owner that a file names; None if it is damaged."""
    text = unsealed(content)
    if text is None:
        return None
    if ours := _OURS.fullmatch(text):
        return _Owner(ours[1], (ours[2], ours[3]), is_sealed=text.encode() != content)
    kafkas = _KAFKAS.fullmatch(text)
    return _Owner(kafkas[1] or kafkas[2], None, is_sealed=False) if kafkas else None
