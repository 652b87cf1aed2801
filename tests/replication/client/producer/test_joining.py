"""The short ways of a record into an open batch, in Python and in C, come to the same as the long way.

The long way decides everything itself.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from typing import Any

import pytest
import trio

from insync.replication.client import InvalidArgumentError, Producer
from insync.replication.client._settings import ProducerSettings
from insync.replication.client.connection._cluster import Leader, Topic
from insync.replication.client.errors import ClientError
from insync.replication.client.producer import _accumulator, _batch, _joining
from insync.replication.client.producer._accumulator import Accumulator
from insync.replication.client.producer._batch import Batch
from insync.replication.client.producer._buffers import Buffers
from insync.replication.client.producer._partitioning import PartitionQueue
from insync.replication.client.producer.delivery import Delivery
from insync.storage.batch import records

from ..fake_cluster import fake_cluster


class Clock:
    """Of both ways; stands still unless it is told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.microseconds = 1_700_000_000_000_000
        monkeypatch.setattr(_accumulator, "make_joiner", lambda made: _joining.Joiner(made, self.seconds))
        monkeypatch.setattr(_accumulator, "time", self.seconds)
        monkeypatch.setattr(_batch, "time_ns", lambda: self.microseconds * 1000)

    def seconds(self) -> float:
        return self.microseconds / 1e6


WAYS: dict[str, Any] = {"C": None, "Python": _accumulator.join, "long": lambda *arguments: None}


class Side:
    """An accumulator of one topic, and what a sender does to it."""

    def __init__(self, way: str, settings: ProducerSettings, most: int, seed: int) -> None:
        self.taken: list[Batch] = []
        self.joined = 0
        self.made = Accumulator(settings, lambda at: None)
        self._join = self.made.join if way == "C" else partial(WAYS[way], self.made)
        self.made.join = self._counted
        self.topic = Topic("t", "id", [Leader(n, 1) for n in range(3)], config={"max_message_bytes": most})
        self.made.add_topic(self.topic)
        self.of_topic = self.made._topics["t"]
        self.of_topic._random = random.Random(seed)

    def _counted(self, topic: str, value: bytes | None, key: bytes | None) -> Delivery | None:
        delivery = self._join(topic, value, key)
        self.joined += delivery is not None
        return delivery

    def append(self, arguments: tuple[Any, ...]) -> object:
        try:
            delivery = self.made.try_append(*arguments)
        except (ClientError, InvalidArgumentError) as error:
            return type(error), str(error)
        return delivery and (delivery.partition, delivery._index)

    def take(self, number: int) -> None:
        """The sender takes the first batch of a partition."""
        queues = self.of_topic.queues
        if number < len(queues) and (queue := queues[number]).waiting:
            batch = queue.waiting.popleft()
            if batch is queue.open:
                queue.open = None
            self.taken.append(batch)

    def settle(self) -> None:
        if self.taken:
            batch = self.taken.pop(0)
            batch.settle(0, None)
            self.made.release(batch)

    def state(self) -> list[object]:
        # A new partition may be noticed with the next batch.
        queues = [queue for queue in self.of_topic.queues if queue.waiting]
        return [self.made.used, *map(_queue, queues), *map(_content, self.taken)]


def _queue(queue: PartitionQueue) -> tuple[object, ...]:
    return (
        queue.partition,
        queue.enough if queue.open else None,
        queue.open and queue.open.number,
        [_content(batch) for batch in queue.waiting],
    )


def _content(batch: Batch) -> tuple[object, ...]:
    times = [*batch.timestamps, *[batch.timestamp_ms] * (batch.count - len(batch.timestamps))]
    keys = batch.keys or [None] * batch.count
    # None says the same as no headers.
    headers = [each or () for each in batch.headers or [()] * batch.count]
    columns = list(zip(map(type, keys), keys, batch.values, headers, times, strict=True))
    return batch.partition, batch.number, batch.size, batch.count, columns


PARTITIONERS: list[Any] = ["default", "sticky", "round_robin", lambda topic, key, count: 1]


@pytest.mark.slow
@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=["default", "sticky", "round_robin", "function"])
async def test_all_ways_come_to_the_same(partitioner, monkeypatch):
    """Of thousands of records, keyed or not, with full memory, batches that are taken, and new partitions.

    C and Python also take the short way for the same records.
    """
    clock, joined = Clock(monkeypatch), 0
    for seed in range(60):
        dice = random.Random(seed)
        scale = 1 if seed % 2 else 10
        settings = ProducerSettings(
            batch_size=300 * scale,
            max_request_size=600 * scale,
            buffer_memory=dice.choice((900, 4000)) * scale,
            partitioner=partitioner,
        )
        sides = [Side(way, settings, 500 * scale, seed) for way in WAYS]
        for step in range(150):
            clock.microseconds += dice.choice((0, 0, 0, 130, 1000, 7000, -2500))
            act = dice.random()
            if act < 0.75:
                arguments = _record(dice, step)
                said = [side.append(arguments) for side in sides]
                assert said[0] == said[1] == said[2], (seed, step)
            elif act < 0.8:
                number = dice.randrange(8)
                for side in sides:
                    side.take(number)
            elif act < 0.95:
                for side in sides:
                    side.settle()
            elif act < 0.96:
                for side in sides:
                    side.topic.leaders.append(Leader(len(side.topic.leaders), 1))
            elif act < 0.98:
                held_up = dice.random() < 0.5
                for side in sides:
                    for queue in side.of_topic.queues[:3]:
                        queue.is_held_up = held_up
            else:
                waiting = int(dice.random() < 0.2)
                for side in sides:
                    side.made.waiting = waiting
            native, python, long = (side.state() for side in sides)
            assert native == python, (seed, step)
            assert native == long, (seed, step)
            assert sides[0].joined == sides[1].joined, (seed, step)
        joined += sides[0].joined
    assert joined > (300 if partitioner in ("default", "sticky") else -1)


def _record(dice: random.Random, step: int) -> tuple[Any, ...]:
    value: Any = dice.choice((b"%d" % step, b"x" * dice.randrange(120), bytearray(b"y"), None, "text", b""))
    key: Any = dice.choice(
        (None, None, b"a", b"b", b"%d" % dice.randrange(50), bytearray(b"a"), memoryview(b"a"), 7)
    )
    plain = dice.random() < 0.8
    headers = () if plain else dice.choice(((), [("name", b"value")], None, 7))
    partition = None if plain else dice.choice((None, 0, 1, 9, "x"))
    timestamp_ms = None if plain else dice.choice((None, 0, 1_700_000_000_000, -1))
    return (
        dice.choice(("t", "t", "t", "t", "t", "t", "t", "other", [])),
        value,
        key,
        headers,
        partition,
        timestamp_ms,
    )


async def test_an_error_of_the_clock_leaves_everything_as_it_was():
    settings = ProducerSettings()
    made = Accumulator(settings, lambda at: None)
    made.add_topic(Topic("t", "id", [Leader(0, 1)]))
    made.try_append("t", b"opens a batch", None, (), None, None)
    (batch,) = made.pending
    joiner = _joining.Joiner(made, lambda: 1 // 0)
    state = sys.getrefcount(batch), made.used, batch.size, batch.count
    for clock, error in ((joiner, ZeroDivisionError), (_joining.Joiner(made, lambda: "noon"), TypeError)):
        for _ in range(3):
            with pytest.raises(error):
                clock("t", b"v", None)
    assert state == (sys.getrefcount(batch), made.used, batch.size, batch.count)


async def test_most_records_take_the_short_way(monkeypatch):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.prepare("t")
        decided = []
        decide = Accumulator.decide
        monkeypatch.setattr(Accumulator, "decide", lambda *a: decided.append(a) or decide(*a))
        for number in range(100):
            await producer.send("t", b"%d" % number)
            producer.send_nowait("t", b"%d" % number)
            producer.intake.try_take("t", b"%d" % number, None, (), None, None)
        await producer.send_many("t", [b"v"] * 100, [b"%d" % (n % 3) for n in range(100)])
        await producer.flush()
    assert len(decided) < 20
    assert cluster.topics["t"][0].end == 400


async def test_timestamps_follow_the_clock_and_the_caller(monkeypatch):
    clock = Clock(monkeypatch)
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=1000) as producer:
        await producer.prepare("t")
        began = clock.microseconds // 1000
        deliveries, expected = [], []
        for microseconds, given in (
            (0, None),
            (900, None),
            (100, None),
            (0, 5),
            (0, 5),
            (0, None),
            (5000, None),
            (-7001, None),
            (0, began + 9),
            (9000, None),
            (0, None),
        ):
            clock.microseconds += microseconds
            deliveries.append(await producer.send("t", b"v", timestamp_ms=given))
            expected.append(clock.microseconds // 1000 if given is None else given)
        clock.microseconds += 3000
        many = await producer.send_many("t", [b"v"] * 3)
        expected += [clock.microseconds // 1000] * 3
        await producer.flush()
        told = [(await delivery.wait()).timestamp_ms for delivery in [*deliveries, *many]]
    assert told == expected
    assert len({id(delivery._batch) for delivery in [*deliveries, *many]}) == 1


async def test_a_batch_counts_its_records_whether_or_not_it_has_bytes():
    batch = Batch("t", 0, 0.0, 1.0)
    batch.date(7)
    for number in range(3):
        assert batch.add(None, b"v", (), 10) == number == batch.count - 1
    batch.seal(None, -1, "none", Buffers())
    assert batch.count == 3
    assert batch.data is not None
    assert [record.timestamp_ms for record in records(bytes(batch.data))] == [7, 7, 7]
    batch.settle(40, None)
    assert [batch.metadata(at)[2:] for at in range(3)] == [(40, 7), (41, 7), (42, 7)]
    await trio.lowlevel.checkpoint()
