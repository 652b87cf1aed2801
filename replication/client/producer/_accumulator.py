"""Records that wait to be sent, in batches by partition, within `buffer_memory`."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import time
from typing import Any, TypeVar

import trio

from ....storage.batch import BATCH_OVERHEAD_BYTES, Headers, record_overhead_bytes
from .. import _arguments as given
from .._settings import ProducerSettings
from ..connection._cluster import Topic
from ..errors import ClientError, InvalidArgumentError, RecordTooLargeError
from ._batch import Batch, ProducerIdentity
from ._partitioning import PartitionQueue, TopicQueues
from .delivery import Deliveries, Delivery, OnDelivery

try:
    from . import _joining
except ImportError:  # setup.py builds it for CPython only
    _joining = None  # type: ignore[assignment]

RECORD_OVERHEAD = record_overhead_bytes(1 << 20, 1 << 20)
"""The bytes that a record without headers counts for, beside its key and value."""
_HEADER_OVERHEAD = 10
_ANY = 1 << 62
T = TypeVar("T")


class Accumulator:
    """Takes records without waiting; tells `wake` when there is something to look at (at what time)."""

    # csrc/isr_joining.c reads and writes some of these where they lie.
    __slots__ = (
        "_buffer_memory",
        "_delivery_timeout",
        "_largest",
        "_line",
        "_linger",
        "_now",
        "_settings",
        "_space",
        "_topics",
        "_wake",
        "active",
        "barred",
        "join",
        "pending",
        "transaction",
        "unyielded",
        "used",
        "waiting",
    )

    join: Callable[[str, bytes | None, bytes | None], Delivery | None]
    """`try_append` for a record with a value and perhaps a key: the function `join`, or its twin in C."""

    def __init__(
        self,
        settings: ProducerSettings,
        wake: Callable[[float], None],
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self.active: dict[PartitionQueue, None] = {}
        self.pending: deque[Batch] = deque()
        self.used = 0
        self.waiting = 0
        self.unyielded = 0
        """Records that were taken since other tasks could run."""
        self.barred: ClientError | None = None
        """Why nothing may be sent now: the producer is fenced, or no transaction is open."""
        self.transaction: ProducerIdentity | None = None
        """Of the transaction that is open, or was last."""
        self.join = make_joiner(self)
        self._settings = settings
        self._wake = wake
        self._now = now
        self._topics: dict[str, TopicQueues] = {}
        self._space = trio.Event()
        self._line = trio.StrictFIFOLock()
        self._buffer_memory = settings.buffer_memory
        self._linger = settings.linger_ms / 1000
        self._delivery_timeout = settings.delivery_timeout_ms / 1000
        self._largest = min(settings.max_request_size - BATCH_OVERHEAD_BYTES, settings.buffer_memory)

    def knows(self, topic: str) -> bool:
        return topic in self._topics

    def add_topic(self, topic: Topic) -> None:
        """Make queues for a topic that is known now."""
        self._topics[topic.name] = TopicQueues(topic, self._settings)

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
        size = RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
        if headers:
            size += headers_size(headers)
            headers = tuple(headers)
        if timestamp_ms is not None:
            timestamp_ms = _timestamp(timestamp_ms)
        if on_delivery is not None:
            given.function("on_delivery", on_delivery)
        if size > self._largest:
            raise self._too_large(topic, size)
        if (self.waiting and not in_turn) or self.used + size > self._buffer_memory:
            return None
        queue = queues.choose(key, partition, size)
        batch = queue.open
        if batch is None or (
            batch.size + size > queue.enough and not self._grows(queues, queue, batch, size)
        ):
            batch = self._new_batch(queues, queue)
        batch.date(timestamp_ms)
        index = batch.add(key, value, headers, size)
        self.used += size
        if on_delivery is not None:
            batch.callbacks = batch.callbacks or []
            batch.callbacks.append((index, on_delivery))
        if batch.size >= queue.enough and not self._grows(queues, queue, batch, 0):
            self._close(queue)
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
        size = RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
        if headers:
            size += headers_size(headers)
            headers = tuple(headers)
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
            first = as_bytes("value", first)
        overhead = RECORD_OVERHEAD + (len(key) if key else 0)
        first_size = overhead + (len(first) if first else 0)
        largest = self._largest
        if first_size > largest:
            raise self._too_large(topic, first_size)
        room = self._buffer_memory - self.used
        if (self.waiting and not in_turn) or first_size > room:
            return 0
        queue = queues.choose(key, partition, first_size)
        batch = queue.open
        if batch is None or (
            batch.size + first_size > queue.enough and not self._grows(queues, queue, batch, first_size)
        ):
            batch = self._new_batch(queues, queue)
        most = queue.enough
        run = values[start : min(stop, start + max(1, (most - batch.size) // first_size + 1))]
        if set(map(type, run)) == {bytes}:
            lengths = list(map(len, run))  # type: ignore[arg-type]
        else:
            # What is refused is told when it comes first, too: nothing is left half taken.
            taken_ones = itertools.takewhile(
                lambda value: value is None or isinstance(value, BYTES_LIKE), run
            )
            run = [value if value is None else as_bytes("value", value) for value in taken_ones]
            lengths = [len(value) if value else 0 for value in run]
        if max(lengths) > largest - overhead:
            # It is told when it comes first, after those before it have been taken.
            lengths = list(itertools.takewhile(lambda length: length <= largest - overhead, lengths))
        count = _fitting(lengths, overhead, min(most - batch.size, room))
        taken = sum(lengths[:count]) + overhead * count
        index = self._extend(batch, run[:count], key, timestamp_ms)
        batch.size += taken
        self.used += taken
        deliveries._add(batch, index, count)
        is_full = count < len(run) or batch.size >= queue.enough
        if is_full and not self._grows(queues, queue, batch, 0):
            self._close(queue)
        return count

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
        queue.enough = min(queues.largest_batch, batch.size + max(size, batch.size))
        return True

    def _extend(
        self, batch: Batch, run: Sequence[bytes | None], key: bytes | None, timestamp_ms: int | None
    ) -> int:
        index, count = batch.count, len(run)
        batch.date(timestamp_ms)
        batch.values.extend(run)
        if batch.keys is None and key is not None:
            batch.keys = [None] * index
        if batch.keys is not None:
            batch.keys.extend([key] * count)
        if batch.headers is not None:
            batch.headers.extend([()] * count)
        return index

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
        self.used -= batch.size - BATCH_OVERHEAD_BYTES
        while self.pending and self.pending[0].done:
            self.pending.popleft()
        if self.waiting:
            self._space.set()
            self._space = trio.Event()

    def _new_batch(self, queues: TopicQueues, queue: PartitionQueue) -> Batch:
        if queue.open is not None:
            self._close(queue)
        now = self._now()
        batch = queue.open = Batch(queue.topic, queue.partition, now, now + self._delivery_timeout)
        queue.enough = queues.enough
        queue.push(batch)
        self.pending.append(batch)
        self.active[queue] = None
        self._wake(now + self._linger)
        return batch

    def _close(self, queue: PartitionQueue) -> None:
        queue.open = None
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


def _fitting(lengths: Sequence[int], overhead: int, room: int) -> int:
    """How many records, from the first on, find room; one does in any case."""
    if sum(lengths) + overhead * len(lengths) <= room:
        return len(lengths)
    ends = list(itertools.accumulate(lengths))
    return max(1, bisect_right(range(len(ends)), room, key=lambda at: ends[at] + overhead * (at + 1)))


def headers_size(headers: Headers) -> int:
    """The size of headers. Refuse an invalid one now: when the batch is built, it would fail all its records."""
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
            f"headers are a list of pairs of a name (a string) and a value (bytes or None), "
            f"not {given.shown(headers)}"
        ) from None
    return size


def _timestamp(timestamp_ms: object) -> int:
    return given.whole("timestamp_ms (milliseconds since 1970)", timestamp_ms, least=0)


def join(self: Accumulator, topic: str, value: bytes | None, key: bytes | None) -> Delivery | None:
    """`try_append` for a record that has a value and perhaps a key, if there is an open batch for it.

    None if there is more to decide. Where most records go was decided for the one before it, or for its key.
    `csrc/isr_joining.c` does the same to the same fields, for CPython;
    `tests/replication/client/producer/test_joining.py` holds one against the other.
    """
    if value.__class__ is not bytes:
        return None
    try:
        queues = self._topics[topic]
        if key is None:
            queue, most = queues.sticky, queues.sticky_until
            size = RECORD_OVERHEAD + len(value)
        elif key.__class__ is bytes and not queues.has_grown:
            queue, most = queues.by_key[key], _ANY
            size = RECORD_OVERHEAD + len(value) + len(key)
        else:
            return None
    except (KeyError, TypeError):
        return None
    if queue is None or queue.open is None:
        return None
    batch, held = queue.open, self.used
    used, size = held + size, batch.size + size
    # A batch takes no more than a request may hold, so the record is not too large either.
    if size >= queue.enough or size > most or used > self._buffer_memory or self.waiting:
        return None
    now = time()
    if not batch.since <= now < batch.until:
        batch.date()
        if self.used != held:
            return None  # a finaliser that ran meanwhile has sent
    values = batch.values
    index = len(values)
    values.append(value)
    if batch.keys is not None:
        batch.keys.append(key)
    elif key is not None:
        batch.keys = [None] * index
        batch.keys.append(key)
    if batch.headers is not None:
        batch.headers.append(())
    batch.size, self.used = size, used
    return Delivery(batch, index)


def make_joiner(accumulator: Accumulator) -> Callable[[str, bytes | None, bytes | None], Delivery | None]:
    """The function that an accumulator calls for a record that may join a batch."""
    return partial(join, accumulator) if _joining is None else _joining.Joiner(accumulator)


if _joining is not None:
    _joining.bind(
        accumulator=Accumulator,
        queues=TopicQueues,
        topic=Topic,
        queue=PartitionQueue,
        batch=Batch,
        delivery=Delivery,
        overhead=RECORD_OVERHEAD,
    )

BYTES_LIKE = bytes | bytearray | memoryview


def as_bytes(what: str, data: object) -> bytes:
    """Refuses what is neither bytes nor like them."""
    if isinstance(data, BYTES_LIKE):
        return bytes(data)
    raise InvalidArgumentError(
        f"a record's {what} must be bytes or None, not {type(data).__name__}; encode it, or set {what}_serializer"
    )
