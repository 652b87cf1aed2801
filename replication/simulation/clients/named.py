"""Producers that outlive their processes: who comes under a name goes on where the one before it stopped.

The rules are those of a task that is run again while its first run may still be alive: each run raises the epoch of
the name, asks the leader what is there, waits until that is committed, and writes what is missing. Its predecessor
goes on until it is fenced.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ...core.errors import ErrorCode
from ...core.messages import DescribeProducersResult, ProduceResult
from ...core.types import BatchMeta, PartitionId
from ..driver.requests import Sent
from ..errors import require
from ..oracles.facts import NAMED_FROM, PartitionFacts
from .plain import GIVES_UP, Unsettled

if TYPE_CHECKING:
    from ..world.cluster import Cluster

FIRST = 1
"""Named producers number their records from here: at 0 any new epoch would be let in, whatever the log holds."""


class Task:
    """A number of records to be written once, in order, under one name, by as many runs as it takes."""

    def __init__(self, producer_id: int, records: int) -> None:
        self.producer_id = producer_id
        self.end = FIRST + records
        """The first sequence that it does not have."""
        self.epoch = -1
        """That of the latest run; it stands in the store, so nobody gets it twice."""
        self.done = False


class TaskRun:
    """One process that works on a task. Until it is acknowledged once it has one batch on its way only: a leader
    that does not know its name would take any sequence for the first.
    """

    def __init__(self, cluster: Cluster, partition: PartitionId, facts: PartitionFacts, task: Task) -> None:
        task.epoch += 1
        self._cluster = cluster
        self._partition = partition
        self._task = task
        self._facts = facts
        self._epoch = task.epoch
        self._next: int | None = None
        """The sequence after the last that it has given to a batch; None as long as it asks what is there."""
        self._window: deque[Unsettled] = deque()
        self._established = False
        self.over = False

    def turn(self) -> None:
        cluster = self._cluster
        if self.over or (self._facts.gone and cluster.chance(GIVES_UP)):
            self.over = True
            return
        while self._window and self._window[0].acknowledged:
            self._window.popleft()
        if self._next is None:
            cluster.requests.describe(self._partition, self._facts, self._task.producer_id, self._described)
        else:
            self._write(self._next)
        cluster.later(0.2 + cluster.random.random(), self.turn)

    def _described(self, said: DescribeProducersResult) -> None:
        """The answer tells which records are there; only those that cannot vanish any more count."""
        if self._next is None and said.settled and not self.over:
            self._next = max(FIRST, said.last_sequence + 1)

    def _write(self, following: int) -> None:
        cluster = self._cluster
        room = cluster.settings.in_flight if self._established else 1
        while len(self._window) < room and following < self._task.end:
            count = min(cluster.random.randint(1, 3), self._task.end - following)
            batch = BatchMeta(-1, count, -1, 100, self._task.producer_id, self._epoch, following)
            payload = f"{self._task.producer_id}:{self._epoch}:{following}+{count}"
            self._window.append(Unsettled(payload, batch))
            following += count
        self._next = following
        open_ones = [entry for entry in self._window if not entry.acknowledged]
        if open_ones:
            cluster.requests.send([self._attempt(entry) for entry in open_ones])
        elif following >= self._task.end:
            self.over = self._task.done = True

    def _attempt(self, entry: Unsettled) -> Sent:
        return Sent(
            self._partition,
            entry.payload,
            -1,
            entry.batch,
            True,
            facts=self._facts,
            judge=partial(self._judge, entry),
            done=partial(self._told, entry),
        )

    def _told(self, entry: Unsettled, reply: ProduceResult) -> None:
        if entry not in self._window:
            return  # it has asked anew what is there, since
        if reply.error == ErrorCode.NONE:
            entry.acknowledged = self._established = True
        elif reply.error == ErrorCode.INVALID_PRODUCER_EPOCH:
            self.over = True
        elif reply.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and entry is self._window[0]:
            self._window.clear()
            self._next, self._established = None, False

    def _judge(self, entry: Unsettled, reply: ProduceResult, by_the_leader: bool) -> None:
        """S13: nobody but the latest run fences another. S12: once it has written, nobody comes in between."""
        if reply.error == ErrorCode.INVALID_PRODUCER_EPOCH:
            latest = self._epoch == self._task.epoch
            require(not latest, "S13", "{} is fenced, and is of the latest run", entry)
        elif reply.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and by_the_leader and self._established:
            first = next((one for one in self._window if not one.acknowledged), None)
            disk = self._cluster.oracle.disk_of(self._leader, self._partition)
            facts = self._facts
            forgot = facts.forgot or bool(facts.blind) or disk.forgot
            facts.forgot |= first is entry and forgot
            require(first is not entry or facts.unclean or forgot, "S12", "{} is out of order", entry)

    @property
    def _leader(self) -> int:
        return self._cluster.store.partitions[self._partition].record.leader


class Tasks:
    """One task after the other for a partition; while one is under way, now and then another run of it begins."""

    def __init__(self, cluster: Cluster, partition: PartitionId, number: int) -> None:
        self._cluster = cluster
        self._partition = partition
        self._facts = cluster.oracle.partitions[partition]
        self._first_id = NAMED_FROM + 1000 * number
        self._task: Task | None = None
        self._latest: TaskRun | None = None
        self._tasks = 0

    @property
    def unfinished(self) -> str:
        """The records that are not written, though they should be; empty if there are none."""
        excused = self._facts.unclean or self._facts.forgot or self._facts.gone
        if self._task is None or self._task.done or excused:
            return ""
        return f"{self._facts.name}: task {self._task.producer_id} stopped before record {self._task.end}"

    def turn(self) -> None:
        cluster = self._cluster
        if self._facts.gone and cluster.chance(GIVES_UP):
            return
        finished = self._task is None or self._task.done
        if cluster.calm and finished:
            return
        if finished and cluster.lull:
            cluster.later((0.3 + 3 * cluster.random.random()) / cluster.settings.named, self.turn)
            return
        if finished:
            self._tasks += 1
            self._task = Task(self._first_id + self._tasks, cluster.random.randint(1, 12))
        if finished or not cluster.calm or self._latest is None or self._latest.over:
            assert self._task is not None
            self._latest = TaskRun(cluster, self._partition, self._facts, self._task)
            self._latest.turn()
        cluster.later((0.3 + 3 * cluster.random.random()) / cluster.settings.named, self.turn)
