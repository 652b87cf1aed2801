"""The log's content of one group, and nothing else: the same on every replica, however the log was compacted."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec

from ..coordination.decisions import Note
from . import records as r

TopicAndPartition = tuple[str, int]


class Committed(msgspec.Struct, frozen=True):
    """A committed offset, and the offset of the record that says so."""

    value: r.OffsetValue
    at: int


@attrs.define
class GroupState:
    """One dictionary for each type of record: the last one of each key counts."""

    group: str
    meta: r.ConsumerGroupValue | None = None
    target_epoch: r.TargetEpochValue | None = None
    classic: r.ClassicGroupValue | None = None
    members: dict[str, r.MemberValue] = attrs.Factory(dict)
    targets: dict[str, r.TargetValue] = attrs.Factory(dict)
    currents: dict[str, r.CurrentValue] = attrs.Factory(dict)
    regexes: dict[str, r.RegexValue] = attrs.Factory(dict)
    offsets: dict[TopicAndPartition, Committed] = attrs.Factory(dict)
    pending: dict[int, dict[TopicAndPartition, Committed]] = attrs.Factory(dict)
    """Offsets of transactions that are not decided yet, by producer id: a fencing marker has a later epoch."""

    def put(self, key: Any, value: Any | None, at: int = -1) -> None:
        """Apply one record; a tombstone of what is not there is nothing (KAFKA-17306)."""
        match key:
            case r.OffsetKey(topic=topic, partition=partition):
                _put(self.offsets, (topic, partition), None if value is None else Committed(value, at))
            case r.ConsumerGroupKey():
                self.meta = value
            case r.MemberKey(member_id=member_id):
                _put(self.members, member_id, value)
            case r.TargetEpochKey():
                self.target_epoch = value
            case r.TargetKey(member_id=member_id):
                _put(self.targets, member_id, value)
            case r.CurrentKey(member_id=member_id):
                _put(self.currents, member_id, value)
            case r.RegexKey(regex=regex):
                _put(self.regexes, regex, value)
            case r.ClassicGroupKey():
                self.classic = value

    @property
    def empty(self) -> bool:
        """Whether nothing is left of it."""
        records = self.offsets, self.pending, self.members, self.targets, self.currents, self.regexes
        return not any(records) and self.meta is self.target_epoch is self.classic is None

    @property
    def is_consumer(self) -> bool:
        return self.meta is not None

    @property
    def epoch(self) -> int:
        """The group epoch; 0 before anybody has joined."""
        return self.meta.epoch if self.meta is not None else 0

    @property
    def assignment_epoch(self) -> int:
        """The epoch of the target assignment."""
        return self.target_epoch.epoch if self.target_epoch is not None else 0

    def member_topics(self, member_id: str) -> frozenset[str]:
        """The topics that a member reads: by name, and those to which its pattern was resolved."""
        value = self.members[member_id]
        resolved = self.regexes.get(value.regex) if value.regex else None
        return frozenset(value.topics or ()) | frozenset(resolved.topics if resolved is not None else ())

    def topics(self) -> set[str]:
        """The topics that any member reads."""
        found: set[str] = set()
        for member_id in self.members:
            found |= self.member_topics(member_id)
        return found

    def current(self, member_id: str) -> r.CurrentValue:
        return self.currents.get(member_id) or r.CurrentValue(epoch=0)

    def target(self, member_id: str) -> frozenset[r.TopicPartition]:
        value = self.targets.get(member_id)
        return r.as_set(value.topics) if value is not None else frozenset()

    def holder_of(self, instance_id: str) -> str | None:
        """The member that has a static instance; the first by id, should a foreign log have two."""
        found = [each for each, value in self.members.items() if value.instance_id == instance_id]
        return min(found, default=None)


def _put(table: dict[Any, Any], key: Any, value: Any | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


class Draft:
    """Entries that a decision is about to write, and the state as it will be with them."""

    def __init__(self, state: GroupState) -> None:
        self.state = state
        self.entries: list[tuple[Any, Any | None]] = []
        self.notes: list[Note] = []
        """Why the group is rebalanced by it."""

    def put(self, key: Any, value: Any | None) -> None:
        if not self.entries:
            # Offsets are left alone by everything that looks at its own entries.
            before = self.state
            self.state = attrs.evolve(
                before,
                members=dict(before.members),
                targets=dict(before.targets),
                currents=dict(before.currents),
                regexes=dict(before.regexes),
            )
        self.entries.append((key, value))
        if not isinstance(key, r.OffsetKey):
            self.state.put(key, value)
