"""The work of a listener, in trio: it polls, gives records to handlers, commits, and looks after failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import attrs
import trio

from ..client._serializing import Deserializers
from ..client._settings import ConsumerSettings
from ..client.consumer import Consumer, ConsumerRecord
from ..client.errors import ClientError
from ..client.producer import Producer
from ..core.types import PartitionId
from ._failures import Verdict, headers_of, place_of
from ._lanes import Counts, Lane
from ._progress import AckMode, Commits, Progress
from ._transacting import Transacting
from ._turns import Hands, Turn
from .errors import HandlerFailedError
from .settings import ListenerSettings
from .status import ListenerStatus, PartitionStatus

log = logging.getLogger("insync.listeners")

_POLL_MS = 200
_TURN_SECONDS = 0.05
"""Time for which a partition may keep a handler while others wait for it."""
_PAUSE = 1.0
"""Before something is tried again that the cluster would not do."""


class Engine:
    """One run of a listener. All of it is called in trio; `hands` takes turns to where handlers are."""

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: Sequence[str],
        settings: ListenerSettings,
        consumer: ConsumerSettings,
        shared: dict[str, Any],
        hands: Hands,
        *,
        is_batch: bool,
    ) -> None:
        self.settings = settings
        self.hands = hands
        self.counts = Counts()
        self.failures = settings.failures
        self.is_batch = is_batch
        self.error: BaseException | None = None
        self.paused: set[PartitionId] = set()
        """By `pause`, of those that are assigned."""
        self.pauses_all = False
        self.lanes: dict[PartitionId, Lane] = {}
        self.commits: Commits
        self.consumer: Consumer
        self.limit: trio.CapacityLimiter
        self.deserializers = Deserializers(consumer)
        self._topics = [*topics, *self.failures.retry_topics]
        self._servers = servers
        self._shared = shared
        # A value that cannot be deserialized fails alone, like a handler; otherwise it would end the poll.
        self._consumer_settings = attrs.evolve(consumer, key_deserializer=None, value_deserializer=None)
        self._longest = consumer.max_poll_interval_ms / 1000
        self._producer: Producer | None = None
        self._transacting: Transacting | None = None
        self._polling = trio.CancelScope()
        self._stopping = False
        self.state = "starting"
        """Or "running", "stopping", "stopped"."""
        self._is_out = False
        """The group is being left because a handler takes too long: what it has at hand is lost to it."""

    # From the outside

    def stop(self) -> None:
        """Have `run` end: what is in hand is finished, offsets are committed, the group is left."""
        self._stopping = True
        if self.state == "running":
            self.state = "stopping"
        self._polling.cancel()
        for lane in self.lanes.values():
            lane.give_up()

    def pause(self, partitions: Iterable[PartitionId] | None) -> None:
        """Begin no further record of these, or of any, also of those that come."""
        if partitions is None:
            self.pauses_all = True
        self._set_paused(self.paused.union, partitions)

    def resume(self, partitions: Iterable[PartitionId] | None) -> None:
        """Go on with these, or with all."""
        if partitions is None:
            self.pauses_all = False
        self._set_paused(self.paused.difference, partitions)

    def _set_paused(self, change: Callable[..., set[PartitionId]], partitions: Any) -> None:
        assigned = self.consumer.assignment()
        chosen = assigned if partitions is None else list(partitions)
        unknown = [at for at in chosen if at not in assigned]
        if unknown:
            self.consumer.pause(unknown)  # says that it is not assigned
        self.paused = change(chosen)
        for at in chosen:
            lane = self.lanes.get(at)
            if lane is None:
                (self.consumer.pause if at in self.paused else self.consumer.resume)([at])
            elif at in self.paused:
                lane.hold()
            else:
                lane.release()

    def status(self) -> ListenerStatus:
        """The listener's status now."""
        positions = self.consumer.positions() if self.state in ("running", "stopping") else {}
        partitions = {at: self._status_of(at, read) for at, read in positions.items()}
        return ListenerStatus(state=self.state, partitions=partitions, **attrs.asdict(self.counts))

    def _status_of(self, at: PartitionId, read: int | None) -> PartitionStatus:
        progress, lane = self.commits.partitions.get(at), self.lanes.get(at)
        reached = progress.position if progress is not None else None
        return PartitionStatus(
            position=reached if reached is not None else read,
            committed=progress.committed if progress is not None else None,
            high_watermark=self.consumer.high_watermark(at),
            in_hand=progress.in_hand if progress is not None else 0,
            attempts=lane.attempts if lane is not None else 0,
            busy_for=lane.busy_for(time.monotonic()) if lane is not None else 0.0,
            is_paused=at in self.paused,
        )

    # The run

    async def run(self) -> None:
        """Until `stop`, or a failure, which is raised. Cancelled, it ends at once."""
        settings = self.settings
        self.limit = trio.CapacityLimiter(settings.concurrency)
        self.commits = Commits(
            settings.ack_mode,
            count=settings.ack_count,
            seconds=settings.ack_time_ms / 1000,
            now=trio.current_time(),
        )
        async with AsyncExitStack() as stack:
            try:
                await self._open(stack)
                self.state = "running"
                async with trio.open_nursery() as nursery:
                    await self._listen(nursery)
                    self.stop()
                await self._commit(self.commits.take(trio.current_time()))
            finally:
                self._stopping, self.state = True, "stopped"
        if self.error is not None:
            raise self.error

    async def _open(self, stack: AsyncExitStack) -> None:
        failures, targets = self.failures, list(self.failures.retry_topics)
        if failures.dead_letter:
            targets.append(failures.dead_letter)
        if self.settings.transactional_id_prefix:
            self._transacting = Transacting(self, self._servers, self._shared)
            await self._transacting.open(stack, targets)
        elif targets:
            self._producer = await stack.enter_async_context(Producer(self._servers, **self._shared))
            for topic in targets:
                await self._producer.prepare(topic)
        self.consumer = await stack.enter_async_context(
            Consumer(self._servers, settings=self._consumer_settings)
        )
        self.consumer.subscribe(self._topics, listener=self)

    async def _listen(self, nursery: trio.Nursery) -> None:
        while not self._stopping:
            stuck = self._stuck()
            if stuck:
                await self._sit_out(stuck)
                continue
            by_partition: dict[PartitionId, list[ConsumerRecord]] = {}
            try:
                with trio.CancelScope() as self._polling:
                    for record in await self.consumer.poll(_POLL_MS):
                        by_partition.setdefault(PartitionId(record.topic, record.partition), []).append(
                            record
                        )
            except Exception as error:  # noqa: BLE001 - `run` raises it, when all is finished
                self.fail(error)
            for at, records in by_partition.items():
                # Nothing more of it until these are done; others are polled meanwhile, and heartbeats go on.
                self.consumer.pause([at])
                progress = self.commits.handed_out(at, [record.offset for record in records])
                lane = self.lanes[at] = Lane(at, progress)
                if self._stopping:
                    lane.give_up()
                elif at in self.paused:
                    lane.hold()
                nursery.start_soon(self._handle, lane, records)
            await self._commit(self.commits.tick(trio.current_time()))

    def fail(self, error: BaseException) -> None:
        """End, and raise this in the end."""
        if self.error is None:
            self.error = error
        self.stop()

    # Handlers that take too long

    def _stuck(self) -> list[Lane]:
        now = time.monotonic()
        return [lane for lane in self.lanes.values() if lane.busy_for(now) > self._longest]

    async def _sit_out(self, stuck: list[Lane]) -> None:
        """Leave the group after `max_poll_interval_ms` without progress, as polls do for consumers."""
        for lane in stuck:
            log.error(
                "%s: the handler has been at work for %.0f s, longer than max_poll_interval_ms=%.0f: the listener "
                "leaves its group until that ends, and others handle the record again",
                lane.at,
                lane.busy_for(time.monotonic()),
                self._longest * 1000,
            )
            lane.lose()
        await self._finish([at for at, lane in self.lanes.items() if not lane.is_lost])
        await self._commit(self.commits.take(trio.current_time()))
        self._is_out = True
        try:
            await self.consumer.unsubscribe()
        finally:
            self._is_out = False
        self.commits.forget(list(self.commits.partitions))
        for lane in stuck:
            await lane.ended.wait()
        if not self._stopping:
            self.consumer.subscribe(self._topics, listener=self)

    # Who has which partition

    def on_assigned(self, partitions: list[tuple[str, int]]) -> None:
        """Called by the consumer."""
        come = [PartitionId(*each) for each in partitions]
        if self.pauses_all:
            self.paused.update(come)
        held = [at for at in come if at in self.paused]
        if held:
            self.consumer.pause(held)

    async def on_revoked(self, partitions: list[tuple[str, int]]) -> None:
        """Called by the consumer: finish the records in hand, and commit."""
        gone = [PartitionId(*each) for each in partitions]
        if not self._is_out:
            await self._finish(gone)
            await self._commit(self.commits.take(trio.current_time()))
        self._forget(gone)

    async def on_lost(self, partitions: list[tuple[str, int]]) -> None:
        """Called by the consumer: another member may have them already."""
        gone = [PartitionId(*each) for each in partitions]
        for at in gone:
            if at in self.lanes:
                self.lanes[at].lose()
        self._forget(gone)
        if not self._is_out:
            await self._finish(gone)

    def _forget(self, gone: list[PartitionId]) -> None:
        self.commits.forget(gone)
        self.paused.difference_update(gone)

    async def _finish(self, partitions: Iterable[PartitionId]) -> None:
        """Wait for what is in hand, for as long as the group does."""
        lanes = [self.lanes[at] for at in partitions if at in self.lanes]
        for lane in lanes:
            lane.give_up()
        with trio.move_on_after(self._longest):
            for lane in lanes:
                await lane.ended.wait()
        for lane in lanes:
            if not lane.ended.is_set():
                log.error("%s moves to another member while its handler still runs", lane.at)
                lane.lose()

    # Handling

    async def _handle(self, lane: Lane, records: list[ConsumerRecord]) -> None:
        try:
            if self._transacting is not None:
                await self._transacting.work(lane, records)
            elif self.settings.order == "key":
                keys: dict[bytes | None, list[ConsumerRecord]] = {}
                for record in records:
                    keys.setdefault(record.key, []).append(record)
                async with trio.open_nursery() as nursery:
                    for each in keys.values():
                        nursery.start_soon(self._work, lane, each)
            else:
                await self._work(lane, records)
            await self._commit(self.commits.ended(lane.at, trio.current_time()))
        except Exception as error:  # noqa: BLE001 - `run` raises it, when all is finished
            self.fail(error)
        finally:
            lane.ended.set()
            if self.lanes.get(lane.at) is lane:
                del self.lanes[lane.at]
                self._go_on(lane)

    def _go_on(self, lane: Lane) -> None:
        """The partition may be polled again."""
        mine = self.state == "running" and self.commits.partitions.get(lane.at) is lane.progress
        if mine and lane.at not in self.paused and lane.at in self.consumer.assignment():
            self.consumer.resume([lane.at])

    async def _work(self, lane: Lane, records: Sequence[ConsumerRecord]) -> None:
        """Handle records one after the other."""
        at = attempts = 0
        while at < len(records) and not lane.is_over:
            if not await self.is_due(lane, records[at]):
                break
            size = len(records) if self.is_batch else self.commits.room
            turn = self.turn(lane, records[at : at + size])
            async with self.limit:
                if lane.is_over or lane.is_held:
                    continue
                await self.run_turn(lane, turn)
            at += turn.done
            if turn.done:
                attempts = 0
            if not self.settings.ack_mode.is_manual:
                await self._done(lane.progress, turn.records[: turn.done])
            if turn.error is not None:
                attempts += 1
                if not await self.retries(lane, turn, attempts):
                    failed = turn.failed
                    if not await self._give_up(lane, failed, turn.cause):
                        break
                    at, attempts = at + len(failed), 0
                    await self._done(lane.progress, failed)
            lane.attempts = attempts

    def turn(self, lane: Lane, records: Sequence[ConsumerRecord], **extra: Any) -> Turn:
        """A turn of these; by default one that others do not wait for too long."""
        now = time.monotonic()
        given = {"ends": now + _TURN_SECONDS, "extra": partial(self._extra, lane.progress), **extra}
        return Turn(records, lane.progress, self.deserializers, is_batch=self.is_batch, **given)

    def _extra(self, progress: Progress, records: Sequence[ConsumerRecord]) -> tuple[Any, ...]:
        mode = self.settings.ack_mode
        if not mode.is_manual:
            return ()
        tell = partial(self._done, progress, records)
        return (self.hands.acknowledgment(tell, waits=mode is AckMode.MANUAL_IMMEDIATE),)

    async def run_turn(self, lane: Lane, turn: Turn) -> None:
        """Have it handled; what became of it stands in it."""
        turn.began = time.monotonic()
        lane.turns.add(turn)
        try:
            await self.hands.run(turn)
        finally:
            lane.turns.discard(turn)
            self.counts.handled += turn.done
            self.counts.failures += turn.error is not None

    async def is_due(self, lane: Lane, record: ConsumerRecord) -> bool:
        """Wait until a record may be begun: it is not paused, and one of a retry topic has its time; or is over."""
        due = self.failures.due(record)
        while due and not lane.is_over and (left := due - time.time()) > 0:
            await lane.wait(left)
        await lane.released()
        return not lane.is_over

    # What fails

    async def retries(self, lane: Lane, turn: Turn, attempts: int) -> bool:
        """Whether the record at hand is to be tried again in place, when its pause is over."""
        assert turn.error is not None
        pause = self.failures.pause(attempts, turn.cause)
        if pause is None:
            return False
        place = place_of(turn.failed[0])
        log.warning("%s: attempt %d failed: %r; retrying in %g s", place, attempts, turn.cause, pause)
        lane.attempts = attempts
        await lane.wait(pause)
        return True

    async def _give_up(self, lane: Lane, records: Sequence[ConsumerRecord], error: Exception) -> bool:
        """Whether something has become of these, so that the partition goes on behind them."""
        for record in records:
            topic = self.target(record, error)
            if topic is None:
                return False
            # Before the offset is committed: a record that fails is in one topic or the other.
            while topic:
                try:
                    await self.forward(self._producer, topic, record, error)
                    break
                except ClientError as failure:
                    log.error("%s cannot be written to %r, retrying: %s", place_of(record), topic, failure)
                if lane.is_over:
                    return False
                await lane.wait(_PAUSE)
            self.tell_given_up(record, topic, error)
        return True

    def target(self, record: ConsumerRecord, error: Exception) -> str | None:
        """The topic to which a record goes; empty: it is skipped; None: the listener ends here."""
        topic = self.failures.topic_after(record, error)
        if not topic and self.failures.verdict is Verdict.STOP:
            failure = HandlerFailedError(f"{place_of(record)}: the handler failed: {error!r}")
            failure.__cause__ = error
            self.fail(failure)
            return None
        return topic

    async def forward(
        self, producer: Producer | None, topic: str, record: ConsumerRecord, error: Exception
    ) -> None:
        """Write a record that has failed to another topic."""
        assert producer is not None
        await producer.send_and_wait(topic, record.value, key=record.key, headers=headers_of(record, error))

    def tell_given_up(self, record: ConsumerRecord, topic: str, error: Exception) -> None:
        """Count and log it."""
        place = place_of(record)
        if topic in self.failures.retry_topics:
            self.counts.retried += 1
            log.warning("%s goes to %r for a retry: %r", place, topic, error)
        elif topic:
            self.counts.dead_letters += 1
            log.error("%s goes to %r: %r", place, topic, error)
        else:
            self.counts.skipped += 1
            log.error("%s is skipped: %r", place, error)

    # Commits

    async def _done(self, progress: Progress, records: Sequence[ConsumerRecord]) -> None:
        if records:
            offsets = [record.offset for record in records]
            await self._commit(self.commits.done(progress, offsets, trio.current_time()))

    async def _commit(self, offsets: dict[PartitionId, int]) -> None:
        if not offsets:
            return
        try:
            await self.consumer.commit(
                {(at.topic, at.partition): next_one for at, next_one in offsets.items()}
            )
        except ClientError as error:
            # What is not committed is handled again by the next member that has the partition: at least once.
            self.commits.failed(offsets)
            self.counts.commit_failures += 1
            log.warning("failed to commit offsets: %s; what stays uncommitted is handled again", error)
