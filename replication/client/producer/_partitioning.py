"""The queues of a topic's partitions, and the choice among them for records that name no partition."""

from __future__ import annotations

import operator
import random

from ....storage.batch import BATCH_OVERHEAD_BYTES
from ...core.errors import ErrorCode
from .. import _arguments as given
from .._settings import Partitioner, ProducerSettings
from ..connection._cluster import NOBODY, Leader, Topic
from ..errors import PartitionerError, error_for
from . import _joining
from ._batch import Batch
from ._murmur2 import partition_for_key
from ._window import SendWindow

_KEYS_CACHED = 1 << 16
_STAY = 16
"""Times `batch_size`: what records without a key bring to a partition in a row if they have to wait behind others
that are on their way. Few large batches cost less than many small ones, in the producer and at the nodes.
"""


class PartitionQueue(SendWindow[Batch]):
    """The batches of one partition; the last of those waiting is `tail.open` while it takes records."""

    __slots__ = ("_known", "is_held_up", "partition", "tail", "topic")

    def __init__(self, known: Topic, partition: int, settings: ProducerSettings) -> None:
        super().__init__(limit=settings.max_in_flight_requests_per_connection, sequenced=settings.idempotent)
        self._known = known
        self.topic = known.name
        self.partition = partition
        self.tail = _joining.Tail(self)
        self.is_held_up = False
        """Its leader could not be sent anything when that was last tried."""

    @property
    def leader(self) -> Leader:
        """As far as known, else `NOBODY`: see `Cluster.leader`."""
        leaders = self._known.leaders
        return leaders[self.partition] if self.partition < len(leaders) else NOBODY

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicQueues(_joining.TopicTails):
    """The queues of one topic."""

    __slots__ = (
        "_batch_size",
        "_config",
        "_largest",
        "_random",
        "_settings",
        "_topic",
        "_turn",
        "queues",
    )

    def __init__(self, topic: Topic, settings: ProducerSettings) -> None:
        self.queues: list[PartitionQueue] = []
        self._topic = topic
        self._settings = settings
        self._batch_size = min(settings.batch_size, settings.max_request_size)
        self._config: object = None
        self._largest = 0
        self._turn = -1
        """The partition that had the last record, where they take turns."""
        self._random = random.Random()
        self._grow()

    @property
    def largest_batch(self) -> int:
        """To how many bytes a batch may grow: what a request may hold, and the topic takes."""
        if self._config is not self._topic.config:
            self._config = self._topic.config
            most = self._topic.config.get("max_message_bytes")
            limit = self._settings.max_request_size
            self._largest = min(limit, most) if isinstance(most, int) and most > 0 else limit
        return self._largest

    @property
    def enough(self) -> int:
        """At how many bytes a batch may be sent: no more than the topic takes, or it would be refused."""
        return min(self._batch_size, self.largest_batch)

    def look(self) -> None:
        """The metadata of the topic may have changed: make queues for partitions that it did not have before."""
        if len(self.queues) < len(self._topic.leaders):
            self._grow()

    def choose(self, key: bytes | None, partition: int | None, size: int) -> PartitionQueue:
        """The queue for a record of `size` bytes.

        Raises:
          UnknownTopicError: The topic has no such partition.
          PartitionerError: A partitioner raised, or gave no number.
        """
        self.look()
        if partition is not None:
            if partition.__class__ is not int:
                partition = given.whole("partition", partition)
            return self._numbered(partition)
        partitioner = self._settings.partitioner
        if partitioner == "round_robin":
            return self._next_in_turn()
        if callable(partitioner):
            return self.queues[self._asked(partitioner, key)]
        if key is not None and partitioner != "sticky":
            return (self.by_key.get(key) or self._keyed(key)).queue
        sticky = self.sticky
        if sticky is None or sticky.open is None or sticky.open.size + size > self.sticky_until:
            sticky = self.sticky = self._unkeyed().tail
            begun = sticky.open.size if sticky.open is not None else 0
            more = self._batch_size * (_STAY if sticky.queue.in_flight else 1)
            # Not above what a batch can reach, or all records would come here for as long as one is open.
            self.sticky_until = min(self.largest_batch, begun + more)
        return sticky.queue

    def named(self, key: bytes | None, partition: int | None) -> int | None:
        """The partition that a record must go to because it, or a function of the user's, says so; changes nothing.

        Raises as `choose` does.
        """
        if partition is None and callable(self._settings.partitioner):
            return self._asked(self._settings.partitioner, key)
        return partition if partition is None else self._checked(given.whole("partition", partition))

    def _numbered(self, partition: int) -> PartitionQueue:
        return self.queues[self._checked(partition)]

    def _checked(self, partition: int) -> int:
        # There is a queue for each by the time that one is needed.
        count = max(len(self.queues), len(self._topic.leaders))
        if not 0 <= partition < count:
            thing = f"partition {partition} of topic {self._topic.name!r}, which has {count}"
            raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, thing)
        return partition

    def _keyed(self, key: bytes) -> _joining.Tail:
        if len(self.by_key) >= _KEYS_CACHED:
            self.by_key.clear()
        tail = self.by_key[key] = self.queues[partition_for_key(key, len(self.queues))].tail
        return tail

    def _asked(self, partitioner: Partitioner, key: bytes | None) -> int:
        topic = self._topic.name
        try:
            partition = operator.index(partitioner(topic, key, len(self.queues)))
        except Exception as error:
            raise PartitionerError(
                f"topic {topic!r}: the partitioner chose no partition: {error!r}"
            ) from error
        return self._checked(partition)

    def _next_in_turn(self) -> PartitionQueue:
        """The next partition that has a leader; just the next if none has."""
        count, leaders = len(self.queues), self._topic.leaders
        after = [(self._turn + step) % count for step in range(1, count + 1)]
        self._turn = next((n for n in after if n < len(leaders) and leaders[n].node_id >= 0), after[0])
        return self.queues[self._turn]

    def _unkeyed(self) -> PartitionQueue:
        """A partition that has a leader and the least waiting (KIP-794: the slow ones get less).

        Of those with nothing waiting, one with nothing on its way either: a few batches then go to many partitions.
        """
        if len(self.queues) == 1:
            return self.queues[0]
        leaders = self._topic.leaders
        led = [queue for queue, leader in zip(self.queues, leaders, strict=False) if leader.node_id >= 0]
        choices = led or self.queues
        idle = [queue for queue in choices if not queue.waiting]
        if idle:
            return self._random.choice([queue for queue in idle if not queue.in_flight] or idle)
        backlogs = [self._backlog(queue) for queue in choices]
        least = min(backlogs)
        return self._random.choice(
            [queue for queue, backlog in zip(choices, backlogs, strict=True) if backlog == least]
        )

    def _backlog(self, queue: PartitionQueue) -> int:
        """How many batches of the usual size wait, in however many they are gathered."""
        return sum(max(1, (batch.size - BATCH_OVERHEAD_BYTES) // self._batch_size) for batch in queue.waiting)

    def _grow(self) -> None:
        numbers = range(len(self.queues), len(self._topic.leaders))
        self.queues += [PartitionQueue(self._topic, n, self._settings) for n in numbers]
        self.by_key.clear()
