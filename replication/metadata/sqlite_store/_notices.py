"""Word from the system that a file was written to, so that who waits for others need not keep looking."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_IN_MODIFY = 0x2
_BUFFER = 4096
"""Bytes: hundreds of events without a name, of 16 bytes each."""

_libc = ctypes.CDLL(None, use_errno=True)


class Notices:
    """inotify(7) for one file, which must be there. A write is told before it returns to whoever wrote."""

    def __init__(self, path: str) -> None:
        """Raises `OSError`: the system has none to give, such as beyond `fs.inotify.max_user_instances`."""
        self.fd = _checked(_libc.inotify_init1, os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _checked(_libc.inotify_add_watch, self.fd, os.fsencode(path), _IN_MODIFY)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self.fd)

    def drain(self) -> bool:
        """Whether the file was written to since the last call."""
        found = False
        while True:
            try:
                found |= bool(os.read(self.fd, _BUFFER))
            except BlockingIOError:
                return found


def _checked(call: Callable[..., int], *arguments: object) -> int:
    result = call(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
