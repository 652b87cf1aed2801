"""Errors in how a broker hosts transactions: their coordinators, gates of partitions, and the ways between them."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.broker.coordination.shards import Shards
from insync.replication.core.coordination.decisions import Decision
from insync.replication.core.coordination.shard_events import Marker
from insync.replication.core.groups.shard import GroupCoordinator
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.log_state import LogState
from insync.replication.core.partition.transaction_gate import TransactionGate
from insync.replication.core.transactions import epochs as epochs
from insync.replication.core.transactions.marker_queue import MarkerQueue, MarkersAnswered
from insync.replication.core.transactions.records import Status
from insync.replication.core.transactions.shard import TransactionCoordinator

from ..catalogue import Patch, mutant


@mutant("K250", "report a marker to the shard of the former role, in the turn in which a leadership begins")
def _(patch: Patch) -> None:
    patch.setattr(Shards, "_now_hosted", lambda self, partition: self._hosted.get(partition))


@mutant("K251", "treat a partition without a leader as done when its marker is sent (Kafka's way)")
def _(patch: Patch) -> None:
    right = MarkerQueue._target

    def target(self: MarkerQueue, name: Any, view: Any) -> int | None:
        node = right(self, name, view)
        if node is None and self._blind.pop(name, ()) is None:
            self._done(name)
        return node

    patch.setattr(MarkerQueue, "_target", target)


@mutant("K252", "ignore coordinator epochs: each coordinator numbers its own markers")
def _(patch: Patch) -> None:
    right = TransactionGate._from_coordinator

    def from_coordinator(self: TransactionGate, event: ev.Produce) -> None:
        batch, entry = event.batch, self._role.replica.log.producers.get(event.batch.producer_id)
        said = batch.marker
        if said is not None and entry is not None and said.coordinator_epoch < entry.coordinator_epoch:
            self._mark(event)
        else:
            right(self, event)

    patch.setattr(TransactionGate, "_from_coordinator", from_coordinator)
    request = MarkerQueue._request

    def numbered(self: MarkerQueue, node: int, names: Any, coordinator_epoch: int) -> Any:
        return request(self, node, names, self._attempts)

    patch.setattr(MarkerQueue, "_request", numbered)


@mutant("K253", "apply the offsets of an aborted transaction")
def _(patch: Patch) -> None:
    right = GroupCoordinator.mark

    def mark(self: GroupCoordinator, marker: Marker) -> frozenset[str]:
        return right(self, structs.replace(marker, committed=True))

    patch.setattr(GroupCoordinator, "mark", mark)


@mutant("K254", "leave the epoch as it is when another producer begins")
def _(patch: Patch) -> None:
    right = epochs.init

    def init(now: Any, *rest: Any) -> epochs.Outcome:
        outcome = right(now, *rest)
        if now is not None and isinstance(outcome, epochs.Changed) and outcome.value.status is Status.EMPTY:
            return epochs.Changed(structs.replace(outcome.value, producer_epoch=now.producer_epoch))
        return outcome

    patch.setattr(epochs, "init", init)


@mutant("K255", "write a batch of a transaction without asking its coordinator (KAFKA-12671)")
def _(patch: Patch) -> None:
    right = TransactionGate.is_open_for

    def is_open_for(self: TransactionGate, event: ev.Produce) -> bool:
        return event.origin is not ev.Origin.COORDINATOR or right(self, event)

    patch.setattr(TransactionGate, "is_open_for", is_open_for)


@mutant("K256", "leave the ends that a former coordinator began unfinished (KAFKA-16352)")
def _(patch: Patch) -> None:
    right = MarkerQueue.begin

    def begin(self: MarkerQueue, name: str, value: Any, offset: int, revisions: Any) -> None:
        if offset >= 0:
            right(self, name, value, offset, revisions)

    patch.setattr(MarkerQueue, "begin", begin)


@mutant("K257", "show readers of committed records everything up to the high watermark")
def _(patch: Patch) -> None:
    patch.setattr(LogState, "last_stable_offset", property(lambda self: self.high_watermark))


@mutant("K258", "report an outcome, or the next epoch, before it is committed")
def _(patch: Patch) -> None:
    right = TransactionCoordinator._write

    def write(self: TransactionCoordinator, *asked: Any) -> Decision:
        decision = right(self, *asked)
        early = tuple(structs.replace(each, groups=frozenset()) for each in decision.replies)
        return structs.replace(decision, replies=early)

    patch.setattr(TransactionCoordinator, "_write", write)


@mutant("K259", "send markers of an outcome that is not committed")
def _(patch: Patch) -> None:
    right = MarkerQueue.send

    def send(self: MarkerQueue, view: Any, high_watermark: int, *rest: Any) -> list[Any]:
        return right(self, view, 1 << 60, *rest)

    patch.setattr(MarkerQueue, "send", send)


@mutant("K260", "treat a refused marker as written (redpanda#7061)")
def _(patch: Patch) -> None:
    right = MarkerQueue.answered

    def answered(self: MarkerQueue, event: MarkersAnswered, now: float) -> None:
        done = tuple(structs.replace(each, error=0) for each in event.outcomes)
        right(self, structs.replace(event, outcomes=done), now)

    patch.setattr(MarkerQueue, "answered", answered)


@mutant("K261", "leave a transaction open that nobody ends in time")
def _(patch: Patch) -> None:
    patch.setattr(TransactionCoordinator, "_is_late", lambda self, name, clock: False)


@mutant("K262", "end a transaction in the epoch in which it was opened")
def _(patch: Patch) -> None:
    right = epochs.prepare

    def prepare(now: Any, *rest: Any) -> Any:
        prepared = right(now, *rest)
        return prepared and structs.replace(prepared, producer_epoch=now.producer_epoch)

    patch.setattr(epochs, "prepare", prepare)
