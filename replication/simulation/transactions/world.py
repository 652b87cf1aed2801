"""The model between the machines: time, messages, logs, and what goes wrong."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from ...core.control.admin_messages import PartitionName
from ...core.control.records import PartitionRecord, Versioned
from ...core.coordination import shard_effects as sfx
from ...core.coordination import shard_events as sev
from ...core.coordination import transaction_messages as tm
from ...core.coordination.marker_queue import MarkersAnswered, SendMarkers
from ...core.coordination.shard import Shard
from ...core.coordination.transaction_records import LAST_EPOCH, Status, TransactionValue
from ...core.coordination.transaction_shard import (
    AllocateIds,
    IdsAllocated,
    ReadRevision,
    RevisionRead,
    TransactionCoordinator,
    TransactionSettings,
)
from ...core.errors import ErrorCode
from ...core.partition import effects as fx
from ...core.partition import events as ev
from ...core.partition.replica import Replica
from ...core.types import BatchMeta, PartitionId, TransactionMarker
from .clients import Client
from .oracle import Intent, Logged, Oracle, Place, Violated

WALL = 1_700_000_000_000
PLACES: tuple[Place, ...] = (("a", 0), ("a", 1), ("b", 0))
FAULTY, WHOLE = 40.0, 60.0
"""Seconds with faults, and then without."""
TICK = 0.5
SETTINGS = TransactionSettings(expiration_ms=25_000, expire_interval_ms=5_000)
"""An id that nobody uses for a while is forgotten."""


@attrs.frozen
class Behind:
    """What a node sees that has not read the store yet: nothing, and as of before everything."""

    revision: int = 0

    def leader(self, topic: str, partition: int) -> int | None:
        return None


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
    is_known: bool = True
    """What the view says of that, a while later."""

    def __attrs_post_init__(self) -> None:
        self.replica = Replica(PartitionId(*self.place), 1, 1)
        self.step(ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=()))
        self.step(ev.NodesChanged(live={1: 1}))
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
            answered(ErrorCode.NOT_LEADER_OR_FOLLOWER)
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
        for effect in self.replica.step(event, world.now):
            match effect:
                case fx.Append(handle=handle, batches=batches):
                    (meta,) = batches
                    assert isinstance(handle, int)
                    logged = Logged(meta.base_offset, meta, self.intents[handle])
                    world.oracle.appended(self.place, logged, world.committed_value(meta.producer_id))
                    self.end, self.writing = meta.next_offset, self.writing + 1
                    world.after(world.dice.choice((0.0, 0.01, 0.2)), self._written)
                case fx.AssignEpoch():
                    world.after(0.0, lambda: self.step(ev.EpochAssigned()))
                case fx.ReplyProduce(request_id=number, error=error):
                    self.asked.pop(number)(error)
                case fx.AddToTransaction():
                    world.after(effect.delay, lambda effect=effect: self._add(effect))  # type: ignore[misc]
        self.look()

    def _written(self) -> None:
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
            view_revision=1,
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
        """What stands last under a key, below an offset."""
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


@attrs.frozen
class Result:
    """What came of a seed."""

    seed: int
    violation: Violated | None
    committed: int
    aborted: int
    fenced: int
    timed_out: int
    moves: int


class World:
    """Also the coordinator's view of the cluster (`coordination.marker_queue.Leaders`)."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.is_faulty = True
        self.revision = 1
        self.oracle = Oracle({place: [] for place in PLACES})
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = self._next_id = 0
        self.counts: dict[str, int] = dict.fromkeys(
            ("committed", "aborted", "fenced", "timed_out", "moves"), 0
        )
        self.parts = {place: Part(self, place) for place in PLACES}
        self.coordinator = Coordinator(self)
        self.clients: list[Client] = []
        self.opened: Counter[str] = Counter()
        """How often each transactional id was asked for, by requests that have arrived."""
        self.blameless: set[str] = set()
        """Ids that have expired, or whose epochs were changed by this model: they may be lost without another
        producer.
        """

    # Leaders

    def leader(self, topic: str, partition: int) -> int | None:
        part = self.parts.get((topic, partition))
        return None if part is None else 1 if part.is_known else -1

    # For all

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def take_ids(self, count: int) -> int:
        first, self._next_id = self._next_id, self._next_id + count
        return first

    def after(self, delay: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, self.next_number(), do))

    def delay(self) -> float:
        choices = (0.0, 0.01, 0.05, 0.5, 3.0) if self.is_faulty else (0.0, 0.01)
        return self.dice.choice(choices)

    def is_lost(self) -> bool:
        return self.is_faulty and self.dice.random() < 0.08

    def ask(self, message: Any, told: Callable[[Any], None], *, within: float) -> None:
        """A request to the coordinator, perhaps twice; one answer is told, None if there is none."""
        answered = False

        def once(reply: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                told(reply)

        def arrive() -> None:
            coordinator = self.coordinator
            number = self.next_number()

            def back(reply: Any) -> None:
                if not self.is_lost():
                    self.after(self.delay(), lambda: once(reply))

            coordinator.answers[number] = back
            if isinstance(message, tm.InitTransactionsRequest):
                self.opened[message.transactional_id] += 1
            coordinator.tell(sev.Ask(request_id=number, message=message, deadline=self.now + 10.0))

        # Where transactions share an epoch, what is late, an end or a marker, meets the next one of them. That is
        # as in Kafka, and why each has an epoch of its own by now (KIP-890): it is not to be shown again.
        may_be_late = getattr(message, "version", 2) > 1
        self.after(within + (5.0 if self.is_faulty else 1.0), lambda: once(None))
        if not self.is_lost():
            self.after(self.delay() if may_be_late else 0.0, arrive)
        if may_be_late and self.is_faulty and self.dice.random() < 0.1:
            self.after(self.dice.choice((0.1, 2.0, 10.0)), arrive)

    def committed_value(self, producer_id: int) -> TransactionValue | None:
        """What is committed of the transactional id that has, or had, a producer id."""
        coordinator = self.coordinator
        for entry in reversed(coordinator.log[: coordinator.committed]):
            value = entry.value
            if value is not None and producer_id in (value.producer_id, value.next_producer_id):
                return coordinator.value(entry.key, coordinator.committed)
        return None

    # The run

    def begin(self) -> None:
        self.coordinator.lead()
        for name in ("x", "y", "z"):
            self._open(name)
        self.after(0.0, self._trouble)
        self.after(TICK, self._tick)
        self.after(FAULTY, self._heal)

    def _open(self, name: str) -> None:
        client = Client(self, len(self.clients), name, 1 if name == "z" else 2)
        self.clients.append(client)
        client.open()

    def _tick(self) -> None:
        for part in self.parts.values():
            part.step(ev.Tick())
        self.after(TICK, self._tick)

    def _trouble(self) -> None:
        if not self.is_faulty:
            return
        match self.dice.choice((0, 0, 0, 2, 2, 2, 3, 4, 4, 4, 5)):
            case 0:
                self.counts["moves"] += 1
                self.coordinator.lead()
            case 2:
                part = self.dice.choice(list(self.parts.values()))
                part.elect()
                part.is_led = False
                self.after(self.dice.choice((0.0, 0.5)), lambda: self._lost(part))
                self.after(self.dice.choice((0.0, 1.0)), lambda: self._found(part))
            case 3:
                # Another producer takes a transactional id over, and the one before does not know it.
                self._open(self.dice.choice(("x", "y", "z")))
            case 4:
                # Some never come back: then their transactions must end by themselves.
                self.dice.choice(self.clients).pause(self.dice.choice((0.5, 3.0, 12.0, 1e9)))
            case 5:
                self._age()
        self.after(self.dice.uniform(0.1, 3.0), self._trouble)

    def _lost(self, part: Part) -> None:
        part.is_known = part.is_led
        self.coordinator.tell(sev.ViewChanged(view=self))

    def _found(self, part: Part) -> None:
        part.is_led = part.is_known = True
        self.revision += 1
        self.coordinator.tell(sev.ViewChanged(view=self))

    def _age(self) -> None:
        """Some id comes near the end of its epochs, as if it had been used for long."""
        coordinator = self.coordinator
        if coordinator.committed < len(coordinator.log):
            return
        for entry in list(coordinator.log):
            value = coordinator.value(entry.key)
            young = value is not None and value.status is Status.EMPTY and value.producer_epoch < 100
            if young and value is not None and not any(c.holds(value.told) for c in self.clients):
                aged = attrs.evolve(value, producer_epoch=LAST_EPOCH - self.dice.randint(0, 2), last_epoch=-1)
                coordinator.log.append(sev.Entry(len(coordinator.log), entry.key, aged))
                self.blameless.add(str(getattr(entry.key, "transactional_id", "")))
                coordinator.committed = len(coordinator.log)
                coordinator.lead()
                return

    def _heal(self) -> None:
        self.is_faulty = False
        for part in self.parts.values():
            part.is_led = part.is_known = True
        self.coordinator.tell(sev.ViewChanged(view=self))
        for client in self.clients:
            client.stop()

    def play(self) -> None:
        while self._queue and self._queue[0][0] <= FAULTY + WHOLE:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        self._judge()

    def _judge(self) -> None:
        keys = {entry.key for entry in self.coordinator.log}
        for key in keys:
            value = self.coordinator.value(key)
            if value is not None and not value.status.is_idle:
                raise Violated("TL2" if value.status.is_prepared else "TL1", f"{key} stays {value}")
        for place, part in self.parts.items():
            log = part.replica.log
            if log.last_stable_offset != log.high_watermark or log.high_watermark != part.end:
                raise Violated("TL2", f"{place}: readers wait at {log.last_stable_offset} of {part.end}")


def run(seed: int) -> Result:
    """One seed; the same one gives the same run."""
    world, violation = World(seed), None
    try:
        world.begin()
        world.play()
    except Violated as error:
        violation = error
    return Result(seed=seed, violation=violation, **world.counts)
