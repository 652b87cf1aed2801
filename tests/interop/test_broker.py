"""A folder that a real Kafka wrote, opened here."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from insync.storage import DiskLog, LogDirectory, verify
from insync.storage.batch import Record, records, scan

from ..requires import missing
from . import samples
from .kafka import Broker, Java, broker

pytestmark = pytest.mark.interop

SEGMENT = 1 << 20
"""The least that Kafka allows."""
ROUNDS = 10
TOPIC = {"segment.bytes": str(SEGMENT), "index.interval.bytes": "1024", "retention.ms": "-1"}


async def write(address: str) -> list[Record]:
    """Some records in every codec, then a transaction that is kept and one that is not; what was written where."""
    from aiokafka import AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic("t", 1, 1, topic_configs=TOPIC)])
    await admin.close()
    written: list[Record] = []
    noise = random.Random(4)
    options: dict[str, Any] = {"bootstrap_servers": address, "max_batch_size": 1 << 16, "linger_ms": 2}
    for codec in samples.CODECS:
        kind = None if codec == "none" else codec
        async with AIOKafkaProducer(compression_type=kind, enable_idempotence=True, **options) as producer:
            for _ in range(ROUNDS):
                written += await _send(producer, noise)
    async with AIOKafkaProducer(transactional_id="tx", **options) as producer:
        async with producer.transaction():
            written += await _send(producer, noise)
        await producer.begin_transaction()
        written += await _send(producer, noise)
        await producer.abort_transaction()
    return written


async def _send(producer: Any, noise: random.Random) -> list[Record]:
    waiting, rows = [], []
    for number in range(60):
        row = (
            samples.START + number,
            None if number % 5 == 0 else b"key-%d" % number,
            None if number % 5 == 1 else noise.randbytes(1000),
            [("größe", b"\x01")] if number % 7 == 0 else [],
        )
        time, key, value, headers = row
        sending = producer.send("t", value, key, 0, timestamp_ms=time, headers=headers)
        waiting.append(await sending)
        rows.append(row)
    placed = [(await each).offset for each in waiting]
    return [
        Record(offset, time, key, value, tuple(headers))
        for offset, (time, key, value, headers) in zip(placed, rows, strict=True)
    ]


def read_all(log: DiskLog) -> list[Record]:
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=1 << 18)
        assert result.range is not None
        data = result.range.read_bytes()
        assert scan(data)[0].base_offset == result.first_base_offset
        found += records(data, start_offset=offset)
        offset = result.next_offset
    return found


def check(folder: Path, kafka: Broker, written: list[Record], *, clean: bool) -> None:
    directory = LogDirectory(folder, cluster_id=kafka.cluster_id, node_id=1)
    try:
        assert directory.was_clean is clean
        log = directory.open_log("t", 0, create=False)
        assert log.recovery.clean is clean
        assert log.recovery.bytes_cut == 0
        assert read_all(log) == written
        # Both transactions end in a marker, each a batch of one record.
        assert log.log_end_offset == written[-1].offset + 2
        assert directory.high_watermarks()["t", 0] == log.log_end_offset
        assert len(log.segment_base_offsets) > 2
        assert [each.start_offset for each in log.epochs] == [0]
        for wanted in written[:: len(written) // 50]:
            part = log.read(wanted.offset, max_bytes=1).range
            assert part is not None
            assert next(records(part.read_bytes(), start_offset=wanted.offset)) == wanted
        assert len(log.producer_states()) == len(samples.CODECS) + 1
    finally:
        directory.close(clean=False)


def test_a_folder_that_kafka_wrote_opens_and_reads_back_equal(java: Java, tmp_path: Path) -> None:
    try:
        import aiokafka  # noqa: F401
    except ImportError:
        missing("aiokafka is not installed")
    with broker(java, tmp_path) as kafka:
        written = asyncio.run(asyncio.wait_for(write(kafka.address), 120))
        kafka.stop()
    copy = tmp_path / "copy"
    shutil.copytree(kafka.folder, copy)
    found = verify(kafka.folder)
    assert found.defects == []
    assert found.index_entries > 40
    check(kafka.folder, kafka, written, clean=True)
    (copy / ".kafka_cleanshutdown").unlink()
    check(copy, kafka, written, clean=False)
