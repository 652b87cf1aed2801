"""The threads of a log directory that bring appends to the device, one log each at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

TOGETHER = 4
"""How many logs wait for the device at a time: flushes that come together share commits of the file system."""

Work = TypeVar("Work")
Result = TypeVar("Result")


class FlushThreads(Generic[Work, Result]):
    """Started as they are needed, and ended, by the writer's thread.

    `do` is called for each piece of work, and `done` with the work and its result when it is under way no more;
    `died` with an error that nobody expected, after which its thread does nothing any more. A thread first calls
    `leave`: it inherits the writer's processors, and the writer may be bound to one.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[Work], Result],
        done: Callable[[Work, Result], None],
        died: Callable[[Exception], None],
        leave: Callable[[], None],
    ) -> None:
        self._name = name
        self._do = do
        self._done = done
        self._died = died
        self._leave = leave
        self._queue: SimpleQueue[tuple[int, Work] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._count = 0
        self._lock = threading.Lock()
        self._under_way: list[int] = []

    @property
    def under_way(self) -> int:
        """Number of the oldest piece of work that was submitted and has not ended; 0 if there is none."""
        with self._lock:
            return self._under_way[0] if self._under_way else 0

    def submit(self, work: Work) -> None:
        with self._lock:
            self._count += 1
            number = self._count
            self._under_way.append(number)
            wanted = min(len(self._under_way), TOGETHER)
        if len(self._threads) < wanted:
            thread = threading.Thread(
                target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._queue.put((number, work))

    def end(self) -> None:
        """All that was submitted is done: let the threads go."""
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        self._leave()
        try:
            while (taken := self._queue.get()) is not None:
                number, work = taken
                result = self._do(work)
                with self._lock:
                    self._under_way.remove(number)
                self._done(work, result)
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            self._died(error)
