"""Records that wait to be sent, in batches by partition, within `buffer_memory`."""

from __future__ import annotations

import itertools
import operator
import random
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from ...storage.batch import (
    BATCH_OVERHEAD_BYTES,
    Headers,
    record_overhead_bytes,
)
from ..core.errors import ErrorCode
from . import _arguments as given
from ._batch import Batch, ProducerIdentity
from ._cluster import NOBODY, Cluster, Leader, Topic
from ._murmur2 import partition_for_key
from ._settings import Partitioner, ProducerSettings
from .delivery import Deliveries, Delivery, OnDelivery
from .errors import ClientError, InvalidArgumentError, PartitionerError, RecordTooLargeError, error_for

_RECORD_OVERHEAD = record_overhead_bytes(1 << 20, 1 << 20)
_HEADER_OVERHEAD = 10
_KEYS_CACHED = 1 << 16


@attrs.define(eq=False, slots=True)
class Lane:
    """The batches of one partition, in order: in flight, then failed ones to repeat, then those waiting.

    Invariant: while `failed` is not empty nothing is sent; when the last one in flight has settled, the
    failed ones go back to the head of the queue, oldest first.
    """

    topic: str
    partition: int
    queue: deque[Batch] = attrs.Factory(deque)
    in_flight: list[Batch] = attrs.Factory(list)
    failed: list[Batch] = attrs.Factory(list)
    open: Batch | None = None
    numbers: int = 0
    identity: ProducerIdentity | None = None
    next_sequence: int = 0
    retries: int = 0
    retry_at: float = -1.0
    failed_leader: Leader = NOBODY
    in_flight_leader: Leader = NOBODY
    established: bool = False
    """Whether the leader has acknowledged anything under `identity`."""
    gap: int = -1
    """Number of the last batch that failed after it was given a sequence: the log may miss that sequence."""
    gap_confirmed: bool = False


@attrs.define(eq=False, slots=True)
class TopicLanes:
    """The lanes of one topic and how records are dealt among them."""

    topic: Topic
    lanes: list[Lane]
    sticky: Lane | None = None
    turn: int = -1
    """The partition that had the last record, where they take turns."""
    by_key: dict[bytes, Lane] = attrs.Factory(dict)


class Accumulator:
    """Takes records without waiting; tells `wake` when there is something to look at (at what time)."""

    def __init__(self, settings: ProducerSettings, cluster: Cluster, wake: Callable[[float], None]) -> None:
        self.active: dict[Lane, None] = {}
        self.pending: deque[Batch] = deque()
        self.used = 0
        self.waiting = 0
        self._settings = settings
        self._cluster = cluster
        self._wake = wake
        self._topics: dict[str, TopicLanes] = {}
        self._space = trio.Event()
        self._linger = settings.linger_ms / 1000
        self._delivery_timeout = settings.delivery_timeout_ms / 1000
        self._limit = min(settings.batch_size, settings.max_request_size)
        self._largest = min(settings.max_request_size - BATCH_OVERHEAD_BYTES, settings.buffer_memory)
        self._random = random.Random()

    def knows(self, topic: str) -> bool:
        return topic in self._topics

    def add_topic(self, topic: Topic) -> None:
        """Make lanes for a topic that is known now."""
        self._topics[topic.name] = TopicLanes(topic, [Lane(topic.name, n) for n in range(len(topic.leaders))])

    def lane_of(self, batch: Batch) -> Lane:
        return self._topics[batch.topic].lanes[batch.partition]

    def try_append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery | None:
        """Take one record, or None if there is no room or the topic is not known yet."""
        try:
            lanes = self._topics.get(topic)
        except TypeError:
            raise given.refused("topic", topic, "a topic is named by a text") from None
        if lanes is None:
            return None
        if value.__class__ is not bytes and value is not None:
            value = as_bytes("value", value)
        if key.__class__ is not bytes and key is not None:
            key = as_bytes("key", key)
        size = _RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
        if headers:
            size += _headers_size(headers)
            headers = tuple(headers)
        if timestamp_ms is not None:
            timestamp_ms = _timestamp(timestamp_ms)
        if on_delivery is not None:
            given.function("on_delivery", on_delivery)
        if size > self._largest:
            raise self._too_large(topic, size)
        if self.waiting or self.used + size > self._settings.buffer_memory:
            return None
        lane = self._lane(lanes, key, partition, size)
        batch = lane.open
        if batch is None or batch.size + size > self._limit:
            batch = self._new_batch(lane)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        index = batch.add(key, value, headers, timestamp_ms, size)
        self.used += size
        if on_delivery is not None:
            batch.callbacks = batch.callbacks or []
            batch.callbacks.append((index, on_delivery))
        if batch.size >= self._limit:
            self._close(lane)
        return Delivery(batch, index)

    def append_run(
        self,
        deliveries: Deliveries,
        topic: str,
        values: Sequence[bytes | None],
        start: int,
        stop: int,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> int:
        """Take records of one key from `values[start:stop]` into one batch; gives how many (0: no room)."""
        lanes = self._topics[topic]
        if key.__class__ is not bytes and key is not None:
            key = as_bytes("key", key)
        if timestamp_ms is not None:
            timestamp_ms = _timestamp(timestamp_ms)
        first = values[start]
        if first.__class__ is not bytes and first is not None:
            first = as_bytes("value", first)
        overhead = _RECORD_OVERHEAD + (len(key) if key else 0)
        first_size = overhead + (len(first) if first else 0)
        largest = self._largest
        if first_size > largest:
            raise self._too_large(topic, first_size)
        room = self._settings.buffer_memory - self.used
        if self.waiting or first_size > room:
            return 0
        lane = self._lane(lanes, key, partition, first_size)
        batch = lane.open
        if batch is None or batch.size + first_size > self._limit:
            batch = self._new_batch(lane)
        run = values[start : min(stop, start + max(1, (self._limit - batch.size) // first_size + 1))]
        if set(map(type, run)) == {bytes}:
            lengths = list(map(len, run))  # type: ignore[arg-type]
        else:
            run = [value if value is None else as_bytes("value", value) for value in run]
            lengths = [len(value) if value else 0 for value in run]
        if max(lengths) > largest - overhead:
            # It is told when it comes first, after those before it have been taken.
            lengths = list(itertools.takewhile(lambda length: length <= largest - overhead, lengths))
        count = _fitting(lengths, overhead, min(self._limit - batch.size, room))
        taken = sum(lengths[:count]) + overhead * count
        index = self._extend(batch, run[:count], key, timestamp_ms)
        batch.size += taken
        self.used += taken
        deliveries._add(batch, index, count)
        if count < len(run) or batch.size >= self._limit:
            self._close(lane)
        return count

    def _extend(
        self, batch: Batch, run: Sequence[bytes | None], key: bytes | None, timestamp_ms: int | None
    ) -> int:
        index, count = batch.count, len(run)
        batch.values.extend(run)
        batch.timestamps.extend(
            [time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms] * count
        )
        if batch.keys is None and key is not None:
            batch.keys = [None] * index
        if batch.keys is not None:
            batch.keys.extend([key] * count)
        if batch.headers is not None:
            batch.headers.extend([()] * count)
        return index

    async def wait_for_space(self) -> None:
        """Wait until some memory is free; while anybody waits, batches do not linger."""
        self.waiting += 1
        self._wake(0)
        try:
            await self._space.wait()
        finally:
            self.waiting -= 1

    def release(self, batch: Batch) -> None:
        """Give back the memory of a batch whose outcome is known."""
        self.used -= batch.size - BATCH_OVERHEAD_BYTES
        while self.pending and self.pending[0].done:
            self.pending.popleft()
        if self.waiting:
            self._space.set()
            self._space = trio.Event()

    def _new_batch(self, lane: Lane) -> Batch:
        self._close(lane)
        now = trio.current_time()
        batch = Batch(lane.topic, lane.partition, lane.numbers, now, now + self._delivery_timeout)
        lane.numbers += 1
        lane.queue.append(batch)
        lane.open = batch
        self.pending.append(batch)
        self.active[lane] = None
        self._wake(now + self._linger)
        return batch

    def _close(self, lane: Lane) -> None:
        if lane.open is not None:
            lane.open = None
            self._wake(0)

    def _lane(self, lanes: TopicLanes, key: bytes | None, partition: int | None, size: int) -> Lane:
        if len(lanes.lanes) < len(lanes.topic.leaders):
            self._grow(lanes)
        if partition is not None:
            if partition.__class__ is not int:
                partition = given.whole("partition", partition)
            if not 0 <= partition < len(lanes.lanes):
                raise self._no_partition(lanes, partition)
            return lanes.lanes[partition]
        partitioner = self._settings.partitioner
        if partitioner == "round_robin":
            return self._next_in_turn(lanes)
        if callable(partitioner):
            return self._chosen(lanes, partitioner, key)
        if key is not None and partitioner != "sticky":
            return lanes.by_key.get(key) or self._keyed(lanes, key)
        sticky = lanes.sticky
        if sticky is None or sticky.open is None or sticky.open.size + size > self._limit:
            sticky = lanes.sticky = self._unkeyed(lanes)
        return sticky

    def _keyed(self, lanes: TopicLanes, key: bytes) -> Lane:
        if len(lanes.by_key) >= _KEYS_CACHED:
            lanes.by_key.clear()
        lane = lanes.by_key[key] = lanes.lanes[partition_for_key(key, len(lanes.lanes))]
        return lane

    def _chosen(self, lanes: TopicLanes, partitioner: Partitioner, key: bytes | None) -> Lane:
        topic = lanes.topic.name
        try:
            partition = operator.index(partitioner(topic, key, len(lanes.lanes)))
        except Exception as error:
            raise PartitionerError(
                f"topic {topic!r}: the partitioner chose no partition: {error!r}"
            ) from error
        if not 0 <= partition < len(lanes.lanes):
            raise self._no_partition(lanes, partition)
        return lanes.lanes[partition]

    def _next_in_turn(self, lanes: TopicLanes) -> Lane:
        """The next partition that has a leader; just the next if none has."""
        count, leaders = len(lanes.lanes), lanes.topic.leaders
        after = [(lanes.turn + step) % count for step in range(1, count + 1)]
        lanes.turn = next((n for n in after if n < len(leaders) and leaders[n].node_id >= 0), after[0])
        return lanes.lanes[lanes.turn]

    def _unkeyed(self, lanes: TopicLanes) -> Lane:
        """A partition that has a leader and the fewest batches waiting (KIP-794: the slow ones get less)."""
        led = [
            lane
            for lane, leader in zip(lanes.lanes, lanes.topic.leaders, strict=False)
            if leader.node_id >= 0
        ]
        choices = led or lanes.lanes
        shortest = min(len(lane.queue) for lane in choices)
        return self._random.choice([lane for lane in choices if len(lane.queue) == shortest])

    def _grow(self, lanes: TopicLanes) -> None:
        count = len(lanes.topic.leaders)
        lanes.lanes.extend(Lane(lanes.topic.name, n) for n in range(len(lanes.lanes), count))
        lanes.by_key.clear()

    def _no_partition(self, lanes: TopicLanes, partition: int) -> ClientError:
        thing = f"partition {partition} of topic {lanes.topic.name!r}, which has {len(lanes.lanes)}"
        return error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, thing)

    def _too_large(self, topic: str, size: int) -> RecordTooLargeError:
        limit = self._settings.max_request_size
        if size <= limit - BATCH_OVERHEAD_BYTES:
            return RecordTooLargeError(
                f"topic {topic!r}: a record of {size} bytes never fits into "
                f"buffer_memory={self._settings.buffer_memory}; raise it"
            )
        return RecordTooLargeError(
            f"topic {topic!r}: a record of {size + BATCH_OVERHEAD_BYTES} bytes (with its overhead) is above "
            f"max_request_size={limit}; raise it, and the topic's max_message_bytes with it"
        )


def _fitting(lengths: Sequence[int], overhead: int, room: int) -> int:
    """How many records, from the first on, find room; one does in any case."""
    if sum(lengths) + overhead * len(lengths) <= room:
        return len(lengths)
    ends = list(itertools.accumulate(lengths))
    return max(1, bisect_right(range(len(ends)), room, key=lambda at: ends[at] + overhead * (at + 1)))


def _headers_size(headers: Headers) -> int:
    """Refuses what is no header: found only when the batch is built it would fail others with it."""
    size = 0
    try:
        if not isinstance(headers, Sequence):  # what can be gone through once only may be needed twice
            raise TypeError(headers)
        for name, value in headers:
            if value is not None and not isinstance(value, bytes | bytearray | memoryview):
                raise TypeError(value)
            size += _HEADER_OVERHEAD + len(name.encode()) + len(value or b"")
    except (TypeError, ValueError, AttributeError):
        raise InvalidArgumentError(
            f"headers are a list of pairs of a name (text) and a value (bytes or None), not {given.shown(headers)}"
        ) from None
    return size


def _timestamp(timestamp_ms: object) -> int:
    return given.whole("timestamp_ms (milliseconds since 1970)", timestamp_ms, least=0)


def as_bytes(what: str, data: object) -> bytes:
    """Refuses what is neither bytes nor like them."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidArgumentError(
        f"a record's {what} must be bytes or None, not {type(data).__name__}; encode it, or set {what}_serializer"
    )
