"""The only ways in which a partition record may change; leader and controller both compute with these.

Each takes a record and gives the next one (or None where nothing changes). Every writer stores it by one
compare-and-set, so the history of a record is a chain of these steps and nothing else.
Rules: KIP-966 (eligible leader replicas), KIP-841 and KIP-903 (who may be in the ISR), KIP-704 (recovery after
an unclean election), KIP-455 (reassignment).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace as evolve

from ..types import NO_EPOCH, NO_LEADER
from .records import PartitionRecord

EPOCHS_SKIPPED = 1000
"""At least how far an epoch lies above all that are known where there may have been others: a store that lost power
may have forgotten elections, and logs that nobody can look at now may have their epochs. One that was used twice
would hide that two logs part."""


def above(epoch: int, process: str) -> int:
    """An epoch above another one that no other process begins: what a store has forgotten may come again step by
    step.

    process: a random text, which only the process that writes the record has.
    """
    return epoch + EPOCHS_SKIPPED + int.from_bytes(process.encode()) % EPOCHS_SKIPPED


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


def has_clean_leader(record: PartitionRecord, live: Collection[int]) -> bool:
    """Whether a living replica leads or may be elected without losing anything."""
    return _clean_leader(record, live) != NO_LEADER


def set_min_insync(record: PartitionRecord, min_insync: int) -> PartitionRecord | None:
    """The topic's `min_insync_replicas` was changed; None if the partition has it already.

    The ELR follows: with an ISR that is large enough now nobody else is eligible (KIP-966).
    """
    if record.min_insync_replicas == min_insync:
        return None
    return _next(evolve(record, min_insync_replicas=min_insync), isr=record.isr)


def elect(
    record: PartitionRecord, live: Collection[int], unclean: int = NO_LEADER, process: str = ""
) -> PartitionRecord | None:
    """The controller's change after nodes came or went; None if the record already fits.

    Replicas that are not alive leave the ISR (they stay eligible while the ISR is under its minimum). A leader
    that is gone is followed by the first replica in assignment order that is alive and in the ISR; with an
    empty ISR by the first eligible one; then by `unclean`, whom an election policy has chosen. Such a leader begins
    an epoch that nobody's log has, also of those who are away (`process`: see `above`).
    """
    isr = [node for node in record.isr if node in live]
    leader = _clean_leader(record, live)
    by_policy = leader == NO_LEADER and unclean in record.replicas and unclean in live
    if by_policy:
        leader = unclean
    if leader == record.leader and len(isr) == len(record.isr):
        return None
    if leader != NO_LEADER and leader not in isr:
        isr = [leader]
    begins = above(record.leader_epoch, process) if by_policy else None
    return _next(record, isr=isr, leader=leader, unclean=by_policy, begins=begins)


def restarted(
    record: PartitionRecord, node: int, *, last_epoch: int = NO_EPOCH, process: str = ""
) -> PartitionRecord | None:
    """A new process stands for a node and has all that its predecessor wrote.

    It may lead again, but never in the same leader epoch: an epoch belongs to one process.
    The registration checks the version of every partition of the node, also of those that this and `forget`
    leave as they are: a leader may be adding the former process just now.

    last_epoch: the greatest that its log knows. A later one than the record's shows that the store has forgotten
    elections; the partition goes on in an epoch above it (`process`: see `above`).
    """
    if record.leader != node and last_epoch <= record.leader_epoch:
        return None
    leader = NO_LEADER if record.leader == node else record.leader
    return _next(record, isr=record.isr, leader=leader, begins=_above_log(record, last_epoch, process))


def forget(
    record: PartitionRecord,
    node: int,
    *,
    has_nothing: bool = False,
    last_epoch: int = NO_EPOCH,
    process: str = "",
) -> PartitionRecord | None:
    """A node came back without proof that it lost nothing: it is neither in sync nor eligible (KAFKA-15586).

    One that `has_nothing` of the log is not the last resort of an election either: any other replica has more.
    `last_epoch`, `process`: as in `restarted`.
    """
    known = () if not has_nothing else record.last_known_elr
    if node not in (*record.isr, *record.elr, *known) and last_epoch <= record.leader_epoch:
        return None
    return _next(
        record,
        isr=[member for member in record.isr if member != node],
        leader=NO_LEADER if record.leader == node else record.leader,
        lost=node,
        lost_all=has_nothing,
        begins=_above_log(record, last_epoch, process),
    )


def _above_log(record: PartitionRecord, last_epoch: int, process: str) -> int | None:
    """The epoch to go on with if a log knows a later one than the record."""
    return above(last_epoch, process) if last_epoch > record.leader_epoch else None


def prefer(record: PartitionRecord, live: Collection[int]) -> PartitionRecord | None:
    """Give leadership to the preferred replica, the first one; None if it leads or may not lead now."""
    preferred = record.replicas[0]
    if record.leader in (preferred, NO_LEADER) or preferred not in record.isr or preferred not in live:
        return None
    return _next(record, isr=record.isr, leader=preferred)


def reassign(record: PartitionRecord, target: Sequence[int]) -> PartitionRecord | None:
    """Begin to move a partition to other replicas, or change where it is moving to; None if it stands there.

    Nobody leaves before all of the target is in sync: until then there are the old replicas and the new ones
    (KIP-455). Moving back to where it came from is how a reassignment is cancelled.
    """
    origin = record.origin
    removing = tuple([node for node in record.replicas if node not in target])
    replicas = (*target, *removing)
    adding = tuple([node for node in replicas if node not in origin])
    if (replicas, adding, removing) == (record.replicas, record.adding, record.removing):
        return None
    moving = evolve(record, replicas=replicas, adding=adding, removing=removing)
    return _next(record, isr=record.isr, to=moving)


def finish_reassignment(record: PartitionRecord) -> PartitionRecord | None:
    """The end of a reassignment, once the ISR holds the target; None while it does not.

    Where nobody is added it is enough that the ISR is as large as it has to be afterwards: to wait for a dead one
    that is to stay would keep a cancelled reassignment for ever. A replica that leaves takes its leader epoch
    along, so that nothing that it acknowledged counts should it come back empty.
    """
    if not record.reassigning:
        return None
    target = record.target
    in_sync = [node for node in target if node in record.isr]
    waits_for_new = any(node not in record.isr and node in record.adding for node in target)
    moved = evolve(record, replicas=target, adding=(), removing=())
    if len(in_sync) < len(target) and (waits_for_new or len(in_sync) < moved.min_isr or not in_sync):
        return None
    if record.leader == NO_LEADER:
        return None
    leader = record.leader if record.leader in target else in_sync[0]
    return _next(record, isr=in_sync, leader=leader, to=moved, new_epoch=bool(record.removing))


def _clean_leader(record: PartitionRecord, live: Collection[int]) -> int:
    """The replica that leads or may lead with everything committed; `NO_LEADER` if no living one is known to."""
    if record.leader in record.isr and record.leader in live:
        return record.leader
    isr = [node for node in record.isr if node in live]
    candidates = isr or [node for node in record.elr if node in live]
    return next((node for node in record.replicas if node in candidates), NO_LEADER)


def _next(
    record: PartitionRecord,
    *,
    isr: Iterable[int],
    leader: int | None = None,
    unclean: bool = False,
    lost: int | None = None,
    lost_all: bool = False,
    to: PartitionRecord | None = None,
    new_epoch: bool = False,
    begins: int | None = None,
) -> PartitionRecord:
    """The record after this change, with recomputed eligible replicas (KIP-966).

    While the ISR is at its minimum nobody else is eligible: committed records may be missing elsewhere. Under
    it nothing is committed, so whoever leaves still holds all that is.

    to: the record as it will be in what only a reassignment changes. begins: the leader epoch, where it is
    not the present one or the next.
    """
    base = record if to is None else to
    members = set(isr)
    new_isr = tuple([node for node in base.replicas if node in members])
    new_leader = record.leader if leader is None else leader
    elr: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()
    if not unclean and len(new_isr) < base.min_isr:
        eligible = (set(record.elr) | set(record.isr)) - members
        known = set(record.last_known_elr) - members
        if lost is not None and lost in eligible:
            eligible.discard(lost)
            known.add(lost)
        if lost is not None and lost_all:
            known.discard(lost)
        elr = tuple([node for node in base.replicas if node in eligible])
        last_known = tuple([node for node in base.replicas if node in known - eligible])
    leader_epoch = record.leader_epoch + (new_epoch or new_leader != record.leader)
    if begins is not None:
        leader_epoch = begins
    return evolve(
        base,
        isr=new_isr,
        elr=elr,
        last_known_elr=last_known,
        leader=new_leader,
        leader_epoch=leader_epoch,
        unclean_epoch=leader_epoch if unclean else record.unclean_epoch,
        partition_epoch=record.partition_epoch + 1,
        recovering=unclean or (record.recovering and len(new_isr) <= 1),
    )
