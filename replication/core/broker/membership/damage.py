"""Logs that are damaged in the middle: checked where a follower or a client doubts them, given up, copied again.

The driver reads logs and looks at their checksums; this part decides what to read, and what its finding means. A
log that is given up is closed, and its partition is offline on this node until it is copied again.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...control import transitions
from ...control.records import PartitionRecord, partition_key
from ...partition.damaged_copy import may_copy_again, may_give_up, must_step_back
from ...partition.replica import Replica
from ...store_transaction import Put, SameValue, Seen, Transaction
from ...types import NO_LEADER, PartitionId
from ..context import Context
from ..effects import CheckLog, LogDamaged, StepBack
from ..events import LogChecked, LogFound
from ..timers import Timer
from .assignments import Assignments

AGAIN = 1.0
"""Seconds after which a copy that still counts is given back again: the write may have failed."""


CLIENTS_AGAIN = 1.0
"""Seconds in which one client is heard that doubts the log of a partition."""


@attrs.define(eq=False, slots=True)
class _Doubted:
    """A check under way: of this replica's log, and of none that is opened in its place meanwhile."""

    replica: Replica
    number: int


class DamagedLogs:
    """See the module's text."""

    def __init__(self, context: Context, assignments: Assignments) -> None:
        self._context = context
        self._assignments = assignments
        self._checks = 0
        self._doubted: dict[PartitionId, _Doubted] = {}
        self._given_up: dict[PartitionId, Replica] = {}
        """Partitions to copy again when no election depends on the copy here."""
        self._timer: Timer | None = None
        self._heard: dict[PartitionId, float] = {}
        """Until when no client is heard that doubts a partition's log."""

    # Checks

    def doubted(self, partition: PartitionId, offset: int, max_bytes: int, of_client: bool = False) -> None:
        """A follower or a client finds damage in what it is sent from `offset` on. It asks again and again: one
        check at a time, and only of a log that is led from here, which nobody else could name.

        Of clients, which may say so of anything, only one doubt in a while is looked into.
        """
        replica = self._context.replicas.get(partition)
        if replica is None or replica.leader is None:
            return
        now = self._context.now
        if of_client:
            if now < self._heard.get(partition, now):
                return
            self._heard[partition] = now + CLIENTS_AGAIN
        under_way = self._doubted.get(partition)
        if under_way is None or under_way.replica is not replica:
            self._checks += 1
            self._doubted[partition] = _Doubted(replica, self._checks)
            self._context.emit(CheckLog(self._checks, partition, offset, max_bytes))

    def checked(self, event: LogChecked) -> None:
        """A check has ended. Damage that was made on the way is none of the log's."""
        doubted = self._doubted.get(event.partition)
        if doubted is None or doubted.number != event.check:
            return
        del self._doubted[event.partition]
        context = self._context
        if event.damage is None or context.replicas.get(event.partition) is not doubted.replica:
            return
        versioned = context.view.partitions.get(event.partition)
        live = context.view.live_for(event.partition)
        gives_up = (
            versioned is not None
            and self._is_of(event.partition, versioned.record)
            and may_give_up(versioned.record, context.node_id, live)
        )
        if gives_up:
            self._given_up[event.partition] = doubted.replica
        context.emit(LogDamaged(event.partition, event.damage, gives_up))

    def found(self, event: LogFound) -> None:
        """A log was found at the start: a damaged one is of no use, and others may have all of it."""
        if event.is_damaged:
            self._given_up[event.partition] = self._context.replicas[event.partition]

    # Copies

    def look(self) -> None:
        """After a reading or a pause: copy again the logs that others lead by now and no election depends on."""
        context, waits = self._context, False
        if self._heard:
            self._heard = {each: until for each, until in self._heard.items() if until > context.now}
        for partition, replica in list(self._given_up.items()):
            versioned = context.view.partitions.get(partition)
            if versioned is None or context.replicas.get(partition) is not replica:
                del self._given_up[partition]
                continue
            if replica.role != "closed" or not self._is_of(partition, versioned.record):
                continue  # the driver is about to close it, or it goes with its topic
            record, live = versioned.record, context.view.live_for(partition)
            if may_copy_again(record, context.node_id, live):
                del self._given_up[partition]
                self._assignments.copy_again(partition)
            elif must_step_back(record, context.node_id, live):
                context.emit(StepBack(partition))
                waits = True
        if waits and self._timer is None:
            self._timer = context.timers.call_at(context.now + AGAIN, self._look_later)

    def _is_of(self, partition: PartitionId, record: PartitionRecord) -> bool:
        """Whether a record is that of this log's topic: a topic made again has another one under the same name."""
        return record.topic_id == self._context.topic_ids[partition]

    def _look_later(self) -> None:
        self._timer = None
        self.look()


def step_back(seen: Mapping[str, Seen], node_id: int, partition: PartitionId) -> Transaction | None:
    """Take a node's copy of a partition out of all that an election counts on; None if there is nothing to write.

    From a fresh reading of the record, which is compared by value: versions begin at 1 when a topic is made again.
    """
    each = seen.get(partition_key(partition))
    if each is None or not isinstance(each.record, PartitionRecord):
        return None
    if each.record.leader in (NO_LEADER, node_id):
        return None
    changed = transitions.forget(each.record, node_id, has_nothing=True)
    if changed is None:
        return None
    return Transaction(compares=(SameValue(each.key, each.value),), puts=(Put(each.key, changed),))
