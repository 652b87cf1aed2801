"""Consume, process, produce and commit in one transaction: what a listener does with a transactional id."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from ..client.consumer import ConsumerRecord
from ..client.errors import ClientError, ProducerFencedError
from ..client.producer import Producer
from ..client.transaction_errors import TransactionOutcomeUnknownError
from ._failures import place_of
from ._lanes import Lane
from ._progress import AckMode
from ._turns import Turn

if TYPE_CHECKING:
    from ._engine import Engine

log = logging.getLogger("insync.listeners")

_PAUSE = 0.5
_PART = 4
"""A turn lasts for this part of the transaction's timeout at most, so that its commit comes in time."""


class Transacting:
    """As many producers as handlers may be at work; each has one transaction after the other."""

    def __init__(self, engine: Engine, servers: str | Sequence[str], shared: dict[str, Any]) -> None:
        self._engine = engine
        self._servers = servers
        self._shared = shared
        self._idle: list[tuple[Producer, Any]] = []
        """Each with what handlers get of it."""
        self._longest = 0.0

    async def open(self, stack: AsyncExitStack, targets: Sequence[str]) -> None:
        """Take the transactional ids over: what a former process left open is aborted."""
        settings = self._engine.settings
        for number in range(settings.concurrency):
            name = f"{settings.transactional_id_prefix}-{number}"
            producer = await stack.enter_async_context(
                Producer(self._servers, transactional_id=name, **self._shared)
            )
            for topic in targets:
                await producer.prepare(topic)
            self._longest = producer._settings.transaction_timeout_ms / 1000 / _PART
            self._idle.append((producer, self._engine.hands.lend(producer)))

    async def work(self, lane: Lane, records: Sequence[ConsumerRecord]) -> None:
        """Records of a partition in transactions: no record is in two, and a failing one is alone."""
        engine = self._engine
        whole = 1 if engine.settings.ack_mode is AckMode.RECORD else len(records)
        at = attempts = 0
        size = whole
        while at < len(records) and not lane.is_over:
            if not await engine.is_due(lane, records[at]):
                return
            turn = engine.turn(lane, records[at : at + size], ends=time.monotonic() + self._longest)
            if await self._transact(lane, turn):
                at, attempts, size = at + turn.done, 0, whole
            elif lane.is_lost:
                return
            elif turn.error is None:
                await lane.wait(_PAUSE)  # the cluster would not; the same again
            elif turn.done:
                size = turn.done  # those before the one that fails, without it
            else:
                attempts += 1
                if await engine.retries(lane, turn, attempts):
                    size = len(turn.failed)
                elif await self._give_up(lane, turn):
                    at, attempts, size = at + len(turn.failed), 0, whole
                else:
                    return
            lane.attempts = attempts

    async def _transact(self, lane: Lane, turn: Turn) -> bool:
        """Whether what became of a turn is committed; nothing of it counts else."""
        engine = self._engine
        async with engine.limit:
            if lane.is_over:
                return False
            producer, lent = self._idle.pop()
            turn.extra = lambda _: (lent,)
            try:
                await producer.intake.begin(block=True)
                try:
                    await engine.run_turn(lane, turn)
                    await engine.hands.flush(lent)
                except BaseException:
                    await producer.intake.leave()
                    raise
                if turn.error is not None or not turn.done or lane.is_lost:
                    engine.counts.handled -= turn.done
                    await producer.intake.leave()
                    return False
                return await self._commit(lane, producer, turn.records[: turn.done])
            except ProducerFencedError:
                raise
            except ClientError as error:
                engine.counts.commit_failures += 1
                engine.counts.handled -= turn.done
                log.warning("%s: a transaction is repeated: %s", place_of(turn.records[0]), error)
                await producer.intake.leave()
                return False
            finally:
                self._idle.append((producer, lent))

    async def _commit(self, lane: Lane, producer: Producer, records: Sequence[ConsumerRecord]) -> bool:
        following = records[-1].offset + 1
        metadata = self._engine.consumer.group_metadata()
        if lane.is_lost or not metadata.member_id:
            # The group has moved on without this member, which may be one again, of other partitions. Offsets
            # without a member would be accepted.
            lane.lose()
            await producer.intake.leave()
            return False
        await producer.send_offsets({lane.at: following}, metadata)
        while True:
            try:
                await producer.commit()
                break
            except TransactionOutcomeUnknownError as error:
                # It must be known before anything else: what is repeated might stand there twice.
                log.warning("%s: %s", place_of(records[-1]), error)
        lane.progress.done([record.offset for record in records])
        lane.progress.committed = following
        return True

    async def _give_up(self, lane: Lane, turn: Turn) -> bool:
        """Whether what has failed is elsewhere, and its offsets are committed with that."""
        engine, failed, cause = self._engine, turn.failed, turn.cause
        topics = [engine.target(record, cause) for record in failed]
        if None in topics:
            return False
        while not lane.is_over:
            producer, lent = await self._take()
            try:
                await producer.intake.begin(block=True)
                for record, topic in zip(failed, topics, strict=True):
                    if topic:
                        await engine.forward(producer, topic, record, cause)
                if not await self._commit(lane, producer, failed):
                    return False
            except ProducerFencedError:
                raise
            except ClientError as error:
                log.error("cannot give up %s yet: %s", place_of(failed[0]), error)
                await producer.intake.leave()
            except BaseException:
                await producer.intake.leave()
                raise
            else:
                for record, topic in zip(failed, topics, strict=True):
                    engine.tell_given_up(record, topic or "", cause)
                return True
            finally:
                self._idle.append((producer, lent))
                engine.limit.release()
            await lane.wait(_PAUSE)
        return False

    async def _take(self) -> tuple[Producer, Any]:
        await self._engine.limit.acquire()
        return self._idle.pop()
