"""Whoever closes a deleted file last frees it, which takes the system a while: no event loop should."""

from __future__ import annotations

import _thread
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from insync.plugins.shm import _files
from insync.storage import file_range

LARGE, SMALL = file_range.CLOSED_ASIDE_FROM, file_range.CLOSED_ASIDE_FROM - 1
Opens = Callable[[int], object]


class Closing:
    """Closes descriptors, and notes in which threads."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self._has_closed = threading.Event()
        self._close = os.close

    def __call__(self, fd: int) -> None:
        self._close(fd)
        self.threads.append(threading.get_ident())
        self._has_closed.set()

    def wait(self) -> int:
        """The thread that has closed the first one."""
        assert self._has_closed.wait(10)
        return self.threads[0]


@pytest.fixture(params=["of a log", "of a peer"])
def opens(request: pytest.FixtureRequest) -> Opens:
    """What holds a descriptor: a segment and its ranges, or a link that was handed it."""
    return file_range.RangeFile if request.param == "of a log" else _files.OpenFile


@pytest.fixture
def deleted(tmp_path: Path) -> Callable[[int], int]:
    """Opens a file of a size, and deletes it."""

    def make(size: int) -> int:
        fd = kept(tmp_path, size)
        (tmp_path / "log").unlink()
        return fd

    return make


def kept(folder: Path, size: int) -> int:
    fd = os.open(folder / "log", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Closing]:
    gc.collect()  # It would close files of the tests before.
    noted = Closing()
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", noted)
        yield noted


def test_both_agree_on_what_is_large() -> None:
    assert _files.CLOSED_ASIDE_FROM == file_range.CLOSED_ASIDE_FROM


def test_a_large_file_that_was_deleted_is_closed_in_another_thread(
    opens: Opens, deleted: Callable[[int], int], closing: Closing
) -> None:
    fd = deleted(LARGE)
    file = opens(fd)
    del file
    assert closing.wait() != threading.get_ident()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_small_one_is_closed_at_once(opens: Opens, deleted: Callable[[int], int], closing: Closing) -> None:
    file = opens(deleted(SMALL))
    del file
    assert closing.threads == [threading.get_ident()]


def test_one_that_is_there_is_closed_at_once(opens: Opens, tmp_path: Path, closing: Closing) -> None:
    file = opens(kept(tmp_path, LARGE))
    del file
    assert closing.threads == [threading.get_ident()]


def test_without_a_thread_it_is_closed_all_the_same(
    opens: Opens, deleted: Callable[[int], int], closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise RuntimeError("can't start new thread")

    file = opens(deleted(LARGE))
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        del file
    assert closing.threads == [threading.get_ident()]
