"""Errors in requests over several partitions."""

from __future__ import annotations

from typing import Any

from insync.replication.core.broker import effects as fx
from insync.replication.core.broker.producing.producing import Producing
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import PartitionId

from ..catalogue import Patch, mutant


@mutant("K140", "answer a request once for each partition that becomes known")
def _(patch: Patch) -> None:
    right = Producing._add

    def add(self: Producing, pending: Any, result: Any) -> None:
        if pending.missing > 1:
            self._ctx.emit(fx.Reply(pending.request, type_of(result)(partitions=[*pending.results, result])))
        right(self, pending, result)

    patch.setattr(Producing, "_add", add)


@mutant("K141", "never answer a request with a refused partition")
def _(patch: Patch) -> None:
    right = Producing._add

    def add(self: Producing, pending: Any, result: Any) -> None:
        if result.error == ErrorCode.NONE:
            right(self, pending, result)

    patch.setattr(Producing, "_add", add)


@mutant("K142", "treat acks=all as acks=1 when a disk is slow")
def _(patch: Patch) -> None:
    right = Producing._acks

    def acks(self: Producing, asked: int, partition: PartitionId) -> int:
        return 1 if self._ctx.logs.queued(partition) else right(self, asked, partition)

    patch.setattr(Producing, "_acks", acks)


@mutant("K143", "report another request's outcome for a batch")
def _(patch: Patch) -> None:
    right = Producing.replied

    def replied(self: Producing, partition: PartitionId, effect: Any) -> None:
        waiting = self._produces
        first = next(iter(waiting))
        waiting[first], waiting[effect.request_id] = waiting[effect.request_id], waiting[first]
        right(self, partition, effect)

    patch.setattr(Producing, "replied", replied)


@mutant("K144", "refuse a whole request because of one refused batch")
def _(patch: Patch) -> None:
    right = Producing._produce

    def produce(self: Producing, pending: Any, *rest: Any) -> None:
        if not any(result.error == ErrorCode.CORRUPT_MESSAGE for result in pending.results):
            right(self, pending, *rest)

    patch.setattr(Producing, "_produce", produce)


def type_of(result: Any) -> Any:
    """The response that such results stand in."""
    from insync.replication.core import messages as m

    return m.ProduceResponse if isinstance(result, m.ProduceResult) else m.DeleteRecordsResponse
