"""The proof that a log was never there, told from one that is missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from insync.storage import LogDirectory, StorageError, StorageFullError
from insync.storage import directory as directory_module
from insync.storage.directory import MANY_FOLDERS
from insync.storage.folder._created import FILE_NAME

from ..building import append, batch


def opened(path: Path) -> LogDirectory:
    return LogDirectory(path, cluster_id="c", node_id=1)


def _fail(folder: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_folder_that_is_missing_is_told_from_one_that_never_was(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    assert directory.never_held("t", 0)
    directory.open_log("t", 0, create=True)
    assert not directory.never_held("t", 0)
    directory.close(clean=False)
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    for _ in range(2):
        directory = opened(tmp_path)
        assert not directory.never_held("t", 0)
        assert directory.never_held("t", 1)
        directory.close(clean=False)
    directory = opened(tmp_path)
    directory.delete_log("t", 0)
    assert directory.never_held("t", 0)
    directory.close(clean=False)
    directory = opened(tmp_path)
    assert directory.never_held("t", 0)
    directory.close()


def test_a_folder_that_was_planned_has_held_nothing_before_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path)
    whole = directory_module.make_folder

    def make(folder: Path) -> None:
        (_fail if folder.name == "t-1" else whole)(folder)

    monkeypatch.setattr(directory_module, "make_folder", make)
    keys = [("t", number) for number in range(3)]
    with pytest.raises(StorageError):
        directory.make_folders([(key, "i") for key in keys])
    directory.close(clean=False)
    directory = opened(tmp_path)
    assert [directory.never_held(*key) for key in keys] == [False, True, True]
    # And is missing from now on.
    directory.close(clean=False)
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    directory = opened(tmp_path)
    assert [directory.never_held(*key) for key in keys] == [False, True, True]
    directory.close()


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_folder_is_not_used_before_its_line_is_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    directory = opened(tmp_path)
    whole, is_full = os.write, True

    def write(fd: int, data: bytes) -> int:
        if is_full and data.startswith(b"+"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(fd, data)

    monkeypatch.setattr(os, "write", write)
    keys = [("t", 0)] if is_alone else [("t", number) for number in range(MANY_FOLDERS)]
    for _ in range(2):
        with pytest.raises(StorageFullError):
            directory.make_folders([(key, "i") for key in keys])
        with pytest.raises(StorageFullError):
            directory.open_log("t", 0, create=True, topic_id="i")
        assert directory.never_held("t", 0)
    is_full = False
    directory.open_log("t", 0, create=True, topic_id="i")
    assert not directory.never_held("t", 0)
    directory.make_folders([(key, "i") for key in keys])
    directory.close(clean=False)
    for number in range(len(keys)):
        (tmp_path / f"t-{number}").rename(tmp_path / f"elsewhere{number}")
    directory = opened(tmp_path)
    assert not any(directory.never_held(*key) for key in keys)
    directory.close()


def test_what_was_planned_can_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened(tmp_path)
    with monkeypatch.context() as patches:
        patches.setattr(directory_module, "fsync_folder", _fail)
        with pytest.raises(StorageError):
            directory.open_log("t", 0, create=True, topic_id="i")
    assert (tmp_path / "t-0").is_dir()
    directory.delete_log("t", 0)
    assert not (tmp_path / "t-0").exists()
    # By hand: no line speaks of it any more, and nobody is making it.
    (tmp_path / "t-0").mkdir()
    directory.close(clean=False)
    again = opened(tmp_path)
    assert again.never_held("t", 0)
    again.close()


def test_what_was_planned_and_deleted_can_be_moved_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path)
    with monkeypatch.context() as patches:
        patches.setattr(directory_module, "fsync_folder", _fail)
        with pytest.raises(StorageError):
            directory.open_log("t", 0, create=True, topic_id="i")
    directory.delete_log("t", 0)
    (tmp_path / "t-0").mkdir()
    directory.open_log("t", 0, create=False)
    directory.close()


def test_what_was_made_is_opened_and_not_made_again(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    keys = [("t", number) for number in range(MANY_FOLDERS)]
    directory.make_folders([(key, "i") for key in keys])
    for key in keys:
        directory.open_log(*key, create=False, topic_id="i")
    directory.close()


def test_a_folder_that_was_moved_here_is_missing_once_it_has_gone(tmp_path: Path) -> None:
    source, target = opened(tmp_path / "source"), opened(tmp_path / "target")
    log = source.open_log("t", 0, create=True)
    log.truncate_fully(500)
    append(log, batch(3))
    source.close()
    target.close()
    (tmp_path / "source" / "t-0").rename(tmp_path / "target" / "t-0")
    for _ in range(2):
        target = opened(tmp_path / "target")
        moved = target.open_log("t", 0, create=False)
        assert (moved.log_start_offset, moved.log_end_offset) == (500, 503)
        target.close(clean=False)
    (tmp_path / "target" / "t-0").rename(tmp_path / "elsewhere")
    target = opened(tmp_path / "target")
    assert not target.never_held("t", 0)
    target.close()


@pytest.mark.parametrize("at", range(len("+ t 0\n")))
def test_a_list_that_lacks_a_folder_is_named(tmp_path: Path, at: int) -> None:
    directory, told = opened(tmp_path), list[Path]()
    append(directory.open_log("t", 0, create=True), batch())
    directory.close()
    opened(tmp_path).close()
    path = tmp_path / FILE_NAME
    sound = path.read_bytes()
    assert sound == b"+ t 0\n"
    path.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
    for _ in range(2):
        directory = LogDirectory(
            tmp_path, cluster_id="c", node_id=1, on_mended=lambda key, path, why: told.append(path)
        )
        assert directory.open_log("t", 0, create=False).log_end_offset == 1
        directory.close()
    assert told == [path]


@pytest.mark.parametrize("left", [b"+ t ", b"\0\0\xff\x80"], ids=["cut", "never written"])
def test_a_line_cut_short_spoils_no_later_one(tmp_path: Path, left: bytes) -> None:
    directory = opened(tmp_path)
    directory.open_log("t", 0, create=True)
    directory.close(clean=False)
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(left)
    directory = opened(tmp_path)
    directory.open_log("t", 1, create=True)
    directory.close(clean=False)
    directory = opened(tmp_path)
    assert [directory.never_held("t", n) for n in range(3)] == [False, False, True]
    directory.close()


def test_a_device_that_is_full_in_the_middle_of_a_line_spoils_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path)
    whole = os.write
    accepted = iter([3, 0])

    def write(fd: int, data: bytes) -> int:
        size = next(accepted, len(data))
        if not size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(fd, data[:size])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StorageFullError):
        directory.open_log("t", 0, create=True)
    directory.open_log("t", 1, create=True)
    directory.close(clean=False)
    directory = opened(tmp_path)
    assert not directory.never_held("t", 1)
    directory.close()


def test_the_rest_of_a_short_write_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened(tmp_path)
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:2]))
    directory.open_log("t", 0, create=True)
    directory.close(clean=False)
    directory = opened(tmp_path)
    assert not directory.never_held("t", 0)
    directory.close()


def test_without_its_list_a_directory_proves_nothing(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / FILE_NAME).unlink()
    directory = opened(tmp_path)
    assert not directory.never_held("t", 0)
    directory.open_log("t", 0, create=True)
    directory.delete_log("t", 0)
    assert not directory.never_held("t", 0)
    directory.close()
