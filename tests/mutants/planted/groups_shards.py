"""Planted errors of shards: loading, answering, proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from insync.replication.core.client.membership import Membership
from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.contact import Contact
from insync.replication.core.coordination.decisions import Proof
from insync.replication.core.coordination.shard import Shard
from insync.replication.core.coordination.shard_replies import Replies
from insync.replication.core.coordination.timers import Timers
from insync.replication.core.groups import records as r
from insync.replication.core.groups.classic_members import ClassicMembers
from insync.replication.core.groups.consumer_members import ConsumerMembers
from insync.replication.core.groups.shard import GroupCoordinator

from ..catalogue import Patch, mutant


@mutant("GZ1", "a request is answered when the log has accepted its records")
def _(patch: Patch) -> None:
    patch.setattr(Replies, "_due_offset", lambda self, reply: 0)


@mutant("GZ2", "a coordinator serves before the high watermark has reached the start of the epoch")
def _(patch: Patch) -> None:
    right = Shard._try_activate

    def try_activate(self: Shard, clock: Any) -> None:
        if self._role is not None:
            replies = self._replies
            known, replies.high_watermark = replies.high_watermark, 2**62
            right(self, clock)
            replies.high_watermark = known

    patch.setattr(Shard, "_try_activate", try_activate)


@mutant("GZ3", "a load ends with its first range")
def _(patch: Patch) -> None:
    right = Shard._read

    def read(self: Shard, event: ev.LogRead, clock: Any) -> None:
        if self._role is not None and event.leader_epoch == self._role.leader_epoch:
            event = structs.replace(event, next_offset=max(event.next_offset, self._role.epoch_start))
        right(self, event, clock)

    patch.setattr(Shard, "_read", read)


@mutant("GZ4", "a range without remaining records is read again and again")
def _(patch: Patch) -> None:
    right = Shard._read

    def read(self: Shard, event: ev.LogRead, clock: Any) -> None:
        if not event.entries and self._role is not None:
            if event.leader_epoch == self._role.leader_epoch and not self.active:
                self._read_on()
        else:
            right(self, event, clock)

    patch.setattr(Shard, "_read", read)


def _strict_load(patch: Patch, wrong: Callable[[GroupCoordinator, ev.Entry], bool]) -> None:
    """A load that meets what it takes to be impossible fails."""
    right = Shard._read

    def read(self: Shard, event: ev.LogRead, clock: Any) -> None:
        machine = self.machine
        if isinstance(machine, GroupCoordinator) and not self.active:
            for entry in event.entries:
                if isinstance(entry, ev.Entry) and entry.key is not None and wrong(machine, entry):
                    self._read_failed(ev.LogReadFailed(leader_epoch=event.leader_epoch))
                    return
        right(self, event, clock)

    patch.setattr(Shard, "_read", read)


@mutant("GZ7", "a tombstone of an unknown key is treated as impossible")
def _(patch: Patch) -> None:
    _strict_load(patch, lambda machine, entry: entry.value is None and entry.key.group not in machine.groups)


@mutant("GZ8", "a load asserts that a partition has one owner")
def _(patch: Patch) -> None:
    def wrong(machine: GroupCoordinator, entry: ev.Entry) -> bool:
        state = machine.groups.get(getattr(entry.key, "group", ""))
        if not isinstance(entry.key, r.CurrentKey) or entry.value is None or state is None:
            return False
        mine = r.as_set(entry.value.assigned)
        return any(
            mine & r.as_set(current.assigned)
            for other, current in state.currents.items()
            if other != entry.key.member_id
        )

    _strict_load(patch, wrong)


@mutant("GZ9", "a load starts no timers")
def _(patch: Patch) -> None:
    patch.setattr(ConsumerMembers, "activate", lambda self, state, clock, session_ms, bonus_ms: None)


@mutant("GZ10", "a load grants members no extra time")
def _(patch: Patch) -> None:
    right = ConsumerMembers.activate

    def activate(self: ConsumerMembers, state: Any, clock: Any, session_ms: int, bonus_ms: int) -> None:
        right(self, state, clock, session_ms, 0)

    patch.setattr(ConsumerMembers, "activate", activate)
    classic = ClassicMembers.activate

    def without(self: ClassicMembers, state: Any, clock: Any) -> None:
        kept, self._settings = self._settings, structs.replace(self._settings, isolation_timeout_ms=0)
        classic(self, state, clock)
        self._settings = kept

    patch.setattr(ClassicMembers, "activate", without)


@mutant("GZ11", "a member is removed although its heartbeats could not arrive")
def _(patch: Patch) -> None:
    patch.setattr(Timers, "slip", lambda self, seconds: None)


@mutant("GZ12", "a coordinator without followers renews sessions")
def _(patch: Patch) -> None:
    right = Replies._is_proved

    def is_proved(self: Replies, held: Any, clock: Any) -> bool:
        return held.reply.proof is Proof.LEASE or right(self, held, clock)

    patch.setattr(Replies, "_is_proved", is_proved)


@mutant("GZ12b", "a read needs no proof")
def _(patch: Patch) -> None:
    right = Replies._is_proved

    def is_proved(self: Replies, held: Any, clock: Any) -> bool:
        return held.reply.proof is Proof.READ or right(self, held, clock)

    patch.setattr(Replies, "_is_proved", is_proved)


@mutant("GZ13", "contact with one follower is enough")
def _(patch: Patch) -> None:
    def since(self: Contact, leader: int, isr: Any, now: float) -> float:
        times = [self._asked_after.get(node, float("-inf")) for node in isr if node != leader]
        return max(times, default=now)

    patch.setattr(Contact, "since", since)


@mutant("GZ14", "a member's session counts from the answer")
def _(patch: Patch) -> None:
    right = Membership._take

    def take(self: Membership, reply: Any, now: float) -> None:
        self._beat_sent = now
        right(self, reply, now)

    patch.setattr(Membership, "_take", take)


@mutant("GZ14b", "a member that does not release in time loses all its partitions at once")
def _(patch: Patch) -> None:
    right = ConsumerMembers.fire

    def fire(self: ConsumerMembers, kind: str, state: Any, member_id: str, context: Any) -> Any:
        return right(self, "session" if kind == "revocation" else kind, state, member_id, context)

    patch.setattr(ConsumerMembers, "fire", fire)


@mutant("GZ54", "a refused batch fails only the first of its decisions")
def _(patch: Patch) -> None:
    right = Shard._refused

    def refused(self: Shard, event: ev.Refused, clock: Any) -> None:
        first, *others = self._writing
        self._writing = (first,)
        right(self, event, clock)
        for each in others:
            self._settle(each, clock)

    patch.setattr(Shard, "_refused", refused)
