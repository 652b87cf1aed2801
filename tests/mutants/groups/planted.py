"""The planted errors, by the names of docs/groups.md. None touches the simulator: what it models is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from insync.replication.core.coordination import (
    assign_uniform,
    classic_members,
    consumer_group,
    consumer_members,
    group_expiry,
    group_shard,
    offset_commits,
)
from insync.replication.core.coordination import group_messages as gm
from insync.replication.core.coordination import records as r
from insync.replication.core.coordination import shard_effects as fx
from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.assign_sticky import CooperativeStickyAssignor, StickyAssignor
from insync.replication.core.coordination.assignment import Partition, subscribers
from insync.replication.core.coordination.balancing import is_uniform
from insync.replication.core.coordination.classic_members import ClassicMembers
from insync.replication.core.coordination.classic_membership import ClassicMembership
from insync.replication.core.coordination.classic_state import ClassicPhase
from insync.replication.core.coordination.consumer_members import ConsumerMembers
from insync.replication.core.coordination.contact import Contact
from insync.replication.core.coordination.decisions import Proof
from insync.replication.core.coordination.group_shard import GroupCoordinator
from insync.replication.core.coordination.held_partitions import HeldPartitions
from insync.replication.core.coordination.membership import Membership
from insync.replication.core.coordination.mixed_members import MixedMembers
from insync.replication.core.coordination.shard import Shard
from insync.replication.core.coordination.shard_replies import Replies
from insync.replication.core.coordination.timers import Timers
from insync.replication.core.errors import ErrorCode

from ..registry import Patch, Registry

SEEDS = 400
REGISTRY = Registry()
mutant = REGISTRY.mutant
ELSEWHERE = {
    "GZ15": "the hash of a group's name: test_routing.py has the vectors",
    "GZ18b": "the number of a heartbeat refuses the late copy first (decision 46); test_consumer_group.py",
    "GZ37": "who claims what others were given since is given nothing by it alone; test_assignors.py",
    "GZ45": "fetching is no part of this machine: a consumer fetches beside it",
}
"""What this simulator cannot show, and what does."""


# The shard


@mutant("GZ1", "answer when the log has accepted it", "G1")
def _(patch: Patch) -> None:
    patch.setattr(Replies, "_due_offset", lambda self, reply: 0)


@mutant("GZ2", "serve before the high watermark has reached the start of the epoch", "G2")
def _(patch: Patch) -> None:
    right = Shard._try_activate

    def try_activate(self: Shard, clock: Any) -> None:
        if self._role is not None:
            replies = self._replies
            known, replies.high_watermark = replies.high_watermark, 2**62
            right(self, clock)
            replies.high_watermark = known

    patch.setattr(Shard, "_try_activate", try_activate)


@mutant("GZ3", "a load ends with its first range", "G7")
def _(patch: Patch) -> None:
    right = Shard._read

    def read(self: Shard, event: ev.LogRead, clock: Any) -> None:
        if self._role is not None and event.leader_epoch == self._role.leader_epoch:
            event = attrs.evolve(event, next_offset=max(event.next_offset, self._role.epoch_start))
        right(self, event, clock)

    patch.setattr(Shard, "_read", read)


@mutant("GZ4", "a range in which nothing is left is read again and again", "GL2")
def _(patch: Patch) -> None:
    right = Shard._read

    def read(self: Shard, event: ev.LogRead, clock: Any) -> None:
        if not event.entries and self._role is not None:
            if event.leader_epoch == self._role.leader_epoch and not self.active:
                self._read_on()
        else:
            right(self, event, clock)

    patch.setattr(Shard, "_read", read)


@mutant("GZ5", "the state outlives the role", "G2", "G7", "G9")
def _(patch: Patch) -> None:
    right = Shard._led

    def led(self: Shard, event: ev.ShardLed, clock: Any) -> None:
        make, kept = self._make, self.__dict__.get("kept")
        if kept is not None:
            self._make = lambda: kept
        right(self, event, clock)
        self._make = make
        self.__dict__["kept"] = self.machine

    patch.setattr(Shard, "_led", led)


@mutant("GZ6", "what an earlier leadership has asked for is loaded too", "G7", "GL4")
def _(patch: Patch) -> None:
    right = Shard._read

    def read(self: Shard, event: ev.LogRead, clock: Any) -> None:
        if self._role is not None:
            event = attrs.evolve(event, leader_epoch=self._role.leader_epoch)
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


@mutant("GZ7", "a tombstone of what is not known is impossible", "GL2")
def _(patch: Patch) -> None:
    _strict_load(patch, lambda machine, entry: entry.value is None and entry.key.group not in machine.groups)


@mutant("GZ8", "that a partition has one owner is asserted in a load", "GL2")
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


@mutant("GZ9", "no timers after a load", "GL1")
def _(patch: Patch) -> None:
    patch.setattr(ConsumerMembers, "activate", lambda self, state, clock, session_ms, bonus_ms: None)


@mutant("GZ10", "no time to spare after a load", "G8", "G4")
def _(patch: Patch) -> None:
    right = ConsumerMembers.activate

    def activate(self: ConsumerMembers, state: Any, clock: Any, session_ms: int, bonus_ms: int) -> None:
        right(self, state, clock, session_ms, 0)

    patch.setattr(ConsumerMembers, "activate", activate)
    classic = ClassicMembers.activate

    def without(self: ClassicMembers, state: Any, clock: Any) -> None:
        kept, self._settings = self._settings, attrs.evolve(self._settings, isolation_timeout_ms=0)
        classic(self, state, clock)
        self._settings = kept

    patch.setattr(ClassicMembers, "activate", without)


@mutant("GZ11", "whoever could not be heard is out", "G8")
def _(patch: Patch) -> None:
    patch.setattr(Timers, "slip", lambda self, seconds: None)


@mutant("GZ12", "a coordinator without followers renews sessions", "G4", "G8")
def _(patch: Patch) -> None:
    right = Replies._is_proved

    def is_proved(self: Replies, held: Any, clock: Any) -> bool:
        return held.reply.proof is Proof.LEASE or right(self, held, clock)

    patch.setattr(Replies, "_is_proved", is_proved)


@mutant("GZ12b", "a read needs no proof", "G2")
def _(patch: Patch) -> None:
    right = Replies._is_proved

    def is_proved(self: Replies, held: Any, clock: Any) -> bool:
        return held.reply.proof is Proof.READ or right(self, held, clock)

    patch.setattr(Replies, "_is_proved", is_proved)


@mutant("GZ13", "one follower is contact enough", "G4", "G2")
def _(patch: Patch) -> None:
    def since(self: Contact, leader: int, isr: Any, now: float) -> float:
        times = [self._asked_after.get(node, float("-inf")) for node in isr if node != leader]
        return max(times, default=now)

    patch.setattr(Contact, "since", since)


@mutant("GZ14", "a member's session counts from the answer", "G4")
def _(patch: Patch) -> None:
    right = Membership._take

    def take(self: Membership, reply: Any, now: float) -> None:
        self._beat_sent = now
        right(self, reply, now)

    patch.setattr(Membership, "_take", take)


@mutant("GZ14b", "whoever does not let go in time loses everything at once")
def _(patch: Patch) -> None:
    right = ConsumerMembers.fire

    def fire(self: ConsumerMembers, kind: str, state: Any, member_id: str, context: Any) -> Any:
        return right(self, "session" if kind == "revocation" else kind, state, member_id, context)

    patch.setattr(ConsumerMembers, "fire", fire)


@mutant("GZ54", "a refused batch fails the first of its decisions alone", "G1")
def _(patch: Patch) -> None:
    right = Shard._refused

    def refused(self: Shard, event: ev.Refused, clock: Any) -> None:
        first, *others = self._writing
        self._writing = (first,)
        right(self, event, clock)
        for each in others:
            self._settle(each, clock)

    patch.setattr(Shard, "_refused", refused)


# The group


def _commit_rule(patch: Patch, rule: Callable[[int, int, int | None], bool]) -> None:
    right = offset_commits._check_partition

    def check(offset: Any, owned: Any, epoch: int, state: Any, member_id: str, context: Any) -> ErrorCode:
        error = right(offset, owned, epoch, state, member_id, context)
        if owned is None or error not in (ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH):
            return error
        info = context.view.topics[offset.topic]
        given = owned.get(r.TopicPartition(info.topic_id, offset.partition))
        held = rule(epoch, state.current(member_id).epoch, given)
        return ErrorCode.NONE if held else ErrorCode.STALE_MEMBER_EPOCH

    patch.setattr(offset_commits, "_check_partition", check)


@mutant("GZ17", "a commit must have the member's present epoch (KAFKA-19779)", "G3")
def _(patch: Patch) -> None:
    _commit_rule(patch, lambda epoch, current, given: epoch == current)


@mutant("GZ18", "a member whose answer was lost is fenced", "GL4")
def _(patch: Patch) -> None:
    right = consumer_group._check_epoch

    def check(current: Any, beat: Any) -> None:
        right(attrs.evolve(current, previous_epoch=-7), beat)

    patch.setattr(consumer_group, "_check_epoch", check)


@mutant("GZ17b", "any partition may be committed at any epoch so far", "G3")
def _(patch: Patch) -> None:
    _commit_rule(patch, lambda epoch, current, given: epoch <= current)


@mutant("GZ19", "a partition that somebody is to let go is free", "G4")
def _(patch: Patch) -> None:
    right = consumer_group.reconcile
    plain = consumer_group.advance

    def advance(draft: Any, member_id: str, owned: Any, context: Any) -> bool:
        taken: set[r.TopicPartition] = set()
        for other, value in draft.state.currents.items():
            if other != member_id:
                taken |= r.as_set(value.assigned)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                consumer_group,
                "reconcile",
                lambda current, seen: right(current, attrs.evolve(seen, taken=taken)),
            )
            return plain(draft, member_id, owned, context)

    patch.setattr(consumer_members, "advance", advance)


@mutant("GZ20", "what a member has let go itself is not released to it", "GL1")
def _(patch: Patch) -> None:
    right = consumer_group.reconcile

    def reconcile(current: Any, seen: Any) -> Any:
        return right(current, attrs.evolve(seen, taken=seen.taken | r.as_set(current.pending)))

    patch.setattr(consumer_group, "reconcile", reconcile)


@mutant("GZ21", "an empty group's target epoch is left behind", "G5")
def _(patch: Patch) -> None:
    right = consumer_group._retarget

    def retarget(draft: Any, context: Any) -> None:
        if draft.state.members:
            right(draft, context)

    patch.setattr(consumer_group, "_retarget", retarget)


@mutant("GZ22", "the time for an earlier revocation goes on", "G8")
def _(patch: Patch) -> None:
    right = ConsumerMembers.applied

    def applied(self: ConsumerMembers, *rest: Any) -> None:
        drop = self._drop

        def keep(kind: str, group: str, member_id: str) -> None:
            if kind != consumer_members.REVOCATION:
                drop(kind, group, member_id)

        self._drop = keep  # type: ignore[method-assign]
        right(self, *rest)
        del self._drop

    patch.setattr(ConsumerMembers, "applied", applied)


@mutant("GZ23", "a static member that steps out leaves", "GL4")
def _(patch: Patch) -> None:
    right = ConsumerMembers.beat

    def beat(self: ConsumerMembers, request_id: int, asked: Any, *rest: Any) -> Any:
        if asked.member_epoch == gm.LEAVE_STATIC:
            asked = attrs.evolve(asked, member_epoch=gm.LEAVE)
        return right(self, request_id, asked, *rest)

    patch.setattr(ConsumerMembers, "beat", beat)


@mutant("GZ39", "the members that have one partition more have fixed places", "GL4")
def _(patch: Patch) -> None:
    right = assign_uniform.keep_quotas

    def keep_quotas(counts: Any, members: Any, owners: Any) -> Any:
        sharing, quota, _ = right(counts, members, owners)
        topics = subscribers(counts, members)
        every = [Partition(topic, number) for topic in topics for number in range(counts[topic])]
        extras = len(every) % len(sharing.order)
        for place, member_id in enumerate(sharing.order):
            mine = sorted(each for each, owner in owners.items() if owner == member_id)
            sharing.held[member_id] = set(mine[: quota + (place < extras)])
        kept = set().union(*sharing.held.values())
        sharing.free = [each for each in every if each not in kept]
        return sharing, quota, extras - sum(len(each) > quota for each in sharing.held.values())

    patch.setattr(assign_uniform, "keep_quotas", keep_quotas)


@mutant("GZ48", "a late copy of an earlier heartbeat is believed", "G4")
def _(patch: Patch) -> None:
    right = ConsumerMembers.beat

    def beat(self: ConsumerMembers, request_id: int, asked: Any, state: Any, context: Any) -> Any:
        return right(self, request_id, attrs.evolve(asked, sequence=-1), state, context)

    patch.setattr(ConsumerMembers, "beat", beat)


@mutant("GZ49", "whoever must let go is asked once, and believed to have done so")
def _(patch: Patch) -> None:
    right = consumer_group.reconcile

    def reconcile(current: Any, seen: Any) -> Any:
        return right(current, attrs.evolve(seen, owned=frozenset()))

    patch.setattr(consumer_group, "reconcile", reconcile)


# Members of the classic protocol


@mutant("GZ16", "an old generation commits", "G3")
def _(patch: Patch) -> None:
    right = offset_commits._check_classic

    def check(classic: Any, request: Any) -> None:
        right(classic, attrs.evolve(request, epoch=classic.generation))

    patch.setattr(offset_commits, "_check_classic", check)


@mutant("GZ24", "what the leader of an earlier generation shares out is stored", "G5")
def _(patch: Patch) -> None:
    right = ClassicMembers._sync

    def sync(self: ClassicMembers, request_id: int, ask: Any, clock: Any) -> Any:
        state = self._groups.get(ask.group)
        if state is not None:
            ask = attrs.evolve(ask, generation=state.generation)
        return right(self, request_id, ask, clock)

    patch.setattr(ClassicMembers, "_sync", sync)


@mutant("GZ25", "an id that nobody came back with keeps the others from joining", "GL1")
def _(patch: Patch) -> None:
    right, complete = ClassicMembers._set, ClassicMembers.fire

    def set_timer(self: ClassicMembers, kind: str, *rest: Any) -> None:
        if kind != classic_members.PENDING:
            right(self, kind, *rest)

    def fire(self: ClassicMembers, kind: str, group: str, member_id: str, clock: Any, over: Any) -> Any:
        state = self._groups.get(group)
        if kind == classic_members.JOINS and state is not None and state.pending:
            over()
            self._set(kind, group, member_id, clock.now + 1.0)
            return None
        return complete(self, kind, group, member_id, clock, over)

    patch.setattr(ClassicMembers, "_set", set_timer)
    patch.setattr(ClassicMembers, "fire", fire)


@mutant("GZ26", "the new id of a static member is told and not written", "G9")
def _(patch: Patch) -> None:
    right = ClassicMembers._replace
    patch.setattr(
        ClassicMembers, "_replace", lambda self, *rest: attrs.evolve(right(self, *rest), entries=())
    )


@mutant("GZ27", "a static member that comes back while the others wait for their assignment is let in", "GL1")
def _(patch: Patch) -> None:
    right = ClassicMembers._replace

    def replace(self: ClassicMembers, request_id: int, ask: Any, state: Any, *rest: Any) -> Any:
        waits = state.phase is ClassicPhase.COMPLETING
        if waits:
            state.phase = ClassicPhase.STABLE
            state.members[state.holder_of(ask.instance_id)].protocols = classic_members._protocols(ask)
        decision = right(self, request_id, ask, state, *rest)
        if waits and state.phase is ClassicPhase.STABLE:
            state.phase = ClassicPhase.COMPLETING
        return decision

    patch.setattr(ClassicMembers, "_replace", replace)


@mutant("GZ28", "ids are given out without bound", "GL3")
def _(patch: Patch) -> None:
    right = ClassicMembers._join
    patch.setattr(classic_members, "MAX_PENDING", 1 << 30)

    def join(self: ClassicMembers, *rest: Any) -> Any:
        kept, self._settings = self._settings, attrs.evolve(self._settings, max_size=1 << 30)
        try:
            return right(self, *rest)
        finally:
            self._settings = kept

    patch.setattr(ClassicMembers, "_join", join)


@mutant("GZ29", "members are told their assignment before it is committed", "G1")
def _(patch: Patch) -> None:
    right = ClassicMembers._sync

    def sync(self: ClassicMembers, *rest: Any) -> Any:
        decision = right(self, *rest)
        told = tuple([attrs.evolve(each, groups=frozenset()) for each in decision.replies])
        return attrs.evolve(decision, replies=told)

    patch.setattr(ClassicMembers, "_sync", sync)


@mutant("GZ56", "a static member that is away counts as heard when the others have joined", "GL1")
def _(patch: Patch) -> None:
    right = ClassicMembers._complete

    def complete(self: ClassicMembers, state: Any, clock: Any) -> None:
        right(self, state, clock)
        for each in state.members.values():
            self._beat(state, each, clock)

    patch.setattr(ClassicMembers, "_complete", complete)


@mutant("GZ57", "a classic member takes over a topic that was made again, because it had its namesake", "G4")
def _(patch: Patch) -> None:
    right = ClassicMembership._hold

    def hold(self: ClassicMembership, now: float) -> None:
        self._meant = {}
        right(self, now)

    patch.setattr(ClassicMembership, "_hold", hold)


@mutant("GZ36", "a partition that moves is given at once", "G4")
def _(patch: Patch) -> None:
    patch.setattr(
        CooperativeStickyAssignor,
        "assign",
        lambda self, counts, members: self._sticky.assign(counts, members),
    )


@mutant("GZ38", "partitions are exchanged though that makes nothing more even", "GL5", "GL1")
def _(patch: Patch) -> None:
    right = StickyAssignor.assign

    def assign(self: StickyAssignor, counts: Any, members: Any) -> Any:
        given = right(self, counts, members)
        rich = [each for each in given if given[each]]
        if len(rich) > 1 and is_uniform(members):
            one, other = rich[0], rich[1]
            given[one][0], given[other][0] = given[other][0], given[one][0]
        return given

    patch.setattr(StickyAssignor, "assign", assign)


@mutant("GZ30", "a group moves up, and is still a classic one until its next batch", "G14")
def _(patch: Patch) -> None:
    right = consumer_members.move_up

    def move_up(draft: Any, classic: Any, context: Any) -> str:
        why = right(draft, classic, context)
        draft.entries = [
            (key, value) for key, value in draft.entries if not isinstance(key, r.ClassicGroupKey)
        ]
        return why

    patch.setattr(consumer_members, "move_up", move_up)


@mutant("GZ53", "a group that moves up keeps what a client had shared out")
def _(patch: Patch) -> None:
    right = consumer_members.move_up

    def move_up(draft: Any, classic: Any, context: Any) -> str:
        right(draft, classic, context)
        return ""

    patch.setattr(consumer_members, "move_up", move_up)


@mutant("GZ55", "who was put out of a mixed group joins it again with what it had", "G4")
def _(patch: Patch) -> None:
    right = MixedMembers._join

    def join(self: MixedMembers, request_id: int, ask: Any, state: Any, *rest: Any) -> Any:
        if ask.member_id and ask.member_id not in state.members and ask.instance_id is None:
            ask = attrs.evolve(ask, fresh_id=ask.member_id, member_id="", known_member_id=False)
        return right(self, request_id, ask, state, *rest)

    patch.setattr(MixedMembers, "_join", join)


# Offsets


@mutant("GZ31", "offsets expire while the group is shared out", "G11")
def _(patch: Patch) -> None:
    right = group_expiry._is_over

    def is_over(state: Any, classic: Any, *rest: Any) -> bool:
        if classic is not None and classic.members:
            classic = attrs.evolve(classic, phase=ClassicPhase.STABLE)
        return right(state, classic, *rest)

    patch.setattr(group_expiry, "_is_over", is_over)


@mutant("GZ34", "a marker is told as applied while the log is still being read", "G10")
def _(patch: Patch) -> None:
    right = Shard._mark

    def mark(self: Shard, marker: ev.Marker) -> None:
        if self._role is not None and not self.active:
            self._effects.append(fx.MarkerApplied(offset=marker.offset))
        right(self, marker)

    patch.setattr(Shard, "_mark", mark)


@mutant("GZ35", "what a transaction is about to replace is told as stable", "G10")
def _(patch: Patch) -> None:
    patch.setattr(offset_commits, "_undecided", lambda state: set())


@mutant("GZ32", "offsets expire that a transaction is about to replace", "G11", "GL6")
def _(patch: Patch) -> None:
    right = group_expiry.expire

    def expire(state: Any, classic: Any, context: Any) -> Any:
        return right(attrs.evolve(state, pending={}), classic, context)

    patch.setattr(group_shard, "expire", expire)


@mutant("GZ33", "a transaction's offsets count from its marker", "G7")
def _(patch: Patch) -> None:
    right = GroupCoordinator.mark

    def mark(self: GroupCoordinator, marker: Any) -> frozenset[str]:
        for state in self.groups.values():
            for place in state.pending.get(marker.producer.producer_id, {}):
                if marker.committed:
                    state.offsets.pop(place, None)
        return right(self, marker)

    patch.setattr(GroupCoordinator, "mark", mark)


@mutant("GZ46", "offsets expire that somebody reads", "G11")
def _(patch: Patch) -> None:
    right = group_expiry._is_over

    def is_over(state: Any, *rest: Any) -> bool:
        return right(attrs.evolve(state, members={}), *rest)

    patch.setattr(group_expiry, "_is_over", is_over)


@mutant("GZ47", "an aborted transaction's offsets count")
def _(patch: Patch) -> None:
    right = GroupCoordinator.mark
    patch.setattr(
        GroupCoordinator, "mark", lambda self, marker: right(self, attrs.evolve(marker, committed=True))
    )


# The member


@mutant("GZ40", "what the running poll returns is committed", "G12")
def _(patch: Patch) -> None:
    right = HeldPartitions.hand_out

    def hand_out(self: HeldPartitions, handed: Any) -> None:
        right(self, handed)
        self.consume()

    patch.setattr(HeldPartitions, "hand_out", hand_out)
    went_on = Membership._go_on

    def go_on(self: Membership, now: float) -> None:
        offsets = self.held.uncommitted()
        if self.settings.enable_auto_commit and self._joined and offsets and not self.commits.waiting:
            self._own_commit(offsets, now + 1)
        went_on(self, now)

    patch.setattr(Membership, "_go_on", go_on)


@mutant("GZ41", "a partition that is given again goes on where it was left", "G12")
def _(patch: Patch) -> None:
    left: dict[tuple[int, Any], int | None] = {}
    right, found = HeldPartitions.revoked, HeldPartitions.serve

    def revoked(self: HeldPartitions, partitions: Any) -> None:
        for each in partitions:
            if each in self._held:
                left[id(self), each] = self._held[each].handed
        right(self, partitions)

    def serve(self: HeldPartitions, partitions: Any) -> Any:
        return [(each, left.get((id(self), each)) or start) for each, start in found(self, partitions)]

    patch.setattr(HeldPartitions, "revoked", revoked)
    patch.setattr(HeldPartitions, "serve", serve)


@mutant("GZ42", "records are handed out while the revocation commits", "G13")
def _(patch: Patch) -> None:
    right = Membership._withhold

    def withhold(self: Membership, partitions: Any) -> None:
        if not self.held.revoking:
            right(self, partitions)

    patch.setattr(Membership, "_withhold", withhold)


@mutant("GZ43", "a fenced member goes on to send heartbeats", "G13")
def _(patch: Patch) -> None:
    right = Membership._send_beat

    def send_beat(self: Membership, now: float) -> None:
        lost, self.held.lost = self.held.lost, frozenset()
        right(self, now)
        self.held.lost = lost

    patch.setattr(Membership, "_send_beat", send_beat)


@mutant("GZ44", "a coordinator that does not answer is kept", "GL1")
def _(patch: Patch) -> None:
    right = Membership._forget_coordinator

    def forget(self: Membership, now: float) -> None:
        right(self, now)
        self._known = True
        self._beat_at = now + 0.1

    patch.setattr(Membership, "_forget_coordinator", forget)


@mutant("GZ50", "a member goes on after its session", "G4")
def _(patch: Patch) -> None:
    def check(self: Membership, now: float) -> None:
        if self._lease_end is not None and now >= self._lease_end:
            self._lease_end = None

    patch.setattr(Membership, "_check_lease", check)


@mutant("GZ51", "a member tells that it has let go before its caller has")
def _(patch: Patch) -> None:
    right = HeldPartitions.assign

    def assign(self: HeldPartitions, told: Any) -> Any:
        withheld, _ = right(self, told)
        for each in withheld:
            del self._held[each]
        return frozenset(), bool(withheld)

    patch.setattr(HeldPartitions, "assign", assign)


@mutant("GZ52", "a parked heartbeat of a static member that is away is looked at again", "G9")
def _(patch: Patch) -> None:
    right = ConsumerMembers._leave

    def leave(self: ConsumerMembers, request_id: int, beat: Any, *rest: Any) -> Any:
        parked = self._find(beat.group, beat.member_id)
        self._find = lambda *place: None  # type: ignore[method-assign]
        decision = right(self, request_id, beat, *rest)
        del self._find

        def then() -> None:
            decision.then()
            if parked is not None:
                self._dirty[beat.group] = None

        return attrs.evolve(decision, then=then)

    patch.setattr(ConsumerMembers, "_leave", leave)
