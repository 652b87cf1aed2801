"""The short way of a record into an open batch, in C, comes to the same as the long way, in Python."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from insync.replication.client import InvalidArgumentError, Producer
from insync.replication.client._settings import ProducerSettings
from insync.replication.client.connection._cluster import Leader, Topic
from insync.replication.client.errors import ClientError
from insync.replication.client.producer import _joining
from insync.replication.client.producer._accumulator import Accumulator
from insync.replication.client.producer._batch import Batch
from insync.replication.client.producer._partitioning import PartitionQueue
from insync.replication.client.producer.delivery import Delivery
from insync.storage.batch import records

from ..fake_cluster import fake_cluster


class Side:
    """An accumulator of one topic, and what a sender does to it."""

    def __init__(self, short: bool, settings: ProducerSettings, most: int, seed: int) -> None:
        self.taken: list[Batch] = []
        self.joined = 0
        self.short = short
        self.made = Accumulator(settings, lambda at: None)
        self.topic = Topic("t", "id", [Leader(n, 1) for n in range(3)], config={"max_message_bytes": most})
        self.made.add_topic(self.topic)
        self.of_topic = self.made._topics["t"]
        self.of_topic._random = random.Random(seed)

    def append(self, arguments: tuple[Any, ...]) -> object:
        delivery: Delivery | None = None
        try:
            if self.short and not any(each is not None for each in arguments[4:]) and arguments[3] == ():
                delivery = self.made.join(*arguments[:3])
                self.joined += delivery is not None
            if delivery is None:
                delivery = self.made.decide(*arguments)
        except (ClientError, InvalidArgumentError) as error:
            return type(error), str(error)
        return delivery and (delivery.partition, delivery._index)

    def take(self, number: int) -> None:
        """The sender takes the first batch of a partition."""
        queues = self.of_topic.queues
        if number < len(queues) and (queue := queues[number]).waiting:
            batch = queue.waiting.popleft()
            if batch is queue.tail.open:
                queue.tail.open = None
            self.taken.append(batch)

    def settle(self) -> None:
        if self.taken:
            batch = self.taken.pop(0)
            batch.settle(0, None)
            self.made.release(batch)

    def sealed(self) -> list[object]:
        """The records of all batches, but for their timestamps."""
        found = []
        for batch in [*self.taken, *self.made.pending]:
            if batch.data is None and not batch.done:
                batch.seal(None, -1, "none")
                assert batch.data is not None
                found += [each._replace(timestamp_ms=0) for each in records(batch.data)]
        return list(found)

    def state(self) -> list[object]:
        # A new partition may be noticed with the next batch.
        queues = [queue for queue in self.of_topic.queues if queue.waiting]
        return [self.made.used, *map(_queue, queues), *map(_content, self.taken)]


def _queue(queue: PartitionQueue) -> tuple[object, ...]:
    return (
        queue.partition,
        queue.tail.enough if queue.tail.open else None,
        queue.tail.open and queue.tail.open.number,
        [_content(batch) for batch in queue.waiting],
    )


def _content(batch: Batch) -> tuple[object, ...]:
    # Their timestamps are of two moments.
    return batch.partition, batch.number, batch.count


PARTITIONERS: list[Any] = ["default", "sticky", "round_robin", lambda topic, key, count: 1]


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=["default", "sticky", "round_robin", "function"])
async def test_both_ways_come_to_the_same(partitioner):
    """Of thousands of records, keyed or not, with full memory, batches that are taken, and new partitions."""
    joined = 0
    for seed in range(60):
        dice = random.Random(seed)
        scale = 1 if seed % 2 else 10
        settings = ProducerSettings(
            batch_size=300 * scale,
            max_request_size=600 * scale,
            buffer_memory=dice.choice((900, 4000)) * scale,
            partitioner=partitioner,
        )
        sides = [Side(short, settings, 500 * scale, seed) for short in (True, False)]
        for step in range(150):
            act = dice.random()
            if act < 0.75:
                arguments = _record(dice, step)
                said = [side.append(arguments) for side in sides]
                assert said[0] == said[1], (seed, step)
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
                    side.made.look()
            elif act < 0.98:
                held_up = dice.random() < 0.5
                for side in sides:
                    for queue in side.of_topic.queues[:3]:
                        queue.is_held_up = held_up
            else:
                waiting = int(dice.random() < 0.2)
                for side in sides:
                    side.made.waiting = waiting
            short, long = (side.state() for side in sides)
            assert short == long, (seed, step)
        contents = [side.sealed() for side in sides]
        assert contents[0] == contents[1], seed
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


async def test_timestamps_are_of_the_caller_or_of_now():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=1000) as producer:
        await producer.prepare("t")
        given, deliveries = [None, None, 5, 5, None, 1 << 60, None, 7], []
        began = time.time_ns() // 1_000_000
        for timestamp_ms in given:
            deliveries.append(await producer.send("t", b"v", timestamp_ms=timestamp_ms))
        deliveries += await producer.send_many("t", [b"v"] * 3)
        deliveries += await producer.send_many("t", [b"v"] * 3, timestamp_ms=9)
        await producer.flush()
        ended = time.time_ns() // 1_000_000
        told = [(await delivery.wait()).timestamp_ms for delivery in deliveries]
        stored = [each.timestamp_ms for each in records(b"".join(cluster.topics["t"][0].batches))]
    assert told == stored
    for timestamp_ms, found in zip([*given, None, None, None, 9, 9, 9], told, strict=True):
        assert began <= found <= ended if timestamp_ms is None else found == timestamp_ms
    assert len({id(delivery._batch) for delivery in deliveries}) == 1


def test_a_joiner_refuses_what_it_cannot_use():
    made = Accumulator(ProducerSettings(), lambda at: None)
    for call in (made.join, made.send):
        with pytest.raises(TypeError, match="a topic, a value and a key"):
            call("t")
    with pytest.raises(TypeError, match="no class of places"):
        _joining.Joiner(dict, 1, 1, 1, 1)
    with pytest.raises(TypeError):
        Delivery(None, 1)
    unready = _joining.Joiner.__new__(_joining.Joiner)
    assert unready.join("t", b"v", None) is None
    made._topics["t"] = "no topic"
    assert made.join("t", b"v", None) is None
