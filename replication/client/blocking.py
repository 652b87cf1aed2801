"""Producer, consumer and admin for code without trio: scripts and threads. (asyncio: `insync.replication.asyncio`.)

Each runs its trio client in a daemon thread of its own. All methods may be called from any thread; errors are
raised in the caller. `close` comes back within its timeout, also after a KeyboardInterrupt. What is open in a child
process that was forked belongs to the parent: open new ones there.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, overload

from ...storage.batch import Headers
from .._portal import Held, Portal
from ..core.coordination.transaction_messages import TransactionDescription, TransactionListing
from ..core.messages import ActiveProducer, NodeInfo, QuotaInfo
from ..core.types import PartitionId, Value
from . import _arguments as given
from . import _elsewhere as there
from ._blocking_users import BlockingUserAdmin
from ._client import Client
from ._corrupt import SkippedRecords
from ._group import LEAVE_SECONDS, GroupMetadata
from ._groups import GroupDescription, GroupListing, ResetTo
from ._handover import HandedOver, Handover
from ._member import Due, OnCommit
from ._operations import EntityType, NodeChanges, NodeHealth
from ._settings import ClientSettings, ConsumerSettings, ProducerSettings, make_settings
from ._transaction_admin import HANGS_AFTER_MS, HangingTransaction
from ._transactions import Positions
from .admin import Admin, ClusterInfo, NodeReport, Reassignment, TopicInfo
from .consumer import Consumer, ConsumerRecord, FetchedBatches, put_back
from .delivery import Deliveries, Delivery, RecordMetadata
from .errors import ClosedError, ServerError
from .producer import Producer, unprepared

C = TypeVar("C", bound=Client)

_CLOSE_MARGIN = 5.0


def client_portal(make: Callable[[], C]) -> Portal[C]:
    """A thread for a client."""
    # mypy does not see what `Self` is in a type variable.
    return Portal(make, name="insync-client", closed_error=_closed)  # type: ignore[arg-type]


def _closed(what: str) -> ClosedError:
    return ClosedError(f"the client was {what}")


class _BlockingClient(Held[C]):
    def close(self, timeout: float | None = None) -> None:
        """End it, waiting at most `timeout` seconds. May be called again."""
        super().close(given.timeout(timeout))


class BlockingDelivery(HandedOver):
    """The outcome of one record, now or later; like a future."""

    __slots__ = ("_producer",)

    def __init__(self, producer: BlockingProducer) -> None:
        super().__init__()
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


class BlockingProducer(_BlockingClient[Producer]):
    """`Producer` for code without trio; any number of threads may share one.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ProducerSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: No node could be reached.

    Leaving the block (or `close`) waits for all outcomes, at most `delivery_timeout_ms`. One that is still open
    when the interpreter exits is given 5 seconds.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = make_settings(ProducerSettings, options, settings)
        self.close_seconds = self._settings.delivery_timeout_ms / 1000 + _CLOSE_MARGIN
        portal = client_portal(lambda: Producer(bootstrap_servers, settings=self._settings))
        self._handover = Handover(portal, lambda: self._held, self._settings.delivery_timeout_ms)
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
            delivery._callbacks = [on_delivery]  # type: ignore[list-item]
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
        self.begin()
        try:
            yield self
            self.commit()
        except BaseException:
            self._portal.call(lambda: self._held.intake.leave())
            raise

    def begin(self) -> None:
        """Begin a transaction; raises `TransactionStateError` if one is open."""
        self._portal.call(lambda: self._held.intake.begin())

    def commit(self) -> None:
        """Send what waits, and commit the open transaction; raises what `Producer.transaction` raises."""
        self.flush()
        self._portal.call(lambda: self._held.commit())

    def abort(self) -> None:
        """Abort the open transaction: nothing of it counts."""
        self.flush()
        self._portal.call(lambda: self._held.abort())

    def send_offsets(self, offsets: Positions, group_metadata: GroupMetadata) -> None:
        """Commit what a group has read with the transaction; see `Transaction.send_offsets`."""
        self._portal.call(lambda: self._held.send_offsets(offsets, group_metadata))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every outcome so far is known; `TimeoutError` after `timeout` seconds."""
        self._portal.call(self._handover.flush, given.timeout(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Wait for the outcomes of all that was sent, for at most `timeout` seconds, and end.

        By default `delivery_timeout_ms`. What has no outcome by then fails with `ClosedError`, and may be in the
        log nevertheless.
        """
        super().close(timeout)

    def _wait_for(self, delivery: HandedOver, timeout: float | None) -> None:
        self._portal.call(lambda: self._handover.settled(delivery), given.timeout(timeout))


class BlockingConsumer(_BlockingClient[Consumer]):
    """`Consumer` for code without trio; iterating over it gives records without end.

    Its methods may be called from any thread, but whose records are whose is up to the callers: each record goes to
    one of those that poll.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ConsumerSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: No node could be reached.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ConsumerSettings | None = None,
        **options: Any,
    ) -> None:
        made = make_settings(ConsumerSettings, options, settings)
        self._aheads: list[deque[ConsumerRecord]] = []
        """Of each loop what was polled for it and what it has not come to yet."""
        super().__init__(client_portal(lambda: there.consumer_elsewhere(bootstrap_servers, made)))

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: object = None,
    ) -> None:
        """See `Consumer.subscribe`; callbacks run in the thread that polls, and must not be async."""
        there.refuse_async(listener)
        self._run(lambda: self._held.subscribe(topics, pattern=pattern, listener=listener))

    def unsubscribe(self) -> None:
        """See `Consumer.unsubscribe`."""
        self._leave(LEAVE_SECONDS, None)

    def subscription(self) -> list[str]:
        """See `Consumer.subscription`."""
        return self._run(self._held.subscription)

    def commit(
        self, offsets: Mapping[tuple[str, int], int] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """See `Consumer.commit`."""
        unread = there.first_of(self._aheads)
        self._portal.call(lambda: there.commit(self._held, offsets, timeout_ms, unread))

    def commit_nowait(
        self,
        offsets: Mapping[tuple[str, int], int] | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """See `Consumer.commit_nowait`; `on_commit` runs in the client's thread and must not call it."""
        unread = there.first_of(self._aheads)
        self._run(lambda: there.commit_nowait(self._held, offsets, on_commit, unread))

    def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int | None]:
        """See `Consumer.committed`."""
        return self._portal.call(lambda: self._held.committed(partitions))

    def positions(self) -> dict[PartitionId, int | None]:
        """See `Consumer.positions`."""
        return self._run(self._held.positions)

    def lag(self) -> dict[PartitionId, int]:
        """See `Consumer.lag`."""
        return self._portal.call(self._held.lag)

    def group_metadata(self) -> GroupMetadata:
        """See `Consumer.group_metadata`."""
        return self._run(self._held.group_metadata)

    def close(self, timeout: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commit what is due, run `on_revoked`, leave the group and end; see `Consumer.close`.

        After `timeout` seconds without what is left of that, beside what `on_revoked` takes. May be called again.
        """
        seconds = given.timeout(timeout)
        if leave_group is not None:
            given.flag("leave_group", leave_group)
        try:
            if not self._portal.closed and there.in_group(self._held):
                with suppress(ClosedError):
                    self._leave(LEAVE_SECONDS if seconds is None else seconds, leave_group)
        finally:
            super().close(timeout)

    def _leave(self, seconds: float, leave_group: bool | None) -> None:
        failure: Exception | None = None
        while (
            due := self._portal.call(lambda: there.close_step(self._held, seconds, leave_group))
        ) is not None:
            try:
                self._listen(due)
            except ClosedError:
                raise
            except Exception as error:  # noqa: BLE001 - the group is left first
                failure = failure or error
        if failure is not None:
            raise failure

    def _listen(self, due: Due) -> None:
        """Run a callback, in this thread."""
        try:
            due.function(due.partitions)
        except Exception:
            self._run(lambda: there.called_back(self._held))
            raise
        self._run(lambda: there.called_back(self._held))

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """See `Consumer.assign`."""
        self._run(lambda: self._held.assign(partitions))

    def assign_topic(self, topic: str) -> list[PartitionId]:
        """See `Consumer.assign_topic`."""
        return self._portal.call(lambda: self._held.assign_topic(topic))

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.pause`."""
        self._run(lambda: self._held.pause(partitions))

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.resume`."""
        self._run(lambda: self._held.resume(partitions))

    def paused(self) -> list[PartitionId]:
        """See `Consumer.paused`."""
        return self._run(self._held.paused)

    def assignment(self) -> list[PartitionId]:
        """See `Consumer.assignment`."""
        return self._run(self._held.assignment)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """See `Consumer.seek`."""
        self._run(lambda: self._held.seek(partition, offset))

    def seek_to_beginning(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.seek_to_beginning`."""
        self._run(lambda: self._held.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `Consumer.seek_to_end`."""
        self._run(lambda: self._held.seek_to_end(partitions))

    def position(self, partition: tuple[str, int]) -> int | None:
        """See `Consumer.position`."""
        return self._run(lambda: self._held.position(partition))

    def high_watermark(self, partition: tuple[str, int]) -> int:
        """See `Consumer.high_watermark`."""
        return self._run(lambda: self._held.high_watermark(partition))

    def skipped(self) -> list[SkippedRecords]:
        """See `Consumer.skipped`."""
        return self._run(self._held.skipped)

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """See `Consumer.beginning_offsets`."""
        return self._portal.call(lambda: self._held.beginning_offsets(partitions))

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, isolation: str = "known"
    ) -> dict[PartitionId, int]:
        """See `Consumer.end_offsets`."""
        return self._portal.call(lambda: self._held.end_offsets(partitions, isolation=isolation))

    def offsets_for_times(self, timestamps: Mapping[tuple[str, int], int]) -> dict[PartitionId, int | None]:
        """See `Consumer.offsets_for_times`."""
        return self._portal.call(lambda: self._held.offsets_for_times(timestamps))

    def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """See `Consumer.poll`."""
        return self._poll(timeout_ms, batches=False)

    def poll_batches(self, timeout_ms: int = 1000) -> list[FetchedBatches]:
        """See `Consumer.poll_batches`."""
        return self._poll(timeout_ms, batches=True)

    def _poll(self, timeout_ms: int, *, batches: bool) -> Any:
        deadline = time.monotonic() + given.duration("timeout_ms", timeout_ms) / 1000
        while True:
            seconds = max(0.0, deadline - time.monotonic())
            step = self._portal.call(
                lambda: there.poll_step(self._held, seconds, batches=batches),  # noqa: B023 - called at once
                undo=partial(there.undo_step, self._held),
            )
            if not isinstance(step, Due):
                return step
            self._listen(step)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        ahead: deque[ConsumerRecord] = deque()
        self._aheads.append(ahead)
        try:
            while True:
                while ahead and there.may_hand_out(self._held):
                    record = ahead.popleft()
                    there.at_hand(self._held, record)
                    yield record
                self._put_back(ahead)
                ahead.extend(self.poll())
        finally:
            # A loop was left: go on from the first record that it did not see.
            self._aheads.remove(ahead)
            self._put_back(ahead)

    def _put_back(self, ahead: deque[ConsumerRecord]) -> None:
        if ahead:
            unread = list(ahead)
            ahead.clear()
            self._portal.try_post(lambda: put_back(self._held, unread))

    def _run(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return self._portal.call(run)


class BlockingAdmin(_BlockingClient[Admin], BlockingUserAdmin):
    """`Admin` for code without trio.

    Args:
      bootstrap_servers: URLs of some nodes, as a list or comma separated; `host:port` means tcp.
      settings: All settings at once; or give single ones as keywords (fields of `ClientSettings`).

    Raises:
      InvalidSettingError: A setting that does not exist, or cannot be.
      BootstrapError: No node could be reached.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ClientSettings | None = None,
        **options: Any,
    ) -> None:
        settings = make_settings(ClientSettings, options, settings)
        super().__init__(client_portal(lambda: Admin(bootstrap_servers, settings=settings)))

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 3,
        config: Mapping[str, Value] | None = None,
        *,
        exist_ok: bool = False,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> str:
        """See `Admin.create_topic`."""
        return self._portal.call(
            lambda: self._held.create_topic(
                name,
                partitions,
                replication_factor,
                config,
                exist_ok=exist_ok,
                assignments=assignments,
                validate_only=validate_only,
            )
        )

    def wait_for_nodes(self, count: int, timeout: float | None = None) -> list[NodeInfo]:
        """See `Admin.wait_for_nodes`; `TimeoutError` after `timeout` seconds."""
        return self._portal.call(lambda: self._held.wait_for_nodes(count), given.timeout(timeout))

    def delete_topic(self, name: str) -> None:
        """See `Admin.delete_topic`."""
        self._portal.call(lambda: self._held.delete_topic(name))

    def create_partitions(
        self,
        name: str,
        partitions: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """See `Admin.create_partitions`."""
        self._portal.call(
            lambda: self._held.create_partitions(
                name, partitions, assignments=assignments, validate_only=validate_only
            )
        )

    def alter_config(
        self, name: str, config: Mapping[str, Value] | None = None, *, reset: Iterable[str] = ()
    ) -> None:
        """See `Admin.alter_config`."""
        self._portal.call(lambda: self._held.alter_config(name, config, reset=reset))

    def describe_config(self, name: str) -> dict[str, Value]:
        """See `Admin.describe_config`."""
        return self._portal.call(lambda: self._held.describe_config(name))

    def delete_records(
        self, offsets: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
    ) -> dict[tuple[str, int], int]:
        """See `Admin.delete_records`."""
        return self._portal.call(lambda: self._held.delete_records(offsets, timeout_ms=timeout_ms))

    def read_index(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]:
        """See `Admin.read_index`."""
        return self._portal.call(lambda: self._held.read_index(partitions))

    def committed_offsets(self, group: str) -> dict[PartitionId, int]:
        """See `Admin.committed_offsets`."""
        return self._portal.call(lambda: self._held.committed_offsets(group))

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, if_absent: bool = False
    ) -> dict[PartitionId, int]:
        """See `Admin.commit_offsets`."""
        return self._portal.call(lambda: self._held.commit_offsets(group, offsets, if_absent=if_absent))

    def forget_offsets(self, group: str) -> None:
        """See `Admin.forget_offsets`."""
        self._portal.call(lambda: self._held.forget_offsets(group))

    def forget_producers(self, prefix: str) -> None:
        """See `Admin.forget_producers`."""
        self._portal.call(lambda: self._held.forget_producers(prefix))

    def list_topics(self) -> list[str]:
        """See `Admin.list_topics`."""
        return self._portal.call(self._held.list_topics)

    def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """See `Admin.describe_topics`."""
        return self._portal.call(lambda: self._held.describe_topics(names))

    def describe_cluster(self) -> ClusterInfo:
        """See `Admin.describe_cluster`."""
        return self._portal.call(self._held.describe_cluster)

    def describe_replicas(
        self, topics: Sequence[str] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeReport]:
        """See `Admin.describe_replicas`."""
        return self._portal.call(lambda: self._held.describe_replicas(topics, timeout_ms=timeout_ms))

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> dict[tuple[str, int], ServerError | None]:
        """See `Admin.elect_leaders`."""
        return self._portal.call(lambda: self._held.elect_leaders(partitions, unclean=unclean))

    def reassign_partitions(
        self, replicas: Mapping[tuple[str, int], Sequence[int] | None], *, check_room: bool = True
    ) -> dict[tuple[str, int], ServerError | None]:
        """See `Admin.reassign_partitions`."""
        return self._portal.call(lambda: self._held.reassign_partitions(replicas, check_room=check_room))

    def list_partition_reassignments(
        self, topics: Iterable[str] | None = None
    ) -> dict[tuple[str, int], Reassignment]:
        """See `Admin.list_partition_reassignments`."""
        return self._portal.call(lambda: self._held.list_partition_reassignments(topics))

    def plan_drain(self, node: int) -> dict[tuple[str, int], list[int]]:
        """See `Admin.plan_drain`."""
        return self._portal.call(lambda: self._held.plan_drain(node))

    def plan_reassignment(
        self, topic: str, nodes: Sequence[int], replication_factor: int | None = None
    ) -> dict[tuple[str, int], list[int]]:
        """See `Admin.plan_reassignment`."""
        return self._portal.call(lambda: self._held.plan_reassignment(topic, nodes, replication_factor))

    def wait_for_reassignments(
        self, topics: Iterable[str] | None = None, timeout: float | None = None
    ) -> None:
        """See `Admin.wait_for_reassignments`; `TimeoutError` after `timeout` seconds."""
        self._portal.call(lambda: self._held.wait_for_reassignments(topics), given.timeout(timeout))

    def describe_changes(
        self, since: Mapping[int, NodeChanges] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeChanges]:
        """See `Admin.describe_changes`."""
        return self._portal.call(lambda: self._held.describe_changes(since, timeout_ms=timeout_ms))

    def describe_nodes(self, *, timeout_ms: int = 5000) -> list[NodeHealth]:
        """See `Admin.describe_nodes`."""
        return self._portal.call(lambda: self._held.describe_nodes(timeout_ms=timeout_ms))

    def alter_quotas(
        self,
        entity_type: EntityType,
        name: str = "",
        limits: Mapping[str, int] | None = None,
        *,
        remove: Iterable[str] = (),
    ) -> dict[str, int]:
        """See `Admin.alter_quotas`."""
        return self._portal.call(lambda: self._held.alter_quotas(entity_type, name, limits, remove=remove))

    def list_groups(
        self, states: Iterable[str] | None = None, types: Iterable[str] | None = None
    ) -> list[GroupListing]:
        """See `Admin.list_groups`."""
        return self._portal.call(lambda: self._held.list_groups(states, types))

    def list_transactions(self, states: Iterable[str] | None = None) -> list[TransactionListing]:
        """See `Admin.list_transactions`."""
        return self._portal.call(lambda: self._held.list_transactions(states))

    def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[PartitionId, list[ActiveProducer]]:
        """See `Admin.describe_producers`."""
        return self._portal.call(lambda: self._held.describe_producers(partitions))

    def find_hanging_transactions(
        self, topics: Iterable[str] | None = None, *, longer_than_ms: int = HANGS_AFTER_MS
    ) -> list[HangingTransaction]:
        """See `Admin.find_hanging_transactions`."""
        return self._portal.call(
            lambda: self._held.find_hanging_transactions(topics, longer_than_ms=longer_than_ms)
        )

    def abort_transaction(self, partition: tuple[str, int], start_offset: int) -> None:
        """See `Admin.abort_transaction`."""
        self._portal.call(lambda: self._held.abort_transaction(partition, start_offset))

    def describe_transaction(self, name: str) -> TransactionDescription:
        """See `Admin.describe_transaction`."""
        return self._portal.call(lambda: self._held.describe_transaction(name))

    def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """See `Admin.describe_groups`."""
        return self._portal.call(lambda: self._held.describe_groups(groups))

    def group_offsets(self, group: str) -> dict[PartitionId, int]:
        """See `Admin.group_offsets`."""
        return self._portal.call(lambda: self._held.group_offsets(group))

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """See `Admin.set_group_offsets`."""
        self._portal.call(lambda: self._held.set_group_offsets(group, offsets))

    def delete_group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> None:
        """See `Admin.delete_group_offsets`."""
        self._portal.call(lambda: self._held.delete_group_offsets(group, partitions))

    def delete_group(self, group: str) -> None:
        """See `Admin.delete_group`."""
        self._portal.call(lambda: self._held.delete_group(group))

    def plan_group_reset(
        self,
        group: str,
        to: ResetTo,
        amount: int | None = None,
        *,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> dict[PartitionId, int]:
        """See `Admin.plan_group_reset`."""
        return self._portal.call(
            lambda: self._held.plan_group_reset(group, to, amount, partitions=partitions)
        )

    def describe_quotas(self) -> list[QuotaInfo]:
        """See `Admin.describe_quotas`."""
        return self._portal.call(self._held.describe_quotas)
