"""The processes that a trial leaves behind: one that is ended by a signal cannot end its nodes itself.

Nor can the run that they belong to, so it turns the signals that ask it to end into an exit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_ASKED_TO_END = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended() -> Iterator[None]:
    """While this is open, no process that this one starts outlives it; after SIGKILL the nodes of a trial may."""
    adopt()
    before = {number: signal.signal(number, _leave) for number in _ASKED_TO_END}
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        end()
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(parent: int) -> None:
    """In a forked process: a signal ends it at once, and so does the end of its parent, in whatever way."""
    for number in _ASKED_TO_END:
        signal.signal(number, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt() -> None:
    """From now on a process below this one whose parent ends becomes a child of this one, in any session."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wait(child: int) -> int:
    """Wait until a child has ended; returns its exit code, or the negative number of a signal.

    Adopted processes that end meanwhile are gone at once, as they are where nobody adopts: tests wait for that.
    """
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return os.waitstatus_to_exitcode(status)


def end() -> int:
    """Kill all children of this process and what they leave in turn; says how many there were."""
    ended = 0
    while found := _children():
        for child in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
            ended += 1
    return ended


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _children() -> list[int]:
    me = os.getpid()
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent(entry) == me
    ]


def _parent(process: Path) -> int:
    """The parent's id, or -1 if the process is gone."""
    try:
        stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    return int(stat.rpartition(")")[2].split()[1])  # the name, which stands in brackets, may contain anything
