from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insync.replication.client import (
    BufferFullError,
    ClosedError,
    DeliveryTimeoutError,
    InvalidSettingError,
    MetadataTimeoutError,
    NotEnoughReplicasError,
    OutcomePendingError,
    OutOfOrderSequenceError,
    Producer,
    ProducerFencedError,
    RecordTooLargeError,
    UnknownTopicError,
)
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.storage.batch import BATCH_OVERHEAD_BYTES, record_overhead_bytes

from ..fake_cluster import FakeNode, fake_cluster
from ..faults import (
    answer_after,
    disconnect,
    disconnect_after_append,
    drop,
    drop_after_append,
    fail_with,
    healthy,
    not_leader,
    random_faults,
)
from ..patience import PATIENCE, asked


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(start, start + count)]


async def test_records_arrive_in_order_and_deliveries_tell_where():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls) as producer:
        deliveries = [await producer.send("t", value, timestamp_ms=7) for value in numbered(500)]
        found = [await delivery.wait() for delivery in deliveries]
        assert [f.offset for f in found] == list(range(500))
        assert found[3] == ("t", 0, 3, 7)
        assert cluster.topics["t"][0].values() == numbered(500)


async def test_an_outcome_that_is_not_known_yet_is_refused_by_name():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=60_000) as producer:
        delivery = await producer.send("t", b"x")
        with pytest.raises(OutcomePendingError, match="the outcome of t-0 is not known yet") as asked_early:
            delivery.result()
        assert asked_early.value.outcome == "unknown", "it is on its way"
        await producer.flush()
        assert delivery.result().offset == 0


async def test_leaving_the_block_sends_what_waits():
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls, linger_ms=60_000) as producer:
            delivery = await producer.send("t", b"x")
        assert delivery.done and delivery.result().offset == 0


async def test_send_many_keeps_order_and_indexes():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls) as producer:
        deliveries = await producer.send_many("t", numbered(1000))
        found = await deliveries.wait()
        assert len(deliveries) == 1000
        assert [f.offset for f in found] == list(range(1000))
        assert deliveries[-1].result().offset == 999
        assert cluster.topics["t"][0].values() == numbered(1000)


async def test_keys_go_where_kafka_puts_them():
    async with fake_cluster(t=10) as cluster, Producer(cluster.urls) as producer:
        keys = [b"21", b"foobar", b"abc"]
        expected = [(n & 0x7FFFFFFF) % 10 for n in (-973932308, -790332482, 479470107)]
        deliveries = await producer.send_many("t", [b"v"] * 3, keys)
        assert [f.partition for f in await deliveries.wait()] == expected


async def test_batches_share_requests_and_carry_many_records(autojump_clock):
    async with fake_cluster(nodes=1, t=4) as cluster, Producer(cluster.urls, linger_ms=20) as producer:
        for part in range(4):
            await producer.send_many("t", numbered(50), partition=part)
        await producer.flush()
        assert cluster.nodes[0].seen[Kind.PRODUCE] <= 2


async def test_unknown_topic_is_told_at_once_with_its_remedy(autojump_clock):
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls) as producer:
        with trio.fail_after(2), pytest.raises(UnknownTopicError, match=r"'nope'.*insync topic create"):
            await producer.send("nope", b"x")


async def test_partition_that_does_not_exist_is_named():
    async with fake_cluster(t=2) as cluster, Producer(cluster.urls) as producer:
        with pytest.raises(UnknownTopicError, match="partition 5 of topic 't', which has 2"):
            await producer.send("t", b"x", partition=5)


async def test_record_above_the_limit_is_refused_with_both_sizes():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, max_request_size=1000) as producer:
        with pytest.raises(RecordTooLargeError, match=r"20\d\d bytes.*max_request_size=1000"):
            await producer.send("t", bytes(2000))
        with pytest.raises(RecordTooLargeError):
            await producer.send_many("t", [b"x", bytes(2000)])


async def test_a_record_that_just_fits_goes_before_one_that_does_not():
    largest = 1000 - BATCH_OVERHEAD_BYTES - record_overhead_bytes(1 << 20, 1 << 20)
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, max_request_size=1000) as producer:
        with trio.fail_after(PATIENCE), pytest.raises(RecordTooLargeError):
            # Many of one partition are taken in runs.
            await producer.send_many("t", [bytes(largest)] * 40 + [bytes(largest + 1)], partition=0)
        await producer.flush()
        assert cluster.topics["t"][0].values() == [bytes(largest)] * 40


async def test_a_record_that_a_request_could_carry_is_refused_with_the_size_of_the_buffer():
    """The largest record that fits into a request exactly, and a buffer that has no room for it."""
    largest = 1000 - BATCH_OVERHEAD_BYTES - record_overhead_bytes(1 << 20, 1 << 20)
    async with fake_cluster(t=1) as cluster:
        for length, said in ((largest, "buffer_memory=500"), (largest + 1, "max_request_size=1000")):
            async with Producer(cluster.urls, max_request_size=1000, buffer_memory=500) as producer:
                with pytest.raises(RecordTooLargeError, match=said):
                    await producer.send("t", bytes(length))


async def test_text_is_refused():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls) as producer:
        with pytest.raises(TypeError, match="must be bytes"):
            await producer.send("t", "text")  # type: ignore[arg-type]
        assert (await (await producer.send("t", bytearray(b"x"))).wait()).offset == 0
        assert cluster.topics["t"][0].values() == [b"x"]


async def test_a_batch_that_is_full_does_not_linger(autojump_clock):
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, batch_size=1000, linger_ms=60_000) as producer,
    ):
        began = trio.current_time()
        first = await producer.send("t", bytes(100))
        with trio.move_on_after(1):
            await first.wait()
        assert not first.done and cluster.nodes[0].seen[Kind.PRODUCE] == 0
        await producer.send("t", bytes(1000))
        await first.wait()
        assert trio.current_time() - began == 1


async def test_of_many_records_a_batch_that_has_no_room_for_the_next_does_not_linger(autojump_clock):
    """The next one begins a batch of another partition."""
    async with (
        fake_cluster(nodes=1, t=2) as cluster,
        Producer(cluster.urls, batch_size=1000, linger_ms=60_000) as producer,
    ):
        await producer.prepare("t")
        began = trio.current_time()
        deliveries = await producer.send_many("t", [bytes(100)] * 10)
        await deliveries[0].wait()
        assert trio.current_time() == began
        assert not deliveries[9].done


async def test_full_buffer_makes_send_wait_and_send_nowait_raise(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        node.script(Kind.PRODUCE, *[answer_after(0.3)] * 5)
        async with Producer(cluster.urls, buffer_memory=2000, batch_size=500, linger_ms=0) as producer:
            await producer.send("t", bytes(900))
            await producer.send("t", bytes(900))
            with pytest.raises(BufferFullError, match="buffer_memory=2000"):
                producer.send_nowait("t", bytes(900))
            with trio.fail_after(5):
                assert (await (await producer.send("t", bytes(900))).wait()).offset == 2


async def test_full_buffer_raises_after_max_block(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, answer_after(2))
        async with Producer(cluster.urls, buffer_memory=1000, linger_ms=0, max_block_ms=1000) as producer:
            await producer.send("t", bytes(900))
            with pytest.raises(BufferFullError, match="max_block_ms=1000"):
                await producer.send("t", bytes(900))


async def test_send_nowait_needs_a_known_topic():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls) as producer:
        with pytest.raises(MetadataTimeoutError, match="prepare"):
            producer.send_nowait("t", b"x")
        assert await producer.prepare("t") == 1
        assert (await producer.send_nowait("t", b"x").wait()).offset == 0


async def test_a_closed_producer_says_so():
    async with fake_cluster(t=1) as cluster:
        async with Producer(cluster.urls) as producer:
            await producer.prepare("t")
        with pytest.raises(ClosedError):
            await producer.send("t", b"x")


async def test_callbacks_hear_of_success_and_failure():
    heard = []
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD, "no"))
        async with Producer(cluster.urls) as producer:
            first = await producer.send("t", b"bad", on_delivery=heard.append)
            await producer.flush()
            second = await producer.send("t", b"good", on_delivery=heard.append)
    assert [d.error is None for d in heard] == [False, True]
    assert first.error is not None and first.error.outcome == "absent"
    assert second.result().offset == 0


@pytest.mark.parametrize(
    "fault",
    [not_leader, disconnect, disconnect_after_append, fail_with(ErrorCode.NOT_ENOUGH_REPLICAS)],
    ids=["not-leader", "disconnect", "disconnect-after-append", "not-enough-replicas"],
)
@pytest.mark.parametrize("healthy_before", [0, 1, 3])
async def test_a_fault_neither_loses_nor_repeats_nor_reorders(fault, healthy_before):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, *[healthy] * healthy_before, fault)
        async with Producer(cluster.urls, batch_size=400, linger_ms=0) as producer:
            deliveries = await producer.send_many("t", numbered(200))
            with trio.fail_after(5):
                found = await deliveries.wait()
        assert [f.offset for f in found] == list(range(200))
        assert cluster.topics["t"][0].values() == numbered(200)


async def test_an_answer_that_never_comes_is_asked_for_again(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, healthy, drop_after_append, drop)
        async with Producer(cluster.urls, batch_size=400, linger_ms=0, request_timeout_ms=200) as producer:
            deliveries = await producer.send_many("t", numbered(200))
            with trio.fail_after(5):
                await deliveries.wait()
        assert cluster.topics["t"][0].values() == numbered(200)


async def test_a_leader_that_dies_is_followed_by_the_next_quickly(autojump_clock):
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        await (await producer.send("t", b"before")).wait()
        await cluster.nodes[0].stop()
        started = trio.current_time()
        delivery = await producer.send("t", b"after")
        cluster.move("t", 0, 1)
        with trio.fail_after(3):
            await delivery.wait()
        assert trio.current_time() - started < 0.5
        assert cluster.topics["t"][0].values() == [b"before", b"after"]


async def test_a_partition_without_leader_waits_for_one(autojump_clock):
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        cluster.move("t", 0, -1)
        delivery = await producer.send("t", b"x")
        with trio.move_on_after(0.2):
            await delivery.wait()
        assert not delivery.done
        cluster.move("t", 0, 2)
        with trio.fail_after(3):
            assert (await delivery.wait()).offset == 0


async def test_a_leader_that_hangs_is_left_as_soon_as_others_know_the_next(autojump_clock):
    """It is not asked who follows it: a look that waits for it would cost two seconds."""

    def hangs(node: FakeNode, request: Any) -> bool:
        return node.node_id == 0

    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        for _ in range(3):
            await (await producer.send("t", b"before")).wait()
        cluster.chaos = hangs
        delivery = await producer.send("t", b"x")
        await trio.sleep(1.2)
        cluster.move("t", 0, 1)
        began = trio.current_time()
        with trio.fail_after(10):
            await delivery.wait()
        assert trio.current_time() - began < 0.4


async def test_a_silent_old_leader_is_left_when_leadership_has_moved():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        await (await producer.send("t", b"a")).wait()
        cluster.nodes[0].script(Kind.PRODUCE, drop_after_append)
        delivery = await producer.send("t", b"b")
        await asked(cluster.nodes[0], Kind.PRODUCE, 2)
        cluster.move("t", 0, 1)
        with trio.fail_after(5):
            assert (await delivery.wait()).offset == 1
        assert cluster.topics["t"][0].values() == [b"a", b"b"]


async def test_without_idempotence_the_old_leader_is_waited_for(autojump_clock):
    """It may have written the record: to send it to the next one as well would double it."""
    options = {"linger_ms": 0, "enable_idempotence": False, "request_timeout_ms": 10_000}
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, **options) as producer:
        await (await producer.send("t", b"a")).wait()
        cluster.nodes[0].script(Kind.PRODUCE, drop_after_append)
        delivery = await producer.send("t", b"b")
        await asked(cluster.nodes[0], Kind.PRODUCE, 2)
        cluster.move("t", 0, 1)
        await trio.sleep(9)
        assert not delivery.done and cluster.topics["t"][0].values() == [b"a", b"b"]


async def test_hints_in_answers_save_a_look(autojump_clock):
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        await (await producer.send("t", b"a")).wait()
        for node in cluster.nodes:
            node.script(Kind.METADATA, *[drop] * 50)
        cluster.move("t", 0, 2)
        with trio.fail_after(3):
            await (await producer.send("t", b"b")).wait()
        assert cluster.nodes[2].seen[Kind.PRODUCE] == 1


async def test_delivery_timeout_says_whether_the_record_may_be_there(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(
            Kind.PRODUCE, drop_after_append, *[fail_with(ErrorCode.NOT_ENOUGH_REPLICAS, "1 of 2")] * 20
        )
        async with Producer(
            cluster.urls, linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=300
        ) as producer:
            maybe = await producer.send("t", b"maybe")
            with pytest.raises(DeliveryTimeoutError, match="delivery_timeout_ms=300") as caught:
                await maybe.wait()
            assert caught.value.outcome == "unknown"


async def test_delivery_timeout_of_what_was_always_refused_is_definite(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        node.script(Kind.PRODUCE, *[fail_with(ErrorCode.NOT_ENOUGH_REPLICAS, "1 of 2")] * 20)
        async with Producer(
            cluster.urls,
            linger_ms=0,
            delivery_timeout_ms=1000,
            retry_backoff_ms=5000,
            retry_backoff_max_ms=5000,
        ) as producer:
            delivery = await producer.send("t", b"x")
            with pytest.raises(DeliveryTimeoutError, match="NOT_ENOUGH_REPLICAS: 1 of 2") as caught:
                await delivery.wait()
            assert caught.value.outcome == "absent"
            assert isinstance(caught.value.__cause__, NotEnoughReplicasError)
            node.before.clear()
            with trio.fail_after(3):
                assert (await (await producer.send("t", b"y")).wait()).offset == 0


async def test_a_former_leader_that_lacks_replicas_is_not_asked_for_ever(autojump_clock):
    """It is cut off from the metadata store, so that it does not know that another one leads."""
    async with fake_cluster(t=1) as cluster:
        former = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, metadata_max_age_ms=300_000) as producer:
            await (await producer.send("t", b"first")).wait()
            former.script(Kind.PRODUCE, *[fail_with(ErrorCode.NOT_ENOUGH_REPLICAS, "1 of 2")] * 1000)
            cluster.move("t", 0, 1)
            with trio.fail_after(5):
                await (await producer.send("t", b"second")).wait()
        assert cluster.topics["t"][0].values() == [b"first", b"second"]


@pytest.mark.parametrize("really_written", [True, False])
async def test_what_follows_a_batch_of_unknown_outcome_gets_through(really_written, autojump_clock):
    """Whether the lost batch is in the log or leaves a gap, the partition goes on, each record once."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, batch_size=100, delivery_timeout_ms=400) as producer:
            await (await producer.send("t", b"first")).wait()
            node.script(Kind.PRODUCE, drop_after_append if really_written else drop)
            lost = await producer.send("t", b"lost")
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(DeliveryTimeoutError):
                await lost.wait()
            node.connections[0].abort("the answer never comes")
            with trio.fail_after(5):
                later = await (await producer.send_many("t", numbered(50))).wait()
        expected = [b"first", *([b"lost"] if really_written else []), *numbered(50)]
        assert cluster.topics["t"][0].values() == expected
        assert later[0].offset == len(expected) - 50


@pytest.mark.parametrize("really_written", [True, False])
async def test_what_was_sent_behind_it_tells_whether_there_is_a_gap(really_written, autojump_clock):
    """Accepted under the old epoch: no gap, the epoch stays. Out of order: it moves to the next epoch."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, delivery_timeout_ms=1_500) as producer:
            await (await producer.send("t", b"first")).wait()
            node.script(
                Kind.PRODUCE,
                drop_after_append if really_written else drop,
                fail_with(ErrorCode.NOT_ENOUGH_REPLICAS),
            )
            lost = await producer.send("t", b"lost")
            with trio.move_on_after(1):
                await lost.wait()
            behind = await producer.send("t", b"behind")
            with pytest.raises(DeliveryTimeoutError):
                await lost.wait()
            node.connections[0].abort("the answer never comes")
            with trio.fail_after(5):
                await behind.wait()
                await (await producer.send("t", b"later")).wait()
        assert cluster.topics["t"][0].values() == [b"first", *[b"lost"] * really_written, b"behind", b"later"]
        assert node.seen[Kind.INIT_PRODUCER_ID] == (1 if really_written else 2)


async def test_no_more_than_the_leader_remembers_is_sent_past_an_unanswered_batch():
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, batch_size=300) as producer:
            await (await producer.send("t", b"first")).wait()
            node.script(Kind.PRODUCE, drop_after_append)
            deliveries = await producer.send_many("t", numbered(200))
            with trio.fail_after(5):
                while not deliveries[25].done:
                    await trio.lowlevel.checkpoint()
            assert await asked(node, Kind.PRODUCE, 1 + 5) == 1 + 5
            node.connections[0].abort("the answer never comes")
            with trio.fail_after(5):
                await deliveries.wait()
        assert cluster.topics["t"][0].values() == [b"first", *numbered(200)]


async def test_batches_behind_a_refused_one_move_to_the_next_epoch():
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, batch_size=300) as producer:
            await (await producer.send("t", b"first")).wait()
            node.script(Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD))
            deliveries = await producer.send_many("t", numbered(100))
            await producer.flush()
        failed = [d.error is not None for d in deliveries]
        lost = sum(failed)
        assert 0 < lost < 20 and failed == [True] * lost + [False] * (100 - lost)
        assert cluster.topics["t"][0].values() == [b"first", *numbered(100)[lost:]]
        assert node.seen[Kind.INIT_PRODUCER_ID] == 2


async def test_lost_acknowledged_records_are_told_and_the_partition_goes_on():
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        async with Producer(cluster.urls, linger_ms=0) as producer:
            for value in numbered(3):
                await (await producer.send("t", value)).wait()
            entry = log.producers.get(1)
            assert entry is not None
            kept = type(entry)(entry.producer_id, entry.producer_epoch, entry.batches[:1])
            log.producers = type(log.producers)([kept])
            with pytest.raises(OutOfOrderSequenceError):
                await (await producer.send("t", b"x")).wait()
            with trio.fail_after(3):
                await (await producer.send("t", b"y")).wait()
        assert log.values()[-1] == b"y"


async def test_a_fenced_producer_sends_nothing_more():
    """Whoever goes on under its id is the one that counts; it must not go on under another id."""
    async with fake_cluster(nodes=1, t=2) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0) as producer:
            await (await producer.send("t", b"first", partition=0)).wait()
            node.script(Kind.PRODUCE, fail_with(ErrorCode.INVALID_PRODUCER_EPOCH, "epoch 3 writes"))
            fenced = await producer.send("t", b"x", partition=0)
            with pytest.raises(ProducerFencedError, match="epoch 3 writes"):
                await fenced.wait()
            with pytest.raises(ProducerFencedError):
                await producer.send("t", b"y", partition=1)
            with pytest.raises(ProducerFencedError):
                await producer.send_many("t", [b"y"])
            with pytest.raises(ProducerFencedError):
                producer.send_nowait("t", b"y")
        assert [log.values() for log in cluster.topics["t"]] == [[b"first"], []]
        assert node.seen[Kind.INIT_PRODUCER_ID] == 1


async def test_what_waits_when_a_producer_is_fenced_fails_too():
    async with fake_cluster(nodes=1, t=2) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=60_000) as producer:
            first = await producer.send("t", b"first", partition=0)
            await producer.flush()
            assert first.result().offset == 0
            waiting = await producer.send("t", b"y", partition=1)
            node.script(Kind.PRODUCE, fail_with(ErrorCode.INVALID_PRODUCER_EPOCH))
            await producer.send_many("t", [bytes(20_000)], partition=0)
            with trio.fail_after(5), pytest.raises(ProducerFencedError) as caught:
                await waiting.wait()
            assert caught.value.outcome == "absent"
        assert cluster.topics["t"][1].values() == []


async def test_a_named_producer_shuts_its_predecessor_out_where_it_writes():
    async with (
        fake_cluster(nodes=1, t=2) as cluster,
        Producer(cluster.urls, linger_ms=0, producer_name="job") as former,
        Producer(cluster.urls, linger_ms=0, producer_name="job") as successor,
    ):
        await (await former.send("t", b"a", partition=0)).wait()
        await (await successor.send("t", b"b", partition=0)).wait()
        assert (await (await former.send("t", b"c", partition=1)).wait()).offset == 0
        with pytest.raises(ProducerFencedError):
            await (await former.send("t", b"zombie", partition=0)).wait()
        with pytest.raises(ProducerFencedError):
            await former.send("t", b"zombie", partition=1)
        await (await successor.send("t", b"d", partition=0)).wait()
        assert cluster.topics["t"][0].values() == [b"a", b"b", b"d"]
        assert cluster.producer_names == {"job": (1, 1)}


async def test_a_named_producer_that_must_begin_anew_does_not_shut_its_successor_out():
    """After a gap it needs the next epoch, which is not its own any more."""
    async with fake_cluster(nodes=1, t=2) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, producer_name="job") as former:
            await (await former.send("t", b"a", partition=0)).wait()
            cluster.producer_names["job"] = (1, 1)
            node.script(Kind.PRODUCE, fail_with(ErrorCode.RECORD_TOO_LARGE))
            with pytest.raises(RecordTooLargeError):
                await (await former.send("t", b"x", partition=0)).wait()
            with trio.fail_after(5), pytest.raises(ProducerFencedError):
                await (await former.send("t", b"y", partition=0)).wait()
        assert cluster.topics["t"][0].values() == [b"a"]
        assert cluster.producer_names == {"job": (1, 1)}


async def test_a_named_producer_goes_on_under_the_next_epoch_of_its_name():
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls, linger_ms=0, producer_name="job") as producer:
            await (await producer.send("t", b"a")).wait()
            cluster.nodes[0].script(Kind.PRODUCE, fail_with(ErrorCode.RECORD_TOO_LARGE))
            with pytest.raises(RecordTooLargeError):
                await (await producer.send("t", b"x")).wait()
            with trio.fail_after(5):
                await (await producer.send("t", b"b")).wait()
        assert cluster.topics["t"][0].values() == [b"a", b"b"]
        assert cluster.producer_names == {"job": (1, 1)}


async def test_acks_zero_does_not_wait_for_answers(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, drop_after_append)
        async with Producer(cluster.urls, acks=0, linger_ms=0) as producer:
            with trio.fail_after(2):
                assert (await (await producer.send("t", b"x")).wait()).offset == -1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"acks": 2}, "acks"),
        ({"acks": 1, "enable_idempotence": True}, "acks='all'"),
        ({"max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"acks": 1, "producer_name": "x"}, "producer_name needs enable_idempotence"),
        ({"linger": 5}, "did you mean linger_ms"),
        ({"linger_ms": -1}, "negative"),
        ({"linger_ms": 0.5}, "linger_ms is 0.5; it must be a whole number"),
        ({"batch_size": "1"}, "batch_size is '1'; it must be a whole number"),
        ({"allow_insecure": "no"}, "allow_insecure is 'no'; it must be True or False"),
        ({"max_in_flight": 3}, "did you mean max_in_flight_requests_per_connection"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, said):
    with pytest.raises(InvalidSettingError, match=said):
        Producer("mem://x/y", **options)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.1, 0.3, 0.6]), max_in_flight=st.integers(1, 5))
def test_exactly_once_in_order_under_random_faults(seed, rate, max_in_flight):
    async def main() -> None:
        async with fake_cluster(nodes=3, t=3) as cluster:
            cluster.chaos = random_faults(seed, rate=rate, budget=12)
            async with Producer(
                cluster.urls,
                batch_size=300,
                linger_ms=1,
                max_in_flight_requests_per_connection=max_in_flight,
                request_timeout_ms=150,
                retry_backoff_ms=5,
                retry_backoff_max_ms=20,
            ) as producer:
                deliveries = []
                for n in range(150):
                    deliveries.append(await producer.send("t", b"%d" % n, key=b"%d" % (n % 7)))
                    if n % 40 == 0:
                        await trio.lowlevel.checkpoint()
                with trio.fail_after(30):
                    found = [await d.wait() for d in deliveries]
            sent = defaultdict(list)
            for n, meta in enumerate(found):
                sent[meta.partition].append((meta.offset, b"%d" % n))
            for number, log in enumerate(cluster.topics["t"]):
                assert list(enumerate(log.values())) == sent[number]

    trio.run(main)


async def test_records_that_wait_for_replicas_are_told_of_in_the_log(caplog, autojump_clock):
    refused = [fail_with(ErrorCode.NOT_ENOUGH_REPLICAS, "1 of 2")] * 1000
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, *refused)
        async with Producer(cluster.urls, linger_ms=0, delivery_timeout_ms=14_000) as producer:
            delivery = await producer.send("t", b"x")
            await trio.sleep(4)
            assert "sending continues" not in caplog.text
            with pytest.raises(DeliveryTimeoutError):
                await delivery.wait()
    told = [line for line in caplog.messages if "sending continues" in line]
    assert len(told) == 2, "every five seconds"
    began, _, trouble = told[0].partition(" s; sending continues until delivery_timeout_ms=14000 is over: ")
    assert began in ("1 record has waited for 5", "1 record has waited for 6")
    assert trouble.startswith("t-0: NOT_ENOUGH_REPLICAS: 1 of 2")
