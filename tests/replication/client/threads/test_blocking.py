from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from insync.replication.client import (
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    BootstrapError,
    BufferFullError,
    ClosedError,
    DeliveryTimeoutError,
    RecordTooLargeError,
    TopicExistsError,
    TransactionAbortableError,
    TransactionStateError,
    UnknownTopicError,
)
from insync.replication.client.consumer import put_back, put_back_batches
from insync.replication.client.threads._elsewhere import undo_step
from insync.replication.client.threads._handover import HandedOver, Handover
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind

from ..faults import drop
from ..patience import PATIENCE
from ..producer.test_transactions import Script, ends
from ..threaded_cluster import ThreadedCluster, threaded_cluster


@pytest.fixture
def threaded() -> Iterator[ThreadedCluster]:
    with threaded_cluster() as cluster:
        yield cluster


def test_send_result_flush_and_read_back(threaded):
    with BlockingProducer(threaded.urls) as producer:
        first = producer.send("t", b"a", key=b"k", timestamp_ms=3)
        assert first.result(5) == ("t", 0, 0, 3)
        more = [producer.send("t", b"%d" % n) for n in range(300)]
        producer.flush(5)
        assert all(d.done() for d in more)
        assert [d.result().offset for d in more] == list(range(1, 301))
        many = producer.send_many("t", [b"x"] * 50)
    assert many[49].result().offset == 350
    with BlockingConsumer(threaded.urls, auto_offset_reset="earliest") as consumer:
        assert consumer.assign_topic("t") == [("t", 0)]
        assert consumer.end_offsets([("t", 0)]) == {("t", 0): 351}
        found = []
        for record in consumer:
            found.append(record.offset)
            if len(found) == 120:
                break
        found += [record.offset for _, record in zip(range(231), consumer, strict=False)]
        assert found == list(range(351))
        consumer.seek(("t", 0), 7)
        assert consumer.poll(5000)[0].value == b"6"


def test_no_headers_may_be_none(threaded):
    """As for `Producer.send`."""
    with BlockingProducer(threaded.urls) as producer:
        sent = [producer.send("t", b"x", headers=none) for none in (None, (), [], None)]
        assert [each.result(30).offset for each in sent] == [0, 1, 2, 3]
    assert threaded.cluster.topics["t"][0].values() == [b"x"] * 4


def test_errors_are_raised_in_the_caller(threaded):
    with BlockingProducer(threaded.urls, max_request_size=1000) as producer:
        with pytest.raises(UnknownTopicError, match="'nope'"):
            producer.send("nope", b"x")
        with pytest.raises(RecordTooLargeError):
            producer.send("t", bytes(2000))
        with pytest.raises(TypeError, match="must be bytes"):
            producer.send("t", "text")
        assert producer.send("t", b"x").result(5).offset == 0
        # By now the topic is known, and records are checked in this thread: a key counts like a value.
        with pytest.raises(RecordTooLargeError):
            producer.send("t", bytes(500), key=bytes(500))
        assert producer.send("t", bytes(400), key=bytes(400)).result(5).offset == 1
    with BlockingAdmin(threaded.urls) as admin, pytest.raises(TopicExistsError):
        admin.create_topic("t", 1, 1)
    with pytest.raises(BootstrapError, match=r"127\.0\.0\.1:1"):
        BlockingProducer("127.0.0.1:1")


def test_admin(threaded):
    with BlockingAdmin(threaded.urls) as admin:
        assert admin.create_topic("u", 2, 2) == "id-u"
        assert admin.list_topics() == ["t", "u"]
        assert [len(t.partitions) for t in admin.describe_topics()] == [1, 2]
        assert admin.describe_cluster().controller_id == 0
        assert [r.alive for r in admin.describe_replicas()] == [True, True]


def test_transactions_that_are_aborted_and_committed(threaded):
    script = Script(threaded.cluster)
    with BlockingProducer(threaded.urls, transactional_id="etl") as producer:
        producer.begin()
        producer.send("t", b"x").result(5)
        producer.abort()
        with producer.transaction() as txn:
            txn.send("t", b"y")
    assert ends(script) == [(0, False), (1, True)]


def test_a_block_begins_with_the_abort_that_was_not_confirmed(threaded):
    script = Script(threaded.cluster)
    with BlockingProducer(threaded.urls, transactional_id="etl") as producer:
        script.let(Kind.END_TXN, ErrorCode.INVALID_TXN_STATE)
        with pytest.raises(KeyError), producer.transaction() as txn:
            txn.send("t", b"x").result(5)
            raise KeyError
        with pytest.raises(TransactionStateError, match="not confirmed yet"):
            producer.begin()
        with producer.transaction() as txn:
            txn.send("t", b"y")
    assert ends(script) == [(0, False), (0, False), (1, True)]


def test_an_abort_drops_what_waits_to_be_sent_or_to_be_taken_over(threaded):
    """It does not wait for a leader that never answers."""
    Script(threaded.cluster)
    settings = {"buffer_memory": 2000, "request_timeout_ms": 300, "delivery_timeout_ms": 5000}
    with BlockingProducer(threaded.urls, transactional_id="etl", **settings) as producer:
        assert producer.prepare("t") == 1
        threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
        producer.begin()
        sent = [producer.send("t", bytes(1500)) for _ in range(4)]
        while not threaded.cluster.nodes[0].seen[Kind.PRODUCE]:
            threaded.do(lambda: None)
        producer.abort()
        assert all(each.done() for each in sent)
        for each in sent[1:]:
            assert isinstance(each.exception(5), TransactionAbortableError), each
        threaded.do(lambda: threaded.cluster.nodes[0].before[Kind.PRODUCE].clear())
        with producer.transaction() as txn:
            txn.send("t", b"y")


def test_a_record_is_taken_over_though_room_comes_before_the_task_that_waits_for_it(threaded, monkeypatch):
    Script(threaded.cluster)
    settings = {"buffer_memory": 2000, "delivery_timeout_ms": 120_000, "linger_ms": 60_000}
    with BlockingProducer(threaded.urls, transactional_id="etl", **settings) as producer:
        producer.prepare("t")
        handover, move, full = producer._handover, producer._handover._move, []

        def move_and_make_room() -> bool:
            left = move()
            if left and not full:
                full.append(left)
                producer._held._sender.give_up_transaction(TransactionAbortableError("room is made"))
            return left

        monkeypatch.setattr(handover, "_move", move_and_make_room)
        producer.begin()
        sent = [producer.send("t", bytes(1500)) for _ in range(2)]
        errors = [each.exception(10) for each in sent]
        assert all(isinstance(error, TransactionAbortableError) for error in errors) and full, errors
        producer.abort()


@pytest.mark.parametrize("how", ["abort", "an error leaves the block"])
def test_what_was_queued_in_an_aborted_transaction_is_not_sent_in_the_next_one(threaded, how):
    """It is queued behind a record whose topic has gone and that waits for it to come back."""
    Script(threaded.cluster)
    with BlockingProducer(threaded.urls, transactional_id="etl") as producer:
        producer.prepare("t")
        gone, behind = HandedOver(), HandedOver()

        def looks() -> int:
            return sum(node.seen[Kind.METADATA] for node in threaded.cluster.nodes)

        def queue() -> None:
            before = looks()
            assert producer._handover.offer(gone, "gone", b"x", None, (), None, None)
            assert producer._handover.offer(behind, "t", b"behind", None, (), None, None)
            while looks() == before:
                threaded.do(lambda: None)

        if how == "abort":
            producer.begin()
            queue()
            producer.abort()
        else:
            with pytest.raises(KeyError), producer.transaction():
                queue()
                raise KeyError
        assert gone.done() and behind.done()
        with producer.transaction() as txn:
            txn.send("t", b"y").result(5)
        assert behind._failure() is not None and gone._failure() is not None
        assert threaded.cluster.topics["t"][0].end == 1


def test_many_threads_share_a_producer(threaded):
    with BlockingProducer(threaded.urls) as producer, ThreadPoolExecutor(8) as pool:

        def work(worker: int) -> list[int]:
            return [d.result(10).offset for d in [producer.send("t", b"%d" % worker) for _ in range(200)]]

        offsets = list(pool.map(work, range(8)))
    assert all(mine == sorted(mine) for mine in offsets)
    assert sorted(itertools.chain.from_iterable(offsets)) == list(range(1600))


def test_asyncio_can_wait_for_a_delivery(threaded):
    async def main(producer: BlockingProducer) -> int:
        return (await asyncio.wrap_future(producer.send("t", b"x").as_future())).offset

    with BlockingProducer(threaded.urls) as producer:
        assert asyncio.run(main(producer)) == 0


def test_callbacks_hear_of_every_outcome_also_of_what_never_was_a_batch(threaded):
    heard: list[object] = []
    with BlockingProducer(threaded.urls, buffer_memory=2000, delivery_timeout_ms=3000) as producer:
        good = producer.send("t", b"x", on_delivery=heard.append)
        good.result(5)
        threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
        bad = [producer.send("t", bytes(1500), on_delivery=heard.append)]
        # The second one finds no room behind the first, and gives up before that one does.
        producer._handover._delivery_timeout = 0.1
        bad.append(producer.send("t", bytes(1500), on_delivery=heard.append))
        with pytest.raises(DeliveryTimeoutError, match="no space in buffer_memory"):
            bad[1].result(PATIENCE)
        assert isinstance(bad[0].exception(PATIENCE), DeliveryTimeoutError)
        producer.flush(5)
    assert heard[0] is good and set(heard[1:]) == set(bad)
    assert "offset=0" in repr(good) and "DeliveryTimeout" in repr(bad[1])


def test_send_nowait_and_prepare(threaded):
    with BlockingProducer(threaded.urls, buffer_memory=100_000, value_serializer=str.encode) as producer:
        assert producer.prepare("t") == 1
        assert producer.send_nowait("t", "a").result(5).offset == 0
        many = producer.send_many("t", ["b", "c"])
        assert [each.offset for each in many.result(5)] == [1, 2]
        assert many.done() and len(many) == 2 and many[1].result().offset == 2
        threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
        started = time.monotonic()
        with pytest.raises(BufferFullError, match="no buffer space: "):
            for _ in range(20_000):
                producer.send_nowait("t", "x" * 1000)
        assert time.monotonic() - started < 10
        with pytest.raises(TimeoutError):
            producer.send_many("t", ["d"], timeout=0.05)
        producer.close(0.1)


def test_futures_end_with_the_producer(threaded):
    with BlockingProducer(threaded.urls) as producer:
        assert producer.send("t", b"x").as_future().result(5).offset == 0
        threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
        sent = producer.send("t", b"y")
        never = sent.as_future()
        producer.close(0.1)
        for future in (never, sent.as_future(), producer._handover.promise(HandedOver())):
            with pytest.raises(ClosedError):
                future.result(5)


def test_who_waits_for_room_is_woken_by_the_end(threaded):
    woken = threading.Event()
    with BlockingProducer(threaded.urls) as producer:
        handover = producer._handover
        waiting = threading.Event()
        handover._queue.queued = 1 << 30

        def wait() -> None:
            with handover._space:
                waiting.set()
                handover.wait_for_space(3600)
            woken.set()

        threading.Thread(target=wait, daemon=True).start()
        assert waiting.wait(PATIENCE)
    assert woken.wait(PATIENCE)


def test_a_record_that_is_queued_as_the_thread_ends_is_not_forgotten():
    """Who queues it has found the producer open; the thread ends before it is in the queue, or after."""
    early, late = HandedOver(), HandedOver()

    class Ending:
        ended = Future()

        @property
        def closed(self):
            if early._callbacks is not None and not self.ended.done():
                self.ended.set_result(None)
            return False

        def post(self, function):
            return None

    intake = SimpleNamespace(is_plain=False)
    handover = Handover(Ending(), lambda: SimpleNamespace(intake=intake), 1000, HandedOver)
    assert handover.offer(early, "t", b"x", None, (), None, None)
    assert not early.done()
    told = []
    early._callbacks = [told.append]
    with pytest.raises(ClosedError):
        handover.offer(late, "t", b"x", None, (), None, None)
    assert isinstance(early._failure(), ClosedError)
    assert told == [early]


def test_who_asks_for_space_that_is_there_is_told_at_once():
    portal = SimpleNamespace(closed=False, ended=Future())
    handover = Handover(portal, lambda: None, 1000, HandedOver)
    told = []
    handover.tell_of_space(lambda: told.append(True))
    assert told


def test_an_outcome_that_is_known_is_told_after_the_end_too(threaded):
    with BlockingProducer(threaded.urls) as producer:
        sent = producer.send("t", b"x")
        assert sent.result(30).offset == 0
    assert sent.as_future().result(30).offset == 0
    assert sent.result(30).offset == 0


def test_a_poll_that_finds_nothing_ends_with_its_time(threaded):
    with ThreadPoolExecutor(1) as pool, BlockingConsumer(threaded.urls) as consumer:
        consumer.assign([("t", 0)])
        assert pool.submit(consumer.poll, 1).result(PATIENCE) == []


def test_pause_and_resume(threaded):
    with BlockingProducer(threaded.urls) as producer:
        producer.send_many("t", [b"x"] * 3)
    with BlockingConsumer(threaded.urls, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        consumer.pause()
        assert consumer.paused() == [("t", 0)]
        assert consumer.poll(100) == []
        consumer.resume()
        assert len(consumer.poll(5000)) == 3
        assert consumer.high_watermark(("t", 0)) == 3


def test_what_was_polled_for_somebody_who_has_gone_comes_again(threaded):
    with BlockingProducer(threaded.urls) as producer:
        producer.send_many("t", [b"x"] * 30)
    with BlockingConsumer(threaded.urls, auto_offset_reset="earliest", max_poll_records=10) as consumer:
        consumer.assign([("t", 0)])
        portal, held = consumer._portal, consumer._held
        late = portal.submit(lambda: held.poll(5000), lambda unread: put_back(held, unread))
        assert len(late.future.result(5)) == 10
        # As a KeyboardInterrupt does that comes after the records and before anybody has them.
        late.abandon()
        assert [each.offset for each in consumer.poll(5000)] == list(range(10))
        consumer.seek(("t", 0), 30)
        early = portal.submit(lambda: held.poll(60_000), lambda unread: put_back(held, unread))
        assert early.give_up()
        consumer.seek(("t", 0), 5)
        late_batches = portal.submit(
            lambda: held.poll_batches(5000), lambda unread: put_back_batches(held, unread)
        )
        assert late_batches.future.result(5)[0].next_offset == 30
        late_batches.abandon()
        assert [each.offset for each in consumer.poll(5000)] == list(range(5, 15))


def test_positions_within_a_loop_are_behind_its_record(threaded):
    """They may be committed with a transaction: a loop polls hundreds of records ahead."""
    with BlockingProducer(threaded.urls) as producer:
        producer.send_many("t", [b"x"] * 30)
    with BlockingConsumer(threaded.urls, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        for seen, record in enumerate(consumer, 1):
            assert consumer.positions() == {("t", 0): seen}
            assert (consumer.position(("t", 0)), record.offset) == (seen, seen - 1)
            assert consumer.lag() == {("t", 0): 30 - seen}
            if seen == 12:
                break
        assert consumer.positions() == {("t", 0): 12} and consumer.lag() == {("t", 0): 18}


def test_the_end_of_one_loop_leaves_the_positions_of_another_behind_its_record(threaded):
    """Both have nothing ahead when the inner one is left."""
    with (
        BlockingProducer(threaded.urls) as producer,
        BlockingConsumer(threaded.urls, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([("t", 0)])
        outer, inner = iter(consumer), iter(consumer)
        for offset, loop in enumerate((outer, inner)):
            producer.send("t", b"x").result(PATIENCE)
            assert next(loop).offset == offset
        inner.close()
        producer.send_many("t", [b"x"] * 3)
        producer.flush()
        assert next(outer).offset == 2
        assert consumer.position(("t", 0)) == 3


def test_a_loop_polls_when_what_another_thread_took_from_it_is_put_back(threaded, monkeypatch):
    with BlockingProducer(threaded.urls) as producer:
        producer.send_many("t", [b"x"] * 20)
    with (
        BlockingConsumer(threaded.urls, auto_offset_reset="earliest", max_poll_records=10) as consumer,
        ThreadPoolExecutor(1) as pool,
    ):
        consumer.assign([("t", 0)])
        loop = iter(consumer)
        assert next(loop).offset == 0
        post, polls = consumer._portal.try_post, threading.Event()
        found = []

        def late(function):
            found.append(pool.submit(next, loop))
            polls.wait(1)  # it does not, if all is well
            post(function)

        def poll(*arguments):
            polled = BlockingConsumer.poll(consumer, *arguments)
            polls.set()
            return polled

        monkeypatch.setattr(consumer._portal, "try_post", late)
        monkeypatch.setattr(consumer, "poll", poll)
        consumer._put_back(*consumer._aheads)
        monkeypatch.setattr(consumer._portal, "try_post", post)
        assert found[0].result(PATIENCE).offset == 1


def test_a_loop_goes_on_where_it_is_told_to(threaded):
    with BlockingProducer(threaded.urls) as producer:
        producer.send_many("t", [b"x"] * 30)
    for change, following in (
        (lambda consumer: consumer.seek(("t", 0), 3), 3),
        (lambda consumer: consumer.seek_to_beginning(), 0),
        (lambda consumer: consumer.assign([("u", 0)]) or consumer.assign([("t", 0)]), 0),
        (lambda consumer: consumer.pause() or consumer.resume(), 12),
    ):
        with BlockingConsumer(threaded.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            seen = []
            for record in consumer:
                seen.append(record.offset)
                if len(seen) == 12:
                    change(consumer)
                elif len(seen) == 15:
                    break
            assert seen == [*range(12), *range(following, following + 3)]
    with BlockingConsumer(threaded.urls, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        records = iter(consumer)
        assert next(records).offset == 0
        consumer.pause()
        assert consumer.poll(0) == []
        consumer.close()
        with pytest.raises(ClosedError):
            next(records)


def test_a_step_that_nobody_has_waited_for_comes_again_though_it_gave_one_thing(threaded):
    with BlockingProducer(threaded.urls) as producer:
        producer.send_and_wait("t", b"x", partition=0)
    with BlockingConsumer(threaded.urls, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        portal, held = consumer._portal, consumer._held
        for ask in (lambda: held.poll(30_000), lambda: held.poll_batches(30_000)):
            late = portal.submit(ask, lambda unread: undo_step(held, unread))
            assert len(late.future.result(30)) == 1
            late.abandon()
        assert [each.value for each in consumer.poll(30_000)] == [b"x"]


def test_a_result_that_does_not_come_times_out_and_close_does_not_hang(threaded):
    with BlockingProducer(threaded.urls) as producer:
        producer.send("t", b"x").result(5)
        for node in threaded.cluster.nodes:
            threaded.do(lambda node=node: node.script(Kind.PRODUCE, *[drop] * 1000))
        delivery = producer.send("t", b"y")
        with pytest.raises(TimeoutError):
            delivery.result(0.1)
        started = time.monotonic()
        producer.close(0.2)
        assert time.monotonic() - started < 20
    with pytest.raises(ClosedError):
        producer.send("t", b"z")
    with pytest.raises(ClosedError):
        delivery.result(1)


def test_send_waits_for_space_and_then_says_so(threaded):
    with BlockingProducer(threaded.urls, buffer_memory=100_000, max_block_ms=2_000) as producer:
        producer.send("t", b"x").result(30)
        threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
        with pytest.raises(BufferFullError):
            for _ in range(20_000):
                producer.send("t", bytes(1000))
        producer.close(0.1)


def test_records_are_taken_over_once_though_one_comes_as_the_queue_runs_empty(threaded, monkeypatch):
    """The task that waits for room has just emptied the queue when another thread queues a record."""
    with BlockingProducer(threaded.urls, buffer_memory=100_000, linger_ms=0) as producer:
        handover = producer._handover
        account = handover._account
        late: list[HandedOver] = []

        def account_and_queue(moved: int) -> bool:
            left = account(moved)
            if handover._waits and moved and not left and len(late) < 20:
                sender = threading.Thread(target=lambda: late.append(producer.send("t", bytes(20_000))))
                sender.start()
                sender.join(10)
            return left

        monkeypatch.setattr(handover, "_account", account_and_queue)
        early = [producer.send("t", bytes(20_000)) for _ in range(100)]
        offsets = [each.result(20).offset for each in early]
        # Each of these has brought on the next one before its outcome is known.
        offsets += [each.result(20).offset for each in late]
        assert late, "no record came at that moment"
        assert len(set(offsets)) == len(offsets), "none was sent in place of another"
        assert sorted(offsets) == list(range(len(offsets))), "none was sent twice"


INTERRUPTED = """
import signal, sys, time
from insync.replication.client import BlockingProducer
# Where the tests themselves run in the background, Ctrl-C is ignored, and so it would be here.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with BlockingProducer(sys.argv[1]) as producer:
        producer.send("t", b"x").result(5)
        print("ready", flush=True)
        while True:
            producer.send("t", b"y").result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_script_at_once(threaded):
    script = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, threaded.urls[0]], stdout=subprocess.PIPE, text=True
    )
    try:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        script.send_signal(signal.SIGINT)
        out, _ = script.communicate(timeout=10)
        assert out == "interrupted\n"
        assert script.returncode == 0
    finally:
        script.kill()
        script.wait()


LEFT_OPEN = """
import sys
from insync.replication.client import BlockingConsumer, BlockingProducer
consumer = BlockingConsumer(sys.argv[1], auto_offset_reset="earliest")
producer = BlockingProducer(sys.argv[1], linger_ms=60_000)
for n in range(500):
    producer.send("t", b"%d" % n, on_delivery=None)
"""


def test_what_is_left_open_is_flushed_when_the_interpreter_exits(threaded):
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, threaded.urls[0]], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert threaded.cluster.topics["t"][0].values() == [b"%d" % n for n in range(500)]


FORKED = """
import os, sys
from insync.replication.client import BlockingProducer, ClosedError
producer = BlockingProducer(sys.argv[1])
producer.send("t", b"parent").result(5)
child = os.fork()
if child == 0:
    try:
        producer.send("t", b"child").result(5)
    except ClosedError as error:
        print(error, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
producer.send("t", b"parent again").result(5)
"""


def test_a_forked_child_is_told_to_open_its_own(threaded):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, threaded.urls[0]], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "opened by the parent process: open one in each process" in done.stdout
    assert threaded.cluster.topics["t"][0].values() == [b"parent", b"parent again"]


def test_the_hand_over_takes_more_than_it_holds_at_once(threaded):
    """Who waits for room is woken: an hour is more than the test has."""
    with ThreadPoolExecutor(1) as pool, BlockingProducer(threaded.urls, max_block_ms=3_600_000) as producer:
        sending = pool.submit(lambda: [producer.send("t", bytes(20_000)) for _ in range(400)])
        deliveries = sending.result(PATIENCE)
        assert [each.result(10).offset for each in deliveries] == list(range(400))


def test_what_was_not_taken_over_when_the_producer_ends_says_so(threaded):
    with BlockingProducer(threaded.urls, buffer_memory=50_000, linger_ms=0) as producer:
        producer.send("t", b"x").result(5)
        threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
        deliveries = [producer.send("t", bytes(20_000)) for _ in range(20)]
        producer.close(0.1)
        assert all(each.done() for each in deliveries[3:])
        assert all(isinstance(each.exception(), ClosedError) for each in deliveries[3:])


def test_a_begin_that_is_interrupted_when_it_is_done_is_taken_back(threaded, monkeypatch):
    """Whoever was interrupted does not know that a transaction is open, and will begin another one."""
    real, interrupts = Future.result, [KeyboardInterrupt()]

    def result(future, timeout=None):
        found = real(future, timeout)
        if interrupts:
            raise interrupts.pop()
        return found

    Script(threaded.cluster)
    with BlockingProducer(threaded.urls, transactional_id="x") as producer:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Future, "result", result)
            producer.begin()
        producer.begin()
        producer.abort()
