"""Transactional producers: a client's production machine over the simulated network (KIP-98, KIP-890).

Of each transactional id one producer comes after the other. The former may be gone, or go on until it finds out.
Producers of some ids are of the first version, which adds partitions itself and whose transactions share an epoch;
those of others use both versions, also within a transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from msgspec import structs

from ...core.client.transactional_producer import Ended, Phase, TransactionalProducer
from ...core.errors import ErrorCode
from ...core.messages import ProduceResult, ProduceTransaction
from ...core.messages import groups as gm
from ...core.messages import transactions as tm
from ...core.messages.admin import PartitionName
from ...core.transactions.epochs import FIRST_VERSION, SECOND_VERSION
from ...core.types import BatchMeta, PartitionId
from ..driver.fetches import BATCH_SIZE
from ..driver.requests import Sent
from ..errors import require
from ..oracles.transactions import Intent
from ..settings import INTERNAL

if TYPE_CHECKING:
    from ..oracles.facts import PartitionFacts
    from ..world.cluster import Cluster

VACANT = 0.3
"""How soon it asks again when nobody coordinates."""
TRIES = 4
"""How often a producer sends something before it aborts."""
NEXT_BEGINS = 0.2
"""How likely another producer of the id begins, each time that its owner looks."""
IS_GONE = 0.5
"""How likely the one before it is then."""
STANDS = 0.06
"""How likely a producer stands still, each time that it does something."""
COMMITS = 0.7
OFFSETS = 0.6
"""How likely a transaction has offsets of a group."""
GOES_ON = 0.1
"""How likely a producer asks for the next ids by those that it has, when it could begin a transaction (KIP-360)."""
GIVES_UP = 0.15
"""How likely it does not wait until a batch is acknowledged, and aborts."""
GOES_ASTRAY = 0.15
"""How likely a batch that says of itself that it is in no transaction follows one that is."""
BOTH = (FIRST_VERSION, SECOND_VERSION)
VERSIONS = ((SECOND_VERSION,), (SECOND_VERSION,), (FIRST_VERSION,), BOTH, BOTH)
"""Those that the producers of an id use."""
WRONG_CLOCKS = frozenset({"CK", "CF"})
"""Faults after which a coordinator may time a transaction out too early."""
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
        self.versions: tuple[int, ...] = self.dice.choice(VERSIONS)
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
    def shares_epochs(self) -> bool:
        """Whether several transactions may have the same epoch."""
        return FIRST_VERSION in self.versions

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


class Owner(Protocol):
    """The owner of producers. `name`: its transactional id; `versions`: those that its producers use."""

    cluster: Cluster
    dice: random.Random
    name: str
    group: str
    versions: tuple[int, ...]
    offset: int
    is_done: bool

    @property
    def shares_epochs(self) -> bool:
        """Whether several transactions may have the same epoch."""

    def is_latest(self, producer: Producer) -> bool:
        """Whether none has begun after it."""

    def look(self) -> None:
        """A transaction has ended."""


@attrs.define(eq=False)
class _Part:
    """One transaction's writes to one partition: one batch after the other."""

    sent: Sent
    left: int = TRIES


class Producer:
    """One process; by the machine of real producers."""

    timeouts: tuple[int, ...] = (3_000, 6_000, 12_000)
    """Milliseconds after which one of its transactions is aborted."""
    patience: tuple[float, ...] = (0.4, 1.0, 4.0)
    """Seconds for which it waits for an answer."""

    def __init__(self, owner: Owner, name: str) -> None:
        self._owner = owner
        self._cluster = owner.cluster
        self._dice = owner.dice
        self._name = name
        timeouts = (12_000,) if self._cluster.calm else self.timeouts
        self._machine = TransactionalProducer(owner.name, self._dice.choice(timeouts))
        self.is_over = False
        self._first_ids = self._machine.ids
        """Those that it was told when it took the id over."""
        self._intent = Intent(owner.name, self, self._machine.ids)
        self._sequences: dict[PartitionFacts, int] = {}
        """The next one. A topic that was made again begins at 0."""
        self._added: set[PartitionId] = set()
        """Partitions of the open transaction, as far as it knows."""
        self._has_failed = False
        """Whether something of these ids may still come late."""
        self._versions = owner.versions
        """By which the open transaction may add partitions."""
        self._version = SECOND_VERSION
        """Of its end."""
        self._begun_at = 0.0
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

    def _ask(
        self,
        partition: PartitionId | None,
        message: Any,
        then: Callable[[Any], None],
        intent: Intent | None = None,
    ) -> None:
        """Ask a node that takes itself for the coordinator; `then` gets the answer, or None.

        `intent`: the transaction that it is about.
        """
        cluster, is_settled = self._cluster, False

        def told(reply: Any) -> None:
            nonlocal is_settled
            if not is_settled and not self.is_over:
                is_settled = True
                then(reply)

        hosts = cluster.leaders_of(partition)
        if hosts:
            host = hosts[int(self._dice.random() * len(hosts))]
            cluster.coordinators.ask(host.node, message, told, asker=self, intent=intent)
        cluster.later(self._dice.choice(self.patience) if hosts else VACANT, partial(told, None))

    def _init(self, ids: tuple[int, int] = (-1, -1)) -> None:
        """Take the id over; with `ids`, if nobody else has since it was told them."""
        request = self._machine.init_request()
        request = structs.replace(request, producer_id=ids[0], producer_epoch=ids[1])

        def told(reply: Any) -> None:
            if reply is not None and reply.error == ErrorCode.PRODUCER_FENCED:
                self._fenced()
            elif reply is None or reply.error:
                self._then(partial(self._init, ids), 0.2)
            else:
                self._machine.initialized(reply)
                self._first_ids = self._machine.ids
                self._then(self._begin)

        self._ask(self._coordinator, request, told)

    @property
    def _coordinator(self) -> PartitionId | None:
        return self._cluster.transactions.partition_of(self._owner.name)

    def _go_on_by_its_ids(self) -> None:
        known, self._has_failed = self._machine.ids, False
        self._machine = TransactionalProducer(self._owner.name, self._machine.timeout_ms)
        self._then(partial(self._init, known), self._dice.choice((0.0, 0.0, 3.0)))

    def _fenced(self) -> None:
        """S43: its id was lost to another one, or has expired."""
        right = self._cluster.transactions.may_be_fenced(self._owner.name, self._first_ids)
        require(right, "S43", f"{self} is fenced, and nobody has taken the id over")
        self.is_over = self._intent.is_over = True

    def _begin(self) -> None:
        cluster, dice = self._cluster, self._dice
        self._intent.is_over = True
        if cluster.lull or not self._places():
            self._then(self._begin, 1.0)
            return
        # Something of these ids that has failed may come late, into the next transaction of the same epoch.
        is_due = self._has_failed and self._owner.shares_epochs
        if is_due or (not cluster.calm and dice.random() < GOES_ON):
            self._go_on_by_its_ids()
            return
        self._machine.begin()
        is_first = self._machine.ids != self._intent.ids or not self._owner.shares_epochs
        if is_first:
            self._sequences = {}
        # By the second version an epoch has one transaction.
        self._versions = self._owner.versions if is_first else (FIRST_VERSION,)
        self._intent, self._added = Intent(self._owner.name, self, self._machine.ids), set()
        cluster.transactions.told.begun(self._intent)
        self._version, self._begun_at = dice.choice(self._owner.versions), cluster.now
        # One that has none has nothing to end.
        self._steps_left = dice.choice((1, 1, 2, 3) if cluster.calm else (0, 1, 1, 1, 2, 3))
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
        if not chosen:
            self._then(self._step)
            return
        version = dice.choice(self._versions)

        def write() -> None:
            if not {*chosen}.issubset(self._places()):
                self._fail()  # a topic was deleted meanwhile
                return
            self._machine.is_used = True
            self._send({each: _Part(self._batch(each, version)) for each in chosen})

        self._with(version, chosen, write)

    def _with(self, version: int, places: Sequence[PartitionId], do: Callable[[], None]) -> None:
        """By the first version the producer has partitions added, by the second one their leaders do."""
        if version > FIRST_VERSION or self._added.issuperset(places):
            self._added.update(places)
            do()
            return
        ids = self._machine.ids
        gateway = next((node for node in self._cluster.nodes.values() if node.broker is not None), None)
        request = tm.AddPartitionsRequest(
            transactional_id=self._owner.name,
            producer_id=ids[0],
            producer_epoch=ids[1],
            partitions=[PartitionName(topic=each.topic, partition=each.partition) for each in places],
            view_revision=gateway.shown.revision if gateway is not None else 0,
            version=version,
        )

        def told(reply: Any) -> None:
            if reply is None or reply.error in _AGAIN:
                self._then(partial(self._with, version, places, do), 0.1)
            elif reply.error:
                self._fail()
            else:
                self._machine.is_used = True
                self._added.update(places)
                self._then(do)

        self._ask(self._coordinator, request, told, self._intent)

    def _fail(self, delay: float = 0.0) -> None:
        """Something was not taken, or perhaps not: the transaction will be aborted."""
        self._machine.failed()
        self._has_failed = True
        self._then(self._step, delay)

    def _batch(self, partition: PartitionId, version: int) -> Sent:
        producer_id, epoch = self._machine.ids
        facts = self._cluster.oracle.partitions[partition]
        count, sequence = self._dice.randint(1, 2), self._sequences.get(facts, 0)
        self._sequences[facts] = sequence + count
        batch = BatchMeta(-1, count, -1, BATCH_SIZE, producer_id, epoch, sequence, True)
        payload = f"{producer_id}:{epoch}:{sequence}:{partition}"
        self._cluster.transactions.told.intents[payload] = self._intent
        return Sent(
            partition,
            payload,
            -1,
            batch,
            True,
            facts=facts,
            transaction=ProduceTransaction(transactional_id=self._owner.name, version=version),
        )

    def _go_astray(self, part: _Part) -> None:
        """A batch that says of itself that it is in no transaction, behind one that is."""
        sent = part.sent
        batch = sent.batch._replace(
            transactional=False, base_sequence=sent.batch.base_sequence + sent.batch.offset_count
        )
        plain = Sent(sent.partition, f"{sent.payload}:plain", -1, batch, False, facts=sent.facts)

        def send() -> None:
            self._cluster.requests.send([plain])

        self._cluster.later(self._dice.choice((0.1, 1.0)), send)

    def _send(self, parts: dict[PartitionId, _Part]) -> None:
        """Those of `parts` that are not acknowledged, until all are, or one has failed."""
        cluster, attempt, intent = self._cluster, [True], self._intent

        def told(part: _Part, result: ProduceResult) -> None:
            if not attempt or self.is_over:
                return
            if result.error == ErrorCode.NONE:
                parts.pop(part.sent.partition, None)
                assert part.sent.facts is not None
                intent.acknowledged.append(part.sent.facts)
                if not self._owner.shares_epochs and not cluster.calm and self._dice.random() < GOES_ASTRAY:
                    self._go_astray(part)
                if not parts:
                    attempt.clear()
                    self._then(self._step)
            elif not ErrorCode(result.error).retriable:
                is_lost = result.error == ErrorCode.INVALID_PRODUCER_ID_MAPPING
                right = not is_lost or not cluster.transactions.holds(intent)
                require(right, "S43", f"{self} is told that the ids are not its own")
                part.left = 0

        def over() -> None:
            if not attempt or self.is_over:
                return
            attempt.clear()
            if any(part.left <= 0 for part in parts.values()):
                self._fail()
            else:
                self._then(partial(self._send, parts))

        for part in parts.values():
            part.left -= 1
        cluster.requests.send_together(
            [attrs.evolve(part.sent, done=partial(told, part)) for part in parts.values()]
        )
        if not cluster.calm and self._dice.random() < GIVES_UP:
            attempt.clear()
            intent.is_given_up = True
            self._fail(self._dice.choice((0.0, 0.05, 0.5)))
        cluster.later(0.4 + 0.8 * self._dice.random(), over)

    # Offsets

    def _commit_offsets(self, tries: int) -> None:
        there = self._cluster.coordinators.partition_of(self._owner.group)
        if not self._places() or there is None:
            self._fail()  # an earlier try may still come
            return
        version = self._dice.choice(self._versions)
        self._with(version, [there], partial(self._commit_offsets_by, version, there, tries))

    def _commit_offsets_by(self, version: int, there: PartitionId, tries: int) -> None:
        places = self._places()
        if not places:
            self._fail()
            return
        self._machine.is_used = True
        message = self._offsets(version, places)

        def told(reply: gm.CommitGroupOffsetsResponse | None) -> None:
            if tries and (reply is None or reply.error in _AGAIN):
                self._then(partial(self._commit_offsets, tries - 1), 0.1)
            elif reply is None or reply.error or any(each.error for each in reply.partitions):
                self._fail()
            else:
                self._has_offsets = True
                self._then(self._step)

        self._ask(there, message, told, self._intent)

    def _offsets(self, version: int, places: Sequence[PartitionId]) -> gm.TxnOffsetCommitRequest:
        """An offset of its group, by a name of its own, for the oracle to know it again."""
        owner, name = self._owner, f"{self._cluster.new_id()}"
        owner.offset += 1
        producer_id, epoch = self._machine.ids
        return gm.TxnOffsetCommitRequest(
            transactional_id=owner.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            group=owner.group,
            offsets=[gm.GroupOffset(topic=places[0].topic, partition=0, offset=owner.offset, metadata=name)],
            version=version,
        )

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
        machine, intent = self._machine, self._intent
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
                    self._done(committed)
                case Ended.FENCED:
                    self._fenced()
                case Ended.TIMED_OUT:
                    self._check_timeout()
                    self._then(self._end, 0.1)
                case Ended.REFUSED if self._version > FIRST_VERSION:
                    self._then(self._end, 0.1)
                case Ended.REFUSED:
                    # Its coordinator knows of no transaction, and by this version says so for ever.
                    self.is_over = intent.is_over = True

        self._ask(self._coordinator, structs.replace(request, version=self._version), told, intent)

    def _done(self, committed: bool) -> None:
        """A transaction has ended."""
        self._owner.look()
        if self._cluster.calm and committed:
            self._then(self._finish)
        else:
            self._then(self._begin, self._dice.choice((0.0, 0.0, 0.2, 1.0)))

    def _check_timeout(self) -> None:
        """S32, as far as clocks are right, and the transaction has its epoch for itself."""
        open_for = self._cluster.now - self._begun_at
        is_due = open_for >= self._machine.timeout_ms / 1000
        excused = self._owner.shares_epochs or WRONG_CLOCKS & {*self._cluster.settings.faults}
        require(bool(is_due or excused), "S32", f"{self} is told that it timed out after {open_for:g} s")
