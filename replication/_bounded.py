"""Somebody else's function that must answer within a time, though nothing can make it return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class OverdueError(TimeoutError):
    """A function of a plugin or of the user has not returned in time."""


class Bounded:
    """Calls a function in a thread and waits for it no longer than `seconds`.

    A thread cannot be ended. One that is overdue goes on by itself, and as long as it does, further calls are
    refused at once: there is never more than one. Code that keeps the interpreter's lock all the time (a loop in C)
    stops the whole process nevertheless.
    """

    def __init__(self, function: Callable[..., Any], seconds: float, name: str) -> None:
        self._function = function
        self._seconds = seconds
        self._name = name
        self._late: threading.Thread | None = None

    def __call__(self, *arguments: object) -> Any:
        """Return the function's value, or raise its error.

        Raises:
          OverdueError: It has not returned in time, or not from an earlier call.
        """
        if self._late is not None and self._late.is_alive():
            raise OverdueError("has not returned from an earlier call; it is not called before that")
        self._late = None
        outcome: list[tuple[Any, BaseException | None]] = []

        def run() -> None:
            try:
                outcome.append((self._function(*arguments), None))
            except BaseException as error:  # noqa: BLE001 - the caller's to judge
                outcome.append((None, error))

        thread = threading.Thread(target=run, name=self._name, daemon=True)
        thread.start()
        thread.join(self._seconds)
        if not outcome:
            self._late = thread
            raise OverdueError(f"has not returned within {self._seconds:g} s")
        value, error = outcome[0]
        if error is not None:
            raise error
        return value
