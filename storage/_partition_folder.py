"""Whose folder a partition's is: `partition.metadata` in it names the topic, by name and id, and the partition."""

from __future__ import annotations

from pathlib import Path

from ._files import PartitionKey, fsync_file, fsync_folder, replace_file
from ._opening import read_file
from ._segment import LOG_SUFFIX
from .errors import CorruptMetadataError, WrongPartitionError, WrongTopicIdError

PARTITION_METADATA = "partition.metadata"
_PRIVATE = 0o700


def make_folder(folder: Path) -> None:
    """For its owner alone, whatever the process's umask lets others have. Its name is not durable yet."""
    folder.mkdir(mode=_PRIVATE)


def check_folder(folder: Path, key: PartitionKey, topic_id: str | None) -> None:
    """Compare what the folder says with what it is taken for.

    A file without names, as Kafka and earlier versions write it, is believed once: it gets those of the folder.
    Without a file the folder is believed, and gets one if the topic's id is known.

    Raises:
      WrongPartitionError: It is the folder of another partition.
      WrongTopicIdError: It is the folder of an earlier topic of that name.
      CorruptMetadataError: The file does not name a topic.
    """
    if folder.stat().st_mode & 0o077:
        folder.chmod(_PRIVATE)
    path = folder / PARTITION_METADATA
    try:
        fields = _fields(read_file(path).decode(errors="replace"))
    except FileNotFoundError:
        if topic_id is not None:
            write_metadata(folder, key, topic_id)
        return
    found_id = fields.get("topic_id", "")
    if not found_id:
        if any(folder.glob(f"*{LOG_SUFFIX}")):
            raise CorruptMetadataError(str(path))
        # A crash came before the file was on the device, and so before there was any record.
        path.unlink()
        check_folder(folder, key, topic_id)
        return
    if "topic" in fields and (fields["topic"], fields.get("partition")) != (key[0], str(key[1])):
        raise WrongPartitionError(str(folder), f"{fields['topic']}-{fields.get('partition')}")
    if topic_id is not None and found_id != topic_id:
        raise WrongTopicIdError(str(folder), found_id, topic_id)
    if "topic" not in fields:
        write_metadata(folder, key, found_id)


def read_topic_id(folder: Path) -> str:
    """The id of the topic that a partition's folder is of; empty if it does not say."""
    try:
        text = read_file(folder / PARTITION_METADATA).decode(errors="replace")
    except FileNotFoundError:
        return ""
    return _fields(text).get("topic_id", "")


def write_metadata(folder: Path, key: PartitionKey, topic_id: str, *, sync: bool = True) -> None:
    """Kafka reads the first two lines and passes over the others."""
    text = f"version: 0\ntopic_id: {topic_id}\ntopic: {key[0]}\npartition: {key[1]}\n"
    replace_file(folder / PARTITION_METADATA, text.encode(), sync=sync)


def sync_metadata(folder: Path) -> None:
    """What `write_metadata` did not wait for."""
    fsync_file(folder / PARTITION_METADATA)
    fsync_folder(folder)


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
