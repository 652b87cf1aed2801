"""S6: every version of a partition record follows from the one before by one allowed step.

Written from KIP-966 and KIP-497 anew, slow and obvious: the core's own transitions are what is being checked.
"""

from __future__ import annotations

from ..core.records import PartitionRecord
from ..core.types import NO_LEADER
from .errors import require


def check_shape(record: PartitionRecord) -> None:
    """S9, as far as the record goes."""
    isr, elr, known = set(record.isr), set(record.elr), set(record.last_known_elr)
    require(record.leader in isr or record.leader == NO_LEADER, "S9", record)
    require(not isr & elr and not isr & known and not elr & known, "S9", record)
    require(isr | elr | known <= set(record.replicas), "S9", record)
    require(len(isr) < record.min_isr or not elr, "S9", record)


def check_step(before: PartitionRecord, record: PartitionRecord, writer: str) -> None:
    """S5, S6 and S21: epochs, who may write what, and who stays eligible."""
    moved = record.leader != before.leader
    require(record.partition_epoch == before.partition_epoch + 1, "S5", record)
    require(record.leader_epoch == before.leader_epoch + moved, "S5", record)
    require(record.replicas == before.replicas, "S6", record)
    kind, _, who = writer.partition(" ")
    gone, new = set(before.isr) - set(record.isr), set(record.isr) - set(before.isr)
    lost: set[int] = set()
    if kind == "leader":
        require(not moved and record.leader == int(who), "S6", f"{writer} wrote {record}")
        require(len(new) <= 1, "S6", f"{writer} added {new}")
    elif kind == "registration":
        require(gone <= {int(who)} and not new, "S6", f"{writer} wrote {record}")
        require(record.leader in (before.leader, NO_LEADER), "S6", f"{writer} wrote {record}")
        lost = (gone | (set(before.elr) - set(record.elr))) & {int(who)}
    elif moved and record.leader != NO_LEADER and record.leader not in before.isr:
        require(record.isr == (record.leader,), "S21", f"elected from outside the ISR: {record}")
    else:
        require(not new, "S6", f"{writer} added {new}")
    unclean = is_unclean(before, record)
    eligible = _eligible(before, record, lost) if not unclean else set()
    require(set(record.elr) == eligible, "S6", f"eligible should be {eligible}: {record}, after {before}")
    recovering = unclean or (before.recovering and len(record.isr) <= 1)
    require(record.recovering == recovering, "S21", f"{record}, after {before}")


def is_unclean(before: PartitionRecord, record: PartitionRecord) -> bool:
    """Whether this step elects a leader that need not have what was committed."""
    chosen = record.leader
    return chosen not in (before.leader, NO_LEADER, *before.isr, *before.elr)


def _eligible(before: PartitionRecord, record: PartitionRecord, lost: set[int]) -> set[int]:
    if len(record.isr) >= record.min_isr:
        return set()
    return (set(before.elr) | set(before.isr)) - set(record.isr) - lost
