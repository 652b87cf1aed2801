"""What a reassignment adds is fetched at a pace, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from insync.replication.core.records import PartitionRecord, Versioned
from insync.replication.core.view import ClusterView
from insync.replication.node._throttle import Throttle

from .test_parts import PARTITION, replicas

RECORD = PartitionRecord(
    topic="t", partition=0, topic_id="x", replicas=(2, 1), isr=(2,), leader=2, min_insync_replicas=1
)


async def test_bytes_are_paid_for_with_time(autojump_clock: trio.testing.MockClock) -> None:
    throttle = Throttle(100)
    assert throttle.pause == 0
    start = trio.current_time()
    for size in (50, 0, 250):
        throttle.took(size)
        await trio.sleep(throttle.pause)
    assert trio.current_time() - start == pytest.approx(3.0)
    await trio.sleep(60)
    throttle.took(100)
    assert throttle.pause == pytest.approx(1.0), "what was not used is not saved up"


@pytest.mark.parametrize(
    ("change", "throttled"),
    [
        ({"adding": (1,)}, True),
        ({}, False),
        ({"adding": (1,), "isr": (2, 1)}, False),
        ({"adding": (2,)}, False),
    ],
)
async def test_only_replicas_that_are_being_added_are_held_up(
    tmp_path: Path, change: dict[str, tuple[int, ...]], throttled: bool
) -> None:
    async with trio.open_nursery() as nursery:
        node = replicas(tmp_path, nursery)
        node.fetchers.throttle = Throttle(1000)
        node.view = ClusterView(partitions={PARTITION: Versioned(attrs.evolve(RECORD, **change), 1)})
        assert node.fetchers.is_throttled(PARTITION) is throttled
        size = node.settings.replica_fetch_max_bytes
        assert node.fetchers.fetch_size(PARTITION) == (1000 if throttled else size)
        assert node.fetchers.fetch_size(PARTITION, handed_over=True) == (1000 if throttled else 4 * size)
        nursery.cancel_scope.cancel()
