"""What operators are told when the coordinator of a group, or a leader, refuses, falls silent or has nothing.

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
    GroupIdNotFoundError,
    RequestTimeoutError,
    UnknownServerError,
    UnstableOffsetCommitError,
)
from insync.replication.client.transaction_errors import InvalidTxnStateError
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.core.messages import transactions as tm

from ..fake_cluster import FakeNode, fake_cluster

Clock = trio.testing.MockClock
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
SILENCE = None


class Script:
    """Coordinates groups and transactions, and leads t-0, where one transaction is open that nobody holds.

    `offsets`: answers about what a group has committed, the last of which stays. `refusal`: of every abort.
    """

    def __init__(self, *offsets: list[gm.CommittedOffset] | None) -> None:
        self.offsets = deque(offsets)
        self.refusal = ErrorCode.NONE
        self.seen: Counter[m.Kind] = Counter()

    def handle(self, node: FakeNode, request: Any) -> bool:
        kind = m.Kind(request.kind)
        answer: object
        if kind is m.Kind.FIND_COORDINATOR:
            keys = wire.decode_request(kind, request.body).keys
            found = [gm.Coordinator(key=key, node_id=0, leader_epoch=1) for key in keys]
            answer = gm.FindCoordinatorResponse(coordinators=found)
        elif kind is m.Kind.GROUP_OFFSETS:
            told = self.offsets.popleft() if len(self.offsets) > 1 else self.offsets[0]
            answer = SILENCE if told is None else gm.GroupOffsetsResponse(offsets=told)
        elif kind is m.Kind.DESCRIBE_PRODUCERS:
            open_one = m.ActiveProducer(producer_id=7, producer_epoch=0, last_timestamp_ms=1, start_offset=0)
            result = m.DescribeProducersResult(topic="t", partition=0, error=0, producers=[open_one])
            answer = m.DescribeProducersResponse(partitions=[result])
        elif kind is m.Kind.LIST_TRANSACTIONS:
            answer = tm.ListTransactionsResponse()
        elif kind is m.Kind.ABORT_TRANSACTION:
            answer = tm.AbortTransactionResponse(error=self.refusal, message="scripted")
        else:
            return False
        self.seen[kind] += 1
        if answer is not SILENCE:
            request.reply(wire.encode(answer))
        return True


@asynccontextmanager
async def asking(script: Script, **settings: Any) -> AsyncIterator[Admin]:
    async with fake_cluster(1, t=2) as cluster:
        cluster.chaos = script.handle
        async with Admin(cluster.urls, **settings) as admin:
            yield admin


def committed(error: ErrorCode = ErrorCode.NONE) -> list[gm.CommittedOffset]:
    """Of t-0 offset 3, and of t-1 offset 4 or this error."""
    second = gm.CommittedOffset(topic="t", partition=1, offset=-1 if error else 4, error=error)
    return [gm.CommittedOffset(topic="t", partition=0, offset=3), second]


async def test_offsets_that_a_transaction_is_about_to_replace_are_asked_for_again(
    autojump_clock: Clock,
) -> None:
    script = Script(committed(UNSTABLE), committed(UNSTABLE), committed())
    async with asking(script) as admin:
        assert await admin.group_offsets("g") == {("t", 0): 3, ("t", 1): 4}
    assert script.seen[m.Kind.GROUP_OFFSETS] == 3


async def test_a_transaction_that_does_not_end_is_told_when_the_time_is_over(autojump_clock: Clock) -> None:
    script = Script(committed(UNSTABLE))
    async with asking(script, request_timeout_ms=3_000) as admin:
        began = trio.current_time()
        with pytest.raises(UnstableOffsetCommitError, match=r"'g'.*of t-1: UNSTABLE_OFFSET_COMMIT"):
            await admin.group_offsets("g")
        assert 1.5 < trio.current_time() - began <= 3


async def test_offsets_that_a_coordinator_cannot_read_are_told_at_once(autojump_clock: Clock) -> None:
    script = Script(committed(ErrorCode.UNKNOWN_SERVER_ERROR))
    async with asking(script) as admin:
        with pytest.raises(UnknownServerError, match=r"'g'.*of t-1"):
            await admin.group_offsets("g")
    assert script.seen[m.Kind.GROUP_OFFSETS] == 1


async def test_a_coordinator_that_falls_silent_has_the_time_that_is_left(autojump_clock: Clock) -> None:
    script = Script(committed(UNSTABLE), SILENCE)
    async with asking(script, request_timeout_ms=3_000) as admin:
        await trio.sleep(100)  # the clock of a test begins at 0, where adding and subtracting are the same
        began = trio.current_time()
        with pytest.raises(RequestTimeoutError, match="'g'"):
            await admin.group_offsets("g")
        assert trio.current_time() - began <= 3.01


async def test_a_reset_of_a_group_that_has_committed_nothing_asks_for_partitions(
    autojump_clock: Clock,
) -> None:
    async with asking(Script([])) as admin:
        with pytest.raises(
            GroupIdNotFoundError, match=r"^group 'g'.*it has committed nothing; name partitions"
        ):
            await admin.plan_group_reset("g", "earliest")
        with pytest.raises(GroupIdNotFoundError):
            await admin.plan_group_reset("g", "offset", 0)


async def test_an_abort_that_the_leader_refuses_is_told_and_not_asked_for_again(
    autojump_clock: Clock,
) -> None:
    script = Script()
    script.refusal = ErrorCode.INVALID_TXN_STATE
    async with asking(script) as admin:
        with pytest.raises(InvalidTxnStateError, match=r"offset 0 of t-0: INVALID_TXN_STATE: scripted$"):
            await admin.abort_transaction(("t", 0), 0)
        assert script.seen[m.Kind.ABORT_TRANSACTION] == 1
        script.refusal = ErrorCode.NONE
        await admin.abort_transaction(("t", 0), 0)
