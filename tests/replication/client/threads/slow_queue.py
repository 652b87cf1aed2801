"""The queue between threads and their producer as Python would have it: `RecordQueue` in C is held against it."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from insync.replication.client.producer._joining import CLOSED, FIRST, FULL, QUEUED
from insync.replication.client.threads._handover import HandedOver, Queued


class SlowQueue:
    """Records from any number of threads for one that takes them.

    Its methods take effect at once: other threads see all of what one does, or nothing.

    Args:
      most: How many bytes may be queued; one record more is taken.
    """

    def __init__(self, most: int) -> None:
        self.queued = 0
        """Bytes."""
        self.moving = False
        """Whether somebody is going to take what is in it."""
        self._most = most
        self._closed = False
        self._pid = os.getpid()
        self._items: deque[Queued] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, record: HandedOver, cost: int, deadline: float, arguments: tuple[Any, ...]) -> int:
        """Queue a record; gives what becomes of it."""
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return CLOSED
            if self.queued > self._most:
                return FULL
            first, self.moving = not self.moving, True
            self.queued += cost
            self._items.append((record, cost, deadline, arguments))
        return FIRST if first else QUEUED

    def first(self) -> Queued | None:
        return self._items[0] if self._items else None

    def popleft(self) -> None:
        self._items.popleft()

    def settle(self, cost: int) -> bool:
        """Records of this cost were taken. Whether there are others; if not, the next one is a first one."""
        with self._lock:
            self.queued -= cost
            self.moving = bool(self._items)
            return self.moving

    def waiting(self) -> list[HandedOver]:
        """The records in it."""
        with self._lock:
            return [record for record, *_ in self._items]

    def close(self) -> list[HandedOver]:
        """It takes nothing more; gives the records that nobody will take."""
        with self._lock:
            self._closed = True
            left = [record for record, *_ in self._items]
            self._items.clear()
        return left
