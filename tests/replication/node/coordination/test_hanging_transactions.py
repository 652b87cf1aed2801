"""Transactions that no coordinator knows of: found, ended, and left alone while somebody holds them (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

from insync.replication import Admin, BlockingAdmin, Node, Producer
from insync.replication.asyncio import Admin as AsyncioAdmin
from insync.replication.client import (
    ActiveProducer,
    InvalidTxnStateError,
    ProducerFencedError,
    UnknownTopicError,
)
from insync.replication.client.admin import _transactions
from insync.replication.client.connection._coordinators import Coordinators
from insync.replication.core import messages as m
from insync.replication.core.broker.coordination import aborting, transacting
from insync.replication.core.broker.coordination.shards import Shards
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.core.messages import transactions as tm
from insync.replication.core.transactions import epochs
from insync.replication.core.types import PartitionId
from insync.replication.node.operations import metrics
from insync.transport import TransportError

from ..conftest import Wall
from ..operations.scraping import scrape
from ..test_cluster import settings, until
from .test_transactions import FAST, nodes, read, reader


@asynccontextmanager
async def one_held(folder: Path) -> AsyncIterator[tuple[Admin, Producer]]:
    """A node whose only partition holds a record of a transaction that is open."""
    async with (
        nodes(folder, 1, t=1) as (running, admin),
        Producer(running.servers, transactional_id="w") as producer,
    ):
        producer.begin()
        await (await producer.send("t", b"held")).wait()
        yield admin, producer


async def test_a_transaction_that_nobody_knows_of_is_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader of a release without verification takes what the coordinator has never heard of."""
    async with nodes(tmp_path, 1, t=2) as (running, admin):
        async with Producer(running.servers, transactional_id="whole") as producer, producer.transaction():
            await producer.send("t", b"first", partition=0)
        with monkeypatch.context() as patch:
            patch.setattr(
                transacting.Transacting,
                "_join",
                lambda self, partition, effect: self._add_answered(partition, effect, ErrorCode.NONE),
            )
            async with Producer(running.servers, transactional_id="hangs") as producer:
                producer.begin()
                await (await producer.send("t", b"never", partition=0)).wait()
                # Its coordinator knows of nothing that is to be ended.
                await producer.abort()
        async with (
            Producer(running.servers, transactional_id="goes on") as producer,
            reader(running.servers) as consumer,
        ):
            producer.begin()
            await (await producer.send("t", b"held", partition=1)).wait()
            consumer.assign([("t", 0)])
            assert await read(consumer, 1) == [b"first"]
            found = await admin.find_hanging_transactions(longer_than_ms=0)
            (hanging,) = found
            at = (hanging.topic, hanging.partition)
            assert (at, hanging.start_offset) == (("t", 0), 2)
            assert await admin.find_hanging_transactions() == [], "it has not been open for long"
            assert await admin.find_hanging_transactions(["t"], longer_than_ms=0) == found
            described = await admin.describe_producers([("t", 0), ("t", 1)])
            open_ones = {at.partition: each[0].start_offset for at, each in described.items()}
            assert open_ones == {0: 2, 1: 0}
            ended = described["t", 0][1]  # type: ignore[index]  # a pair is as good
            assert isinstance(ended, ActiveProducer)
            assert (ended.start_offset, ended.last_timestamp_ms > 0) == (-1, True)
            with pytest.raises(
                InvalidTxnStateError,
                match=r"no transaction is open from there on; open transactions start at: 2$",
            ):
                await admin.abort_transaction(("t", 0), 1)
            with pytest.raises(InvalidTxnStateError, match=r"its transactional_id ends it at once$"):
                await admin.abort_transaction(("t", 1), 0)
            with pytest.raises(UnknownTopicError):
                await admin.abort_transaction(("nowhere", 0), 0)
            await admin.abort_transaction(at, hanging.start_offset)
            assert await admin.find_hanging_transactions(longer_than_ms=0) == []
            await producer.send("t", b"last", partition=0)
            await producer.commit()
            assert await read(consumer, 1) == [b"last"]

            async def ends() -> bool:
                everything = await consumer.end_offsets([("t", 0)])
                return everything[("t", 0)] == 6  # type: ignore[index]

            await until(ends)
            await _on_other_faces(running.servers)


async def _on_other_faces(servers: list[str]) -> None:
    def in_a_thread() -> None:
        with BlockingAdmin(servers) as admin:
            assert admin.find_hanging_transactions(longer_than_ms=0) == []
            assert len(admin.describe_producers([("t", 0)])) == 1
            with pytest.raises(InvalidTxnStateError):
                admin.abort_transaction(("t", 0), 0)

    async def in_asyncio() -> None:
        async with AsyncioAdmin(servers) as admin:
            assert await admin.find_hanging_transactions(longer_than_ms=0) == []
            assert len(await admin.describe_producers([("t", 0)])) == 1
            with pytest.raises(InvalidTxnStateError):
                await admin.abort_transaction(("t", 0), 0)

    await trio.to_thread.run_sync(in_a_thread)
    await trio.to_thread.run_sync(lambda: asyncio.run(in_asyncio()))


async def _with_offsets(admin: Admin, *, committed: bool) -> None:
    """A transaction with offsets of a group: begun by the second version of the protocol, ended by the first."""
    ids, groups = (Coordinators(admin._cluster, kind) for kind in (gm.TRANSACTION, gm.GROUP))
    asked = tm.InitTransactionsRequest(transactional_id="w", timeout_ms=60_000)
    told = await ids.ask("w", asked, timeout=30.0, thing="w")
    who = {
        "transactional_id": "w",
        "producer_id": told.producer_id,
        "producer_epoch": told.producer_epoch,
    }
    moved = gm.TxnOffsetCommitRequest(
        **who, group="g", offsets=[gm.GroupOffset(topic="t", partition=0, offset=7)]
    )
    end = tm.EndTransactionRequest(**who, committed=committed, version=1)
    for coordinators, name, request in ((groups, "g", moved), (ids, "w", end)):
        assert (await coordinators.ask(name, request, timeout=30.0, thing=name)).error == ErrorCode.NONE


async def _stable(admin: Admin) -> list[gm.CommittedOffset]:
    request = gm.GroupOffsetsRequest(group="g", require_stable=True)
    ask = Coordinators(admin._cluster, gm.GROUP).ask
    answer = await ask("g", request, timeout=30.0, thing="group 'g'")
    assert answer.error == ErrorCode.NONE
    return list(answer.offsets)


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
async def test_a_transaction_of_both_versions_ends(tmp_path: Path, committed: bool) -> None:
    async with nodes(tmp_path, 1, t=1) as (_, admin):
        await _with_offsets(admin, committed=committed)
        await _until_it_has_ended(admin, committed=committed)


async def _until_it_has_ended(admin: Admin, *, committed: bool) -> None:
    async def has_ended() -> bool:
        status = (await admin.describe_transaction("w")).status
        return status == ("COMPLETE_COMMIT" if committed else "COMPLETE_ABORT")

    await until(has_ended)
    assert [(each.error, each.offset) for each in await _stable(admin)] == ([(0, 7)] if committed else [])


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
async def test_what_a_coordinator_has_decided_and_cannot_end_is_found_and_ended_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, committed: bool
) -> None:
    """As releases have left it behind whose markers were of the version of the first request."""
    async with nodes(tmp_path, 1, t=1) as (running, admin):
        right = epochs._prepared
        with monkeypatch.context() as patch:
            patch.setattr(
                epochs,
                "_prepared",
                lambda now, *rest: structs.replace(right(now, *rest), client_version=now.client_version),
            )
            await _with_offsets(admin, committed=committed)
        await running.stop(1)
        await running.start(settings(tmp_path, 1, **FAST))
        await _is_found_and_ended(running.servers, committed=committed)
        assert "event=transaction_marker_refused transactional_id=w" in caplog.text


async def _is_found_and_ended(servers: list[str], *, committed: bool) -> None:
    async with Admin(servers) as admin:

        async def is_found() -> bool:
            return bool(await admin.find_hanging_transactions(longer_than_ms=0))

        await until(is_found)
        (hanging,) = await admin.find_hanging_transactions(longer_than_ms=0)
        assert (hanging.topic, hanging.transactional_id) == ("__consumer_offsets", "w")
        assert [each.error for each in await _stable(admin)] == [ErrorCode.UNSTABLE_OFFSET_COMMIT]
        await admin.abort_transaction((hanging.topic, hanging.partition), hanging.start_offset)
        await _until_it_has_ended(admin, committed=committed)
        assert await admin.find_hanging_transactions(longer_than_ms=0) == []


async def test_many_partitions_are_asked_about_without_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pauses, some tens of thousands on a node would take longer than `request_timeout_ms`."""
    monkeypatch.setattr(_transactions, "_AT_ONCE", 1)
    async with nodes(tmp_path, 1, t=5) as (_, admin):
        places = [("t", number) for number in range(5)]
        pauses: list[int] = []
        monkeypatch.setattr(admin._cluster, "quick_backoff", lambda attempt: pauses.append(attempt) or 0.0)
        assert list(await admin.describe_producers(places)) == places
        assert pauses == []


async def test_an_abort_names_what_it_means(tmp_path: Path) -> None:
    """What an operator has seen may have ended meanwhile, and another may have begun."""
    async with (
        nodes(tmp_path, 1, t=1) as (running, admin),
        Producer(running.servers, transactional_id="w") as producer,
    ):
        async with producer.transaction():
            await producer.send("t", b"first")
        (before,) = (await admin.describe_producers([("t", 0)])).values()
        producer.begin()
        await (await producer.send("t", b"second")).wait()
        answer = await _asked(admin, before[0], start_offset=0)
        assert answer.error == ErrorCode.INVALID_TXN_STATE
        assert "has no transaction of epoch" in answer.message
        await producer.commit()


async def test_a_leader_asks_the_coordinators_itself(tmp_path: Path) -> None:
    """Who asks may not have; what a coordinator holds is not ended by another, wherever both are."""
    async with nodes(tmp_path, 3, t=3) as (running, admin), AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(Producer(running.servers, transactional_id=f"w{number}"))
            for number in range(4)
        ]
        for producer in producers:
            producer.begin()
            for partition in range(3):
                await (await producer.send("t", b"held", partition=partition)).wait()
        told = await admin.describe_producers([("t", partition) for partition in range(3)])
        for at, open_ones in told.items():
            assert len(open_ones) == 4
            for each in open_ones:
                answer = await _asked(admin, each, start_offset=each.start_offset, partition=at.partition)
                assert answer.error == ErrorCode.INVALID_TXN_STATE
                assert "holds it, and ends it by its timeout" in answer.message
        for producer in producers:
            await producer.commit()
        async with reader(running.servers) as consumer:
            consumer.assign(list(told))
            assert await read(consumer, 12) == [b"held"] * 12


async def test_without_every_coordinators_word_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_held(tmp_path) as (admin, producer):
        (before,) = (await admin.describe_producers([("t", 0)])).values()
        with monkeypatch.context() as patch:
            # A coordinator that still reads its log, or has moved, or does not answer.
            patch.setattr(Shards, "led", lambda self, topic: [])
            answer = await _asked(admin, before[0], start_offset=0)
        assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        with monkeypatch.context() as patch:
            patch.setattr(aborting.Aborting, "_coordinators", lambda self: None)
            answer = await _asked(admin, before[0], start_offset=0)
        assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await admin.describe_producers([("t", 0)])) == {PartitionId("t", 0): before}
        await producer.commit()


async def test_a_refusal_after_a_pause_is_not_taken_for_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that does not answer has perhaps written the marker; when it answers, it says that it has not."""
    async with one_held(tmp_path) as (admin, producer):
        ask, lost = admin._cluster.ask, [1]

        async def loses_one(kind: m.Kind, request: Any, **more: Any) -> Any:
            if kind == m.Kind.ABORT_TRANSACTION and lost:
                lost.pop()
                raise TransportError("for the test")
            return await ask(kind, request, **more)

        async def nobody(hanging: Any) -> Any:
            return hanging

        monkeypatch.setattr(admin._cluster, "ask", loses_one)
        monkeypatch.setattr(admin, "_unheld", nobody)
        with pytest.raises(InvalidTxnStateError, match="holds it"):
            await admin.abort_transaction(("t", 0), 0)
        assert not lost
        await producer.commit()


async def test_what_becomes_of_transactions_is_counted_and_told(
    tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = settings(tmp_path, 1, **FAST, transaction_max_timeout_ms=60_000, metrics_port=0)
    async with Node(given) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 2, 1)

        async def scraped(name: str, **labels: str) -> float:
            return (await scrape(node.metrics_address)).value(name, **labels)

        async with Producer(node.endpoints, transactional_id="a") as first:
            async with first.transaction():
                await first.send("t", b"1")
            first.begin()
            await first.send("t", b"2")
            await first.flush()
            await first.abort()
            first.begin()
            await (await first.send("t", b"3")).wait()
            wall.pass_timeout()

            async def is_late() -> bool:
                return await scraped("insync_transactions_aborted_total", cause="timeout") == 1

            await until(is_late)
        async with Producer(node.endpoints, transactional_id="b") as second:
            second.begin()
            await (await second.send("t", b"4", partition=0)).wait()
            await (await second.send("t", b"5", partition=1)).wait()
            assert await scraped("insync_open_transactions") == 2
            assert await scraped("insync_partitions_with_late_transactions") == 0
            with monkeypatch.context() as patch:
                patch.setattr(metrics, "_LATE_MS", -120_000)
                assert await scraped("insync_partitions_with_late_transactions") == 2
            assert await scraped("insync_transactional_ids", state="ongoing") == 1
            async with Producer(node.endpoints, transactional_id="b"):
                assert await scraped("insync_open_transactions") == 0
            with pytest.raises(ProducerFencedError):
                await second.abort()
        assert await scraped("insync_transactions_committed_total") == 1
        for cause in ("asked", "timeout", "taken_over"):
            assert await scraped("insync_transactions_aborted_total", cause=cause) == 1, cause
        assert await scraped("insync_transaction_seconds_count", outcome="aborted") == 3
        assert await scraped("insync_transaction_seconds_sum", outcome="aborted") >= wall.ahead_ms / 1000
        assert await scraped("insync_transactional_ids") == 2
    said = [each.getMessage() for each in caplog.records if "event=transaction_aborted" in each.getMessage()]
    assert len(said) == 2
    assert "transactional_id=a" in said[0] and "longer than its timeout of 60000 ms" in said[0]
    assert "transactional_id=b" in said[1] and "partitions=2" in said[1] and "taken" in said[1]


async def _asked(admin: Admin, producer: ActiveProducer, start_offset: int, partition: int = 0) -> Any:
    request = tm.AbortTransactionRequest(
        topic="t",
        partition=partition,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        start_offset=start_offset,
    )
    (leader,) = await admin._led([PartitionId("t", partition)])
    return await admin._cluster.ask(m.Kind.ABORT_TRANSACTION, request, timeout=30.0, node_id=leader)
