"""S6: every version of a partition record follows from the one before by one allowed step.

Written from KIP-966, KIP-497 and KIP-455 anew, slow and obvious: the core's own transitions are being checked.
"""

from __future__ import annotations

from ...core.control.records import PartitionRecord
from ...core.types import NO_LEADER
from ..errors import require


def check_shape(record: PartitionRecord) -> None:
    """S9, as far as the record goes."""
    isr, elr, known = set(record.isr), set(record.elr), set(record.last_known_elr)
    require(record.leader in isr or record.leader == NO_LEADER, "S9", record)
    require(not isr & elr and not isr & known and not elr & known, "S9", record)
    require(isr | elr | known <= set(record.replicas), "S9", record)
    require(len(isr) < minimum(record) or not elr, "S9", record)
    require(len(set(record.replicas)) == len(record.replicas) > 0, "S9", record)
    require({*record.adding, *record.removing} <= set(record.replicas), "S9", record)
    require(set(record.replicas) > set(record.removing), "S9", record)


def minimum(record: PartitionRecord) -> int:
    """The minimum ISR: no more than there are replicas before and after a reassignment."""
    before, after = set(record.replicas) - set(record.adding), set(record.replicas) - set(record.removing)
    return min(record.min_insync_replicas, len(before), len(after))


def check_step(before: PartitionRecord, record: PartitionRecord, writer: str) -> None:
    """S5, S6 and S21: epochs, who may write what, and who stays eligible."""
    moved = record.leader != before.leader
    left = bool(set(before.replicas) - set(record.replicas))
    require(record.partition_epoch == before.partition_epoch + 1, "S5", record)
    kind, _, who = writer.partition(" ")
    least = before.leader_epoch + (moved or left)
    # By how far these two skip epochs that logs have, the oracle sees: it knows the logs.
    skips = kind == "registration" or is_unclean(before, record)
    require(record.leader_epoch >= least if skips else record.leader_epoch == least, "S5", record)
    require(record.topic_id == before.topic_id, "S6", "{} wrote {} over {}", writer, record, before)
    set_anew = record.min_insync_replicas != before.min_insync_replicas
    require(kind == "controller" or not set_anew, "S6", "{} sets {}, after {}", writer, record, before)
    where = before.replicas, before.adding, before.removing
    if (record.replicas, record.adding, record.removing) != where:
        require(kind == "controller", "S6", "{} moves {}, after {}", writer, record, before)
        _check_move(before, record)
    gone, new = set(before.isr) - set(record.isr), set(record.isr) - set(before.isr)
    lost: set[int] = set()
    if kind == "leader":
        require(not moved and record.leader == int(who), "S6", "{} wrote {}", writer, record)
        require(len(new) <= 1, "S6", "{} added {}", writer, new)
    elif kind == "registration":
        require(gone <= {int(who)} and not new, "S6", "{} wrote {}", writer, record)
        require(record.leader in (before.leader, NO_LEADER), "S6", "{} wrote {}", writer, record)
        lost = (gone | (set(before.elr) - set(record.elr))) & {int(who)}
    elif moved and record.leader != NO_LEADER and record.leader not in before.isr:
        require(record.isr == (record.leader,), "S21", "elected from outside the ISR: {}", record)
    else:
        require(not new, "S6", "{} added {}", writer, new)
        if kind == "controller":
            _check_own_leader(before, record)
    unclean = is_unclean(before, record)
    eligible = _eligible(before, record, lost) if not unclean else set()
    require(
        set(record.elr) == eligible, "S6", "eligible should be {}: {}, after {}", eligible, record, before
    )
    recovering = unclean or (before.recovering and len(record.isr) <= 1)
    require(record.recovering == recovering, "S21", "{}, after {}", record, before)


def _check_move(before: PartitionRecord, record: PartitionRecord) -> None:
    """S17: replicas come by catching up and go when the others are all there; a step does one of the two."""
    target = [node for node in before.replicas if node not in before.removing]
    left = set(before.replicas) - set(record.replicas)
    if record.adding or record.removing:
        origin = set(before.replicas) - set(before.adding)
        require(not left, "S17", "{} are left at the start of a move: {}, after {}", left, record, before)
        same = (set(record.isr), record.leader) == (set(before.isr), before.leader)
        require(same, "S17", "a move changes who is in sync: {}, after {}", record, before)
        require(set(record.replicas) - set(record.adding) == origin, "S17", "{}, after {}", record, before)
        return
    if not before.adding and not left:
        # Another order of preference, which may also keep those that were to go.
        require(set(record.replicas) == set(before.replicas), "S17", "{}, after {}", record, before)
        require(set(record.isr) == set(before.isr), "S17", "{}, after {}", record, before)
        return
    require(
        list(record.replicas) == target, "S17", "moved elsewhere than asked: {}, after {}", record, before
    )
    stay = set(before.isr) & set(target)
    require(
        set(record.isr) == stay, "S17", "a move costs more than who is removed: {}, after {}", record, before
    )
    missing = set(target) - stay
    require(
        not missing & set(before.adding),
        "S17",
        "{} have not caught up: {}, after {}",
        missing,
        record,
        before,
    )
    enough = not missing or len(stay) >= min(record.min_insync_replicas, len(target))
    require(enough, "S17", "a move leaves too few in sync: {}, after {}", record, before)


def _check_own_leader(before: PartitionRecord, record: PartitionRecord) -> None:
    """Of those in sync somebody leads, unless it is told to stop; who leads and may go on does."""
    if record.leader != before.leader and before.leader in record.isr:
        preferred = record.leader == record.replicas[0]
        require(preferred, "S6", "leadership is taken away for no reason: {}, after {}", record, before)


def is_unclean(before: PartitionRecord, record: PartitionRecord) -> bool:
    """Whether this step elects a leader that need not have what was committed."""
    chosen = record.leader
    return chosen not in (before.leader, NO_LEADER, *before.isr, *before.elr)


def _eligible(before: PartitionRecord, record: PartitionRecord, lost: set[int]) -> set[int]:
    if len(record.isr) >= minimum(record):
        return set()
    held = (set(before.elr) | set(before.isr)) & set(record.replicas)
    return held - set(record.isr) - lost
