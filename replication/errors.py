"""The root of every error that the replication rooms raise."""

from __future__ import annotations


class ReplicationError(Exception):
    """Root of all errors of `insync.replication`; the cause in another room, if any, is its `__cause__`."""
