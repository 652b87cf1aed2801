"""Keys and values of the user's own types, and which partition a record goes to."""

from __future__ import annotations

import itertools
import json
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio

from insync.replication.client import (
    BlockingProducer,
    ClientError,
    Consumer,
    DeserializationError,
    InvalidSettingError,
    PartitionerError,
    Producer,
    RecordTooLargeError,
    SerializationError,
)
from insync.replication.client.producer._murmur2 import partition_for_key
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind

from ..fake_cluster import fake_cluster
from ..faults import fail_with
from .test_transactions import Script


def to_json(value: object) -> bytes:
    return json.dumps(value).encode()


async def test_what_is_sent_is_what_is_read():
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls, key_serializer=str.encode, value_serializer=to_json) as producer:
            await producer.send("t", {"n": 1}, key="a")
            producer.send_nowait("t", [2], key="b")
            await producer.send_many("t", [3, None], ["c", None])
        async with Consumer(
            cluster.urls,
            auto_offset_reset="earliest",
            key_deserializer=bytes.decode,
            value_deserializer=json.loads,
        ) as consumer:
            consumer.assign([("t", 0)])
            with trio.fail_after(5):
                found = []
                while len(found) < 4:
                    found += await consumer.poll()
        assert [(each.key, each.value) for each in found] == [
            ("a", {"n": 1}),
            ("b", [2]),
            ("c", 3),
            (None, None),
        ]
        assert cluster.topics["t"][0].values() == [b'{"n": 1}', b"[2]", b"3", None]


async def test_what_cannot_be_serialized_is_not_sent_and_told_with_its_cause():
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls, value_serializer=to_json) as producer:
            with pytest.raises(SerializationError, match=r"'t': value_serializer refuses .*object") as caught:
                await producer.send("t", object())
            assert isinstance(caught.value.__cause__, TypeError) and caught.value.outcome == "absent"
            with pytest.raises(SerializationError):
                await producer.send_many("t", [1, object(), 2])
        async with Producer(cluster.urls, value_serializer=lambda value: value) as producer:
            with pytest.raises(SerializationError, match="made str of 'text'; it must make bytes"):
                producer.send_nowait("t", "text")
        assert cluster.topics["t"][0].values() == []


async def test_a_record_that_cannot_be_deserialized_stops_at_it_and_can_be_passed():
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls) as producer:
            await producer.send_many("t", [b"0", b"1", b"two", b"3"])
        async with Consumer(
            cluster.urls, auto_offset_reset="earliest", value_deserializer=json.loads
        ) as consumer:
            await consumer.assign_topic("t")
            with trio.fail_after(5):
                assert [each.value for each in await consumer.poll()] == [0, 1]
                for _ in range(2):
                    with pytest.raises(
                        DeserializationError, match="t-0 at offset 2: value_deserializer"
                    ) as caught:
                        await consumer.poll()
                error = caught.value
                assert (error.topic, error.partition, error.offset) == ("t", 0, 2)
                assert consumer.position(("t", 0)) == 2
                consumer.seek(("t", 0), 3)
                assert [each.value for each in await consumer.poll()] == [3]


@pytest.mark.parametrize("options", [{"key_serializer": 3}, {"value_serializer": "utf-8"}])
def test_what_is_no_function_is_refused(options):
    with pytest.raises(InvalidSettingError, match=next(iter(options))):
        Producer("mem://x/y", **options)
    with pytest.raises(InvalidSettingError, match="value_deserializer"):
        Consumer("mem://x/y", value_deserializer=b"no")


async def partitions(urls: list[str], keys: list[bytes | None], **options: object) -> list[int]:
    async with Producer(urls, **options) as producer:
        one_by_one = [await producer.send("t", b"x", key=key) for key in keys]
        at_once = await producer.send_many("t", [b"x"] * len(keys), keys)
        await producer.flush()
    return [each.result().partition for each in [*one_by_one, *at_once]]


KEYS: list[bytes | None] = [b"%d" % (n % 5) for n in range(40)]


async def test_default_goes_by_the_key():
    async with fake_cluster(t=7) as cluster:
        found = await partitions(cluster.urls, KEYS)
        assert found == [partition_for_key(key, 7) for key in [*KEYS, *KEYS] if key is not None]


async def test_without_a_key_a_batch_is_filled_before_the_next_partition_gets_one():
    async with fake_cluster(t=4) as cluster:
        found = await partitions(cluster.urls, [None] * 40, batch_size=400, linger_ms=1000)
        changes = sum(one != other for one, other in itertools.pairwise(found))
        assert len(set(found)) > 1 and changes < 20


async def test_sticky_does_the_same_whatever_the_keys():
    async with fake_cluster(t=4) as cluster:
        found = await partitions(cluster.urls, KEYS, batch_size=400, linger_ms=1000, partitioner="sticky")
        changes = sum(one != other for one, other in itertools.pairwise(found))
        assert len(set(found)) > 1 and changes < 20


async def test_round_robin_takes_turns_among_those_that_have_a_leader():
    async with fake_cluster(t=4) as cluster:
        found = await partitions(cluster.urls, KEYS, partitioner="round_robin")
        assert found == [n % 4 for n in range(80)]
        cluster.move("t", 2, -1)
        found = await partitions(cluster.urls, KEYS, partitioner="round_robin")
        assert Counter(found) == {0: 27, 1: 27, 3: 26}


async def test_a_function_chooses_and_what_it_chooses_is_checked():
    def last(topic: str, key: bytes | None, count: int) -> int:
        assert (topic, key) == ("t", b"k")
        return count - 1

    async with fake_cluster(t=3) as cluster:
        assert await partitions(cluster.urls, [b"k"], partitioner=last) == [2, 2]
        async with Producer(cluster.urls, partitioner=lambda *_: 3) as producer:
            with pytest.raises(Exception, match="partition 3 of topic 't', which has 3"):
                await producer.send("t", b"x")


@pytest.mark.parametrize("wrong", [lambda key: 0, lambda *_: 1 // 0, lambda *_: None, lambda *_: "1"])
async def test_a_function_that_chooses_nothing_is_told_of_as_what_it_is(wrong):
    async with fake_cluster(t=3) as cluster, Producer(cluster.urls, partitioner=wrong) as producer:
        with pytest.raises(PartitionerError, match="topic 't': the partitioner chose no partition") as caught:
            await producer.send("t", b"x")
        assert caught.value.outcome == "absent" and caught.value.__cause__ is not None
        written = await (await producer.send("t", b"x", partition=1)).wait()
        assert (written.partition, written.offset) == (1, 0)


async def test_a_record_that_never_fits_into_the_buffer_is_refused_at_once():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, buffer_memory=100) as producer:
        with pytest.raises(RecordTooLargeError, match="never fits into buffer_memory=100"):
            await producer.send("t", bytes(100))
        with pytest.raises(RecordTooLargeError, match="never fits into buffer_memory=100"):
            await producer.send_many("t", [bytes(100)])
        await (await producer.send("t", bytes(10))).wait()


def test_an_unknown_partitioner_is_refused_with_those_that_there_are():
    with pytest.raises(InvalidSettingError, match=r"'roundrobin'.*default, sticky, round_robin"):
        BlockingProducer("127.0.0.1:1", partitioner="roundrobin")


async def depths(ask: Callable[[], Awaitable[object]]) -> list[int]:
    """How long the traceback is each time that the same error comes."""
    found, errors = [], []
    for _ in range(4):
        with pytest.raises(ClientError) as told:
            await ask()
        errors.append(told.value)
        found.append(sum(1 for _ in traceback.walk_tb(told.value.__traceback__)))
    assert all(each is errors[0] for each in errors)
    return found[1:]


async def test_an_error_that_comes_again_is_as_long_as_before():
    """A program that polls on would log thousands of lines each time, and hold whatever it had at hand."""
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls) as producer:
            await producer.send_and_wait("t", b"no number")
            cluster.nodes[0].script(Kind.PRODUCE, fail_with(ErrorCode.RECORD_TOO_LARGE))
            delivery = await producer.send("t", b"x")
            assert len(set(await depths(delivery.wait))) == 1
        async with Consumer(cluster.urls, auto_offset_reset="earliest", value_deserializer=int) as consumer:
            consumer.assign([("t", 0)])
            assert len(set(await depths(lambda: consumer.poll(5_000)))) == 1
        Script(cluster)
        async with Producer(cluster.urls, transactional_id="etl") as producer:
            assert len(set(await depths(lambda: producer.send("t", b"x")))) == 1
