"""Transactional producers: a client's production machine over the simulated network (KIP-98, KIP-890).

Of each transactional id one producer comes after the other. The former may be gone, or go on until it finds out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from ...core.client.transactional_producer import Ended, Phase, TransactionalProducer
from ...core.errors import ErrorCode
from ...core.messages import ProduceResult
from ...core.messages import groups as gm
from ...core.types import BatchMeta, PartitionId
from ..driver.fetches import BATCH_SIZE
from ..driver.requests import Sent
from ..settings import INTERNAL

if TYPE_CHECKING:
    from ..world.cluster import Cluster

REQUEST_TIMEOUT = 1.0
TRIES = 4
"""How often a producer sends something before it aborts."""
NEXT_BEGINS = 0.15
"""How likely another producer of the id begins, each time that its owner looks."""
IS_GONE = 0.5
"""How likely the one before it is then."""
STANDS = 0.06
"""How likely a producer stands still, each time that it does something."""
COMMITS = 0.7
OFFSETS = 0.6
"""How likely a transaction has offsets of a group."""
FORSAKEN = 0.2
"""How likely nobody uses an id in calm, so that what is open ends by its timeout."""
_AGAIN = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class Transactor:
    """All producers of one transactional id; `group` is the one whose offsets they commit."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.name = f"x{number}"
        self.group = f"g-{self.name}"
        self.dice = random.Random(f"transactor {number} {cluster.seed}")
        self.offset = 0
        """The last that was committed for the group, or tried."""
        self.is_done = False
        """Whether one was committed in calm, with offsets that are told as stable."""
        self._latest: Producer | None = None
        self._producers = 0
        self._began_in_calm = False
        # By clocks that differ a timeout may take longer than calm does.
        self._is_forsaken = self.dice.random() < FORSAKEN and "CK" not in cluster.settings.faults
        cluster.later(2 * self.dice.random(), self._turn)

    @property
    def unfinished(self) -> str:
        """The work that has not succeeded in calm."""
        return "" if self.is_done else f"{self.name} commits nothing: {self._latest}"

    def is_latest(self, producer: Producer) -> bool:
        """Whether none has begun after it."""
        return producer is self._latest

    def look(self) -> None:
        """Ask everybody who takes itself for the group's coordinator what the group has committed."""
        cluster = self.cluster
        partition = cluster.coordinators.partition_of(self.group)
        for host in cluster.leaders_of(partition):
            is_stable = self.dice.random() < 0.5
            message = gm.GroupOffsetsRequest(group=self.group, require_stable=is_stable)
            cluster.coordinators.ask(host.node, message, lambda reply: None)

    def _turn(self) -> None:
        cluster, dice, latest = self.cluster, self.dice, self._latest
        if self.is_done:
            return
        if cluster.calm and self._is_forsaken:
            self.is_done = True
            if latest is not None:
                latest.is_over = True
            return
        begins = latest is None or latest.is_over or (not cluster.calm and dice.random() < NEXT_BEGINS)
        if cluster.calm and not self._began_in_calm:
            begins = self._began_in_calm = True
        if begins:
            if latest is not None and (cluster.calm or dice.random() < IS_GONE):
                latest.is_over = True
            self._producers += 1
            self._latest = Producer(self, f"{self.name}/{self._producers}")
        cluster.later(1.0 + 3.0 * dice.random(), self._turn)


@attrs.define(eq=False)
class _Part:
    """One transaction's writes to one partition: one batch after the other."""

    sent: Sent
    left: int = TRIES


class Producer:
    """One process; by the machine of real producers."""

    def __init__(self, owner: Transactor, name: str) -> None:
        self._owner = owner
        self._cluster = owner.cluster
        self._dice = owner.dice
        self._name = name
        self._machine = TransactionalProducer(owner.name, self._dice.choice((3_000, 6_000, 12_000)))
        self.is_over = False
        self._sequences: dict[PartitionId, int] = {}
        self._steps_left = 0
        self._wants_commit = self._has_offsets = False
        self._init()

    def __repr__(self) -> str:
        return f"{self._name} in {self._machine.phase.name} with {self._machine.ids}"

    # How it goes on

    def _then(self, do: Callable[[], None], delay: float = 0.0) -> None:
        """The producer's next step, unless it stands still: then it finds later that it is fenced, perhaps."""
        if not self._cluster.calm and self._dice.random() < STANDS:
            delay += self._dice.choice((0.5, 5.0, 12.0))
        self._cluster.later(delay + 0.1 * self._dice.random(), partial(self._go_on, do))

    def _go_on(self, do: Callable[[], None]) -> None:
        if self._cluster.calm and not self._owner.is_latest(self):
            self.is_over = True
        if not self.is_over:
            do()

    def _ask(self, partition: PartitionId | None, message: Any, then: Callable[[Any], None]) -> None:
        """Of whoever takes itself for the coordinator; `then` gets the answer, or None."""
        cluster, is_settled = self._cluster, False

        def told(reply: Any) -> None:
            nonlocal is_settled
            if not is_settled and not self.is_over:
                is_settled = True
                then(reply)

        hosts = cluster.leaders_of(partition)
        if hosts:
            host = hosts[int(self._dice.random() * len(hosts))]
            cluster.coordinators.ask(host.node, message, told, asker=self)
        cluster.later(REQUEST_TIMEOUT, partial(told, None))

    def _init(self) -> None:
        def told(reply: Any) -> None:
            if reply is None or reply.error:
                self._then(self._init, 0.2)
            else:
                self._machine.initialized(reply)
                self._then(self._begin)

        partition = self._cluster.transactions.partition_of(self._owner.name)
        self._ask(partition, self._machine.init_request(), told)

    def _begin(self) -> None:
        cluster, dice = self._cluster, self._dice
        if cluster.lull or not self._places():
            self._then(self._begin, 1.0)
            return
        self._machine.begin()
        self._sequences = {}
        self._steps_left = dice.choice((1, 1, 2, 3))
        self._wants_commit = cluster.calm or dice.random() < COMMITS
        self._has_offsets = False
        self._step()

    def _step(self) -> None:
        """The next records, or offsets, or the end."""
        if self._machine.phase is Phase.OPEN and self._steps_left:
            self._steps_left -= 1
            offsets = self._cluster.calm or self._dice.random() < OFFSETS
            if not self._steps_left and offsets:
                self._commit_offsets(TRIES)
            else:
                self._write()
        else:
            self._end()

    def _places(self) -> list[PartitionId]:
        """Where it may write."""
        return [each for each in self._cluster.store.partitions if each.topic not in INTERNAL]

    # Records

    def _write(self) -> None:
        """To one partition or two, in one request."""
        dice = self._dice
        there = self._places()
        chosen = dice.sample(there, min(len(there), 1 + (dice.random() < 0.4)))
        parts = {each: _Part(self._batch(each)) for each in chosen}
        if parts:
            self._machine.is_used = True
            self._send(parts)
        else:
            self._then(self._step)

    def _batch(self, partition: PartitionId) -> Sent:
        producer_id, epoch = self._machine.ids
        count, sequence = self._dice.randint(1, 2), self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + count
        batch = BatchMeta(-1, count, -1, BATCH_SIZE, producer_id, epoch, sequence, True)
        payload = f"{producer_id}:{epoch}:{sequence}:{partition}"
        facts = self._cluster.oracle.partitions[partition]
        return Sent(partition, payload, -1, batch, True, facts=facts, transactional_id=self._owner.name)

    def _send(self, parts: dict[PartitionId, _Part]) -> None:
        """Those of `parts` that are not acknowledged, until all are, or one has failed."""
        cluster, attempt = self._cluster, [True]

        def told(part: _Part, result: ProduceResult) -> None:
            if not attempt or self.is_over:
                return
            if result.error == ErrorCode.NONE:
                parts.pop(part.sent.partition, None)
                known = cluster.transactions.told.acknowledged
                assert part.sent.facts is not None
                known.setdefault(self._machine.ids, []).append(part.sent.facts)
                if not parts:
                    attempt.clear()
                    self._then(self._step)
            elif not ErrorCode(result.error).retriable:
                part.left = 0

        def over() -> None:
            if not attempt or self.is_over:
                return
            attempt.clear()
            if any(part.left <= 0 for part in parts.values()):
                self._machine.failed()
                self._then(self._step)
            else:
                self._then(partial(self._send, parts))

        for part in parts.values():
            part.left -= 1
        cluster.requests.send_together(
            [attrs.evolve(part.sent, done=partial(told, part)) for part in parts.values()]
        )
        cluster.later(0.4 + 0.8 * self._dice.random(), over)

    # Offsets

    def _commit_offsets(self, tries: int) -> None:
        cluster, owner = self._cluster, self._owner
        places = self._places()
        if not places:
            self._then(self._step)
            return
        self._machine.is_used = True
        owner.offset += 1
        producer_id, epoch = self._machine.ids
        message = gm.TxnOffsetCommitRequest(
            transactional_id=owner.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            group=owner.group,
            offsets=[
                gm.GroupOffset(
                    topic=places[0].topic, partition=0, offset=owner.offset, metadata=f"{cluster.new_id()}"
                )
            ],
        )

        def told(reply: gm.CommitGroupOffsetsResponse | None) -> None:
            if reply is None or reply.error in _AGAIN:
                if tries:
                    self._then(partial(self._commit_offsets, tries - 1), 0.1)
                    return
                self._machine.failed()
            elif reply.error or any(each.error for each in reply.partitions):
                self._machine.failed()
            else:
                self._has_offsets = True
            self._then(self._step)

        self._ask(cluster.coordinators.partition_of(owner.group), message, told)

    def _finish(self) -> None:
        """In calm: what was committed is told, and nothing of it stays undecided."""

        def told(reply: gm.GroupOffsetsResponse | None) -> None:
            if reply is None or reply.error or any(each.error for each in reply.offsets):
                self._then(self._finish, 0.5)
            else:
                self._owner.is_done = self.is_over = True

        message = gm.GroupOffsetsRequest(group=self._owner.group, require_stable=True)
        self._ask(self._cluster.coordinators.partition_of(self._owner.group), message, told)

    # The end

    def _end(self) -> None:
        machine = self._machine
        committed = machine.phase is Phase.COMMITTING or (machine.phase is Phase.OPEN and self._wants_commit)
        request = machine.end(committed)
        if request is None:
            self._then(self._begin, 0.2)
            return

        def told(reply: Any) -> None:
            if reply is None or reply.error in _AGAIN:
                self._then(self._end, 0.1)
                return
            match machine.ended(committed, reply):
                case Ended.DONE:
                    self._owner.look()
                    if self._cluster.calm and committed:
                        self._then(self._finish)
                    else:
                        self._then(self._begin, self._dice.choice((0.0, 0.2, 1.0)))
                case Ended.FENCED:
                    self.is_over = True
                case Ended.TIMED_OUT | Ended.REFUSED:
                    self._then(self._end, 0.1)

        self._ask(self._cluster.transactions.partition_of(self._owner.name), request, told)
