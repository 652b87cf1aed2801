"""The decisions: each committed batch against the state before it and after it (G1 to G14, GL1, GL4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.coordination import shard_effects as fx
from ...core.coordination.shard_events import Entry, Marker
from ...core.groups import records as r
from ...core.groups.classic_state import ClassicPhase
from ...core.messages import groups as gm
from ..errors import require
from .facts import Batch, Facts
from .naive import Naive

if TYPE_CHECKING:
    from .brokers import Broker


class Decisions(Facts):
    """Judges what coordinators write."""

    # The log

    def written(self, broker: Broker, base: int, write: fx.Write, message: Any | None) -> None:
        self._written[broker.epoch, base] = Batch(
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
        self._written[broker.epoch, marker.offset] = Batch((), None, None, self.world.now)

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
        """The offsets that a reader may be told from now on."""
        keys = {key for key in self.naive.now if isinstance(key, r.OffsetKey)} | self._offsets.keys()
        for key in keys:
            value = self.naive.now.get(key)
            offset = -1 if value is None else value[0].offset
            history = self._offsets.setdefault(key, [(0, -1)])
            if history[-1][1] != offset:
                history.append((len(self.log), offset))

    # Decisions

    def _check_away(self, state: Naive, batch: Batch) -> None:
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

    def _check_request(self, state: Naive, batch: Batch) -> None:
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
            case gm.DeleteGroupRequest(group=group):
                require(not state.of(r.MemberKey, group), "G11", f"{group} was deleted with members")
            case None:
                self._check_own(state, batch)

    def _check_commit(
        self, state: Naive, request: gm.CommitGroupOffsetsRequest | gm.TxnOffsetCommitRequest, batch: Batch
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

    def _check_own(self, state: Naive, batch: Batch) -> None:
        """A coordinator's own decisions: members it removes (G8), offsets it lets expire (G11)."""
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

    def _check_state(self, batch: Batch) -> None:
        groups = {key.group for key, _ in batch.entries}
        for group in sorted(groups):
            self._check_group(group)
        for key, value in batch.entries:
            if isinstance(key, r.CurrentKey) and value is not None:
                self._check_waiting(key)

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

    def _note_gone(self, state: Naive, batch: Batch) -> None:
        """The members whose membership ends with this batch."""
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
