"""The only ways in which a partition record may change; leader and controller both compute with these.

Each takes a record and gives the next one (or None where nothing changes). Whoever writes does so by one
compare-and-set, so the history of a record is a chain of these steps and nothing else.
Rules: KIP-966 (eligible leader replicas), KIP-841 and KIP-903 (who may be in the ISR), KIP-704 (recovery after
an unclean election).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import attrs

from .records import PartitionRecord
from .types import NO_LEADER

UNCLEAN_WAIT = "wait"
UNCLEAN_ANY = "any"
UNCLEAN_POLICIES = (UNCLEAN_WAIT, UNCLEAN_ANY)


def create(
    *,
    topic: str,
    partition: int,
    topic_id: str,
    replicas: Sequence[int],
    live: Collection[int],
    min_insync: int,
) -> PartitionRecord:
    """A new partition: all its living replicas are in sync (they are all empty), the first of them leads."""
    isr = tuple(node for node in replicas if node in live)
    return PartitionRecord(
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        replicas=tuple(replicas),
        isr=isr,
        leader=isr[0] if isr else NO_LEADER,
        min_insync_replicas=min_insync,
    )


def change_isr(record: PartitionRecord, isr: Iterable[int]) -> PartitionRecord:
    """The leader's change: another ISR under the same leader and leader epoch (since Kafka 3.6, KAFKA-15021)."""
    return _next(record, isr=isr)


def elect(record: PartitionRecord, live: Collection[int], unclean: str) -> PartitionRecord | None:
    """The controller's change after nodes came or went; None if the record already fits.

    Replicas that are not alive leave the ISR (they stay eligible while the ISR is under its minimum). A leader
    that is gone is followed by the first replica in assignment order that is alive and in the ISR; with an
    empty ISR by the first eligible one; then, if exactly one was the last known eligible, by that; then as the
    unclean policy says.
    """
    isr = [node for node in record.isr if node in live]
    leader, unclean_choice = _choose(record, isr, live, unclean)
    if leader == record.leader and len(isr) == len(record.isr):
        return None
    if leader != NO_LEADER and leader not in isr:
        isr = [leader]
    return _next(record, isr=isr, leader=leader, unclean=unclean_choice)


def restarted(record: PartitionRecord, node: int) -> PartitionRecord | None:
    """A new process stands for a node and has all that its predecessor wrote.

    It may lead again, but never in the same leader epoch: an epoch belongs to one process.
    The registration checks the version of every partition of the node, also of those that this and `forget`
    leave as they are: a leader may be adding the former process just now.
    """
    if record.leader != node:
        return None
    return _next(record, isr=record.isr, leader=NO_LEADER)


def forget(record: PartitionRecord, node: int, *, has_nothing: bool = False) -> PartitionRecord | None:
    """A node came back without proof that it lost nothing: it is neither in sync nor eligible (KAFKA-15586).

    One that `has_nothing` of the log is not the last resort of an election either: any other replica has more.
    """
    known = () if not has_nothing else record.last_known_elr
    if node not in (*record.isr, *record.elr, *known):
        return None
    return _next(
        record,
        isr=[member for member in record.isr if member != node],
        leader=NO_LEADER if record.leader == node else record.leader,
        lost=node,
        lost_all=has_nothing,
    )


def _choose(
    record: PartitionRecord, isr: Sequence[int], live: Collection[int], unclean: str
) -> tuple[int, bool]:
    """The leader to be, and whether choosing it may lose committed records."""
    if record.leader in isr:
        return record.leader, False
    candidates = isr or [node for node in record.replicas if node in record.elr and node in live]
    for node in record.replicas:
        if node in candidates:
            return node, False
    nobody_eligible = not record.isr and not record.elr
    if nobody_eligible and len(record.last_known_elr) == 1 and record.last_known_elr[0] in live:
        return record.last_known_elr[0], True
    if unclean == UNCLEAN_ANY:
        for node in record.replicas:
            if node in live:
                return node, True
    return NO_LEADER, False


def _next(
    record: PartitionRecord,
    *,
    isr: Iterable[int],
    leader: int | None = None,
    unclean: bool = False,
    lost: int | None = None,
    lost_all: bool = False,
) -> PartitionRecord:
    """The record after this change, with the eligible replicas worked out anew (KIP-966).

    While the ISR is at its minimum nobody else is eligible: committed records may be missing elsewhere. Under
    it nothing is committed, so whoever leaves still holds all that is.
    """
    members = set(isr)
    new_isr = tuple(node for node in record.replicas if node in members)
    new_leader = record.leader if leader is None else leader
    elr: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()
    if not unclean and len(new_isr) < record.min_isr:
        eligible = (set(record.elr) | set(record.isr)) - members
        known = set(record.last_known_elr) - members
        if lost is not None and lost in eligible:
            eligible.discard(lost)
            known.add(lost)
        if lost is not None and lost_all:
            known.discard(lost)
        elr = tuple(node for node in record.replicas if node in eligible)
        last_known = tuple(node for node in record.replicas if node in known - eligible)
    return attrs.evolve(
        record,
        isr=new_isr,
        elr=elr,
        last_known_elr=last_known,
        leader=new_leader,
        leader_epoch=record.leader_epoch + (new_leader != record.leader),
        partition_epoch=record.partition_epoch + 1,
        recovering=unclean or (record.recovering and len(new_isr) <= 1),
    )
