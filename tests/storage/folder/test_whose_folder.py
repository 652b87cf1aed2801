"""Which process uses a data folder, which partition a folder is, and who may read them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from insync.storage import (
    CorruptMetadataError,
    LogDirectory,
    LogDirectoryLockedError,
    StorageBrokenError,
    WrongPartitionError,
    WrongTopicIdError,
    read_topic_id,
)
from insync.storage.folder._partition_folder import check_folder

from ..building import fill


def opened(path: Path) -> LogDirectory:
    return LogDirectory(path, cluster_id="c", node_id=1)


OTHER_PROCESS = """
import sys
from insync.storage import LogDirectory, LogDirectoryLockedError
try:
    LogDirectory(sys.argv[1], cluster_id="c", node_id=1)
except LogDirectoryLockedError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("harm", ["nothing", "deleted", "replaced"])
def test_a_second_process_is_kept_out_whatever_becomes_of_the_lock_file(tmp_path: Path, harm: str) -> None:
    directory = opened(tmp_path)
    if harm != "nothing":
        (tmp_path / ".lock").unlink()
    if harm == "replaced":
        (tmp_path / ".lock").write_text("1\n")
    with pytest.raises(LogDirectoryLockedError):
        opened(tmp_path)
    other = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)], capture_output=True, text=True
    )
    assert "is in use by" in other.stderr
    directory.close()
    assert (tmp_path / ".lock").exists()
    opened(tmp_path).close()


def test_a_file_system_that_locks_no_folders_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS: then the file is all there is, and who removes it is found out."""
    import fcntl

    whole = fcntl.flock

    def of_nfs(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(9, "Bad file descriptor")
        whole(fd, operation)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    directory = opened(tmp_path)
    with pytest.raises(LogDirectoryLockedError, match=f"process {os.getpid()}"):
        opened(tmp_path)
    directory.write_checkpoints({})
    (tmp_path / ".lock").unlink()
    with pytest.raises(StorageBrokenError, match=r"\.lock was removed or replaced"):
        directory.write_checkpoints({})
    directory.close(clean=False)


def test_a_folder_that_was_exchanged_gets_no_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "data"
    directory = opened(root)
    root.rename(tmp_path / "aside")
    opened(root).close()
    there = {path.name: path.read_bytes() for path in root.iterdir()}
    with pytest.raises(StorageBrokenError, match="was removed or replaced while this process used it"):
        directory.write_checkpoints({("t", 0): 5})
    assert {path.name: path.read_bytes() for path in root.iterdir()} == there
    directory.close(clean=False)


def swap(root: Path, one: str, other: str) -> None:
    (root / one).rename(root / "x")
    (root / other).rename(root / one)
    (root / "x").rename(root / other)


def two_partitions(root: Path) -> None:
    directory = opened(root)
    for partition, count in enumerate((3, 7)):
        fill(directory.open_log("safe", partition, create=True, topic_id="i"), [count])
    directory.close()


def test_swapped_folders_are_refused(tmp_path: Path) -> None:
    two_partitions(tmp_path)
    swap(tmp_path, "safe-0", "safe-1")
    directory = opened(tmp_path)
    for partition in range(2):
        with pytest.raises(
            WrongPartitionError, match=f"safe-{partition} holds the data of safe-{1 - partition}"
        ):
            directory.open_log("safe", partition, create=False, topic_id="i")
    directory.close(clean=False)
    swap(tmp_path, "safe-0", "safe-1")
    directory = opened(tmp_path)
    assert directory.open_log("safe", 1, create=False, topic_id="i").log_end_offset == 7
    directory.close()


def test_a_folder_of_another_topic_is_refused_by_its_name_before_its_id(tmp_path: Path) -> None:
    """For another id means that the topic was made again, and that its log is to go."""
    directory = opened(tmp_path)
    directory.open_log("a", 0, create=True, topic_id="one")
    directory.close()
    (tmp_path / "a-0").rename(tmp_path / "b-0")
    directory = opened(tmp_path)
    with pytest.raises(WrongPartitionError, match="b-0 holds the data of a-0"):
        directory.open_log("b", 0, create=False, topic_id="two")
    directory.close(clean=False)


def test_a_file_without_names_is_believed_once(tmp_path: Path) -> None:
    two_partitions(tmp_path)
    for partition in range(2):
        (tmp_path / f"safe-{partition}" / "partition.metadata").write_text("version: 0\ntopic_id: i\n")
    directory = opened(tmp_path)
    with pytest.raises(WrongTopicIdError):
        directory.open_log("safe", 0, create=False, topic_id="j")
    for partition in range(2):
        directory.open_log("safe", partition, create=False)
    directory.close()
    swap(tmp_path, "safe-0", "safe-1")
    directory = opened(tmp_path)
    with pytest.raises(WrongPartitionError):
        directory.open_log("safe", 0, create=False, topic_id="i")
    directory.close(clean=False)


@pytest.mark.parametrize("content", [b"", bytes(40), b"version: 0\n"])
def test_a_file_that_names_nothing_is_not_that_of_another_topic(tmp_path: Path, content: bytes) -> None:
    two_partitions(tmp_path)
    (tmp_path / "safe-0" / "partition.metadata").write_bytes(content)
    directory = opened(tmp_path)
    with pytest.raises(CorruptMetadataError, match="does not name a topic id"):
        directory.open_log("safe", 0, create=False, topic_id="i")
    directory.close(clean=False)


def test_nobody_else_may_read_under_a_lax_umask(tmp_path: Path) -> None:
    root = tmp_path / "data"
    umask = os.umask(0)
    try:
        directory = opened(root)
        log = directory.open_log("t", 0, create=True, topic_id="i")
        fill(log, [3])
        directory.delete_log("t", 0)
        fill(directory.open_log("t", 1, create=True, topic_id="i"), [3])
        directory.close()
    finally:
        os.umask(umask)
    found = [root, *root.rglob("*")]
    assert len(found) > 10
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_partition_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    two_partitions(tmp_path)
    (tmp_path / "safe-0").chmod(0o755)
    directory = opened(tmp_path)
    directory.open_log("safe", 0, create=False, topic_id="i")
    assert stat.S_IMODE((tmp_path / "safe-0").stat().st_mode) == 0o700
    directory.close()


def damaged_forms(content: bytes) -> dict[str, bytes]:
    """Each byte with one bit changed, and each length that the file may have been cut to."""
    flipped = {
        f"bit {bit} of byte {at}": content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
        for at in range(len(content))
        for bit in range(8)
    }
    return flipped | {f"cut to {size}": content[:size] for size in range(len(content))}


def test_no_damage_of_the_metadata_makes_a_folder_that_of_another_topic(tmp_path: Path) -> None:
    """It would be taken for the log of a topic that is no more, or of another partition."""
    topic_id = "0123456789abcdef0123456789abcdef"
    directory = opened(tmp_path)
    fill(directory.open_log("safe", 0, create=True, topic_id=topic_id), [3])
    directory.close()
    path = tmp_path / "safe-0" / "partition.metadata"
    sound = path.read_bytes()
    believed = []
    for name, content in damaged_forms(sound).items():
        path.write_bytes(content)
        try:
            check_folder(path.parent, ("safe", 0), topic_id)
        except CorruptMetadataError as error:
            assert str(path) in str(error) and f"({len(content)} bytes)" in str(error)
        else:
            believed.append(name)
            assert path.read_bytes() == sound, name
    # The rest of these files are those of Kafka and of an earlier version, with the right names.
    lines = [sound.index(b"\ntopic: ") + 1, sound.index(b"crc32c: ")]
    assert believed == [f"cut to {size}" for size in lines]


@pytest.mark.parametrize(
    "content",
    ["version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"],
)
def test_a_file_of_kafkas_is_read_with_and_without_a_line_end(tmp_path: Path, content: str) -> None:
    (tmp_path / "partition.metadata").write_text(content)
    assert read_topic_id(tmp_path) == "AAAAAAAAAAAAAAAAAAAAAQ"
