"""Errors of a gateway's connections."""

from __future__ import annotations


class ProtocolViolationError(Exception):
    """A client sends what Kafka's protocol does not have, or not now: the connection is closed.

    `farewell`: bytes that it is sent before, in its own protocol.
    """

    farewell = b""
