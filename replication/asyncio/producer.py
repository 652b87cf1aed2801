"""The producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, overload

from ...storage.batch import Headers
from ..client import ClosedError, GroupMetadata, ProducerSettings, RecordMetadata
from ..client import Deliveries as TrioDeliveries
from ..client import Delivery as TrioDelivery
from ..client import Producer as TrioProducer
from ..client import _arguments as given
from ..client._settings import make_settings
from ..client.producer import _joining, unprepared
from ..client.producer._transactions import Positions
from ..client.threads._handover import HandedOver, Handover
from ..client.threads.blocking import client_portal
from ._bridge import Bridge, done, released, soon

_YIELD_EVERY = 256


class Delivery(HandedOver):
    """The outcome of one record, now or later."""

    __slots__ = ()

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def result(self) -> RecordMetadata:
        """The outcome, which must be known (`done()`).

        Raises:
          ClientError: The record failed; its `outcome` tells whether it may still be in the log.
        """
        return self._outcome()

    async def wait(self) -> RecordMetadata:
        """Wait for the outcome; raises as `result` does. Cancelling it does not take the record back."""
        if not self.done():
            promised = self._producer._handover.promise(self)
            await done(promised)
            return promised.result()
        return self._outcome()


class Deliveries(Sequence[TrioDelivery]):
    """The outcomes of `Producer.send_many`, in the order of its values.

    The `wait` of a single one is not for asyncio; its `result` is, once it is `done`.
    """

    def __init__(self, producer: Producer, deliveries: TrioDeliveries) -> None:
        self._producer = producer
        self._deliveries = deliveries

    def __len__(self) -> int:
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> TrioDelivery: ...
    @overload
    def __getitem__(self, index: slice) -> list[TrioDelivery]: ...
    def __getitem__(self, index: int | slice) -> TrioDelivery | list[TrioDelivery]:
        return self._deliveries[index]

    def __iter__(self) -> Iterator[TrioDelivery]:
        return iter(self._deliveries)

    def done(self) -> bool:
        """Whether all outcomes are known."""
        return self._deliveries.done

    async def wait(self) -> list[RecordMetadata]:
        """Wait for all outcomes; raises the first failure in order, once every outcome is known."""
        if not self.done():
            await self._producer._call(self._deliveries.wait)
        return [delivery.result() for delivery in self._deliveries]


class Producer(Bridge[TrioProducer]):
    """`insync.replication.Producer` for asyncio: `async with Producer("tcp://host:9092") as producer: ...`.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ProducerSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: On entering the block: no node could be reached.

    Leaving the block waits for all outcomes, at most `delivery_timeout_ms`; not if it is left by cancellation.
    """

    _delivery_class = Delivery
    _entrance: _joining.Entrance | None = None
    """Of its `Handover`, once there is one."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = make_settings(ProducerSettings, options, settings)
        self.close_seconds = self._settings.delivery_timeout_ms / 1000 + 5
        self._handover: Handover
        self._unyielded = 0

        def make() -> Any:
            portal = client_portal(lambda: TrioProducer(bootstrap_servers, settings=self._settings))
            timeout_ms = self._settings.delivery_timeout_ms
            self._handover = Handover(portal, portal.ready.result, timeout_ms, self._delivery_class)
            self._entrance = None
            return portal

        super().__init__(make)

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """Hand over one record; waits only for space. The arguments are those of the trio producer's `send`.

        Args:
          on_delivery: Called with the delivery when its outcome is known, in the event loop of the caller.

        Raises what the trio producer's `send` raises. If cancelled, the record is not sent.
        """
        delivery: Delivery | None = None
        plain = partition is None and timestamp_ms is None and on_delivery is None and not headers
        if plain and self._entrance is not None:
            delivery = self._entrance(self, topic, value, key)
        if delivery is None:
            delivery = await self._send(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        self._unyielded += 1
        if self._unyielded >= _YIELD_EVERY:
            # A loop of sends that never waits would hold up every other task.
            self._unyielded = 0
            await asyncio.sleep(0)
        return delivery

    async def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: Callable[[Delivery], None] | None,
    ) -> Delivery:
        record = topic, value, key, headers, partition, timestamp_ms
        arguments = self._checked(record)
        if arguments is None:
            await self.prepare(topic)
            arguments = self._checked(record)
            assert arguments is not None
        delivery = self._delivery(on_delivery)
        if not self._handover.offer(delivery, *arguments):
            await self._offer_later(delivery, arguments)
        self._entrance = self._handover.entrance
        return delivery

    def send_nowait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> Delivery:
        """As `send`, but never waits. Raises what the trio producer's `send_nowait` raises."""
        arguments = self._checked((topic, value, key, headers, partition, timestamp_ms))
        if arguments is None:
            raise unprepared(given.text("topic", topic))
        delivery = self._delivery(on_delivery)
        if not self._handover.offer(delivery, *arguments):
            raise self._handover.no_space(self._settings, waited=False)
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its outcome: `send`, then `Delivery.wait`; raises what these raise."""
        delivery = await self.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return await delivery.wait()

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Hand over many records at once, the quick way; comes back when all are in the buffer.

        Raises what the trio producer's `send_many` raises. If cancelled, some of the records may be sent.
        """
        self._check_open()
        arguments = topic, *self._held.intake.check_many(topic, values, keys), partition, timestamp_ms
        return Deliveries(self, await self._call(lambda: self._handover.take_many(*arguments)))

    async def prepare(self, topic: str) -> int:
        """Learn about a topic before the first `send`; gives its number of partitions.

        Raises:
          UnknownTopicError: It does not exist.
          MetadataTimeoutError: Nobody told about it within `max_block_ms`.
        """
        return await self._call(lambda: self._held.prepare(topic))

    async def flush(self) -> None:
        """Send what waits without lingering, and wait until every outcome so far is known."""
        await self._call(self._handover.flush)

    # Transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Producer]:
        """`async with producer.transaction() as txn`: see the trio producer's. `txn` is the producer itself."""
        await self._begin(block=True)
        try:
            yield self
            await self.commit()
        except BaseException:
            await asyncio.shield(self._call(lambda: self._handover.end_transaction(self._held.intake.leave)))
            raise

    async def begin(self) -> None:
        """Begin a transaction; raises `TransactionStateError` if one is open."""
        await self._begin(block=False)

    async def _begin(self, *, block: bool) -> None:
        intake = self._held.intake
        await self._call(lambda: intake.begin(block=block), undo=lambda _: intake.unbegin())

    async def commit(self) -> None:
        """Send what waits, and commit the open transaction; raises what `transaction` does."""
        await self._call(self._handover.flush)
        await self._call(lambda: self._held.commit())

    async def abort(self) -> None:
        """Abort the open transaction: nothing of it counts. Waiting records are dropped."""
        await self._call(lambda: self._handover.end_transaction(self._held.abort))

    async def send_offsets(self, offsets: Positions, group_metadata: GroupMetadata) -> None:
        """Commit what a group has read with the transaction; see the trio producer's."""
        await self._call(lambda: self._held.send_offsets(offsets, group_metadata))

    def _check_open(self) -> None:
        if self._portal.closed:
            raise ClosedError("the producer is closed")

    def _checked(self, record: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """As `Handover.offer` takes a record, if it can be taken; None if its topic is not known yet."""
        self._check_open()
        return self._held.intake.check(*record)

    def _delivery(self, on_delivery: Callable[[Delivery], None] | None) -> Delivery:
        delivery = Delivery(self)
        if on_delivery is not None:
            given.function("on_delivery", on_delivery)
            loop = asyncio.get_running_loop()
            delivery._callbacks = [lambda _: soon(loop, on_delivery, delivery)]
        return delivery

    async def _offer_later(self, delivery: Delivery, arguments: tuple[Any, ...]) -> None:
        try:
            async with asyncio.timeout(self._settings.max_block_ms / 1000):
                while not self._handover.offer(delivery, *arguments):
                    await released(self._handover.tell_of_space)
        except TimeoutError:
            raise self._handover.no_space(self._settings, waited=True) from None
