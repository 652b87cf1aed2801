"""The Python processes that Spark keeps for its tasks, and for the planning of queries."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
from contextlib import suppress
from typing import Any

_DAEMON = "pyspark.daemon"
_libc = ctypes.CDLL(None)

_settled: dict[int, int] = {}
"""By process id, as a child process has what its parent had, and settles by itself: how many modules were there."""


def settle() -> None:
    """To be called when something was done that a process does again and again.

    Spark's daemon collects garbage after each task, which walks all that was ever imported: some 20 to 50 ms of
    processor time in each of the four processes of a query, however little it reads. Objects alive after the first
    task stay alive as a rule, so they are taken out of the collector's sight; and once more when modules have been
    imported since: a process that has written first reads with modules of its own. That changes nothing for what is
    made later, nor when a count of references ends; and only Spark's own processes do it, never one of a user's.
    """
    process, modules = os.getpid(), len(sys.modules)
    if _settled.get(process) == modules or not in_worker():
        return
    _settled[process] = modules
    gc.collect()
    gc.freeze()


def in_worker() -> bool:
    """Whether this process was forked by Spark's daemon."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON


class Sent:
    """Mixin for what Java sends to each task: a task that has received it makes Java send the rest at once.

    Java writes the input of a task in two pieces: what the task runs, then its partition or its rows. By TCP the
    second piece waits until the first one is acknowledged (Nagle's algorithm), and the kernel of a process that
    only reads acknowledges after 40 ms. Between the two pieces nothing of ours runs there but this.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if in_worker():
            acknowledge()


def acknowledge() -> None:
    """Have the kernel acknowledge at once what has come by the TCP connections of this process (Linux).

    By descriptor and not by a `socket`, which would apply `socket.setdefaulttimeout` to a connection that others
    use, and would close it if it were interrupted. The option does nothing to what is no TCP connection.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return
    one = ctypes.c_int(1)
    names: list[str] = []
    # Without /proc, or without a free descriptor, a task is later, and does not fail.
    with suppress(OSError):
        names = os.listdir("/proc/self/fd")
    for name in names:
        _libc.setsockopt(int(name), socket.IPPROTO_TCP, option, ctypes.byref(one), ctypes.sizeof(one))
