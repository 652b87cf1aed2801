"""The cluster's changes, as reported by its nodes: each once, in words, and as a timeline of each ISR."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import attrs

from ...replication.client import ChangeInfo, NodeChanges
from ...replication.client.admin import PartitionInfo
from ._look import At

REMEMBERED = 20_000
"""About 20 MiB. Nodes remember less, so a dashboard that runs for long knows more than any of them."""

Facts = dict[str, str | int | list[int]]


@attrs.frozen
class Change:
    """at: in seconds since 1970, by the clock of the node that told it."""

    at: float
    name: str
    facts: Facts
    told_by: int

    @property
    def partition(self) -> At | None:
        text = self.facts.get("partition")
        if not isinstance(text, str):
            return None
        topic, dash, number = text.rpartition("-")
        return (topic, int(number)) if dash and number.isascii() and number.isdigit() else None

    @property
    def why(self) -> str:
        return str(self.facts.get("why", ""))

    def ids(self, name: str) -> tuple[int, ...]:
        """A fact that is a list of nodes; what a node of another version tells otherwise is as good as none."""
        found = self.facts.get(name)
        return tuple(found) if isinstance(found, list) else ()

    def number(self, name: str) -> int:
        found = self.facts.get(name)
        return found if isinstance(found, int) else -1


class ChangeLog:
    """All changes in the order of their times."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._changes: deque[Change] = deque()
        self._places: dict[object, Change] = {}
        self._most = remembered
        self.known: dict[int, NodeChanges] = {}
        """The last answer of each node, for the next question."""
        self.version = 0
        """Grows with every change of what is here."""
        self._by_partition: dict[At, list[Change]] = {}
        self._indexed = 0

    def __iter__(self) -> Iterator[Change]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, told: Sequence[NodeChanges]) -> int:
        """Take in the nodes' answers; gives how many changes nobody had told before."""
        fresh = []
        for node in told:
            self.known[node.node_id] = node
            for each in node.changes:
                found = self._take(node.node_id, each)
                if found is not None:
                    fresh.append(found)
        if fresh:
            # Nodes are asked at the same time and answer in any order; only the newest part can be out of order.
            ordered = sorted((*self._changes, *fresh), key=lambda each: each.at)
            for gone in ordered[: -self._most]:
                self._places.pop(_key(gone), None)
            self._changes = deque(ordered[-self._most :])
            self.version += 1
        return len(fresh)

    def _take(self, node: int, info: ChangeInfo) -> Change | None:
        change = Change(info.at_ms / 1000, info.name, info.facts, node)
        if change.name == "cluster_read":
            return None
        key = _key(change)
        known = self._places.get(key)
        if known is None:
            self._places[key] = change
            return change
        if node == change.number("leader") and known.told_by != node:
            # The leader wrote it, most likely, and knows why; the others concluded it.
            better = attrs.evolve(known, facts=known.facts | {"why": change.why}, told_by=node)
            self._places[key] = better
            self._changes = deque(better if each is known else each for each in self._changes)
            self.version += 1
        return None

    def newest(self, count: int, topic: str = "") -> list[Change]:
        """The newest first; of one topic, or all."""
        found = []
        for change in reversed(self._changes):
            if topic and (change.partition is None or change.partition[0] != topic):
                continue
            found.append(change)
            if len(found) == count:
                break
        return found

    def of_partition(self, at: At) -> Sequence[Change]:
        """Oldest first."""
        if self._indexed != self.version:
            self._by_partition = {}
            for each in self._changes:
                if each.name == "partition_changed" and each.partition is not None:
                    self._by_partition.setdefault(each.partition, []).append(each)
            self._indexed = self.version
        return self._by_partition.get(at, ())


def _key(change: Change) -> object:
    match change.name:
        case "partition_changed":
            return (change.name, change.facts.get("partition"), change.number("partition_epoch"))
        case "node_changed":
            return (
                change.name,
                change.number("member"),
                change.number("incarnation"),
                change.facts.get("state"),
            )
        case "controller_changed":
            return (change.name, change.number("controller"), change.number("controller_epoch"))
    # Others are told by one node, or say the same within a few seconds.
    return (change.name, repr(change.facts), int(change.at / 10))


def in_words(change: Change) -> str:
    """One change as a sentence, without its reason."""
    match change.name:
        case "partition_changed":
            return _partition_in_words(change)
        case "node_changed":
            return f"node {change.number('member')} is {change.facts.get('state', 'changed')}"
        case "controller_changed":
            now = change.number("controller")
            return f"node {now} is controller" if now >= 0 else "there is no controller"
        case "partition_deleted":
            return f"{change.facts.get('partition', '?')} was deleted"
    rest = ", ".join(f"{key} {value}" for key, value in change.facts.items() if key != "why")
    return f"{change.name.replace('_', ' ')}: {rest}"


def _partition_in_words(change: Change) -> str:
    name = str(change.facts.get("partition", "?"))
    leader, was_leader = change.number("leader"), change.number("was_leader")
    isr, was_isr = change.ids("isr"), change.ids("was_isr")
    if change.number("was_partition_epoch") < 0:
        return f"{name} was created, node {leader} leads"
    parts = []
    if leader < 0 <= was_leader:
        parts.append(f"has no leader (was node {was_leader})")
    elif leader != was_leader:
        parts.append(f"is led by node {leader}" + (f" (was node {was_leader})" if was_leader >= 0 else ""))
    left = sorted(set(was_isr) - set(isr))
    came = sorted(set(isr) - set(was_isr))
    if left:
        parts.append(f"{_nodes(left)} left the ISR")
    if came:
        parts.append(f"{_nodes(came)} joined the ISR")
    return f"{name} " + ("; ".join(parts) or "was changed")


def _nodes(nodes: Sequence[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(map(str, nodes))}"


@attrs.frozen
class Span:
    """How one replica was from `start` to `end` (seconds since 1970): leads, in, out. why: of how it began."""

    node: int
    start: float
    end: float
    state: str
    why: str = ""


def timeline(changes: Iterable[Change], now: PartitionInfo, start: float, end: float) -> list[Span]:
    """The state of each replica of one partition between two times, from its changes, oldest first.

    The first change is the only source for the time before it.
    """
    spans: list[Span] = []
    ordered = list(changes)
    nodes = set(now.replicas).union(*(each.ids("replicas") for each in ordered if each.at >= start))
    for node in sorted(nodes):
        begun, why = start, ""
        state = _first_state(node, ordered[0] if ordered else None, now)
        for change in ordered:
            then = _state(node, change.number("leader"), change.ids("isr"))
            if then == state:
                continue
            if change.at > begun and state:
                spans.append(Span(node, begun, min(change.at, end), state, why))
            begun, state, why = max(begun, change.at), then, change.why
        if begun < end and state:
            spans.append(Span(node, begun, end, state, why))
    return spans


def _first_state(node: int, first: Change | None, now: PartitionInfo) -> str:
    """Before the first change that is known; empty: there was no such partition yet."""
    if first is None:
        return _state(node, now.leader, now.isr)
    if first.number("was_partition_epoch") < 0:
        return ""
    return _state(node, first.number("was_leader"), first.ids("was_isr"))


def _state(node: int, leader: int, isr: Sequence[int]) -> str:
    return "leads" if node == leader else "in" if node in isr else "out"
