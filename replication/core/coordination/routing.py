"""The partition of an internal topic that keeps a group or transactional id: Kafka's, so that its tools find it."""

from __future__ import annotations

from struct import unpack

GROUP_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
DEFAULT_PARTITIONS = 50
"""Of `__consumer_offsets`; it never changes, because every key would move."""

_LEAST = -(2**31)


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, wrapped to a signed 32-bit int."""
    value = 0
    for unit in text.encode("ascii") if text.isascii() else _code_units(text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _code_units(text: str) -> tuple[int, ...]:
    # A lone surrogate (from a hostile client) has a code unit too, so it has a hash as well.
    data = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(data) // 2}H", data)


def partition_for_group(group: str, partitions: int = DEFAULT_PARTITIONS) -> int:
    """The partition whose leader coordinates `group`, a group id or a transactional id.

    The least int has no positive counterpart in Java, whose `Utils.abs` gives 0 for it.
    """
    value = java_hash(group)
    return 0 if value == _LEAST else abs(value) % partitions
