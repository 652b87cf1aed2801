"""Work of single logs that mostly waits for the device, done beside the writer thread of a log directory.

Making thousands of logs, or beginning thousands of leader epochs after a failover, takes seconds; nobody who writes
to another log waits for it. Such work is done in portions: what the logs of one portion have in common (the list of
logs that were made, checkpoints, the folder that holds them all) is written once, the rest by several threads at a
time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from ....storage import Handover, StorageError

PORTION = 256
"""Pieces of work for which the common part is done at a time. A log is told of when its portion is done."""
TOGETHER = 3
"""How many logs wait for the device at a time."""


class SideWork(Protocol):
    """Work beside the writer. Nothing else is done to its log meanwhile."""

    @property
    def common(self) -> tuple[Callable[[Sequence[object]], None], object] | None:
        """A function that does in one go, for all that are given to it, what the work itself finds done then; and
        what it is to be given for this work.
        """


class SideWorker:
    """One thread, which is helped by others while a portion is done. Started and ended by the writer's thread.

    `do` is called for each piece of work from any of them, `done` with each portion, in order, `died` with an error
    that nobody expected, after which nothing is done any more. The thread first calls `leave`: it inherits the
    writer's processors, and that may be bound to one.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[SideWork], None],
        done: Callable[[Sequence[SideWork]], None],
        died: Callable[[Exception], None],
        leave: Callable[[], None],
    ) -> None:
        self.under_way = 0
        """Number of the latest piece of work that has begun; 0 if none is under way."""
        self._name = name
        self._do = do
        self._done = done
        self._died = died
        self._leave = leave
        self._count = 0
        self._queue: deque[SideWork] = deque()
        self._handover = Handover()
        self._thread: threading.Thread | None = None
        self._ended = False

    def submit(self, work: SideWork) -> None:
        """From the writer's thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._queue.append(work)
        self._handover.ask()

    def end(self) -> None:
        """All that was submitted is done: let the thread go. From the writer's thread."""
        self._ended = True
        self._handover.ask()

    def _run(self) -> None:
        asked = 0
        self._leave()
        try:
            while not self._ended:
                asked = self._handover.rest(asked)
                while portion := self._portion():
                    self._carry_out(portion)
                    self._done(portion)
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            self._died(error)

    def _portion(self) -> list[SideWork]:
        """The next pieces of work whose common part is the same, or of which some have none."""
        portion: list[SideWork] = []
        function = None
        # Piece by piece: the writer's thread adds more meanwhile, which no iteration survives.
        while self._queue and len(portion) < PORTION:
            work = self._queue[0]
            if work.common is not None:
                if function is not None and work.common[0] != function:
                    break
                function = work.common[0]
            portion.append(self._queue.popleft())
        return portion

    def _carry_out(self, portion: Sequence[SideWork]) -> None:
        self._begin()
        try:
            self._do_common(portion)
            self._do_each(portion)
        finally:
            self.under_way = 0

    def _do_common(self, portion: Sequence[SideWork]) -> None:
        common = [work.common for work in portion if work.common is not None]
        if common:
            # Each piece of work does by itself what could not be done for all, and tells of its own failure.
            with suppress(StorageError):
                common[0][0]([argument for _, argument in common])

    def _do_each(self, portion: Sequence[SideWork]) -> None:
        left = deque(portion)
        unexpected: list[Exception] = []

        def work_off() -> None:
            with suppress(IndexError):
                while True:
                    work = left.popleft()
                    # Each is a sign of life: many may take long together on a device that hangs at none.
                    self._begin()
                    try:
                        self._do(work)
                    except Exception as error:  # noqa: BLE001 - told to the worker's own thread, below
                        unexpected.append(error)

        helpers = [
            threading.Thread(target=work_off, name=f"{self._name}-{number}", daemon=True)
            for number in range(min(TOGETHER, len(portion)) - 1)
        ]
        for helper in helpers:
            helper.start()
        work_off()
        for helper in helpers:
            helper.join()
        if unexpected:
            raise unexpected[0]

    def _begin(self) -> None:
        self._count += 1
        self.under_way = self._count
