"""Readings over time, in bounded memory: the longer ago, the coarser."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ...replication.cli.watching.measures import rates
from ...replication.client import GroupDescription
from ...replication.core.types import PartitionId
from ._look import At, Look

POINTS = 600
"""Of one series. It begins with one a second; whenever it is full, every second point goes and the step doubles."""
MOST_SERIES = 2_000
"""Of followers' lag: 2,000 x 600 x 16 bytes = 19 MiB. Those that have not lagged for longest are forgotten."""
MOST_TOPICS = 500


class Series:
    """Values by time (seconds since 1970), never more than `points` of them."""

    def __init__(self, points: int = POINTS, step: float = 1.0) -> None:
        self._most = points
        self.step = step
        self.at = array("d")
        self.values = array("d")

    def add(self, at: float, value: float) -> None:
        """The last value of a step counts. A clock that goes back adds nothing until it is where it was."""
        if self.at and at < self.at[-1]:
            return
        if self.at and len(self.at) > 1 and at - self.at[-2] < self.step:
            self.at[-1], self.values[-1] = at, value
            return
        self.at.append(at)
        self.values.append(value)
        if len(self.at) > self._most:
            # The newest point stays, whichever it is.
            first = (len(self.at) - 1) % 2
            self.at, self.values = self.at[first::2], self.values[first::2]
            self.step *= 2

    def since(self, at: float) -> Iterator[tuple[float, float]]:
        return (pair for pair in zip(self.at, self.values, strict=True) if pair[0] >= at)

    def __len__(self) -> int:
        return len(self.at)


@attrs.define(eq=False)
class History:
    """Readings of one dashboard: of nodes, of topics, and of followers that were behind."""

    nodes: dict[int, dict[str, Series]] = attrs.Factory(dict)
    """By node, then by rate."""
    topics: dict[str, Series] = attrs.Factory(dict)
    """Records a second."""
    lags: dict[At, dict[int, Series]] = attrs.Factory(dict)
    """By partition and follower: by how many records it is behind its leader."""
    groups: dict[str, Series] = attrs.Factory(dict)
    """By group: the lag of all its partitions, in records."""
    group_lags: dict[tuple[str, PartitionId], Series] = attrs.Factory(dict)
    """By group and partition."""
    requests: dict[str, tuple[float, float]] = attrs.Factory(dict)
    """By kind, of all nodes: how many a second, and how many seconds one took, between the last two looks."""
    takes: dict[str, float] = attrs.Factory(dict)
    """The newest rate of each topic."""
    _last: Look | None = None

    def add(self, look: Look) -> None:
        """`look` is newer than all before it."""
        if self._last is not None:
            self._add_rates(self._last, look)
        self._add_lags(look)
        self._last = look

    def add_groups(self, at: float, groups: Iterable[GroupDescription]) -> None:
        """The lag of groups and of their partitions; groups that are not named are forgotten."""
        there = {each.group: each for each in groups}
        for name, group in there.items():
            self.groups.setdefault(name, Series()).add(at, group.lag)
            for each in group.partitions:
                key = (name, PartitionId(each.topic, each.partition))
                if each.lag is not None and (key in self.group_lags or len(self.group_lags) < MOST_SERIES):
                    self.group_lags.setdefault(key, Series()).add(at, each.lag)
        self._forget(self.groups, there)
        for gone in [key for key in self.group_lags if key[0] not in there]:
            del self.group_lags[gone]

    def rates_of(self, node: int) -> Mapping[str, float]:
        """The newest ones of a node."""
        return {name: series.values[-1] for name, series in self.nodes.get(node, {}).items() if len(series)}

    def _add_rates(self, before: Look, look: Look) -> None:
        seconds = look.at - before.at
        for node, health in look.health.items():
            found = rates(before.health.get(node), health, seconds)
            of_node = self.nodes.setdefault(node, {})
            for name, value in (found or {}).items():
                of_node.setdefault(name, Series()).add(look.at, value)
            if found is None and of_node:
                for series in of_node.values():
                    series.add(look.at, 0.0)
        self._forget(self.nodes, look.health)
        self.requests = _requests(before, look, seconds)
        if seconds <= 0:
            return
        grown: dict[str, int] = dict.fromkeys(look.topics, 0)
        for at, replica in look.leading.items():
            former = before.leading.get(at)
            if former is not None and at[0] in grown:
                grown[at[0]] += max(0, replica.log_end_offset - former.log_end_offset)
        self.takes = {name: count / seconds for name, count in grown.items()}
        for name, rate in self.takes.items():
            if name in self.topics or len(self.topics) < MOST_TOPICS:
                self.topics.setdefault(name, Series()).add(look.at, rate)
        self._forget(self.topics, look.topics)

    def _add_lags(self, look: Look) -> None:
        """A follower gets a series when it is first behind; what it was before then was nothing worth keeping."""
        for at, replica in look.leading.items():
            for follower in replica.followers:
                if follower.log_end_offset < 0:
                    continue
                behind = max(0, replica.log_end_offset - follower.log_end_offset)
                known = self.lags.get(at, {}).get(follower.node_id)
                if known is not None:
                    known.add(look.at, behind)
                elif behind or not follower.in_sync:
                    self.lags.setdefault(at, {})[follower.node_id] = fresh = Series()
                    fresh.add(look.at, behind)
        for gone in [at for at in self.lags if at[0] not in look.topics]:
            del self.lags[gone]
        while sum(map(len, self.lags.values())) > MOST_SERIES:
            quietest = min(self.lags, key=lambda at: max(map(_last_behind, self.lags[at].values())))
            del self.lags[quietest]

    @staticmethod
    def _forget(kept: dict, there: Mapping) -> None:
        for gone in kept.keys() - there.keys():
            del kept[gone]


def _requests(before: Look, look: Look, seconds: float) -> dict[str, tuple[float, float]]:
    counts: dict[str, int] = {}
    micros: dict[str, int] = {}
    for node, now in look.health.items():
        former = before.health.get(node)
        if former is None or former.error or now.error or former.incarnation != now.incarnation:
            continue
        for name, value in now.counters.items():
            for prefix, sums in (("requests_", counts), ("request_us_", micros)):
                if name.startswith(prefix):
                    kind = name.removeprefix(prefix)
                    sums[kind] = sums.get(kind, 0) + value - former.counters.get(name, 0)
    return {
        kind: (count / max(1e-3, seconds), micros.get(kind, 0) / 1e6 / count)
        for kind, count in counts.items()
        if count
    }


def _last_behind(series: Series) -> float:
    """When it was behind last; 0 if it never was."""
    return next(
        (at for at, value in zip(reversed(series.at), reversed(series.values), strict=True) if value), 0.0
    )
