"""Errors on their way out of Spark's Python processes: there only the text of a traceback survives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from ...replication import ReplicationError

F = TypeVar("F", bound=Callable[..., object])


def plainly(function: F) -> F:
    """Let errors that are meant for the user come without the stack of our own calls.

    Spark puts the whole traceback into its message; with this the message is the error, and little more.
    """

    @functools.wraps(function)
    def call(*arguments: object, **named: object) -> object:
        try:
            return function(*arguments, **named)
        except ReplicationError as error:
            raise error.with_traceback(None) from None

    return call  # type: ignore[return-value]
