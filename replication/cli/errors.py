"""The errors of the command line itself, and how any failure becomes one line and an exit status."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.wording import printable
from ..errors import ReplicationError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


class CommandError(ReplicationError):
    """A command cannot do what it was asked; the message names the thing and the remedy."""


class UsageError(CommandError):
    """The command line itself is wrong."""


def leaves(failure: BaseException) -> Iterator[BaseException]:
    """The exceptions inside nested groups, in order; a plain exception is its own only leaf."""
    if isinstance(failure, BaseExceptionGroup):
        for part in failure.exceptions:
            yield from leaves(part)
    else:
        yield failure


def explain(failure: BaseException) -> tuple[str, int]:
    """One line for people and the exit status; of several failures the first that has a class of ours speaks."""
    found = list(leaves(failure))
    if any(isinstance(each, KeyboardInterrupt) for each in found):
        return "interrupted", EXIT_INTERRUPTED
    expected = _expected()
    for each in found:
        if isinstance(each, expected):
            return one_line(str(each)), EXIT_USAGE if isinstance(each, UsageError) else EXIT_FAILURE
    for each in found:
        if isinstance(each, OSError):
            return one_line(_os_message(each)), EXIT_FAILURE
    first = found[0]
    return (
        one_line(
            f"unexpected {type(first).__name__}: {first}; set INSYNC_TRACEBACK=1 to see where it came from"
        ),
        EXIT_FAILURE,
    )


def _expected() -> tuple[type[Exception], ...]:
    from ...storage import StorageError
    from ...transport import TransportError

    return ReplicationError, StorageError, TransportError


def one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _os_message(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
