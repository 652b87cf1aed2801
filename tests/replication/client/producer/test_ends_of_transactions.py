"""What becomes of records and calls that meet the end of a transaction: they are in it, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import (
    Admin,
    ClientError,
    ClosedError,
    Consumer,
    InvalidArgumentError,
    InvalidSettingError,
    Producer,
    ProducerSettings,
    RecordTooLargeError,
    RequestTimeoutError,
    TransactionAbortableError,
    TransactionalBatchProducer,
    TransactionOutcomeUnknownError,
    TransactionStateError,
)
from insync.replication.client.errors import InvalidRecordError
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.storage.batch import build_batch

from ..fake_cluster import FakeNode, fake_cluster
from ..faults import answer_when, fail_with
from ..patience import PATIENCE
from .test_transactions import MEMBER, READ, SILENCE, Clock, Script, at_work, batches, ends, epochs


class _Steps(trio.abc.Instrument):
    """Cancels when this task has taken so many steps."""

    def __init__(self, scope: trio.CancelScope, left: int) -> None:
        self._task = trio.lowlevel.current_task()
        self._scope = scope
        self._left = left

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()
                trio.lowlevel.remove_instrument(self)


def cancel_after(scope: trio.CancelScope, steps: int) -> None:
    """Cancel when this task has gone on so many times; 0: now."""
    if steps == 0:
        scope.cancel()
    else:
        trio.lowlevel.add_instrument(_Steps(scope, steps))


SMALL = {"buffer_memory": 1_000, "linger_ms": 60_000}
LARGE = b"x" * 600
ABOUT = "^transactional_id 'etl': "


async def test_a_record_that_waits_for_space_does_not_follow_its_transaction(autojump_clock: Clock) -> None:
    """It is asked for in a transaction whose end makes the room that it waits for."""
    async with at_work(**SMALL) as (cluster, script, producer), trio.open_nursery() as nursery:
        refused: list[str] = []

        async def send_more() -> None:
            with pytest.raises(ClientError, match=ABOUT) as told:
                await producer.send("t", LARGE)
            refused.append(str(told.value))

        for end in (producer.commit, producer.abort):
            answered = trio.Event()
            cluster.nodes[0].script(m.Kind.PRODUCE, answer_when(answered))
            producer.begin()
            await producer.send("t", LARGE)
            nursery.start_soon(send_more)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as ending:
                ending.start_soon(end)
                await trio.testing.wait_all_tasks_blocked()
                answered.set()
        assert [batch[:3] for batch in epochs(cluster)] == [(7, 0, 0), (7, 1, 0)]
        assert ends(script) == [(0, True), (1, False)]
    committed, aborted = refused
    assert "is being committed" in committed and "is being aborted" in aborted


async def test_a_record_of_an_earlier_transaction_is_not_sent_in_the_next_one(autojump_clock: Clock) -> None:
    """It waits to hear of its topic; when that is known, another transaction is open."""
    async with at_work() as (cluster, _, producer), trio.open_nursery() as nursery:
        told = trio.Event()
        cluster.nodes[0].script(m.Kind.METADATA, answer_when(told), answer_when(told))

        async def send(many: bool) -> None:
            with pytest.raises(TransactionStateError, match=f"{ABOUT}.*send it again in another one"):
                await (producer.send_many("t", [b"x"]) if many else producer.send("t", b"x"))

        producer.begin()
        for many in (False, True):
            nursery.start_soon(send, many)
        await trio.testing.wait_all_tasks_blocked()
        await producer.commit()
        producer.begin()
        told.set()
        await trio.testing.wait_all_tasks_blocked()
        await producer.send("t", b"y")
        await producer.commit()
        assert cluster.topics["t"][0].values() == [b"y"]


async def test_many_records_stop_where_their_transaction_ends(autojump_clock: Clock) -> None:
    async with at_work() as (cluster, _, producer), trio.open_nursery() as nursery:
        await producer.prepare("t")
        for keys in (None, [b"%d" % number for number in range(10_000)]):
            refused = trio.Event()

            async def send_many(keys: list[bytes] | None, refused: trio.Event) -> None:
                with pytest.raises(TransactionStateError, match=f"{ABOUT}.*is being committed"):
                    await producer.send_many("t", [b"x"] * 10_000, keys)
                refused.set()

            producer.begin()
            before = len(cluster.topics["t"][0].values())
            nursery.start_soon(send_many, keys, refused)
            with trio.fail_after(PATIENCE):
                while not producer._accumulator.pending:
                    await trio.lowlevel.checkpoint()
            await producer.commit()
            await refused.wait()
            assert 0 < len(cluster.topics["t"][0].values()) - before < 10_000


async def test_a_record_of_another_thread_is_refused_behind_the_end(autojump_clock: Clock) -> None:
    """It was checked while the transaction was open."""
    async with at_work() as (_, _, producer):
        await producer.prepare("t")
        producer.begin()
        checked = producer.intake.check("t", b"x", None, (), None, None)
        assert checked is not None
        await producer.commit()
        with pytest.raises(TransactionStateError, match=f"{ABOUT}.*no transaction is open"):
            producer.intake.try_take(*checked)
        producer.begin()
        assert producer.intake.try_take(*checked) is not None


async def test_a_send_says_why_it_cannot_be_now(autojump_clock: Clock) -> None:
    async with at_work(linger_ms=0) as (cluster, script, producer), trio.open_nursery() as nursery:
        with pytest.raises(TransactionStateError, match=f"{ABOUT}send .*no transaction is open"):
            await producer.send("t", b"x")
        for end, said in ((producer.commit, "is being committed"), (producer.abort, "is being aborted")):
            answered = trio.Event()
            cluster.nodes[0].script(m.Kind.PRODUCE, answer_when(answered))
            producer.begin()
            delivery = await producer.send("t", b"x")
            await trio.testing.wait_all_tasks_blocked()
            before = ends(script)
            nursery.start_soon(end)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ClientError, match=f"{ABOUT}.*{said}"):
                await producer.send("t", b"y")
            assert ends(script) == before, "what is in flight comes to rest first"
            answered.set()
            assert (await delivery.wait()).offset >= 0
            await trio.testing.wait_all_tasks_blocked()
            assert len(ends(script)) == len(before) + 1
        assert cluster.topics["t"][0].values() == [b"x", b"x"]


@pytest.mark.parametrize("make", [Producer.commit, Producer.abort])
async def test_two_tasks_end_one_transaction(autojump_clock: Clock, make: Callable[[Producer], Any]) -> None:
    """Only one of them can; and what it is told ends no other transaction."""
    async with at_work(linger_ms=0) as (cluster, script, producer):
        told: list[str] = []

        async def end(how: Callable[[Producer], Any]) -> None:
            try:
                await how(producer)
            except (TransactionStateError, TransactionAbortableError) as error:
                told.append(str(error))

        for others in (Producer.commit, Producer.abort) * 10:
            answered = trio.Event()
            cluster.nodes[0].script(m.Kind.PRODUCE, answer_when(answered))
            producer.begin()
            await producer.send("t", b"x")
            async with trio.open_nursery() as ending:
                ending.start_soon(end, make)
                ending.start_soon(end, others)
                await trio.testing.wait_all_tasks_blocked()
                answered.set()
        assert all("cannot be called now" in each or "being aborted" in each for each in told)
        async with producer.transaction():
            await producer.send("t", b"y")
        assert ends(script)[-1][1]
        assert cluster.topics["t"][0].values()[-1] == b"y"


async def test_an_outcome_that_two_tasks_ask_for_ends_no_later_transaction(autojump_clock: Clock) -> None:
    async with at_work(linger_ms=0) as (cluster, script, producer), trio.open_nursery() as nursery:
        answered, late = trio.Event(), trio.Event()
        waiting = iter((answered, late))

        def handle(node: FakeNode, request: Any) -> bool:
            async def later(told: trio.Event) -> None:
                await told.wait()
                script.handle(node, request)

            told = next(waiting, None) if request.kind == m.Kind.END_TXN else None
            if told is None:
                return script.handle(node, request)
            cluster.nursery.start_soon(later, told)
            return True

        cluster.chaos = handle
        producer.begin()
        await producer.send("t", b"x")
        for _ in range(2):
            nursery.start_soon(producer.commit)
            await trio.testing.wait_all_tasks_blocked()
        answered.set()
        await trio.testing.wait_all_tasks_blocked()
        async with producer.transaction():
            await producer.send("t", b"y")
            late.set()
            await trio.testing.wait_all_tasks_blocked()
            await producer.send("t", b"z")
        assert cluster.topics["t"][0].values() == [b"x", b"y", b"z"]


async def test_the_later_of_two_answers_about_one_end_may_be_a_refusal(autojump_clock: Clock) -> None:
    async with at_work(linger_ms=0) as (cluster, script, producer), trio.open_nursery() as nursery:
        answered, late = trio.Event(), trio.Event()
        waiting = iter((answered, late))

        def handle(node: FakeNode, request: Any) -> bool:
            async def later(told: trio.Event) -> None:
                await told.wait()
                script.handle(node, request)

            told = next(waiting, None) if request.kind == m.Kind.END_TXN else None
            if told is None:
                return script.handle(node, request)
            cluster.nursery.start_soon(later, told)
            return True

        async def refused() -> None:
            with pytest.raises(ClientError, match=f"{ABOUT}INVALID_TXN_STATE: scripted"):
                await producer.commit()

        cluster.chaos = handle
        producer.begin()
        await producer.send("t", b"x")
        for commit in (producer.commit, refused):
            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
        answered.set()
        await trio.testing.wait_all_tasks_blocked()
        script.let(m.Kind.END_TXN, ErrorCode.INVALID_TXN_STATE)
        late.set()
        await trio.testing.wait_all_tasks_blocked()
        async with producer.transaction():
            await producer.send("t", b"y")
        assert cluster.topics["t"][0].values() == [b"x", b"y"]


@pytest.mark.parametrize("use", ["none", "a record that waits", "a record that was sent", "offsets"])
async def test_a_beginning_is_taken_back_unless_somebody_has_used_it(use: str, autojump_clock: Clock) -> None:
    async with at_work(linger_ms=60_000) as (_, script, producer):
        producer.begin()
        if use == "offsets":
            await producer.send_offsets(READ, MEMBER)
        elif use != "none":
            await producer.send("t", b"x")
            if use == "a record that was sent":
                await producer.flush()
        producer.intake.unbegin()
        if use == "none":
            producer.intake.unbegin()  # there is nothing to be taken back any more
            producer.begin()
        await producer.commit()
        assert [committed for _, committed in ends(script)] == [True] * (use != "none")


async def test_a_beginning_that_is_cancelled_leaves_no_transaction(autojump_clock: Clock) -> None:
    async with at_work() as (_, _, producer):
        with trio.CancelScope() as scope:
            scope.cancel()
            await producer.intake.begin()
        assert scope.cancelled_caught
        producer.begin()


async def test_a_failure_is_that_of_its_transaction_alone(autojump_clock: Clock) -> None:
    async with at_work(linger_ms=0) as (cluster, _, producer):
        for code, kind in (
            (ErrorCode.INVALID_RECORD, InvalidRecordError),
            (ErrorCode.RECORD_TOO_LARGE, RecordTooLargeError),
        ):
            cluster.nodes[0].script(m.Kind.PRODUCE, fail_with(code))
            producer.begin()
            with pytest.raises(kind):
                await (await producer.send("t", b"x")).wait()
            with pytest.raises(TransactionAbortableError) as told:
                await producer.commit()
            assert isinstance(told.value.__cause__, kind)
            await producer.abort()


async def test_what_an_abort_drops_is_told_so(autojump_clock: Clock) -> None:
    async with at_work(linger_ms=60_000) as (_, _, producer):
        producer.begin()
        delivery = await producer.send("t", b"x")
        await producer.abort()
        assert str(delivery.error).count("the transaction has failed") == 1
        assert "the transaction is being aborted" in str(delivery.error)


async def test_a_commit_behind_a_cancelled_abort_says_so_once(autojump_clock: Clock) -> None:
    async with at_work(linger_ms=60_000) as (_, _, producer):
        producer.begin()
        delivery = await producer.send("t", b"x")
        with trio.CancelScope() as scope:
            scope.cancel()
            await producer.abort()
        with pytest.raises(TransactionAbortableError, match="being aborted") as told:
            await producer.commit()
        assert str(told.value).count("the transaction has failed") == 1
        assert delivery.error is not None
        await producer.abort()


@pytest.mark.parametrize(
    "make",
    [
        lambda urls: Producer(urls, transactional_id="etl"),
        lambda urls: Consumer(urls, group_id="g"),
        lambda urls: Producer(urls),
        Consumer,
        Admin,
    ],
)
async def test_an_opening_that_is_cancelled_ends_wherever_it_is(make: Callable[[list[str]], Any]) -> None:
    """At its first step, and at each later one."""
    async with fake_cluster(1, t=1) as cluster:
        Script(cluster)
        opened = 0
        for steps in range(100):
            with trio.CancelScope() as scope:
                cancel_after(scope, steps)
                async with make(cluster.urls):
                    opened += 1
            if opened > 1:
                break
        assert opened > 1 and steps > 1


async def test_the_first_failure_is_the_one_that_is_told(autojump_clock: Clock) -> None:
    async with at_work(max_block_ms=5_000) as (cluster, script, producer):
        script.let(m.Kind.TXN_OFFSET_COMMIT, *[SILENCE] * 10)
        cluster.nodes[0].script(m.Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD))
        producer.begin()

        async def send_offsets() -> None:
            with pytest.raises(RequestTimeoutError, match=r"within 5 s"):
                await producer.send_offsets(READ, MEMBER)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_offsets)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(InvalidRecordError):
                await (await producer.send("t", b"x")).wait()
        with pytest.raises(TransactionAbortableError, match=ABOUT) as told:
            await producer.commit()
        assert isinstance(told.value.__cause__, InvalidRecordError)


async def test_offsets_that_are_refused_leave_an_abort(autojump_clock: Clock) -> None:
    async with at_work() as (_, script, producer):
        script.let(m.Kind.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION)
        producer.begin()
        with pytest.raises(
            ClientError, match=r"^offsets of group 'g' in a transaction: ILLEGAL_GENERATION: in-0"
        ):
            await producer.send_offsets(READ, MEMBER)
        with pytest.raises(TransactionAbortableError, match=ABOUT):
            await producer.commit()
        with pytest.raises(InvalidArgumentError, match=r"^group_metadata is "):
            await producer.send_offsets(READ, "g")  # type: ignore[arg-type]


async def test_refusals_of_the_coordinator_name_the_transactional_id(autojump_clock: Clock) -> None:
    async with at_work() as (cluster, script, producer):
        producer.begin()
        await producer.send("t", b"x")
        script.let(m.Kind.END_TXN, ErrorCode.INVALID_TXN_STATE)
        with pytest.raises(ClientError, match=f"{ABOUT}INVALID_TXN_STATE: scripted"):
            await producer.commit()
        with pytest.raises(TransactionAbortableError, match=f"{ABOUT}.*scripted INVALID_TXN_STATE"):
            await producer.send("t", b"y")
        script.let(m.Kind.INIT_TRANSACTIONS, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        with pytest.raises(ClientError, match=f"{ABOUT}INVALID_TRANSACTION_TIMEOUT: scripted"):
            async with Producer(cluster.urls, transactional_id="etl"):
                pass


async def test_an_abort_that_nobody_confirmed_is_not_tried_twice_by_its_block(autojump_clock: Clock) -> None:
    async with at_work(max_block_ms=5_000) as (_, script, producer):
        script.let(m.Kind.END_TXN, *[SILENCE] * 10)
        began = trio.current_time()
        with pytest.raises(TransactionOutcomeUnknownError, match=r"within 5 s.*; call `abort` again"):
            async with producer.transaction():
                await (await producer.send("t", b"x")).wait()
                began = trio.current_time()
                await producer.abort()
        assert trio.current_time() - began < 7.5
        script.let(m.Kind.END_TXN)
        await producer.abort()
        producer.begin()


@pytest.mark.parametrize("why", [SILENCE, ErrorCode.INVALID_TXN_STATE])
async def test_a_block_begins_with_the_abort_that_nobody_confirmed(autojump_clock: Clock, why: Any) -> None:
    """The block before has raised its own error; its producer would be of no use any more."""
    async with at_work(max_block_ms=5_000) as (_, script, producer):
        script.let(m.Kind.END_TXN, *[why] * 20)
        with pytest.raises(KeyError):
            async with producer.transaction():
                await (await producer.send("t", b"x")).wait()
                raise KeyError
        with pytest.raises(ClientError):
            async with producer.transaction():
                raise AssertionError("it is not open")
        asked = len(ends(script))
        script.let(m.Kind.END_TXN)
        async with producer.transaction():
            await producer.send("t", b"y")
        assert ends(script)[asked:] == [(0, False), (1, True)]


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_block_begins_with_the_abort_that_could_not_be_asked_for(
    autojump_clock: Clock, waiting: bool
) -> None:
    """A leader was silent for longer than the end of the block before waits for what is in flight."""
    one_at_once = {"max_in_flight_requests_per_connection": 1, "linger_ms": 0}
    async with at_work(max_block_ms=5_000, **one_at_once) as (cluster, script, producer):
        answered = trio.Event()
        cluster.nodes[0].script(m.Kind.PRODUCE, answer_when(answered))
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send("t", b"x")
                await trio.testing.wait_all_tasks_blocked()
                if waiting:
                    await producer.send("t", b"y")
                raise KeyError
        assert ends(script) == []
        answered.set()
        await producer.flush()
        with pytest.raises(TransactionAbortableError, match="is being aborted"):
            await producer.commit()
        async with producer.transaction():
            await producer.send("t", b"z")
        assert ends(script) == [(0, False), (1, True)]


async def test_a_transaction_that_nobody_was_told_of_ends_with_its_producer(autojump_clock: Clock) -> None:
    """Without an error: it would end the loop of the thread in which the producer is, with all that runs there."""
    async with at_work() as (_, _, producer):
        intake = producer.intake
        await intake.begin()
    intake.unbegin()


# Whole batches, of connectors


async def test_batches_go_with_the_transactional_id_and_offsets_begin_at_zero(autojump_clock: Clock) -> None:
    """What is read of a group is decided: it waits for transactions under way."""
    asked: list[Any] = []
    async with fake_cluster(1, t=1) as cluster:
        script = Script(cluster)

        def watch(node: FakeNode, request: Any) -> bool:
            if request.kind in (m.Kind.PRODUCE, m.Kind.GROUP_OFFSETS):
                asked.append(wire.decode_request(request.kind, request.body))
            if request.kind == m.Kind.GROUP_OFFSETS:
                found = gm.CommittedOffset(topic="in", partition=0, offset=5)
                request.reply(wire.encode(gm.GroupOffsetsResponse(offsets=[found])))
                return True
            return script.handle(node, request)

        cluster.chaos = watch
        async with TransactionalBatchProducer(cluster.urls, transactional_id="etl") as producer:
            who = await producer.begin()
            ids = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch, "base_sequence": 0}
            await producer.send(
                "t", 0, build_batch([None], [b"x"], timestamps_ms=1, transactional=True, **ids)
            )
            await producer.send_offsets("g", {("in", 0): 0})
            await producer.flush()
            assert await producer.committed_offsets("g") == READ
            await producer.end(who, committed=True)
        produced, read = asked
        assert produced.transaction == m.ProduceTransaction(transactional_id="etl")
        assert (read.group, read.require_stable) == ("g", True)
        (sent,) = script.of(gm.TxnOffsetCommitRequest)
        assert [each.offset for each in sent.offsets] == [0]
        assert ends(script) == [(0, True)]


async def test_a_producer_of_batches_that_is_not_open_asks_nothing(autojump_clock: Clock) -> None:
    async with batches() as (script, producer):
        who = await producer.begin()
    asked = len(script.asked)
    for call in (
        producer.begin,
        lambda: producer.committed_offsets("g"),
        lambda: producer.send_offsets("g", READ),
        lambda: producer.end(who, committed=True),
    ):
        with pytest.raises(ClosedError, match="TransactionalBatchProducer"):
            await call()
    assert len(script.asked) == asked
    with pytest.raises(InvalidSettingError, match="transactional_id"):
        TransactionalBatchProducer("tcp://127.0.0.1:1")


@pytest.mark.parametrize("setting", [{"acks": 1}, {"enable_idempotence": False}])
def test_a_transactional_id_needs_what_tells_a_repeated_batch_from_a_new_one(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettingError, match="transactional_id needs acks='all' and enable_idempotence"):
        ProducerSettings(transactional_id="etl", **setting)


async def test_what_batches_are_refused_for_is_named(autojump_clock: Clock) -> None:
    async with batches(max_block_ms=5_000) as (script, producer):
        script.let(m.Kind.INIT_TRANSACTIONS, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        with pytest.raises(ClientError, match=f"{ABOUT}INVALID_TRANSACTION_TIMEOUT: scripted"):
            await producer.begin()
        for wrong in ((7, -1), (7,), (7, 0, 0), (7, "0"), ("7", 0), [7, 0], None):
            with pytest.raises(InvalidArgumentError, match=r"^who is "):
                await producer.end(wrong, committed=True)  # type: ignore[arg-type]
        who = await producer.begin()
        script.let(m.Kind.END_TXN, *[SILENCE] * 10)
        with pytest.raises(TransactionOutcomeUnknownError, match=r"within 5 s.*; ask for the same end again"):
            await producer.end(who, committed=True)
