"""The coordinator: a real shard, led by one node after the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from ...core.coordination import shard_effects as sfx
from ...core.coordination import shard_events as sev
from ...core.coordination.shard import Shard
from ...core.errors import ErrorCode
from ...core.messages import transactions as tm
from ...core.transactions.marker_queue import MarkersAnswered, SendMarkers
from ...core.transactions.records import Status, TransactionValue
from ...core.transactions.shard import (
    AllocateIds,
    IdsAllocated,
    ReadRevision,
    RevisionRead,
    TransactionCoordinator,
    TransactionSettings,
)
from ...core.types import BatchMeta, TransactionMarker

if TYPE_CHECKING:
    from .world import World

WALL = 1_700_000_000_000
SETTINGS = TransactionSettings(expiration_ms=25_000, expire_interval_ms=5_000)
"""An id that nobody uses for a while is forgotten."""


@attrs.frozen
class Behind:
    """The view of a node that has not read the store yet: empty, and as of before everything."""

    revision: int = 0

    def leader(self, topic: str, partition: int) -> int | None:
        return None


@attrs.define(eq=False)
class Coordinator:
    """One shard on a log of its own, which loses what is not committed when another node leads it."""

    world: World
    shard: Shard = attrs.field(factory=lambda: Shard(lambda: TransactionCoordinator(SETTINGS)))
    log: list[sev.Entry] = attrs.Factory(list)
    committed: int = 0
    epoch: int = 0
    answers: dict[int, Callable[[Any], None]] = attrs.Factory(dict)
    is_led: bool = False

    def lead(self) -> None:
        """Another node leads: it has what is committed, and perhaps some of the rest."""
        if self.is_led:
            self.tell(sev.ShardEnded())
        kept = self.world.dice.randint(self.committed, len(self.log))
        del self.log[kept:]
        self.epoch, self.is_led = self.epoch + 1, True
        is_behind = self.world.is_faulty and self.world.dice.random() < 0.3
        self.tell(sev.ViewChanged(view=Behind() if is_behind else self.world))
        if is_behind:
            self.world.after(
                self.world.dice.choice((0.1, 1.0)), lambda: self.tell(sev.ViewChanged(view=self.world))
            )
        self.tell(sev.ShardLed(leader_epoch=self.epoch, log_start=0, epoch_start=kept))
        if kept:
            entries = self.log[:kept]
            if self.world.dice.random() < 0.5:
                # Compaction has gone over some of it.
                bound = self.world.dice.randint(0, self.committed)
                last = {entry.key: entry.offset for entry in entries[:bound]}
                entries = [e for e in entries if e.offset >= bound or last[e.key] == e.offset]
            epoch = self.epoch
            read = sev.LogRead(leader_epoch=epoch, entries=tuple(entries), next_offset=kept)
            self.world.after(self.world.dice.choice((0.0, 0.1)), lambda: self.tell(read))
        self._commit(kept, self.epoch)

    def _commit(self, end: int, epoch: int) -> None:
        delay = self.world.dice.choice((0.0, 0.0, 0.01, 0.1))

        def commit() -> None:
            if self.epoch == epoch and self.is_led:
                self.committed = max(self.committed, end)
                self.tell(sev.Advanced(high_watermark=self.committed))

        self.world.after(delay, commit)

    def tell(self, event: sev.Event) -> None:
        world = self.world
        now, wall = world.now, WALL + int(world.now * 1000)
        if self.is_led and not isinstance(event, sev.ShardEnded | sev.Accepted | sev.Refused):
            self._obey(self.shard.step(sev.Contacted(since=now), now, wall))
        self._obey(self.shard.step(event, now, wall))
        due = self.shard.deadline
        if due is not None:
            world.after(max(0.01, due - now), self._tick)

    def _tick(self) -> None:
        due = self.shard.deadline
        if due is not None and due <= self.world.now:
            self.tell(sev.Tick())

    def _obey(self, effects: list[sfx.Effect]) -> None:
        world = self.world
        for effect in effects:
            match effect:
                case sfx.Write(write_id=write_id, entries=entries):
                    if world.is_faulty and world.dice.random() < 0.03:
                        self.tell(sev.Refused(write_id=write_id, error=ErrorCode.NOT_ENOUGH_REPLICAS))
                        continue
                    base = len(self.log)
                    for key, value in entries:
                        if value is None:
                            world.blameless.add(key.transactional_id)
                        if value is not None and value.status.is_idle and value.status is not Status.EMPTY:
                            before = self.value(key)
                            if before is not None and before.status.is_prepared:
                                world.oracle.completed(before)
                        self.log.append(sev.Entry(len(self.log), key, value))
                    self.tell(sev.Accepted(write_id=write_id, base_offset=base))
                    self._commit(len(self.log), self.epoch)
                case sfx.Answer(request_id=number, reply=reply):
                    self.answers.pop(number)(reply)
                case sfx.Outward(leader_epoch=epoch, message=message):
                    world.after(0.0, lambda epoch=epoch, message=message: self._outside(epoch, message))  # type: ignore[misc]

    def value(self, key: object, end: int | None = None) -> TransactionValue | None:
        """The last value under a key, below an offset."""
        for entry in reversed(self.log[:end]):
            if entry.key == key:
                value: TransactionValue | None = entry.value
                return value
        return None

    def _outside(self, epoch: int, message: object) -> None:
        world = self.world

        def hear(said: object) -> None:
            if self.is_led:
                self.tell(sev.Heard(leader_epoch=epoch, message=said))

        match message:
            case AllocateIds(count=count):
                first = world.take_ids(count)
                world.after(world.delay(), lambda: hear(IdsAllocated(first, count)))
            case ReadRevision():
                world.after(world.delay(), lambda: hear(RevisionRead(world.revision)))
            case SendMarkers():
                self._mark(message, hear)

    def _mark(self, send: SendMarkers, hear: Callable[[object], None]) -> None:
        """Each copy of the request writes, and one answer comes, or none."""
        world = self.world
        request, outcomes = send.request, list[tm.MarkerOutcome]()
        wanted = [(each, at) for each in request.markers for at in each.partitions]
        lost = world.is_lost()
        world.after(
            1.0 if lost else world.delay() + 0.5,
            lambda: hear(MarkersAnswered(send.attempt, () if lost else tuple(outcomes))),
        )
        copies = 0 if world.is_lost() else 1 + (world.is_faulty and world.dice.random() < 0.1)
        for copy in range(copies):
            for markers, at in wanted:
                place = (at.topic, at.partition)

                def take(error: ErrorCode, markers: Any = markers, at: Any = at) -> None:
                    outcomes.append(
                        tm.MarkerOutcome(
                            producer_id=markers.producer_id,
                            topic=at.topic,
                            partition=at.partition,
                            error=error,
                        )
                    )

                said = TransactionMarker(markers.committed, request.coordinator_epoch)
                meta = BatchMeta(-1, 1, -1, 10, markers.producer_id, markers.producer_epoch, -1, True, said)
                late = world.dice.choice((1.0, 4.0)) if copy else 0.0
                version = markers.version
                if copy and version < 2:
                    continue
                write = partial(
                    world.parts[place].produce, markers.transactional_id, meta, None, take, version
                )
                world.after(world.delay() + late if version > 1 else 0.0, write)
