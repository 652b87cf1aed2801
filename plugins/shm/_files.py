"""Files that one end has handed to the other, as each end keeps them."""

from __future__ import annotations

import _thread
import fcntl
import os
import resource
import stat
from collections import OrderedDict
from collections.abc import Sequence, Set
from contextlib import suppress
from typing import ClassVar

import attrs

from insync.transport import FileRange, ProtocolError, RangeTruncated

CLOSED_ASIDE_FROM = 1 << 20
"""Bytes of a deleted file that the system takes a while to free."""
_MOST_FILES = 64
_LINK_SHARE, _SHARE = 64, 4
"""One in so many of the descriptors that this process may have is for the files of one link; of all of them."""


def most_files() -> int:
    """How many of a peer's files one more link of this process may hold open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return _MOST_FILES
    return 0 if OpenFile.count >= allowed // _SHARE else min(_MOST_FILES, allowed // _LINK_SHARE)


class OpenFile:
    """A descriptor of our own, closed with its last reference."""

    __slots__ = ("_fd",)

    count: ClassVar[int] = 0
    """How many there are in this process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        OpenFile.count += 1

    def fileno(self) -> int:
        return self._fd

    def __del__(self) -> None:
        OpenFile.count -= 1
        # Whoever closes a deleted file last frees it. Mostly that is the end that it was handed to, which keeps it
        # until the other end looks for deleted ones. This may be the collector: a thread started so needs no lock.
        with suppress(OSError, RuntimeError):
            state = os.fstat(self._fd)
            if not state.st_nlink and state.st_size >= CLOSED_ASIDE_FROM:
                _thread.start_new_thread(os.close, (self._fd,))
                return
        os.close(self._fd)


@attrs.frozen(slots=True)
class Place:
    """A `FileRange` in a file of the peer."""

    file: OpenFile
    offset: int
    length: int

    def fileno(self) -> int:
        return self.file.fileno()


@attrs.frozen(slots=True)
class Handed:
    """A file that the peer knows by a number; `file` keeps its inode from being another file's."""

    number: int
    file: OpenFile


class HandedFiles:
    """The sender's side: which files the peer has open, the least recently used first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._next = 1
        self.by_inode: OrderedDict[tuple[int, int], Handed] = OrderedDict()

    def find(self, part: FileRange) -> Handed | tuple[int, int] | None:
        """The file of a range if the peer has it, else its key for `add`; None if it cannot be handed over.

        Raises:
          RangeTruncated: The file ends inside the range.
        """
        state = os.fstat(part.fileno())
        if not stat.S_ISREG(state.st_mode) or self._capacity == 0:
            return None
        if part.offset + part.length > state.st_size:
            raise RangeTruncated(
                f"a file ends at byte {state.st_size}, inside the range of {part.length} bytes from {part.offset} "
                "that was being sent: a log must not be cut while its bytes are on their way"
            )
        key = (state.st_dev, state.st_ino)
        known = self.by_inode.get(key)
        if known is None:
            return key
        self.by_inode.move_to_end(key)
        return known

    def add(self, key: tuple[int, int], part: FileRange) -> Handed:
        """Give the file of a range a new descriptor number. OSError without a free descriptor."""
        handed = self.by_inode[key] = Handed(self._next, OpenFile(_reopened(part.fileno())))
        self._next += 1
        return handed

    def forget(self, handed: Handed) -> None:
        """The peer did not get it."""
        self.by_inode = OrderedDict((k, one) for k, one in self.by_inode.items() if one is not handed)

    def drop_deleted(self, needed: Set[int] = frozenset()) -> list[int]:
        """Forget the files that were deleted, but for the numbers in `needed`; gives the numbers that are gone."""
        return self._drop(
            [
                key
                for key, one in self.by_inode.items()
                if one.number not in needed and os.fstat(one.file.fileno()).st_nlink == 0
            ]
        )

    def make_room(self, needed: Set[int]) -> list[int]:
        """Forget the least recently used files that are too many to add another, but for those that are needed."""
        excess = len(self.by_inode) - self._capacity + 1
        idle = [key for key, one in self.by_inode.items() if one.number not in needed]
        return self._drop(idle[: max(0, excess)])

    def _drop(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        return [self.by_inode.pop(key).number for key in keys]

    def __len__(self) -> int:
        return len(self.by_inode)

    @property
    def is_full(self) -> bool:
        return len(self.by_inode) >= self._capacity or most_files() == 0


class TakenFiles:
    """The receiver's side: files of the peer by their numbers."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_number: dict[int, OpenFile] = {}

    def take(self, number: int, file: OpenFile) -> None:
        """Keep a file.

        Raises:
          ProtocolError: It is none that can be read at a position, too many are open, or the number is taken.
        """
        if number in self._by_number or len(self._by_number) >= self._capacity:
            raise ProtocolError(f"file {number} is handed over out of turn")
        access = fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_ACCMODE
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or access == os.O_WRONLY:
            raise ProtocolError("the received descriptor is not a readable file")
        self._by_number[number] = file

    def drop(self, number: int) -> None:
        """Let go of a file; ranges that refer to it keep it. ProtocolError if there is none."""
        if self._by_number.pop(number, None) is None:
            raise ProtocolError(f"file {number} was not handed over")

    def place(self, number: int, offset: int, length: int) -> Place:
        """A range. ProtocolError if the file does not exist or is too short."""
        file = self._by_number.get(number)
        if file is None or offset + length >= 1 << 63:
            raise ProtocolError(
                f"a range of {length} bytes from {offset} of file {number}, which is not there"
            )
        return Place(file, offset, length)

    def clear(self) -> None:
        self._by_number.clear()


def _reopened(fd: int) -> int:
    """A descriptor for reading alone: who gets it cannot write by it."""
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
