"""The oracle's facts about groups: the committed log, the views that there were, who has heard what and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ...core.coordination.shard_events import Entry, Marker
from ...core.coordination.topics_view import TopicsView
from ...core.groups import records as r
from ..errors import require
from .naive import Naive
from .world import World

if TYPE_CHECKING:
    from .clients import Client

MAX_SIZE = 30
"""Members and ids that a classic group may have."""
MAX_POLL = 8.0
"""Seconds: of every client; a member of the consumer protocol has as long to let partitions go."""
LONGEST_SESSION = 12.0
"""Seconds: of every member, with what a new coordinator adds to it when it has loaded."""
LONGEST_ANSWER = 8.0
"""Seconds from a member's request to the answer: it is parked, and a write to its group must be committed."""
Place = tuple[str, str, int]
"""Group, topic id and partition."""


@attrs.frozen
class Batch:
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


class Facts:
    """The committed log, and what nodes and clients have said and done."""

    def __init__(self, world: World, view: TopicsView) -> None:
        self.world = world
        self.log: list[Entry | Marker] = []
        """The committed log, uncompacted."""
        self.views = [view]
        self.naive = Naive()
        self._written: dict[tuple[int, int], Batch] = {}
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
        self._stored: set[tuple[str, str]] = set()
        """Members that were ever written of a classic group."""
        self._dealt: dict[str, dict[str, frozenset[r.TopicPartition]]] = {}
        """The target of each group, by member."""
        self._pending_since: dict[tuple[str, str], tuple[Any, float]] = {}
        """The partitions that a member is to let go, and since when."""
        self._gone: dict[tuple[str, str], float] = {}
        """When a member was put out, or left."""
        self.clients: list[Client] = []
        self.processed: dict[Place, set[int]] = {}
        self.calm_since: float | None = None
        """When all faults have ended."""
        self.batches = self.handed = self.commits = self.rebalances = 0

    def saw(self, view: TopicsView) -> None:
        self.views.append(view)

    def _was_remade(self, topic: str) -> bool:
        """Whether a topic is not what it was at the beginning, or was gone for some time."""
        ids = {view.topics[topic].topic_id if topic in view.topics else None for view in self.views}
        return len(ids) > 1

    def is_ambiguous(self, partition: r.TopicPartition) -> bool:
        """Whether there has been another topic of its name: records of offsets say only names."""
        names = {view.names[partition.topic_id] for view in self.views if partition.topic_id in view.names}
        ids = {view.topics[name].topic_id for view in self.views for name in names if name in view.topics}
        return len(ids) > 1

    def _check_read(self, key: r.OffsetKey, offset: int, since: int) -> None:
        """G2: what was told was so at some time between the question and the answer."""
        history = self._offsets.get(key, [(0, -1)])
        latest = [value for at, value in history if at <= since][-1:]
        legal = latest + [value for at, value in history if at > since]
        require(offset in legal, "G2", f"{key}: told {offset}, may be {legal}")
