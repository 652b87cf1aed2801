"""What a measure of latency leaves out: the records of its first second, in which connections are made."""

from __future__ import annotations


def warm_up(count: int, per_second: int) -> int:
    """Records of the first second, but no more than are measured."""
    return min(count, per_second)
