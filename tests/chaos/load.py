"""Producers of every kind of acknowledgement, and consumers, against a cluster that breaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal

import attrs
import trio

from insync.replication import Consumer, Producer, ReplicationError
from insync.replication.client.errors import OffsetOutOfRangeError
from insync.replication.client.producer.delivery import Delivery

from .history import Acks, History

TOPICS: dict[Acks, str] = {"all": "safe", "1": "leader", "0": "fire"}
PARTITIONS = 4
_BURST = 20
_PAUSE = 0.01
_IN_FLIGHT = 2_000


@attrs.define
class Load:
    """Runs until `stop`; what comes of it stands in `history`."""

    servers: Sequence[str]
    history: History
    stopping: bool = False
    pause: float = _PAUSE
    """Of a writer, after each burst."""

    async def write(
        self, name: str, acks: Acks, topic: str = "", *, task_status: trio.TaskStatus[None]
    ) -> None:
        """One writer; its producer lives through everything. topic: in place of the one of `acks`."""
        wanted: Literal["all", 0, 1] = "all" if acks == "all" else 1 if acks == "1" else 0
        under_way = 0

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
            while not self.stopping:
                try:
                    records = await consumer.poll(timeout_ms=200)
                except OffsetOutOfRangeError as error:
                    self.history.lost_position((topic, -1), str(error))
                    return
                except ReplicationError as error:
                    self.history.failed[type(error).__name__] += 1
                    continue
                for record in records:
                    place = record.topic, record.partition
                    self.history.see(place, record.offset, record.value or b"", expected[place])
                    expected[place] = record.offset + 1


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
