"""Reads ahead of the consumer: one long poll for each leader, a bounded buffer for each partition."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator

import attrs
import trio

from ....transport import Connection, NotAuthorisedError, Response, TransportError
from ... import wire
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.types import CONSUMER, NO_EPOCH, NO_LEADER, EpochEnd, PartitionId
from ...core.wording import counted
from .._settings import ConsumerSettings
from ..connection._cluster import NOBODY, Cluster, Leader
from ..connection._offsets import list_offsets
from ..connection._patience import MOST, Patience
from ..errors import (
    AuthorizationError,
    ClientError,
    CorruptMessageError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    error_for,
)
from ._corrupt import Skips, end_of_unreadable, sound_prefix
from ._isolation import Chunk, committed
from ._losses import deleted, past_the_end, recreated, truncated

_log = logging.getLogger("insync.client")
_NEVER = float("inf")
_CORRUPT_TRIES = 3
_CORRUPT_PATIENCE = 3.0
"""Seconds for which a leader has time to find the damage in its log and have a sound replica lead; once, however
much of its log is damaged."""
_LARGEST_BATCH = 64 << 20


@attrs.define(eq=False, slots=True)
class Reading:
    """One assigned partition. `generation` tells whether it was restarted since.

    Invariant: `position` <= the first record in `chunks` <= what `committed_only` holds <= `fetch_offset`.
    """

    at: PartitionId
    position: int | None = None
    fetch_offset: int | None = None
    reset: int | None = None
    """The timestamp (earliest, latest) by which the position is to be found."""
    resolving: bool = False
    known: bool = False
    learning: bool = False
    chunks: deque[Chunk] = attrs.Factory(deque)
    records: Iterator[object] | None = None
    generation: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    retries: int = 0
    retry_at: float = -1.0
    failed_leader: Leader = NOBODY
    corrupt: int = 0
    corrupt_since: float = 0.0
    waited_for: Leader = NOBODY
    """The leader that has had its time to find the damage in its log."""
    error: ClientError | None = None
    paused: bool = False
    withheld: bool = False
    """Its group has taken it back: it is here only until its caller has been told."""
    topic_id: str = ""
    """Of which topic `position` is; empty if anybody's."""
    last_epoch: int = NO_EPOCH
    """Of the last batch before `fetch_offset`, if that was read."""

    def restart(self, position: int | None, reset: int | None = None, topic_id: str = "") -> None:
        """Read from elsewhere; what was read ahead is dropped."""
        self.generation += 1
        self.position = self.fetch_offset = position
        self.reset = reset
        self.resolving = self.learning = False
        self.chunks.clear()
        self.records = None
        self.retries, self.retry_at, self.corrupt = 0, -1.0, 0
        self.topic_id, self.last_epoch = topic_id, NO_EPOCH
        if topic_id:
            self.known = False
        self.error = None

    def take(self, chunk: Chunk) -> None:
        """Add a chunk that was read from `fetch_offset` on."""
        last_epoch = chunk.batches[-1].leader_epoch if chunk.batches else NO_EPOCH
        self.fetch_offset, self.last_epoch = chunk.next_offset, last_epoch
        self.chunks.append(chunk)


@attrs.define(eq=False, slots=True)
class _Poll:
    """The outstanding question to one node."""

    node_id: int
    connection: Connection
    asked: dict[PartitionId, tuple[Reading, Leader]]
    due_at: float
    """When the node answers though there is nothing new."""
    slow_at: float
    """When it should have been answered."""
    handle: object = None


class Fetcher:
    """Keeps the buffers of the assigned partitions filled; `run` must run in a task."""

    def __init__(self, settings: ConsumerSettings, cluster: Cluster, nursery: trio.Nursery) -> None:
        self.readings: dict[PartitionId, Reading] = {}
        self.skips = Skips()
        self.arrived = trio.Event()
        self._settings = settings
        self._cluster = cluster
        self._nursery = nursery
        self._event = trio.Event()
        self._polls: dict[int, _Poll] = {}
        self._patience = Patience()
        self._muted_until: dict[int, float] = {}
        """Until when a node serves us nothing, because of our quota (KIP-219)."""
        cluster.listeners.append(self.wake)

    def throttled_ms(self, at: PartitionId) -> int:
        """For how much longer the leader of a partition serves us nothing, because of our quota."""
        until = self._muted_until.get(self._cluster.leader(*at).node_id, 0.0)
        return max(0, math.ceil(1000 * (until - trio.current_time())))

    def wake(self) -> None:
        """Look again at what may be fetched."""
        self._event.set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            self._event = trio.Event()
            next_at = self._pump()
            with trio.move_on_at(next_at):
                await self._event.wait()

    def new_reading(self, at: PartitionId) -> Reading:
        """For a partition that was just assigned."""
        return Reading(at, reset=self.initial_reset())

    def interrupt(self) -> None:
        """Positions or assignment have changed: answers to outstanding questions are not wanted any more."""
        for poll in list(self._polls.values()):
            self._drop(poll)
        self.wake()

    # Asking

    def _pump(self) -> float:
        now = trio.current_time()
        next_at = _NEVER
        ready: dict[int, list[Reading]] = {}
        for reading in self.readings.values():
            leader = self._cluster.leader(*reading.at)
            at = self._fetchable_at(reading, leader, now)
            if at <= now:
                ready.setdefault(leader.node_id, []).append(reading)
            else:
                next_at = min(next_at, at)
        for poll in list(self._polls.values()):
            self._check_poll(poll, now)
        for node_id, readings in ready.items():
            if node_id not in self._polls:
                next_at = min(next_at, self._poll_node(node_id, readings))
        return min([next_at, *(poll.slow_at for poll in self._polls.values())])

    def _fetchable_at(self, reading: Reading, leader: Leader, now: float) -> float:
        if reading.error is not None or reading.paused or reading.withheld or self._full(reading):
            return _NEVER
        if not reading.known:
            if not reading.learning:
                reading.learning = True
                self._nursery.start_soon(self._learn, reading, reading.generation)
            return _NEVER
        if reading.fetch_offset is None:
            if not reading.resolving and reading.reset is not None:
                reading.resolving = True
                self._nursery.start_soon(self._resolve, reading, reading.generation)
            return _NEVER
        if leader.node_id == NO_LEADER:
            self._cluster.suspect(reading.at.topic, reading.at.partition, leader)
            return _NEVER
        if reading.retry_at > now and leader == reading.failed_leader:
            return reading.retry_at
        return now

    def _full(self, reading: Reading) -> bool:
        """Enough is read ahead. Records held back do not count: more must be read to know what becomes of them."""
        read = sum(len(chunk.data) for chunk in reading.chunks)
        return read >= 2 * self._settings.max_partition_fetch_bytes

    def _check_poll(self, poll: _Poll, now: float) -> None:
        """Do not sit out a long poll at a node that leads none of the partitions asked for any more.

        A node that does not answer when it should is suspected: others are asked whether they lead by now.
        """
        if poll.slow_at <= now:
            poll.slow_at = now + MOST
            self._cluster.silent(poll.node_id)
            for at, (_, leader) in poll.asked.items():
                self._cluster.suspect(*at, leader)
        leaders = [self._cluster.leader(*at).node_id for at in poll.asked]
        if all(node_id not in (NO_LEADER, poll.node_id) for node_id in leaders):
            self._drop(poll)
            self.wake()

    def _poll_node(self, node_id: int, readings: list[Reading]) -> float:
        if self._muted_until.get(node_id, 0.0) > trio.current_time():
            return self._muted_until[node_id]
        connection = self._cluster.links.nowait(node_id)
        if connection is None:
            at = self._cluster.links.retry_at(node_id)
            if at < _NEVER:
                for reading in readings:
                    self._cluster.suspect(*reading.at, self._cluster.leader(*reading.at))
            return at
        now, longest = trio.current_time(), self._settings.fetch_max_wait_ms / 1000
        poll = _Poll(node_id, connection, {}, now + longest, now + longest + self._patience.seconds)
        partitions = []
        for reading in readings:
            if not self._same_topic(reading):
                continue
            assert reading.fetch_offset is not None
            leader = self._cluster.leader(*reading.at)
            poll.asked[reading.at] = (reading, leader)
            partitions.append(
                m.FetchPartition(
                    topic=reading.at.topic,
                    partition=reading.at.partition,
                    fetch_offset=reading.fetch_offset,
                    max_bytes=self._settings.max_partition_fetch_bytes,
                    leader_epoch=leader.epoch,
                    last_fetched_epoch=reading.last_epoch,
                    topic_id=reading.topic_id,
                    damaged=reading.corrupt > 0,
                )
            )
        if partitions:
            self._send(poll, partitions)
        return _NEVER

    def _same_topic(self, reading: Reading) -> bool:
        """Whether the topic is still the one that the position refers to (KIP-516)."""
        topic = self._cluster.topics[reading.at.topic]
        if not reading.topic_id:
            reading.topic_id = topic.topic_id
        if reading.topic_id == topic.topic_id:
            return True
        offset, former = reading.fetch_offset, reading.topic_id
        reading.restart(None)
        reading.known = False
        # Nobody has seen anything of the new topic, so it is read from its beginning whichever way is set.
        self._lost(reading, recreated(reading.at, offset, former, topic.topic_id), m.EARLIEST_TIMESTAMP)
        self.wake()
        return False

    def _send(self, poll: _Poll, partitions: list[m.FetchPartition]) -> None:
        request = m.FetchRequest(
            replica_id=CONSUMER,
            incarnation=0,
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=self._settings.fetch_max_bytes,
            partitions=partitions,
            client_id=self._settings.client_id,
            isolation_level=self._settings.wire_isolation,
        )
        self._polls[poll.node_id] = poll
        try:
            poll.handle = poll.connection.request_nowait(
                m.Kind.FETCH,
                wire.encode(request),
                (),
                timeout=(self._settings.fetch_max_wait_ms + self._settings.request_timeout_ms) / 1000,
                max_response=self._settings.fetch_max_bytes + _LARGEST_BATCH,
                on_done=lambda outcome: self._answered(poll, outcome),
            )
        except TransportError as error:
            self._answered(poll, error)

    def _drop(self, poll: _Poll) -> None:
        self._polls.pop(poll.node_id, None)
        if poll.handle is not None:
            poll.handle.cancel()  # type: ignore[attr-defined]

    # Answers

    def _answered(self, poll: _Poll, outcome: Response | TransportError) -> None:
        if self._polls.get(poll.node_id) is not poll:
            if isinstance(outcome, Response):
                outcome.release()
            return
        del self._polls[poll.node_id]
        self.wake()
        if isinstance(outcome, NotAuthorisedError):
            for reading, _ in poll.asked.values():
                reading.error = AuthorizationError(f"{reading.at}: {outcome}")
            self.arrived.set()
            return
        if isinstance(outcome, TransportError):
            for reading, leader in poll.asked.values():
                self._retry(reading, leader)
            return
        self._patience.answered(max(0.0, trio.current_time() - poll.due_at))
        try:
            with outcome:
                self._results(poll, outcome)
        except (TransportError, OSError) as error:
            # A range that was handed over is read only now: its file may have been cut, or its device fail.
            _log.warning(
                "node %d: failed to read the fetched data: %s; closing the connection", poll.node_id, error
            )
            poll.connection.abort(str(error))
            for reading, leader in poll.asked.values():
                self._retry(reading, leader)
            return
        self.arrived.set()

    def _results(self, poll: _Poll, response: Response) -> None:
        try:
            answer: m.FetchResponse = wire.decode_response(m.Kind.FETCH, response.body)
        except wire.WireError as error:
            _log.error("node %d: %s", poll.node_id, error)
            poll.connection.abort(str(error))
            return
        if answer.throttle_time_ms > 0:
            self._muted_until[poll.node_id] = trio.current_time() + answer.throttle_time_ms / 1000
        told = {PartitionId(result.topic, result.partition) for result in answer.partitions}
        for silent in poll.asked.keys() - told:
            # It leads, and has nothing new.
            self._cluster.trust(*silent)
        aborted = {
            PartitionId(each.topic, each.partition): each.aborted for each in answer.transactions or ()
        }
        payload = response.payload.view()
        at = 0
        for result in answer.partitions:
            data = bytes(payload[at : at + result.size])
            at += result.size
            asked = poll.asked.get(PartitionId(result.topic, result.partition))
            if asked is not None:
                self._result(poll, *asked, result, data, aborted.get(asked[0].at, []))

    def _result(
        self,
        poll: _Poll,
        reading: Reading,
        leader: Leader,
        result: m.FetchResult,
        data: bytes,
        aborted: list[m.AbortedProducer],
    ) -> None:
        if result.error == ErrorCode.NONE:
            reading.retries, reading.retry_at = 0, -1.0
            reading.high_watermark = result.high_watermark
            reading.log_start_offset = result.log_start_offset
            self._cluster.trust(*reading.at)
            if result.diverging is not None:
                self._truncated(reading, result.diverging)
            elif data:
                self._take(poll, reading, leader, data, aborted)
        elif result.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(reading, result)
        else:
            error = error_for(result.error, str(reading.at), result.message)
            if not error.retriable:
                reading.error = error
                return
            self._cluster.hint(*reading.at, Leader(result.leader, result.leader_epoch))
            self._retry(reading, leader)

    def _take(
        self, poll: _Poll, reading: Reading, leader: Leader, data: bytes, aborted: list[m.AbortedProducer]
    ) -> None:
        at = reading.fetch_offset
        assert at is not None
        found = sound_prefix(
            data,
            at,
            reading.high_watermark,
            verify_crc=self._settings.check_crcs,
            on_boundary=reading.last_epoch != NO_EPOCH,
        )
        if found.batches:
            reading.corrupt = 0
            # What is behind a bad batch is asked for again, and then the bad one comes first.
            chunk = Chunk(data[: found.end], found.batches, at, found.batches[-1].next_offset)
            if self._settings.wire_isolation == m.READ_COMMITTED:
                last_epoch = chunk.batches[-1].leader_epoch
                reading.take(committed(chunk, aborted))
                reading.last_epoch = last_epoch
            else:
                reading.take(chunk)
        elif found.wrong is not None:
            self._corrupt(poll, reading, leader, data, found.wrong)

    def _corrupt(self, poll: _Poll, reading: Reading, leader: Leader, data: bytes, wrong: str) -> None:
        """Bytes may have changed on the way: drop the connection and ask again, a few times.

        The request says why, so that the leader looks at its log, and has another replica lead if it is damaged.
        """
        at = reading.fetch_offset
        assert at is not None
        now = trio.current_time()
        if not reading.corrupt:
            reading.corrupt_since = now
            _log.warning(
                "%s from node %d: corrupt batch at offset %d: %s; asking again",
                reading.at,
                poll.node_id,
                at,
                wrong,
            )
        reading.corrupt += 1
        patience = _CORRUPT_PATIENCE if reading.waited_for != leader else 0.0
        if reading.corrupt < _CORRUPT_TRIES or now - reading.corrupt_since < patience:
            if reading.corrupt < _CORRUPT_TRIES:
                poll.connection.abort(f"corrupt batch: {wrong}")
            self._retry(reading, leader)
            return
        reading.waited_for = leader
        said = f"node {poll.node_id} sent a corrupt batch {counted(reading.corrupt, 'time')} ({wrong})"
        behind = end_of_unreadable(data, at, reading.high_watermark)
        if self._settings.on_corrupt == "skip":
            reading.corrupt = 0
            self.skips.note(reading.at, at, behind, said)
            # In the order of the log, so that no position passes it before the records that stand before it.
            reading.take(Chunk(b"", [], at, behind))
            return
        error = CorruptMessageError(
            f"{reading.at} at offset {at}: {said}; check that node's disk, and seek to {behind} to step over it "
            "(on_corrupt=skip always does)"
        )
        error.topic, error.partition = reading.at
        error.offset = at
        reading.error = error

    def _retry(self, reading: Reading, leader: Leader) -> None:
        self._cluster.suspect(*reading.at, leader)
        reading.retries += 1
        reading.failed_leader = leader
        reading.retry_at = trio.current_time() + self._cluster.quick_backoff(reading.retries)

    def _out_of_range(self, reading: Reading, result: m.FetchResult) -> None:
        offset = reading.fetch_offset
        assert offset is not None
        start, end = result.log_start_offset, result.high_watermark
        if offset < start:
            config = self._cluster.topics[reading.at.topic].config
            error = deleted(reading.at, offset, start, end, config)
        elif reading.last_epoch != NO_EPOCH:
            error = truncated(reading.at, min(offset, max(end, start)), offset, start, end)
        else:
            error = past_the_end(reading.at, offset, start, end)
        self._lost(reading, error, self.initial_reset())

    def _truncated(self, reading: Reading, end: EpochEnd) -> None:
        """The log does not hold what was read before `fetch_offset`: it was cut at `end.end_offset` (KIP-320)."""
        seen = reading.fetch_offset if reading.position is None else reading.position
        assert seen is not None
        start, high_watermark = reading.log_start_offset, reading.high_watermark
        at = max(start, min(seen, end.end_offset))
        reading.restart(at, topic_id=reading.topic_id)
        if at < seen:
            error = truncated(reading.at, at, seen, start, high_watermark)
            self._lost(reading, error, self.initial_reset(), resume_at=at)

    def _lost(
        self,
        reading: Reading,
        error: OffsetOutOfRangeError,
        reset: int | None,
        *,
        resume_at: int | None = None,
    ) -> None:
        """Told to the reader, or just logged, as `auto_offset_reset` says."""
        if self.initial_reset() is None:
            reading.error = error
            return
        _log.warning("%s; auto_offset_reset=%s", error, self._settings.auto_offset_reset)
        reading.fetch_offset, reading.last_epoch = resume_at, NO_EPOCH
        if resume_at is None:
            reading.reset, reading.resolving = reset, False

    def initial_reset(self) -> int | None:
        """The timestamp that `auto_offset_reset` means, or None."""
        return {"latest": m.LATEST_TIMESTAMP, "earliest": m.EARLIEST_TIMESTAMP}.get(
            self._settings.auto_offset_reset
        )

    async def _learn(self, reading: Reading, generation: int) -> None:
        """See that the partition exists, and that what is known of the topic is not older than the position."""
        failure: ClientError | None = None
        try:
            await self._cluster.topic(reading.at.topic, timeout=_NEVER)
            if reading.topic_id:
                await self._cluster.look_for(reading.at.topic, reading.topic_id)
            await self._cluster.check_partition(reading.at)
        except ClientError as error:
            failure = error
        if reading.generation == generation:
            reading.known, reading.learning = failure is None, False
            if failure is not None:
                reading.error = failure
                self.arrived.set()
        self.wake()

    async def _resolve(self, reading: Reading, generation: int) -> None:
        """Find the offset that a reset means."""
        if reading.generation != generation:
            # A `seek` came between the decision to ask and the first turn of this task: nothing is left to find.
            return
        assert reading.reset is not None
        error: ClientError | None = None
        found = -1
        try:
            timeout = self._settings.request_timeout_ms / 1000
            offsets = await list_offsets(
                self._cluster,
                [reading.at],
                reading.reset,
                timeout=timeout,
                isolation_level=self._settings.wire_isolation,
            )
            found = offsets[reading.at]
        except ClientError as failure:
            error = failure
        if reading.generation != generation:
            return
        reading.resolving = False
        if isinstance(error, UnknownTopicError) or (error is not None and not error.retriable):
            reading.error = error
        elif error is None:
            reading.fetch_offset, reading.reset = found, None
            if not reading.chunks:
                reading.position = found
            # A long poll under way does not ask for it.
            if poll := self._polls.get(self._cluster.leader(*reading.at).node_id):
                self._drop(poll)
        self.arrived.set()
        self.wake()
