"""The producer for code without trio."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, overload

from ....storage.batch import Headers
from .. import _arguments as given
from .._settings import ProducerSettings, make_settings
from ..consumer._group import GroupMetadata
from ..producer import Producer, unprepared
from ..producer._transactions import Positions
from ..producer.delivery import Deliveries, Delivery, RecordMetadata
from ._client import BlockingClient, client_portal
from ._handover import HandedOver, Handover

_CLOSE_MARGIN = 5.0


class BlockingDelivery(HandedOver):
    """The outcome of one record, now or later; like a future."""

    __slots__ = ()

    def __init__(self, producer: BlockingProducer) -> None:
        self._producer = producer

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record stands, waiting at most `timeout` seconds for it (None: as long as it takes).

        Raises:
          ClientError: The record failed; its `outcome` tells whether it may still be in the log.
          TimeoutError: Not known yet.
        """
        if not self.done():
            self._producer._wait_for(self, timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why it failed, or None if it did not; waits as `result` does."""
        if not self.done():
            self._producer._wait_for(self, timeout)
        return self._failure()

    def as_future(self) -> Future[RecordMetadata]:
        """A `concurrent.futures.Future` of the outcome, for `concurrent.futures.wait` and the like."""
        return self._producer._handover.promise(self)


class BlockingDeliveries(Sequence[Delivery]):
    """The outcomes of `BlockingProducer.send_many`, in the order of its values.

    The `wait` of a single `Delivery` is not for this thread; `result` is, once it is `done`.
    """

    def __init__(self, producer: BlockingProducer, deliveries: Deliveries) -> None:
        self._producer = producer
        self._deliveries = deliveries

    def __len__(self) -> int:
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        return self._deliveries[index]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries)

    def done(self) -> bool:
        """Whether all outcomes are known."""
        return self._deliveries.done

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Where the records stand, in order, waiting at most `timeout` seconds for it.

        Raises:
          ClientError: The first failure in order, once every outcome is known.
          TimeoutError: Not known yet.
        """
        if not self.done():
            self._producer._portal.call(self._deliveries.wait, given.timeout(timeout))
        return [delivery.result() for delivery in self._deliveries]


class BlockingProducer(BlockingClient[Producer]):
    """`Producer` for code without trio; any number of threads may share one.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ProducerSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: No node could be reached.

    Leaving the block (or `close`) waits for all outcomes, at most `delivery_timeout_ms`. One that is still open
    when the interpreter exits is given 5 seconds. One that is collected without `close` sends what it has taken
    first; the log names records that fail.
    """

    _delivery_class = BlockingDelivery
    _when_dropped = "records that it has taken are still sent, and the log names those that fail"

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        made = self._settings = make_settings(ProducerSettings, options, settings)
        self.close_seconds = self._settings.delivery_timeout_ms / 1000 + _CLOSE_MARGIN
        portal = client_portal(lambda: Producer(bootstrap_servers, settings=made))
        timeout_ms = self._settings.delivery_timeout_ms
        self._handover = Handover(portal, portal.ready.result, timeout_ms, self._delivery_class)
        super().__init__(portal)

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[BlockingDelivery], None] | None = None,
    ) -> BlockingDelivery:
        """Hand over one record; waits only for space. The arguments are those of `Producer.send`.

        Args:
          on_delivery: Called with the delivery when its outcome is known, in the client's thread; must be quick,
            and may neither wait nor call this producer.

        Raises what `Producer.send` raises. Serializers and the partitioner run in the calling thread.
        """
        plain = partition is None and timestamp_ms is None and on_delivery is None and not headers
        entrance = self._handover.entrance
        if plain and entrance is not None and (delivery := entrance(self, topic, value, key)) is not None:
            return delivery
        return self._send(topic, value, key, headers, partition, timestamp_ms, on_delivery, wait=True)

    def send_nowait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[BlockingDelivery], None] | None = None,
    ) -> BlockingDelivery:
        """As `send`, but never waits. Raises what `Producer.send_nowait` raises."""
        return self._send(topic, value, key, headers, partition, timestamp_ms, on_delivery, wait=False)

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: Callable[[BlockingDelivery], None] | None,
        *,
        wait: bool,
    ) -> BlockingDelivery:
        deadline = time.monotonic() + (self._settings.max_block_ms / 1000 if wait else 0)
        record = topic, value, key, headers, partition, timestamp_ms
        arguments = self._held.intake.check(*record)
        if arguments is None:
            if not wait:
                raise unprepared(given.text("topic", topic))
            self._portal.call(lambda: self._held.prepare(topic))
            arguments = self._held.intake.check(*record)
            assert arguments is not None
        delivery = BlockingDelivery(self)
        if on_delivery is not None:
            given.function("on_delivery", on_delivery)
            delivery._callbacks = [on_delivery]
        while not self._handover.offer(delivery, *arguments):
            if not self._handover.wait_for_space(max(0, deadline - time.monotonic())):
                raise self._handover.no_space(self._settings, waited=wait)
        return delivery

    def send_and_wait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """See `Producer.send_and_wait`; `TimeoutError` after `timeout` seconds: then it may still be written."""
        seconds = given.timeout(timeout)
        delivery = self.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return delivery.result(seconds)

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        timeout: float | None = None,
    ) -> BlockingDeliveries:
        """Hand over many records at once, the quick way; comes back when all are in the buffer.

        Raises what `Producer.send_many` raises; and TimeoutError: they are not after `timeout` seconds. Then, and
        if interrupted, some may be.
        """
        arguments = topic, *self._held.intake.check_many(topic, values, keys), partition, timestamp_ms
        taken = self._portal.call(lambda: self._handover.take_many(*arguments), given.timeout(timeout))
        return BlockingDeliveries(self, taken)

    def prepare(self, topic: str, timeout: float | None = None) -> int:
        """See `Producer.prepare`; `TimeoutError` after `timeout` seconds."""
        return self._portal.call(lambda: self._held.prepare(topic), given.timeout(timeout))

    @contextmanager
    def transaction(self) -> Iterator[BlockingProducer]:
        """`with producer.transaction() as txn`: see `Producer.transaction`. `txn` is the producer itself."""
        self._begin(block=True)
        try:
            yield self
            self.commit()
        except BaseException:
            self._portal.call(lambda: self._handover.end_transaction(self._held.intake.leave))
            raise

    def begin(self) -> None:
        """Begin a transaction; raises `TransactionStateError` if one is open."""
        self._begin(block=False)

    def _begin(self, *, block: bool) -> None:
        intake = self._held.intake
        self._portal.call(lambda: intake.begin(block=block), undo=lambda _: intake.unbegin())

    def commit(self) -> None:
        """Send what waits, and commit the open transaction; raises what `Producer.transaction` raises."""
        self.flush()
        self._portal.call(lambda: self._held.commit())

    def abort(self) -> None:
        """Abort the open transaction: nothing of it counts. Waiting records are dropped."""
        self._portal.call(lambda: self._handover.end_transaction(self._held.abort))

    def send_offsets(self, offsets: Positions, group_metadata: GroupMetadata) -> None:
        """Commit what a group has read with the transaction; see `Transaction.send_offsets`."""
        self._portal.call(lambda: self._held.send_offsets(offsets, group_metadata))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every outcome so far is known; `TimeoutError` after `timeout` seconds."""
        self._portal.call(self._handover.flush, given.timeout(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all that was sent, for at most `timeout` seconds, and end.

        By default `delivery_timeout_ms`. Records without an outcome by then fail with `ClosedError`, and may be in
        the log nevertheless.
        """
        super().close(timeout)

    def _wait_for(self, delivery: HandedOver, timeout: float | None) -> None:
        self._portal.call(lambda: self._handover.settled(delivery), given.timeout(timeout))
