"""Producers of every kind of acknowledgement, and consumers, against a cluster that breaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import attrs
import trio

from insync.replication import Consumer, Producer, ReplicationError
from insync.replication.client.errors import OffsetOutOfRangeError
from insync.replication.client.producer.delivery import Delivery

from .history import Acks, History, Place

TOPICS: dict[Acks, str] = {"all": "safe", "1": "leader", "0": "fire"}
PARTITIONS = 4
_BURST = 20
_PAUSE = 0.01
_IN_FLIGHT = 2_000
_END_SECONDS = 90


@attrs.define
class Load:
    """Runs until `stop`; what comes of it stands in `history`."""

    servers: Sequence[str]
    history: History
    stopping: bool = False
    pause: float = _PAUSE
    """Of a writer, after each burst."""
    writers: int = 0
    """How many may still be acknowledged something."""

    async def write(
        self, name: str, acks: Acks, topic: str = "", *, task_status: trio.TaskStatus[None]
    ) -> None:
        """One writer; its producer lives through everything. topic: in place of the one of `acks`."""
        wanted: Literal["all", 0, 1] = "all" if acks == "all" else 1 if acks == "1" else 0
        under_way = 0
        self.writers += 1

        def done(value: bytes, sent_at: float, delivery: Delivery) -> None:
            nonlocal under_way
            under_way -= 1
            self._outcome(acks, delivery, value, sent_at)

        async with Producer(
            self.servers, acks=wanted, delivery_timeout_ms=30_000, request_timeout_ms=5_000, linger_ms=2
        ) as producer:
            task_status.started()
            sequence = 0
            while not self.stopping:
                for _ in range(_BURST if under_way < _IN_FLIGHT else 0):
                    value = b"%s:%d" % (name.encode(), sequence)
                    partition, sequence = sequence % PARTITIONS, sequence + 1
                    try:
                        await producer.send(
                            topic or TOPICS[acks],
                            value,
                            partition=partition,
                            on_delivery=partial(done, value, trio.current_time()),
                        )
                    except ReplicationError as error:
                        self.history.failed[type(error).__name__] += 1
                    else:
                        under_way += 1
                        self.history.sent[acks] += 1
                await trio.sleep(self.pause)
            await producer.flush()
        self.writers -= 1

    def _outcome(self, acks: Acks, delivery: Delivery, value: bytes, sent_at: float) -> None:
        if delivery.error is not None:
            name = type(delivery.error).__name__
            self.history.failed[name] += 1
            if acks == "all":
                self.history.failed_all[name] += 1
            return
        self.history.acknowledged[acks] += 1
        if acks == "all":
            place, now = (delivery.topic, delivery.partition), trio.current_time()
            self.history.ack(place, delivery.result().offset, value, now, now - sent_at)

    async def read(self, topic: str, *, task_status: trio.TaskStatus[None]) -> None:
        """One consumer from the beginning; every record it is given goes into the history."""
        async with Consumer(self.servers, auto_offset_reset="none") as consumer:
            partitions = await consumer.assign_topic(topic)
            consumer.seek_to_beginning()
            expected = {(at.topic, at.partition): 0 for at in partitions}
            task_status.started()
            try:
                while not self.stopping:
                    await self._poll(consumer, expected)
                with trio.move_on_after(_END_SECONDS):
                    while not self.is_through(expected):
                        await self._poll(consumer, expected)
                    return
            except OffsetOutOfRangeError as error:
                self.history.lost_position((topic, -1), str(error))
            else:
                self.history.unread((topic, -1), f"a reader came to {expected} within {_END_SECONDS} s")

    async def _poll(self, consumer: Consumer, expected: dict[Place, int]) -> None:
        """Raises OffsetOutOfRangeError."""
        try:
            records = await consumer.poll(timeout_ms=200)
        except OffsetOutOfRangeError:
            raise
        except ReplicationError as error:
            self.history.failed[type(error).__name__] += 1
            return
        for record in records:
            place = record.topic, record.partition
            self.history.see(place, record.offset, record.value or b"", expected[place])
            expected[place] = record.offset + 1

    def is_through(self, expected: Mapping[Place, int]) -> bool:
        """Whether a reader that expects these offsets next has all that is acknowledged, or need not have it.

        In a run in which a promise was broken it may wait for what is lost.
        """
        if self.history.violations:
            return True
        acked = self.history.acked
        return not self.writers and all(
            max(acked.get(place, ()), default=-1) < offset for place, offset in expected.items()
        )


async def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to hold in that time; looked at often."""
    with trio.move_on_after(seconds):
        while not holds():
            await trio.sleep(0.02)
        return True
    return holds()


async def until_async(holds: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """The same for what has to be asked for."""
    with trio.move_on_after(seconds):
        while not await holds():
            await trio.sleep(0.02)
        return True
    return False
