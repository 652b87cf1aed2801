"""A handler over the records of a group."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeVar

import attrs
import trio

from ..client import _arguments as given
from ..client.consumer import Consumer, ConsumerRecord
from ..client.errors import ClientError, InvalidSettingError
from ..client.producer import Producer
from ..core.types import PartitionId
from ._progress import AckMode, Commits, Failures, Verdict
from .errors import HandlerFailedError, ListenerError

log = logging.getLogger("insync.listeners")

H = TypeVar("H", bound=Callable[..., Awaitable[None]])
_POLL_MS = 200


class Acknowledgment:
    """Handed to the handler with its record, in the manual modes."""

    def __init__(self, tell: Callable[[], Awaitable[None]]) -> None:
        self._tell = tell

    async def acknowledge(self) -> None:
        """The record is done. Offsets are committed up to the first record that is not."""
        await self._tell()


@attrs.define(eq=False)
class _Lane:
    """The records of one partition that are being handled."""

    at: PartitionId
    ended: trio.Event = attrs.Factory(trio.Event)
    is_given_up: bool = False
    """Another member gets the partition: no further record is begun."""


class Listener:
    """`listener = Listener(servers, group_id="billing", topics=["orders"])`, then a handler, then `await run()`.

    Args:
      servers: URLs of some nodes.
      group_id: Of the consumer group whose records are handled.
      topics: Their names.
      ack_mode: When offsets are committed.
      ack_count, ack_time_ms: For the modes that count records or time.
      concurrency: Handlers at work at a time. A partition's records are handled in order; with `order="key"` those
        of one key are, and different keys of a partition may be handled at a time.
      order: "partition" or "key".
      retries: Attempts after the first; the partition waits meanwhile, others go on.
      retry_backoff_ms, retry_backoff_max_ms: The pause before an attempt; it doubles with each.
      on_failure: "stop" (raise from `run`), "skip", or "dead_letter" (which `dead_letter` implies).
      dead_letter: The topic to which records go that fail; headers say whence, and why.
      options: Further settings of the consumer.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        group_id: str,
        topics: Sequence[str],
        ack_mode: AckMode = AckMode.BATCH,
        ack_count: int = 100,
        ack_time_ms: int = 5000,
        concurrency: int = 1,
        order: Literal["partition", "key"] = "partition",
        retries: int = 3,
        retry_backoff_ms: int = 500,
        retry_backoff_max_ms: int = 30_000,
        on_failure: Literal["stop", "skip", "dead_letter"] = "stop",
        dead_letter: str = "",
        **options: Any,
    ) -> None:
        if not isinstance(ack_mode, AckMode):
            raise InvalidSettingError(f"ack_mode is {ack_mode!r}; it must be an AckMode")
        if order not in ("partition", "key"):
            raise InvalidSettingError(f'order is {order!r}; it must be "partition" or "key"')
        verdicts = {verdict.value: verdict for verdict in Verdict}
        if on_failure not in verdicts or (on_failure == "dead_letter") > bool(dead_letter):
            raise InvalidSettingError(
                f'on_failure is {on_failure!r}; it must be "stop", "skip", or "dead_letter" with a topic for it'
            )
        self._servers = servers
        self._topics = given.names("topics", topics)
        self._options = {**options, "group_id": group_id, "enable_auto_commit": False}
        self._options.setdefault("auto_offset_reset", "earliest")
        self._mode = ack_mode
        self._count = given.whole("ack_count", ack_count, least=1)
        self._seconds = given.duration("ack_time_ms", ack_time_ms) / 1000
        self._limit = trio.CapacityLimiter(given.whole("concurrency", concurrency, least=1))
        self._by_key = order == "key"
        self._dead_letter = dead_letter
        self._failures = Failures(
            retries=given.whole("retries", retries, least=0),
            backoff=given.duration("retry_backoff_ms", retry_backoff_ms) / 1000,
            backoff_max=given.duration("retry_backoff_max_ms", retry_backoff_max_ms) / 1000,
            verdict=Verdict.DEAD_LETTER if dead_letter else verdicts[on_failure],
        )
        self._handler: Callable[..., Awaitable[None]] | None = None
        self._stopping = trio.Event()
        self._error: BaseException | None = None
        self._lanes: dict[PartitionId, _Lane] = {}
        self._commits: Commits
        self._consumer: Consumer
        self._producer: Producer | None = None

    def handler(self, function: H) -> H:
        """Use this async function: `handler(record)`, in the manual modes `handler(record, ack)`."""
        self._handler = function
        return function

    def stop(self) -> None:
        """Have `run` end: what is in hand is finished, offsets are committed, the group is left."""
        self._stopping.set()

    async def run(self) -> None:
        """Handle records until `stop`, SIGTERM (in the main thread), or a failure. Cancelled, it ends at once.

        Raises:
          HandlerFailedError: A handler has failed too often, and `on_failure` is "stop".
          ListenerError: There is no handler.
          ClientError: What polling raises.
        """
        if self._handler is None:
            raise ListenerError("there is no handler: decorate one with @listener.handler")
        async with AsyncExitStack() as stack:
            self._consumer = await stack.enter_async_context(Consumer(self._servers, **self._options))
            if self._failures.verdict is Verdict.DEAD_LETTER:
                self._producer = await stack.enter_async_context(Producer(self._servers))
            self._commits = Commits(
                self._mode, count=self._count, seconds=self._seconds, now=trio.current_time()
            )
            self._consumer.subscribe(self._topics, listener=self)
            async with trio.open_nursery() as nursery:
                if threading.current_thread() is threading.main_thread():
                    nursery.start_soon(self._await_signal)
                await self._poll(nursery)
                await self._finish_lanes(list(self._lanes))
                nursery.cancel_scope.cancel()
            await self._commit(self._commits.take(trio.current_time()))
        if self._error is not None:
            raise self._error

    async def _await_signal(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                self.stop()

    async def _poll(self, nursery: trio.Nursery) -> None:
        consumer = self._consumer
        while not self._stopping.is_set():
            by_partition: dict[PartitionId, list[ConsumerRecord]] = {}
            for record in await consumer.poll(_POLL_MS):
                at = PartitionId(record.topic, record.partition)
                by_partition.setdefault(at, []).append(record)
            for at, records in by_partition.items():
                # Nothing more of it until these are done; others are polled meanwhile, and heartbeats go on.
                consumer.pause([at])
                lane = self._lanes[at] = _Lane(at)
                for record in records:
                    self._commits.handed_out(at, record.offset)
                nursery.start_soon(self._handle_all, lane, records)
            await self._commit(self._commits.tick(trio.current_time()))

    # Who has which partition

    async def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
        """Called by the consumer: finish the records in hand, and commit."""
        gone = [PartitionId(*each) for each in partitions]
        await self._finish_lanes(gone)
        await self._commit(self._commits.take(trio.current_time()))
        self._commits.forget(gone)

    async def on_lost(self, partitions: list[tuple[str, int]]) -> None:
        """Called by the consumer: another member may have them already."""
        gone = [PartitionId(*each) for each in partitions]
        await self._finish_lanes(gone)
        self._commits.forget(gone)

    async def _finish_lanes(self, partitions: list[PartitionId]) -> None:
        lanes = [self._lanes[at] for at in partitions if at in self._lanes]
        for lane in lanes:
            lane.is_given_up = True
        for lane in lanes:
            await lane.ended.wait()

    # Handling

    async def _handle_all(self, lane: _Lane, records: list[ConsumerRecord]) -> None:
        try:
            if self._by_key:
                keys: dict[Any, list[ConsumerRecord]] = {}
                for record in records:
                    keys.setdefault(_hashable(record.key), []).append(record)
                async with trio.open_nursery() as nursery:
                    for each in keys.values():
                        nursery.start_soon(self._handle_in_order, lane, each)
            else:
                await self._handle_in_order(lane, records)
            await self._commit(self._commits.ended(lane.at, trio.current_time()))
        finally:
            del self._lanes[lane.at]
            lane.ended.set()
            if not lane.is_given_up and lane.at in self._consumer.assignment():
                self._consumer.resume([lane.at])

    async def _handle_in_order(self, lane: _Lane, records: list[ConsumerRecord]) -> None:
        for record in records:
            if lane.is_given_up or self._error is not None:
                return
            if not await self._handle(lane, record):
                return
            if not self._mode.is_manual:
                await self._done(lane.at, record.offset)

    async def _handle(self, lane: _Lane, record: ConsumerRecord) -> bool:
        """Whether to go on behind this record."""
        assert self._handler is not None
        arguments: list[Any] = [record]
        if self._mode.is_manual:
            arguments.append(Acknowledgment(lambda: self._done(lane.at, record.offset)))
        attempts = 0
        while True:
            try:
                async with self._limit:
                    await self._handler(*arguments)
                return True
            except Exception as error:  # noqa: BLE001 - a handler may raise anything
                attempts += 1
                then = self._failures.after(attempts)
                place = f"{lane.at} offset {record.offset}"
                if isinstance(then, float):
                    log.warning("%s: attempt %d failed: %r; again in %g s", place, attempts, error, then)
                    with trio.move_on_after(then):
                        await self._stopping.wait()
                    if self._stopping.is_set() or lane.is_given_up:
                        return False
                    continue
                return await self._give_up(lane, record, error, then)

    async def _give_up(self, lane: _Lane, record: ConsumerRecord, error: Exception, then: Verdict) -> bool:
        place = f"{lane.at} offset {record.offset}"
        if then is Verdict.STOP:
            self._error = HandlerFailedError(f"{place}: the handler failed: {error!r}")
            self._error.__cause__ = error
            self.stop()
            return False
        if then is Verdict.DEAD_LETTER:
            await self._bury(record, error)
            log.error("%s goes to %r: %r", place, self._dead_letter, error)
        else:
            log.error("%s is skipped: %r", place, error)
        if self._mode.is_manual:
            await self._done(lane.at, record.offset)
        return True

    async def _bury(self, record: ConsumerRecord, error: Exception) -> None:
        """Before the offset is committed: a record that fails is in one topic or the other."""
        assert self._producer is not None
        headers = [
            *record.headers,
            ("dlt-topic", record.topic.encode()),
            ("dlt-partition", str(record.partition).encode()),
            ("dlt-offset", str(record.offset).encode()),
            ("dlt-error", repr(error)[:1000].encode("utf-8", "replace")),
        ]
        await self._producer.send_and_wait(self._dead_letter, record.value, key=record.key, headers=headers)

    async def _done(self, at: PartitionId, offset: int) -> None:
        await self._commit(self._commits.done(at, offset, trio.current_time()))

    async def _commit(self, offsets: dict[PartitionId, int]) -> None:
        if not offsets:
            return
        try:
            await self._consumer.commit(
                {(at.topic, at.partition): next_one for at, next_one in offsets.items()}
            )
        except ClientError as error:
            # What is not committed comes again to whoever has the partition next: at least once.
            self._commits.failed(offsets)
            log.warning("offsets are not committed for now: %s", error)


def _hashable(key: Any) -> Any:
    """What a deserializer makes of a key may have no hash."""
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
