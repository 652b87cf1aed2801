"""Kafka's clients at an insync node: a gateway, `kafka://HOST:PORT` among a node's listeners."""

from .gateway import KafkaGateway

__all__ = ["KafkaGateway"]
