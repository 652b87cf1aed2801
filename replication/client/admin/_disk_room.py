"""Whether what a move brings to a node fits on its disks, checked before the move begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...core import messages as m
from ..errors import NoDiskRoomError

if TYPE_CHECKING:
    from .admin import Admin


async def check_room(admin: Admin, moves: Iterable[m.PartitionReassignment]) -> None:
    """Compare the sizes of partitions with what is free at the nodes that are to have them and have none of them.

    Nothing is assumed about nodes and partitions without a report: the move is noted.

    Raises:
      NoDiskRoomError: A node has less room than its new replicas have bytes.
    """
    wanted = [each for each in moves if each.replicas]
    if not wanted:
        return
    reports = await admin.describe_replicas(sorted({each.topic for each in wanted}))
    sizes: dict[tuple[str, int], int] = defaultdict(int)
    holders: dict[tuple[str, int], set[int]] = defaultdict(set)
    for report in reports:
        for replica in report.replicas:
            at = replica.topic, replica.partition
            sizes[at] = max(sizes[at], replica.size_bytes)
            holders[at].add(report.node_id)
    needed: dict[int, int] = defaultdict(int)
    for move in wanted:
        for node in move.replicas or ():
            if node not in holders[move.topic, move.partition]:
                needed[node] += sizes[move.topic, move.partition]
    if not any(needed.values()):
        return
    for health in await admin.describe_nodes():
        free = _free(health.log_directories)
        if free is not None and needed[health.node_id] > free:
            raise NoDiskRoomError(health.node_id, needed[health.node_id], free)


def _free(directories: Sequence[m.LogDirectoryInfo]) -> int | None:
    """Bytes in those that work, each device counted once; None if a node does not say."""
    working = [each for each in directories if not each.error]
    if not working or any(each.free_bytes < 0 for each in working):
        return None
    return sum({each.device or each.path: each.free_bytes for each in working}.values())
