"""Partitions that move while a record of them is in hand, commits that nobody confirms, and ends during a pause."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from insync.replication import Consumer, Producer
from insync.replication.client import ClientError
from insync.replication.client.producer._transactions import Transactions
from insync.replication.client.transaction_errors import TransactionOutcomeUnknownError
from insync.replication.core.types import PartitionId
from insync.replication.listeners import AckMode, Listener, RecordFailedError
from insync.replication.listeners._engine import Engine
from insync.replication.listeners._turns import Turn

from .filled import COUNT, committed, filled, until

PATIENCE = 60.0


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[str]]:
    async with filled(tmp_path, "out") as found:
        yield found


async def written(servers: list[str]) -> list[bytes | None]:
    """What counts of "out"."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    async with Consumer(servers, **options) as consumer:
        consumer.assign([("out", 0)])
        end = (await consumer.end_offsets([("out", 0)]))[PartitionId("out", 0)]
        found: list[bytes | None] = []
        with trio.fail_after(PATIENCE):
            while (consumer.position(("out", 0)) or 0) < end:
                found += [each.value for each in await consumer.poll(500)]
        return found


async def test_a_record_in_hand_is_finished_and_committed_before_its_partition_goes(
    servers: list[str],
) -> None:
    seen: list[int] = []
    go_on = trio.Event()

    def member() -> Listener:
        # Nothing but the end, or another member, makes it commit.
        made = Listener(
            servers, group_id="g", topics=["t"], ack_mode=AckMode.COUNT, ack_count=1000, concurrency=2
        )

        @made.handler
        async def handle(record: Any) -> None:
            seen.append(int(record.value))
            await go_on.wait()

        return made

    async with trio.open_nursery() as nursery:
        one, two = member(), member()
        nursery.start_soon(one.run)
        await until(lambda: len(seen) == 2)
        nursery.start_soon(two.run)
        engine = one._engine
        assert engine is not None
        await until(lambda: any(lane.is_over for lane in engine.lanes.values()))
        go_on.set()
        await until(lambda: set(seen) == set(range(COUNT)))
        for each in (one, two):
            await until(lambda each=each: not each.status().lag)
            each.stop()
    assert sorted(seen) == list(range(COUNT)), "nothing is handled by both"


async def test_a_transaction_of_a_partition_that_was_lost_meanwhile_counts_for_nothing(
    servers: list[str],
) -> None:
    one = Listener(servers, group_id="g", topics=["t"], transactional_id_prefix="lost", concurrency=2)
    begun, go_on = trio.Event(), trio.Event()

    @one.handler
    async def handle(record: Any, producer: Any) -> None:
        if record.partition == 0:
            await producer.send("out", record.value)
            begun.set()
            await go_on.wait()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await begun.wait()
            engine = one._engine
            assert engine is not None
            async with trio.open_nursery() as meanwhile:
                # As the consumer says it when the group has gone on without this member; it may be back already.
                meanwhile.start_soon(engine.on_lost, [("t", 0)])
                await until(lambda: ("t", 0) not in engine.commits.partitions)
                go_on.set()
            one.stop()
    assert await written(servers) == []
    assert 0 not in await committed(servers, "g")


async def test_a_listener_that_has_left_its_group_commits_no_dead_letter(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group without members takes offsets from anybody, so the listener itself must not send them."""
    one = Listener(
        servers,
        group_id="g",
        topics=["t"],
        transactional_id_prefix="left",
        concurrency=2,
        retries=0,
        dead_letter="out",
        max_poll_interval_ms=300,
    )
    send, waits, go_on, stands, release = Producer.send_and_wait, *(trio.Event() for _ in range(4))

    async def late(self: Producer, *given: Any, **options: Any) -> Any:
        waits.set()
        await go_on.wait()
        return await send(self, *given, **options)

    monkeypatch.setattr(Producer, "send_and_wait", late)

    @one.handler
    async def handle(record: Any, producer: Any) -> None:
        if record.partition:
            raise ValueError("for the dead letters")
        await waits.wait()
        stands.set()
        await release.wait()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await stands.wait()
            # The handler takes too long: the listener leaves its group, and the dead letter comes after that.
            await until(lambda: not one.status().partitions)
            go_on.set()
            one.stop()
            release.set()
    assert await committed(servers, "g") == {}
    assert await written(servers) == []


async def test_a_dead_letter_of_a_partition_that_was_lost_meanwhile_counts_for_nothing(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Listener(
        servers,
        group_id="g",
        topics=["t"],
        transactional_id_prefix="dead",
        concurrency=2,
        retries=0,
        dead_letter="out",
    )
    send, waits, go_on = Producer.send_and_wait, trio.Event(), trio.Event()

    async def late(self: Producer, *given: Any, **options: Any) -> Any:
        waits.set()
        await go_on.wait()
        return await send(self, *given, **options)

    monkeypatch.setattr(Producer, "send_and_wait", late)

    @one.handler
    async def handle(record: Any, producer: Any) -> None:
        if record.partition == 0:
            raise ValueError("for the dead letters")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await waits.wait()
            engine = one._engine
            assert engine is not None
            async with trio.open_nursery() as meanwhile:
                # As the consumer says it when the group has gone on without this member; it may be back already.
                meanwhile.start_soon(engine.on_lost, [("t", 0)])
                await until(lambda: ("t", 0) not in engine.commits.partitions)
                go_on.set()
            one.stop()
    assert 0 not in await committed(servers, "g")
    assert await written(servers) == []


async def test_a_commit_of_which_nobody_knows_is_asked_about_and_its_records_are_not_handled_again(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, calls = Producer.commit, 0

    async def unclear(self: Producer) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            return  # it had been carried out
        await commit(self)
        if calls == 1:
            raise TransactionOutcomeUnknownError("nobody answers")

    monkeypatch.setattr(Producer, "commit", unclear)
    one = Listener(servers, group_id="g", topics=["t"], transactional_id_prefix="unclear")
    seen: list[int] = []

    @one.handler
    async def handle(record: Any, producer: Any) -> None:
        seen.append(int(record.value))
        await producer.send("out", record.value)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await until(lambda: len(set(seen)) == COUNT)
            await until(lambda: not one.status().lag)
            one.stop()
    assert sorted(seen) == list(range(COUNT)) and calls >= 3
    assert sorted(int(value or b"-1") for value in await written(servers)) == list(range(COUNT))
    assert await committed(servers, "g") == {0: COUNT // 2, 1: COUNT // 2}


async def test_records_of_a_transaction_that_is_repeated_are_counted_once(
    servers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, calls = Producer.commit, 0

    async def refused(self: Producer) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ClientError("not now")
        await commit(self)

    monkeypatch.setattr(Producer, "commit", refused)
    one = Listener(servers, group_id="g", topics=["t"], transactional_id_prefix="twice")
    seen: list[int] = []

    @one.handler
    async def handle(record: Any, producer: Any) -> None:
        seen.append(int(record.value))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await until(lambda: len(set(seen)) == COUNT and not one.status().lag)
            one.stop()
    status = one.status()
    assert (status.handled, status.commit_failures) == (COUNT, 1) and len(seen) > COUNT


@pytest.mark.parametrize("dead_letter", ["", "out"])
async def test_an_abort_that_nobody_confirms_does_not_end_the_work_of_a_listener(
    servers: list[str], monkeypatch: pytest.MonkeyPatch, dead_letter: str
) -> None:
    end, refused = Transactions._end, 0

    async def unclear(self: Transactions, *, committed: bool) -> None:
        nonlocal refused
        if committed or refused == 2:
            return await end(self, committed=committed)
        refused += 1
        self._machine.end(False)
        raise TransactionOutcomeUnknownError("nobody answers")

    monkeypatch.setattr(Transactions, "_end", unclear)
    options = {"on_failure": "dead_letter", "dead_letter": dead_letter} if dead_letter else {}
    one = Listener(
        servers, group_id="g", topics=["t"], transactional_id_prefix="p", retry_backoff_ms=1, **options
    )
    seen: list[int] = []

    @one.handler
    async def handle(record: Any, producer: Any) -> None:
        seen.append(int(record.value))
        await producer.send("out", record.value)
        if record.value == b"1" and (dead_letter or refused < 2):
            raise ValueError("not yet")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await until(lambda: len(set(seen)) == COUNT)
            await until(lambda: not one.status().lag)
            one.stop()
    assert refused == 2
    assert sorted(int(value or b"-1") for value in await written(servers)) == list(range(COUNT))


async def test_a_listener_that_pauses_in_the_middle_of_a_partition_can_be_ended(servers: list[str]) -> None:
    one = Listener(servers, group_id="g", topics=["t"], ack_mode=AckMode.RECORD)
    seen: list[int] = []

    @one.handler
    async def handle(record: Any) -> None:
        seen.append(record.partition)
        one.pause()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await until(lambda: len(seen) > 0)
            engine = one._engine
            assert engine is not None
            await until(lambda: any(lane.is_held and not lane.turns for lane in engine.lanes.values()))
            one.stop()
    assert sum((await committed(servers, "g")).values()) == len(seen)


async def test_what_comes_while_all_is_paused_is_paused() -> None:
    held: list[PartitionId] = []
    engine: Any = Engine.__new__(Engine)
    engine.consumer = SimpleNamespace(pause=held.extend)
    for engine.pauses_all, engine.paused, paused in (
        (False, set(), []),
        (False, {PartitionId("t", 1)}, [("t", 1)]),
        (True, set(), [("t", 0), ("t", 1)]),
    ):
        held.clear()
        engine.on_assigned([("t", 0), ("t", 1)])
        assert sorted(held) == sorted(engine.paused) == paused


@pytest.mark.parametrize(("index", "done"), [(-1, 0), (0, 0), (1, 1), (2, 2), (3, 2), (99, 2)])
def test_a_batch_whose_handler_names_a_record_that_it_does_not_have_is_not_done(
    index: int, done: int
) -> None:
    nothing: Any = None
    turn = Turn([nothing] * 3, nothing, nothing, ends=0.0, is_batch=True, extra=nothing)
    turn.fail(RecordFailedError(index))
    assert turn.done == done and len(turn.failed) == 1
