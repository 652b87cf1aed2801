"""Markers on their way to the partitions of transactions whose outcome is decided.

A partition is never skipped: it is done when its leader has said that the marker is committed there, or when it is
certain that its topic is gone. Completion is state, and no answer is the last one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs
import msgspec

from ..errors import ErrorCode
from ..messages.admin import PartitionName
from ..messages.transactions import MarkerOutcome, TransactionMarkers, WriteMarkersRequest
from .records import TransactionValue

FIRST_BACKOFF, MOST_BACKOFF = 0.05, 1.0
"""Seconds until a marker is sent again that has not arrived, or not where its partition is led."""
MOST_AT_ONCE = 1_000
"""Markers of one request."""

_Place = tuple[str, int]
_Name = tuple[str, _Place]
"""A transactional id, and a partition of its transaction."""


class Leaders(Protocol):
    """The leaders of partitions, as the store had them at `revision`."""

    @property
    def revision(self) -> int: ...

    def leader(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition; -1 while nobody does, None if there is no such partition."""
        ...


class SendMarkers(msgspec.Struct, frozen=True):
    """Have a node write markers, with one attempt; answered by `MarkersAnswered` of the same number, once."""

    attempt: int
    node: int
    request: WriteMarkersRequest


class MarkersAnswered(msgspec.Struct, frozen=True):
    """The answer to a `SendMarkers`; no outcomes if nobody knows."""

    attempt: int
    outcomes: tuple[MarkerOutcome, ...] = ()


@attrs.define(slots=True)
class _Marker:
    """One that is not done. `attempt`: the request that it is in, 0 for none."""

    revision: int | None
    """A view of at least this revision, without the partition, shows that it is gone; None: of no known one."""
    attempt: int = 0
    backoff: float = FIRST_BACKOFF
    is_refused: bool = False
    """By the leader, and not only by one that does not lead any more: it has an epoch that forbids the marker."""


@attrs.define(slots=True)
class _Ending:
    value: TransactionValue
    offset: int
    markers: dict[_Place, _Marker]


class MarkerQueue:
    """All transactions of one coordinator that are being ended. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._endings: dict[str, _Ending] = {}
        self._uncommitted: deque[tuple[int, str]] = deque()
        """Offsets of records that the high watermark must pass before anybody is told."""
        self._ready: dict[_Name, None] = {}
        self._later: list[tuple[float, _Name]] = []
        self._blind: dict[_Name, None] = {}
        """Without a leader: looked at when the view changes."""
        self._sent: dict[int, list[_Name]] = {}
        self._finished: dict[str, None] = {}
        self._attempts = 0
        self.loaded_revision: int | None = None
        """Of the store, read when this coordinator had loaded: topics of older transactions were made before it."""
        self.fenced = 0
        """Markers that a partition has refused although they are awaited."""
        self._untold: deque[_Name] = deque()
        """Those of which the operator is yet to be told."""

    def __len__(self) -> int:
        """Transactions that are being ended."""
        return len(self._endings)

    def begin(self, name: str, value: TransactionValue, offset: int, revisions: Mapping[_Place, int]) -> None:
        """The outcome stands at `offset`. `revisions`: of the store, at which a partition was there."""
        self.forget(name)
        markers = {place: _Marker(revisions.get(place)) for place in sorted(value.partitions)}
        self._endings[name] = _Ending(value, offset, markers)
        self._uncommitted.append((offset, name))

    def forget(self, name: str) -> None:
        """Its end is complete."""
        ending = self._endings.pop(name, None)
        if ending is None:
            return
        self._finished.pop(name, None)
        for place in ending.markers:
            self._ready.pop((name, place), None)
            self._blind.pop((name, place), None)

    def refused(self, name: str) -> frozenset[_Place]:
        """Partitions that refuse the awaited marker of a transaction: without help it never ends there."""
        ending = self._endings.get(name)
        if ending is None:
            return frozenset()
        return frozenset(place for place, marker in ending.markers.items() if marker.is_refused)

    def take_refused(self) -> _Name | None:
        """A marker that was refused for the first time, and of which nobody has been told."""
        return self._untold.popleft() if self._untold else None

    def finished(self) -> Iterable[str]:
        """Those whose every partition knows the outcome."""
        return self._finished

    @property
    def deadline(self) -> float | None:
        """When some marker is to be sent again."""
        return self._later[0][0] if self._later else None

    def view_changed(self) -> None:
        """Leaders may have moved: whatever is not on its way is looked at now."""
        self._ready |= self._blind
        self._blind = {}
        for _, name in self._later:
            self._make_ready(name)
        self._later = []

    def send(
        self, view: Leaders, high_watermark: int, coordinator_epoch: int, now: float
    ) -> list[SendMarkers]:
        """The requests that are due, one or more for each node."""
        while self._uncommitted and self._uncommitted[0][0] < high_watermark:
            offset, transactional_id = self._uncommitted.popleft()
            ending = self._endings.get(transactional_id)
            if ending is not None and ending.offset == offset:
                self._ready |= {(transactional_id, place): None for place in ending.markers}
                self._look(transactional_id, ending)
        while self._later and self._later[0][0] <= now:
            self._make_ready(heapq.heappop(self._later)[1])
        if not self._ready:
            return []
        ready, self._ready = self._ready, {}
        by_node: dict[int, list[_Name]] = {}
        for name in ready:
            node = self._target(name, view)
            if node is not None:
                by_node.setdefault(node, []).append(name)
        found = []
        for node, names in sorted(by_node.items()):
            for start in range(0, len(names), MOST_AT_ONCE):
                found.append(self._request(node, names[start : start + MOST_AT_ONCE], coordinator_epoch))
        return found

    def _make_ready(self, name: _Name) -> None:
        ending = self._endings.get(name[0])
        marker = ending.markers.get(name[1]) if ending is not None else None
        if marker is not None and not marker.attempt:
            self._ready[name] = None

    def _target(self, name: _Name, view: Leaders) -> int | None:
        """The node to send a marker to; None if it waits, or is done because its partition is gone."""
        ending = self._endings[name[0]]
        topic, partition = name[1]
        leader = view.leader(topic, partition)
        if leader is not None and leader >= 0:
            return leader
        known = ending.markers[name[1]].revision
        known = self.loaded_revision if known is None else known
        if leader is None and known is not None and view.revision >= known:
            self._done(name)
        else:
            self._blind[name] = None
        return None

    def _request(self, node: int, names: list[_Name], coordinator_epoch: int) -> SendMarkers:
        self._attempts += 1
        self._sent[self._attempts] = names
        by_id: dict[str, list[PartitionName]] = {}
        for transactional_id, place in names:
            self._endings[transactional_id].markers[place].attempt = self._attempts
            topic, partition = place
            by_id.setdefault(transactional_id, []).append(PartitionName(topic=topic, partition=partition))
        markers = [
            _markers(transactional_id, self._endings[transactional_id].value, partitions)
            for transactional_id, partitions in by_id.items()
        ]
        return SendMarkers(
            attempt=self._attempts,
            node=node,
            request=WriteMarkersRequest(coordinator_epoch=coordinator_epoch, markers=markers),
        )

    def answered(self, event: MarkersAnswered, now: float) -> None:
        """The answer to an attempt; each of its markers is done, or will be sent again."""
        said = {(each.producer_id, (each.topic, each.partition)): each.error for each in event.outcomes}
        for name in self._sent.pop(event.attempt, ()):
            ending = self._endings.get(name[0])
            marker = ending.markers.get(name[1]) if ending is not None else None
            if ending is None or marker is None or marker.attempt != event.attempt:
                continue
            marker.attempt = 0
            error = said.get((ending.value.producer_id, name[1]))
            if error == ErrorCode.NONE:
                self._done(name)
                continue
            if error in _FENCING:
                self.fenced += 1
                if not marker.is_refused:
                    self._untold.append(name)
            marker.is_refused = error in _FENCING
            heapq.heappush(self._later, (now + marker.backoff, name))
            marker.backoff = min(2 * marker.backoff, MOST_BACKOFF)

    def _done(self, name: _Name) -> None:
        ending = self._endings[name[0]]
        del ending.markers[name[1]]
        self._look(name[0], ending)

    def _look(self, name: str, ending: _Ending) -> None:
        if not ending.markers:
            self._finished[name] = None


def _markers(name: str, value: TransactionValue, partitions: list[PartitionName]) -> TransactionMarkers:
    return TransactionMarkers(
        transactional_id=name,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        committed=value.status.is_committed,
        version=value.client_version,
        start_ms=value.start_ms,
        partitions=partitions,
    )


_FENCING = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
