"""What is asked of the leaders of partitions: by which numbers, and what becomes of the answers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from insync.replication.client import Admin, Consumer, InvalidArgumentError
from insync.replication.client.admin._deletions import _Deletion
from insync.replication.client.connection._per_leader import PATIENCE
from insync.replication.client.errors import OffsetNotAvailableError
from insync.replication.client.producer.batch_producer import _Describe
from insync.replication.core import messages as m
from insync.replication.core.types import PartitionId

from ..fake_cluster import fake_cluster

AT = PartitionId("t", 0)
CLUSTER = cast(Any, None)


def test_what_awaits_its_commit_is_not_told_yet() -> None:
    describe = _Describe(CLUSTER, 5, [AT])
    result = m.DescribeProducersResult(topic="t", partition=0, error=0, last_offset=7, high_watermark=7)
    failure = describe._failure(result)
    assert isinstance(failure, OffsetNotAvailableError)
    assert str(failure).startswith("t-0: OFFSET_NOT_AVAILABLE: not all is committed yet")
    result = m.DescribeProducersResult(topic="t", partition=0, error=0, last_offset=7, high_watermark=8)
    assert describe._failure(result) is None


@pytest.mark.parametrize(("seconds", "within"), [(1.0, 1.0), (1000.0, PATIENCE)])
def test_a_leader_answers_within_the_time_that_its_client_has(seconds: float, within: float) -> None:
    asked = _Deletion(CLUSTER, {AT: 3}, seconds)._request([AT])
    assert isinstance(asked, m.DeleteRecordsRequest)
    assert asked.timeout_ms == within * 1000


async def test_a_shift_beyond_what_offsets_can_be_is_refused() -> None:
    async with fake_cluster(1) as cluster, Admin(cluster.urls) as admin:
        with pytest.raises(InvalidArgumentError, match="amount"):
            await admin.plan_group_reset("g", "shift", -(2**62) - 1)


async def test_a_consumer_says_goodbye_also_when_an_error_leaves_its_block() -> None:
    finished: list[object] = []

    class Noted(Consumer):
        async def _finish(self) -> None:
            finished.append(self)
            await super()._finish()

    async with fake_cluster(1, t=1) as cluster:
        with pytest.raises(ZeroDivisionError):
            async with Noted(cluster.urls) as consumer:
                raise ZeroDivisionError
        assert finished == [consumer]
