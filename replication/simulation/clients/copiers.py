"""Members that consume, transform and produce: each poll's offsets are committed by one transaction (KIP-447)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.client.transactional_producer import Phase
from ...core.groups.records import TopicPartition
from ...core.messages import groups as gm
from ...core.transactions.epochs import SECOND_VERSION
from ...core.types import PartitionId
from .members import Member
from .transactions import TRIES, Producer

if TYPE_CHECKING:
    from ..oracles.transactions import Intent

ZOMBIE = (2.0, 7.0, 12.0, 18.0)
"""Seconds for which a process stands still at the worst moment: less than its session, or more."""
IS_ZOMBIE = 0.1
"""How likely it does before the next step of a transaction."""
IS_ZOMBIE_AT_END = 0.35
"""How likely it does when its offsets were taken and nothing has been committed."""
LATE_COPY = 0.1
"""How likely a copy of its offsets lies in a socket, perhaps until the transaction is decided."""
WRITES = 0.3
"""How likely a transaction has records as well; what counts for the oracle is that it commits."""


class CopyingProducer(Producer):
    """It begins a transaction when its member has polled something."""

    _owner: Copier
    timeouts = (6_000, 30_000)
    """Less than a session, and more."""
    patience = (1.0, 4.0)

    def __init__(self, owner: Copier) -> None:
        self.is_idle = False
        self._said: gm.TxnOffsetCommitRequest | None = None
        super().__init__(owner, owner.name)

    @property
    def intent(self) -> Intent:
        """The transaction that it has begun last."""
        return self._intent

    def copy(self) -> bool:
        """Begin a transaction for what was polled; whether it could."""
        before, self.is_idle, self._said = self._intent, False, None
        super()._begin()
        return self._intent is not before

    def _begin(self) -> None:
        self.is_idle = True
        if self._owner.is_copying:
            self._owner.copied(committed=False)  # nothing of it was ever sent
        else:
            self._owner.try_copy()

    def _then(self, do: Callable[[], None], delay: float = 0.0) -> None:
        chance = IS_ZOMBIE_AT_END if self._has_offsets else IS_ZOMBIE
        # A step that is tried again goes on.
        if do == self._step and not self._cluster.calm and self._dice.random() < chance:
            self._owner.pause(self._dice.choice(ZOMBIE))
        self._cluster.later(delay + 0.1 * self._dice.random(), partial(self._go_on, do))

    def _go_on(self, do: Callable[[], None]) -> None:
        """Its process takes the next step, unless it stands still."""
        self._owner.run(partial(super()._go_on, do))

    def _step(self) -> None:
        if self._machine.phase is not Phase.OPEN or self._has_offsets or self._owner.gives_up:
            self._wants_commit = self._has_offsets and not self._owner.gives_up
            self._end()
        elif self._said is None and not self._added and self._dice.random() < WRITES:
            self._added.update(self._places())  # once
            self._write()
        else:
            self._commit_offsets(TRIES)

    def _offsets(self, version: int, places: Sequence[PartitionId]) -> gm.TxnOffsetCommitRequest:
        """As `Transactions.send_offsets` of real clients does: one request, asked until somebody decides it."""
        if self._said is None:
            producer_id, epoch = self._machine.ids
            self._said = gm.TxnOffsetCommitRequest(
                transactional_id=self._owner.name,
                producer_id=producer_id,
                producer_epoch=epoch,
                offsets=self._owner.offsets(),
                version=version,
                **self._owner.identity(),
            )
        if not self._cluster.calm and self._dice.random() < LATE_COPY:
            self._owner.groups.send_late(self._said)
        return self._said

    def _done(self, committed: bool) -> None:
        self.is_idle = True
        self._owner.copied(committed=committed)

    def _fenced(self) -> None:
        super()._fenced()
        self._owner.die()


class Copier(Member):
    """A process of its kind. After a transaction that was aborted it goes back to what its group has committed."""

    versions: tuple[int, ...] = (SECOND_VERSION,)
    shares_epochs = False
    most = 100
    offset = 0
    is_done = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.gives_up = False
        """Whether its open transaction is to be aborted: it is asked to stop."""
        self.is_copying = False
        """Whether a transaction is under way for what was polled."""
        self._inputs: dict[TopicPartition, tuple[int, int]] = {}
        self._is_due = False
        self._producer: CopyingProducer | None = None
        super().__init__(*arguments, **named)
        self._producer = CopyingProducer(self)

    # For its producer

    def is_latest(self, producer: Producer) -> bool:
        """Its transactional id is its own."""
        return True

    def look(self) -> None:
        """Others ask for what is committed."""

    def offsets(self) -> list[gm.GroupOffset]:
        """Of all that was polled."""
        names = self.membership.held.names
        return [
            gm.GroupOffset(
                topic=names[each.topic_id],
                partition=each.partition,
                offset=end,
                metadata=f"{self.cluster.new_id()}",
            )
            for each, (_, end) in sorted(self._inputs.items())
        ]

    def identity(self) -> dict[str, Any]:
        """The fields by which its group knows it."""
        membership = self.membership
        return {
            "group": self.group,
            "member_id": membership.member_id if membership.is_member else "",
            "epoch": membership.epoch if membership.is_member else 0,
            "instance_id": self.instance,
        }

    # Transactions

    def _work(self) -> None:
        self._inputs, self._is_due = dict(self.working), bool(self.working)
        if self._is_due:
            self.try_copy()
        else:
            self._poll()

    def try_copy(self) -> None:
        """Begin the transaction that is due, if its producer can."""
        producer = self._producer
        if producer is None or not self._is_due or not producer.is_idle:
            return
        if self.membership.held.lost:  # `Consumer.group_metadata` raises
            self._is_due = False
            self.copied(committed=False)
        elif producer.copy():
            self._is_due, self.is_copying = False, True
            self.groups.inputs.begun(producer.intent, self.group, self._inputs)

    def copied(self, *, committed: bool) -> None:
        """A transaction has ended."""
        self.is_copying = False
        if committed:
            self._poll_on()
        else:
            self.working = {}
            self._go_back()

    def _poll_on(self) -> None:
        if self.gives_up and not self.stopping:
            self.gives_up = False
            super().stop()
        elif not self.stopping:
            self._poll()

    def _serve(self, partition: TopicPartition, offset: int | None) -> None:
        super()._serve(partition, offset)
        self.groups.inputs.begins(self, partition, self.serving[partition])

    def _go_back(self) -> None:
        """To `Consumer.committed`, of what it still holds; between polls nothing new is given to it."""
        held = sorted(self.serving)
        names = self.membership.held.names
        hosts = self.cluster.leaders_of(self.cluster.coordinators.partition_of(self.group))
        if not held or self.stopping:
            self._poll_on()
            return
        wanted = [
            gm.TopicPartitionName(topic=names[each.topic_id], partition=each.partition) for each in held
        ]
        request = gm.GroupOffsetsRequest(group=self.group, partitions=wanted, require_stable=True)
        is_over = False

        def told(reply: gm.GroupOffsetsResponse | None) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            if reply is None or reply.error or any(each.error for each in reply.offsets):
                self.after(0.2, self._go_back)
                return
            found = {(each.topic, each.partition): each.offset for each in reply.offsets}
            for each in held:
                if each in self.serving:
                    self.serving[each] = max(found[names[each.topic_id], each.partition], 0)
                    self.groups.inputs.begins(self, each, self.serving[each])
            self._poll_on()

        if hosts:
            self.ask(self.dice.choice(hosts).node, request, told)
        self.after(2.0, partial(told, None))

    def stop(self) -> None:
        """An open transaction is aborted first: its block is left."""
        if self.is_copying:
            self.gives_up = True
        else:
            self.working = {}
            super().stop()

    def die(self) -> None:
        super().die()
        if self._producer is not None:
            self._producer.is_over = True
