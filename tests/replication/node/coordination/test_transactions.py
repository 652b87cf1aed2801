"""Transactions on real nodes: all or nothing in several partitions, offsets with them, fencing, timeouts, moves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, BlockingProducer, Consumer, Producer
from insync.replication.asyncio import Producer as AsyncioProducer
from insync.replication.client import (
    GroupMetadata,
    IllegalGenerationError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    TransactionStateError,
    UnknownMemberIdError,
)

from ..conftest import Wall
from ..test_cluster import replicas_agree, settings, until
from .test_groups import Nodes

FAST = {
    # A machine that stands still for seconds must not cost a node its place; no test here waits for that.
    "session_timeout_ms": 30_000,
    "leader_silence_timeout_ms": 0,
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 200,
    "group_consumer_heartbeat_interval_ms": 1000,
    "controlled_shutdown_timeout_ms": 1000,
}


@asynccontextmanager
async def nodes(folder: Path, count: int, **topics: int) -> AsyncIterator[tuple[Nodes, Admin]]:
    async with trio.open_nursery() as nursery:
        running = Nodes(nursery)
        for node_id in range(1, count + 1):
            await running.start(settings(folder, node_id, **FAST))
        async with Admin(running.servers) as admin:
            for name, partitions in topics.items():
                await admin.create_topic(name, partitions=partitions, replication_factor=count)
            yield running, admin
        for node_id in list(running.running):
            await running.stop(node_id)


def reader(servers: list[str], **options: object) -> Consumer:
    given = {"auto_offset_reset": "earliest", "isolation_level": "read_committed", **options}
    return Consumer(servers, **given)  # type: ignore[arg-type]


async def read(consumer: Consumer, count: int, seconds: float = 20.0) -> list[bytes]:
    found: list[bytes] = []
    with trio.fail_after(seconds):
        while len(found) < count:
            found += [each.value for each in await consumer.poll(200)]
    return found


async def test_a_transaction_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    async with (
        nodes(tmp_path, 3, t=3) as (running, admin),
        Producer(running.servers, transactional_id="w") as producer,
        reader(running.servers) as committed,
        reader(running.servers, isolation_level="read_uncommitted") as everything,
    ):
        partitions = [("t", at) for at in range(3)]
        committed.assign(partitions)
        everything.assign(partitions)

        async def write(mark: bytes) -> None:
            for at in range(3):
                for number in range(5):
                    await producer.send("t", b"%s%d-%d" % (mark, at, number), partition=at)

        async with producer.transaction():
            await write(b"a")
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await write(b"x")
                await producer.flush()
                raise ZeroDivisionError
        async with producer.transaction():
            await write(b"b")
        seen = await read(committed, 30)
        assert {each[:1] for each in seen} == {b"a", b"b"} and len(set(seen)) == 30
        assert len(await read(everything, 45)) == 45
        producer.begin()
        await write(b"c")
        await producer.flush()
        assert len(await read(everything, 15)) == 15
        assert await committed.poll(300) == []
        stable = await committed.end_offsets(partitions)
        high = await everything.end_offsets(partitions)
        assert {at: high[at] - stable[at] for at in high} == dict.fromkeys(high, 5)
        await producer.commit()
        assert {each[:1] for each in await read(committed, 15)} == {b"c"}
        assert await committed.end_offsets(partitions) == await everything.end_offsets(partitions)
        await until(lambda: replicas_agree(admin, "t", 3))
        with pytest.raises(TransactionStateError, match="no transaction is open"):
            await producer.send("t", b"outside")
        async with producer.transaction():
            pass
        with pytest.raises(TransactionStateError):
            await producer.commit()


async def test_a_second_producer_shuts_the_first_one_out(tmp_path: Path) -> None:
    async with (
        nodes(tmp_path, 1, t=1) as (running, _),
        Producer(running.servers, transactional_id="w") as first,
        reader(running.servers) as consumer,
    ):
        consumer.assign([("t", 0)])
        first.begin()
        await first.send("t", b"zombie")
        await first.flush()
        async with Producer(running.servers, transactional_id="w") as second:
            async with second.transaction():
                await second.send("t", b"kept")
            await first.send("t", b"late")
            with pytest.raises((ProducerFencedError, TransactionAbortableError)):
                await first.commit()
            with pytest.raises(ProducerFencedError):
                await first.abort()
            with pytest.raises(ProducerFencedError):
                await first.send("t", b"later")
            assert await read(consumer, 1) == [b"kept"]
            async with second.transaction():
                await second.send("t", b"more")
        assert await read(consumer, 1) == [b"more"]


async def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_goes_on(
    tmp_path: Path, wall: Wall
) -> None:
    async with (
        nodes(tmp_path, 1, t=1) as (running, _),
        Producer(running.servers, transactional_id="w") as producer,
        reader(running.servers) as consumer,
        reader(running.servers, isolation_level="read_uncommitted") as everything,
    ):
        consumer.assign([("t", 0)])
        everything.assign([("t", 0)])
        producer.begin()
        await producer.send("t", b"slow")
        await producer.flush()
        assert await read(everything, 1) == [b"slow"]
        wall.pass_timeout()
        # Its marker moves the last stable offset.
        await until(lambda: _reaches(consumer, 2))
        with pytest.raises(TransactionAbortedError, match="open for longer than its timeout"):
            await producer.commit()
        async with producer.transaction():
            await producer.send("t", b"again")
        assert await read(consumer, 1) == [b"again"]


async def test_offsets_that_come_after_the_timeout_are_refused_and_the_producer_goes_on(
    tmp_path: Path, wall: Wall
) -> None:
    async with (
        nodes(tmp_path, 1, t=1) as (running, admin),
        Producer(running.servers, transactional_id="w") as producer,
        Consumer(running.servers, group_id="g") as consumer,
    ):
        # A consumer that is to be a member, and is none yet, commits nothing.
        consumer.subscribe(["t"])
        with pytest.raises((IllegalGenerationError, UnknownMemberIdError)):
            async with producer.transaction() as transaction:
                await transaction.send_offsets({("t", 0): 3}, consumer.group_metadata())
        # What was refused is not left out: whoever goes on as if nothing was is told.
        producer.begin()
        await producer.send("t", b"without its offsets")
        with pytest.raises((IllegalGenerationError, UnknownMemberIdError)):
            await producer.send_offsets({("t", 0): 3}, consumer.group_metadata())
        with pytest.raises(TransactionAbortableError):
            await producer.commit()
        await producer.abort()
        producer.begin()
        await producer.send("t", b"slow")
        await producer.flush()
        wall.pass_timeout()

        async def is_aborted() -> bool:
            return (await admin.describe_transaction("w")).status == "COMPLETE_ABORT"

        await until(is_aborted)
        with pytest.raises(TransactionAbortableError):
            await producer.send_offsets({("t", 0): 1}, GroupMetadata(group_id="other"))
        await producer.abort()
        async with producer.transaction() as transaction:
            await transaction.send_offsets({("t", 0): 2}, GroupMetadata(group_id="other"))
            assert await admin.group_offsets("other") == {}, "they are committed with the transaction"
        assert (await admin.group_offsets("other"))[("t", 0)] == 2  # type: ignore[index]
        assert await admin.group_offsets("g") == {}


@pytest.mark.slow
async def test_an_operator_sees_what_is_open(tmp_path: Path) -> None:
    async with (
        nodes(tmp_path, 2, t=2) as (running, admin),
        Producer(running.servers, transactional_id="one") as one,
        Producer(running.servers, transactional_id="two") as two,
    ):
        async with two.transaction():
            await two.send("t", b"x")
        one.begin()
        await one.send("t", b"y", partition=1)
        await one.flush()
        listed = await admin.list_transactions()
        assert [each.transactional_id for each in listed] == ["one", "two"]
        assert [each.transactional_id for each in await admin.list_transactions(["ONGOING"])] == ["one"]
        told = await admin.describe_transaction("one")
        assert (told.status, [(at.topic, at.partition) for at in told.partitions]) == ("ONGOING", [("t", 1)])
        with pytest.raises(TransactionalIdNotFoundError):
            await admin.describe_transaction("nobody")
        for command, said in ((["list"], "one: ONGOING"), (["describe", "one"], "t-1")):
            arguments = ["transaction", *command, "--servers", running.servers[0]]
            done = await trio.run_process(
                [sys.executable, "-m", "insync.replication.cli", *arguments], capture_stdout=True
            )
            assert said in done.stdout.decode()
        await one.abort()


async def test_threads_and_asyncio_have_the_same_transactions(tmp_path: Path) -> None:
    async with (
        nodes(tmp_path, 1, t=1) as (running, _),
        reader(running.servers) as consumer,
    ):
        consumer.assign([("t", 0)])
        metadata = GroupMetadata(group_id="g")

        def in_a_thread() -> None:
            with BlockingProducer(running.servers, transactional_id="thread") as producer:
                with producer.transaction() as txn:
                    producer.send("t", b"thread 1")
                    txn.send_offsets({("t", 0): 5}, metadata)
                with pytest.raises(ZeroDivisionError), producer.transaction():
                    producer.send("t", b"lost")
                    raise ZeroDivisionError
                producer.begin()
                producer.send("t", b"thread 2")
                producer.commit()

        async def in_asyncio() -> None:
            async with AsyncioProducer(running.servers, transactional_id="asyncio") as producer:
                async with producer.transaction() as txn:
                    await producer.send("t", b"asyncio 1")
                    await txn.send_offsets({("t", 0): 7}, metadata)
                with pytest.raises(ZeroDivisionError):
                    async with producer.transaction():
                        await producer.send("t", b"lost")
                        raise ZeroDivisionError
                await producer.begin()
                await producer.send("t", b"asyncio 2")
                await producer.commit()

        async with reader(running.servers, group_id="g") as member:
            await trio.to_thread.run_sync(in_a_thread)
            assert await member.committed([("t", 0)]) == {("t", 0): 5}
            await trio.to_thread.run_sync(asyncio.run, in_asyncio())
            assert await member.committed([("t", 0)]) == {("t", 0): 7}
        assert await read(consumer, 4) == [b"thread 1", b"thread 2", b"asyncio 1", b"asyncio 2"]


async def _reaches(consumer: Consumer, offset: int) -> bool:
    return (await consumer.end_offsets([("t", 0)]))[("t", 0)] >= offset  # type: ignore[index]


async def test_consume_transform_produce_counts_each_input_once(tmp_path: Path) -> None:
    """The program that the documentation shows; a worker is cut off in its middle, and nodes go."""
    inputs = 300

    async with nodes(tmp_path, 3, **{"in": 3, "out": 2}) as (running, _):
        async with Producer(running.servers) as producer:
            await producer.send_many(
                "in", [b"%d" % n for n in range(inputs)], [b"k%d" % n for n in range(inputs)]
            )

        async def work(name: str, stop_after: int | None = None) -> None:
            handled = 0
            async with (
                reader(
                    running.servers, group_id="etl", enable_auto_commit=False, max_poll_records=20
                ) as consumer,
                Producer(running.servers, transactional_id=f"etl-{name}") as producer,
            ):
                consumer.subscribe(["in"])
                while True:
                    records = await consumer.poll(timeout_ms=300)
                    if not records:
                        continue
                    async with producer.transaction() as txn:
                        for record in records:
                            await producer.send("out", b"<%s>" % record.value, key=record.key)
                        await txn.send_offsets(consumer.positions(), consumer.group_metadata())
                        handled += len(records)
                        if stop_after is not None and handled >= stop_after:
                            await producer.flush()
                            return_now = trio.Event()
                            await return_now.wait()

        found: list[bytes] = []
        async with reader(running.servers) as output, trio.open_nursery() as nursery:
            output.assign([("out", 0), ("out", 1)])
            scope = await nursery.start(_in_scope, work, "1", 60)
            nursery.start_soon(_forgiving, work, "2")
            with trio.fail_after(60):
                while len(found) < 40:
                    found += [each.value for each in await output.poll(200)]
                # It has read, written and not committed: another member does it again.
                scope.cancel()
                await running.stop(3)
                while len(found) < inputs:
                    found += [each.value for each in await output.poll(200)]
            nursery.cancel_scope.cancel()
        assert sorted(found) == sorted(b"<%d>" % n for n in range(inputs))
        async with reader(running.servers) as output:
            ends = await output.end_offsets([("out", 0), ("out", 1)])
            output.assign([("out", 0), ("out", 1)])
            again = await read(output, inputs)
        assert sorted(again) == sorted(found), "and nobody is told of anything else"
        assert sum(ends.values()) > inputs


async def _in_scope(
    work: object, name: str, stop_after: int, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await work(name, stop_after)  # type: ignore[operator]


async def _forgiving(work: object, name: str) -> None:
    """A worker that begins again after what a transaction may fail with."""
    while True:
        try:
            await work(name)  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001 - shown where the test fails
            print("worker", name, repr(error))


async def test_the_partitions_of_a_request_are_added_at_once(tmp_path: Path) -> None:
    """Each write of a coordinator is as slow as a record that is replicated."""
    async with (
        nodes(tmp_path, 1, t=8) as (running, _),
        Producer(running.servers, transactional_id="w", linger_ms=10_000) as producer,
        Consumer(running.servers) as consumer,
    ):
        states = [("__transaction_state", at) for at in range(3)]
        await producer.prepare("t")

        async def written() -> int:
            return sum((await consumer.end_offsets(states)).values())

        async def is_ended() -> bool:
            async with Admin(running.servers) as admin:
                return (await admin.describe_transaction("w")).status == "COMPLETE_COMMIT"

        before = await written()
        async with producer.transaction():
            for at in range(8):
                await producer.send("t", b"x", partition=at)
        await until(is_ended)
        # One by one they are eight, and two for the outcome and the end.
        assert await written() - before <= 6
        async with reader(running.servers) as committed:
            committed.assign([("t", at) for at in range(8)])
            assert await read(committed, 8, 60.0) == [b"x"] * 8
