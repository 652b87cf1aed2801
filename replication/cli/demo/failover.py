"""The middle of the demo: the input is produced, a leader is killed under load, others take over, it comes back.

Chunks of one key are handed to the producer in input order; for each partition a task waits for their outcomes in
that order. Of a record only its partition and offset are kept.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import attrs
import trio

from ...client import Deliveries, Producer, partition_for_key
from ..errors import CommandError
from ..local.processes import NodeProcess
from .inputs import Acknowledgements, Input, Lines
from .report import Report
from .scene import NotInTimeError, Observer, Progress, Scene


@attrs.frozen
class SentChunk:
    """One chunk: `index` of its first record in the input, and where its outcomes will be."""

    index: int
    deliveries: Deliveries
    size_bytes: int

    @property
    def unacknowledged(self) -> int:
        return sum(not each.done for each in self.deliveries)


@attrs.define(eq=False)
class _PartitionQueue:
    """The chunks handed over for one partition that have no outcome yet, oldest first."""

    outstanding: deque[SentChunk] = attrs.Factory(deque)
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
    _queues: dict[int, _PartitionQueue] = attrs.Factory(dict)

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
            chunk.unacknowledged
            for partition, queue in self._queues.items()
            if partition in partitions
            for chunk in queue.outstanding
        )

    def watch_first_acks(self, partitions: Collection[int]) -> FirstAcks:
        """From now on note the first acknowledgement, for each partition, of a record sent from now on."""
        self.first_acks = FirstAcks(self.sent, set(partitions))
        return self.first_acks

    async def _send(self, lines: Lines, nursery: trio.Nursery) -> None:
        keys = [lines.key] * len(lines.values)
        deliveries = await self.producer.send_many(self.topic, lines.values, keys)
        size = len(lines.key) * len(keys) + sum(map(len, lines.values))
        chunk = SentChunk(self.sent, deliveries, size)
        self.sent += len(keys)
        partition = deliveries[0].partition
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _PartitionQueue()
            nursery.start_soon(self._settle, partition, queue)
        queue.outstanding.append(chunk)
        queue.arrived.set()

    async def _settle(self, partition: int, queue: _PartitionQueue) -> None:
        while True:
            queue.arrived = trio.Event()
            while queue.outstanding:
                chunk = queue.outstanding[0]
                await chunk.deliveries[0].wait()
                if self.first_acks is not None:
                    self.first_acks.note(partition, chunk.index)
                await chunk.deliveries[-1].wait()
                self._note(partition, chunk)
                queue.outstanding.popleft()
            await queue.arrived.wait()

    def _note(self, partition: int, chunk: SentChunk) -> None:
        """Outcomes of a chunk. Those of one partition lie in a row, unless another producer writes between."""
        count = len(chunk.deliveries)
        first, last = chunk.deliveries[0].result(), chunk.deliveries[-1].result()
        if last.offset - first.offset == count - 1:
            index = chunk.index
            self.acks.partitions[index : index + count] = array("h", [partition]) * count
            self.acks.offsets[index : index + count] = array("q", range(first.offset, last.offset + 1))
        else:
            for at, delivery in enumerate(chunk.deliveries, chunk.index):
                self.acks.note(at, partition, delivery.result().offset)
        self.progress.done += count
        self.progress.size_bytes += chunk.size_bytes

    async def _all_settled(self) -> None:
        while any(queue.outstanding for queue in self._queues.values()):
            await trio.lowlevel.checkpoint()


EARLIEST = 0.5
LATEST = 0.7
"""The trigger is armed between these shares of the input; it fires within three quarters of it."""
PLENTY_IN_FLIGHT = 500
PATIENCE = 0.02
"""Share of the input for which the trigger waits for many records in flight; then any number will do."""


class NoVictimError(CommandError):
    """No node leads a partition that still gets records in the second half of the input."""


@attrs.frozen
class Victim:
    """The node to kill, and the partitions it leads that get records afterwards (`idle` ones get none)."""

    node_id: int
    busy: frozenset[int]
    idle: frozenset[int]
    kill_at: int
    """Number of records handed over from which on it may be killed, at the first moment with plenty in flight."""
    patient_until: int
    """Number of records handed over after which any record in flight is reason enough."""


def last_records(data: Input, records: int, partitions: int) -> dict[int, int]:
    """For each partition the index in the input of its last record; partitions without any are left out."""
    last: dict[int, int] = {}
    for key, index in data.last_index_of_keys(records).items():
        partition = partition_for_key(key, partitions)
        last[partition] = max(index, last.get(partition, -1))
    return last


def choose_victim(
    leaders: Mapping[int, int], last: Mapping[int, int], records: int, rng: random.Random
) -> Victim:
    """The node that leads most partitions, and the point of the kill.

    Args:
      leaders: partition -> node id of its leader.
      last: as `last_records` gives it; a partition counts as busy if its last record comes in the second half.
      records: Length of the whole input.
      rng: Decides the exact point (and nothing else).

    Of nodes that lead equally many the one with more busy partitions is taken, then the lower id. The point is
    such that each busy partition of the victim has at least one record to come.

    Raises `NoVictimError`.
    """
    earliest, latest = int(records * EARLIEST), int(records * LATEST)
    led: dict[int, list[int]] = {}
    for partition, leader in sorted(leaders.items()):
        led.setdefault(leader, []).append(partition)
    candidates = [
        (node, frozenset(each for each in mine if last.get(each, -1) > earliest))
        for node, mine in led.items()
    ]
    candidates = [(node, busy) for node, busy in candidates if node >= 0 and busy]
    if not candidates:
        raise NoVictimError("no leader receives records in the second half of the input; use more --records")
    node, busy = min(candidates, key=lambda each: (-len(led[each[0]]), -len(each[1]), each[0]))
    end = max(earliest + 1, min(latest, *(last[each] for each in busy)))
    kill_at = rng.randrange(earliest, end)
    patient_until = min(kill_at + int(PATIENCE * records), end)
    return Victim(node, busy, frozenset(led[node]) - busy, kill_at, patient_until)


@attrs.define(eq=False)
class Trigger:
    """Fires once, as soon as the point is reached and records of the victim's partitions are in flight."""

    victim: Victim
    in_flight: Callable[[frozenset[int]], int]
    kill: Callable[[], None]
    in_flight_at_kill: int = 0

    def consider(self, sent: int) -> bool:
        """Kill now if it is time; tells whether it did. Counting and killing are one step, without a pause."""
        if sent < self.victim.kill_at:
            return False
        count = self.in_flight(self.victim.busy | self.victim.idle)
        if count < (PLENTY_IN_FLIGHT if sent < self.victim.patient_until else 1):
            return False
        self.kill()
        self.in_flight_at_kill = count
        return True


CHOOSE_AT = 0.4
"""Share of the input after which the victim is chosen; the kill comes later."""
RECOVERY_TIMEOUT = 60.0
"""Seconds after which a failover or a rejoin that has not happened is given up."""


@attrs.define(eq=False)
class Failover:
    """`after_chunk` is called by the production and does the kill; `run` sees to everything after it."""

    nodes: Mapping[int, NodeProcess]
    production: Production
    observer: Observer
    scene: Scene
    report: Report
    last: Mapping[int, int]
    """Partition -> index of its last record in the input."""
    rng: random.Random
    _trigger: Trigger | None = None
    _killed: trio.Event = attrs.Factory(trio.Event)
    _first_acks: FirstAcks | None = None

    async def after_chunk(self) -> None:
        """Choose the victim when it is time to, and kill it at the first right moment."""
        if self._killed.is_set():
            return
        if self._trigger is None:
            if self.production.sent >= CHOOSE_AT * self.report.records:
                await self._choose()
        elif self._trigger.consider(self.production.sent):
            self._note_kill(self._trigger)

    async def run(self) -> None:
        """Wait for the kill, the failover and the rejoin, and take the times.

        Raises:
          NotInTimeError: One of them has not happened within a minute.
        """
        await self._killed.wait()
        node = self.nodes[self.report.killed_node]
        await node.stop()
        await self._fail_over()
        await self._rejoin(node)

    async def _choose(self) -> None:
        leaders = await self.observer.leaders()
        victim = choose_victim(leaders, self.last, self.report.records, self.rng)
        node = self.nodes[victim.node_id]
        self._trigger = Trigger(victim, self.production.in_flight, node.kill)

    def _note_kill(self, trigger: Trigger) -> None:
        sent, victim = self.production.sent, trigger.victim
        busy = {partition for partition in victim.busy if self.last[partition] >= sent}
        self._first_acks = self.production.watch_first_acks(busy)
        self.report.killed_node = victim.node_id
        self.report.kill_at_record = sent
        self.report.in_flight_at_kill = trigger.in_flight_at_kill
        self.report.idle_partitions = sorted((victim.busy | victim.idle) - busy)
        self.scene.happen(
            f"SIGKILL to node {victim.node_id}, leader of partitions {sorted(victim.busy | victim.idle)}, "
            f"with {trigger.in_flight_at_kill:,} of their records in flight",
            "bad",
        )
        self._killed.set()

    async def _fail_over(self) -> None:
        assert self._first_acks is not None
        with trio.move_on_after(RECOVERY_TIMEOUT):
            await self._first_acks.all_seen.wait()
        if not self._first_acks.all_seen.is_set():
            raise NotInTimeError(
                f"partitions {sorted(self._first_acks.awaited)} acknowledged nothing for {RECOVERY_TIMEOUT:.0f} s "
                f"after node {self.report.killed_node} was killed"
            )
        times = {partition: seconds * 1000 for partition, seconds in self._first_acks.seconds.items()}
        self.report.failover_ms_by_partition = dict(sorted(times.items()))
        self.report.failover_ms = max(times.values(), default=None)
        for partition, ms in sorted(times.items(), key=lambda each: each[1]):
            self.scene.happen(
                f"partition {partition}: first acknowledgement by its new leader {ms:.0f} ms after the kill"
            )

    async def _rejoin(self, node: NodeProcess) -> None:
        self.scene.happen(f"starting node {node.node_id} again", "warning")
        began = time.monotonic()
        await node.start()
        await self.observer.wait_until_full(RECOVERY_TIMEOUT)
        self.report.rejoin_ms = (time.monotonic() - began) * 1000
        self.scene.happen(
            f"all replicas are in sync again, {self.report.rejoin_ms:.0f} ms after the restart", "good"
        )
