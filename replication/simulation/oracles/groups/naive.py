"""A second, naive reading of the log: one dictionary, every rule spelled out, nothing shared with the machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ....core.coordination.shard_events import Entry, Marker
from ....core.groups import records as r
from ....core.groups.state import GroupState

Item = Entry | Marker


class Naive:
    """`now`: the last value of each key. `undecided`: (producer id, key) to (value, offset)."""

    def __init__(self) -> None:
        self.now: dict[Any, tuple[Any, int]] = {}
        self.undecided: dict[tuple[int, Any], tuple[Any, int]] = {}

    def read(self, items: Iterable[Item | None]) -> Naive:
        for item in items:
            if item is not None:
                self.take(item)
        return self

    def take(self, item: Item) -> None:
        if isinstance(item, Marker):
            for producer_id, key in [each for each in self.undecided if each[0] == item.producer.producer_id]:
                value, offset = self.undecided.pop((producer_id, key))
                if item.committed and (key not in self.now or self.now[key][1] < offset):
                    self.now[key] = value, offset
        elif item.key is None or isinstance(item.key, r.TopicMetadataKey):
            return
        elif item.producer is not None:
            self.undecided[item.producer.producer_id, item.key] = item.value, item.offset
        elif item.value is None:
            self.now.pop(item.key, None)
            for each in [each for each in self.undecided if each[1] == item.key]:
                del self.undecided[each]
        else:
            self.now[item.key] = item.value, item.offset

    def of(self, kind: type, group: str) -> dict[Any, Any]:
        """Values of one type of record in one group."""
        found: dict[Any, Any] = {key: value for key, (value, _) in self.now.items() if type(key) is kind}
        return {key: value for key, value in found.items() if key.group == group}

    def groups(self) -> set[str]:
        return {key.group for key in self.now} | {key.group for _, key in self.undecided}


def flat(groups: Iterable[GroupState]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The machine's state in the naive one's terms."""
    now: dict[Any, Any] = {}
    undecided: dict[Any, Any] = {}
    for state in groups:
        name = state.group
        for key, value in (
            (r.ConsumerGroupKey(name), state.meta),
            (r.TargetEpochKey(name), state.target_epoch),
            (r.ClassicGroupKey(name), state.classic),
        ):
            if value is not None:
                now[key] = value
        now |= {r.MemberKey(name, each): value for each, value in state.members.items()}
        now |= {r.TargetKey(name, each): value for each, value in state.targets.items()}
        now |= {r.CurrentKey(name, each): value for each, value in state.currents.items()}
        now |= {r.RegexKey(name, each): value for each, value in state.regexes.items()}
        now |= {r.OffsetKey(name, *each): found.value for each, found in state.offsets.items()}
        for producer_id, offsets in state.pending.items():
            undecided |= {
                (producer_id, r.OffsetKey(name, *each)): found.value for each, found in offsets.items()
            }
    return now, undecided
