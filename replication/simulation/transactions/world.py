"""The model between the machines: time, messages, logs, and what goes wrong."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
from msgspec import structs

from ...core.coordination import shard_events as sev
from ...core.messages import transactions as tm
from ...core.partition import events as ev
from ...core.transactions.records import LAST_EPOCH, Status, TransactionValue
from .clients import Client
from .coordinator import Coordinator
from .oracle import Oracle, Place, Violated
from .partitions import Part

PLACES: tuple[Place, ...] = (("a", 0), ("a", 1), ("b", 0))
OF_ONE_VERSION, MIXED = ("x", "y", "z"), "m"
IDS = (*OF_ONE_VERSION, MIXED)
"""Transactional ids: of clients of the second version, of the first one ("z"), and of both."""
FAULTY, WHOLE = 40.0, 60.0
"""Seconds with faults, and then without."""
TICK = 0.5


@attrs.frozen
class Result:
    """The outcome of a seed."""

    seed: int
    violation: Violated | None
    committed: int
    aborted: int
    fenced: int
    timed_out: int
    moves: int


class World:
    """Also the coordinator's view of the cluster (`transactions.marker_queue.Leaders`)."""

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
        return None if part is None or not part.is_there else 1 if part.is_known else -1

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
        may_be_late = getattr(message, "version", 2) > 1 and not (
            isinstance(message, tm.AddPartitionsRequest) and message.transactional_id == MIXED
        )
        self.after(within + (5.0 if self.is_faulty else 1.0), lambda: once(None))
        if not self.is_lost():
            self.after(self.delay() if may_be_late else 0.0, arrive)
        if may_be_late and self.is_faulty and self.dice.random() < 0.1:
            self.after(self.dice.choice((0.1, 2.0, 10.0)), arrive)

    def committed_value(self, producer_id: int) -> TransactionValue | None:
        """The committed value of the transactional id that has, or had, a producer id."""
        coordinator = self.coordinator
        for entry in reversed(coordinator.log[: coordinator.committed]):
            value = entry.value
            if value is not None and producer_id in (value.producer_id, value.next_producer_id):
                return coordinator.value(entry.key, coordinator.committed)
        return None

    # The run

    def begin(self) -> None:
        self.coordinator.lead()
        for name in IDS:
            self._open(name)
        self.after(0.0, self._trouble)
        self.after(TICK, self._tick)
        self.after(FAULTY, self._heal)

    def _open(self, name: str) -> None:
        version = 1 if name == "z" else 2
        client = Client(self, len(self.clients), name, version, is_mixed=name == MIXED)
        self.clients.append(client)
        client.open()

    def _tick(self) -> None:
        for part in self.parts.values():
            part.step(ev.Tick())
        self.after(TICK, self._tick)

    def _trouble(self) -> None:
        if not self.is_faulty:
            return
        match self.dice.choice((0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6)):
            case 0:
                self.counts["moves"] += 1
                self.coordinator.lead()
            case 1:
                part = self.dice.choice([each for each in self.parts.values() if each.is_there])
                part.crash()
                part.elect()
            case 2:
                part = self.dice.choice([each for each in self.parts.values() if each.is_there])
                part.elect()
                part.is_led = False
                self.after(self.dice.choice((0.0, 0.5)), lambda: self._lost(part))
                self.after(self.dice.choice((0.0, 1.0)), lambda: self._found(part))
            case 3:
                # Another producer takes a transactional id over, and the one before does not know it.
                self._open(self.dice.choice((*IDS, *OF_ONE_VERSION)))
            case 4:
                # Some never come back: then their transactions must end by themselves.
                self.dice.choice(self.clients).pause(self.dice.choice((0.5, 3.0, 12.0, 1e9)))
            case 5:
                self._age()
            case 6:
                self._delete(self.parts[PLACES[-1]])
        self.after(self.dice.uniform(0.1, 3.0), self._trouble)

    def _delete(self, part: Part) -> None:
        if not part.is_there:
            return
        part.delete()
        self.revision += 1
        self.coordinator.tell(sev.ViewChanged(view=self))

        def create() -> None:
            part.create()
            self.revision += 1
            self.coordinator.tell(sev.ViewChanged(view=self))

        self.after(self.dice.choice((0.1, 1.0, 3.0)), create)

    def _lost(self, part: Part) -> None:
        part.is_known = part.is_led
        self.coordinator.tell(sev.ViewChanged(view=self))

    def _found(self, part: Part) -> None:
        part.is_led, part.is_known = part.is_there, True
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
                aged = structs.replace(
                    value, producer_epoch=LAST_EPOCH - self.dice.randint(0, 2), last_epoch=-1
                )
                coordinator.log.append(sev.Entry(len(coordinator.log), entry.key, aged))
                self.blameless.add(str(getattr(entry.key, "transactional_id", "")))
                coordinator.committed = len(coordinator.log)
                coordinator.lead()
                return

    def _heal(self) -> None:
        self.is_faulty = False
        for part in self.parts.values():
            part.is_led, part.is_known = part.is_there, True
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
