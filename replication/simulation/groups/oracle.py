"""What must hold of groups, whatever happens: G1 to G15, from what was committed, told and handed out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ...core.coordination import group_messages as gm
from ...core.coordination import records as r
from ...core.coordination import shard_effects as fx
from ...core.coordination.classic_state import ClassicPhase
from ...core.coordination.shard_events import Entry, Marker
from ...core.coordination.topics_view import TopicsView
from ...core.errors import ErrorCode
from ..errors import require
from .naive import Naive, flat
from .world import World

if TYPE_CHECKING:
    from .brokers import Broker
    from .clients import Client

MAX_SIZE = 30
"""Members and ids that a classic group may have."""
MAX_POLL = 8.0
"""Seconds: of every client; a member of the consumer protocol has as long to let partitions go."""
LONGEST_SESSION = 14.0
"""Seconds: of every member, with what a new coordinator adds to it, and the time until that has loaded."""
Place = tuple[str, str, int]
"""Group, topic id and partition."""


@attrs.frozen
class _Batch:
    """An accepted write, by leader epoch and base offset: the request that caused it, if any."""

    entries: tuple[tuple[Any, Any], ...]
    message: Any | None
    producer: Any | None
    at: float
    late: tuple[tuple[float, float], ...] = ()
    """How late its node has looked at its timers, and when."""
    waiting: Mapping[tuple[str, str], tuple[float, int]] = attrs.field(factory=dict)
    """As its node's."""

    def silence(self, since: float) -> float:
        """Seconds for which who was heard then has been silent, less those in which nobody could be heard."""
        return self.at - since - self.excused(since)

    def excused(self, since: float) -> float:
        """Seconds by which everybody's time has been lengthened since then."""
        return sum(seconds for at, seconds in self.late if at >= since)


class Oracle:
    """Knows every node, every client, and the committed log."""

    def __init__(self, world: World, view: TopicsView) -> None:
        self.world = world
        self.log: list[Entry | Marker] = []
        """What is committed, uncompacted."""
        self.views = [view]
        self.naive = Naive()
        self._written: dict[tuple[int, int], _Batch] = {}
        self._ends: dict[int, int] = {}
        self._offsets: dict[Any, list[tuple[int, int]]] = {}
        """By key: (length of the committed log, committed offset) at each change; -1 for none."""
        self.expired: set[r.OffsetKey] = set()
        """Offsets that were committed and then taken away."""
        self._epochs: dict[str, tuple[int, int]] = {}
        self._targets: dict[tuple[str, int], Any] = {}
        self._heard: dict[tuple[str, str], float] = {}
        """When a heartbeat of a member arrived that was answered well."""
        self._told: dict[tuple[str, str], float] = {}
        """When a member was last answered anything; until then it may have waited for that."""
        self._leaving: set[tuple[str, str]] = set()
        self._stored: set[tuple[str, str]] = set()
        """Members that were ever written of a classic group."""
        self._dealt: dict[str, dict[str, frozenset[r.TopicPartition]]] = {}
        """The target of each group, by member."""
        self._pending_since: dict[tuple[str, str], tuple[Any, float]] = {}
        """What a member is to let go, and since when."""
        self._gone: dict[tuple[str, str], float] = {}
        """When a member was put out, or left."""
        self._markers: dict[int, tuple[int, bool]] = {}
        self.clients: list[Client] = []
        self.processed: dict[Place, set[int]] = {}
        self.calm_since: float | None = None
        """When all faults have ended."""
        self.batches = self.handed = self.commits = self.rebalances = 0

    # The log

    def saw(self, view: TopicsView) -> None:
        self.views.append(view)

    def written(self, broker: Broker, base: int, write: fx.Write, message: Any | None) -> None:
        self._written[broker.epoch, base] = _Batch(
            write.entries,
            message,
            write.producer,
            self.world.now,
            tuple(broker.lateness),
            dict(broker.waiting),
        )
        self._check_rebalancing(broker, write)

    def _check_rebalancing(self, broker: Broker, write: fx.Write) -> None:
        """G11: nothing expires while nobody knows what the group will read (KAFKA-13636)."""
        machine: Any = broker.shard.machine
        for key, value in write.entries:
            if isinstance(key, r.OffsetKey) and value is None and not self._was_remade(key.topic):
                classic = machine.classics.get(key.group)
                rests = classic is None or classic.phase in (ClassicPhase.EMPTY, ClassicPhase.STABLE)
                require(rests, "G11", f"{key} has expired in a rebalance")

    def marker_applied(self, broker: Broker, offset: int) -> None:
        """G10: whose transaction is told to have ended here has nothing undecided here (KAFKA-17507)."""
        marker, machine = broker.items[offset], broker.shard.machine
        assert isinstance(marker, Marker)
        groups: Any = machine.groups.values() if machine is not None else ()  # type: ignore[attr-defined]
        open_ = [each.group for each in groups if marker.producer.producer_id in each.pending]
        require(broker.shard.active and not open_, "G10", f"{marker} is applied, {open_} wait for it")

    def marked(self, broker: Broker, marker: Marker) -> None:
        self._written[broker.epoch, marker.offset] = _Batch((), None, None, self.world.now)

    def committed(self, broker: Broker) -> None:
        """A high watermark has moved: what lies below it is decided for ever."""
        while len(self.log) < broker.high_watermark:
            base = len(self.log)
            batch = self._written.get((broker.epochs[base], base))
            require(batch is not None, "G1", f"offset {base} begins no batch")
            assert batch is not None
            count = max(1, len(batch.entries))
            if base + count > broker.high_watermark:
                # Followers copy whole batches; the rest comes with the next fetch.
                return
            before = self.naive
            self._check_request(before, batch)
            self._note_gone(before, batch)
            for at in range(count):
                item = broker.items[base + at]
                require(item is not None, "G7", "compacted above the high watermark")
                assert item is not None
                self.log.append(item)
                self.naive.take(item)
                if isinstance(item, Entry) and isinstance(item.key, r.OffsetKey) and item.value is None:
                    self.expired.add(item.key)
            self._note_offsets()
            self._check_state(batch)
            self.batches += 1

    def _note_offsets(self) -> None:
        """What a reader may be told from now on."""
        keys = {key for key in self.naive.now if isinstance(key, r.OffsetKey)} | self._offsets.keys()
        for key in keys:
            value = self.naive.now.get(key)
            offset = -1 if value is None else value[0].offset
            history = self._offsets.setdefault(key, [(0, -1)])
            if history[-1][1] != offset:
                history.append((len(self.log), offset))

    # Decisions

    def _check_away(self, state: Naive, batch: _Batch) -> None:
        """G9: nothing is decided for a static member that is away until it, or its session's end, is heard of."""
        for key, value in batch.entries:
            if isinstance(key, r.CurrentKey) and value is not None and value.epoch != gm.LEAVE_STATIC:
                before = state.now.get(key)
                away = before is not None and before[0].epoch == gm.LEAVE_STATIC
                message = batch.message
                back = isinstance(message, gm.ConsumerGroupHeartbeatRequest) and (
                    (message.member_id, message.member_epoch) == (key.member_id, gm.JOIN)
                )
                require(back or not away, "G9", f"{key} is away, and was moved to {value.epoch}")

    def _check_request(self, state: Naive, batch: _Batch) -> None:
        self._check_away(state, batch)
        match batch.message:
            case gm.CommitGroupOffsetsRequest() | gm.TxnOffsetCommitRequest():
                self._check_commit(state, batch.message, batch)
            case gm.ConsumerGroupHeartbeatRequest(member_epoch=gm.LEAVE_STATIC, group=group):
                gone = [key for key, value in batch.entries if isinstance(key, r.MemberKey) and value is None]
                require(not gone, "GL4", f"{gone} of {group} steps out for a moment, and is removed")
            case gm.SyncGroupRequest(group=group, generation=generation):
                for key, value in batch.entries:
                    if isinstance(key, r.ClassicGroupKey) and value is not None:
                        right = value.generation == generation
                        require(right, "G5", f"{group}: {generation} was shared out as {value.generation}")
                        # A leader says something of everybody who has joined, be it that there is nothing.
                        bare = [each.member_id for each in value.members if not each.assignment]
                        require(not bare, "GL1", f"{group} at {generation}: {bare} are not spoken of")
            case gm.ConsumerGroupHeartbeatRequest(member_epoch=epoch) if epoch < 0:
                self._leaving.add((batch.message.group, batch.message.member_id))
            case gm.DeleteGroupRequest(group=group):
                require(not state.of(r.MemberKey, group), "G11", f"{group} was deleted with members")
            case None:
                self._check_own(state, batch)

    def _check_commit(
        self, state: Naive, request: gm.CommitGroupOffsetsRequest | gm.TxnOffsetCommitRequest, batch: _Batch
    ) -> None:
        """G3: by the committed state at the record's offset, in words of its own."""
        group = request.group
        self.commits += 1
        members = state.of(r.MemberKey, group)
        stored = state.now.get(r.ClassicGroupKey(group))
        if stored is not None and stored[0].members and not isinstance(request, gm.TxnOffsetCommitRequest):
            generation = stored[0].generation
            require(request.epoch >= generation, "G3", f"{request} after generation {generation}")
            ids = {each.member_id for each in stored[0].members}
            known = request.epoch > generation or request.member_id in ids
            require(known, "G3", f"{request} by no member of generation {generation}")
        if r.ConsumerGroupKey(group) not in state.now or (request.epoch < 0 and not members):
            return
        current = state.of(r.CurrentKey, group).get(r.CurrentKey(group, request.member_id))
        known = r.MemberKey(group, request.member_id) in members
        require(known and current is not None, "G3", f"{request} by no member")
        assert current is not None
        require(request.epoch <= current.epoch, "G3", f"{request} at {current.epoch}")
        held = r.as_owned((*current.pending, *current.assigned), current.epoch)
        for key, _ in batch.entries:
            ids = {view.topics[key.topic].topic_id for view in self.views if key.topic in view.topics}
            given = [held[each] for each in held if each.topic_id in ids and each.partition == key.partition]
            least = min(given, default=current.epoch)
            require(request.epoch >= least, "G3", f"{key} at {request.epoch}, given at {given}, {current}")

    def _check_own(self, state: Naive, batch: _Batch) -> None:
        """What a coordinator does by itself: members it removes (G8), offsets it lets expire (G11)."""
        moved = {
            (key.group, each.member_id)
            for key, value in batch.entries
            if isinstance(key, r.ClassicGroupKey) and value is not None
            for each in value.members
        }
        for key, value in batch.entries:
            if value is not None:
                continue
            if isinstance(key, r.MemberKey) and (key.group, key.member_id) not in moved:
                heard = self._heard.get((key.group, key.member_id), 0.0)
                # A later heartbeat begins the session again though its answer never came: what its node had stood
                # still before lengthens it no more.
                later = max(heard, batch.waiting.get((key.group, key.member_id), (0.0, -1))[0])
                silent = max(batch.silence(heard), batch.silence(later))
                require(silent > 9.99, "G8", f"{key} was removed after {silent:.2f} s of silence")
            elif isinstance(key, r.OffsetKey):
                recreated = self._was_remade(key.topic)
                read = any(
                    key.topic in (member[0].topics or ())
                    for each, member in state.now.items()
                    if isinstance(each, r.MemberKey) and each.group == key.group
                )
                pending = any(each == key for _, each in state.undecided)
                aged = True
                if key in state.now:
                    stamp = state.now[key][0].commit_timestamp
                    aged = 1_700_000_000_000 + batch.at * 1000 - stamp >= 11_990
                legal = aged and not read and not pending
                require(legal or recreated, "G11", f"{key}: aged {aged}, read {read}, pending {pending}")

    # The state at each batch boundary

    def _check_state(self, batch: _Batch) -> None:
        groups = {key.group for key, _ in batch.entries}
        for group in sorted(groups):
            self._check_group(group)
        for key, value in batch.entries:
            if isinstance(key, r.CurrentKey) and value is not None:
                self._check_waiting(key)
            elif isinstance(key, r.ClassicGroupKey) and value is not None:
                self._check_silent(key, value, batch)

    def _check_silent(self, key: r.ClassicGroupKey, value: r.ClassicGroupValue, batch: _Batch) -> None:
        """GL1: who was told nothing for longer than its session lasts is no member any more."""
        if self.calm_since is None:
            return
        for each in value.members:
            heard = max(self._told.get((key.group, each.member_id), 0.0), self.calm_since)
            silent = batch.silence(heard)
            told = f"{each.member_id} of {key.group} is a member after {silent:.2f} s of silence"
            require(silent < LONGEST_SESSION, "GL1", told)

    def _check_waiting(self, key: r.CurrentKey) -> None:
        """GL1: whoever is told to wait for partitions waits for another member (KAFKA-19449)."""
        currents = self.naive.of(r.CurrentKey, key.group)
        mine, target = currents.get(key), self.naive.now.get(r.TargetKey(key.group, key.member_id))
        if mine is None or mine.state != r.MemberState.UNRELEASED or target is None:
            return
        if mine.epoch == gm.LEAVE_STATIC:
            return  # it is away, and looks for what is free when it comes back
        missing = r.as_set(target[0].topics) - r.as_set(mine.assigned)
        held = [each for other, each in currents.items() if other != key]
        taken = {each for value in held for each in r.as_set(value.assigned) | r.as_set(value.pending)}
        require(bool(missing & taken), "GL1", f"{key} waits for {sorted(missing)}, which nobody has")

    def _check_group(self, group: str) -> None:
        state = self.naive
        meta = state.now.get(r.ConsumerGroupKey(group))
        require(meta is None or r.ClassicGroupKey(group) not in state.now, "G14", f"{group} is of two types")
        members = state.of(r.MemberKey, group)
        if meta is None:
            # A group of that name that comes later is another.
            self._epochs.pop(group, None)
            self._dealt.pop(group, None)
            self._targets = {place: known for place, known in self._targets.items() if place[0] != group}
            require(not members, "G14", f"{group} has members and is no group")
            return
        target = state.now.get(r.TargetEpochKey(group))
        epoch, target_epoch = meta[0].epoch, target[0].epoch if target is not None else 0
        before = self._epochs.get(group, (0, 0))
        require(epoch >= before[0] and target_epoch >= before[1], "G5", f"{group} went back from {before}")
        require(target_epoch <= epoch, "G5", f"{group}: target {target_epoch} above {epoch}")
        self.rebalances += epoch > before[0]
        self._epochs[group] = epoch, target_epoch
        currents = state.of(r.CurrentKey, group)
        holders: dict[r.TopicPartition, str] = {}
        for key, current in currents.items():
            require(current.epoch <= target_epoch, "G5", f"{key} at {current.epoch}, target {target_epoch}")
            for each in r.as_set(current.assigned) | r.as_set(current.pending):
                other = holders.setdefault(each, key.member_id)
                require(other == key.member_id, "G4", f"{each} of {group} at {other} and {key.member_id}")
        instances = [value.instance_id for value in members.values() if value.instance_id is not None]
        require(len(instances) == len(set(instances)), "G9", f"{group}: {sorted(instances)}")
        require(
            bool(members) or target_epoch == epoch, "G5", f"empty {group} at {epoch}, target {target_epoch}"
        )
        if target_epoch == epoch:
            self._check_target(group, epoch, members, meta[0].metadata_hash)

    def _check_target(self, group: str, epoch: int, members: Any, digest: int) -> None:
        """G6: each partition of a subscribed topic once, to a subscriber; G5: one target per epoch."""
        targets = {
            key.member_id: r.as_set(value.topics) for key, value in self.naive.of(r.TargetKey, group).items()
        }
        dealt = [each for mine in targets.values() for each in mine]
        require(len(dealt) == len(set(dealt)), "G6", f"{group} at {epoch} has a partition twice")
        topics = {topic for value in members.values() for topic in value.topics}
        views = [view for view in self.views if view.digest(topics) == digest]
        require(bool(views), "G6", f"{group} at {epoch}: no view of that hash")
        view = views[-1]
        wanted = {
            r.TopicPartition(view.topics[topic].topic_id, number)
            for topic in topics
            if topic in view.topics
            for number in range(view.topics[topic].partitions)
        }
        require(set(dealt) == wanted, "G6", f"{group} at {epoch}: {sorted(wanted ^ set(dealt))}")
        for key, value in members.items():
            for each in targets.get(key.member_id, ()):
                require(view.names[each.topic_id] in value.topics, "G6", f"{key} does not read {each}")
        self._check_moves(group, members, wanted, targets)
        # A static member's target passes to its successor under another id, so only the shares are compared.
        shares = sorted(sorted(mine) for mine in targets.values() if mine)
        known = self._targets.setdefault((group, epoch), shares)
        require(known == shares, "G5", f"{group} at {epoch} has two targets")

    def _check_moves(self, group: str, members: Any, wanted: Any, targets: Any) -> None:
        """GL4: where all read the same topics, whoever can keep something keeps it (KAFKA-18688)."""
        dealt = self._dealt.get(group, {})
        names = {key.member_id: key.member_id for key in members}
        names |= {
            key.member_id: f"instance {value.instance_id}"
            for key, value in members.items()
            if value.instance_id is not None
        }
        now = {name: frozenset(targets.get(member_id, ())) for member_id, name in names.items()}
        self._dealt[group] = now
        if not members or len({value.topics for value in members.values()}) > 1:
            return
        before = [dealt.get(name, frozenset()) & wanted for name in now]
        quota, extras = divmod(len(wanted), len(members))
        most = sum(min(len(each), quota) for each in before)
        most += min(extras, sum(len(each) > quota for each in before))
        kept = sum(len(dealt.get(name, frozenset()) & each) for name, each in now.items())
        require(kept >= most, "GL4", f"{group} keeps {kept} of {most} in {before}, {list(now.values())}")

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
            if isinstance(message, gm.ConsumerGroupHeartbeatRequest):
                self._leaving.discard(place)
        self._check_classic(message, reply)
        if isinstance(message, gm.GroupOffsetsRequest):
            for told in reply.offsets:
                if not told.error:
                    key = r.OffsetKey(message.group, told.topic, told.partition)
                    self._check_read(key, told.offset, request.committed)
                    if message.require_stable:
                        self._check_stable(key, request.committed)

    def _check_read(self, key: r.OffsetKey, offset: int, since: int) -> None:
        """G2: what was told was so at some time between the question and the answer."""
        history = self._offsets.get(key, [(0, -1)])
        latest = [value for at, value in history if at <= since][-1:]
        legal = latest + [value for at, value in history if at > since]
        require(offset in legal, "G2", f"{key}: told {offset}, may be {legal}")

    def _check_fence(self, broker: Broker, message: Any, reply: Any) -> None:
        """G8: who is put out for what it did not let go has had its time for that."""
        if not isinstance(message, gm.ConsumerGroupHeartbeatRequest) or "did not let" not in reply.message:
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
        """What was known of the sender when a request arrived, and what is committed by now; or nothing."""
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

    # Replay

    def check_replay(self, broker: Broker) -> None:
        """G7: the live state of an active shard is what its log says, compacted or not."""
        machine = broker.shard.machine
        if not broker.shard.active or machine is None or not broker.up:
            return
        naive = Naive().read(broker.items)
        now, undecided = flat(machine.groups.values())  # type: ignore[attr-defined]
        wanted = {key: value for key, (value, _) in naive.now.items()}
        different = [key for key in wanted.keys() | now.keys() if wanted.get(key) != now.get(key)]
        require(not different, "G7", [(key, wanted.get(key), now.get(key)) for key in different[:2]])
        wanted_pending = {key: value for key, (value, _) in naive.undecided.items()}
        require(undecided == wanted_pending, "G7", (undecided, wanted_pending))
        for classic in machine.classics.values():  # type: ignore[attr-defined]
            ids = len(classic.pending) + len(classic.members)
            require(ids <= MAX_SIZE, "GL3", f"{classic.group} has {ids} ids")
        full = Naive().read(self.log)
        committed = Naive().read(broker.items[: len(self.log)])
        same = {k: v for k, (v, _) in full.now.items()} == {k: v for k, (v, _) in committed.now.items()}
        if broker.high_watermark >= len(self.log):
            require(same, "G7", "a compaction has changed the meaning of the log")

    # Clients

    def handing_out(self, client: Client, partition: r.TopicPartition, offset: int) -> None:
        """G4, G13: nobody else may hand it out now, and this one may."""
        self.handed += 1
        require(
            partition in client.serving, "G13", f"{client.name} hands out {partition} after it was withheld"
        )
        for other in self.clients:
            if other is client or other.group != client.group or not other.up:
                continue
            if partition in other.serving and not other.lease_is_over():
                if (client.classic or other.classic) and not (self._belongs(client) and self._belongs(other)):
                    continue  # one was put out and does not know it; what it commits is refused
                require(False, "G4", f"{partition} at {client.name} and {other.name}, offset {offset}")

    def _belongs(self, client: Client) -> bool:
        """Whether a client is a member, and has been since it was answered last, by what is committed."""
        name = client.membership.member_id
        if self._gone.get((client.group, name), 0.0) >= client.heard_at:
            return False
        stored = self.naive.now.get(r.ClassicGroupKey(client.group))
        if stored is not None:
            return any(each.member_id == name for each in stored[0].members)
        return r.MemberKey(client.group, name) in self.naive.now

    def _note_gone(self, state: Naive, batch: _Batch) -> None:
        """Who is no member any more with this batch."""
        kept: set[str] = set()
        for key, value in batch.entries:
            if isinstance(key, r.CurrentKey):
                place = key.group, key.member_id
                pending = value.pending if value is not None else ()
                if pending != self._pending_since.get(place, ((), 0.0))[0]:
                    self._pending_since[place] = pending, batch.at
            if isinstance(key, r.ClassicGroupKey) and value is not None:
                self._stored |= {(key.group, each.member_id) for each in value.members}
            if isinstance(key, r.ClassicGroupKey):
                kept = {each.member_id for each in value.members} if value is not None else set()
                stored = state.now.get(key)
                for each in stored[0].members if stored is not None and value is not None else ():
                    if each.member_id not in kept:
                        self._gone[key.group, each.member_id] = batch.at
        for key, value in batch.entries:
            if isinstance(key, r.MemberKey) and value is None and key.member_id not in kept:
                self._gone[key.group, key.member_id] = batch.at

    def takes_back(self, client: Client, partitions: frozenset[r.TopicPartition]) -> None:
        """G13: nothing is handed out any more when the caller begins to let go (KAFKA-14196)."""
        served = sorted(partitions & client.serving.keys())
        require(
            not served,
            "G13",
            f"{client.name} still hands out {served}, and is told that it is no longer its own",
        )

    def joins(self, client: Client) -> None:
        """G13: nobody joins again while its caller may still work on what it has lost (KAFKA-16251)."""
        require(not client.is_losing, "G13", f"{client.name} joins before it has lost what it had")

    def done_with(self, client: Client, partition: r.TopicPartition, first: int, end: int) -> None:
        place = client.group, partition.topic_id, partition.partition
        self.processed.setdefault(place, set()).update(range(first, end))

    def begins(self, client: Client, partition: r.TopicPartition, offset: int | None, since: int) -> None:
        """G12: at a commit that was the last one at some time since its position was asked for."""
        names = {view.names[partition.topic_id] for view in self.views if partition.topic_id in view.names}
        for name in names:
            key = r.OffsetKey(client.group, name, partition.partition)
            try:
                self._check_read(key, -1 if offset is None else offset, since)
            except AssertionError as error:
                require(False, "G12", f"{client.name} begins at {offset}: {error}")

    def _was_remade(self, topic: str) -> bool:
        """Whether a topic is not what it was at the beginning, or was gone for some time."""
        ids = {view.topics[topic].topic_id if topic in view.topics else None for view in self.views}
        return len(ids) > 1

    def is_ambiguous(self, partition: r.TopicPartition) -> bool:
        """Whether there has been another topic of its name: records of offsets say only names."""
        names = {view.names[partition.topic_id] for view in self.views if partition.topic_id in view.names}
        ids = {view.topics[name].topic_id for view in self.views for name in names if name in view.topics}
        return len(ids) > 1

    def commits_to(self, client: Client, partition: r.TopicPartition, offset: int) -> None:
        """G12: what nobody is done with is not passed."""
        if self.is_ambiguous(partition):
            return
        place = client.group, partition.topic_id, partition.partition
        known = self.processed.get(place, set())
        missing = [each for each in range(offset) if each not in known][:3]
        require(
            not missing, "G12", f"{client.name} commits {offset} of {place}, nobody is done with {missing}"
        )
