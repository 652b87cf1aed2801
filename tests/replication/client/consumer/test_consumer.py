from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import (
    ClientError,
    Consumer,
    ConsumerRecord,
    CorruptMessageError,
    NotAssignedError,
    OffsetOutOfRangeError,
    Producer,
    UndecodableError,
    UnknownTopicError,
)
from insync.replication.client.consumer import _fetcher
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.storage.batch import build_batch, crc32c

from ..fake_cluster import FakeCluster, FakeNode, Partition, fake_cluster
from ..faults import disconnect, fail_with


def fill(log: Partition, count: int, *, each: int = 10) -> list[bytes]:
    """Append `count` numbered records, `each` to a batch."""
    values = [b"%d" % n for n in range(log.end, log.end + count)]
    for at in range(0, count, each):
        part = values[at : at + each]
        log.append(build_batch([None] * len(part), part, timestamps_ms=1))
    return values


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    with trio.fail_after(5):
        while len(found) < count:
            found += await consumer.poll(1000)
    return found


async def test_records_of_one_batch_keep_their_keys_however_they_came_into_it():
    """By themselves, in a run of one key, in a run without."""
    runs = [(None, 1), (b"k", 100), (None, 100), (b"l", 100), (None, 1)]
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls, linger_ms=60_000) as producer:
            for key, count in runs:
                await producer.send_many("t", [b"v"] * count, [key] * count if key else None, partition=0)
        assert len(cluster.topics["t"][0].batches) == 1
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            found = [each.key for each in await read(consumer, 302)]
    assert found == [key for key, count in runs for _ in range(count)]


async def test_reads_all_from_the_beginning_with_every_field():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls) as producer:
        sent = await producer.send("t", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=9)
        await sent.wait()
        await (await producer.send("t", None, key=b"k", timestamp_ms=10)).wait()
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert await read(consumer, 2) == [
                ("t", 0, 0, 9, b"k", b"v", (("h", b"1"), ("n", None)), 0),
                ("t", 0, 1, 10, b"k", None, (), 0),
            ]
            assert consumer.position(("t", 0)) == 2


async def test_many_partitions_on_many_nodes():
    async with fake_cluster(t=7) as cluster:
        expected = {n: fill(log, 95) for n, log in enumerate(cluster.topics["t"])}
        async with Consumer(cluster.urls, auto_offset_reset="earliest", max_poll_records=50) as consumer:
            await consumer.assign_topic("t")
            found = await read(consumer, 7 * 95)
        for n, values in expected.items():
            mine = [r for r in found if r.partition == n]
            assert [r.offset for r in mine] == list(range(95))
            assert [r.value for r in mine] == values


async def test_poll_gives_at_most_what_was_asked_for():
    async with fake_cluster(t=1) as cluster:
        fill(cluster.topics["t"][0], 100)
        async with Consumer(cluster.urls, auto_offset_reset="earliest", max_poll_records=7) as consumer:
            consumer.assign([("t", 0)])
            sizes = []
            while sum(sizes) < 100:
                sizes.append(len(await consumer.poll(1000)))
        assert max(sizes) == 7


async def test_latest_sees_only_what_comes_later(autojump_clock):
    async with fake_cluster(t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 10)
        async with Consumer(cluster.urls) as consumer:
            consumer.assign([("t", 0)])
            assert await consumer.poll(100) == []
            assert consumer.position(("t", 0)) == 10
            fill(log, 3)
            cluster.appended()
            assert [r.offset for r in await read(consumer, 3)] == [10, 11, 12]


async def test_seek_into_the_middle_of_a_batch(autojump_clock):
    async with fake_cluster(t=1) as cluster:
        fill(cluster.topics["t"][0], 40)
        async with Consumer(cluster.urls) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 17)
            assert [r.offset for r in await read(consumer, 23)] == list(range(17, 40))
            consumer.seek(("t", 0), 5)
            assert (await read(consumer, 1))[0].offset == 5
            consumer.seek_to_beginning()
            assert (await read(consumer, 1))[0].offset == 0
            consumer.seek_to_end([("t", 0)])
            assert await consumer.poll(100) == []
            assert consumer.position(("t", 0)) == 40


async def test_seek_does_not_wait_for_the_long_poll(autojump_clock):
    async with fake_cluster(t=1) as cluster:
        fill(cluster.topics["t"][0], 10)
        async with Consumer(cluster.urls, fetch_max_wait_ms=60_000) as consumer:
            consumer.assign([("t", 0)])
            assert await consumer.poll(100) == []
            consumer.seek(("t", 0), 3)
            with trio.fail_after(2):
                assert (await consumer.poll(60_000))[0].offset == 3


async def test_iteration_and_position():
    async with fake_cluster(t=1) as cluster:
        fill(cluster.topics["t"][0], 30)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            seen = []
            with trio.fail_after(5):
                async for record in consumer:
                    seen.append(record.offset)
                    assert consumer.position(("t", 0)) in (record.offset + 1, 30)
                    if len(seen) == 15:
                        break
            assert seen == list(range(15))
            assert consumer.position(("t", 0)) == 15
            assert [r.offset for r in await read(consumer, 15)] == list(range(15, 30))


async def test_raw_batches_come_whole():
    async with fake_cluster(t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 30)
        async with Consumer(cluster.urls) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 13)
            with trio.fail_after(5):
                (fetched,) = await consumer.poll_batches(1000)
            assert fetched.data == b"".join(log.batches[1:])
            assert (fetched.start_offset, fetched.next_offset, fetched.high_watermark) == (13, 30, 30)
            assert [info.base_offset for info in fetched.batches] == [10, 20]
            assert consumer.position(("t", 0)) == 30


async def test_offsets_that_are_gone_are_named(autojump_clock):
    async with fake_cluster(t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 40)
        log.drop_before(20)
        async with Consumer(cluster.urls, auto_offset_reset="none") as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(OffsetOutOfRangeError, match="seek before the first poll"):
                await consumer.poll(100)
            consumer.seek(("t", 0), 5)
            with pytest.raises(OffsetOutOfRangeError, match="offsets 5 to 19 are gone") as caught:
                await consumer.poll(5000)
            assert (caught.value.offset, caught.value.log_start_offset) == (5, 20)
            consumer.seek(("t", 0), 20)
            assert (await read(consumer, 20))[0].offset == 20


async def test_offsets_that_are_gone_are_skipped_if_so_set():
    async with fake_cluster(t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 40)
        log.drop_before(20)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 5)
            assert (await read(consumer, 20))[0].offset == 20


async def test_begin_and_end_offsets():
    async with fake_cluster(t=4) as cluster:
        for n, log in enumerate(cluster.topics["t"]):
            fill(log, 10 * (n + 1))
            log.drop_before(n)
        cluster.move("t", 1, 0)
        async with Consumer(cluster.urls) as consumer:
            cluster.move("t", 2, 0)
            everything = [("t", n) for n in range(4)]
            assert await consumer.end_offsets(everything) == {("t", n): 10 * (n + 1) for n in range(4)}
            assert await consumer.beginning_offsets(everything) == {("t", n): n for n in range(4)}
            with pytest.raises(UnknownTopicError, match="t-9"):
                await consumer.end_offsets([("t", 9)])


async def test_current_end_offsets_are_asked_of_the_leader():
    def current(node: FakeNode, request: Any) -> bool:
        asked = wire.decode_request(request.kind, request.body).partitions
        results = [
            m.ReadIndexResult(topic=at.topic, partition=at.partition, error=0, offset=7) for at in asked
        ]
        request.reply(wire.encode(m.ReadIndexResponse(partitions=results)))
        return True

    async with fake_cluster(t=2) as cluster, Consumer(cluster.urls) as consumer:
        cluster.nodes[1].script(Kind.READ_INDEX, current)
        assert await consumer.end_offsets([("t", 1)], isolation="current") == {("t", 1): 7}


async def test_unknown_topic_is_told_by_poll(autojump_clock):
    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls) as consumer:
        consumer.assign([("nope", 0)])
        with trio.fail_after(3), pytest.raises(UnknownTopicError, match="'nope'"):
            await consumer.poll(10_000)
        consumer.assign([("t", 3)])
        with trio.fail_after(3), pytest.raises(UnknownTopicError, match="t-3"):
            await consumer.poll(10_000)


async def test_what_is_not_assigned_cannot_be_sought():
    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls) as consumer:
        with pytest.raises(ClientError, match="t-0 is not assigned"):
            consumer.seek(("t", 0), 1)


async def grow(cluster: FakeCluster, until: int) -> None:
    log = cluster.topics["t"][0]
    while log.end < until:
        fill(log, 5, each=3)
        cluster.appended()
        await trio.sleep(0.001)


async def test_follows_the_leader_and_survives_faults():
    async with fake_cluster(t=1) as cluster:
        for node in cluster.nodes:
            node.script(
                Kind.FETCH,
                disconnect,
                fail_with(ErrorCode.FENCED_LEADER_EPOCH),
                fail_with(ErrorCode.NOT_LEADER_OR_FOLLOWER),
                fail_with(ErrorCode.KAFKA_STORAGE_ERROR),
            )
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(grow, cluster, 300)
                found = []
                for step in itertools.count():
                    found += await consumer.poll(200)
                    if len(found) >= 300:
                        break
                    if step % 3 == 0:
                        cluster.move("t", 0, step % 2)
                    assert step < 500
            assert [r.offset for r in found] == list(range(300))


async def test_a_dead_leaders_successor_is_found_quickly(autojump_clock):
    async with fake_cluster(t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 10)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            await read(consumer, 10)
            await cluster.nodes[0].stop()
            cluster.move("t", 0, 1)
            fill(log, 1)
            started = trio.current_time()
            assert (await read(consumer, 1))[0].offset == 10
            assert trio.current_time() - started < 0.5


async def test_a_leader_that_hangs_is_left_as_soon_as_others_know_the_next(autojump_clock):
    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
        log = cluster.topics["t"][0]
        fill(log, 10)
        consumer.assign([("t", 0)])
        await read(consumer, 10)
        cluster.chaos = lambda node, request: node.node_id == 0
        await trio.sleep(1.8)
        fill(log, 10)
        cluster.move("t", 0, 1)
        with trio.fail_after(2):
            assert len(await consumer.poll(2000)) == 10


async def test_a_leader_that_was_left_while_it_hung_is_asked_anew_when_it_leads_again(autojump_clock):
    """The long poll from before is given up with it: nothing waits for its answer, which never comes."""
    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
        log = cluster.topics["t"][0]
        fill(log, 10)
        consumer.assign([("t", 0)])
        await read(consumer, 10)
        cluster.chaos = lambda node, request: node.node_id == 0
        await trio.sleep(1.8)
        fill(log, 10)
        cluster.move("t", 0, 1)
        assert len(await consumer.poll(2000)) == 10
        cluster.chaos = None
        cluster.move("t", 0, 0)
        fill(log, 10)
        assert len(await consumer.poll(2000)) == 10


@pytest.mark.parametrize(
    ("index", "bit"), [(0, 22), (1, 0), (1, 1), (1, 4), (1, 33), (1, 62), (2, 2), (2, 3)]
)
async def test_a_base_offset_that_has_rotted_is_told_and_nothing_is_read_at_a_wrong_place(
    index: int, bit: int
):
    """The CRC of a batch does not cover it."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 30)
        whole = list(log.batches)
        wrong = int.from_bytes(whole[index][:8], "big") ^ 1 << bit
        log.batches[index] = wrong.to_bytes(8, "big") + whole[index][8:]
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            with trio.fail_after(5), pytest.raises(CorruptMessageError, match="its base offset"):
                while found := await consumer.poll(10_000):
                    assert all(record.value == b"%d" % record.offset for record in found)
            log.batches[:] = whole
            consumer.seek(("t", 0), 0)
            assert [record.offset for record in await read(consumer, 30)] == list(range(30))


@pytest.fixture
def impatient(monkeypatch):
    """A leader gets no time to find damage in its log."""
    monkeypatch.setattr(_fetcher, "_CORRUPT_PATIENCE", 0.0)


async def test_a_corrupt_batch_is_asked_for_again_and_then_told(impatient):
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 10)
        whole = log.batches[0]
        log.batches[0] = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            with trio.fail_after(5), pytest.raises(CorruptMessageError, match="t-0 at offset 0: node 0"):
                await consumer.poll(10_000)
            assert cluster.nodes[0].seen[Kind.FETCH] == 3
            log.batches[0] = whole
            consumer.seek(("t", 0), 0)
            assert len(await read(consumer, 10)) == 10


async def test_a_leader_has_time_to_find_the_damage_from_the_first_answer_on(autojump_clock):
    autojump_clock.jump(1_000_000)
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 10)
        log.batches[0] = log.batches[0][:-3] + bytes([log.batches[0][-3] ^ 1]) + log.batches[0][-2:]
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            began = trio.current_time()
            with pytest.raises(CorruptMessageError):
                await consumer.poll(100_000)
            assert trio.current_time() - began >= _fetcher._CORRUPT_PATIENCE


async def test_reading_ahead_is_bounded():
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 4000, each=100)
        size = sum(map(len, log.batches))
        async with Consumer(
            cluster.urls, auto_offset_reset="earliest", max_partition_fetch_bytes=size // 20
        ) as consumer:
            consumer.assign([("t", 0)])
            await consumer.poll(1000)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert cluster.nodes[0].seen[Kind.FETCH] <= 4
            assert len(await read(consumer, 3500)) >= 3500


async def test_paused_partitions_wait_where_they_are(autojump_clock):
    async with fake_cluster(nodes=1, t=2) as cluster:
        for log in cluster.topics["t"]:
            fill(log, 30)
        async with Consumer(cluster.urls, auto_offset_reset="earliest", max_poll_records=5) as consumer:
            await consumer.assign_topic("t")
            consumer.pause([("t", 1)])
            assert consumer.paused() == [("t", 1)]
            found = await read(consumer, 30)
            assert {each.partition for each in found} == {0}
            assert await consumer.poll_batches(50) == []
            consumer.pause()
            fill(cluster.topics["t"][0], 5)
            cluster.appended()
            assert await consumer.poll(50) == []
            consumer.assign([("t", 1), ("t", 0)])
            assert consumer.paused() == [("t", 1), ("t", 0)]
            consumer.resume([("t", 1)])
            assert [each.offset for each in await read(consumer, 30)] == list(range(30))
            consumer.resume()
            assert consumer.paused() == []
            assert [each.offset for each in await read(consumer, 5)] == list(range(30, 35))
            with pytest.raises(ClientError, match="t-7 is not assigned"):
                consumer.pause([("t", 7)])


async def test_nothing_is_fetched_of_paused_partitions(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        fill(cluster.topics["t"][0], 30)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            consumer.pause()
            assert await consumer.poll(50) == []
            assert cluster.nodes[0].seen[Kind.FETCH] == 0
            consumer.resume()
            assert len(await read(consumer, 30)) == 30


async def test_resuming_does_not_wait_for_the_long_poll(autojump_clock):
    async with fake_cluster(nodes=1, t=2) as cluster:
        fill(cluster.topics["t"][1], 10)
        async with Consumer(cluster.urls, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as consumer:
            await consumer.assign_topic("t")
            consumer.pause([("t", 1)])
            assert await consumer.poll(100) == []
            consumer.resume([("t", 1)])
            with trio.fail_after(2):
                assert len(await consumer.poll(60_000)) == 10


async def test_what_cannot_be_decoded_stops_the_reader_there_and_hides_nothing_before_it():
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 20)
        strange = bytearray(log.batches[1])
        strange[22] |= 6
        strange[17:21] = crc32c(memoryview(strange)[21:]).to_bytes(4)
        log.batches[1] = bytes(strange)
        fill(log, 10)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert [each.offset for each in await read(consumer, 10)] == list(range(10))
            for _ in range(3):
                with pytest.raises(UndecodableError, match="t-0 between offsets"):
                    await consumer.poll(5000)
            assert consumer.position(("t", 0)) == 10
            consumer.seek(("t", 0), 20)
            assert [each.offset for each in await read(consumer, 10)] == list(range(20, 30))


async def test_a_consumer_to_which_nothing_is_assigned_says_so():
    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls) as consumer:
        for _ in range(2):
            with (
                trio.fail_after(2),
                pytest.raises(NotAssignedError, match="call subscribe, assign or assign_topic first"),
            ):
                await consumer.poll(60_000)
            with trio.fail_after(2), pytest.raises(NotAssignedError):
                await consumer.poll_batches(60_000)
            with trio.fail_after(2), pytest.raises(NotAssignedError):
                async for _ in consumer:
                    pass
            consumer.assign([("t", 0)])
            assert await consumer.poll(1) == []
            consumer.assign([])
