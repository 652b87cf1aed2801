"""The decisions of coordinators: each against the state before it and after it (G3 to G14, GL1, GL4)."""

from __future__ import annotations

from typing import Any

from ....core.groups import records as r
from ....core.messages import groups as gm
from ...errors import require
from .facts import OFFSETS_KEPT, Facts, Part, Written, partitions_of

Entries = tuple[tuple[Any, Any], ...]
ROUNDING = 0.01


class Decisions(Facts):
    """Judges what coordinators write."""

    def check_request(self, batch: Written, part: Part, entries: Entries) -> None:
        """Judge a decision by the state before it."""
        self._check_away(part, entries)
        match part.message:
            case gm.CommitGroupOffsetsRequest() | gm.TxnOffsetCommitRequest():
                self._check_commit(part.message, entries)
            case gm.ConsumerGroupHeartbeatRequest(member_epoch=gm.LEAVE_STATIC, group=group):
                gone = [key for key, value in entries if isinstance(key, r.MemberKey) and value is None]
                require(not gone, "GL4", f"{gone} of {group} steps out for a moment, and is removed")
            case gm.SyncGroupRequest(group=group, generation=generation):
                for key, value in entries:
                    if isinstance(key, r.ClassicGroupKey) and value is not None:
                        right = value.generation == generation
                        require(right, "G5", f"{group}: {generation} was shared out as {value.generation}")
                        # A leader says something of everybody who has joined, be it that there is nothing.
                        bare = [each.member_id for each in value.members if not each.assignment]
                        require(not bare, "GL1", f"{group} at {generation}: {bare} are not spoken of")
            case gm.DeleteGroupRequest(group=group):
                require(not self.naive.of(r.MemberKey, group), "G11", f"{group} was deleted with members")
            case None:
                self._check_own(batch, part, entries)

    def _check_away(self, part: Part, entries: Entries) -> None:
        """G9: nothing is decided for a static member that is away until it, or its session's end, is heard of."""
        message = part.message
        for key, value in entries:
            if isinstance(key, r.CurrentKey) and value is not None and value.epoch != gm.LEAVE_STATIC:
                before = self.naive.now.get(key)
                away = before is not None and before[0].epoch == gm.LEAVE_STATIC
                back = isinstance(message, gm.ConsumerGroupHeartbeatRequest) and (
                    (message.member_id, message.member_epoch) == (key.member_id, gm.JOIN)
                )
                require(back or not away, "G9", f"{key} is away, and was moved to {value.epoch}")

    def _check_commit(
        self, request: gm.CommitGroupOffsetsRequest | gm.TxnOffsetCommitRequest, entries: Entries
    ) -> None:
        """G3: by the committed state at the record's offset, in words of its own."""
        state, group = self.naive, request.group
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
        for key, _ in entries:
            ids = self.topics.ids(key.topic)
            given = [held[each] for each in held if each.topic_id in ids and each.partition == key.partition]
            least = min(given, default=current.epoch)
            require(request.epoch >= least, "G3", f"{key} at {request.epoch}, given at {given}, {current}")

    def _check_own(self, batch: Written, part: Part, entries: Entries) -> None:
        """A coordinator's own decisions: members it removes (G8), offsets it lets expire (G11)."""
        moved = {
            (key.group, each.member_id)
            for key, value in entries
            if isinstance(key, r.ClassicGroupKey) and value is not None
            for each in value.members
        }
        for key, value in entries:
            if value is not None:
                continue
            if isinstance(key, r.MemberKey) and (key.group, key.member_id) not in moved:
                silent, least = part.silence[key.group, key.member_id]
                right = silent > least - ROUNDING
                require(right, "G8", f"{key} was removed after {silent:.2f} s of silence, not {least}")
            elif isinstance(key, r.OffsetKey):
                self._check_expiry(batch, key)

    def _check_expiry(self, batch: Written, key: r.OffsetKey) -> None:
        state = self.naive
        read = any(
            key.topic in (member[0].topics or ())
            for each, member in state.now.items()
            if isinstance(each, r.MemberKey) and each.group == key.group
        )
        pending = any(each == key for _, each in state.undecided)
        aged = True
        if key in state.now:
            aged = batch.wall_ms - state.now[key][0].commit_timestamp >= 1000 * OFFSETS_KEPT - 10
        legal = aged and not read and not pending
        right = legal or self.topics.was_remade(key.topic)
        require(right, "G11", f"{key}: aged {aged}, read {read}, pending {pending}")

    # The state at each batch boundary

    def check_state(self, entries: Entries) -> None:
        """Judge the state after a decision."""
        for group in sorted({key.group for key, _ in entries}):
            self._check_group(group)
        for key, value in entries:
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
        views = [view for view in self.topics.views if view.digest(topics) == digest]
        require(bool(views), "G6", f"{group} at {epoch}: no view of that hash")
        view = views[-1]
        wanted = partitions_of(view, topics)
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

    def note_gone(self, batch: Written, entries: Entries) -> None:
        """The members whose membership ends with a decision."""
        kept: set[str] = set()
        for key, value in entries:
            if isinstance(key, r.ClassicGroupKey):
                kept = {each.member_id for each in value.members} if value is not None else set()
                self.stored |= {(key.group, member_id) for member_id in kept}
                stored = self.naive.now.get(key)
                for each in stored[0].members if stored is not None and value is not None else ():
                    if each.member_id not in kept:
                        self.gone[key.group, each.member_id] = batch.at
        for key, value in entries:
            if isinstance(key, r.MemberKey) and value is None and key.member_id not in kept:
                self.gone[key.group, key.member_id] = batch.at
