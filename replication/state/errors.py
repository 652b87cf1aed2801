"""The errors of replicated state, in addition to those of clients."""

from __future__ import annotations

from ..client.errors import ClientError


class StateError(ClientError):
    """Root of the errors of replicated state; `outcome` says whether a command may be in the log."""


class FencedError(StateError):
    """The same name was opened elsewhere; commands without an answer were not applied."""


class DivergedError(StateError):
    """This copy differs from the others: its machine does not depend on the log alone. The copy has stopped."""


class CommandError(StateError):
    """A command raised an exception, the same on every copy, whose class is unknown here.

    `kind` is the name of the class. Add the class to `errors` of the replicated object to receive it itself.
    """

    outcome = "unknown"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind


class CommandTooLargeError(StateError):
    """The command does not fit into one record of the topic."""


class SnapshotMissingError(StateError):
    """The beginning of the log is deleted, and no complete snapshot covers it."""


class ChangesLostError(StateError):
    """A reader of `changes()` has missed changes, so its reading ends.

    Either more than 10,000 changes waited to be read, or the copy fell so far behind that it restored its state
    from a snapshot, which skips the commands in between. Open `changes()` again, then read the state.
    """


class StateClosedError(StateError):
    """The copy is not open, or has stopped."""
