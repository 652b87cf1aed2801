"""Partitions whose leaders are real: they move, end and read their log again, and their topics are deleted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from msgspec import structs

from ...core.control.records import PartitionRecord, Versioned
from ...core.errors import ErrorCode
from ...core.messages import transactions as tm
from ...core.messages.admin import PartitionName
from ...core.partition import effects as fx
from ...core.partition import events as ev
from ...core.partition.parts import Parts
from ...core.partition.producers import ProducerTable
from ...core.partition.replica import Replica
from ...core.types import BatchMeta, EndedTransaction, EpochEntry, PartitionId
from .oracle import Intent, Logged, Place

if TYPE_CHECKING:
    from .world import World


@attrs.define(eq=False)
class Part:
    """One partition: its leader is a real replica, alone in the ISR; leaders follow each other on the same log."""

    world: World
    place: Place
    replica: Replica = attrs.field(init=False)
    asked: dict[int, Callable[[ErrorCode], None]] = attrs.Factory(dict)
    intents: dict[int, Intent | None] = attrs.Factory(dict)
    epoch: int = 0
    end: int = 0
    writing: int = 0
    is_led: bool = True
    is_there: bool = True
    """False: the topic is deleted."""
    made: int = 1
    """Counts the topics of this name."""
    life: int = 0
    """Counts the processes that have led: what one has under way is nothing to the next."""
    noted: list[object] = attrs.Factory(list)
    """The calls and effects of the replica in this step."""
    is_known: bool = True
    """The view's word on `is_led`, a while later."""

    def __attrs_post_init__(self) -> None:
        self._open(0, ProducerTable(), ())
        self.elect()

    def _open(self, end: int, known: ProducerTable, ended: tuple[EndedTransaction, ...]) -> None:
        """A process that knows what is in the log, and nothing else."""
        self.life, self.writing, self.end = self.life + 1, 0, end
        committed = 0 if end == 0 else self.replica.log.high_watermark
        self.replica = Replica(PartitionId(*self.place), 1, 1, self._parts())
        self.step(
            ev.Opened(
                log_start_offset=0,
                log_end_offset=end,
                high_watermark=committed,
                epochs=(EpochEntry(self.epoch, 0),) if end else (),
                producers=tuple(known.entries),
                ended=ended,
            )
        )
        self.step(ev.NodesChanged(live={1: 1}))

    def _parts(self) -> Parts:
        def note(*told: object) -> None:
            self.noted.append(told[-1])

        def ignore(*arguments: object) -> None:
            """The one replica follows nobody, and has nobody to add to its ISR."""

        ignored: dict[str, Any] = dict.fromkeys((each.name for each in structs.fields(Parts)), ignore)
        return Parts(**ignored | {"emit": note, "replied": note, "add": note})

    def crash(self) -> None:
        """The leader's process ends, and some of what it has not committed is lost; another one reads the log."""
        log = self.world.oracle.logs[self.place]
        committed = self.replica.log.high_watermark
        least = sum(each.meta.next_offset <= committed for each in log)
        del log[self.world.dice.randint(least, len(log)) :]
        known, ended = ProducerTable(), []
        for each in log:
            first = known.transactions.first_offset(each.meta.producer_id)
            if each.meta.marker is not None and first >= 0 and each.offset >= committed:
                ended.append(EndedTransaction(each.meta.producer_id, first, each.offset))
            known.record(each.meta)
        self._open(log[-1].meta.next_offset if log else 0, known, tuple(ended))

    def delete(self) -> None:
        """The topic is deleted, whatever is open in it."""
        self.is_there = self.is_led = False
        self.life += 1
        self.world.oracle.forget(self.place)

    def create(self) -> None:
        """Another topic of the same name."""
        self.is_there = self.is_led = True
        self.made += 1
        self._open(0, ProducerTable(), ())
        self.elect()

    def elect(self) -> None:
        """Another leader epoch; for a while nobody may know who leads."""
        self.epoch += 1
        topic, partition = self.place
        record = PartitionRecord(
            topic=topic,
            partition=partition,
            topic_id=topic,
            replicas=(1,),
            isr=(1,),
            leader=1,
            leader_epoch=self.epoch,
        )
        self.step(ev.RecordChanged(versioned=Versioned(record, self.epoch)))

    def produce(
        self,
        name: str,
        batch: BatchMeta,
        intent: Intent | None,
        answered: Callable[[ErrorCode], None],
        version: int = 2,
    ) -> None:
        if not self.is_led:
            # A node that has lost the partition to another one may not even know of it.
            unknown = not self.is_there or (batch.marker is not None and not self.is_known)
            answered(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if unknown else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        number = self.world.next_number()
        self.asked[number], self.intents[number] = answered, intent
        self.step(
            ev.Produce(
                request_id=number,
                acks=-1,
                batch=batch,
                deadline=self.world.now + 5.0,
                handle=number,
                origin=ev.Origin.COORDINATOR if batch.marker is not None else ev.Origin.CLIENT,
                transaction=ev.TransactionTag(name, version) if batch.transactional else None,
            ),
            name,
        )

    def step(self, event: ev.Event, name: str = "") -> None:
        world = self.world
        if not self.is_there:
            return
        self.replica.step(event, world.now)
        noted, self.noted = self.noted, []
        for effect in noted:
            match effect:
                case fx.Append(handle=handle, batches=batches):
                    (meta,) = batches
                    assert isinstance(handle, int)
                    logged = Logged(meta.base_offset, meta, self.intents[handle])
                    world.oracle.appended(self.place, logged, world.committed_value(meta.producer_id))
                    self.end, self.writing = meta.next_offset, self.writing + 1
                    world.after(world.dice.choice((0.0, 0.01, 0.2)), partial(self._written, self.life))
                case fx.AssignEpoch():
                    world.after(0.0, partial(self._live, self.life, ev.EpochAssigned()))
                case fx.ReplyProduce(request_id=number, error=error):
                    self.asked.pop(number)(error)
                case fx.AddToTransaction():
                    world.after(effect.delay, lambda effect=effect: self._add(effect))  # type: ignore[misc]
        self.look()

    def _live(self, life: int, event: ev.Event) -> None:
        if life == self.life:
            self.step(event)

    def _written(self, life: int) -> None:
        if life != self.life:
            return
        self.writing -= 1
        # In the order of the appends: each says how far the log goes.
        logged = self.world.oracle.logs[self.place]
        self.step(ev.Appended(log_end_offset=logged[len(logged) - 1 - self.writing].meta.next_offset))

    def look(self) -> None:
        log = self.replica.log
        self.world.oracle.looked_at(self.place, log.high_watermark, log.last_stable_offset)

    def _add(self, effect: fx.AddToTransaction) -> None:
        topic, partition = self.place
        request = tm.AddPartitionsRequest(
            transactional_id=effect.transactional_id,
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            partitions=[PartitionName(topic=topic, partition=partition)],
            view_revision=self.world.revision,
            verify_only=effect.verify_only,
            version=1 if effect.verify_only else 2,
        )

        def told(reply: Any) -> None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE if reply is None else ErrorCode(reply.error)
            said = ev.AddAnswered(
                producer_id=effect.producer_id,
                leader_epoch=effect.leader_epoch,
                attempt=effect.attempt,
                error=error,
            )
            self.step(said, effect.transactional_id)

        self.world.ask(request, told, within=1.0)
