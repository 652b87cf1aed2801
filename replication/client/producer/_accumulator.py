"""Records that wait to be sent, in batches by partition, within `buffer_memory`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import trio

from ....storage.batch import BATCH_OVERHEAD_BYTES, Headers, encode_headers, record_overhead_bytes
from .. import _arguments as given
from .._settings import ProducerSettings
from ..connection._cluster import Topic
from ..errors import InvalidArgumentError, RecordTooLargeError
from . import _joining
from ._batch import Batch, ProducerIdentity
from ._partitioning import PartitionQueue, TopicQueues
from .delivery import Deliveries, Delivery, OnDelivery

RECORD_OVERHEAD = record_overhead_bytes(1 << 20, 1 << 20)
"""The most that a record without headers takes beside its key and value."""
YIELD_EVERY = 1024
"""Records of `send` until other tasks run."""
T = TypeVar("T")


class Accumulator(_joining.Joiner):
    """Takes records without waiting; tells `wake` when there is something to look at (at what time)."""

    __slots__ = (
        "_delivery_timeout",
        "_line",
        "_linger",
        "_now",
        "_settings",
        "_space",
        "_wake",
        "active",
        "pending",
        "transaction",
    )

    def __init__(
        self,
        settings: ProducerSettings,
        wake: Callable[[float], None],
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        largest = min(settings.max_request_size - BATCH_OVERHEAD_BYTES, settings.buffer_memory)
        super().__init__(Delivery, settings.buffer_memory, largest, RECORD_OVERHEAD, YIELD_EVERY)
        self.active: dict[PartitionQueue, None] = {}
        self.pending: deque[Batch] = deque()
        self.transaction: ProducerIdentity | None = None
        """Of the transaction that is open, or was last."""
        self._settings = settings
        self._wake = wake
        self._now = now
        self._space = trio.Event()
        self._line = trio.StrictFIFOLock()
        self._linger = settings.linger_ms / 1000
        self._delivery_timeout = settings.delivery_timeout_ms / 1000

    def knows(self, topic: str) -> bool:
        return topic in self._topics

    def add_topic(self, topic: Topic) -> None:
        """Make queues for a topic that is known now."""
        self._topics[topic.name] = TopicQueues(topic, self._settings)

    def look(self) -> None:
        """Metadata of topics may have changed."""
        for queues in self._topics.values():
            queues.look()

    def queue_of(self, batch: Batch) -> PartitionQueue:
        return self._topics[batch.topic].queues[batch.partition]

    def largest_batch(self, batch: Batch) -> int:
        """To how many bytes one of several records for the same topic may grow, as far as is known now."""
        return self._topics[batch.topic].largest_batch

    def divided(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """These have its records, and its memory, from now on."""
        at = self.pending.index(batch)
        del self.pending[at]
        for part in reversed(parts):
            self.pending.insert(at, part)
        self.used += sum(map(_content, parts)) - _content(batch)

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
        """Take one record; None without buffer space or without metadata of the topic."""
        if partition is None and timestamp_ms is None and on_delivery is None and not headers:
            delivery = self.join(topic, value, key)
            if delivery is not None:
                return delivery
        return self.decide(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def decide(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None = None,
        *,
        in_turn: bool = False,
    ) -> Delivery | None:
        """`try_append` for a record that does not `join` an open batch. in_turn: See `in_line`."""
        queues = self._known(topic)
        if queues is None:
            return None
        if value.__class__ is not bytes and value is not None:
            value = as_bytes("value", value)
        if key.__class__ is not bytes and key is not None:
            key = as_bytes("key", key)
        encoded = _encoded(headers) if headers else None
        size = most_bytes(key, value, encoded)
        if timestamp_ms is not None:
            timestamp_ms = _timestamp(timestamp_ms)
        if on_delivery is not None:
            given.function("on_delivery", on_delivery)
        if size > self._largest:
            raise self._too_large(topic, size)
        if (self.waiting and not in_turn) or self.used + size > self._buffer_memory:
            return None
        queue = queues.choose(key, partition, size)
        batch = self._open(queues, queue, size)
        before = batch.size
        index = batch.append(key, value, encoded, timestamp_ms)
        self.used += batch.size - before
        if on_delivery is not None:
            batch.callbacks = batch.callbacks or []
            batch.callbacks.append((index, on_delivery))
        self._close_if(batch.size >= queue.tail.enough, queues, queue)
        return Delivery(batch, index)

    def _known(self, topic: str) -> TopicQueues | None:
        try:
            return self._topics.get(topic)
        except TypeError:
            raise given.refused("topic", topic, "it must be a string, the topic's name") from None

    def check(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[Any, ...] | None:
        """The arguments of `try_append` for a record that it will take, or None if the topic is not known yet.

        Raises what `try_append` raises. For threads that hand records over to the one that owns this: it changes
        nothing. A partitioner is asked here, so that its error is raised where its program can see it.
        """
        queues = self._known(topic)
        if queues is None:
            return None
        value = value if value is None else as_bytes("value", value)
        key = key if key is None else as_bytes("key", key)
        size = most_bytes(key, value, _encoded(headers) if headers else None)
        headers = tuple(headers) if headers else ()
        timestamp_ms = timestamp_ms if timestamp_ms is None else _timestamp(timestamp_ms)
        if size > self._largest:
            raise self._too_large(topic, size)
        return topic, value, key, headers, queues.named(key, partition), timestamp_ms

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
        *,
        in_turn: bool = False,
    ) -> int:
        """Take records of one key from `values[start:stop]` into one batch; gives how many (0: no room).

        in_turn: See `in_line`.
        """
        queues = self._topics[topic]
        if key.__class__ is not bytes and key is not None:
            key = as_bytes("key", key)
        if timestamp_ms is not None:
            timestamp_ms = _timestamp(timestamp_ms)
        first = values[start]
        if first.__class__ is not bytes and first is not None:
            values, start, stop = [as_bytes("value", first)], 0, 1
            first = values[0]
        size = most_bytes(key, first)
        if size > self._largest:
            raise self._too_large(topic, size)
        room = self._buffer_memory - self.used
        if (self.waiting and not in_turn) or size > room:
            return 0
        queue = queues.choose(key, partition, size)
        batch = self._open(queues, queue, size)
        index, before = batch.count, batch.size
        count = batch.extend(key, values, start, stop, min(queue.tail.enough, before + room), timestamp_ms)
        self.used += batch.size - before
        deliveries._add(batch, index, count)
        # The next one may be of another type, too.
        no_room = start + count < stop and isinstance(values[start + count], bytes | None)
        self._close_if(no_room or batch.size >= queue.tail.enough, queues, queue)
        return count

    def _open(self, queues: TopicQueues, queue: PartitionQueue, size: int) -> Batch:
        """The open batch of a partition, with room for a record of at most `size` bytes."""
        batch = queue.tail.open
        if batch is None or (
            batch.size + size > queue.tail.enough and not self._grows(queues, queue, batch, size)
        ):
            batch = self._new_batch(queues, queue)
        return batch

    def _close_if(self, is_full: bool, queues: TopicQueues, queue: PartitionQueue) -> None:
        batch = queue.tail.open
        if is_full and batch is not None and not self._grows(queues, queue, batch, 0):
            self._close(queue)

    def _grows(self, queues: TopicQueues, queue: PartitionQueue, batch: Batch, size: int) -> bool:
        """Whether an open batch that is large enough takes `size` bytes more, and then some.

        It does while it could not be sent at once: what waits behind a full window goes in few large batches. Each
        step doubles it, because a step costs as much as dozens of records; when the window has room, it goes as it
        is. At the start of a transaction a batch is sent at once, and waits at the leader until the coordinator has
        stored the partition.
        """
        begins = self.transaction is not None and queue.identity != self.transaction
        if not (begins or queue.is_held_up or queue.must_wait(batch)):
            return False
        if batch.size + size > queues.largest_batch:
            return False
        if self.transaction is not None:
            # It may go as it is: growing must not make it linger.
            self._wake(0)
        queue.tail.enough = min(queues.largest_batch, batch.size + max(size, batch.size))
        return True

    async def in_line(self, attempt: Callable[[], T | None]) -> T:
        """Wait for memory: `attempt`, to which `in_turn` has to be said, is made until it gives something.

        The first to come is served first, however much it needs: others get no memory meanwhile. While anybody
        waits, batches do not linger.
        """
        self.waiting += 1
        self._wake(0)
        try:
            async with self._line:
                while (taken := attempt()) is None:
                    await self._space.wait()
                return taken
        finally:
            self.waiting -= 1

    def release(self, batch: Batch) -> None:
        """Give back the memory of a batch whose outcome is known."""
        self.used -= _content(batch)
        while self.pending and self.pending[0].done:
            self.pending.popleft()
        if self.waiting:
            self._space.set()
            self._space = trio.Event()

    def _new_batch(self, queues: TopicQueues, queue: PartitionQueue) -> Batch:
        if queue.tail.open is not None:
            self._close(queue)
        now = self._now()
        batch = Batch(queue.topic, queue.partition, now, now + self._delivery_timeout)
        queue.tail.open, queue.tail.enough = batch, queues.enough
        queue.push(batch)
        self.pending.append(batch)
        self.active[queue] = None
        self._wake(now + self._linger)
        return batch

    def _close(self, queue: PartitionQueue) -> None:
        queue.tail.open = None
        self._wake(0)

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


def _content(batch: Batch) -> int:
    """The memory that its records take."""
    return batch.size - BATCH_OVERHEAD_BYTES


def most_bytes(key: bytes | None, value: bytes | None, headers: bytes | None = None) -> int:
    """The most that a record takes in any batch."""
    return RECORD_OVERHEAD + len(key or b"") + len(value or b"") + len(headers or b"")


def _encoded(headers: Headers) -> bytes:
    """Headers as they stand in the record."""
    try:
        if not isinstance(headers, Sequence):  # what can be gone through once only may be needed twice
            raise TypeError(headers)
        for _, value in headers:
            if value is not None and not isinstance(value, BYTES_LIKE):
                raise TypeError(value)
        return encode_headers(headers)
    except (TypeError, ValueError, AttributeError):
        raise InvalidArgumentError(
            f"headers are a list of pairs of a name (a string) and a value (bytes or None), "
            f"not {given.shown(headers)}"
        ) from None


def _timestamp(timestamp_ms: object) -> int:
    return given.whole("timestamp_ms (milliseconds since 1970)", timestamp_ms, least=0)


BYTES_LIKE = bytes | bytearray | memoryview


def as_bytes(what: str, data: object) -> bytes:
    """Refuses what is neither bytes nor like them."""
    if isinstance(data, BYTES_LIKE):
        return bytes(data)
    raise InvalidArgumentError(
        f"a record's {what} must be bytes or None, not {type(data).__name__}; encode it, or set {what}_serializer"
    )
