"""A producer's transactions against a scripted coordinator: what it asks for, and what callers are told.

Time jumps: nothing here waits for a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import (
    ClientError,
    GroupMetadata,
    Producer,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionalBatchProducer,
    TransactionOutcomeUnknownError,
    TransactionStateError,
)
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.core.messages import transactions as tm
from insync.storage.batch import scan

from ..fake_cluster import FakeCluster, FakeNode, fake_cluster
from ..faults import answer_when, fail_with
from ..patience import asked

Clock = trio.testing.MockClock
SILENCE = None
READ = {("in", 0): 5}
MEMBER = GroupMetadata(group_id="g", member_id="m", epoch=4, instance_id="i")


class Script:
    """Coordinator of groups and of transactions. `says`: errors for coming requests by kind; SILENCE: no answer."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.asked: list[Any] = []
        self.found: list[int] = []
        """Of what kind the coordinators were that were looked for."""
        self.says: dict[m.Kind, deque[ErrorCode | None]] = {}
        self.ids = (7, 0)
        cluster.chaos = self.handle

    def let(self, kind: m.Kind, *errors: ErrorCode | None) -> None:
        self.says[kind] = deque(errors)

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.asked if type(each) is kind]

    def handle(self, node: FakeNode, request: Any) -> bool:
        kind = m.Kind(request.kind)
        if kind is m.Kind.FIND_COORDINATOR:
            asked = wire.decode_request(kind, request.body)
            self.found.append(asked.key_type)
            all_here = [gm.Coordinator(key=key, node_id=0, leader_epoch=1) for key in asked.keys]
            request.reply(wire.encode(gm.FindCoordinatorResponse(coordinators=all_here)))
            return True
        if kind not in (m.Kind.INIT_TRANSACTIONS, m.Kind.END_TXN, m.Kind.TXN_OFFSET_COMMIT):
            return False
        self.asked.append(wire.decode_request(kind, request.body))
        script = self.says.get(kind)
        error = script.popleft() if script else ErrorCode.NONE
        if error is SILENCE:
            return True
        request.reply(wire.encode(self._answer(kind, error)))
        return True

    def _answer(self, kind: m.Kind, error: ErrorCode) -> Any:
        message = "" if error == ErrorCode.NONE else f"scripted {error.name}"
        if kind is m.Kind.TXN_OFFSET_COMMIT:
            told = [gm.PartitionError(topic="in", partition=0, error=error)]
            return gm.CommitGroupOffsetsResponse(partitions=told, message=message)
        if error != ErrorCode.NONE:
            return tm.ProducerIdResponse(error=error, message=message)
        if kind is m.Kind.END_TXN:
            self.ids = self.ids[0], self.ids[1] + 1
        return tm.ProducerIdResponse(producer_id=self.ids[0], producer_epoch=self.ids[1])


@asynccontextmanager
async def at_work(**options: Any) -> AsyncIterator[tuple[FakeCluster, Script, Producer]]:
    async with fake_cluster(1, t=1) as cluster:
        script = Script(cluster)
        settings = {"transactional_id": "etl", "max_block_ms": 20_000, "transaction_timeout_ms": 45_000}
        async with Producer(cluster.urls, **{**settings, **options}) as producer:
            yield cluster, script, producer


def ends(script: Script) -> list[tuple[int, bool]]:
    """Of each end that was asked for the epoch, and whether it is a commit."""
    assert all(
        (each.transactional_id, each.producer_id) == ("etl", 7)
        for each in script.of(tm.EndTransactionRequest)
    )
    return [(each.producer_epoch, each.committed) for each in script.of(tm.EndTransactionRequest)]


def epochs(cluster: FakeCluster) -> list[tuple[int, int, int, bool]]:
    """Of each batch its ids, its first sequence, and whether it is in a transaction."""
    infos = scan(b"".join(cluster.topics["t"][0].batches))
    return [
        (each.producer_id, each.producer_epoch, each.base_sequence, each.is_transactional) for each in infos
    ]


async def test_each_transaction_has_the_ids_that_the_end_of_the_last_has_told(autojump_clock: Clock) -> None:
    async with at_work() as (cluster, script, producer):
        for value in (b"x", b"y"):
            async with producer.transaction():
                await producer.send("t", value)
        (opened,) = script.of(tm.InitTransactionsRequest)
        assert (opened.transactional_id, opened.timeout_ms) == ("etl", 45_000)
        assert set(script.found) == {gm.TRANSACTION}
        assert ends(script) == [(0, True), (1, True)]
        assert epochs(cluster) == [(7, 0, 0, True), (7, 1, 0, True)]


async def test_what_a_transaction_begins_with_goes_together_and_waits_for_no_acknowledgement() -> None:
    """The leader holds it until the coordinator knows the partition, in the second transaction as in the first."""
    async with at_work(batch_size=300) as (cluster, _, producer):
        node = cluster.nodes[0]
        for number in (0, 1):
            before, first, second = node.seen[m.Kind.PRODUCE], trio.Event(), trio.Event()
            node.script(m.Kind.PRODUCE, answer_when(first), answer_when(second))
            async with producer.transaction():
                many = await producer.send_many("t", [b"x"] * 1000)
                assert await asked(node, m.Kind.PRODUCE, before + 1) == before + 1
                await producer.send("t", b"y")
                assert await asked(node, m.Kind.PRODUCE, before + 2) == before + 2
                first.set()
                await many.wait()
                second.set()
            assert [sequence for _, epoch, sequence, _ in epochs(cluster) if epoch == number] == [0, 1000]


async def test_a_block_in_which_nothing_is_sent_asks_nothing(autojump_clock: Clock) -> None:
    async with at_work() as (_, script, producer):
        async with producer.transaction():
            pass
        producer.begin()
        await producer.abort()
        assert ends(script) == []


async def test_a_block_that_is_left_by_an_error_or_cancelled_is_aborted(autojump_clock: Clock) -> None:
    async with at_work() as (_, script, producer):
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await (await producer.send("t", b"x")).wait()
                raise ZeroDivisionError
        with trio.CancelScope() as scope:
            async with producer.transaction():
                await (await producer.send("t", b"y")).wait()
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert ends(script) == [(0, False), (1, False)]


async def test_what_waits_to_be_sent_is_dropped_by_an_abort(autojump_clock: Clock) -> None:
    async with at_work(linger_ms=60_000) as (cluster, script, producer):
        producer.begin()
        delivery = await producer.send("t", b"x")
        await producer.abort()
        assert isinstance(delivery.error, TransactionAbortableError)
        assert epochs(cluster) == []
        async with producer.transaction():
            await producer.send("t", b"y")
        assert ends(script)[-1][1] and len(epochs(cluster)) == 1


async def test_calls_that_do_not_fit_are_refused_and_change_nothing(autojump_clock: Clock) -> None:
    async with at_work() as (_, script, producer):
        for call in (producer.commit, producer.abort, lambda: producer.send("t", b"x")):
            with pytest.raises(TransactionStateError, match="'etl'"):
                await call()
        with pytest.raises(TransactionStateError, match=r"'etl'.*send_offsets"):
            await producer.send_offsets(READ, MEMBER)
        producer.begin()
        with pytest.raises(TransactionStateError, match=r"'etl'.*begin"):
            producer.begin()
        await producer.send("t", b"x")
        await producer.commit()
        assert ends(script) == [(0, True)]
        assert script.of(gm.TxnOffsetCommitRequest) == []


async def test_a_record_that_is_refused_leaves_an_abort_and_the_next_transaction_is_whole(
    autojump_clock: Clock,
) -> None:
    async with at_work() as (cluster, script, producer):
        cluster.nodes[0].script(m.Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD))
        producer.begin()
        delivery = await producer.send("t", b"x")
        with pytest.raises(ClientError):
            await delivery.wait()
        for call in (
            producer.commit,
            lambda: producer.send("t", b"y"),
            lambda: producer.send_offsets(READ, MEMBER),
        ):
            with pytest.raises(TransactionAbortableError, match="'etl'") as told:
                await call()
            assert told.value.__cause__ is not None
        assert ends(script) == [], "none of these is an end"
        await producer.abort()
        async with producer.transaction():
            await producer.send("t", b"z")
        assert ends(script) == [(0, False), (1, True)]
        assert epochs(cluster) == [(7, 1, 0, True)]


async def test_a_commit_finds_out_itself_that_a_record_is_refused(autojump_clock: Clock) -> None:
    async with at_work(linger_ms=60_000) as (cluster, script, producer):
        cluster.nodes[0].script(m.Kind.PRODUCE, fail_with(ErrorCode.INVALID_RECORD))
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"x")
        assert ends(script) == [(0, False)]


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
async def test_an_outcome_that_nobody_tells_is_asked_for_again_and_not_the_other(
    committed: bool, autojump_clock: Clock
) -> None:
    async with at_work(max_block_ms=5_000) as (_, script, producer):
        producer.begin()
        await (await producer.send("t", b"x")).wait()
        script.let(m.Kind.END_TXN, *[SILENCE] * 10)
        end, other = (producer.commit, producer.abort) if committed else (producer.abort, producer.commit)
        began = trio.current_time()
        with pytest.raises(TransactionOutcomeUnknownError, match="commit" if committed else "abort"):
            await end()
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.5)
        with pytest.raises(TransactionStateError, match="'etl'"):
            await other()
        with pytest.raises(TransactionStateError):
            await producer.send("t", b"y")
        script.let(m.Kind.END_TXN)
        await end()
        assert set(ends(script)) == {(0, committed)}
        producer.begin()


async def test_a_transaction_that_was_open_for_too_long_is_ended_and_the_producer_goes_on(
    autojump_clock: Clock,
) -> None:
    async with at_work() as (cluster, script, producer):
        script.let(m.Kind.END_TXN, ErrorCode.TRANSACTION_ABORTED)
        with pytest.raises(TransactionAbortedError, match="'etl': scripted TRANSACTION_ABORTED"):
            async with producer.transaction():
                await producer.send("t", b"x")
        assert ends(script) == [(0, True), (0, False)], "the abort tells the next ids"
        async with producer.transaction():
            await producer.send("t", b"y")
        assert epochs(cluster)[-1] == (7, 1, 0, True)


async def test_who_is_fenced_is_told_so_by_every_call(autojump_clock: Clock) -> None:
    async with at_work() as (cluster, script, producer):
        script.let(m.Kind.END_TXN, ErrorCode.PRODUCER_FENCED)
        with pytest.raises(ProducerFencedError):
            async with producer.transaction():
                await producer.send("t", b"x")
        assert ends(script) == [(0, True)], "there is nothing to abort any more"
        for call in (producer.commit, producer.abort, lambda: producer.send("t", b"y")):
            with pytest.raises(ProducerFencedError, match="'etl'"):
                await call()
        with pytest.raises(ProducerFencedError):
            producer.begin()
        assert len(epochs(cluster)) == 1


async def test_an_end_that_is_refused_is_told_and_can_be_aborted(autojump_clock: Clock) -> None:
    async with at_work() as (_, script, producer):
        script.let(m.Kind.END_TXN, ErrorCode.INVALID_TXN_STATE)
        producer.begin()
        await producer.send("t", b"x")
        with pytest.raises(ClientError, match="scripted INVALID_TXN_STATE"):
            await producer.commit()
        with pytest.raises(TransactionAbortableError, match=r"'etl'.*INVALID_TXN_STATE"):
            await producer.commit()
        await producer.abort()
        assert ends(script) == [(0, True), (0, False)]


async def test_an_opening_that_is_refused_is_told(autojump_clock: Clock) -> None:
    async with fake_cluster(1, t=1) as cluster:
        Script(cluster).let(m.Kind.INIT_TRANSACTIONS, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        with pytest.raises(ClientError, match="scripted INVALID_TRANSACTION_TIMEOUT"):
            async with Producer(cluster.urls, transactional_id="etl"):
                pass


async def test_offsets_go_with_the_member_and_make_something_to_commit(autojump_clock: Clock) -> None:
    async with at_work() as (_, script, producer):
        async with producer.transaction() as txn:
            await txn.send_offsets({}, MEMBER)
        assert script.asked[1:] == [], "no offsets: nothing to commit"
        async with producer.transaction() as txn:
            await txn.send_offsets(READ, MEMBER)
        (sent,) = script.of(gm.TxnOffsetCommitRequest)
        assert (sent.transactional_id, sent.producer_id, sent.producer_epoch) == ("etl", 7, 0)
        assert (sent.group, sent.member_id, sent.epoch, sent.instance_id) == ("g", "m", 4, "i")
        assert [(each.topic, each.partition, each.offset) for each in sent.offsets] == [("in", 0, 5)]
        assert gm.GROUP in script.found
        assert ends(script) == [(0, True)]


async def test_offsets_of_a_member_that_its_group_has_gone_on_without_abort_the_transaction(
    autojump_clock: Clock,
) -> None:
    async with at_work() as (_, script, producer):
        script.let(m.Kind.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION)
        with pytest.raises(ClientError, match=r"offsets of group 'g'.*in-0.*scripted ILLEGAL_GENERATION"):
            async with producer.transaction() as txn:
                await producer.send("t", b"x")
                await txn.send_offsets(READ, MEMBER)
        assert ends(script) == [(0, False)]


@pytest.mark.parametrize("error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
async def test_offsets_of_an_old_epoch_may_be_those_of_a_transaction_that_timed_out(
    error: ErrorCode, autojump_clock: Clock
) -> None:
    async with at_work() as (_, script, producer):
        script.let(m.Kind.TXN_OFFSET_COMMIT, error)
        producer.begin()
        with pytest.raises(TransactionAbortableError):
            await producer.send_offsets(READ, MEMBER)
        await producer.abort()
        producer.begin()
        assert ends(script) == [(0, False)]


async def test_offsets_that_nobody_answers_leave_an_abort(autojump_clock: Clock) -> None:
    async with at_work(max_block_ms=5_000) as (_, script, producer):
        script.let(m.Kind.TXN_OFFSET_COMMIT, *[SILENCE] * 10)
        producer.begin()
        with pytest.raises(ClientError, match="5 s"):
            await producer.send_offsets(READ, MEMBER)
        with pytest.raises(TransactionAbortableError):
            await producer.commit()
        await producer.abort()
        assert ends(script) == [(0, False)], "they may have been taken, so there is something to abort"


# Whole batches, of connectors


@asynccontextmanager
async def batches(**options: Any) -> AsyncIterator[tuple[Script, TransactionalBatchProducer]]:
    async with fake_cluster(1, t=1) as cluster:
        script = Script(cluster)
        settings = {"transactional_id": "etl", "max_block_ms": 20_000, "transaction_timeout_ms": 45_000}
        async with TransactionalBatchProducer(cluster.urls, **{**settings, **options}) as producer:
            yield script, producer


async def test_one_transaction_of_batches_begins_sends_offsets_and_ends(autojump_clock: Clock) -> None:
    async with batches() as (script, producer):
        with pytest.raises(TransactionStateError):
            await producer.send_offsets("g", READ)
        who = await producer.begin()
        assert (who.producer_id, who.producer_epoch) == (7, 0)
        with pytest.raises(TransactionStateError):
            await producer.begin()
        await producer.send_offsets("g", READ)
        await producer.end(who, committed=True)
        (opened,) = script.of(tm.InitTransactionsRequest)
        assert (opened.transactional_id, opened.timeout_ms) == ("etl", 45_000)
        (sent,) = script.of(gm.TxnOffsetCommitRequest)
        assert (sent.group, sent.member_id, sent.epoch) == ("g", "", -1)
        assert (sent.transactional_id, sent.producer_id, sent.producer_epoch) == ("etl", 7, 0)
        assert ends(script) == [(0, True)]
        assert set(script.found) == {gm.TRANSACTION, gm.GROUP}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTED, TransactionAbortedError),
        (ErrorCode.PRODUCER_FENCED, ProducerFencedError),
        (ErrorCode.INVALID_TXN_STATE, ClientError),
    ],
)
async def test_an_end_of_batches_says_why_it_cannot_be(
    error: ErrorCode, told: type[ClientError], autojump_clock: Clock
) -> None:
    async with batches() as (script, producer):
        who = await producer.begin()
        script.let(m.Kind.END_TXN, error)
        with pytest.raises(told, match=f"'etl'.*scripted {error.name}"):
            await producer.end(who, committed=True)
        await producer.end(who, committed=False)
        assert ends(script) == [(0, True), (0, False)]


async def test_what_is_refused_or_not_answered_about_batches_is_told(autojump_clock: Clock) -> None:
    async with batches(max_block_ms=5_000) as (script, producer):
        script.let(m.Kind.INIT_TRANSACTIONS, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        with pytest.raises(ClientError, match="scripted INVALID_TRANSACTION_TIMEOUT"):
            await producer.begin()
        who = await producer.begin()
        script.let(m.Kind.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        with pytest.raises(ClientError, match="offsets of group 'g' in a transaction"):
            await producer.send_offsets("g", READ)
        script.let(m.Kind.END_TXN, *[SILENCE] * 10)
        with pytest.raises(TransactionOutcomeUnknownError):
            await producer.end(who, committed=False)
        script.let(m.Kind.END_TXN)
        await producer.end(who, committed=False)
        assert set(ends(script)) == {(0, False)}
