"""Producers: each opens a transactional id, writes one transaction after the other, and may be a zombie by then."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...core.client.transactional_producer import Ended, Phase, TransactionalProducer
from ...core.errors import ErrorCode
from ...core.messages import transactions as tm
from ...core.messages.admin import PartitionName
from ...core.types import BatchMeta
from .oracle import Intent, Place, Violated

if TYPE_CHECKING:
    from .world import World

_AGAIN = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
TRIES = 8


class Client:
    """By the machine of real producers. A message that it has sent may arrive at any time, or twice."""

    def __init__(
        self, world: World, number: int, name: str, version: int = 2, *, is_mixed: bool = False
    ) -> None:
        """`version` 1: a client before KIP-890, which adds partitions itself; its transactions share an epoch.

        `is_mixed`: each of its transactions is ended by one version or the other, and so is each batch sent.
        """
        self._version = version
        self._is_mixed = is_mixed
        self._is_in_order = is_mixed or version < 2
        """As by the first version a log that does not know a producer takes any sequence."""
        self._added: set[Place] = set()
        self._starts: dict[Place, int] = {}
        """Where the open transaction begins in each partition."""
        self._has_failed = False
        self._world = world
        self.number = number
        self.name = name
        self.machine = TransactionalProducer(name, world.dice.choice((2_000, 5_000, 20_000)))
        self._transactions = 0
        self._paused_until = self._begun_at = 0.0
        self._stops = False
        self._intent: Intent | None = None
        self._sequences: dict[Place, int] = {}
        self._wants_commit = True
        self._left = self._open_sends = 0
        self._is_ending = False

    def holds(self, ids: tuple[int, int]) -> bool:
        return self.machine.ids == ids

    def pause(self, seconds: float) -> None:
        self._paused_until = self._world.now + seconds

    def stop(self) -> None:
        """It begins no more transactions."""
        self._stops = True

    def _then(self, do: Any, delay: float = 0.0) -> None:
        """Its next step, unless it stands still: then later."""

        def act() -> None:
            if self._world.now < self._paused_until:
                self._world.after(self._paused_until - self._world.now, act)
            else:
                do()

        self._world.after(delay, act)

    def open(self, known: tuple[int, int] | None = None) -> None:
        """`known`: the ids that it has, which is how it goes on with an id that nobody else has taken (KIP-360)."""
        request = self.machine.init_request()
        if known is not None:
            request = structs.replace(request, producer_id=known[0], producer_epoch=known[1])

        def told(reply: Any) -> None:
            if reply is None or reply.error in _AGAIN:
                self._then(partial(self.open, known), 0.1)
            elif reply.error == ErrorCode.NONE:
                clients = self._world.clients
                others = [each.number for each in clients if each.name == self.name and each is not self]
                ids = reply.producer_id, reply.producer_epoch
                if self._is_current(ids):
                    self._world.oracle.told_ids(
                        self.number, others, ids, first=True, goes_on=known is not None
                    )
                self.machine.initialized(reply)
                self._then(self._begin)

        self._world.ask(request, told, within=2.0)

    def _is_current(self, ids: tuple[int, int]) -> bool:
        """Whether nobody has opened the id since the answer was on its way."""
        value = self._world.committed_value(ids[0])
        return value is not None and value.told == ids

    def _begin(self) -> None:
        if self._stops or self.machine.phase is not Phase.READY:
            return
        self.machine.begin()
        self._begun_at = self._world.now
        self._transactions += 1
        self._intent = Intent(self.number, self._transactions)
        if self._is_mixed:
            self._version = self._world.dice.choice((1, 2))
        elif self._version > 1:
            self._sequences = {}
        self._added, self._starts = set(), dict(self._sequences)
        self._wants_commit = self._world.dice.random() < 0.75
        self._left = self._world.dice.randint(0, 4)
        self._write()

    def _write(self) -> None:
        """The next batch, behind those that are acknowledged, or beside some that are not."""
        if not self._left or self.machine.phase is not Phase.OPEN:
            if not self._open_sends:
                self._end()
            return
        if self._is_in_order and self._open_sends:
            # It was paused, and goes on where it is by now.
            return
        place = self._world.dice.choice(list(self._world.parts))
        sequence = self._sequences.get(place, 0)
        version = self._version
        if self._is_mixed:
            # By the second version a transaction begins in a partition with the first of all sequences.
            version = self._world.dice.choice((1, 2)) if not sequence or place in self._added else 1
        if version < 2 and place not in self._added:
            self._add(place)
            return
        self._left -= 1
        self._open_sends += 1
        count = self._world.dice.randint(1, 3)
        self._sequences[place] = sequence + count
        producer_id, epoch = self.machine.ids
        batch = BatchMeta(-1, count, -1, 100, producer_id, epoch, sequence, True)
        self.machine.is_used = True
        self._send(place, batch, self._intent, TRIES, version)
        if self._version > 1 and self._world.dice.random() < 0.05:
            self._go_astray(place, batch)
        if self._version < 2 and self._world.dice.random() < 0.15:
            # It gives up what is still on its way.
            self._has_failed = True
            self.machine.failed()
            self._then(self._end, self._world.dice.choice((0.0, 0.05, 0.5)))
        if not self._is_in_order and self._world.dice.random() < 0.4:
            self._then(self._write)

    def _add(self, place: Place) -> None:
        """Leaders do this for later clients."""
        producer_id, epoch = self.machine.ids
        request = tm.AddPartitionsRequest(
            transactional_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            partitions=[PartitionName(topic=place[0], partition=place[1])],
            view_revision=1,
            version=1,
        )
        self.machine.is_used = True

        def told(reply: Any) -> None:
            if reply is None or reply.error in _AGAIN:
                self._then(self._write, 0.1)
                return
            if reply.error == ErrorCode.NONE:
                self._added.add(place)
            else:
                self.machine.failed()
            self._then(self._write)

        self._world.ask(request, told, within=2.0)

    def _go_astray(self, place: Place, batch: BatchMeta) -> None:
        """A batch that says of itself that it is in no transaction, behind one that is."""
        plain = batch._replace(transactional=False, base_sequence=batch.base_sequence + batch.offset_count)
        world = self._world
        world.after(
            world.dice.choice((0.1, 1.0)),
            lambda: world.parts[place].produce(self.name, plain, None, lambda error: None),
        )

    def _send(self, place: Place, batch: BatchMeta, intent: Intent | None, tries: int, version: int) -> None:
        world, settled = self._world, False
        assert intent is not None

        def told(error: ErrorCode) -> None:
            nonlocal settled
            if settled:
                return
            settled = True
            ids = batch.producer_id, batch.producer_epoch
            if error == ErrorCode.INVALID_PRODUCER_ID_MAPPING and self._is_current(ids):
                raise Violated("TL4", f"producer {self.number} is told that it does not hold {ids}")
            again = error.retriable or error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if error != ErrorCode.NONE and again and tries:
                self._then(lambda: self._send(place, batch, intent, tries - 1, version), 0.05)
                return
            self._open_sends -= 1
            if error == ErrorCode.NONE:
                there = batch.base_sequence + batch.offset_count - self._starts.get(place, 0)
                intent.acknowledged[place] = max(intent.acknowledged.get(place, 0), there)
            else:
                if intent is self._intent:
                    self.machine.failed()
                self._has_failed = True
            if intent is self._intent:
                self._then(self._write)

        def back(error: ErrorCode) -> None:
            if not world.is_lost():
                world.after(world.delay(), lambda: told(error))

        part, made = world.parts[place], world.parts[place].made

        def arrive() -> None:
            if self._is_in_order and part.made != made:
                # Another topic does not know what is a repetition: as in Kafka, it meets the next transaction.
                return
            part.produce(self.name, batch, intent, back, version)

        world.after(6.0, lambda: told(ErrorCode.REQUEST_TIMED_OUT))
        if not world.is_lost():
            world.after(world.delay(), arrive)
        if world.is_faulty and world.dice.random() < 0.1:
            world.after(world.dice.choice((0.5, 5.0, 15.0)), arrive)

    def _end(self) -> None:
        phase = self.machine.phase
        if self._is_ending:
            return
        if phase not in (Phase.OPEN, Phase.ABORTABLE, Phase.COMMITTING, Phase.ABORTING):
            return
        committed = phase is Phase.COMMITTING or (phase is Phase.OPEN and self._wants_commit)
        request = self.machine.end(committed)
        if request is None:
            self._then(self._begin, 0.1)
            return
        request = structs.replace(request, version=self._version)
        self._is_ending = True

        def told(reply: Any) -> None:
            self._is_ending = False
            if reply is None or reply.error in _AGAIN:
                self._then(self._end, 0.1)
                return
            self._ended(committed, reply)

        self._world.ask(request, told, within=2.0)

    def _ended(self, committed: bool, reply: Any) -> None:
        world, intent, ids = self._world, self._intent, self.machine.ids
        assert intent is not None
        match self.machine.ended(committed, reply):
            case Ended.DONE:
                world.counts["committed" if committed else "aborted"] += 1
                world.oracle.told_outcome(intent, committed)
                world.oracle.told_ids(self.number, (), self.machine.ids, first=False)
                if self.machine.ids != ids:
                    self._sequences = {}
                if self._version < 2 and self._has_failed:
                    # What has failed may come late, into the next transaction of this epoch: it takes another one.
                    self._has_failed, self._sequences = False, {}
                    known = self.machine.ids
                    self.machine = TransactionalProducer(self.name, self.machine.timeout_ms)
                    self._then(partial(self.open, known), world.dice.choice((0.0, 0.0, 3.0)))
                    return
                self._then(self._begin, world.dice.choice((0.0, 0.1, 1.0)))
            case Ended.TIMED_OUT:
                open_for = world.now - self._begun_at
                if open_for < self.machine.timeout_ms / 1000:
                    raise Violated("T14", f"a transaction is told as timed out after {open_for:g} s")
                world.counts["timed_out"] += 1
                world.oracle.told_outcome(intent, False)
                self._then(self._end)
            case Ended.FENCED:
                world.counts["fenced"] += 1
                if world.opened[self.name] == 1 and self.name not in world.blameless:
                    raise Violated(
                        "TL4", f"producer {self.number} is fenced, and nobody else has asked for its id"
                    )
            case Ended.REFUSED:
                self._then(self._end, 0.1)
