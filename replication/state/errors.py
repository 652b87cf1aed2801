"""The errors of replicated state, in addition to those of clients."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..client.errors import ClientError


class StateError(ClientError):
    """Root of the errors of replicated state; `outcome` says whether a command may be in the log."""


class FencedError(StateError):
    """The same name was opened elsewhere; commands without an answer were not applied."""


class DivergedError(StateError):
    """This copy differs from the others: its machine does not depend on the log alone. The copy has stopped."""


class UnfitCodeError(StateError):
    """Root of the errors by which a copy stops before it applies what its code is not made for."""


class WrongStateClassError(UnfitCodeError):
    """The topic holds the state of another class. `topic_class` and `code_class` are the names of both."""

    topic_class = code_class = ""


class StateVersionError(UnfitCodeError):
    """The topic's version is above that of this copy's code, `topic_version` and `code_version`."""

    topic_version = code_version = 0


class MigrationError(UnfitCodeError):
    """A migration raised an exception, which is the cause. No copy goes on behind the raise of the version."""


class UnknownEntryError(UnfitCodeError):
    """A later release wrote an entry that this one does not know."""


class VersionNotRaisedError(StateError):
    """A command or query needs a higher version than the topic's. It was not sent.

    `needed` and `topic_version` are the versions. `waits_for` has the name and version of each copy that the topic
    waits for, with 0 for a copy that has not told its version.
    """

    retriable = True
    needed = topic_version = 0
    waits_for: Mapping[str, int] = MappingProxyType({})


class IdempotencyConflictError(StateError):
    """A command with other arguments had this idempotency key first; this one was not applied."""


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
