"""What was sent, acknowledged, seen and found, and whether it fits together. Knows nothing of insync's code."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import attrs

Place = tuple[str, int]
"""Topic and partition."""

Acks = Literal["all", "1", "0"]


@attrs.frozen
class Violation:
    """A broken promise: which, where, and what was found."""

    promise: str
    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.place[0]}-{self.place[1]}: {self.text}"


@attrs.define
class History:
    """Kept by producers and consumers while the cluster runs.

    Values are `writer:sequence`, unique in a place; a writer's sequences rise. `acked`: offset -> value of
    acks=all. `seen`: offset -> value, of every consumer together.
    """

    acked: dict[Place, dict[int, bytes]] = attrs.field(factory=lambda: defaultdict(dict))
    seen: dict[Place, dict[int, bytes]] = attrs.field(factory=lambda: defaultdict(dict))
    last_ack: dict[Place, float] = attrs.field(factory=dict)
    sent: dict[Acks, int] = attrs.field(factory=lambda: {"all": 0, "1": 0, "0": 0})
    acknowledged: dict[Acks, int] = attrs.field(factory=lambda: {"all": 0, "1": 0, "0": 0})
    failed: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    failed_all: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    """Of these, acks=all records that were accepted and not acknowledged."""
    sent_at: array[float] = attrs.field(factory=lambda: array("d"))
    took: array[float] = attrs.field(factory=lambda: array("d"))
    """When each acknowledged acks=all record was sent, and how long its acknowledgement took, in seconds."""
    violations: list[Violation] = attrs.field(factory=list)

    def ack(self, place: Place, offset: int, value: bytes, now: float, took: float = 0.0) -> None:
        """An acks=all record was acknowledged at an offset, after `took` seconds."""
        other = self.acked[place].setdefault(offset, value)
        if other != value:
            self._broken("an offset is acknowledged once", place, f"{offset}: {other!r} and {value!r}")
        self.last_ack[place] = now
        self.sent_at.append(now - took)
        self.took.append(took)

    def latencies(self, since: float, until: float) -> list[float]:
        """How long the acknowledgements of what was sent in that time took, in rising order."""
        return sorted(took for at, took in zip(self.sent_at, self.took, strict=True) if since <= at < until)

    def see(self, place: Place, offset: int, value: bytes, expected: int) -> None:
        """A consumer read a record; `expected` is the offset after the one that it read before."""
        other = self.seen[place].setdefault(offset, value)
        if other != value:
            self._broken("an offset keeps its record", place, f"{offset}: {other!r}, then {value!r}")
        if offset != expected:
            self._broken("consumers skip and repeat nothing", place, f"{offset} after {expected - 1}")

    def unread(self, place: Place, text: str) -> None:
        self._broken("consumers read all that is acknowledged", place, text)

    def lost_position(self, place: Place, text: str) -> None:
        self._broken("what consumers saw stays", place, text)

    def _broken(self, promise: str, place: Place, text: str) -> None:
        self.violations.append(Violation(promise, place, text))


@attrs.frozen
class Verdict:
    """lost: acknowledged and not there. duplicated: values of acks=all that are there more than once."""

    lost: int
    duplicated: int
    violations: list[Violation]


Replica = Sequence[tuple[int, bytes]]
"""Offset and value of every record of one replica, in the order of its files."""


def judge(history: History, replicas: Mapping[Place, Mapping[int, Replica]]) -> Verdict:
    """Compare the history with what each node has on disk after it stopped in good order."""
    violations = list(history.violations)
    lost = duplicated = 0
    for place, by_node in sorted(replicas.items()):
        found = violations, place
        first_node, first = min(by_node.items())
        for node, records in by_node.items():
            _check_offsets(*found, node, records)
            if list(records) != list(first):
                _report(*found, "replicas are equal", _difference(first_node, first, node, records))
        content = dict(first)
        lost += _check_present(*found, "what is acknowledged stays", history.acked.get(place, {}), content)
        _check_present(*found, "what consumers saw stays", history.seen.get(place, {}), content)
        if place in history.acked:
            duplicated += _check_writers(*found, first)
    absent = history.acked.keys() - replicas.keys()
    for place in sorted(absent):
        lost += len(history.acked[place])
        _report(violations, place, "what is acknowledged stays", "the whole partition is gone")
    return Verdict(lost, duplicated, violations)


def _report(violations: list[Violation], place: Place, promise: str, text: str) -> None:
    violations.append(Violation(promise, place, text))


def _check_offsets(violations: list[Violation], place: Place, node: int, records: Replica) -> None:
    for (before, _), (after, _) in pairwise(records):
        if after != before + 1:
            _report(violations, place, "offsets are contiguous", f"node {node}: {after} after {before}")
            return


def _check_present(
    violations: list[Violation],
    place: Place,
    promise: str,
    wanted: Mapping[int, bytes],
    content: Mapping[int, bytes],
) -> int:
    """How many are missing; the first of them is reported."""
    missing = [offset for offset, value in wanted.items() if content.get(offset) != value]
    if missing:
        at = min(missing)
        text = f"{at}: {wanted[at]!r}, but there is {content.get(at)!r}; {len(missing)} in all"
        _report(violations, place, promise, text)
    return len(missing)


def _check_writers(violations: list[Violation], place: Place, records: Replica) -> int:
    """Idempotent writers: every value once, each writer's in order. Returns how many are there again."""
    last: dict[bytes, int] = {}
    again = 0
    for offset, value in records:
        writer, _, sequence = value.partition(b":")
        number = int(sequence)
        if number <= last.get(writer, -1):
            again += 1
            if again == 1:
                text = f"{offset}: {value!r} after {writer.decode()}:{last[writer]}"
                _report(violations, place, "idempotent writers' records are there once and in order", text)
        else:
            last[writer] = number
    return again


def _difference(first_node: int, first: Replica, node: int, records: Replica) -> str:
    for (offset, value), (other_offset, other) in zip(first, records, strict=False):
        if (offset, value) != (other_offset, other):
            return f"node {first_node} has {value!r} at {offset}, node {node} {other!r} at {other_offset}"
    ends = [records_[-1][0] + 1 if records_ else 0 for records_ in (first, records)]
    return f"node {first_node} ends at {ends[0]}, node {node} at {ends[1]}"


def slowest(last_acks: Mapping[Place, float], places: Iterable[Place], since: float) -> float | None:
    """Seconds from `since` until every place had been acknowledged something after it; None: not yet."""
    times = [last_acks.get(place, 0.0) for place in places]
    return max(times) - since if times and min(times) > since else None
