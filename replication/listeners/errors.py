"""What a listener raises."""

from __future__ import annotations

from ..client.errors import ClientError


class ListenerError(ClientError):
    """Root of the errors of `insync.replication.listeners`."""


class HandlerFailedError(ListenerError):
    """A handler has failed too often, and nothing was said to do with such records; the cause is its exception.

    What was done before is committed; the record comes again when the group is read again.
    """
