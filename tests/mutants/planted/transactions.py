"""Errors in what transactions are: their epochs, their partitions, their markers, and what readers get of them."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.coordination.decisions import Clock, Decision
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import events as ev
from insync.replication.core.partition import transaction_gate
from insync.replication.core.partition.open_transactions import OpenTransactions
from insync.replication.core.partition.producers import ProducerTable, SequenceVerdict
from insync.replication.core.partition.transaction_gate import TransactionGate
from insync.replication.core.transactions import epochs as transaction_epochs
from insync.replication.core.transactions import marker_queue
from insync.replication.core.transactions.epochs import Outcome, Told
from insync.replication.core.transactions.marker_queue import MarkerQueue
from insync.replication.core.transactions.records import Status, TransactionValue
from insync.replication.core.transactions.shard import TransactionCoordinator

from ..catalogue import Patch, mutant

# Epochs


@mutant("TZ1", "an end does not raise the epoch, so a late end ends the next transaction (KAFKA-17754)")
def _(patch: Patch) -> None:
    def prepare(now: TransactionValue, committed: bool, last: int, supply: Any, wall: int) -> Any:
        status = Status.PREPARE_COMMIT if committed else Status.PREPARE_ABORT
        return structs.replace(now, status=status, last_update_ms=wall, last_epoch=last)

    patch.setattr(transaction_epochs, "prepare", prepare)


@mutant("TZ16", "epochs continue past the last one (KAFKA-20090)")
def _(patch: Patch) -> None:
    patch.setattr(transaction_epochs, "_is_at_its_end", lambda now, supply: False)


@mutant("TZ21", "a commit that arrives after the timeout's abort is answered as carried out (KAFKA-20785)")
def _(patch: Patch) -> None:
    right = transaction_epochs.end

    def end(now: TransactionValue | None, *rest: Any) -> Outcome:
        outcome = right(now, *rest)
        if isinstance(outcome, transaction_epochs.Refused) and outcome.error == ErrorCode.TRANSACTION_ABORTED:
            assert now is not None
            return Told(*now.told)
        return outcome

    patch.setattr(transaction_epochs, "end", end)


@mutant("TZ22", "an end with any epoch of the producer id counts (KAFKA-9600)")
def _(patch: Patch) -> None:
    right = transaction_epochs.end

    def end(now: TransactionValue | None, producer_id: int, epoch: int, *rest: Any) -> Outcome:
        known = now is not None and producer_id == now.producer_id and now.status is Status.ONGOING
        return right(now, producer_id, now.producer_epoch if known and now else epoch, *rest)

    patch.setattr(transaction_epochs, "end", end)


@mutant("TZ24", "a transaction does not time out")
def _(patch: Patch) -> None:
    patch.setattr(TransactionCoordinator, "_is_late", lambda self, name, clock: False)


@mutant("TZ18", "a producer that continues with outdated ids is admitted (KIP-360)")
def _(patch: Patch) -> None:
    right = transaction_epochs.init

    def init(
        now: TransactionValue | None, timeout_ms: int, expected: Any, supply: Any, wall_ms: int
    ) -> Outcome:
        return right(now, timeout_ms, None, supply, wall_ms)

    patch.setattr(transaction_epochs, "init", init)


@mutant("TZ38", "a producer that was late once is aborted later, whatever is open by then (redpanda#18120)")
def _(patch: Patch) -> None:
    right = TransactionCoordinator.tick

    def tick(self: TransactionCoordinator, clock: Clock) -> None:
        before = list(self.__dict__.setdefault("_noted", []))
        self._late = []
        right(self, clock)
        if self._late:
            self.__dict__["_noted"] = list(self._late)
        self._late = [*self._late, *before]

    def take_late(self: TransactionCoordinator, clock: Clock) -> Any:
        while self._late:
            value = self.transactions.get(self._late[-1])
            if value is not None and value.status is Status.ONGOING:
                yield self._late[-1]
            else:
                self._late.pop()

    patch.setattr(TransactionCoordinator, "tick", tick)
    patch.setattr(TransactionCoordinator, "_take_late", take_late)


@mutant("TZ39", "the next producer that opens an id gets it without a new epoch")
def _(patch: Patch) -> None:
    right = transaction_epochs.init

    def init(now: TransactionValue | None, *rest: Any) -> Outcome:
        if now is not None and now.status.is_idle:
            return Told(*now.told)
        return right(now, *rest)

    patch.setattr(transaction_epochs, "init", init)


@mutant("TZ40", "opening an id does not wait for the end of its open transaction")
def _(patch: Patch) -> None:
    right = transaction_epochs.init

    def init(now: TransactionValue | None, *rest: Any) -> Outcome:
        outcome = right(now, *rest)
        if isinstance(outcome, transaction_epochs.Waits):
            assert now is not None
            return Told(*now.told)
        return outcome

    patch.setattr(transaction_epochs, "init", init)


@mutant("TZ45", "the last epoch counts for the previous producer id, too")
def _(patch: Patch) -> None:
    right = transaction_epochs.structs.replace

    def replace(value: Any, **changes: Any) -> Any:
        if changes.get("previous_producer_id") == -1:
            del changes["previous_producer_id"]
        return right(value, **changes)

    def is_last(now: TransactionValue, producer_id: int, epoch: int) -> bool:
        return producer_id in (now.producer_id, now.previous_producer_id) and epoch == now.last_epoch >= 0

    patch.setattr(transaction_epochs, "_is_last", is_last)
    patch.setattr(transaction_epochs, "structs", type("Structs", (), {"replace": staticmethod(replace)}))


@mutant("TZ15", "a load loses the last epoch and the next producer id (KAFKA-20310, 20357)")
def _(patch: Patch) -> None:
    right = TransactionCoordinator.apply

    def apply(self: TransactionCoordinator, entry: Any) -> None:
        if not self._active and entry.value is not None:
            lost = structs.replace(entry.value, last_epoch=-1, next_producer_id=-1, previous_producer_id=-1)
            entry = structs.replace(entry, value=lost)
        right(self, entry)

    patch.setattr(TransactionCoordinator, "apply", apply)


@mutant("TZ17", "a new epoch counts although it could not be written (KAFKA-9666)")
def _(patch: Patch) -> None:
    right = TransactionCoordinator._write

    def write(self: TransactionCoordinator, *given: Any) -> Decision:
        decision = right(self, *given)
        for key, value in decision.entries:
            self.transactions[key.transactional_id] = value
        return decision

    patch.setattr(TransactionCoordinator, "_write", write)


@mutant("TZ19", "a repeated end raises the epoch again")
def _(patch: Patch) -> None:
    right = transaction_epochs.end

    def end(
        now: Any, producer_id: int, epoch: int, committed: bool, version: int, supply: Any, wall: int
    ) -> Any:
        outcome = right(now, producer_id, epoch, committed, version, supply, wall)
        if isinstance(outcome, Told) and now.status.is_idle:
            bumped = transaction_epochs._bumped(now, epoch, supply, wall)
            return outcome if bumped is None else transaction_epochs.Changed(bumped)
        return outcome

    patch.setattr(transaction_epochs, "end", end)


@mutant("TZ25", "an id expires although its transaction is open")
def _(patch: Patch) -> None:
    def is_expired(self: TransactionCoordinator, name: str, clock: Clock) -> bool:
        value = self.transactions.get(name)
        return value is not None and clock.wall_ms >= value.last_update_ms + 2_000

    patch.setattr(TransactionCoordinator, "_is_expired", is_expired)


# Adding partitions


@mutant("TZ2", "append without asking the coordinator (KAFKA-12671)")
def _(patch: Patch) -> None:
    right = TransactionGate.is_open_for

    def is_open_for(self: TransactionGate, event: ev.Produce) -> bool:
        return event.origin is ev.Origin.CLIENT or right(self, event)

    patch.setattr(TransactionGate, "is_open_for", is_open_for)


@mutant("TZ3", "a grant outlives the marker that precedes its use (KAFKA-14884)")
def _(patch: Patch) -> None:
    def mark(self: TransactionGate, event: ev.Produce) -> None:
        self._role.append(event)

    patch.setattr(TransactionGate, "_mark", mark)


@mutant("TZ4", "an open transaction of an older epoch counts as the new one's (KAFKA-18575)")
def _(patch: Patch) -> None:
    patch.setattr(
        transaction_gate, "_is_open", lambda entry, epoch: entry is not None and entry.first_offset >= 0
    )


@mutant("TZ20", "the producer id is checked before the end in progress (KAFKA-18660)")
def _(patch: Patch) -> None:
    right = transaction_epochs.add

    def add(now: TransactionValue | None, producer_id: int, *rest: Any) -> Outcome:
        if now is not None and producer_id != now.producer_id:
            return transaction_epochs.Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "another one's")
        return right(now, producer_id, *rest)

    patch.setattr(transaction_epochs, "add", add)


@mutant("TZ23", "a partition is reported as added before that is committed")
def _(patch: Patch) -> None:
    right = TransactionCoordinator._write

    def write(self: TransactionCoordinator, *given: Any) -> Decision:
        decision = right(self, *given)
        replies = tuple(structs.replace(each, groups=frozenset()) for each in decision.replies)
        return structs.replace(decision, replies=replies)

    patch.setattr(TransactionCoordinator, "_write", write)


@mutant("TZ35", "a batch outside transactions is accepted in the middle of one")
def _(patch: Patch) -> None:
    right = ProducerTable.check

    def check(self: ProducerTable, batch: Any) -> Any:
        verdict, kept = right(self, batch)
        inside = verdict is SequenceVerdict.INSIDE_TRANSACTION
        return (SequenceVerdict.ACCEPT, None) if inside else (verdict, kept)

    patch.setattr(ProducerTable, "check", check)


@mutant("TZ36", "a transaction may begin at any sequence (KIP-890)")
def _(patch: Patch) -> None:
    right = ProducerTable.check

    def check(self: ProducerTable, batch: Any) -> Any:
        verdict, original = right(self, batch)
        entry = self.get(batch.producer_id)
        newer = entry is None or batch.producer_epoch > entry.producer_epoch or not entry.batches
        if verdict is SequenceVerdict.OUT_OF_ORDER and newer:
            return SequenceVerdict.ACCEPT, None
        return verdict, original

    patch.setattr(ProducerTable, "check", check)
    patch.setattr(TransactionGate, "may_begin", lambda self, event: True)


@mutant("TZ41", "the end of a transaction omits a partition")
def _(patch: Patch) -> None:
    right = transaction_epochs.add

    def add(now: TransactionValue | None, *rest: Any) -> Outcome:
        outcome = right(now, *rest)
        if isinstance(outcome, transaction_epochs.Changed) and len(outcome.value.partitions) > 2:
            return Told(outcome.value.producer_id, outcome.value.producer_epoch)
        return outcome

    patch.setattr(transaction_epochs, "add", add)


# Markers


@mutant("TZ5", "send markers before the outcome is committed")
def _(patch: Patch) -> None:
    right = MarkerQueue.send

    def send(self: MarkerQueue, view: Any, high_watermark: int, epoch: int, now: float) -> Any:
        return right(self, view, 1 << 60, epoch, now)

    patch.setattr(MarkerQueue, "send", send)


@mutant("TZ6", "a transaction completes when one partition has its marker")
def _(patch: Patch) -> None:
    def look(self: MarkerQueue, name: str, ending: Any) -> None:
        if len(ending.markers) < len(ending.value.partitions):
            self._finished[name] = None

    patch.setattr(MarkerQueue, "_look", look)


@mutant("TZ7", "a marker is answered before it is committed")
def _(patch: Patch) -> None:
    right = TransactionGate._mark

    def mark(self: TransactionGate, event: ev.Produce) -> None:
        right(self, structs.replace(event, acks=0))

    patch.setattr(TransactionGate, "_mark", mark)


@mutant("TZ8", "a late marker of the same epoch ends the next transaction (KAFKA-19446)")
def _(patch: Patch) -> None:
    patch.setattr(transaction_gate, "_is_first_version", lambda event: True)


@mutant("TZ49", "a marker is of the version by which a partition was added, whatever that of the end")
def _(patch: Patch) -> None:
    right = transaction_epochs._prepared

    def prepared(now: TransactionValue, *rest: Any) -> TransactionValue:
        return structs.replace(right(now, *rest), client_version=now.client_version)

    patch.setattr(transaction_epochs, "_prepared", prepared)


@mutant("TZ50", "a grant outlives the marker of an end by the first version")
def _(patch: Patch) -> None:
    def mark(self: TransactionGate, event: ev.Produce) -> None:
        asked = self._asked.get(event.batch.producer_id)
        if asked is not None and (asked.tag.version < 2 or event.batch.producer_epoch > asked.epoch):
            asked.is_void = True
        self._role.append(event)

    patch.setattr(TransactionGate, "_mark", mark)


@mutant("TZ9", "a repeated marker is refused (KAFKA-19999)")
def _(patch: Patch) -> None:
    right = TransactionGate._from_coordinator

    def from_coordinator(self: TransactionGate, event: ev.Produce) -> None:
        entry = self._role.replica.log.producers.get(event.batch.producer_id)
        if entry is not None and event.batch.producer_epoch == entry.producer_epoch:
            self._role.reply(event.request_id, ErrorCode.INVALID_PRODUCER_EPOCH)
        else:
            right(self, event)

    patch.setattr(TransactionGate, "_from_coordinator", from_coordinator)


@mutant("TZ10", "markers of former coordinators count (KIP-98)")
def _(patch: Patch) -> None:
    def from_coordinator(self: TransactionGate, event: ev.Produce) -> None:
        self._mark(event)

    patch.setattr(TransactionGate, "_from_coordinator", from_coordinator)


@mutant("TZ11", "a partition without a leader is skipped")
def _(patch: Patch) -> None:
    right = MarkerQueue._target

    def target(self: MarkerQueue, name: Any, view: Any) -> int | None:
        if view.leader(*name[1]) == -1:
            self._done(name)
            return None
        return right(self, name, view)

    patch.setattr(MarkerQueue, "_target", target)


@mutant("TZ13", "the next coordinator does not continue sending the markers (KAFKA-16352)")
def _(patch: Patch) -> None:
    right = TransactionCoordinator.activate

    def activate(self: TransactionCoordinator, clock: Clock) -> None:
        right(self, clock)
        for name in list(self.markers._endings):
            self.markers.forget(name)

    patch.setattr(TransactionCoordinator, "activate", activate)


@mutant("TZ42", "a question whose answer was lost is not asked again")
def _(patch: Patch) -> None:
    right = MarkerQueue.answered

    def answered(self: MarkerQueue, event: Any, now: float) -> None:
        if event.outcomes:
            right(self, event, now)

    patch.setattr(MarkerQueue, "answered", answered)


@mutant("TZ43", "any error of a partition counts as done")
def _(patch: Patch) -> None:
    right = MarkerQueue.answered

    def answered(self: MarkerQueue, event: Any, now: float) -> None:
        done = tuple(structs.replace(each, error=0) for each in event.outcomes)
        right(self, marker_queue.MarkersAnswered(event.attempt, done), now)

    patch.setattr(MarkerQueue, "answered", answered)


# Reading


@mutant("TZ26", "the last stable offset counts markers that are not committed")
def _(patch: Patch) -> None:
    right = OpenTransactions.end

    def end(self: OpenTransactions, producer_id: int, marker_offset: int) -> None:
        right(self, producer_id, marker_offset)
        self._ended.clear()

    patch.setattr(OpenTransactions, "end", end)


@mutant("TZ27", "the last stable offset is one too far (redpanda#3036)")
def _(patch: Patch) -> None:
    right = OpenTransactions.stable_offset

    def stable_offset(self: OpenTransactions, high_watermark: int, start: int) -> int:
        found = right(self, high_watermark, start)
        return found if found == high_watermark else found + 1

    patch.setattr(OpenTransactions, "stable_offset", stable_offset)


# What a log that is read again tells


@mutant("TZ32", "producers without batches are lost when a log is read again (KAFKA-9144)")
def _(patch: Patch) -> None:
    right = ProducerTable.__init__

    def init(self: ProducerTable, entries: Any = (), ended: Any = ()) -> None:
        right(self, [each for each in entries if each.batches], ended)

    patch.setattr(ProducerTable, "__init__", init)


@mutant("TZ33", "an open transaction is lost when a log is read again (KAFKA-5435)")
def _(patch: Patch) -> None:
    right = ProducerTable.__init__

    def init(self: ProducerTable, entries: Any = (), ended: Any = ()) -> None:
        right(self, [structs.replace(each, first_offset=-1) for each in entries], ended)

    patch.setattr(ProducerTable, "__init__", init)


@mutant("TZ46", "a marker that may still be truncated is forgotten when a log is read again")
def _(patch: Patch) -> None:
    right = ProducerTable.__init__
    patch.setattr(ProducerTable, "__init__", lambda self, entries=(), ended=(): right(self, entries))
