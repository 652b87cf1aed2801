"""The replacement of a log that turns out to be damaged: another replica serves, and it is copied again from that.

Damage in a leader's log is found by a follower that is sent it. Until then the leader may be the only one that the
followers can copy from, so giving it up is right only if another replica has all that is committed.
"""

from __future__ import annotations

from collections.abc import Collection

from ..control.records import PartitionRecord
from ..types import NO_LEADER


def may_give_up(record: PartitionRecord, node_id: int, live: Collection[int]) -> bool:
    """Whether another living replica may be elected cleanly: it has a sound copy of all that is committed.

    Otherwise the damaged log serves on: what is sound in it can be read, and there is nothing better.
    """
    return any(each != node_id and each in live for each in (*record.isr, *record.elr))


def must_step_back(record: PartitionRecord, node_id: int, live: Collection[int]) -> bool:
    """Whether this node has to say that its copy counts for nothing, because nobody else can bring the ISR to its
    minimum: as an eligible leader (KIP-966) the copy cannot be deleted, and until then it cannot join.

    As long as a living replica may yet join, the damaged copy is kept: it is better than none.
    """
    others = [each for each in record.replicas if each != node_id and each in live]
    return (
        _is_led_elsewhere(record, node_id, live)
        and _counts(record, node_id)
        and all(each in record.isr for each in others)
    )


def may_copy_again(record: PartitionRecord, node_id: int, live: Collection[int]) -> bool:
    """Whether this node's copy may be deleted, to be made again: another one leads, and nobody counts on this one.

    While it is in the ISR or an eligible leader (KIP-966), an election might take it for complete, empty as it is.
    """
    return _is_led_elsewhere(record, node_id, live) and not _counts(record, node_id)


def _is_led_elsewhere(record: PartitionRecord, node_id: int, live: Collection[int]) -> bool:
    return record.leader not in (NO_LEADER, node_id) and record.leader in live


def _counts(record: PartitionRecord, node_id: int) -> bool:
    return node_id in (*record.isr, *record.elr, *record.last_known_elr)
