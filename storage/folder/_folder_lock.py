"""The right to use a data folder: one process has it at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from .._opening import open_file
from ..errors import LogDirectoryLockedError, StorageBrokenError

LOCK = ".lock"
_NO_LOCK_ON_FOLDERS = {errno.EBADF, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.ENOSYS}
"""Answers of network file systems, which lock only what is open for writing."""


class FolderLock:
    """Held from its making to `release`, and by the kernel: a process that dies holds nothing.

    The folder itself is locked, and a file in it that names the process. Deleting that file lets nobody in.
    """

    def __init__(self, folder: Path) -> None:
        """Raises LogDirectoryLockedError if another process has it, OSError if the device refuses."""
        self._folder = folder
        self._descriptors: list[int] = []
        try:
            self._by_file = self._take(folder / LOCK, os.O_RDWR | os.O_CREAT)
            self._by_folder = self._take(folder, os.O_RDONLY | os.O_DIRECTORY)
            file = self._descriptors[0]
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            self.release()
            raise

    def _take(self, path: Path, flags: int) -> bool:
        """Whether the file system has such locks."""
        fd = open_file(path, flags) if flags & os.O_CREAT else os.open(path, flags | os.O_CLOEXEC)
        self._descriptors.append(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._descriptors[0], 32, 0).strip()
            raise LogDirectoryLockedError(
                str(self._folder), int(owner) if owner.isdigit() else None
            ) from None
        except OSError as error:
            if error.errno in _NO_LOCK_ON_FOLDERS and flags & os.O_DIRECTORY:
                return False
            raise
        return True

    @property
    def is_held(self) -> bool:
        return bool(self._descriptors)

    def fileno(self) -> int:
        """Of the folder."""
        return self._descriptors[1]

    def check(self) -> None:
        """Raise StorageBrokenError unless the path still leads to what is locked, and nobody else can have got in.

        Raises OSError as the device does.
        """
        paths = [(self._folder, self._descriptors[1])]
        if not self._by_folder:
            paths.append((self._folder / LOCK, self._descriptors[0]))
        for path, fd in paths:
            try:
                is_same = os.path.samestat(os.stat(path), os.fstat(fd))
            except FileNotFoundError:
                is_same = False
            if not is_same:
                raise StorageBrokenError(
                    f"{path} was removed or replaced while this process used it: put back the folder that was "
                    f"there, then restart the node"
                )

    def release(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
