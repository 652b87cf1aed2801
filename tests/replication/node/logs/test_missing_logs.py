"""Logs that are not there: in a directory that is offline, or gone while somebody meant to read them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from insync.replication.core.broker.effects import ReadShard
from insync.replication.core.broker.events import ShardRead
from insync.replication.core.types import PartitionId
from insync.replication.node import NodeSettings
from insync.replication.node.driver import Driver
from insync.replication.node.logs._startup_scan import Found
from insync.storage import LogDirectory

from ..test_parts import replicas

GONE = PartitionId("__consumer_offsets", 7)


async def test_a_coordinator_whose_log_has_gone_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    async with trio.open_nursery() as nursery:
        node = replicas(tmp_path, nursery)
        monkeypatch.setattr(node, "step", told.append)
        await node.coordination._read_in_thread(ReadShard(GONE, reading=3, start=0, end=10))
        nursery.cancel_scope.cancel()
    assert told == [ShardRead(GONE, 3, None, -1)]


async def test_what_was_in_a_directory_that_is_offline_takes_no_work(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        settings = NodeSettings(node_id=1, data_dir=tmp_path, store="memory://")
        found = Found([LogDirectory(tmp_path, cluster_id="c", node_id=1)])
        node = Driver(settings, found, 1, nursery)
        found.offline.add(GONE)
        found.topic_ids[GONE] = "id"
        node.adopt(found)
        lane = node.hosts[GONE].lane
        assert lane.broken and lane.closed and lane.log is None
        nursery.cancel_scope.cancel()
