"""The proof that a log was never there, told from one that is missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from insync.storage import LogDirectory, StorageFullError
from insync.storage._created import FILE_NAME


def opened(path: Path) -> LogDirectory:
    return LogDirectory(path, cluster_id="c", node_id=1)


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
