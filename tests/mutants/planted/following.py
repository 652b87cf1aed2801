"""Errors in what a node asks of the leaders that it follows, and over which connections."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.broker.fetching import following
from insync.replication.core.broker.fetching.channels import Channel, Channels
from insync.replication.core.broker.fetching.following import Following
from insync.replication.core.partition import effects as fx
from insync.replication.core.types import PartitionId

from ..catalogue import Patch, mutant

Leader = following._Leader


@mutant("K94", "accept a late answer as that to the outstanding fetch")
def _(patch: Patch) -> None:
    right = Leader.answered

    def answered(self: Any, question: int, *rest: Any) -> None:
        self._question = question
        right(self, question, *rest)

    patch.setattr(Channels, "forget", lambda self, question: None)
    patch.setattr(Leader, "answered", answered)


@mutant("K130", "lose the wake-up when a connection is made, or may be dialled again")
def _(patch: Patch) -> None:
    patch.setattr(Leader, "ready", lambda self: None)


@mutant("K131", "drop the last partition of an answer")
def _(patch: Patch) -> None:
    right = Leader._take

    def take(self: Any, session_id: int, places: dict[PartitionId, Any], payload: object) -> None:
        for partition in list(places)[1:][-1:]:
            # As answered, but nobody is told.
            self.session.open.pop(partition, None)
        right(self, session_id, places, payload)

    patch.setattr(Leader, "_take", take)


@mutant("K132", "ask again at once after a failure")
def _(patch: Patch) -> None:
    right = Following.want

    def want(self: Following, partition: PartitionId, effect: fx.FetchNext) -> None:
        right(self, partition, structs.replace(effect, delayed=False))

    patch.setattr(Following, "want", want)


@mutant("K133", "begin another fetch beside the parked one")
def _(patch: Patch) -> None:
    patch.setattr(Leader, "_give_up", lambda self: setattr(self, "_question", 0))


@mutant("K134", "take an answer to an earlier epoch's question for one to the present epoch's")
def _(patch: Patch) -> None:
    right_answered, right_take = Leader.answered, Leader._take

    def answered(self: Any, question: int, *rest: Any) -> None:
        self._question = question
        right_answered(self, question, *rest)

    def take(self: Any, session_id: int, places: dict[PartitionId, Any], payload: object) -> None:
        # Whatever is open is held for answered, though it was asked anew since.
        self.session._untold.clear()
        right_take(self, session_id, places, payload)

    patch.setattr(Channels, "forget", lambda self, question: None)
    patch.setattr(Leader, "answered", answered)
    patch.setattr(Leader, "_take", take)


@mutant("K135", "forget a partition whose batches arrived damaged")
def _(patch: Patch) -> None:
    right = Leader._fail

    def fail(self: Any, partition: PartitionId, asked: fx.FetchNext) -> None:
        if partition not in self._owner.damaged:
            right(self, partition, asked)

    patch.setattr(Leader, "_fail", fail)


@mutant("K136", "append the readable part of an answer whose sizes do not add up")
def _(patch: Patch) -> None:
    right = following._places

    def places(answer: Any, payload_size: int) -> Any:
        partitions = [structs.replace(each, size=min(each.size, payload_size)) for each in answer.partitions]
        return right(structs.replace(answer, partitions=partitions[:1]), payload_size)

    patch.setattr(following, "_places", places)


@mutant("K137", "dial without a pause after a failure")
def _(patch: Patch) -> None:
    patch.setattr(Channel, "_rest", lambda self: None)


@mutant("K138", "keep a connection to a process that was replaced")
def _(patch: Patch) -> None:
    patch.setattr(Channel, "address_changed", lambda self, record: None)
    patch.setattr(Channel, "disconnected", lambda self, reason: None)


@mutant("K139", "continue to ask a question that a replica has withdrawn")
def _(patch: Patch) -> None:
    patch.setattr(Leader, "drop", lambda self, partition: None)


@mutant("K211", "ask a leader nothing more after a failure")
def _(patch: Patch) -> None:
    patch.setattr(Leader, "_pause_over", lambda self: None)


@mutant("K212", "ask without a pause after a failure")
def _(patch: Patch) -> None:
    right = Leader.failed

    def failed(self: Any, reason: str, **how: Any) -> None:
        right(self, reason, **how)
        self._pause.cancel()
        self._pause = None

    patch.setattr(Leader, "failed", failed)
