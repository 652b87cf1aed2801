"""A shard of groups whose every step the oracle sees: requests, decisions, answers, and the silence of members.

Times are those of the shard's own clock, and of its leadership: a later coordinator begins all sessions again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from ....core.broker.coordination.shards import ShardKind
from ....core.coordination import shard_effects as fx
from ....core.coordination import shard_events as ev
from ....core.coordination.shard import Shard
from ....core.errors import ErrorCode
from ....core.groups import records as r
from ....core.groups.classic_state import ClassicPhase
from ....core.groups.consumer_members import LATE
from ....core.messages import groups as gm
from ....core.types import PartitionId
from ...errors import require
from .facts import ISOLATION, MAX_POLL, MAX_SIZE, SESSION, Part, Place, Written
from .log import GroupLog
from .naive import Naive, flat

if TYPE_CHECKING:
    from ...driver.coordinators import Coordinators

LONGEST_ANSWER = 8.0
"""Seconds from a member's request to the answer: it is parked, and a write to its group must be committed."""
LONGEST_DELAY = 6.0
"""Seconds that a message may take that was sent before the calm."""
EARLY = 0.01


@attrs.define(eq=False)
class Request:
    """It waits for its answer. `current`: where its sender stood when it came. `write`: its first decision."""

    message: Any
    arrived: float
    current: r.CurrentValue | None
    commits_as_classic: bool
    """Whether a member of a classic group commits with it: that begins its session again too."""
    write: tuple[Written, int, int] | None = None
    """The batch, which of its records, and how many."""

    @property
    def keeps_alive(self) -> bool:
        """Whether its sender's session begins again with it."""
        if isinstance(self.message, gm.ConsumerGroupHeartbeatRequest):
            return self.message.member_epoch >= 0
        kinds = gm.JoinGroupRequest | gm.SyncGroupRequest | gm.HeartbeatRequest
        return self.commits_as_classic or isinstance(self.message, kinds)


class WatchedShard(Shard):
    """See the module's text."""

    def __init__(self, coordinators: Coordinators, partition: PartitionId, kind: ShardKind) -> None:
        super().__init__(kind.machine, kind.settings)
        self._coordinators = coordinators
        self._partition = partition
        self._clock = 0.0
        self._requests: dict[int, Request] = {}
        self._write_under_way: fx.Write
        """Its outcome is about to be told."""
        self._written: Written
        """The same for the oracle."""
        self._offered: dict[int, tuple[int, int]] = {}
        """The requests that it decides: which of its records, and how many."""
        self.active_since = 0.0
        """When it has begun to serve; all sessions began then."""
        self._lateness: list[tuple[float, float]] = []
        """When timers were looked at too late, and by how much: nobody could be heard, so nobody is blamed."""
        self._heard: dict[Place, float] = {}
        """When a request of a member arrived that keeps it alive and was answered well."""
        self._told: dict[Place, float] = {}
        """When a member was last answered anything; until then it may have waited for that."""
        self._waiting: dict[Place, tuple[float, int]] = {}
        """When a member's last request came that keeps it alive and was not answered at once, and its number."""
        self._markers: dict[int, int] = {}
        """The producer id of each marker that has come, by its offset."""
        self._pending: dict[Place, tuple[Any, float]] = {}
        """The partitions that a member is to let go, and since when."""

    @property
    def log(self) -> GroupLog | None:
        """The committed log; None where nothing is promised any more."""
        return self._coordinators.log_of(self._partition)

    def step(self, event: ev.Event, now: float, wall_ms: int) -> list[fx.Effect]:
        """See `Shard`."""
        self._clock = now
        self._coordinators.stepped()
        match event:
            case ev.Ask():
                self._ask_arrived(event)
            case ev.ShardLed():
                self._begin()
            case ev.ViewChanged(view=view):
                self._coordinators.topics.saw(view)
            case ev.MarkerWritten(marker=marker):
                self._markers[marker.offset] = marker.producer.producer_id
            case ev.Tick() if self.active and self.machine is not None:
                due = self.machine.deadline
                if due is not None and now > due + EARLY:
                    self._lateness.append((now, now - due))
            case ev.Accepted(base_offset=base):
                self._taken(base)
        served = self.active
        effects = super().step(event, now, wall_ms)
        if self.active and not served:
            self.active_since = now
        for effect in effects:
            match effect:
                case fx.Write():
                    self._write(effect, wall_ms)
                case fx.Answer(request_id=request_id, reply=reply):
                    self._answered(self._requests.pop(request_id), reply)
                case fx.MarkerApplied(offset=offset):
                    self._check_marker(offset)
        if isinstance(event, ev.Ask) and event.request_id in self._requests:
            self._ask_waits(self._requests[event.request_id])
        return effects

    def _begin(self) -> None:
        """Its timers begin now: for how long an earlier leadership stood still is nothing to them."""
        self._lateness = []
        for table in (self._heard, self._told, self._waiting, self._pending):
            table.clear()

    # Requests

    def _ask_arrived(self, event: ev.Ask) -> None:
        message: Any = event.message
        self._requests[event.request_id] = Request(
            message, self._clock, self._current(message), self._commits_as_classic(message)
        )

    def _ask_waits(self, request: Request) -> None:
        message = request.message
        if request.keeps_alive:
            number = getattr(message, "sequence", -1)
            for name in _names(message):
                # A late copy of an earlier one is refused.
                if number < 0 or number > self._waiting.get((message.group, name), (0.0, -1))[1]:
                    self._waiting[message.group, name] = self._clock, number

    def _current(self, message: Any) -> r.CurrentValue | None:
        machine: Any = self.machine
        state = machine.groups.get(getattr(message, "group", "")) if self.active else None
        return None if state is None else state.currents.get(getattr(message, "member_id", ""))

    def _commits_as_classic(self, message: Any) -> bool:
        machine: Any = self.machine
        if not self.active or not isinstance(message, gm.CommitGroupOffsetsRequest):
            return False
        classic = machine.classics.get(message.group)
        return classic is not None and message.member_id in classic.members

    # Writes

    def _write(self, write: fx.Write, wall_ms: int) -> None:
        """A batch is offered to the log."""
        at, parts = 0, []
        self._offered = {}
        for asked, count in write.parts:
            entries, message = write.entries[at : at + count], None
            request = self._requests.get(asked) if asked is not None else None
            # A consequence of a request by itself (an empty group's record, say) is no part of it.
            if (
                request is not None
                and asked is not None
                and request.write is None
                and asked not in self._offered
            ):
                self._offered[asked] = at, count
                message = request.message
            parts.append(Part(message, count, self._silence(entries)))
            at += count
        self._write_under_way = write
        self._written = self._coordinators.writing = Written(tuple(parts), self._coordinators.now, wall_ms)

    def _taken(self, base: int) -> None:
        """The log has taken the batch."""
        self._written.base = base
        for asked, (at, count) in self._offered.items():
            self._requests[asked].write = self._written, at, count
        for key, value in self._write_under_way.entries:
            if isinstance(key, r.CurrentKey) and value is not None:  # one that is gone may yet be told why
                self._note_pending((key.group, key.member_id), value.pending)
            elif isinstance(key, r.OffsetKey) and value is None:
                self._check_rebalancing(key)

    def _silence(self, entries: Any) -> dict[Place, tuple[float, float]]:
        """G8: for how long each member that is removed has been silent, and for how long it may be."""
        found: dict[Place, tuple[float, float]] = {}
        for key, value in entries:
            if isinstance(key, r.MemberKey) and value is None:
                place = key.group, key.member_id
                heard = self._heard.get(place, self.active_since)
                # A later heartbeat begins the session again though its answer never came: what its node had stood
                # still before lengthens it no more.
                later = max(heard, self._waiting.get(place, (heard, -1))[0])
                silent = max(self._since(heard), self._since(later))
                is_new = place not in self._heard and place not in self._waiting
                found[place] = silent, SESSION + ISOLATION * is_new
        return found

    def _since(self, moment: float) -> float:
        """Seconds since then that can be held against a member: a late tick lengthens all sessions."""
        return self._clock - moment - sum(seconds for at, seconds in self._lateness if at >= moment)

    def _note_pending(self, place: Place, pending: Any) -> None:
        if pending != self._pending.get(place, ((), 0.0))[0]:
            self._pending[place] = pending, self._clock

    def _pending_since(self, place: Place, pending: Any) -> float:
        """Since when a member is to let something go; a new coordinator begins that time again."""
        known = self._pending.get(place)
        return known[1] if known is not None and known[0] == pending else self.active_since

    def _check_rebalancing(self, key: r.OffsetKey) -> None:
        """G11: nothing expires while nobody knows what the group will read (KAFKA-13636)."""
        machine: Any = self.machine
        classic = machine.classics.get(key.group)
        rests = classic is None or classic.phase in (ClassicPhase.EMPTY, ClassicPhase.STABLE)
        right = rests or self._coordinators.topics.was_remade(key.topic)
        require(right, "G11", f"{key} has expired in a rebalance")

    def _check_marker(self, offset: int) -> None:
        """G10: whose transaction is told to have ended here has nothing undecided here (KAFKA-17507)."""
        machine: Any = self.machine
        producer_id = self._markers.pop(offset)
        open_ = [each.group for each in machine.groups.values() if producer_id in each.pending]
        right = self.active and not open_
        require(right, "G10", f"the marker at {offset} of {producer_id} is applied, {open_} wait for it")

    # Answers

    def _answered(self, request: Request, reply: Any) -> None:
        message = request.message
        group = getattr(message, "group", "")
        for name in (*_names(message), *_names(reply)):
            self._told[group, name] = self._clock
        log = self.log
        if log is None or not group:
            return
        if reply.error != 0:
            self._check_fence(message, reply)
            self._check_refused(log, request, reply)
            return
        if request.write is not None:
            self._check_written(log, request)
        if isinstance(message, gm.CommitGroupOffsetsRequest):
            stored = [each for each in reply.partitions if not each.error]
            require(not stored or request.write is not None, "G1", f"{message} was told and never written")
            self._check_stale(log, request, reply)
        if request.keeps_alive:
            place = group, getattr(reply, "member_id", "") or message.member_id
            self._heard[place] = max(request.arrived, self._heard.get(place, 0.0))
        self._check_classic(log, message, reply)

    def _check_written(self, log: GroupLog, request: Request) -> None:
        """G1: a request that is told to have succeeded is committed, with all of its records."""
        assert request.write is not None
        written, at, count = request.write
        base = written.base + at
        there = log.facts.committed[base : base + count]
        right = len(there) == count and all(payload == written.payload for _, payload in there)
        require(right, "G1", f"{request.message} was told and is not committed")

    def _check_fence(self, message: Any, reply: Any) -> None:
        """G8: who is put out for what it did not let go has had its time for that."""
        if not isinstance(message, gm.ConsumerGroupHeartbeatRequest) or reply.message != LATE:
            return
        place = message.group, message.member_id
        pending, since = self._pending.get(place, (None, self.active_since))
        took = self._since(since)
        right = pending != () and took > MAX_POLL - EARLY
        require(right, "G8", f"{place} had {took:.2f} s to let {pending} go")

    def _check_refused(self, log: GroupLog, request: Request, reply: Any) -> None:
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
            for each in self._known_of(log, request)
        ]
        require(not may or not all(may), "GL4", f"{message} was fenced, and holds what it was given")

    def _check_stale(self, log: GroupLog, request: Request, reply: gm.CommitGroupOffsetsResponse) -> None:
        """G3: what was given at an epoch may be committed from that epoch on (KAFKA-19779)."""
        message, known = request.message, self._known_of(log, request)
        for told in reply.partitions:
            if told.error != ErrorCode.STALE_MEMBER_EPOCH or not known:
                continue
            ids = self._coordinators.topics.ids(told.topic)
            may = [
                any(
                    each.topic_id in ids and each.partition == told.partition and given <= message.epoch
                    for each, given in r.as_owned((*state.pending, *state.assigned), state.epoch).items()
                )
                and message.epoch <= state.epoch
                for state in known
            ]
            require(not all(may), "G3", f"{message}: {told} was refused, by {known}")

    @staticmethod
    def _known_of(log: GroupLog, request: Request) -> list[r.CurrentValue]:
        """The sender's value when a request arrived, and the one committed by now; or nothing."""
        message, before = request.message, request.current
        now = log.naive.now.get(r.CurrentKey(message.group, message.member_id))
        return [] if now is None or before is None else [before, now[0]]

    @staticmethod
    def _check_classic(log: GroupLog, message: Any, reply: Any) -> None:
        """Of the classic protocol: what a member is told of its group is committed."""
        stored = log.naive.now.get(r.ClassicGroupKey(message.group))
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
                known = (message.group, reply.member_id) in log.stored
                require(known, "G9", f"{instance} is {reply.member_id} by now, and nobody has written that")

    # Once in a while

    def check_replay(self, entries: Callable[[], list[Any]]) -> None:
        """G7: the live state is what its log says, compacted or not. `entries`: all records of the replica."""
        machine: Any = self.machine
        if not self.active or machine is None:
            return
        naive = Naive().read(entries())
        now, undecided = flat(machine.groups.values())
        wanted = {key: value for key, (value, _) in naive.now.items()}
        different = [key for key in wanted.keys() | now.keys() if wanted.get(key) != now.get(key)]
        require(not different, "G7", [(key, wanted.get(key), now.get(key)) for key in different[:2]])
        wanted_pending = {key: value for key, (value, _) in naive.undecided.items()}
        require(undecided == wanted_pending, "G7", (undecided, wanted_pending))
        for classic in machine.classics.values():
            ids = len(classic.pending) + len(classic.members)
            require(ids <= MAX_SIZE, "GL3", f"{classic.group} has {ids} ids")

    def check_silent(self, now: float, calm_since: float) -> None:
        """GL1: who has been told nothing for longer than its session lasts, and waits for nothing, is no member.

        GL1: what a member is to let go is another's when its time for that and its session are over. `calm_since`:
        since when nothing is lost or sent late any more, by this clock.
        """
        if not self.active:
            return
        self._clock = now
        machine: Any = self.machine
        asking = self._asking()
        # A request from before the calm may yet arrive, and begins a session though its sender is gone.
        since = max(calm_since + LONGEST_DELAY, self.active_since)
        for group, member_id in _members(machine):
            place = group, member_id
            # A join counts as soon as it is written, and its sender is told when it is committed.
            silent = self._silent(max(self._told.get(place, 0.0), asking.get(place, 0.0), since))
            told = "{} of {} is a member after {:.2f} s of silence"
            require(silent < SESSION + ISOLATION + 0.5, "GL1", told, member_id, group, silent)
        for state in machine.groups.values():
            for member_id, current in state.currents.items():
                place = state.group, member_id
                took = self._silent(max(self._pending_since(place, current.pending), since))
                right = not current.pending or took < MAX_POLL + SESSION + ISOLATION + 0.5
                told = "{} of {} was to let {} go {:.2f} s ago"
                require(right, "GL1", told, member_id, state.group, current.pending, took)

    def _silent(self, moment: float) -> float:
        """As `_since`; a tick that began before `moment` may have been reported after it."""
        return self._clock - moment - sum(late for at, late in self._lateness if at > moment - LONGEST_ANSWER)

    def _asking(self) -> dict[Place, float]:
        """Members, and those who are to be members, whose requests wait for their answers, and since when."""
        found: dict[Place, float] = {}
        for each in self._requests.values():
            if each.keeps_alive:
                for name in _names(each.message):
                    place = each.message.group, name
                    found[place] = max(each.arrived, found.get(place, 0.0))
        return found


def _names(message: Any) -> tuple[str, ...]:
    """The member that a request is of, or an answer to; of a join also the id that it would be given."""
    return getattr(message, "member_id", ""), getattr(message, "fresh_id", "")


def _members(machine: Any) -> list[Place]:
    """All members that do not wait for others."""
    found = [(state.group, each) for state in machine.groups.values() for each in state.members]
    for classic in machine.classics.values():
        for each in classic.members.values():
            if each.joining is None and each.syncing is None:
                found.append((classic.group, each.member_id))
    return found
