"""Transactions of whole batches that one process writes and another decides, on a real node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from insync.replication.client import (
    InvalidSettingError,
    InvalidTxnStateError,
    NamedProducer,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalBatchProducer,
    TransactionStateError,
)
from insync.storage.batch import build_batch

from ..conftest import Wall
from ..test_cluster import until
from .test_transactions import nodes, read, reader

AT = ("t", 0)


def producer(servers: Sequence[str], **options: int) -> TransactionalBatchProducer:
    return TransactionalBatchProducer(list(servers), transactional_id="w", **options)


def batch(who: NamedProducer, values: list[bytes], sequence: int = 0) -> bytes:
    return build_batch(
        [None] * len(values),
        values,
        timestamps_ms=1_000,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )


async def test_one_process_writes_and_another_commits(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, t=2) as (running, _), reader(running.servers) as committed:
        committed.assign([("t", 0), ("t", 1)])
        async with producer(running.servers) as writer:
            first = await writer.begin()
            for partition in range(2):
                await writer.send("t", partition, batch(first, [b"a", b"b"]))
                await writer.send("t", partition, batch(first, [b"c"], 2))
            await writer.flush()
            await writer.send_offsets("g", {AT: 7})
            with pytest.raises(TransactionStateError, match="one transaction for each"):
                await writer.begin()
        assert await committed.poll(300) == []
        async with producer(running.servers) as decider:
            await decider.end(first, committed=True)
            await decider.end(first, committed=True)
            with pytest.raises(InvalidTxnStateError):
                await decider.end(first, committed=False)
            assert await decider.committed_offsets("g") == {AT: 7}
        assert sorted(await read(committed, 6)) == [b"a", b"a", b"b", b"b", b"c", b"c"]


async def test_who_comes_next_aborts_what_was_left_open(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, t=1) as (running, _), reader(running.servers) as committed:
        committed.assign([AT])
        async with producer(running.servers) as left:
            gone = await left.begin()
            await left.send(*AT, batch(gone, [b"lost"]))
            await left.flush()
            await left.send_offsets("g", {AT: 1})
            async with producer(running.servers) as successor:
                here = await successor.begin()
                assert await successor.committed_offsets("g") == {}
                with pytest.raises(ProducerFencedError):
                    await successor.end(gone, committed=True)
                await successor.send(*AT, batch(here, [b"kept"]))
                await successor.flush()
                await successor.end(here, committed=True)
        assert await read(committed, 1) == [b"kept"]


async def test_a_commit_after_the_timeout_is_told_that_nothing_counts(tmp_path: Path, wall: Wall) -> None:
    async with nodes(tmp_path, 1, t=1) as (running, admin), producer(running.servers) as writer:
        who = await writer.begin()
        await writer.send(*AT, batch(who, [b"late"]))
        await writer.flush()
        wall.pass_timeout()

        async def is_aborted() -> bool:
            return (await admin.describe_transaction("w")).status == "COMPLETE_ABORT"

        await until(is_aborted)
        with pytest.raises(TransactionAbortedError):
            await writer.end(who, committed=True)


async def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, t=1) as (running, _):
        with pytest.raises(InvalidSettingError, match="transactional_id"):
            TransactionalBatchProducer(running.servers)
        async with producer(running.servers) as writer:
            with pytest.raises(TransactionStateError, match="no transaction has begun"):
                await writer.send_offsets("g", {AT: 1})
