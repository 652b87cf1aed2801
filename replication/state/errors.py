"""What replicated state raises besides the errors of clients."""

from __future__ import annotations

from ..client.errors import ClientError


class StateError(ClientError):
    """Root of the errors of replicated state; `outcome` says of a command whether it may be in the log."""


class FencedError(StateError):
    """The same name was opened elsewhere since; what was asked for and has not been answered was not done."""


class DivergedError(StateError):
    """This copy differs from the others: its machine does not depend on the log alone. The copy has stopped."""


class CommandError(StateError):
    """A command raised an exception of a class that is not known here; the same on every copy.

    `kind` is the name of the class. Name the class in `errors` of the replicated object to have it raised itself.
    """

    outcome = "unknown"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind


class CommandTooLargeError(StateError):
    """The command does not fit into one record of the topic."""


class SnapshotMissingError(StateError):
    """The log begins behind the first command, and no whole snapshot reaches to where it begins."""


class ChangesLostError(StateError):
    """A reader of `changes()` was too slow; open it again, and look at the state itself first."""


class StateClosedError(StateError):
    """The copy is not open, or has stopped."""
