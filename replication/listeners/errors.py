"""The errors of a listener."""

from __future__ import annotations

from ..client.errors import ClientError


class ListenerError(ClientError):
    """Root of the errors of `insync.replication.listeners`."""


class HandlerFailedError(ListenerError):
    """A handler has failed too often, and nothing was said to do with such records; the cause is its exception.

    The records done before are committed; the record comes again when the group is read again.
    """


class RecordFailedError(ListenerError):
    """For batch handlers to raise: `RecordFailedError(index)` says which of the records has failed, and why.

    The records before it are done. It is tried again, or goes where records go that fail; those behind it come with
    the next batch. `raise RecordFailedError(index) from error` tells the cause.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"the record with index {index} has failed")
        self.index = index
