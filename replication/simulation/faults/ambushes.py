"""Faults that wait for the end of a transaction: for the steps between its outcome and its markers.

Chance alone hardly ever moves two leaderships, the coordinator's and that of a partition of its transaction, within
the milliseconds that a marker takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...core.coordination.routing import GROUP_TOPIC
from ...core.types import NO_LEADER, PartitionId
from ..world.node import Node
from .schedule import Fault
from .traps import END, MARKER, Strike

if TYPE_CHECKING:
    from .injector import Injector

AT_ONCE = 0.02
"""How much later, at most, a coordinator is struck that was asked to end something: its outcome may be anywhere."""
COMES_BACK = 0.3
"""How much later a leader that was killed is started: before its session ends."""
VACANT = 0.05
"""How often it is looked whether a partition has lost its leader."""
LOOKS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
"""How long after the other leader was made offsets of groups are asked for."""


def lead_where_a_marker_goes(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Kill the leader of a group's offsets before a marker reaches it; the marker's sender leads them next.

    Not before they have had no leader: by then the sender knows that its marker has not arrived.
    """
    cluster = injector.cluster

    def strike(involved: Sequence[int], partition: PartitionId) -> None:
        sender, peer = involved
        if partition.topic != GROUP_TOPIC or sender not in cluster.store.partitions[partition].record.isr:
            _lay(injector, MARKER, strike)
            return
        _struck(injector, fault, partition)
        injector.crash(cluster.nodes[peer], fault.seconds)
        cluster.later(VACANT, partial(_lead, injector, fault, sender, partition))

    _lay(injector, MARKER, strike)
    return False


def _lead(injector: Injector, fault: Fault, node: int, partition: PartitionId) -> None:
    """Elect it when nobody leads, if it is in sync and lives then."""
    cluster, known = injector.cluster, injector.cluster.store.partitions.get(partition)
    if cluster.calm or known is None or node not in known.record.isr or known.record.leader == node:
        return
    record = known.record
    if record.leader != NO_LEADER or node not in cluster.store.live:
        cluster.later(VACANT, partial(_lead, injector, fault, node, partition))
        return
    cluster.elect(record, node)
    for seconds in LOOKS:
        cluster.later(seconds, cluster.transactions.look)


def kill_who_awaits_a_marker(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Before a marker reaches them kill all who may lead its partition: nobody does for a while.

    If its sender may lead, kill the leader alone, which takes leadership from itself as it comes back at once.
    """
    cluster = injector.cluster

    def strike(involved: Sequence[int], partition: PartitionId) -> None:
        known = cluster.store.partitions.get(partition)
        if known is None:  # its topic was deleted while the marker was on its way
            _lay(injector, MARKER, strike)
            return
        record = known.record
        able, (sender, peer) = {*record.isr, *record.elr}, involved
        killed, seconds = ({peer}, COMES_BACK) if sender in able else (able, fault.seconds)
        _struck(injector, fault, partition)
        for node in sorted(killed):
            if cluster.nodes[node].up:
                injector.crash(cluster.nodes[node], seconds)

    _lay(injector, MARKER, strike)
    return False


def kill_who_is_to_end(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Kill a coordinator soon after a producer has asked it to end its transaction."""
    cluster = injector.cluster

    def strike(involved: Sequence[int], partition: PartitionId) -> None:
        node = cluster.nodes[involved[0]]
        process = node.process

        def kill() -> None:
            if node.up and node.process == process and not cluster.calm:
                _struck(injector, fault, partition)
                injector.crash(node, fault.seconds)

        cluster.later(AT_ONCE * fault.amount, kill)

    _lay(injector, END, strike)
    return False


def _struck(injector: Injector, fault: Fault, partition: PartitionId) -> None:
    injector.applied[fault.label] += 1
    injector.cluster.note(f"** {fault}: {partition}")


def _lay(injector: Injector, moment: str, strike: Strike) -> None:
    """Also again, where the moment was another one than it waits for. Faults end with the storm."""

    def strike_in_time(involved: Sequence[int], partition: PartitionId) -> None:
        if not injector.cluster.calm:
            strike(involved, partition)

    injector.cluster.traps.lay(moment, strike_in_time)


KINDS = {
    "have its coordinator lead where a marker goes": lead_where_a_marker_goes,
    "kill all who await a marker": kill_who_awaits_a_marker,
    "kill the coordinator that is to end one": kill_who_is_to_end,
}
