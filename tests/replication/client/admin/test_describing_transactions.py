"""What becomes of a question about a transactional id whose coordinator cannot answer yet, or has moved.

Time jumps: nothing here waits for a clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import (
    Admin,
    PolicyViolationError,
    RequestTimeoutError,
    TransactionalIdNotFoundError,
)
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.core.messages import transactions as tm

from ..fake_cluster import FakeNode, fake_cluster

Clock = trio.testing.MockClock
LOADING, MOVED = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR


class Script:
    """A coordinator of transactional ids. `says`: errors of the one that is asked about; the last of them stays."""

    def __init__(self, *says: ErrorCode) -> None:
        self.says = deque(says)
        self.lists: deque[ErrorCode] = deque()
        """Errors of questions for all of them, one for each."""
        self.listed: list[tm.TransactionListing] = []
        self.seen: Counter[m.Kind] = Counter()

    def handle(self, node: FakeNode, request: Any) -> bool:
        kind = m.Kind(request.kind)
        if kind is m.Kind.FIND_COORDINATOR:
            keys = wire.decode_request(kind, request.body).keys
            found = [gm.Coordinator(key=key, node_id=0, leader_epoch=1) for key in keys]
            answer: object = gm.FindCoordinatorResponse(coordinators=found)
        elif kind is m.Kind.DESCRIBE_TRANSACTIONS:
            (name,) = wire.decode_request(kind, request.body).transactional_ids
            error = self.says.popleft() if len(self.says) > 1 else self.says[0]
            status = "ONGOING" if error == ErrorCode.NONE else ""
            told = tm.TransactionDescription(transactional_id=name, error=error, status=status)
            answer = tm.DescribeTransactionsResponse(transactions=[told])
        elif kind is m.Kind.DESCRIBE_PRODUCERS:
            open_one = m.ActiveProducer(producer_id=7, producer_epoch=1, start_offset=5)
            of = m.DescribeProducersResult(topic="t", partition=0, error=0, producers=[open_one])
            answer = m.DescribeProducersResponse(partitions=[of])
        elif kind is m.Kind.LIST_TRANSACTIONS:
            error = self.lists.popleft() if self.lists else ErrorCode.NONE
            answer = tm.ListTransactionsResponse(error=error, transactions=self.listed)
        elif kind is m.Kind.ABORT_TRANSACTION:
            self.seen[kind] += 1
            return True
        else:
            return False
        self.seen[kind] += 1
        request.reply(wire.encode(answer))
        return True


@asynccontextmanager
async def asking(script: Script, **settings: Any) -> AsyncIterator[Admin]:
    async with fake_cluster(1, t=1) as cluster:
        cluster.chaos = script.handle
        async with Admin(cluster.urls, **settings) as admin:
            yield admin


async def test_a_coordinator_that_loads_is_asked_again(autojump_clock: Clock) -> None:
    script = Script(LOADING, LOADING, ErrorCode.NONE)
    async with asking(script) as admin:
        assert (await admin.describe_transaction("etl")).status == "ONGOING"
    assert script.seen == {m.Kind.FIND_COORDINATOR: 1, m.Kind.DESCRIBE_TRANSACTIONS: 3}


async def test_a_coordinator_that_has_moved_is_looked_for_again(autojump_clock: Clock) -> None:
    script = Script(MOVED, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    async with asking(script) as admin:
        with pytest.raises(TransactionalIdNotFoundError):
            await admin.describe_transaction("etl")
    assert script.seen == {m.Kind.FIND_COORDINATOR: 2, m.Kind.DESCRIBE_TRANSACTIONS: 2}


async def test_one_that_never_has_loaded_ends_with_the_time_and_says_so(autojump_clock: Clock) -> None:
    script = Script(LOADING)
    async with asking(script, request_timeout_ms=3_000) as admin:
        with pytest.raises(RequestTimeoutError, match=r"'etl'.*within 3 s.*COORDINATOR_LOAD_IN_PROGRESS"):
            await admin.describe_transaction("etl")


async def test_all_are_asked_for_again_while_one_coordinator_loads_and_a_refusal_is_told_at_once(
    autojump_clock: Clock,
) -> None:
    script = Script(ErrorCode.NONE)
    async with asking(script) as admin:
        script.lists.append(LOADING)
        assert await admin.list_transactions() == []
        assert script.seen[m.Kind.LIST_TRANSACTIONS] == 2
        script.lists.append(ErrorCode.POLICY_VIOLATION)
        with pytest.raises(PolicyViolationError, match="transactions of node 0"):
            await admin.list_transactions()
        assert script.seen[m.Kind.LIST_TRANSACTIONS] == 3


async def test_what_hangs_is_told_with_the_id_that_has_its_producer_by_now(autojump_clock: Clock) -> None:
    """Its coordinator holds a transaction of that producer, but in no such partition."""
    script = Script(ErrorCode.NONE)
    async with asking(script) as admin:
        (nobodys,) = await admin.find_hanging_transactions(longer_than_ms=0)
        script.listed = [tm.TransactionListing(transactional_id="etl", producer_id=7, status="ONGOING")]
        (named,) = await admin.find_hanging_transactions(longer_than_ms=0)
    assert (nobodys.transactional_id, named.transactional_id) == ("", "etl")
    assert (named.topic, named.partition, named.producer_id, named.start_offset) == ("t", 0, 7, 5)


async def test_an_abort_that_its_leader_never_answers_is_told_so(autojump_clock: Clock) -> None:
    script = Script(ErrorCode.NONE)
    async with asking(script, request_timeout_ms=3_000) as admin:
        with pytest.raises(
            RequestTimeoutError, match=r"offset 5 of t-0: its leader has not answered within 3 s"
        ):
            await admin.abort_transaction(("t", 0), 5)
    assert script.seen[m.Kind.ABORT_TRANSACTION] > 0
