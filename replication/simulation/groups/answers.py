"""The answers to members: each against what is committed (G1, G2, G3, G8 to G10, GL4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.coordination.shard_events import Entry
from ...core.errors import ErrorCode
from ...core.groups import records as r
from ...core.groups.consumer_members import LATE
from ...core.messages import groups as gm
from ..errors import require
from .facts import MAX_POLL, Facts

if TYPE_CHECKING:
    from .brokers import Broker


class Answers(Facts):
    """Judges what coordinators answer."""

    # Answers

    def answered(self, broker: Broker, request: Any, reply: Any) -> None:
        if getattr(reply, "error", 0) == 0 and request.write is not None:
            base, entries = request.write
            for at, (key, value) in enumerate(entries):
                item = self.log[base + at] if base + at < len(self.log) else None
                there = isinstance(item, Entry) and item.key == key and item.value == value
                require(there, "G1", f"{request.message} was told and is not committed")
        message = request.message
        name = getattr(reply, "member_id", "") or getattr(message, "member_id", "")
        self._told[getattr(message, "group", ""), name] = self.world.now
        if reply.error != 0:
            self._check_fence(broker, message, reply)
            self._check_refused(request, reply)
            return
        if isinstance(message, gm.CommitGroupOffsetsRequest) and request.write is None:
            stored = [each for each in reply.partitions if not each.error]
            require(not stored, "G1", f"{message} was told and never written")
        if isinstance(message, gm.CommitGroupOffsetsRequest):
            self._check_stale(request, reply)
        if request.keeps_alive:
            place = message.group, getattr(reply, "member_id", "") or message.member_id
            self._heard[place] = max(request.arrived, self._heard.get(place, 0.0))
        self._check_classic(message, reply)
        if isinstance(message, gm.GroupOffsetsRequest):
            for told in reply.offsets:
                if not told.error:
                    key = r.OffsetKey(message.group, told.topic, told.partition)
                    self._check_read(key, told.offset, request.committed)
                    if message.require_stable:
                        self._check_stable(key, request.committed)

    def _check_fence(self, broker: Broker, message: Any, reply: Any) -> None:
        """G8: who is put out for what it did not let go has had its time for that."""
        if not isinstance(message, gm.ConsumerGroupHeartbeatRequest) or reply.message != LATE:
            return
        place = message.group, message.member_id
        pending, since = self._pending_since.get(place, ((), self.world.now))
        late = sum(seconds for at, seconds in broker.lateness if at >= since)
        took = self.world.now - since - late
        # Its clock and the true one are one; a new coordinator begins that time again.
        require(
            bool(pending) and took > MAX_POLL - 0.01, "G8", f"{place} had {took:.2f} s to let {pending} go"
        )

    def _check_refused(self, request: Any, reply: Any) -> None:
        """GL4: a member whose answer was lost goes on from where it is; it loses nothing for that."""
        message = request.message
        heartbeat = isinstance(message, gm.ConsumerGroupHeartbeatRequest)
        if not heartbeat or not reply.message.startswith("member epoch") or message.owned is None:
            return
        owned = {
            r.TopicPartition(each.topic_id, number) for each in message.owned for number in each.partitions
        }
        may = [
            message.member_epoch in (each.epoch, each.previous_epoch) and owned <= r.as_set(each.assigned)
            for each in self._known_of(request)
        ]
        require(not may or not all(may), "GL4", f"{message} was fenced, and holds what it was given")

    def _check_stale(self, request: Any, reply: gm.CommitGroupOffsetsResponse) -> None:
        """G3: what was given at an epoch may be committed from that epoch on (KAFKA-19779)."""
        message, known = request.message, self._known_of(request)
        for told in reply.partitions:
            if told.error != ErrorCode.STALE_MEMBER_EPOCH or not known:
                continue
            ids = {view.topics[told.topic].topic_id for view in self.views if told.topic in view.topics}
            may = [
                any(
                    each.topic_id in ids and each.partition == told.partition and given <= message.epoch
                    for each, given in r.as_owned((*state.pending, *state.assigned), state.epoch).items()
                )
                and message.epoch <= state.epoch
                for state in known
            ]
            require(not all(may), "G3", f"{message}: {told} was refused, by {known}")

    def _known_of(self, request: Any) -> list[r.CurrentValue]:
        """The sender's value when a request arrived, and the one committed by now; or nothing."""
        message, before = request.message, request.current
        now = self.naive.now.get(r.CurrentKey(message.group, message.member_id))
        return [] if now is None or before is None else [before, now[0]]

    def _check_classic(self, message: Any, reply: Any) -> None:
        """Of the classic protocol: what a member is told of its group is committed."""
        stored = self.naive.now.get(r.ClassicGroupKey(getattr(message, "group", "")))
        if stored is None:
            return
        members = {each.member_id: each for each in stored[0].members}
        match message:
            case gm.SyncGroupRequest() if reply.assignment and stored[0].generation == message.generation:
                mine = members.get(message.member_id)
                told = mine is not None and mine.assignment == reply.assignment
                require(told, "G1", f"{message.member_id} was told what is not committed")
            case gm.JoinGroupRequest(instance_id=str(instance)) if stored[0].generation == reply.generation:
                # It does not join again: what it has been told any later coordinator must know (KAFKA-10284).
                known = (message.group, reply.member_id) in self._stored
                require(known, "G9", f"{instance} is {reply.member_id} by now, and nobody has written that")

    def _check_stable(self, key: r.OffsetKey, since: int) -> None:
        """G10: what an undecided transaction is about to replace is not told as stable (KIP-447)."""
        undecided = [(each, self.naive.undecided[each][1]) for each in self.naive.undecided if each[1] == key]
        old = [each for each, offset in undecided if offset < since]
        require(not old, "G10", f"{key} was told as stable, {old} is pending")
