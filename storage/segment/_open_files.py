"""The segment files that are open: those in use, and of the others the latest used, up to a limit.

A node holds a segment or more for each of thousands of partitions, and a process has a limited number of
descriptors. So an idle segment's file is closed and opened again when it is needed. One that has been written since
its last fsync stays open: the kernel tells of a failed write-back to the descriptors that were open then, and a
later one might not hear of it.
"""

from __future__ import annotations

import resource
import threading
import weakref
from typing import Protocol

_TRIES = 8
_SHARE, _LARGE_SHARE, _LARGE = 4, 2, 8192
"""Of a process's descriptors segments take one in so many at most, of many of them more: sockets and the program
around need theirs.
"""
_MOST = 20_000
"""An open file costs the kernel some hundred bytes. Closing one that was written to costs waits for the device, and
of thousands of partitions that are written to in turn each would be closed again and again."""
_FEWEST = 64


class Holder(Protocol):
    """Holds a file open, and may be asked to let it go."""

    def let_go(self) -> bool:
        """Close the file unless it was used since the last time, or must stay open for now.

        Whether it need not be asked again.
        """


def default_limit() -> int:
    """As many idle files as this process can afford to keep open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST
    share = _SHARE if descriptors < _LARGE else _LARGE_SHARE
    return max(_FEWEST, min(_MOST, descriptors // share))


class OpenFiles:
    """Any thread may call any method."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._holders: dict[int, weakref.ref[Holder]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def limit(self) -> int:
        if self._limit is None:
            self._limit = default_limit()
        return self._limit

    @property
    def is_over(self) -> bool:
        """Whether more are open than should be."""
        return len(self._holders) > self.limit

    def add(self, holder: Holder) -> None:
        """It has opened its file. Some other may lose its own."""
        with self._lock:
            self._holders[id(holder)] = weakref.ref(holder)
            self._shrink(_TRIES)

    def discard(self, holder: Holder) -> None:
        """It does not take part any more."""
        with self._lock:
            self._holders.pop(id(holder), None)

    def trim(self) -> None:
        """Close all that is too much and can be closed."""
        with self._lock:
            self._shrink(2 * len(self._holders))

    def _shrink(self, tries: int) -> None:
        """Second chances, in turn: who was used since the last look stays and comes last."""
        while len(self._holders) > self.limit and tries:
            tries -= 1
            key = next(iter(self._holders))
            reference = self._holders.pop(key)
            holder = reference()
            if holder is not None and not holder.let_go():
                self._holders[key] = reference


OPEN_FILES = OpenFiles()
"""Of this process: descriptors are the process's."""
