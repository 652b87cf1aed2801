"""The root of every error that the replication rooms raise."""

from __future__ import annotations

import copyreg
from typing import Any, TypeVar


class ReplicationError(Exception):
    """Root of all errors of `insync.replication`; the cause in another room, if any, is its `__cause__`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled without its class's `__init__`, which may take something else than the text."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__ or None  # type: ignore[attr-defined]


E = TypeVar("E", bound=BaseException)


def again(error: E) -> E:
    """An error that is kept, for the next caller to whom it is raised.

    Otherwise its traceback would grow with each caller, without end, and keep what those had at hand.
    """
    return error.with_traceback(None)
