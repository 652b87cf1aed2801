"""Facts about groups: the topics that coordinators have seen, and what the committed log of one partition says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ....core.coordination.topics_view import TopicsView
from ....core.groups import records as r
from ..facts import PartitionFacts
from .naive import Naive

Place = tuple[str, str]
"""Group and member."""
LAZY = "g1"
"""The group whose members never commit."""
COPIES = "copies"
"""The group whose members commit in transactions."""
MAX_SIZE = 30
"""Members and ids that a classic group may have."""
MAX_POLL = 8.0
"""Seconds: of every client; a member of the consumer protocol has as long to let partitions go."""
SESSION = 10.0
"""Seconds: of every member."""
OFFSETS_KEPT = 12.0
"""Seconds."""
ISOLATION = 1.5
"""Seconds that a new coordinator adds to each session."""
NOTHING = r.OffsetValue(offset=-1)
"""The value in place of an offset that is not committed."""


def partitions_of(view: TopicsView, topics: Iterable[str]) -> set[r.TopicPartition]:
    """All partitions of those of the topics that exist."""
    return {
        r.TopicPartition(view.topics[topic].topic_id, number)
        for topic, count in view.counts(topics).items()
        for number in range(count)
    }


class Topics:
    """The topics that members read, as coordinators and clients have seen them."""

    def __init__(self) -> None:
        self.views: list[TopicsView] = []
        self._ids: dict[str, set[str]] = {}
        self._missed: set[str] = set()
        """Topics that were gone for some time."""

    def saw(self, view: TopicsView) -> None:
        """A coordinator goes by this view from now on."""
        if view not in self.views:
            self.views.append(view)
            self._missed |= self._ids.keys() - view.topics.keys()
            for name, info in view.topics.items():
                self._ids.setdefault(name, set()).add(info.topic_id)

    def ids(self, name: str) -> set[str]:
        """The topics that have had a name."""
        return self._ids.get(name, set())

    def name_of(self, topic_id: str) -> str | None:
        """The name of a topic that there is, or was."""
        return next((name for name, ids in self._ids.items() if topic_id in ids), None)

    def was_remade(self, name: str) -> bool:
        """Whether a topic is not what it was at the beginning, or was gone for some time."""
        return len(self.ids(name)) > 1 or name in self._missed

    def is_ambiguous(self, partition: r.TopicPartition) -> bool:
        """Whether there has been another topic of its name: records of offsets say only names."""
        name = self.name_of(partition.topic_id)
        return name is None or self.was_remade(name)


@attrs.frozen
class Part:
    """A decision of a coordinator. `message` has led to it; None: nothing but time or the cluster has."""

    message: Any | None
    count: int
    """Of its records."""
    silence: Mapping[Place, tuple[float, float]]
    """Of each member that it removes: seconds of silence, and how many it may have been silent."""


@attrs.define(eq=False)
class Written:
    """A batch that a coordinator has written. `base`: its offset, once the log has accepted it."""

    parts: tuple[Part, ...]
    at: float
    wall_ms: int
    payload: str = ""
    base: int = -1


class Facts:
    """The committed log of one partition. `length`: how many committed offsets have been read."""

    def __init__(self, facts: PartitionFacts, topics: Topics) -> None:
        self.facts = facts
        self.topics = topics
        self.length = 0
        self.naive = Naive()
        self.marks: Counter[str] = Counter()
        """How often each commit was written, by the name that its sender gave it as metadata."""
        self.given: set[tuple[str, str, int]] = set()
        """Group, member and each epoch that it was ever given."""
        self.transactional: set[r.OffsetKey] = set()
        """Of which offsets were ever committed in a transaction."""
        self.expired: set[r.OffsetKey] = set()
        """Offsets that were committed and then taken away."""
        self.stored: set[Place] = set()
        """Members that were ever written of a classic group."""
        self.gone: dict[Place, float] = {}
        """When a member was put out, or left."""
        self.rebalances = 0
        self._history: dict[r.OffsetKey, list[tuple[int, r.OffsetValue]]] = {}
        """By key: (length of the log, value) at each change."""
        self._epochs: dict[str, tuple[int, int]] = {}
        self._targets: dict[tuple[str, int], Any] = {}
        self._dealt: dict[str, dict[str, frozenset[r.TopicPartition]]] = {}
        """The target of each group, by member."""

    def told_since(self, since: int) -> dict[r.OffsetKey, list[tuple[int, str]]]:
        """Of each key (offset, metadata) at the length `since`, and whatever has come after it."""
        return {key: self.history_since(key, since) for key in self._history}

    def history_since(self, key: r.OffsetKey, since: int) -> list[tuple[int, str]]:
        """The same of one key."""
        history = self._history.get(key, [(0, NOTHING)])
        before = max(at for at, (length, _) in enumerate(history) if length <= since)
        return [(value.offset, value.metadata) for _, value in history[before:]]

    def is_open(self, key: r.OffsetKey, since: int) -> bool:
        """Whether an offset has been undecided since the log had that length (KIP-447)."""
        held = self.naive.undecided
        return any(each[1] == key and held[each][1] < since for each in held)

    def _note_offset(self, key: r.OffsetKey) -> None:
        """The offset that a reader may be told from now on."""
        known = self.naive.now.get(key)
        value = NOTHING if known is None else known[0]
        history = self._history.setdefault(key, [(0, NOTHING)])
        if history[-1][1] != value:
            history.append((self.length, value))
