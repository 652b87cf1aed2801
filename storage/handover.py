"""One thread asks another for work and waits for it, without the interpreter's lock changing hands twice.

A thread that is woken by a lock, queue or event of Python's finds the interpreter's lock held by the one that woke
it, and sleeps again until that one lets go of it. Here the lock is let go of first: waking and sleeping are one
call.

A thread that waits also lends the worker its processor (decision 71).
"""

from __future__ import annotations

from ._native import ffi, lib


class Handover:
    """Between two threads. They keep the work and its results elsewhere, and put them there first."""

    def __init__(self) -> None:
        self._native = ffi.new("isr_handover *")

    def ask(self) -> None:
        """Wake the worker: there is something to do."""
        lib.isr_handover_ask(self._native)

    def ask_and_wait(self, seconds: float) -> bool:
        """The same, and wait until the worker has done all that it was asked for; False if it needs longer.

        Meanwhile the worker is bound to the processor of the thread that waits, and mostly begins in its place.
        The thread that waits is bound to nothing. The worker is free again when it was late, or when it is asked
        the next time without anybody who waits. Threads that it starts meanwhile inherit that; they `leave`.
        """
        return lib.isr_handover_ask_and_wait(self._native, int(seconds * 1e9)) != 0

    def rest(self, done: int) -> int:
        """For the worker: `done` is what the last call returned, 0 at first, and all of it is done now.

        Returns when there is something to do. More may be there than was asked for when this returns; then the next
        call returns at once, and finds nothing left.
        """
        return int(lib.isr_handover_rest(self._native, done))

    def leave(self) -> None:
        """For a thread that the worker has started: run where the thread that asks may run."""
        lib.isr_handover_leave(self._native)

    def end(self) -> None:
        """For the worker, last of all: its thread is bound to nothing any more."""
        lib.isr_handover_end(self._native)
