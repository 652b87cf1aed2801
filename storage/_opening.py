"""Opening files by name so that nothing that stands there can hang the one who opens it.

A FIFO, a socket, a device or a link to nowhere under the name of a log's file would block the thread that opens
it, or make a file where the link leads. Each is refused by its name instead; what is looked at is the open file, so
that nobody can exchange it in between.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import ParamSpec, TypeVar

A_FILE = "a file"
_KINDS = (
    (stat.S_ISREG, A_FILE),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a link that leads nowhere"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NEVER_WAIT = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MAY_BE_NO_FILE = {
    errno.ENOENT,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENXIO,
    errno.ENODEV,
    errno.EACCES,
}
NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
PATIENCE = 10.0
_PAUSE = 0.05
"""Seconds that an opening waits for a descriptor where `wait_for_descriptors` was called, and between two tries."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Waits(threading.local):
    here = False


_waits = _Waits()
_tried = 0


def wait_for_descriptors() -> None:
    """Have openings of this thread wait for a descriptor for a while, where otherwise they fail at once."""
    _waits.here = True


def waits_for_descriptors() -> int:
    """How often threads of this process have waited for a descriptor so far."""
    return _tried


def patiently(
    call: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """The result of a call that opens something. Raises OSError as the call does."""
    global _tried
    since = time.monotonic()
    while True:
        try:
            return call(*args, **options)
        except OSError as error:
            is_short = error.errno in NO_DESCRIPTOR and _waits.here
            if not is_short or time.monotonic() - since >= PATIENCE:
                raise
        _tried += 1
        time.sleep(_PAUSE)


class NoFileError(OSError):
    """Something else than a file has the name of one; `strerror` says what."""


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Like `os.open`, for regular files alone, and without ever waiting for whoever is at the other end.

    With O_CREAT a link that leads nowhere is not followed.

    Raises:
      NoFileError: Something else has that name.
      OSError: As the device does.
    """
    fd = -1
    while fd < 0:
        try:
            fd = patiently(_open, path, flags | _NEVER_WAIT, mode)
        except OSError as error:
            if error.errno in _MAY_BE_NO_FILE and (what := kind_of(path)):
                raise no_file(path, what) from None
            if not isinstance(error, FileExistsError) or flags & os.O_EXCL:
                raise
            # Somebody else has made the file in between.
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise no_file(path, _name(found.st_mode))
    return fd


def _open(path: Path, flags: int, mode: int) -> int:
    if flags & os.O_EXCL or not flags & os.O_CREAT:
        return os.open(path, flags, mode)
    try:
        return os.open(path, flags & ~os.O_CREAT)
    except FileNotFoundError:
        # Exclusively: that follows no link.
        return os.open(path, flags | os.O_EXCL, mode)


def read_file(path: Path) -> bytes:
    """All of a file. Raises NoFileError, OSError."""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def kind_of(path: Path) -> str:
    """The kind of thing that has the name, if that is no file; empty for a file, or if nothing is there."""
    what = what_is(path)
    return "" if what == A_FILE else what


def what_is(path: Path) -> str:
    """`a file`, `a folder` and so on; empty if nothing has that name, or nobody may look."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return ""
    return _name(mode)


def make_way(path: Path) -> Path | None:
    """Give what has the name of a file and is none another name, that no log reads; None if there is no such thing.

    Raises OSError.
    """
    if not kind_of(path):
        return None
    for number in count():
        aside = path.with_name(f"{path.name}.moved-aside{number or ''}")
        if not os.path.lexists(aside):
            path.rename(aside)
            return aside
    raise AssertionError("there is always a number")


def remove_file(path: Path) -> None:
    """Delete a file, if it is there; what has its name and is none is moved aside. Raises OSError."""
    make_way(path)
    path.unlink(missing_ok=True)


def no_file(path: Path, what: str) -> NoFileError:
    return NoFileError(errno.EINVAL, f"{path} is {what}, not a file")


def _name(mode: int) -> str:
    return next((name for has, name in _KINDS if has(mode)), "something else")
