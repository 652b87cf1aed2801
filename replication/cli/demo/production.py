"""Producing the input, as fast as the cluster takes it, and keeping count of what is acknowledged.

Chunks of one key are handed to the producer in input order; for each partition a task waits for their outcomes
in that order. What is kept of a record is its partition and offset.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable

import attrs
import trio

from ...client import Deliveries, Producer
from .expectation import Acknowledgements
from .inputs import Lines
from .scene import Progress


@attrs.frozen
class Handover:
    """One chunk: `index` of its first record in the input, and where its outcomes will be."""

    index: int
    deliveries: Deliveries
    size_bytes: int

    @property
    def unacknowledged(self) -> int:
        return sum(not each.done for each in self.deliveries)


@attrs.define(eq=False)
class _Lane:
    """What was handed over for one partition and has no outcome yet, oldest first."""

    outstanding: deque[Handover] = attrs.Factory(deque)
    arrived: trio.Event = attrs.Factory(trio.Event)


@attrs.define(eq=False)
class FirstAcks:
    """When, after `index`, each of some partitions had its first acknowledgement of a later record.

    A record handed over after its leader was killed can only be acknowledged by the next leader.
    """

    index: int
    awaited: set[int]
    began: float = attrs.Factory(time.monotonic)
    seconds: dict[int, float] = attrs.Factory(dict)
    all_seen: trio.Event = attrs.Factory(trio.Event)

    def note(self, partition: int, index: int) -> None:
        if index >= self.index and partition in self.awaited:
            self.awaited.discard(partition)
            self.seconds[partition] = time.monotonic() - self.began
        if not self.awaited:
            self.all_seen.set()


@attrs.define(eq=False)
class Production:
    """The run of all input through one producer: `sent` counts records handed over, `progress` acknowledged."""

    producer: Producer
    topic: str
    acks: Acknowledgements
    progress: Progress
    sent: int = 0
    first_acks: FirstAcks | None = None
    _lanes: dict[int, _Lane] = attrs.Factory(dict)

    async def run(self, stream: Iterable[Lines], after_chunk: Callable[[], Awaitable[None]]) -> None:
        """Send everything and wait for every outcome; `after_chunk` is awaited between chunks.

        Raises the producer's error for the first record that it gives up.
        """
        async with trio.open_nursery() as nursery:
            for lines in stream:
                await self._send(lines, nursery)
                await after_chunk()
            await self.producer.flush()
            await self._all_settled()
            nursery.cancel_scope.cancel()
        self.progress.end()

    def in_flight(self, partitions: Collection[int]) -> int:
        """Records of these partitions that were handed over and are not acknowledged, at this moment."""
        return sum(
            handover.unacknowledged
            for partition, lane in self._lanes.items()
            if partition in partitions
            for handover in lane.outstanding
        )

    def watch_first_acks(self, partitions: Collection[int]) -> FirstAcks:
        """From now on note the first acknowledgement, for each partition, of a record sent from now on."""
        self.first_acks = FirstAcks(self.sent, set(partitions))
        return self.first_acks

    async def _send(self, lines: Lines, nursery: trio.Nursery) -> None:
        keys = [lines.key] * len(lines.values)
        deliveries = await self.producer.send_many(self.topic, lines.values, keys)
        size = len(lines.key) * len(keys) + sum(map(len, lines.values))
        handover = Handover(self.sent, deliveries, size)
        self.sent += len(keys)
        partition = deliveries[0].partition
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _Lane()
            nursery.start_soon(self._settle, partition, lane)
        lane.outstanding.append(handover)
        lane.arrived.set()

    async def _settle(self, partition: int, lane: _Lane) -> None:
        while True:
            lane.arrived = trio.Event()
            while lane.outstanding:
                handover = lane.outstanding[0]
                await handover.deliveries[0].wait()
                if self.first_acks is not None:
                    self.first_acks.note(partition, handover.index)
                await handover.deliveries[-1].wait()
                self._note(partition, handover)
                lane.outstanding.popleft()
            await lane.arrived.wait()

    def _note(self, partition: int, handover: Handover) -> None:
        """Outcomes of a chunk. Those of one partition lie in a row, unless another producer writes between."""
        count = len(handover.deliveries)
        first, last = handover.deliveries[0].result(), handover.deliveries[-1].result()
        if last.offset - first.offset == count - 1:
            index = handover.index
            self.acks.partitions[index : index + count] = array("h", [partition]) * count
            self.acks.offsets[index : index + count] = array("q", range(first.offset, last.offset + 1))
        else:
            for at, delivery in enumerate(handover.deliveries, handover.index):
                self.acks.note(at, partition, delivery.result().offset)
        self.progress.done += count
        self.progress.size_bytes += handover.size_bytes

    async def _all_settled(self) -> None:
        while any(lane.outstanding for lane in self._lanes.values()):
            await trio.lowlevel.checkpoint()
