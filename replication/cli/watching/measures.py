"""The figures that commands and the dashboard derive from the nodes' counters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...client import NodeHealth
    from ...core.messages import ReplicaInfo

RATES = ("bytes_in", "bytes_out", "messages_in", "replication_bytes_in", "replication_bytes_out")
THROTTLES = ("leader_replication_throttled_rate", "follower_replication_throttled_rate")
"""The quotas of nodes that limit what moves take."""


def rates(before: NodeHealth | None, now: NodeHealth | None, seconds: float) -> dict[str, float] | None:
    """A node's input and output a second between two looks; None if it is silent, or another process by now."""
    if before is None or now is None or before.error or now.error:
        return None
    if before.incarnation != now.incarnation or seconds <= 0:
        return None
    return {name: (now.counters.get(name, 0) - before.counters.get(name, 0)) / seconds for name in RATES}


def amount(number: float) -> str:
    """Bytes as people read them, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def copied(
    adding_to: Mapping[tuple[str, int], Collection[int]], replicas: Iterable[ReplicaInfo]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Of each move how many records its new replicas have and need, as the leaders among `replicas` see it.

    adding_to: the nodes that each partition moves to.
    """
    found = {}
    for replica in replicas:
        adding = adding_to.get((replica.topic, replica.partition), ())
        if not adding or replica.role != "leader":
            continue
        held = {each.node_id: each.log_end_offset for each in replica.followers if each.node_id in adding}
        wanted = (replica.log_end_offset - replica.log_start_offset) * len(adding)
        there = sum(max(0, end - replica.log_start_offset) for end in held.values())
        found[replica.topic, replica.partition] = there, wanted
    return found
