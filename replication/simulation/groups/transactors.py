"""Members that consume, transform and produce: each poll's outputs and its offsets are one transaction (KIP-447).

The coordinator of transactions is a model here: the machine has a simulator of its own. The model keeps what the
group depends on: offsets are taken while their transaction is open, and none behind its marker (the partition's
gate); one that nobody ends is aborted by its timeout; a marker is sent until it is committed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from ...core.coordination.shard_events import Marker
from ...core.errors import ErrorCode
from ...core.groups.records import TopicPartition
from ...core.messages import groups as gm
from .clients import Client

if TYPE_CHECKING:
    from .brokers import Broker
    from .exactly_once import ExactlyOnce

Ranges = dict[TopicPartition, tuple[int, int]]
"""Of each partition the first offset that was read, and the one behind the last."""
TIMEOUTS = (6.0, 30.0)
"""Seconds after which a transaction that nobody ends is aborted: less than a session, or more."""
ZOMBIE = (2.0, 7.0, 12.0, 18.0)
"""Seconds for which a process stands still at the worst moment: less than its session, or more."""
PATIENCE = 4.0
FIRST_ID = 1_000_000
"""Producer ids below are those of offsets without members (`Faults.transactions`)."""
AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)

FENCED = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""The errors that a member is told when its group has gone on without it."""


class Outcome(enum.Enum):
    OPEN = enum.auto()
    COMMITTED = enum.auto()
    ABORTED = enum.auto()


@attrs.define(eq=False)
class Transaction:
    """`inputs`: what its outputs were made of."""

    producer_id: int
    group: str
    owner: str
    inputs: Ranges
    outcome: Outcome = Outcome.OPEN


class Transactions:
    """The coordinator of all transactions; it is always there, and what it is asked may come late or never."""

    def __init__(self, cluster: ExactlyOnce) -> None:
        self._cluster = cluster
        self._known: dict[int, Transaction] = {}
        self._marked = 0
        """How much of the committed log was searched for markers."""
        self._markers: set[int] = set()
        self.committed = self.aborted = 0

    def begin(self, group: str, owner: str, inputs: Ranges) -> Transaction:
        """A transaction with a producer id of its own, as it would have an epoch of its own."""
        found = Transaction(FIRST_ID + len(self._known), group, owner, inputs)
        self._known[found.producer_id] = found
        world = self._cluster.world
        world.later(world.random.choice(TIMEOUTS), lambda: self.end(found, committed=False))
        return found

    def takes(self, request: gm.TxnOffsetCommitRequest) -> bool:
        """The gate of the partition: nothing gets into a transaction that is decided."""
        return self._known[request.producer_id].outcome is Outcome.OPEN

    def end(self, transaction: Transaction, *, committed: bool) -> None:
        """Decide it, unless it is decided."""
        if transaction.outcome is Outcome.OPEN:
            transaction.outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
            if committed:
                self.committed += 1
                self._cluster.outputs.count(transaction)
            else:
                self.aborted += 1
            world = self._cluster.world
            world.later(world.random.choice((0.0, 0.01, 0.3, 2.0)), partial(self._mark, transaction))

    def _mark(self, transaction: Transaction) -> None:
        """Until the marker is committed: a leader that takes it may be none any more."""
        log = self._cluster.oracle.log
        self._markers |= {
            each.producer.producer_id for each in log[self._marked :] if isinstance(each, Marker)
        }
        self._marked = len(log)
        if transaction.producer_id in self._markers:
            return
        leader = self._cluster.coordinator()
        there = any(
            isinstance(each, Marker) and each.producer.producer_id == transaction.producer_id
            for each in leader.items
        )
        if not there:
            leader.mark(transaction.producer_id, committed=transaction.outcome is Outcome.COMMITTED)
        self._cluster.world.later(0.5, partial(self._mark, transaction))


class Transactor(Client):
    """A process of its kind. After a transaction that was aborted it goes back to what the group has committed."""

    cluster: ExactlyOnce
    commits = False
    most = 100

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: Transaction | None = None

    def stop(self) -> None:
        """An open transaction is aborted first: its block is left."""
        if self._open is not None:
            self.cluster.decisions.end(self._open, committed=False)
        self._open, self._working = None, {}
        super().stop()

    def _serve(self, partition: TopicPartition, offset: int | None) -> None:
        super()._serve(partition, offset)
        self.cluster.outputs.begins(self, partition, self.serving[partition])

    def _work(self, pause: float) -> None:
        """The records of the last poll, in one transaction; then the next poll."""
        inputs = dict(self._working)
        if not inputs:
            self.after(pause, self._poll)
            return
        transaction = self._open = self.cluster.decisions.begin(self.group, self.name, inputs)
        self.after(pause, partial(self._send_offsets, transaction, None, self.clock + pause + PATIENCE))
        self._stand_still()

    def _send_offsets(
        self, transaction: Transaction, request: gm.TxnOffsetCommitRequest | None, until: float
    ) -> None:
        """As `Transactions.send_offsets` of real clients does: one request, asked until somebody decides it."""
        membership = self.membership
        if request is None:
            if membership.held.lost:
                self._give_up(transaction)  # what `Consumer.group_metadata` raises
                return
            request = gm.TxnOffsetCommitRequest(
                transactional_id=self.name,
                producer_id=transaction.producer_id,
                producer_epoch=0,
                group=self.group,
                member_id=membership.member_id if membership.is_member else "",
                epoch=membership.epoch if membership.is_member else 0,
                instance_id=membership.settings.instance_id,
                offsets=[
                    gm.GroupOffset(
                        topic=membership.held.names[each.topic_id], partition=each.partition, offset=end
                    )
                    for each, (_, end) in sorted(transaction.inputs.items())
                ],
            )
            # Who it is in its group is said; what it says may come when it is nobody any more.
            self._stand_still()
        asked = request

        def told(reply: Any) -> None:
            codes = {ErrorCode.REQUEST_TIMED_OUT} if reply is None else _codes(reply)
            if codes <= {ErrorCode.NONE}:
                self.after(self.world.random.choice((0.0, 0.1, 1.0)), partial(self._commit_all, transaction))
                self._stand_still()
            elif codes <= AGAIN | {ErrorCode.NONE} and self.clock < until:
                self.after(0.1, partial(self._send_offsets, transaction, asked, until))
            else:
                self.cluster.refused += bool(codes & FENCED)
                self._give_up(transaction)

        send = partial(self._ask, asked, partial(self.cluster.take_offsets, asked), told)
        self.after(0.0, send)

    def _stand_still(self) -> None:
        """Now and then, before the next step of a transaction."""
        if not self.world.calm and self.world.chance(0.12):
            self.pause(self.world.random.choice(ZOMBIE))

    def _commit_all(self, transaction: Transaction) -> None:
        self.cluster.decisions.end(transaction, committed=True)
        if transaction.outcome is Outcome.COMMITTED:
            for each, (first, end) in transaction.inputs.items():
                self.cluster.oracle.done_with(self, each, first, end)
            self._next_poll()
        else:
            self._go_back()

    def _give_up(self, transaction: Transaction) -> None:
        self.cluster.decisions.end(transaction, committed=False)
        self._go_back()

    def _next_poll(self) -> None:
        self._open, self._working = None, {}
        if not self.stopping:
            self._poll()

    def _go_back(self) -> None:
        """To `Consumer.committed`, of what it still holds; between polls nothing new is given to it."""
        held = sorted(self.serving)
        names = self.membership.held.names
        if not held:
            self._next_poll()
            return
        request = gm.GroupOffsetsRequest(
            group=self.group,
            partitions=[
                gm.TopicPartitionName(topic=names[each.topic_id], partition=each.partition) for each in held
            ],
            require_stable=True,
        )

        def told(reply: Any) -> None:
            if reply is None or not _codes(reply) <= {ErrorCode.NONE}:
                self.after(0.2, self._go_back)
                return
            found = {(each.topic, each.partition): each.offset for each in reply.offsets}
            for each in held:
                if each in self.serving:
                    offset = found[names[each.topic_id], each.partition]
                    self.serving[each] = max(offset, 0)
                    self.cluster.outputs.begins(self, each, max(offset, 0))
            self._next_poll()

        self._ask(request, lambda broker, answer: broker.ask(request, 5.0, -1, answer), told)

    def _ask(
        self,
        message: Any,
        arrive: Callable[[Broker, Callable[[Any], None]], None],
        told: Callable[[Any], None],
    ) -> None:
        """Of whom some node takes for the coordinator; None is told if there is no answer."""
        world, is_over = self.world, False
        any_node = world.random.choice(self.cluster.brokers)
        target = self.cluster.brokers[max(any_node.leader, 0)]

        def once(reply: Any) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                told(reply)

        def answered(reply: Any) -> None:
            world.send(target, self, lambda: once(reply))

        world.send(self, target, lambda: arrive(target, answered))
        if not world.calm and world.chance(0.1):
            # A copy lies in a socket, perhaps until the transaction is decided.
            late = partial(arrive, target, lambda reply: None)
            world.later(world.random.uniform(0.0, 10.0), partial(target.run, late))
        self.after(2.0, lambda: once(None))


def _codes(reply: Any) -> set[ErrorCode]:
    parts: Any = getattr(reply, "partitions", None) or getattr(reply, "offsets", ())
    return {ErrorCode(reply.error), *(ErrorCode(each.error) for each in parts)}
