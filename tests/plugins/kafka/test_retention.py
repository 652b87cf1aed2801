"""What Kafka's clients see of records that are too old: their own timestamps count, not when they were written."""

from __future__ import annotations

import time
from pathlib import Path

import trio

from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core.errors import ErrorCode

from .test_listener import batch, client_of, fetch, make, node_at, parts_of, produce


async def test_records_past_the_retention_go_soon_and_others_stay(tmp_path: Path) -> None:
    """A client that makes up timestamps of 1970 loses its records at the next look of the maintaining thread."""
    week_ms = 7 * 86_400_000
    now_ms = time.time_ns() // 1_000_000
    async with node_at(tmp_path, log_maintenance_interval_ms=20) as node, client_of(node) as client:
        await make(node, partitions=3)
        ages = [1_000, now_ms - week_ms + 3_600_000, now_ms - week_ms - 3_600_000]
        for partition, time_ms in enumerate(ages):
            data = batch(b"a", b"b", time_ms=time_ms)
            answer = await client.ask(Api.PRODUCE, 9, produce(data, partition=partition))
            assert answer.responses[0].partition_responses[0].error_code == 0
        starts = [0, 0, 0]
        with trio.fail_after(30):
            while starts != [2, 0, 2]:
                parts = parts_of(await client.ask(Api.FETCH, 11, fetch(2, partitions=3)))
                starts = [parts[index].log_start_offset for index in range(3)]
        again = parts_of(await client.ask(Api.FETCH, 11, fetch(0, partitions=3)))
        gone = ErrorCode.OFFSET_OUT_OF_RANGE
        assert [again[index].error_code for index in range(3)] == [gone, 0, gone]
