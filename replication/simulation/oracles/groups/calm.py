"""Groups in calm: everybody has what is its own, nothing hangs, nothing changes, and nothing is left at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import require
from ...settings import INTERNAL
from .facts import COPIES, partitions_of

if TYPE_CHECKING:
    from ...clients.groups import Groups
    from ...clients.members import Member

LAGS = 100
"""Records that a partition may be behind."""
LOADS_WITHIN = 5.0
"""Seconds."""


class Calm:
    """Looks at the coordinators of a run's groups."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._coordinators = groups.cluster.coordinators

    def _machine(self, group: str) -> Any:
        """The state of the partition that keeps a group; None where nothing is promised any more."""
        cluster, partition = self._groups.cluster, self._coordinators.partition_of(group)
        if partition is None or self._coordinators.log_of(partition) is None:
            return None
        if not self._coordinators.can_commit(partition):
            return None
        record = cluster.store.partitions[partition].record
        node = cluster.nodes.get(record.leader)
        broker = node.broker if node is not None else None
        machine = broker.shards.machine(partition) if broker is not None else None
        if node is None or self._coordinators.leads_since(partition, node) < LOADS_WITHIN:
            return machine
        require(machine is not None, "GL2", f"{partition} is led by {record.leader}, and still loads")
        return machine

    def epochs(self) -> dict[str, int]:
        """The epoch, or generation, of each group."""
        found = {}
        for name in self._groups.names:
            machine = self._machine(name)
            if machine is not None and name in machine.classics:
                found[name] = machine.classics[name].generation
            elif machine is not None and name in machine.groups:
                found[name] = machine.groups[name].epoch
        return found

    def check_quiet(self, before: dict[str, int]) -> None:
        """GL4: no group is shared out without a cause."""
        after = self.epochs()
        changed = [group for group, epoch in after.items() if before.get(group, epoch) != epoch]
        require(not changed, "GL4", f"{before} became {after} in the quiet")

    def check_stable(self) -> None:
        """GL1: each partition is served by one member, and read on."""
        for group in self._groups.names:
            if self._machine(group) is not None and (group != COPIES or self._transacts()):
                self._check_group(group)

    def _transacts(self) -> bool:
        """Whether transactions can be committed."""
        cluster = self._groups.cluster
        internal = [each for each in cluster.store.partitions if each.topic in INTERNAL]
        return not cluster.transactions.is_void and all(map(self._coordinators.can_commit, internal))

    def _check_group(self, group: str) -> None:
        view, handing = self._groups.view, self._groups.handing
        mine = [
            each
            for each in self._groups.alive
            if each.group == group and each.failed is None and not self._is_kept_out(each)
        ]
        wanted = partitions_of(view, {topic for each in mine for topic in each.topics})
        served = [partition for each in mine for partition in each.serving]
        require(sorted(served) == sorted(wanted), "GL1", f"{group}: {sorted(served)} is not {sorted(wanted)}")
        for partition in sorted(wanted):
            if self._coordinators.topics.is_ambiguous(partition):
                continue
            place = group, partition.topic_id, partition.partition
            done = len(handing.processed.get(place, ()))
            end = self._groups.end_of(partition)
            require(done + LAGS > end, "GL1", f"{place} is read no more: {done} of {end}")

    def _is_kept_out(self, member: Member) -> bool:
        """Whether another process has its instance, so that it waits for that one's end."""
        return member.instance is not None and any(
            each.instance == member.instance and each.membership.is_member
            for each in self._groups.alive
            if each is not member and each.group == member.group
        )

    def check_gone(self) -> None:
        """GL6: when nobody is left, nothing is."""
        for group in self._groups.names:
            machine = self._machine(group)
            left = machine.groups.get(group) if machine is not None else None
            require(left is None, "GL6", f"{group}: {left}")
