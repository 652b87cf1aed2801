"""A request that a coordinator does not carry out."""

from __future__ import annotations

from ..errors import ErrorCode


class GroupRefusal(Exception):
    """Ends a decision: nothing is written, and the answer has this error and text."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def refuse_if(wrong: bool, error: ErrorCode, message: str) -> None:
    """Raise `GroupRefusal` if `wrong`."""
    if wrong:
        raise GroupRefusal(error, message)
