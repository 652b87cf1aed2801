"""Reading everything back through the public consumer, and asking every replica how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter, ne
from typing import Any

import attrs
import trio

from ...client import Admin, Consumer, ConsumerRecord, NodeReport
from .expectation import Expectation, fingerprints
from .scene import Progress

IDLE_TIMEOUT = 15.0
_POLL_MS = 1000
_PARTITION = ConsumerRecord._fields.index("partition")


@attrs.define(eq=False)
class ReadBack:
    """What the consumer handed out: records per partition and the sums of their fingerprints.

    `out_of_sequence` counts records whose offset was not the next one of their partition.
    """

    records: Counter[int] = attrs.Factory(Counter)
    sums: Counter[int] = attrs.Factory(Counter)
    out_of_sequence: int = 0

    def add(self, partition: int, rows: list[ConsumerRecord]) -> int:
        """Take note of records of one partition; gives the bytes of their keys and values."""
        offsets = [row.offset for row in rows]
        due = range(self.records[partition], self.records[partition] + len(rows))
        if offsets != list(due):
            self.out_of_sequence += sum(map(ne, offsets, due))
        pairs = [(row.key, row.value) for row in rows]
        self.records[partition] += len(rows)
        self.sums[partition] += sum(fingerprints(pairs))
        return sum(len(key or b"") + len(value or b"") for key, value in pairs)

    @property
    def total(self) -> int:
        return self.records.total()

    def defects(self, expectation: Expectation) -> list[str]:
        """How what was read differs from what was acknowledged."""
        found = [
            f"the consumer read other records of partition {partition} than were acknowledged"
            for partition, expected in expectation.partitions.items()
            if (self.records[partition], self.sums[partition]) != (len(expected), sum(expected.fingerprints))
        ]
        if self.out_of_sequence:
            found.append(f"the consumer skipped or repeated offsets {self.out_of_sequence} times")
        return found


async def read_back(
    servers: str, topic: str, total: int, progress: Progress, access: Mapping[str, Any]
) -> ReadBack:
    """Read the topic from its beginning: `total` records, and whatever more comes; or less if nothing comes."""
    read = ReadBack()
    async with Consumer(servers, auto_offset_reset="earliest", max_poll_records=5000, **access) as consumer:
        await consumer.assign_topic(topic)
        last = trio.current_time()
        while progress.done < total and trio.current_time() - last < IDLE_TIMEOUT:
            batch = await consumer.poll(_POLL_MS)
            if batch:
                last = trio.current_time()
            for partition, group in groupby(batch, itemgetter(_PARTITION)):
                progress.size_bytes += read.add(partition, list(group))
            progress.done += len(batch)
    progress.end()
    return read


def watermark_defects(
    reports: Sequence[NodeReport], topic: str, counts: Mapping[int, int], replicas: int
) -> list[str]:
    """What keeps "high watermark = log end offset = number of records" from being true on every replica."""
    found: list[str] = [
        f"node {each.node_id} does not answer: {each.error}" for each in reports if not each.alive
    ]
    seen: Counter[int] = Counter()
    for report in reports:
        for replica in report.replicas:
            if replica.topic != topic:
                continue
            seen[replica.partition] += 1
            expected = counts.get(replica.partition, 0)
            if not replica.high_watermark == replica.log_end_offset == expected:
                found.append(
                    f"partition {replica.partition} on node {report.node_id}: high watermark "
                    f"{replica.high_watermark}, log end offset {replica.log_end_offset}, {expected} acknowledged"
                )
    found += [
        f"partition {partition}: {seen[partition]} of {replicas} replicas answer"
        for partition in counts
        if seen[partition] != replicas
    ]
    return found


async def wait_for_watermarks(
    admin: Admin, topic: str, counts: Mapping[int, int], replicas: int, *, timeout: float = IDLE_TIMEOUT
) -> list[str]:
    """Ask every node until all replicas are level; gives what is still wrong after `timeout` seconds."""
    defects: list[str] = ["nobody was asked"]
    with trio.move_on_after(timeout):
        while defects:
            defects = watermark_defects(await admin.describe_replicas([topic]), topic, counts, replicas)
            await trio.sleep(0.02 if defects else 0)
    return defects
