"""Clients that live as long as the Python processes that Spark keeps: opening one costs milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import attrs

from ...replication.client import BlockingAdmin, BlockingConsumer, UnknownTopicError
from ...replication.core.wording import counted
from ._offsets import Ids, Offsets, Partition, Subscription
from ._options import Connection, settled
from .errors import OptionError

_START = "spark-start/"
"""Before the names of streams, where their first offsets are kept."""

FETCH_BYTES = 4 << 20
"""Of a partition at once: some Arrow batches' worth."""

C = TypeVar("C", BlockingConsumer, BlockingAdmin)

_consumers: dict[tuple[int, Connection], list[BlockingConsumer]] = {}
_admins: dict[tuple[int, Connection], list[BlockingAdmin]] = {}


def _open_consumer(connection: Connection) -> BlockingConsumer:
    return BlockingConsumer(
        connection.servers,
        auto_offset_reset="none",
        isolation_level=connection.isolation_level,
        max_partition_fetch_bytes=FETCH_BYTES,
        **connection.settings(),
    )


def _open_admin(connection: Connection) -> BlockingAdmin:
    return BlockingAdmin(connection.servers, **connection.settings())


def consumer(connection: Connection) -> AbstractContextManager[BlockingConsumer]:
    """One that nobody else uses while the block lasts; nothing of a former assignment is left in it."""
    return _lent(connection, _consumers, _open_consumer)


def admin(connection: Connection) -> AbstractContextManager[BlockingAdmin]:
    return _lent(connection, _admins, _open_admin)


@contextmanager
def _lent(
    connection: Connection,
    kept: dict[tuple[int, Connection], list[C]],
    make: Callable[[Connection], C],
) -> Iterator[C]:
    """Kept for the next one if the block ends well; a process that was forked has none of its parent's."""
    free = kept.setdefault((os.getpid(), connection), [])
    client = free.pop() if free else settled(lambda: make(connection))
    well = False
    try:
        yield client
        well = True
    finally:
        if well:
            free.append(client)
        else:
            client.close(1.0)


@attrs.frozen
class Found:
    """The partitions that there are of a subscription, and the ids of their topics.

    Readers ask for offsets afterwards. If a topic is made again meanwhile, the ids are of the former one, and the
    first read tells that it is gone.
    """

    partitions: list[Partition]
    ids: Ids


class ClusterReader:
    """A driver's questions to the cluster when it plans a read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def committed(self, group: str) -> Offsets:
        """The offsets that a consumer group has committed; none of a group that does not exist."""
        with admin(self._connection) as one:
            return {(at.topic, at.partition): offset for at, offset in one.group_offsets(group).items()}

    def find(self, wanted: Subscription, *, if_there: bool = False) -> Found:
        """All that is subscribed to, in order; with `if_there` without topics that do not exist (any more).

        Raises:
          UnknownTopicError: A topic that is named does not exist.
          OptionError: A partition that is assigned does not exist.
        """
        if wanted.partitions:
            named = sorted({topic for topic, _ in wanted.partitions})
            counts, ids = self._described(self._there(named.__contains__) if if_there else named)
            for topic, number in wanted.partitions:
                if number >= counts.get(topic, number + 1):
                    raise OptionError(
                        f"assign: topic {topic!r} has {counted(counts[topic], 'partition')}; it has no "
                        f"partition {number}"
                    )
            return Found([at for at in wanted.partitions if at[0] in counts], ids)
        names: Sequence[str] = wanted.topics
        if wanted.pattern is not None:
            names = self._there(wanted.matches)
        elif if_there:
            names = self._there(names.__contains__)
        counts, ids = self._described(names)
        return Found([(name, n) for name, count in counts.items() for n in range(count)], ids)

    def still_there(self, topics: Iterable[str]) -> Found:
        """Those of the topics that exist, whole."""
        wanted = Subscription(topics=tuple(sorted(set(topics))))
        try:
            return self.find(wanted)
        except UnknownTopicError:
            return self.find(wanted, if_there=True)

    def _there(self, wanted: Callable[[str], bool]) -> list[str]:
        with admin(self._connection) as client:
            return [name for name in client.list_topics() if wanted(name)]

    def _described(self, names: Sequence[str]) -> tuple[dict[str, int], Ids]:
        """How many partitions each topic has, and its id: as of now, while consumers remember former topics."""
        if not names:
            return {}, {}
        with admin(self._connection) as client:
            topics = client.describe_topics(names)
        return (
            {topic.name: len(topic.partitions) for topic in topics},
            {topic.name: topic.topic_id for topic in topics},
        )

    def first(self, partitions: Sequence[Partition]) -> Offsets:
        """Where each log begins."""
        with consumer(self._connection) as client:
            return _plain(client.beginning_offsets(partitions))

    def last(self, partitions: Sequence[Partition]) -> Offsets:
        """Where readers get to: the high watermark of each, or the last stable offset of one that reads what is
        committed.
        """
        with consumer(self._connection) as client:
            return _plain(client.end_offsets(partitions))

    def kept_start(self, stream_id: str) -> tuple[Offsets, Ids]:
        """Where a stream of this name began; empty if it has not."""
        with admin(self._connection) as client:
            return _without_ids(client.committed_offsets(_START + stream_id))

    def keep_start(self, stream_id: str, offsets: Offsets, ids: Ids) -> tuple[Offsets, Ids]:
        """Keep where a stream begins, unless that is kept already; what is kept."""
        named = {(f"{topic}/{ids[topic]}", number): offset for (topic, number), offset in offsets.items()}
        with admin(self._connection) as client:
            return _without_ids(client.commit_offsets(_START + stream_id, named, if_absent=True))

    def at_times(self, times: Offsets) -> dict[Partition, int | None]:
        """The first offset at or after a time; None: there is none."""
        with consumer(self._connection) as client:
            return _plain(client.offsets_for_times(times))


def _without_ids(kept: Mapping[Any, int]) -> tuple[Offsets, Ids]:
    """No topic has a slash in its name; behind one stands its id. Former versions kept none."""
    offsets: Offsets = {}
    ids: Ids = {}
    for (name, number), offset in kept.items():
        topic, _, topic_id = name.partition("/")
        offsets[topic, number] = offset
        if topic_id:
            ids[topic] = topic_id
    return offsets, ids


V = TypeVar("V")


def _plain(found: Mapping[Any, V]) -> dict[Partition, V]:
    """With keys that are ordinary tuples, which any Python can unpickle."""
    return {(topic, partition): value for (topic, partition), value in found.items()}
