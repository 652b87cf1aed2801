"""Current reads: an offset that lies behind every write that was acknowledged before the question came.

No record is written and no clock is read. The leader notes its high watermark, and answers once every member of its
maximal ISR has sent a fetch that continues an answer given after the question came. Any next leader is among them,
and followed this epoch at a time after the question: until then nobody else can have committed anything. Every
write that this leader had acknowledged lies below the high watermark that it noted.

It does not hold across an unclean election, which gives up what was acknowledged and says so (`recovering`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from ...coordination.contact import Contact
from ...errors import ErrorCode
from ...messages import PartitionName, ReadIndexResponse, ReadIndexResult
from ...partition.leader import LeaderRole
from ...types import PartitionId
from ..effects import Reply
from .serving import NEVER

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..context import Context
    from ..events import ReadIndexArrived
    from ..timers import Timer
    from .inquiries import Inquiry
    from .serving import Serving

INFINITE = float("inf")
NOBODY = -1

LONGEST_TIMEOUT = 30.0
"""Seconds for which a question may wait, whatever its client asks for."""


@attrs.define(eq=False, slots=True)
class _Pending:
    """A request with the results that have come in; `missing` more will come."""

    request: Hashable
    missing: int
    results: list[ReadIndexResult] = attrs.Factory(list)
    reads: list[_Read] = attrs.Factory(list)
    timer: Timer | None = None


@attrs.define(eq=False, slots=True)
class _Read:
    """The question about one partition."""

    pending: _Pending
    partition: PartitionId
    asked: float
    """The mark of the last answer that this node had given to anybody when the question came."""
    offset: int = -1
    """The offset to answer; -1 until the high watermark has reached the start of the epoch."""


@attrs.define(eq=False, slots=True)
class _Watch:
    """The questions about one partition, within one role of its leader."""

    role: LeaderRole
    contact: Contact = attrs.Factory(Contact)
    reads: list[_Read] = attrs.Factory(list)
    """In the order in which they came, which is that of `asked`."""


class CurrentReads:
    """All questions for a current offset that this node has not answered yet."""

    def __init__(self, context: Context, serving: Serving) -> None:
        self._context = context
        self._serving = serving
        self.watches: dict[PartitionId, _Watch] = {}
        """By partition: what is not answered yet."""
        serving.current_reads = self

    @property
    def waiting(self) -> int:
        """Partitions whose answer is awaited."""
        return sum(len(watch.reads) for watch in self.watches.values())

    def arrived(self, event: ReadIndexArrived) -> None:
        """Take a request; every partition is answered by itself, and the last one sends the answer."""
        message, context = event.message, self._context
        pending = _Pending(event.request, len(message.partitions))
        if not message.partitions:
            context.emit(Reply(event.request, ReadIndexResponse(partitions=[])))
            return
        for wanted in message.partitions:
            self._ask(pending, wanted)
        if pending.missing:
            wait = min(max(0, message.timeout_ms) / 1000, LONGEST_TIMEOUT)
            pending.timer = context.timers.call_at(context.now + wait, partial(self._expire, pending))

    def _ask(self, pending: _Pending, wanted: PartitionName) -> None:
        context, partition = self._context, PartitionId(wanted.topic, wanted.partition)
        replica = context.replicas.get(partition)
        if replica is None:
            self._add(pending, partition, context.missing_error(partition))
            return
        role = replica.leader
        if role is None or replica.stepping:
            self._add(pending, partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        watch = self.watches.get(partition)
        if watch is not None and watch.role is not role:
            self.look(partition)
            watch = None
        if watch is None:
            watch = self.watches[partition] = _Watch(role)
        read = _Read(pending, partition, self._serving.last_mark)
        watch.reads.append(read)
        pending.reads.append(read)
        self.look(partition)
        if partition in self.watches:
            # Followers that are parked would only ask again when there is news: they are answered with nothing.
            for member in role.maximal_isr():
                self._serving.hurry(member, partition)

    # What a fetch proves

    def fetched(self, inquiry: Inquiry) -> None:
        """A follower goes on with its session: whatever it asks about, it still follows.

        Its next fetch withdraws each partition that it follows no more, so that an open question says what its
        sender followed when it sent the fetch; and that was after it had got the answer that the fetch continues.
        """
        for partition in [each for each in self.watches if each in inquiry.open]:
            watch, wanted = self.watches[partition], inquiry.open[partition]
            follower = watch.role.followers.get(inquiry.replica_id)
            if (
                follower is not None
                and wanted.leader_epoch == watch.role.epoch
                and inquiry.incarnation >= follower.incarnation
                and wanted.topic_id in ("", watch.role.record.topic_id)
            ):
                watch.contact.fetched(inquiry.replica_id, inquiry.confirmed_at)
                self.look(partition)

    def waits_for(self, inquiry: Inquiry) -> bool:
        """Whether the fetch that follows the answer to this one is what some question waits for."""
        for partition, watch in self.watches.items():
            member = inquiry.replica_id
            counts = member in watch.role.maximal_isr() and partition in inquiry.open
            if counts and watch.contact.since(NOBODY, (member,), NEVER) <= watch.reads[-1].asked:
                return True
        return False

    # Answers

    def look(self, partition: PartitionId) -> None:
        """Answer what can be answered: the role may have ended, more may be committed or in contact."""
        watch = self.watches.get(partition)
        if watch is None:
            return
        replica = self._context.replicas.get(partition)
        if replica is None or replica.leader is not watch.role or replica.stepping:
            self._finish(partition, list(watch.reads), ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if len(watch.role.record.isr) < watch.role.record.min_isr:
            # Members that left an ISR below its minimum can still be elected (KIP-966).
            self._finish(partition, list(watch.reads), ErrorCode.NOT_ENOUGH_REPLICAS)
            return
        # What former leaders have acknowledged lies below the start of the epoch (KIP-207).
        unavailable, high_watermark = watch.role.latest_offset()
        if unavailable != ErrorCode.NONE:
            return
        since = watch.contact.since(self._context.node_id, watch.role.maximal_isr(), INFINITE)
        done: list[_Read] = []
        for read in watch.reads:
            if read.offset < 0:
                read.offset = high_watermark
            if since > read.asked:
                done.append(read)
        if done:
            self._finish(partition, done)

    def _finish(self, partition: PartitionId, reads: list[_Read], error: ErrorCode = ErrorCode.NONE) -> None:
        watch = self.watches[partition]
        if reads[-1] is watch.reads[-1] and len(reads) == len(watch.reads):
            del self.watches[partition]
        else:
            gone = set(map(id, reads))
            watch.reads = [read for read in watch.reads if id(read) not in gone]
        for read in reads:
            read.pending.reads.remove(read)
            self._add(read.pending, partition, error, read.offset)

    def _expire(self, pending: _Pending) -> None:
        pending.timer = None
        for read in list(pending.reads):
            self._finish(read.partition, [read], ErrorCode.REQUEST_TIMED_OUT)

    def _add(self, pending: _Pending, partition: PartitionId, error: ErrorCode, offset: int = -1) -> None:
        replica = self._context.replicas.get(partition)
        leader, epoch = replica.hint() if replica is not None else (-1, -1)
        pending.results.append(
            ReadIndexResult(
                topic=partition.topic,
                partition=partition.partition,
                error=error,
                offset=offset if error == ErrorCode.NONE else -1,
                leader=leader,
                leader_epoch=epoch,
            )
        )
        pending.missing -= 1
        assert pending.missing >= 0, "a partition is answered once"
        if pending.missing == 0:
            if pending.timer is not None:
                pending.timer.cancel()
            self._context.emit(Reply(pending.request, ReadIndexResponse(partitions=pending.results)))
