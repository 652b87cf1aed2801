"""Followers that wait for the same bytes: their leader's log is read once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from insync.replication import Admin, Node, Producer
from insync.replication.core.broker.ports import COLD, LogReadError
from insync.replication.core.types import PartitionId
from insync.replication.node.logs._log_reader import LogReader
from insync.storage import OffsetOutOfRangeError
from insync.storage.disk_log import DiskLog

from ..test_cluster import full_isr, settings, until

ORDERS, PAYMENTS = PartitionId("orders", 0), PartitionId("payments", 0)


class CountingLog:
    def __init__(self) -> None:
        self.reads: list[tuple[int, int, int]] = []
        self.is_at_hand = False

    def read_at_hand(self, offset: int, *, max_bytes: int, limit_offset: int) -> object:
        return self.read(offset, max_bytes=max_bytes, limit_offset=limit_offset) if self.is_at_hand else None

    def read(self, offset: int, *, max_bytes: int, limit_offset: int) -> object:
        self.reads.append((offset, max_bytes, limit_offset))
        if offset < 0:
            raise OffsetOutOfRangeError("orders-0", offset, 0, 6)
        return object()


def reader_of(**logs: CountingLog) -> LogReader:
    hosts: Any = {PartitionId(topic, 0): SimpleNamespace(log=log) for topic, log in logs.items()}
    cold_reads: Any = SimpleNamespace(is_at_hand=lambda partition, log, offset: True)
    return LogReader(hosts, cold_reads)


@pytest.mark.parametrize("is_at_hand", [False, True])
def test_while_parked_fetches_are_looked_at_the_same_is_read_once(is_at_hand: bool) -> None:
    orders, payments = CountingLog(), CountingLog()
    orders.is_at_hand = payments.is_at_hand = is_at_hand
    reader = reader_of(orders=orders, payments=payments)
    reader.shared = {}
    first = reader.range_at(ORDERS, 5, 1000, 6)
    assert reader.range_at(ORDERS, 5, 1000, 6) is first
    assert reader.range_at(PAYMENTS, 5, 1000, 6) is not first
    others = [(4, 1000, 6), (5, 999, 6), (5, 1000, 7)]
    assert first not in [reader.range_at(ORDERS, *other) for other in others]
    assert orders.reads == [(5, 1000, 6), *others] and payments.reads == [(5, 1000, 6)]


def test_what_is_not_at_hand_is_not_read() -> None:
    log = CountingLog()
    reader = reader_of(orders=log)
    reader._cold_reads.is_at_hand = lambda partition, log, offset: False  # type: ignore[method-assign]
    reader.shared = {}
    assert reader.range_at(ORDERS, 5, 1000, 6) is COLD
    assert not log.reads and not reader.shared


def test_otherwise_each_read_is_of_the_log_as_it_is() -> None:
    log = CountingLog()
    reader = reader_of(orders=log)
    assert reader.range_at(ORDERS, 5, 1000, 6) is not reader.range_at(ORDERS, 5, 1000, 6)
    assert len(log.reads) == 2


def test_a_read_that_fails_is_not_remembered() -> None:
    log = CountingLog()
    reader = reader_of(orders=log)
    reader.shared = {}
    for _ in range(2):
        with pytest.raises(LogReadError):
            reader.range_at(ORDERS, -1, 1000, 6)
    assert len(log.reads) == 2


async def test_a_record_is_read_once_for_both_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def counted(right: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: DiskLog, offset: int, **options: Any) -> Any:
            reads.append(offset)
            return right(self, offset, **options)

        return read

    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2, 3)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin, Producer(servers, linger_ms=0) as producer:
            await admin.create_topic("t", partitions=1, replication_factor=3)
            await until(lambda: full_isr(admin, "t", 3))
            # An acknowledgement comes with the last follower's next fetch: from now on both wait for each record.
            await producer.send_and_wait("t", b"first")
            for name in ("read", "read_at_hand"):
                monkeypatch.setattr(DiskLog, name, counted(getattr(DiskLog, name)))
            for _ in range(5):
                await producer.send_and_wait("t", b"x")
    assert reads == [1, 2, 3, 4, 5]
