"""The producer: `async with Producer("tcp://host:9092") as producer: await producer.send("orders", b"...")`."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import trio

from ....storage.batch import Headers
from ....transport.polling import CannotPollError, poll_when_expecting
from ...core.wording import counted
from ...errors import again
from .. import _arguments as given
from .._serializing import Serializers
from .._settings import ProducerSettings, make_settings
from ..connection._client import Client
from ..consumer._group import GroupMetadata
from ..errors import BufferFullError, InvalidArgumentError, InvalidSettingError, MetadataTimeoutError
from ..transaction_errors import TransactionStateError
from ._accumulator import YIELD_EVERY, Accumulator
from ._sender import Sender
from ._transactions import Positions, Transaction, Transactions, send_offsets
from .delivery import Deliveries, Delivery, OnDelivery, RecordMetadata

T = TypeVar("T")
_log = logging.getLogger("insync.client")
_RUN_LENGTH = 4
"""The average number of consecutive records with one key from which grouping them pays."""


class Producer(Client):
    """Sends records to the leaders of their partitions, each exactly once and in order (with `acks="all"`).

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings; alternatively single settings as keywords (fields of `ProducerSettings`).

    Raises:
      InvalidSettingError: An unknown setting or an impossible value.
      BootstrapError: On entering the block: no node could be reached.

    Leaving the block waits for all outcomes, at most `delivery_timeout_ms`, unless the block is cancelled. Its
    `Delivery` and the log report a failed record. Only tasks of this trio program may call `send`; threads and
    asyncio have `BlockingProducer` and `insync.replication.asyncio`.
    """

    _sender: Sender
    _transactions: Transactions | None = None

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = make_settings(ProducerSettings, options, settings)
        super().__init__(bootstrap_servers, self._settings)
        # A cancelled block aborts its transaction first.
        self._says_goodbye = bool(self._settings.transactional_id)
        made = Serializers(self._settings)
        self._serializers = made if made else None
        self._in_runs = self._settings.partitioner in ("default", "sticky")
        self.intake = Intake(self)

    def _start(self) -> None:
        self._sender = Sender(self._settings, self._cluster, self._nursery)
        self._accumulator = self._sender.accumulator
        self._nursery.start_soon(self._sender.run)
        if self._settings.transactional_id:
            self._transactions = Transactions(self._settings, self._cluster, self._sender)
        self._accumulator.direct = self._serializers is None

    async def _stop(self, error: BaseException | None) -> None:
        if hasattr(self, "_accumulator"):  # a producer that has reached no node has none
            self._accumulator.direct = False
        await super()._stop(error)

    async def _begin(self) -> None:
        microseconds = self._settings.busy_poll_us
        if microseconds:
            try:
                polling = await self._nursery.start(poll_when_expecting, microseconds)
            except CannotPollError as error:
                raise InvalidSettingError(f"busy_poll_us is {microseconds}: {error}") from error
            self._sender.expect = polling.expect
        if self._transactions is not None:
            await self._transactions.open()

    async def _finish(self) -> None:
        await self._flush()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        finally:
            left = sum(batch.count for batch in self._accumulator.pending if not batch.done)
            if left:
                said = counted(left, "record has", "records have")
                _log.warning("%s no outcome: the producer was ended before; they may be in the log", said)

    # Transactions

    def _with_transactions(self) -> Transactions:
        self._check_open()
        if self._transactions is None:
            raise TransactionStateError("transactions need a transactional_id; give one to the producer")
        return self._transactions

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """`async with producer.transaction() as txn`: all records of the block take effect together, or none does.

        The end of the block commits. An exception or a cancellation aborts, which takes at most `max_block_ms`. If
        that abort was not confirmed in this time, the next block begins with it. A cancellation during the
        commit leaves its outcome open: call `commit` again before the next block.
        Readers with `isolation_level="read_committed"` see the records after the commit.

        Raises, when the block is left:
          TransactionAbortableError: A record was not acknowledged; the transaction is aborted.
          TransactionAbortedError: The transaction was open for too long and is aborted.
          ProducerFencedError: Another producer uses the transactional id; the transaction is or will be aborted.
          TransactionOutcomeUnknownError: No answer arrived; call `commit` again to learn the outcome.
        """
        return self._with_transactions().scope()

    def begin(self) -> None:
        """Begin a transaction; `transaction` calls this. Raises `TransactionStateError` if one is open."""
        self._with_transactions().begin()

    async def commit(self) -> None:
        """Send waiting records and commit. Raises the errors of `transaction`, but aborts nothing."""
        await self._with_transactions().commit()

    async def abort(self) -> None:
        """Abort the open transaction. Waiting records are dropped."""
        await self._with_transactions().abort()

    async def send_offsets(self, offsets: Positions, group_metadata: GroupMetadata) -> None:
        """See `Transaction.send_offsets`."""
        await send_offsets(self._with_transactions, offsets, group_metadata)

    def _check_usable(self) -> None:
        self._check_open()
        if self._sender.barred is not None:
            raise again(self._sender.barred)

    def _serialized(self, topic: str, value: Any, key: Any) -> tuple[Any, Any]:
        """The value and the key of a record that may be sent now; raises if none may."""
        self._check_usable()
        if self._serializers is None:
            return value, key
        key = self._serializers.key(topic, key)
        return self._serializers.value(topic, value), key

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Hand over one record; waits only for buffer space or for metadata of the topic.

        Args:
          topic: An existing topic.
          value: Bytes, or an input of `value_serializer`; None is a tombstone for the key.
          key: Bytes, or an input of `key_serializer`. Records of one key go to one partition, in order.
          headers: Pairs of name and bytes.
          partition: Overrides the partitioner.
          timestamp_ms: Milliseconds since 1970; default: now.
          on_delivery: Called with the delivery when the outcome is known, in the event loop; must return quickly.

        Raises:
          InvalidArgumentError: An argument is of the wrong type or shape.
          SerializationError: A serializer raised.
          RecordTooLargeError: Above `max_request_size`.
          UnknownTopicError: The topic or partition does not exist.
          MetadataTimeoutError: No node described the topic within `max_block_ms`.
          BufferFullError: No space within `max_block_ms`.
          ProducerFencedError: A newer epoch of this producer's id has written; this producer sends nothing more.
          TransactionStateError: The producer has a `transactional_id`, and no transaction is open or the one in
            which this was called ended before there was room for the record.
          ClosedError: The producer is not open.

        In all these cases, and if cancelled, the record is not sent.
        """
        if partition is None and timestamp_ms is None and on_delivery is None and not headers:
            # One call for nearly all records.
            delivery = self._accumulator.send(topic, value, key)
            if delivery is not None:
                return delivery
        return await self._send(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    async def _send(self, topic: str, value: Any, key: Any, *rest: Any) -> Delivery:
        """`send` for a record about which there is something to decide, or behind which a pause is due."""
        arguments = topic, *self._serialized(topic, value, key), *rest
        delivery = self._accumulator.try_append(*arguments)
        if delivery is None:
            delivery = await self._send_later(*arguments)
        self._accumulator.unyielded += 1
        if self._accumulator.unyielded >= YIELD_EVERY:
            await self._yield()
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
        """Send one record and wait for its outcome: `send`, then `Delivery.wait`; raises the errors of both.

        Slow for many records: each is a batch of its own and waits for `linger_ms`.
        """
        delivery = await self.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return await delivery.wait()

    async def _send_later(self, topic: str, *arguments: Any) -> Delivery:
        """Wait for buffer space or for metadata of the topic; takes the arguments of `try_append`."""
        if not self._accumulator.knows(topic):
            transaction = self._accumulator.transaction
            await self.prepare(topic)
            self._check_same(transaction)
            delivery = self._accumulator.try_append(topic, *arguments)
            if delivery is not None:
                return delivery
        return await self._in_line(lambda: self._accumulator.decide(topic, *arguments, in_turn=True))

    def send_nowait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Like `send`, but never waits. Await something after about a hundred calls, so that the sender can run.

        Raises the errors of `send`; and:
          BufferFullError: `buffer_memory` is full.
          MetadataTimeoutError: The producer has no metadata of the topic yet; `send` once, or `prepare` it.
        """
        value, key = self._serialized(topic, value, key)
        delivery = self._accumulator.try_append(
            topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
        if delivery is None and not self._accumulator.knows(given.text("topic", topic)):
            raise unprepared(topic)
        if delivery is None:
            raise BufferFullError(self._full())
        return delivery

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Hand over many records at once, which costs far less for each. `keys`, if given, has one key for each
        value.

        Raises the errors of `send`; all records before the failed one are sent. No record is sent if it raises
        `SerializationError`, or `InvalidArgumentError` because the numbers of keys and values differ.
        """
        self._check_usable()
        return await self._send_many(topic, *self._as_bytes(topic, values, keys), partition, timestamp_ms)

    def _as_bytes(
        self, topic: str, values: Sequence[Any], keys: Sequence[Any] | None
    ) -> tuple[Sequence[bytes | None], Sequence[bytes | None] | None]:
        given.sequence("values", values)
        if keys is not None:
            given.sequence("keys", keys)
        if keys is not None and len(keys) != len(values):
            raise InvalidArgumentError(
                f"{len(values)} values but {len(keys)} keys; give one key (or None) for each value"
            )
        if self._serializers is not None:
            made = self._serializers
            values = [made.value(topic, value) for value in values]
            keys = None if keys is None else [made.key(topic, key) for key in keys]
        return values, keys

    async def _send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Deliveries:
        transaction = self._accumulator.transaction
        await self.prepare(topic)
        self._check_same(transaction)
        deliveries = Deliveries()
        values = values if isinstance(values, list | tuple) else list(values)
        runs = _runs(keys, len(values))
        if (self._in_runs or partition is not None) and len(runs) * _RUN_LENGTH <= len(values):
            start = 0
            for key, length in runs:
                await self._send_run(
                    deliveries, topic, values, start, start + length, key, partition, timestamp_ms
                )
                start += length
        else:
            await self._send_each(deliveries, topic, values, keys, partition, timestamp_ms)
        await self._yield()
        return deliveries

    async def prepare(self, topic: str) -> int:
        """Fetch metadata of a topic before the first `send`; returns its number of partitions.

        Raises:
          UnknownTopicError: It does not exist.
          MetadataTimeoutError: No node described it within `max_block_ms`.
          ClosedError: The producer is not open.
        """
        self._check_open()
        found = await self._cluster.topic(topic, timeout=self._settings.max_block_ms / 1000)
        if not self._accumulator.knows(topic):
            self._accumulator.add_topic(found)
        return len(found.leaders)

    async def flush(self) -> None:
        """Send waiting records without lingering, and wait until every outcome so far is known.

        The deliveries report failures; this method does not. Takes at most `delivery_timeout_ms`.
        """
        self._check_open()
        await self._flush()

    async def _flush(self) -> None:
        self._sender.flushing += 1
        self._sender.wake(0)
        try:
            for batch in list(self._accumulator.pending):
                await batch.wait()
        finally:
            self._sender.flushing -= 1
        await trio.lowlevel.checkpoint()

    async def _send_run(
        self,
        deliveries: Deliveries,
        topic: str,
        values: Sequence[bytes | None],
        start: int,
        stop: int,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        append = self._accumulator.append_run
        while start < stop:
            if self._accumulator.unyielded >= YIELD_EVERY:
                await self._pause()
            run = deliveries, topic, values, start, stop, key, partition, timestamp_ms
            taken = append(*run) or await self._in_line(partial(_or_none, append, *run))
            start += taken
            self._accumulator.unyielded += taken

    async def _send_each(
        self,
        deliveries: Deliveries,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        append = self._accumulator.try_append
        for index, value in enumerate(values):
            if self._accumulator.unyielded >= YIELD_EVERY:
                await self._pause()
            key = keys[index] if keys is not None else None
            delivery = append(topic, value, key, (), partition, timestamp_ms)
            if delivery is None:
                delivery = await self._send_later(topic, value, key, (), partition, timestamp_ms)
            deliveries._add(delivery._batch, delivery._index, 1)
            self._accumulator.unyielded += 1

    async def _yield(self) -> None:
        """Let the sender run: a loop of sends that never waits would otherwise starve it."""
        self._accumulator.unyielded = 0
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _pause(self) -> None:
        """`_yield` before more is handed over: the transaction may end meanwhile."""
        transaction = self._accumulator.transaction
        await self._yield()
        self._check_same(transaction)

    async def _in_line(self, attempt: Callable[[], T | None]) -> T:
        """Wait for memory; `attempt` gives None without enough of it."""
        transaction = self._accumulator.transaction

        def in_the_same() -> T | None:
            self._check_same(transaction)
            return attempt()

        with trio.move_on_after(self._settings.max_block_ms / 1000):
            return await self._accumulator.in_line(in_the_same)
        raise BufferFullError(self._full(f" for max_block_ms={self._settings.max_block_ms}"))

    def _check_same(self, transaction: object) -> None:
        """Raise if what was asked for in this transaction would be sent after its end, or in another one."""
        if self._sender.barred is not None:
            raise again(self._sender.barred)
        if self._accumulator.transaction is not transaction:
            raise TransactionStateError(
                f"transactional_id {self._settings.transactional_id!r}: the transaction in which this was sent "
                "ended before there was room for it; send it again in another one"
            )

    def _full(self, how_long: str = "") -> str:
        return (
            f"{self._accumulator.used} bytes wait to be acknowledged, buffer_memory={self._settings.buffer_memory} "
            f"is full{how_long}; send more slowly, raise buffer_memory, or see why the leaders do not answer"
        )


def _or_none(append: Callable[..., int], *run: Any) -> int | None:
    return append(*run, in_turn=True) or None


class Intake:
    """Lets other threads hand over records; methods run in the producer's thread unless they say otherwise."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def check(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[Any, ...] | None:
        """Check a record and return the argument of `try_take`; None without metadata of the topic. Any thread.

        Raises the errors of `Producer.send`, except for space. Serializers and partitioner run in the calling
        thread.
        """
        value, key = self._producer._serialized(topic, value, key)
        return self._producer._accumulator.check(topic, value, key, headers, partition, timestamp_ms)

    @property
    def accumulator(self) -> Accumulator:
        """For the producer's thread."""
        return self._producer._accumulator

    @property
    def is_plain(self) -> bool:
        """Whether no function of the user's has to see a record in the calling thread."""
        producer = self._producer
        return producer._serializers is None and not callable(producer._settings.partitioner)

    def check_many(
        self, topic: str, values: Sequence[Any], keys: Sequence[Any] | None
    ) -> tuple[Sequence[bytes | None], Sequence[bytes | None] | None]:
        """The values and keys for `take_many`. Any thread. Raises the errors of `Producer.send_many`."""
        return self._producer._as_bytes(topic, values, keys)

    def try_take(self, *checked: Any) -> Delivery | None:
        """Take a record that `check` returned; None without buffer space.

        Raises what keeps it from being sent by now: another thread may have ended the transaction.
        """
        if self._producer._sender.barred is not None:
            raise again(self._producer._sender.barred)
        return self._producer._accumulator.try_append(*checked)

    async def take(self, *checked: Any) -> Delivery:
        """Like `try_take`, but waits for space; raises BufferFullError after `max_block_ms`."""
        # What was full when the caller looked may be empty by now, and then nobody would tell of space.
        taken = self.try_take(*checked)
        return taken if taken is not None else await self._producer._send_later(*checked)

    async def take_many(self, topic: str, *arguments: Any) -> Deliveries:
        """Take the result of `check_many`, with partition and timestamp."""
        self._producer._check_usable()
        return await self._producer._send_many(topic, *arguments)

    async def begin(self, *, block: bool = False) -> None:
        """Like `Producer.begin`; `block`: like the beginning of `Producer.transaction`.

        If cancelled, no transaction is open.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if block:
            await self._producer._with_transactions().confirm_abort()
        self._producer.begin()

    def unbegin(self) -> None:
        """Nobody was told of the transaction that `begin` has opened; nothing if the producer is closed by now."""
        if not self._producer._closed:
            self._producer._with_transactions().unbegin()

    async def leave(self) -> None:
        """An error has left the block of a transaction: abort it if possible, within `max_block_ms`."""
        await self._producer._with_transactions().leave()

    async def flush(self) -> None:
        """Like `Producer.flush`, also while the producer closes."""
        await self._producer._flush()


def unprepared(topic: str) -> MetadataTimeoutError:
    """The error of `send_nowait` for a topic that the producer has not asked about."""
    return MetadataTimeoutError(f"topic {topic!r} is not known yet; call prepare({topic!r}) first")


def _runs(keys: Sequence[bytes | None] | None, count: int) -> list[tuple[bytes | None, int]]:
    """Runs of equal consecutive keys, each with its length."""
    if keys is None:
        return [(None, count)]
    return [(key, sum(1 for _ in group)) for key, group in itertools.groupby(keys)]
