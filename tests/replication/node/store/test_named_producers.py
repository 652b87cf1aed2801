"""Producers that outlive their processes, and what nodes keep for readers, over real node processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Producer
from insync.replication.client import (
    BatchProducer,
    NamedProducer,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    UnknownTopicError,
)
from insync.storage.batch import build_batch
from tests.processes import STEADY, cluster

_NOW_MS = time.time_ns() // 1_000_000
"""Records of 1970 would be past their retention: deleted as soon as a maintenance interval has passed."""


def batch(who: NamedProducer, sequence: int, values: Sequence[bytes]) -> bytes:
    return build_batch(
        [None] * len(values),
        list(values),
        timestamps_ms=_NOW_MS,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=sequence,
    )


async def read(servers: list[str], topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        await consumer.assign_topic(topic)
        while len(found) < count:
            more = await consumer.poll(60_000)
            assert more, found
            found += [record.value for record in more]
        return found + [record.value for record in await consumer.poll(200)]


@pytest.mark.slow
async def test_a_successor_goes_on_and_fences_its_predecessor(tmp_path: Path) -> None:
    with cluster(tmp_path, 3, "--session-timeout-ms", "5000") as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 3)
            async with BatchProducer(servers) as first, BatchProducer(servers) as second:
                old = await first.identify("job/1")
                new = await second.identify("job/1")
                assert new == (old.producer_id, old.producer_epoch + 1)
                assert (await second.written(new.producer_id, [("t", 0)]))["t", 0] == (-1, -1, -1)
                # Until the successor has written, the predecessor may: the successor sees it.
                await first.send("t", 0, batch(old, 1, [b"0", b"1"]))
                await first.flush()
                await second.send("t", 0, batch(new, 1, [b"0", b"1"]))
                with pytest.raises(OutOfOrderSequenceError):
                    await second.flush()
            async with BatchProducer(servers) as first, BatchProducer(servers) as second:
                there = await second.written(new.producer_id, [("t", 0)])
                assert there["t", 0] == (2, old.producer_epoch, 1)
                await second.send("t", 0, batch(new, 3, [b"2", b"3"]))
                await second.flush()
                await first.send("t", 0, batch(old, 3, [b"zombie"]))
                with pytest.raises(ProducerFencedError):
                    await first.flush()
            await admin.forget_producers("job/")
            async with BatchProducer(servers) as third:
                assert (await third.identify("job/1")).producer_id != old.producer_id
        assert await read(servers, "t", 4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.slow
async def test_batches_survive_their_leader(tmp_path: Path) -> None:
    """Each once and in order, though their leader is killed while they are under way."""
    with cluster(tmp_path, 3, "--session-timeout-ms", "5000") as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 3)
        async with BatchProducer(servers, delivery_timeout_ms=60_000, buffer_memory=200_000) as producer:
            who = await producer.identify()
            for n in range(600):
                if n == 300:
                    (topic,) = await _describe(servers)
                    nodes[topic.partitions[0].leader - 1].kill()
                await producer.send("t", 0, batch(who, 2 * n, [b"%d" % n, b"x" * 1000]))
            await producer.flush()
            written = await producer.written(who.producer_id, [("t", 0)])
            assert written["t", 0].last_sequence == 1199
        alive = [node.endpoint for node in nodes if node.process.poll() is None]
        assert (await read(alive, "t", 1200))[::2] == [b"%d" % n for n in range(600)]


async def _describe(servers: list[str]) -> list:
    async with Admin(servers) as admin:
        return await admin.describe_topics(["t"])


async def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, *STEADY) as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 1, {"min_insync_replicas": 1, "max_message_bytes": 1000})
            async with BatchProducer(servers) as producer:
                who = await producer.identify()
                await producer.send("t", 0, batch(who, 0, [b"x" * 2000]))
                with pytest.raises(RecordTooLargeError, match="max_message_bytes=1000"):
                    await producer.flush()
            async with BatchProducer(servers) as producer:
                with pytest.raises(UnknownTopicError):
                    await producer.partitions("nowhere")
                await producer.send("t", 7, batch(who, 0, [b"x"]))
                with pytest.raises(UnknownTopicError):
                    await producer.flush()


async def test_offsets_are_kept_under_a_name(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, *STEADY) as nodes:
        async with Admin([nodes[0].endpoint]) as admin:
            assert await admin.committed_offsets("g/ä") == {}
            kept = {("t", 0): 5, ("u", 3): 7}
            assert await admin.commit_offsets("g/ä", kept, if_absent=True) == kept
            assert await admin.commit_offsets("g/ä", {("t", 0): 9}, if_absent=True) == kept
            assert await admin.committed_offsets("g/ä") == kept
            merged = {("t", 0): 9, ("t", 1): 2, ("u", 3): 7}
            assert await admin.commit_offsets("g/ä", {("t", 0): 9, ("t", 1): 2}) == merged
            assert await admin.committed_offsets("g/ä") == merged
            assert await admin.commit_offsets("g/ä", {}) == merged
            await admin.forget_offsets("g/ä")
            assert await admin.committed_offsets("g/ä") == {}
            assert await admin.commit_offsets("g/ä", {("t", 0): 1}) == {("t", 0): 1}


async def test_who_was_replaced_gets_no_epoch_and_the_name_goes_on(tmp_path: Path) -> None:
    """A producer that was taken for dead and needs a new epoch is told that it is fenced, not given one."""
    with cluster(tmp_path, 1, *STEADY) as nodes:
        servers = [nodes[0].endpoint]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 1, {"min_insync_replicas": 1})
        async with (
            Producer(servers, linger_ms=0, producer_name="job/2") as former,
            Producer(servers, linger_ms=0, producer_name="job/2") as successor,
            BatchProducer(servers) as names,
        ):
            await (await former.send("t", b"0")).wait()
            await (await successor.send("t", b"1")).wait()
            identities = former._sender._identities
            assert identities.current is not None
            identities.want()
            with trio.fail_after(60):
                while identities.fenced is None:
                    await trio.lowlevel.checkpoint()
            with pytest.raises(ProducerFencedError, match="another producer has been opened"):
                await (await former.send("t", b"zombie")).wait()
            await (await successor.send("t", b"2")).wait()
            assert (await names.identify("job/2")).producer_epoch == 2
        assert await read(servers, "t", 3) == [b"0", b"1", b"2"]
