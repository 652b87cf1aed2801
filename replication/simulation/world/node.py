"""A simulated node: its clock, its process, its replicas with their disks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from ...core.broker.membership.clocks import WallClocks
from ...core.broker.membership.registration import Membership, NextProof
from ...core.broker.membership.stalls import StallWatch
from ...core.broker.timers import NEVER
from ...core.control.controller import Controller
from ...core.control.view import ClusterView
from ...core.partition import effects as fx
from ...core.partition.replica import Replica
from ...core.types import PartitionId
from .disk import Disk

if TYPE_CHECKING:
    from ..oracles.facts import PartitionFacts
    from ..oracles.watched import WatchedBroker

CLOCKS_APART = 60.0
"""The simulated `max_clock_difference_ms`, in seconds."""
LogJob = fx.Append | fx.AssignEpoch | fx.Truncate | fx.AdvanceLogStart


@attrs.define(eq=False)
class Host:
    """One replica on one node, with what the process knows (lost when it dies) and its disk (which stays).

    `facts`: what is known of the partition that it is a replica of, which may be deleted by now.
    """

    node: Node
    partition: PartitionId
    name: str
    facts: PartitionFacts
    disk: Disk = attrs.Factory(Disk)
    replica: Replica | None = None
    jobs: deque[LogJob] = attrs.Factory(deque)
    worker: int = 0
    busy_since: float | None = None

    def forget(self, worker: int) -> None:
        """The process has gone, and with it all but the disk."""
        self.replica = None
        self.jobs.clear()
        self.worker, self.busy_since = worker, None


@attrs.define(eq=False)
class Node:
    """`process` counts the processes that have stood for it, registered or not; `incarnation` those registered."""

    id: int
    hosts: dict[PartitionId, Host] = attrs.Factory(dict)
    controller: Controller | None = None
    broker: WatchedBroker | None = None
    """Of the process that it is now, once that is registered."""
    settling: bool = False
    """Whether its broker is about to be told that a turn has ended."""
    armed: float = NEVER
    """When its broker is ticked next, by its own clock."""
    up: bool = False
    paused: bool = False
    resumed_at: float = 0.0
    found_store_at: float = 0.0
    """When it last reached the store again."""
    process: int = 0
    incarnation: int = 0
    held: list[Callable[[], None]] = attrs.Factory(list)
    left: float = float("-inf")
    """When its last session ended."""
    seen: int = -1
    shown: ClusterView = attrs.Factory(ClusterView)
    """The view that its controller was given last."""
    registered: int = 0
    """The revision of this process's registration: what was read before is of its predecessor."""
    departing: bool = False
    """Whether its process has been asked to stop."""
    membership: Membership | None = None
    session: int = 0
    boot: int = 0
    """How often its machine has been started."""
    proof: NextProof | None = None
    """How old its folder says that it is."""
    stopped_clean: int | None = None
    """The process that the marker of a clean stop vouches for."""
    lost_data: bool = False
    """Whether its disk has lost something that no registration has told of yet."""
    is_ahead: bool = False
    """Whether its folder has seen a later state of the store than that shows."""
    store_cuts: int = 0
    deaf_until: float = 0.0
    """Until when no news of the store reach it, though its session lives."""
    stalled_until: float = 0.0
    offline: frozenset[PartitionId] = frozenset()
    """In a log directory that its process cannot use any more, or damaged."""
    refused: frozenset[PartitionId] = frozenset()
    """Of those the logs that its start could not open. `damaged`: because they are damaged."""
    damaged: frozenset[PartitionId] = frozenset()
    stalls: StallWatch = attrs.Factory(lambda: StallWatch(float("inf")))
    """Of the process that it is now."""
    strays: dict[PartitionId, list[Host]] = attrs.Factory(dict)
    """Logs that were set aside, also of partitions that have another log here by now."""
    has_held: set[PartitionId] = attrs.Factory(set)
    """Partitions whose log was set aside and not deleted: none of them counts as one that never had a log."""
    unproven: frozenset[tuple[PartitionId, str]] = frozenset()
    """Replicas, with their topic ids, whose completeness its process, as it begins, cannot prove by its files."""
    directories: int = 1
    """How many identities its log directory has had."""
    checkpoint_since: float | None = None
    """Since when a checkpoint, which is written every second, has not come to an end."""
    clocks: WallClocks = attrs.Factory(lambda: WallClocks(0.0, CLOCKS_APART))
    """Wall clocks as its process judges them."""
    heard: dict[int, float] = attrs.Factory(dict)
    """For the oracle: the wall clocks of other nodes, as its process has heard of them."""
    wall_ahead: float = 0.0
    """Seconds by which its wall clock is wrong."""
    clock_rate: float = 1.0
    clock_at: tuple[float, float] = (0.0, 0.0)

    @property
    def folder(self) -> str:
        """The id of its log directory."""
        return f"folder {self.directories} of node {self.id}"

    @property
    def process_name(self) -> str:
        """The text by which its process recognizes its own entry in the store."""
        return f"process {self.process} of node {self.id}"

    def keep_stray(self, host: Host) -> None:
        """Keep a log that cannot be used as a stray log; its place counts as one that has had a log."""
        self.strays.setdefault(host.partition, []).append(host)
        self.has_held.add(host.partition)

    def writer(self, incarnation: int) -> str:
        """A controller by name: each process has its own, which knows nothing of what others have heard."""
        return f"controller {self.id}/{incarnation}"

    def clock(self, now: float) -> float:
        """The reading of this node's monotonic clock at virtual time `now`."""
        since, reading = self.clock_at
        return reading + (now - since) * self.clock_rate

    def set_clock(self, now: float, *, rate: float = 1.0, ahead: float = 0.0) -> None:
        """Let the clock go on at another rate, from its reading plus `ahead` seconds."""
        self.clock_at = now, self.clock(now) + ahead
        self.clock_rate = rate

    @property
    def signs_of_life(self) -> tuple[int, int]:
        """Numbers of the oldest unfinished write to a log and to a checkpoint, by when each began; 0 for none."""
        since = [host.busy_since for host in self.hosts.values() if host.busy_since is not None]
        return _number(min(since, default=None)), _number(self.checkpoint_since)


def _number(since: float | None) -> int:
    return 0 if since is None else 1 + int(1e6 * since)
