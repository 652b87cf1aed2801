"""The state machine of one partition of `__transaction_state`: every transactional id that leads there."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from ..coordination.bounds import check_transaction
from ..coordination.decisions import Clock, Decision, Note, OutwardMachine, Proof, Reply
from ..coordination.refusals import GroupRefusal
from ..coordination.shard_events import Entry, Marker
from ..coordination.timers import Timers
from ..errors import ErrorCode
from ..messages import transactions as tm
from ..messages.admin import PartitionName
from . import epochs as epochs
from .marker_queue import Leaders, MarkerQueue, MarkersAnswered
from .records import LAST_EPOCH, Status, TransactionKey, TransactionValue

IDS_AT_ONCE = 10
"""Producer ids that are asked for at a time; those that are left when the leadership ends are never used."""
_SWEEP, _EXPIRE, _RETRY = "sweep", "expire", "retry"
_EXPIRED_AT_ONCE = 1_000
BRIEFLY = 0.02
"""Seconds for which a client waits that adds partitions while its previous transaction ends; it would wait for as
long before it asks again."""
_TAKEN_OVER = "another producer has taken the transactional id over"
_MOST_TOLD = 10_000
"""Transactions of one listing."""


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds. `max_timeout_ms`: the longest that a producer may ask for (`transaction_max_timeout_ms`).

    `expiration_ms`: after so long without use a transactional id is forgotten (`transactional_id_expiration_ms`).
    `abort_interval_ms`, `expire_interval_ms`: how often timeouts and expirations are looked for. `last_epoch`: of
    a producer id (see `epochs.Supply`); a simulation has fewer.
    """

    max_timeout_ms: int = 900_000
    expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    expire_interval_ms: int = 3_600_000
    last_epoch: int = LAST_EPOCH


class AllocateIds(msgspec.Struct, frozen=True):
    """Have so many producer ids kept for this coordinator, by the metadata store; told by `IdsAllocated`."""

    count: int


class IdsAllocated(msgspec.Struct, frozen=True):
    """Nobody else is given these ids; none if it failed, then they are asked for again."""

    first: int
    count: int


class ReadRevision(msgspec.Struct, frozen=True):
    """Have the metadata store's revision read, after this; told by `RevisionRead`."""


class RevisionRead(msgspec.Struct, frozen=True):
    """The store was at `revision`, or beyond; None if it could not be read, then it is asked for again."""

    revision: int | None


class TransactionCoordinator(OutwardMachine):
    """A `StateMachine` for `Shard`. Transactional ids are independent of each other in all but their log."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings if settings is not None else TransactionSettings()
        self.transactions: dict[str, TransactionValue] = {}
        self.statuses: Counter[Status] = Counter()
        """How many transactional ids are in each state."""
        self.markers = MarkerQueue()
        self._view: Leaders | None = None
        self._timers: Timers[str | int] = Timers()
        """Of the coordinator, by name, and of requests that wait briefly, by number."""
        self._active = False
        self._ongoing: dict[str, None] = {}
        self._revisions: dict[str, dict[tuple[str, int], int]] = {}
        """Of open transactions: at which revision of the store each partition was there."""
        self._parked: dict[int, tm.Request] = {}
        self._waiting: dict[str, list[int]] = {}
        """Requests that wait for the end of a transaction, by its id."""
        self._needy: list[int] = []
        """Requests that wait for a producer id."""
        self._runnable: deque[int] = deque()
        self._impatient: deque[int] = deque()
        """Requests that have waited for as long as they do."""
        self._ids: deque[int] = deque()
        self._wants_ids = self._asked_ids = False
        self._wants_revision = self._asked_revision = False
        self._late: list[str] = []
        self._expiring: list[str] = []

    # The log

    def apply(self, entry: Entry) -> None:
        assert isinstance(entry.key, TransactionKey)
        name, value = entry.key.transactional_id, entry.value
        before = self.transactions.pop(name, None)
        if before is not None:
            self.statuses[before.status] -= 1
        if value is not None:
            self.transactions[name] = value
            self.statuses[value.status] += 1
        self._ongoing.pop(name, None)
        if value is not None and value.status is Status.ONGOING:
            self._ongoing[name] = None
        if not self._active:
            return
        if value is not None and value.status.is_prepared:
            self.markers.begin(name, value, entry.offset, self._revisions.pop(name, {}))
        else:
            self.markers.forget(name)
            self._runnable.extend(self._waiting.pop(name, ()))

    def mark(self, marker: Marker) -> frozenset[str]:
        """Nothing here is written in transactions."""
        return frozenset()

    def activate(self, clock: Clock) -> None:
        self._active = True
        for name, value in self.transactions.items():
            if value.status.is_prepared:
                self.markers.begin(name, value, -1, {})
        # What is to be ended was added before now: topics that are not there at a later revision are gone.
        self._wants_revision = True
        self._timers.set(_SWEEP, clock.now)
        self._timers.set(_EXPIRE, clock.now + self.settings.expire_interval_ms / 1000)

    def view_changed(self, view: Any) -> None:
        self._view = view
        self.markers.view_changed()

    def holds(
        self, name: str, producer_id: int, producer_epoch: int, partitions: Iterable[tuple[str, int]]
    ) -> bool:
        """Whether these partitions belong to the open transaction of exactly these ids."""
        value = self.transactions.get(name)
        return (
            value is not None
            and value.status is Status.ONGOING
            and (value.producer_id, value.producer_epoch) == (producer_id, producer_epoch)
            and value.partitions.issuperset(partitions)
        )

    # Time

    def slip(self, seconds: float) -> None:
        self._timers.slip(seconds)

    @property
    def deadline(self) -> float | None:
        times = [each for each in (self._timers.deadline, self.markers.deadline) if each is not None]
        return min(times, default=None)

    def tick(self, clock: Clock) -> None:
        while (key := self._timers.pop(clock.now)) is not None:
            if key == _SWEEP:
                self._late = [name for name in self._ongoing if self._is_late(name, clock)]
                self._timers.set(_SWEEP, clock.now + self.settings.abort_interval_ms / 1000)
            elif key == _EXPIRE:
                self._expiring = [name for name in self.transactions if self._is_expired(name, clock)]
                self._timers.set(_EXPIRE, clock.now + self.settings.expire_interval_ms / 1000)
            elif isinstance(key, int):
                self._impatient.append(key)
            else:
                self._asked_ids = self._asked_revision = False

    def _is_late(self, name: str, clock: Clock) -> bool:
        """By the start that is stored: a coordinator that has just loaded gives nobody more time."""
        value = self.transactions.get(name)
        if value is None or value.status is not Status.ONGOING:
            return False
        return clock.wall_ms >= value.start_ms + value.timeout_ms

    def _is_expired(self, name: str, clock: Clock) -> bool:
        value = self.transactions.get(name)
        if value is None or not value.status.is_idle:
            return False
        return clock.wall_ms >= value.last_update_ms + self.settings.expiration_ms

    # Decisions

    def decide(self, request_id: int, message: tm.Request, clock: Clock) -> Decision:
        try:
            check_transaction(message)
        except GroupRefusal as refused:
            failure = structs.replace(self.failure(message, refused.error), message=refused.message)
            return self._read(request_id, failure)
        match message:
            case tm.DescribeTransactionsRequest():
                return self._read(request_id, self._describe(message))
            case tm.ListTransactionsRequest():
                return self._read(request_id, self._list(message, clock))
        outcome = self._outcome(message, clock)
        name = message.transactional_id
        match outcome:
            case epochs.Refused(error=error, message=text):
                return self._answer(
                    request_id, name, structs.replace(self.failure(message, error), message=text)
                )
            case epochs.Told(producer_id=producer_id, producer_epoch=epoch):
                self._seen(message)
                return self._answer(request_id, name, _told(message, producer_id, epoch))
            case epochs.Waits(briefly=briefly):
                self._park(request_id, message, self._waiting.setdefault(name, []))
                if briefly:
                    self._timers.set(request_id, clock.now + BRIEFLY)
                return Decision(request_id=request_id)
            case epochs.NeedsId():
                self._park(request_id, message, self._needy)
                self._wants_ids = True
                return Decision(request_id=request_id)
        return self._write(request_id, name, message, outcome, clock)

    def _outcome(
        self,
        message: tm.InitTransactionsRequest | tm.AddPartitionsRequest | tm.EndTransactionRequest,
        clock: Clock,
    ) -> epochs.Outcome:
        value, supply = self.transactions.get(message.transactional_id), self._supply()
        ids = message.producer_id, message.producer_epoch
        match message:
            case tm.InitTransactionsRequest(timeout_ms=timeout_ms):
                if not 0 < timeout_ms <= self.settings.max_timeout_ms:
                    return epochs.Refused(
                        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                        f"transaction_timeout_ms={timeout_ms} is not from 1 to transaction_max_timeout_ms="
                        f"{self.settings.max_timeout_ms} of the nodes: choose a shorter one, or raise that setting",
                    )
                expected = ids if message.producer_id >= 0 else None
                return epochs.init(value, timeout_ms, expected, supply, clock.wall_ms)
            case tm.AddPartitionsRequest():
                partitions = frozenset((each.topic, each.partition) for each in message.partitions)
                if message.verify_only:
                    return epochs.verify(value, *ids, partitions, clock.wall_ms)
                return epochs.add(value, *ids, partitions, message.version, clock.wall_ms)
            case tm.EndTransactionRequest():
                return epochs.end(value, *ids, message.committed, message.version, supply, clock.wall_ms)

    def _supply(self) -> epochs.Supply:
        return epochs.Supply(self._ids[0] if self._ids else None, self.settings.last_epoch)

    def _park(self, request_id: int, message: tm.Request, among: list[int]) -> None:
        self._parked[request_id] = message
        among.append(request_id)

    def _write(
        self,
        request_id: int,
        name: str,
        message: tm.InitTransactionsRequest | tm.AddPartitionsRequest | tm.EndTransactionRequest,
        outcome: epochs.Changed,
        clock: Clock,
    ) -> Decision:
        value = outcome.value
        self._use_id(value)
        entries = ((TransactionKey(name), value),)
        notes: tuple[Note, ...] = ()
        if value.status.is_prepared:
            taken_over = isinstance(message, tm.InitTransactionsRequest)
            notes = (_ended(name, value, clock, "taken_over" if taken_over else "asked"),)
        if outcome.then_waits:

            def park() -> None:
                self._park(request_id, message, self._waiting.setdefault(name, []))

            return Decision(request_id=request_id, entries=entries, then=park, notes=notes)

        reply = Reply(
            request_id=request_id,
            body=_told(message, *value.told),
            groups=frozenset({name}),
            proof=Proof.NONE,
        )
        then = partial(self._seen, message)
        return Decision(request_id=request_id, entries=entries, replies=(reply,), then=then, notes=notes)

    def _seen(self, message: tm.Request) -> None:
        """The sender of a request has these partitions in its view.

        That counts also for those that belong to the transaction already: their topic may be a new one by now.
        """
        if isinstance(message, tm.AddPartitionsRequest):
            there = self._revisions.setdefault(message.transactional_id, {})
            for each in message.partitions:
                place = each.topic, each.partition
                there[place] = max(there.get(place, 0), message.view_revision)

    def _use_id(self, value: TransactionValue) -> None:
        if self._ids and self._ids[0] in (value.producer_id, value.next_producer_id):
            self._ids.popleft()

    def _answer(self, request_id: int, name: str, body: Any) -> Decision:
        """Something that is so already, or is refused: true only if nobody else coordinates by now."""
        reply = Reply(request_id=request_id, body=body, groups=frozenset({name}), proof=Proof.READ)
        return Decision(request_id=request_id, replies=(reply,))

    def _read(self, request_id: int, body: Any) -> Decision:
        reply = Reply(request_id=request_id, body=body, groups=None, proof=Proof.READ)
        return Decision(request_id=request_id, replies=(reply,))

    def may_share(self, message: Any) -> bool:
        """None: each is decided on what the one before it has written."""
        return False

    def due(self, clock: Clock) -> Decision | None:
        while self._impatient:
            request_id = self._impatient.popleft()
            message = self._parked.get(request_id)
            if isinstance(message, tm.AddPartitionsRequest):
                self.withdrawn(request_id, clock)
                still = epochs.still_ending()
                failure = structs.replace(self.failure(message, still.error), message=still.message)
                return self._answer(request_id, message.transactional_id, failure)
        while self._runnable:
            request_id = self._runnable.popleft()
            message = self._parked.pop(request_id, None)
            if message is not None:
                self._timers.cancel(request_id)
                decision = self.decide(request_id, message, clock)
                if decision.entries or decision.replies:
                    return decision
        if (refused := self.markers.take_refused()) is not None:
            return Decision(notes=(_refused(*refused),))
        for name in self.markers.finished():
            done = epochs.complete(self.transactions[name], clock.wall_ms)
            return Decision(entries=((TransactionKey(name), done),))
        if not self._late and not self._expiring:  # as after almost every event
            return None
        return self._abort_late(clock) or self._expire(clock)

    def _abort_late(self, clock: Clock) -> Decision | None:
        for name in self._take_late(clock):
            value = self.transactions[name]
            # The producer itself may go on with its old epoch: it is told the next one (KIP-588).
            aborted = epochs.prepare(value, False, value.producer_epoch, self._supply(), clock.wall_ms)
            if aborted is None:
                self._wants_ids = True
                self._late.pop()
                continue
            self._use_id(aborted)
            notes = (_ended(name, aborted, clock, "timeout"),)
            return Decision(entries=((TransactionKey(name), aborted),), notes=notes)
        return None

    def _take_late(self, clock: Clock) -> Iterator[str]:
        while self._late:
            if self._is_late(self._late[-1], clock):
                yield self._late[-1]
            else:
                self._late.pop()

    def _expire(self, clock: Clock) -> Decision | None:
        gone = [name for name in self._expiring if self._is_expired(name, clock)][:_EXPIRED_AT_ONCE]
        self._expiring = gone and self._expiring
        return Decision(entries=tuple((TransactionKey(name), None) for name in gone)) if gone else None

    def withdrawn(self, request_id: int, clock: Clock) -> None:
        self._parked.pop(request_id, None)
        self._timers.cancel(request_id)
        for among in (self._needy, *self._waiting.values()):
            if request_id in among:
                among.remove(request_id)

    def failure(self, message: Any, error: ErrorCode, leader: int = -1, leader_epoch: int = -1) -> Any:
        return tm.RESPONSES[type(message)](error=error, leader=leader, leader_epoch=leader_epoch)

    # The world outside

    def heard(self, message: Any, clock: Clock) -> None:
        match message:
            case MarkersAnswered():
                self.markers.answered(message, clock.now)
            case IdsAllocated(first=first, count=count) if count:
                self._asked_ids = self._wants_ids = False
                self._ids.extend(range(first, first + count))
                self._runnable.extend(self._needy)
                self._needy = []
                self._late = [name for name in self._ongoing if self._is_late(name, clock)]
            case RevisionRead(revision=revision) if revision is not None:
                self._asked_revision = self._wants_revision = False
                self.markers.loaded_revision = revision
                self.markers.view_changed()
            case _:
                self._timers.set(_RETRY, clock.now + 1.0)

    def send(self, high_watermark: int, leader_epoch: int, clock: Clock) -> list[object]:
        found: list[object] = []
        if self._wants_revision and not self._asked_revision:
            self._asked_revision = True
            found.append(ReadRevision())
        if self._wants_ids and not self._asked_ids:
            self._asked_ids = True
            found.append(AllocateIds(IDS_AT_ONCE))
        if self._view is not None and len(self.markers):
            found += self.markers.send(self._view, high_watermark, leader_epoch, clock.now)
        return found

    # What is told

    def _describe(self, message: tm.DescribeTransactionsRequest) -> tm.DescribeTransactionsResponse:
        found = []
        for name in message.transactional_ids:
            value = self.transactions.get(name)
            if value is None:
                error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                found.append(tm.TransactionDescription(transactional_id=name, error=error))
                continue
            found.append(
                tm.TransactionDescription(
                    transactional_id=name,
                    status=value.status.name,
                    producer_id=value.producer_id,
                    producer_epoch=value.producer_epoch,
                    timeout_ms=value.timeout_ms,
                    start_ms=value.start_ms,
                    partitions=_names(value.partitions),
                    refused=_names(self.markers.refused(name)),
                )
            )
        return tm.DescribeTransactionsResponse(transactions=found)

    def _list(self, message: tm.ListTransactionsRequest, clock: Clock) -> tm.ListTransactionsResponse:
        found = [
            tm.TransactionListing(
                transactional_id=name, producer_id=value.producer_id, status=value.status.name
            )
            for name, value in sorted(self.transactions.items())
            if (not message.statuses or value.status.name in message.statuses)
            and (not message.producer_ids or value.producer_id in message.producer_ids)
            and (
                message.longer_than_ms < 0
                or (value.start_ms >= 0 and clock.wall_ms - value.start_ms >= message.longer_than_ms)
            )
        ]
        return tm.ListTransactionsResponse(transactions=found[:_MOST_TOLD])


def _names(places: Iterable[tuple[str, int]]) -> list[PartitionName]:
    return [PartitionName(topic=topic, partition=partition) for topic, partition in sorted(places)]


def _refused(name: str, place: tuple[str, int]) -> Note:
    """For the operator: a transaction that does not end."""
    topic, partition = place
    details = {"cause": "refused", "topic": topic, "partition": partition}
    return Note(group=name, reason="its leader has an epoch that forbids the marker", details=details)


def _ended(name: str, value: TransactionValue, clock: Clock, cause: str) -> Note:
    """For the operator: the outcome of a transaction, and why it has this one."""
    why = {
        "timeout": f"it was open for longer than its timeout of {value.timeout_ms} ms",
        "taken_over": _TAKEN_OVER,
    }
    return Note(
        group=name,
        reason=why.get(cause, ""),
        details={
            "cause": cause,
            "committed": value.status.is_committed,
            "producer_id": value.producer_id,
            "partitions": len(value.partitions),
            "seconds": max(0.0, (clock.wall_ms - value.start_ms) / 1000),
        },
    )


def _told(message: tm.Request, producer_id: int, producer_epoch: int) -> Any:
    if isinstance(message, tm.AddPartitionsRequest):
        return tm.AddPartitionsResponse()
    return tm.ProducerIdResponse(producer_id=producer_id, producer_epoch=producer_epoch)
