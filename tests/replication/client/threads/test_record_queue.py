"""The queue between threads and their producer, and the short way into it."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from insync.replication.client import BlockingProducer, ClosedError, InvalidArgumentError
from insync.replication.client._settings import ProducerSettings
from insync.replication.client.connection._cluster import Leader, Topic
from insync.replication.client.producer import _joining
from insync.replication.client.producer._accumulator import Accumulator
from insync.replication.client.producer._joining import CLOSED, FIRST, FULL, QUEUED, RecordQueue
from insync.replication.client.threads._handover import HandedOver
from insync.replication.client.threads._producer import BlockingDelivery
from insync.replication.core.messages import Kind
from insync.storage.batch import records

from ..faults import answer_after
from ..threaded_cluster import ThreadedCluster, threaded_cluster
from .slow_queue import SlowQueue

PATIENCE = 20
KINDS = [SlowQueue, RecordQueue]
"""The tests of one are tests of the other."""
ARGUMENTS = ("t", b"v", None, (), None, None)


def test_both_queues_do_the_same() -> None:
    for seed in range(50):
        dice = random.Random(seed)
        queues = [kind(1000) for kind in KINDS]
        records = [HandedOver() for _ in range(300)]
        for number, record in enumerate(records):
            act = dice.random()
            if act < 0.6:
                item = (
                    record,
                    dice.randrange(1, 300),
                    number / 4,
                    (*ARGUMENTS[:2], b"%d" % number, (), 1, None),
                )
                said = [queue.offer(*item) for queue in queues]
            elif act < 0.8:
                said = [queue.first() for queue in queues]
                for queue in queues:
                    if queue:
                        queue.popleft()
            elif act < 0.99:
                cost = dice.randrange(0, 400)
                said = [queue.settle(cost) for queue in queues]
            elif act < 0.995:
                said = [queue.waiting() for queue in queues]
            else:
                said = [queue.close() for queue in queues]
            assert said[0] == said[1], (seed, number)
            states = [(len(queue), queue.queued, queue.moving, queue.waiting()) for queue in queues]
            assert states[0] == states[1], (seed, number)


@pytest.mark.parametrize("kind", KINDS)
def test_what_becomes_of_a_record_that_is_offered(kind: Any) -> None:
    queue, record = kind(100), HandedOver()
    assert queue.offer(record, 100, 1.5, ARGUMENTS) == FIRST
    assert queue.offer(record, 1, 2.5, ARGUMENTS) == QUEUED
    assert queue.offer(record, 1, 3.5, ARGUMENTS) == FULL
    assert queue.first() == (record, 100, 1.5, ARGUMENTS)
    queue.popleft()
    assert queue.settle(100)
    assert queue.offer(record, 1, 3.5, ARGUMENTS) == QUEUED
    assert queue.close() == [record, record]
    assert queue.offer(record, 1, 3.5, ARGUMENTS) == CLOSED
    assert queue.first() is None
    with pytest.raises(IndexError):
        queue.popleft()


@pytest.mark.parametrize("kind", KINDS)
def test_many_threads_offer_to_one_that_takes(kind: Any) -> None:
    """None is lost, each thread's come in order, and nobody is told twice or never that there is a first one."""
    queue, told, count = kind(1 << 40), threading.Semaphore(0), 3000
    found: list[tuple[int, int]] = []

    def offer(worker: int) -> None:
        for number in range(count):
            if queue.offer(HandedOver(), 1, 0.0, (worker, number)) == FIRST:
                told.release()

    workers = [threading.Thread(target=offer, args=(worker,)) for worker in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for worker in workers:
            worker.start()
        while len(found) < 4 * count:
            assert told.acquire(timeout=PATIENCE), "nobody was told of the first"
            while (item := queue.first()) is not None:
                found.append(item[3])
                queue.popleft()
                if not queue.settle(1):
                    break
    finally:
        sys.setswitchinterval(before)
        for worker in workers:
            worker.join()
    assert not told.acquire(blocking=False)
    assert queue.queued == 0
    for worker in range(4):
        assert [number for who, number in found if who == worker] == list(range(count))


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_queues_nothing_for_its_parent(kind: Any) -> None:
    queue = kind(1000)
    assert queue.offer(HandedOver(), 1, 0.0, ARGUMENTS) == FIRST
    child = os.fork()
    if child == 0:
        os._exit(0 if queue.offer(HandedOver(), 1, 0.0, ARGUMENTS) == CLOSED else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert queue.offer(HandedOver(), 1, 0.0, ARGUMENTS) == QUEUED


def test_a_child_hears_each_time_that_its_parents_producer_is_not_its_own(threaded: ThreadedCluster) -> None:
    with BlockingProducer(threaded.urls) as producer:
        producer.send("t", b"x").result(PATIENCE)
        producer._handover._queue.moving = True  # as it may be in the moment of the fork
        child = os.fork()
        if child == 0:
            refused = 0
            for _ in range(3):
                try:
                    producer.send("t", b"of a child")
                except ClosedError:
                    refused += 1
            os._exit(0 if refused == 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer._handover._queue.moving = False
        producer.send("t", b"y").result(PATIENCE)
    assert threaded.cluster.topics["t"][0].values() == [b"x", b"y"]


def test_a_queue_refuses_what_is_no_record() -> None:
    queue = RecordQueue(100)
    with pytest.raises(TypeError):
        queue.offer(HandedOver(), 1, 0.0, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        queue.offer("a record", 1, 0.0, ARGUMENTS)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        queue.move(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no class of records"):
        entrance(kind=dict)
    assert not queue


def entrance(most: int = 4096, **other: Any) -> SimpleNamespace:
    """One of C beside what it needs; `called` counts how often the producer's thread was told."""
    settings = ProducerSettings(buffer_memory=1 << 20, batch_size=most, max_request_size=most)
    accumulator = Accumulator(settings, lambda at: None)
    accumulator.add_topic(Topic("t", "id", [Leader(0, 1)]))
    accumulator.direct = True
    called: list[int] = []
    made = SimpleNamespace(
        accumulator=accumulator,
        queue=RecordQueue(10_000),
        portal=SimpleNamespace(closed=False),
        called=called,
        begin=lambda: called.append(1),
    )
    arguments = {
        "queue": made.queue,
        "accumulator": accumulator,
        "portal": made.portal,
        "begin": lambda: made.begin(),
        "kind": BlockingDelivery,
        "seconds": 30.0,
        "record_cost": 200,
    }
    made.enter = _joining.Entrance(**{**arguments, **other})
    return made


def test_the_entrance_takes_plain_records_only() -> None:
    made = entrance()
    taken = made.enter(made, "t", b"v", None), made.enter(made, "t", b"w" * 100, b"k")
    assert all(
        type(each) is BlockingDelivery and each._producer is made and not each.done() for each in taken
    )
    assert [item[3] for item in items(made.queue)] == [
        ("t", b"v", None, (), None, None),
        ("t", b"w" * 100, b"k", (), None, None),
    ]
    assert (made.queue.queued, made.called) == (200 + 1 + 200 + 100, [1])
    for refused in (
        ("other", b"v", None),
        ([], b"v", None),
        ("t", "v", None),
        ("t", None, b"k"),
        ("t", bytearray(b"v"), None),
        ("t", b"v", 7),
        ("t", b"v", bytearray(b"k")),
        ("t", b"v" * 5000, None),
    ):
        assert made.enter(made, *refused) is None
    for what, name, value in (
        (made.portal, "closed", True),
        (made.accumulator, "direct", False),
        (made.accumulator, "barred", InvalidArgumentError("not now")),
    ):
        before = getattr(what, name)
        setattr(what, name, value)
        assert made.enter(made, "t", b"v", None) is None
        setattr(what, name, before)
    assert not made.queue
    del made.portal.closed
    assert made.enter(made, "t", b"v", None) is None
    with pytest.raises(TypeError, match="an owner, a topic, a value and a key"):
        made.enter("t", b"v", None)


def items(queue: Any) -> list[Any]:
    found = []
    while (item := queue.first()) is not None:
        found.append(item)
        queue.popleft()
    return found


def test_a_full_or_closed_entrance_leaves_it_to_python() -> None:
    made = entrance()
    while made.enter(made, "t", b"v" * 1000, None) is not None:
        pass
    assert len(made.queue) == 9
    before = sys.getrefcount(made)
    assert made.enter(made, "t", b"v", None) is None
    assert sys.getrefcount(made) == before
    for record in made.queue.close():
        assert isinstance(record, BlockingDelivery)
    assert made.enter(made, "t", b"v", None) is None


def test_nobody_who_comes_is_reported_each_time() -> None:
    made = entrance()

    def closed() -> None:
        raise ClosedError("closed")

    made.begin = closed
    for _ in range(3):
        with pytest.raises(ClosedError):
            made.enter(made, "t", b"v", None)


async def test_records_move_into_their_batches_until_one_needs_more() -> None:
    made = entrance()
    decide = made.accumulator.try_append
    decide("t", b"opens a batch", None, (), None, None)
    taken = [made.enter(made, "t", b"%d" % number, None) for number in range(5)]
    made.queue.offer(late := HandedOver(), 1, 0.0, ("t", b"with arguments", None, (), None, 7))
    behind = made.enter(made, "t", b"behind", None)
    told: list[object] = []
    taken[3]._callbacks = [told.append]
    assert made.queue.move(made.accumulator) == 5 * 201
    assert [each._delivery._index for each in taken] == [1, 2, 3, 4, 5]
    assert taken[3]._callbacks is None
    assert late._delivery is None and behind._delivery is None
    made.queue.popleft()
    made.accumulator.barred = InvalidArgumentError("not now")
    assert made.queue.move(made.accumulator) == 0
    made.accumulator.barred = None
    made.accumulator.waiting = 1
    assert made.queue.move(made.accumulator) == 0
    made.accumulator.waiting = 0
    assert made.queue.move(made.accumulator) == 206
    assert behind._delivery._index == 6
    (batch,) = made.accumulator.pending
    batch.seal(None, -1, "none")
    values = [each.value for each in records(batch.data)]
    assert values == [b"opens a batch", b"0", b"1", b"2", b"3", b"4", b"behind"]


async def test_an_error_of_a_callback_goes_on() -> None:
    made = entrance()
    made.accumulator.try_append("t", b"opens a batch", None, (), None, None)
    made.enter(made, "t", b"v", None)._callbacks = 7
    with pytest.raises(TypeError, match="not iterable"):
        made.queue.move(made.accumulator)
    assert not made.queue


async def test_references_are_given_back() -> None:
    made = entrance(1 << 20)
    made.accumulator.try_append("t", b"opens a batch", None, (), None, None)
    (batch,) = made.accumulator.pending
    value, key, topic = b"a value", b"a key", "".join(["", "t"])
    made.accumulator.try_append("t", b"tells where its key goes", key, (), None, None)

    def use() -> None:
        for _ in range(200):
            made.enter(made, topic, value, key)
            made.enter(made, topic, value, None)
            made.enter(made, "other", value, None)
            if len(made.queue) > 20:
                made.queue.move(made.accumulator)
                made.queue.first()
                made.queue.waiting()
                items(made.queue)
                made.queue.settle(made.queue.queued)
        made.queue.move(made.accumulator)
        items(made.queue)
        made.queue.settle(made.queue.queued)
        assert batch.count > 300

    def held() -> list[int]:
        gc.collect()
        counts = [
            sys.getrefcount(each) for each in (value, key, topic, made, batch, made.queue, BlockingDelivery)
        ]
        return [*counts, sys.getallocatedblocks() // 100]

    use()
    before = held()
    for _ in range(20):
        use()
    assert all(abs(now - then) < 20 for now, then in zip(held(), before, strict=True))


async def test_a_queue_that_refers_to_itself_is_collected() -> None:
    value, made = b"".join([b"a", b"b"]), [entrance()]
    made[0].enter(made, "t", value, None)._callbacks = made
    made[0].queue.offer(HandedOver(), 1, 0.0, (made[0].queue,))
    count = sys.getrefcount(value)
    made.clear()
    gc.collect()
    assert sys.getrefcount(value) < count


@pytest.fixture
def threaded() -> Iterator[ThreadedCluster]:
    with threaded_cluster() as cluster:
        yield cluster


def test_threads_send_in_order(threaded: ThreadedCluster) -> None:
    """Records with and without more to say, with keys, behind full memory."""
    with BlockingProducer(threaded.urls, buffer_memory=20_000, linger_ms=0) as producer:
        producer.prepare("t")
        sent = []
        for number in range(500):
            value = b"%d" % number
            if number % 7 == 0:
                sent.append(producer.send("t", value, headers=[("a", b"b")]))
            elif number % 5 == 0:
                sent.append(producer.send("t", value, key=b"%d" % (number % 3)))
            elif number % 97 == 0:
                sent.append(producer.send("t", value + b"x" * 15_000))
            else:
                sent.append(producer.send("t", value))
        offsets = [each.result(PATIENCE).offset for each in sent]
        assert producer._handover.entrance is not None
    assert offsets == list(range(500))
    values = threaded.cluster.topics["t"][0].values()
    assert [value and value.rstrip(b"x") for value in values] == [b"%d" % number for number in range(500)]


def test_functions_of_the_user_see_each_record_in_the_calling_thread(threaded: ThreadedCluster) -> None:
    seen: list[tuple[object, int]] = []

    def serialize(value: Any) -> bytes:
        seen.append((value, threading.get_ident()))
        return str(value).encode()

    def partitioner(topic: str, key: bytes | None, count: int) -> int:
        seen.append((key, threading.get_ident()))
        return 0

    options: list[dict[str, Callable[..., Any]]] = [
        {"value_serializer": serialize},
        {"partitioner": partitioner},
    ]
    for option in options:
        seen.clear()
        with BlockingProducer(threaded.urls, **option) as producer:
            for number in range(3):
                producer.send("t", b"%d" % number, key=b"%d" % number).result(PATIENCE)
        assert {what for what, _ in seen} == {b"0", b"1", b"2"}
        assert {who for _, who in seen} == {threading.get_ident()}


def test_a_closed_producer_refuses(threaded: ThreadedCluster) -> None:
    threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[answer_after(0.0)]))
    with BlockingProducer(threaded.urls) as producer:
        producer.send("t", b"x")
        producer.send("t", b"y")
    for _ in range(2):
        with pytest.raises(ClosedError):
            producer.send("t", b"z")
    assert threaded.cluster.topics["t"][0].values() == [b"x", b"y"]
