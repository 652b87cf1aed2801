"""Rules of the producer that show only in one particular order of events, one test for each."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import BufferFullError, DeliveryTimeoutError, Producer, RecordTooLargeError
from insync.replication.client._settings import ProducerSettings
from insync.replication.client.connection._cluster import Leader, Topic
from insync.replication.client.connection._patience import LEAST, Patience
from insync.replication.client.producer._accumulator import RECORD_OVERHEAD
from insync.replication.client.producer._batch import ProducerIdentity
from insync.replication.client.producer._murmur2 import partition_for_key
from insync.replication.client.producer._sender import Sender, _Request
from insync.replication.client.producer.producer import _RUN_LENGTH
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.storage.batch import records
from insync.transport import Connection, ConnectionLost, DeadlineExceeded, NotAuthorisedError

from ..fake_cluster import FakeNode, Partition, fake_cluster
from ..faults import answer_after, answer_when, drop, fail_with
from ..patience import PATIENCE, asked
from .test_backlog import watch
from .test_producer import numbered


async def test_a_record_that_fills_the_whole_buffer_finds_room_in_an_empty_one():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, buffer_memory=1000) as producer:
        await producer.prepare("t")
        with trio.fail_after(PATIENCE):
            values = [bytes(1000 - RECORD_OVERHEAD), *[b""] * _RUN_LENGTH]
            sent = await producer.send_many("t", values, partition=0)
            await sent.wait()


def test_patience_grows_with_the_slowest_answer() -> None:
    patience = Patience()
    patience.answered(0.2)
    assert patience.seconds == pytest.approx(0.8)


async def test_quick_answers_leave_little_patience_with_a_slow_one(autojump_clock):
    autojump_clock.jump(1_000)
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"x")
        assert producer._sender._patience.seconds == LEAST


async def test_with_acks_0_a_request_that_could_not_be_sent_settles_once(monkeypatch, autojump_clock):
    """It goes again; memory that was given back twice would let the buffer grow beyond its bound."""
    real, failures = Connection.request_nowait, [1]

    def fails_once(*arguments: Any, **options: Any) -> Any:
        if arguments[1] == Kind.PRODUCE and failures:
            failures.clear()
            raise ConnectionLost("gone")
        return real(*arguments, **options)

    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, acks=0, linger_ms=0) as producer:
        await producer.prepare("t")
        monkeypatch.setattr(Connection, "request_nowait", fails_once)
        delivery = await producer.send("t", b"x")
        with trio.fail_after(5):
            await delivery.wait()
            while cluster.topics["t"][0].end < 1:
                await cluster.changed.wait()
        assert producer._accumulator.used == 0
    assert cluster.topics["t"][0].values() == [b"x"]


def throttled(milliseconds: int) -> Any:
    """Serve a produce, and ask for a pause (KIP-219)."""

    def fault(node: FakeNode, request: Any) -> bool:
        results = node.append(request)
        answer = m.ProduceResponse(partitions=results, throttle_time_ms=milliseconds)
        request.reply(wire.encode(answer))
        return True

    return fault


async def test_a_node_that_asks_for_a_pause_is_sent_nothing_until_it_is_over(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        cluster.nodes[0].script(Kind.PRODUCE, throttled(3000))
        await (await producer.send("t", b"x")).wait()
        began = trio.current_time()
        with trio.fail_after(10):
            await (await producer.send("t", b"y")).wait()
        assert 2.9 < trio.current_time() - began < 4


async def test_partitions_take_turns_where_a_request_has_no_room_for_all():
    answered = trio.Event()
    async with (
        fake_cluster(nodes=1, t=2) as cluster,
        Producer(
            cluster.urls,
            linger_ms=0,
            batch_size=1600,
            max_request_size=2000,
            max_in_flight_requests_per_connection=1,
        ) as producer,
    ):
        cluster.nodes[0].script(Kind.PRODUCE, answer_when(answered))
        await producer.send("t", b"first", partition=0)
        await asked(cluster.nodes[0], Kind.PRODUCE, 1)
        seen = watch(cluster)
        for _ in range(5):
            await producer.send("t", bytes(1500), partition=0)
        await producer.send("t", bytes(1500), partition=1)
        answered.set()
        await producer.flush()
    assert [number for ((_, number, _),) in seen][:3].count(1) == 1


async def test_a_request_of_which_some_partitions_have_moved_gets_a_moment_for_the_others(autojump_clock):
    async with fake_cluster(nodes=2, t=3) as cluster:
        async with Producer(cluster.urls, linger_ms=20, request_timeout_ms=30_000) as producer:
            await producer.prepare("t")
            cluster.nodes[0].script(Kind.PRODUCE, drop)
            moved = await producer.send("t", b"moved", partition=0)
            await producer.send("t", b"stays", partition=2)
            await trio.sleep(0.1)
            assert cluster.nodes[0].seen[Kind.PRODUCE] == 1
            cluster.move("t", 0, 1)
            await producer._cluster.refresh()
            await trio.testing.wait_all_tasks_blocked()
            assert cluster.nodes[1].seen[Kind.PRODUCE] == 0
            with trio.fail_after(4):
                await moved.wait()
            await producer.flush()
        assert [log.values() for log in cluster.topics["t"]] == [[b"moved"], [], [b"stays"]]


async def test_what_nobody_has_answered_may_be_written(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, drop)
        async with Producer(cluster.urls, linger_ms=0, delivery_timeout_ms=300) as producer:
            with pytest.raises(DeliveryTimeoutError, match="its leader has not answered") as caught:
                await (await producer.send("t", b"x")).wait()
            assert caught.value.outcome == "unknown"


async def test_batches_grow_while_the_node_has_its_requests_under_way():
    """Of a partition that has none itself."""
    answered = trio.Event()
    async with fake_cluster(nodes=1, t=2) as cluster:
        async with Producer(cluster.urls, linger_ms=0, batch_size=300) as producer:
            for partition in (0, 1):
                await (await producer.send("t", b"first", partition=partition)).wait()
            cluster.nodes[0].script(Kind.PRODUCE, *[answer_when(answered)] * 5)
            await producer.send_many("t", numbered(200), partition=0)
            await asked(cluster.nodes[0], Kind.PRODUCE, 3)
            await producer.send("t", b"second", partition=1)
            assert await asked(cluster.nodes[0], Kind.PRODUCE, 2 + 5) == 2 + 5
            await producer.send_many("t", numbered(1000), partition=1)
            answered.set()
        assert cluster.topics["t"][1].values() == [b"first", b"second", *numbered(1000)]
        assert len(cluster.topics["t"][1].batches) <= 3


async def test_batches_grow_while_there_is_no_leader(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls, linger_ms=0, batch_size=300) as producer:
            cluster.move("t", 0, -1)
            await producer.send("t", b"first")
            await trio.sleep(0.01)
            await producer.send_many("t", numbered(1000))
            cluster.move("t", 0, 0)
            with trio.fail_after(5):
                await producer.flush()
        assert [len(list(records(batch))) for batch in cluster.topics["t"][0].batches] == [1001]


async def test_memory_is_given_back_to_the_byte():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        for n in range(5):
            await producer.send("t", b"x" * n, key=b"k", headers=[("a", b"b")])
            await producer.send_many("t", numbered(n))
            await producer.flush()
            assert producer._accumulator.used == 0


async def test_nobody_overtakes_who_waits_for_space():
    answered = trio.Event()
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, answer_when(answered))
        async with (
            Producer(cluster.urls, buffer_memory=2000, linger_ms=0) as producer,
            trio.open_nursery() as n,
        ):
            await producer.send("t", bytes(1500))
            await asked(cluster.nodes[0], Kind.PRODUCE, 1)
            n.start_soon(producer.send, "t", bytes(900))
            await trio.testing.wait_all_tasks_blocked(0.01)
            with pytest.raises(BufferFullError):
                producer.send_nowait("t", b"small")
            answered.set()
        assert [len(value or b"") for value in cluster.topics["t"][0].values()] == [1500, 900]


@pytest.mark.parametrize("count", [2, 3, 20])
async def test_several_tasks_that_wait_for_space_all_find_some(count, autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, answer_after(3))
        async with Producer(cluster.urls, buffer_memory=1000, linger_ms=0, max_block_ms=9000) as producer:
            await producer.send("t", bytes(900))
            with trio.move_on_after(1):  # one that has given up is not waited for
                await producer.send("t", b"never" * 100)
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    length = 300 if number % 2 else 900
                    nursery.start_soon(producer.send, "t", b"%d" % number * (length // 2))
                nursery.start_soon(producer.send_many, "t", [b"many"] * 100)
            await producer.flush()
            assert producer._accumulator.waiting == producer._accumulator.used == 0
        assert cluster.topics["t"][0].end == 1 + count + 100


async def test_a_large_record_finds_space_beside_many_small_ones(autojump_clock):
    """Small ones would fit into each piece that becomes free."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, *[answer_after(0.01)] * 10_000)
        async with Producer(cluster.urls, buffer_memory=2000, linger_ms=0, batch_size=200) as producer:
            await producer.prepare("t")
            async with trio.open_nursery() as nursery:

                async def send_small_ones() -> None:
                    while True:
                        await producer.send("t", bytes(100))

                for _ in range(5):
                    nursery.start_soon(send_small_ones)
                while producer._accumulator.waiting < 5:
                    await trio.lowlevel.checkpoint()
                with trio.fail_after(5):
                    await producer.send("t", bytes(1900))
                nursery.cancel_scope.cancel()


async def test_those_who_wait_for_space_are_served_in_turn(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, *[answer_after(0.01)] * 100)
        async with Producer(cluster.urls, buffer_memory=1000, linger_ms=0) as producer:
            await producer.send("t", bytes(900))
            async with trio.open_nursery() as nursery:
                for number, length in enumerate((800, 10, 800, 10, 900, 20)):
                    nursery.start_soon(producer.send, "t", bytes([number]) * length)
                    while producer._accumulator.waiting <= number:
                        await trio.lowlevel.checkpoint()
    values = cluster.topics["t"][0].values()
    assert [value and value[0] for value in values[1:]] == list(range(6))


async def test_nothing_lingers_while_somebody_waits_for_space(autojump_clock):
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, buffer_memory=2000, linger_ms=50_000, max_block_ms=60_000) as producer,
    ):
        await producer.prepare("t")
        began = trio.current_time()
        for _ in range(5):
            await producer.send("t", bytes(900))
        assert trio.current_time() - began < 1


async def test_records_with_headers_and_without_share_a_batch():
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls, linger_ms=1000) as producer:
            await producer.send("t", b"a", headers=[("h", b"1")])
            await producer.send_many("t", [b"b"] * 20)
            await producer.send("t", b"c", headers=[("h", b"2")])
            await producer.flush()
        (batch,) = cluster.topics["t"][0].batches
        found = [each.headers for each in records(batch)]
        assert found == [(("h", b"1"),), *[()] * 20, (("h", b"2"),)]


async def test_a_batch_behind_another_lingers_no_longer_than_it_may(autojump_clock):
    """Also while the answer to the one before is on its way for much longer."""
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, batch_size=300, linger_ms=10) as producer,
    ):
        await producer.send_and_wait("t", b"first")
        arrived, slow, began = [], answer_after(5), trio.current_time()

        def note(node: FakeNode, request: Any) -> Any:
            arrived.append(trio.current_time() - began)
            return slow(node, request)

        cluster.nodes[0].script(Kind.PRODUCE, *[note] * 2)
        await producer.send_many("t", [b"x" * 200, b"y" * 50])  # fills one batch and begins another
        await trio.sleep(1)
    assert arrived == [pytest.approx(0, abs=0.001), pytest.approx(0.01, abs=0.001)]


async def test_a_round_goes_on_when_its_last_batch_is_refused_for_a_right():
    """The one before has failed retriably: it goes again, whatever becomes of the other."""
    async with trio.open_nursery() as nursery:
        cluster = FakeRights()
        sender = Sender(ProducerSettings(linger_ms=0), cluster, nursery)  # type: ignore[arg-type]
        sender.accumulator.add_topic(Topic("t", "id", [Leader(1, 0)]))
        queue = sender.accumulator._topics["t"].queues[0]
        queue.identity, queue.established = ProducerIdentity(1, 0), True
        requests = []
        for value in (b"a", b"b"):
            sender.accumulator.decide("t", value, None, (), None, None)
            request = _Request(1, [], 0, 1e9)
            batch = sender._take(queue)
            assert batch is not None
            request.sent.append((queue, batch))
            sender._requests[request] = None
            sender._in_flight[1] = sender._in_flight.get(1, 0) + 1
            requests.append(request)
        sender._answered(requests[0], DeadlineExceeded("slow"))
        sender._answered(requests[1], NotAuthorisedError(-1, "not you"))
        assert [batch.count for batch in queue.waiting] == [1] and not queue.failed
        assert queue in sender.accumulator.active


class FakeRights:
    """As much of a `Cluster` as a sender asks when answers come."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def suspect(self, *at: Any) -> None:
        pass

    def quick_backoff(self, attempt: int) -> float:
        return 0.02


async def test_a_topic_that_grows_has_its_keys_dealt_again():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        keys = [b"%d" % n for n in range(20)]
        await (await producer.send_many("t", keys, keys)).wait()
        cluster.topics["t"] += [Partition(0) for _ in range(3)]
        await producer._cluster.refresh()
        found = await (await producer.send_many("t", keys, keys)).wait()
        assert [each.partition for each in found] == [partition_for_key(key, 4) for key in keys]


async def test_a_topic_that_grows_under_an_open_batch_has_its_keys_dealt_again():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=60_000) as producer:
        keys = [b"%d" % n for n in range(20)]
        for _ in range(2):
            before = [await producer.send("t", key, key=key) for key in keys]
        cluster.topics["t"] += [Partition(0) for _ in range(3)]
        await producer._cluster.refresh()
        found = [await producer.send("t", key, key=key) for key in keys]
    assert {each.partition for each in before} == {0}
    assert [each.partition for each in found] == [partition_for_key(key, 4) for key in keys]


async def test_records_without_a_key_go_where_there_is_a_leader():
    async with fake_cluster(nodes=1, t=8) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        for number in range(1, 8):
            cluster.move("t", number, -1)
        await producer.prepare("t")
        await producer._cluster.refresh()
        with trio.fail_after(5):
            for n in range(20):
                assert (await producer.send_and_wait("t", b"%d" % n)).partition == 0


async def test_batches_grow_no_further_than_the_topic_takes_since_it_was_last_looked_at(monkeypatch):
    answered, limit, real = trio.Event(), [100_000], FakeNode._topic

    def limited(node: FakeNode, name: str) -> Any:
        info = real(node, name)
        info.config["max_message_bytes"] = limit[0]
        return info

    monkeypatch.setattr(FakeNode, "_topic", limited)
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, batch_size=300, linger_ms=0) as producer,
    ):
        await (await producer.send_many("t", numbered(1000))).wait()
        limit[0] = 1500
        await producer._cluster.refresh()
        cluster.nodes[0].script(Kind.PRODUCE, *[answer_when(answered)] * 5)
        await producer.send_many("t", numbered(1000))
        await trio.testing.wait_all_tasks_blocked(0.01)
        answered.set()
        await producer.flush()
        log = cluster.topics["t"][0]
        later = [data for base, data in zip(log.bases, log.batches, strict=True) if base >= 1000]
        assert max(map(len, later)) <= 1500


@pytest.mark.parametrize("how", ["send", "send_many", "with headers"])
async def test_a_batch_size_above_what_the_topic_takes_fails_no_record_that_it_takes(monkeypatch, how):
    real = FakeNode._topic

    def limited(node: FakeNode, name: str) -> Any:
        info = real(node, name)
        info.config["max_message_bytes"] = 1500
        return info

    monkeypatch.setattr(FakeNode, "_topic", limited)
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls, batch_size=100_000, linger_ms=1000) as producer:
            if how == "send_many":
                await producer.send_many("t", numbered(1000))
            for value in numbered(1000) if how != "send_many" else ():
                await producer.send("t", value, headers=[("h", b"1")] if how == "with headers" else ())
            await producer.send("t", bytes(3000))
        batches = cluster.topics["t"][0].batches
        assert cluster.topics["t"][0].values() == [*numbered(1000), bytes(3000)]
        *small, large = map(len, batches)
        assert max(small) <= 1500 < large, "one that the topic does not take is refused alone"
        assert len(small) < 40


async def test_a_batch_that_is_too_large_has_the_topic_looked_at_again(monkeypatch, autojump_clock):
    """Its limit was lowered; batches that have grown since by the former one are refused, later ones are not."""
    answered, limit, real = trio.Event(), [100_000], FakeNode._topic
    refused = [0]

    def limited(node: FakeNode, name: str) -> Any:
        info = real(node, name)
        info.config["max_message_bytes"] = limit[0]
        return info

    def refuse(node: FakeNode, request: Any) -> bool:
        if request.kind != Kind.PRODUCE or len(request.payload.view()) <= limit[0]:
            return False
        refused[-1] += 1
        return fail_with(ErrorCode.RECORD_TOO_LARGE)(node, request)

    monkeypatch.setattr(FakeNode, "_topic", limited)
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, batch_size=300, linger_ms=0) as producer,
    ):
        await producer.send_and_wait("t", b"first")
        limit[0] = 1500
        cluster.chaos = refuse
        for _ in range(2):
            answered = trio.Event()
            cluster.nodes[0].script(Kind.PRODUCE, *[answer_when(answered)] * 5)
            deliveries = await producer.send_many("t", numbered(1000))
            await trio.sleep(0.1)
            answered.set()
            cluster.nodes[0].before.clear()
            await producer.flush()
            assert not any(delivery.error for delivery in deliveries)
            await trio.sleep(0.1)
            refused.append(0)
    assert refused[0] and not refused[1]


async def test_what_comes_after_a_batch_that_expired_while_it_was_open_is_sent(autojump_clock):
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, linger_ms=0, request_timeout_ms=500, delivery_timeout_ms=1000) as producer,
    ):
        await producer.send_and_wait("t", b"first")
        cluster.move("t", 0, -1)
        await producer._cluster.refresh()
        with pytest.raises(DeliveryTimeoutError):
            await producer.send_and_wait("t", b"late")
        cluster.move("t", 0, 0)
        with trio.fail_after(30):
            assert (await producer.send_and_wait("t", b"next")).offset == 1


async def test_an_id_that_has_used_up_its_epochs_is_followed_by_another():
    asked: list[m.InitProducerIdRequest] = []

    def last_epoch(node: FakeNode, request: Any) -> bool:
        asked.append(wire.decode_request(Kind.INIT_PRODUCER_ID, request.body))
        request.reply(wire.encode(m.InitProducerIdResponse(error=0, producer_id=7, producer_epoch=2**15 - 1)))
        return True

    def next_id(node: FakeNode, request: Any) -> bool:
        asked.append(wire.decode_request(Kind.INIT_PRODUCER_ID, request.body))
        return False

    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        node.script(Kind.INIT_PRODUCER_ID, last_epoch, next_id)
        node.script(Kind.PRODUCE, fail_with(ErrorCode.RECORD_TOO_LARGE))
        async with Producer(cluster.urls, linger_ms=0) as producer:
            with pytest.raises(RecordTooLargeError):
                await producer.send_and_wait("t", b"x")
            with trio.fail_after(5):
                await producer.send_and_wait("t", b"y")
    assert [each.producer_id for each in asked] == [-1, -1]


async def test_a_hint_at_a_node_that_nobody_knows_is_not_believed(autojump_clock):
    """Whatever epoch it comes with: no later word of anybody would be believed against it."""

    def misled(node: FakeNode, request: Any) -> bool:
        result = m.ProduceResult(
            topic="t", partition=0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=99, leader_epoch=50
        )
        request.reply(wire.encode(m.ProduceResponse(partitions=[result])))
        return True

    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        cluster.nodes[0].script(Kind.PRODUCE, misled)
        with trio.fail_after(5):
            assert (await producer.send_and_wait("t", b"x")).offset == 0


async def test_a_node_that_is_behind_takes_nobody_back_to_a_former_leader():
    async with fake_cluster(t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        await producer.prepare("t")
        cluster.move("t", 0, 1)
        await producer._cluster.refresh()
        log = cluster.topics["t"][0]
        log.leader, log.epoch = 0, 0
        await producer._cluster.refresh()
        known = producer._cluster.leader("t", 0)
        assert (known.node_id, known.epoch) == (1, 1)
        producer._cluster.hint("t", 0, type(known)(0, 0))
        assert producer._cluster.leader("t", 0) == known
