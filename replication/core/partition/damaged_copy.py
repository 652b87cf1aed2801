"""What becomes of a replica whose log turns out to be damaged: another serves, and it is copied again from that.

Damage in a leader's log is found by a follower that is sent it. Until then the leader may be the only one that the
followers can copy from, so giving it up is right only if another member of the ISR has all that is committed.
"""

from __future__ import annotations

from collections.abc import Collection

from ..control.records import PartitionRecord
from ..types import NO_LEADER


def may_give_up(record: PartitionRecord, node_id: int, live: Collection[int]) -> bool:
    """Whether a living member of the ISR other than this node may lead: a sound copy of all that is committed.

    Otherwise the damaged log serves on: what is sound in it can be read, and there is nothing better.
    """
    return any(each != node_id and each in live for each in record.isr)


def may_copy_again(record: PartitionRecord, node_id: int, live: Collection[int]) -> bool:
    """Whether this node's copy may be deleted, to be made again: another one leads, and nobody counts on this one.

    While it is in the ISR or an eligible leader (KIP-966), an election might take it for complete, empty as it is.
    """
    counts = node_id in (*record.isr, *record.elr, *record.last_known_elr)
    return record.leader not in (NO_LEADER, node_id) and record.leader in live and not counts
