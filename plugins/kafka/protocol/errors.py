"""Reasons to refuse a message."""

from __future__ import annotations

from ....replication import ReplicationError


class KafkaProtocolError(ReplicationError):
    """Bytes or a version of Kafka's protocol that cannot be served; the root of this plugin's errors."""


class MalformedError(KafkaProtocolError):
    """Bytes that are no message of their kind and version: too few, a wrong length, or text that is not UTF-8."""


class UnknownVersionError(KafkaProtocolError):
    """No table knows a message of this name, or not in this version."""
