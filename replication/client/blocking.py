"""Producer, consumer and admin for code without trio: scripts, threads, asyncio.

Each runs its trio client in a daemon thread of its own. All methods may be called from any thread; errors are
raised in the caller. `close` comes back within its timeout, also after a KeyboardInterrupt.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import trio

from ...storage.batch import Headers
from ..core.types import PartitionId, Value
from ._client import Client
from ._portal import Portal
from ._settings import ClientSettings, ConsumerSettings, ProducerSettings, make_settings
from .admin import Admin, ClusterInfo, NodeReport, Reassignment, TopicInfo
from .consumer import Consumer, ConsumerRecord, FetchedBatches
from .delivery import Deliveries, Delivery, RecordMetadata
from .errors import BufferFullError, ClientError, ClosedError, ServerError
from .producer import Producer

C = TypeVar("C", bound=Client)

_HANDOVER_BYTES = 4 << 20
_RECORD_COST = 200
_CLOSE_MARGIN = 5.0


class _Blocking(Generic[C]):
    """A client behind a portal; `close` waits at most `_close_timeout` seconds by default."""

    _close_timeout = _CLOSE_MARGIN

    def __init__(self, make: Callable[[], C]) -> None:
        self._portal, self._client = Portal.open(make)

    def close(self, timeout: float | None = None) -> None:
        """Finish and end the thread; after `timeout` seconds without finishing. May be called again."""
        self._portal.close(self._close_timeout if timeout is None else timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an interrupt nobody wants to wait for a cluster that may be away.
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.close(1.0 if interrupted else None)


class BlockingDelivery:
    """The outcome of one record, now or later; like a future."""

    __slots__ = ("_delivery", "_error", "_producer")

    def __init__(self, producer: BlockingProducer) -> None:
        self._producer = producer
        self._delivery: Delivery | None = None
        self._error: ClientError | TypeError | None = None

    def done(self) -> bool:
        return self._error is not None or (self._delivery is not None and self._delivery.done)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record stands, waiting at most `timeout` seconds for it.

        Raises:
          ClientError: The record failed; its `outcome` tells whether it may be in the log all the same.
          TimeoutError: Not known yet.
        """
        if not self.done():
            self._producer._wait_for(self, timeout)
        if self._error is not None:
            raise self._error
        assert self._delivery is not None
        return self._delivery.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why it failed, or None if it did not; waits as `result` does."""
        try:
            self.result(timeout)
        except (ClientError, TypeError) as error:
            return error
        return None

    def as_future(self) -> Future[RecordMetadata]:
        """A `concurrent.futures.Future` of the outcome, for `asyncio.wrap_future` and the like."""
        future: Future[RecordMetadata] = Future()
        self._producer._when_done(self, future)
        return future


class BlockingProducer(_Blocking[Producer]):
    """`Producer` for code without trio.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ProducerSettings`).

    Leaving the block (or `close`) waits for all outcomes, at most `delivery_timeout_ms`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = settings or make_settings(ProducerSettings, options)
        self._close_timeout = self._settings.delivery_timeout_ms / 1000 + _CLOSE_MARGIN
        self._queue: deque[tuple[BlockingDelivery, int, tuple[Any, ...]]] = deque()
        self._queued = 0
        self._space = threading.Condition()
        self._moved = trio.Event()
        self._moving = False
        super().__init__(lambda: Producer(bootstrap_servers, settings=self._settings))

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BlockingDelivery:
        """Hand over one record; waits only for space. The arguments are those of `Producer.send`.

        Raises:
          BufferFullError: No space within `max_block_ms`.
          ClosedError: The producer is closed.

        What else `Producer.send` raises is the delivery's outcome.
        """
        delivery = BlockingDelivery(self)
        cost = _RECORD_COST + (len(value) if value else 0)
        with self._space:
            if self._queued > _HANDOVER_BYTES and not self._space.wait_for(
                lambda: self._queued <= _HANDOVER_BYTES or self._portal.closed,
                self._settings.max_block_ms / 1000,
            ):
                raise BufferFullError(
                    f"the producer takes no record for max_block_ms={self._settings.max_block_ms}; "
                    "see why the leaders do not answer, or raise buffer_memory"
                )
            if self._portal.closed:
                raise ClosedError("the producer is closed")
            first = not self._queue and not self._moving
            self._moving |= first
            self._queued += cost
            self._queue.append((delivery, cost, (topic, value, key, headers, partition, timestamp_ms)))
        if first:
            self._portal.post(self._begin_moving)
        return delivery

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        timeout: float | None = None,
    ) -> Deliveries:
        """Hand over many records at once, the quick way; comes back when all are in the buffer.

        The outcomes are `Deliveries`, whose `wait` is not for this thread: use `flush`, then `result()` of each.
        Raises what `Producer.send_many` raises.
        """
        return self._portal.call(
            lambda: self._send_many(topic, values, keys, partition, timestamp_ms), timeout
        )

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every outcome so far is known; `TimeoutError` after `timeout` seconds."""
        self._portal.call(self._flush, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all that was sent, for at most `timeout` seconds, and end."""
        try:
            self.flush(self._close_timeout if timeout is None else timeout)
        except (ClosedError, TimeoutError):
            timeout = 0.0
        finally:
            self._portal.close(_CLOSE_MARGIN if timeout is None else min(timeout, _CLOSE_MARGIN))
            with self._space:
                self._space.notify_all()
            self._fail_queued()

    # In the trio thread

    def _begin_moving(self) -> None:
        """Take over what has been queued without waiting, as long as there is room."""
        nursery = self._portal.nursery
        assert nursery is not None
        if self._move():
            nursery.start_soon(self._move_on)

    def _move(self) -> bool:
        """Whether something is left that must wait."""
        append = self._client._accumulator.try_append
        moved = 0
        while self._queue:
            delivery, cost, arguments = self._queue[0]
            try:
                delivery._delivery = append(*arguments)
            except (ClientError, TypeError) as error:
                delivery._error = error
            if not (delivery._delivery or delivery._error):
                break
            self._queue.popleft()
            moved += cost
        return self._account(moved)

    def _account(self, moved: int) -> bool:
        with self._space:
            self._queued -= moved
            self._moving = bool(self._queue)
            self._space.notify_all()
        event, self._moved = self._moved, trio.Event()
        event.set()
        return self._moving

    async def _move_on(self) -> None:
        while self._moving:
            delivery, cost, (topic, value, key, headers, partition, timestamp_ms) = self._queue[0]
            try:
                delivery._delivery = await self._client.send(
                    topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
                )
            except (ClientError, TypeError) as error:
                delivery._error = error
            self._queue.popleft()
            self._account(cost)
            self._move()

    async def _all_moved(self) -> None:
        while self._queue:
            await self._moved.wait()

    async def _send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Deliveries:
        await self._all_moved()
        return await self._client.send_many(
            topic, values, keys, partition=partition, timestamp_ms=timestamp_ms
        )

    async def _flush(self) -> None:
        await self._all_moved()
        await self._client.flush()

    def _wait_for(self, delivery: BlockingDelivery, timeout: float | None) -> None:
        self._portal.call(lambda: self._settled(delivery), timeout)

    async def _settled(self, delivery: BlockingDelivery) -> None:
        while delivery._delivery is None and delivery._error is None:
            await self._moved.wait()
        if delivery._delivery is not None:
            await delivery._delivery._batch.wait()

    def _when_done(self, delivery: BlockingDelivery, future: Future[RecordMetadata]) -> None:
        async def tell() -> None:
            await self._settled(delivery)
            error = delivery._error or (delivery._delivery.error if delivery._delivery else None)
            if error is not None:
                future.set_exception(error)
            elif delivery._delivery is not None:
                future.set_result(delivery._delivery.result())

        def begin() -> None:
            assert self._portal.nursery is not None
            self._portal.nursery.start_soon(tell)

        self._portal.post(begin)

    def _fail_queued(self) -> None:
        while self._queue:
            delivery, _, _ = self._queue.popleft()
            delivery._error = ClosedError("the producer was closed before the record was sent")


class BlockingConsumer(_Blocking[Consumer]):
    """`Consumer` for code without trio; iterating over it gives records without end."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ConsumerSettings | None = None,
        **options: Any,
    ) -> None:
        settings = settings or make_settings(ConsumerSettings, options)
        super().__init__(lambda: Consumer(bootstrap_servers, settings=settings))

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """See `Consumer.assign`."""
        self._run(lambda: self._client.assign(partitions))

    def assign_topic(self, topic: str) -> list[PartitionId]:
        """See `Consumer.assign_topic`."""
        return self._portal.call(lambda: self._client.assign_topic(topic))

    def assignment(self) -> list[PartitionId]:
        return self._run(self._client.assignment)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """See `Consumer.seek`."""
        self._run(lambda: self._client.seek(partition, offset))

    def seek_to_beginning(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.seek_to_beginning`."""
        self._run(lambda: self._client.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.seek_to_end`."""
        self._run(lambda: self._client.seek_to_end(partitions))

    def position(self, partition: tuple[str, int]) -> int | None:
        """See `Consumer.position`."""
        return self._run(lambda: self._client.position(partition))

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """See `Consumer.beginning_offsets`."""
        return self._portal.call(lambda: self._client.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """See `Consumer.end_offsets`."""
        return self._portal.call(lambda: self._client.end_offsets(partitions))

    def offsets_for_times(self, timestamps: Mapping[tuple[str, int], int]) -> dict[PartitionId, int | None]:
        """See `Consumer.offsets_for_times`."""
        return self._portal.call(lambda: self._client.offsets_for_times(timestamps))

    def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """See `Consumer.poll`."""
        return self._portal.call(lambda: self._client.poll(timeout_ms))

    def poll_batches(self, timeout_ms: int = 1000) -> list[FetchedBatches]:
        """See `Consumer.poll_batches`."""
        return self._portal.call(lambda: self._client.poll_batches(timeout_ms))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        while True:
            polled = self.poll()
            for index, record in enumerate(polled):
                try:
                    yield record
                except GeneratorExit:
                    self._put_back(polled[index + 1 :])
                    raise

    def _put_back(self, unread: list[ConsumerRecord]) -> None:
        """A loop was left: go on from the first record that it did not see."""
        if self._portal.closed:
            return
        for record in reversed(unread):
            self.seek((record.topic, record.partition), record.offset)

    def _run(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return self._portal.call(run)


class BlockingAdmin(_Blocking[Admin]):
    """`Admin` for code without trio."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ClientSettings | None = None,
        **options: Any,
    ) -> None:
        settings = settings or make_settings(ClientSettings, options)
        super().__init__(lambda: Admin(bootstrap_servers, settings=settings))

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 3,
        config: Mapping[str, Value] | None = None,
    ) -> str:
        """See `Admin.create_topic`."""
        return self._portal.call(
            lambda: self._client.create_topic(name, partitions, replication_factor, config)
        )

    def delete_topic(self, name: str) -> None:
        """See `Admin.delete_topic`."""
        self._portal.call(lambda: self._client.delete_topic(name))

    def create_partitions(self, name: str, partitions: int) -> None:
        """See `Admin.create_partitions`."""
        self._portal.call(lambda: self._client.create_partitions(name, partitions))

    def alter_config(
        self, name: str, config: Mapping[str, Value] | None = None, *, reset: Iterable[str] = ()
    ) -> None:
        """See `Admin.alter_config`."""
        self._portal.call(lambda: self._client.alter_config(name, config, reset=reset))

    def describe_config(self, name: str) -> dict[str, Value]:
        """See `Admin.describe_config`."""
        return self._portal.call(lambda: self._client.describe_config(name))

    def delete_records(
        self, offsets: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
    ) -> dict[tuple[str, int], int]:
        """See `Admin.delete_records`."""
        return self._portal.call(lambda: self._client.delete_records(offsets, timeout_ms=timeout_ms))

    def list_topics(self) -> list[str]:
        return self._portal.call(self._client.list_topics)

    def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """See `Admin.describe_topics`."""
        return self._portal.call(lambda: self._client.describe_topics(names))

    def describe_cluster(self) -> ClusterInfo:
        return self._portal.call(self._client.describe_cluster)

    def describe_replicas(
        self, topics: Sequence[str] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeReport]:
        """See `Admin.describe_replicas`."""
        return self._portal.call(lambda: self._client.describe_replicas(topics, timeout_ms=timeout_ms))

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> dict[tuple[str, int], ServerError | None]:
        """See `Admin.elect_leaders`."""
        return self._portal.call(lambda: self._client.elect_leaders(partitions, unclean=unclean))

    def reassign_partitions(
        self, replicas: Mapping[tuple[str, int], Sequence[int] | None]
    ) -> dict[tuple[str, int], ServerError | None]:
        """See `Admin.reassign_partitions`."""
        return self._portal.call(lambda: self._client.reassign_partitions(replicas))

    def list_partition_reassignments(
        self, topics: Iterable[str] | None = None
    ) -> dict[tuple[str, int], Reassignment]:
        """See `Admin.list_partition_reassignments`."""
        return self._portal.call(lambda: self._client.list_partition_reassignments(topics))

    def plan_reassignment(
        self, topic: str, nodes: Sequence[int], replication_factor: int | None = None
    ) -> dict[tuple[str, int], list[int]]:
        """See `Admin.plan_reassignment`."""
        return self._portal.call(lambda: self._client.plan_reassignment(topic, nodes, replication_factor))
