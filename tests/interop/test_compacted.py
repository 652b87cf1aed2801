"""Compacted logs of ours under Kafka's dump tool and in kafka-clients."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from insync.storage import Chunk, DiskLog, LogSettings
from insync.storage.batch import build_batch, records, scan
from tests.storage.building import marker

from . import samples
from .kafka import HERE, Java

pytestmark = pytest.mark.interop

FAULT = re.compile(
    r"mismatch|out of order|isvalid: false|valid: false|corrupt|exception|not a |could not|error|fail"
    r"|indexed offset",
    re.IGNORECASE,
)
SETTINGS = LogSettings(
    segment_bytes=30_000,
    index_interval_bytes=500,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0,
    delete_retention_ms=5000,
)
PROGRAM = str(HERE / "Batches.java")


def fill(folder: Path) -> tuple[DiskLog, dict[bytes, bytes | None]]:
    """Keys written again and again in every codec, tombstones, and a producer whose records were all replaced."""
    folder.mkdir()
    log = DiskLog(folder, "t", 0, settings=SETTINGS)
    noise = random.Random(3)
    latest: dict[bytes, bytes | None] = {}
    for at in range(300):
        keys = [b"key-%d" % noise.randrange(150) for _ in range(3)]
        values = [None if noise.random() < 0.1 else noise.randbytes(150) for _ in keys]
        if at == 7:
            keys, values = [b"once"], [b"first"]
        elif at == 8:
            keys, values = [b"once"], [b"second"]
        data = build_batch(
            keys,
            values,
            timestamps_ms=[samples.START + at * 10 + number for number in range(len(keys))],
            headers=[[("h", None)]] * len(keys),
            producer_id=6 if at == 7 else 5,
            producer_epoch=0,
            base_sequence=3 * at,
            compression=samples.CODECS[at % 5],
        )
        log.append([Chunk(data, scan(data), log.log_end_offset, 1 + at // 200)])
        latest.update(zip(keys, values, strict=True))
    return log, latest


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


def test_kafka_finds_no_fault_in_a_compacted_log(java: Java, tmp_path: Path) -> None:
    log, latest = fill(tmp_path / "t-0")
    before = log.size_bytes
    for wait in (0, 1000):
        done = log.maintain(samples.START + 3000 + wait, high_watermark=log.log_end_offset).compaction
        assert done is not None or wait
    assert log.size_bytes < before / 2
    cleaned = log.cleaned_offset
    log.close()
    logs = files(log.folder, ".log")
    batches = [info for path in logs for info in scan(path.read_bytes())]
    held = [each for path in logs for each in records(path.read_bytes())]
    found = {each.key: each.value for each in held}
    assert found == latest
    assert len(held) < 1.5 * len(latest)
    assert any(info.attributes & 0x40 for info in batches), "delete horizons"
    assert any(info.record_count == 0 and info.producer_id == 6 for info in batches), (
        "a batch without records"
    )
    assert {info.compression for info in batches if info.next_offset <= (cleaned or 0)} == {*samples.CODECS}

    told = java.dump(*logs)
    assert not FAULT.search(told), FAULT.search(told)
    assert told.count("isvalid: true") == len(batches)
    assert [int(each) for each in re.findall(r"\| offset: (\d+)", told)] == [each.offset for each in held]
    assert re.search(r"deleteHorizonMs: OptionalLong\[\d+\]", told)
    rest = [path for suffix in (".index", ".timeindex", ".snapshot") for path in files(log.folder, suffix)]
    told = java.dump(*rest)
    assert not FAULT.search(told), FAULT.search(told)
    told = java.dump(*files(log.folder, ".index"), *files(log.folder, ".timeindex"), deep=False)
    assert told.count("passed sanity check") + told.count("is empty") == 2 * len(logs)
    assert told.count("is empty") < len(logs)


def test_kafka_clients_read_what_stayed(java: Java, tmp_path: Path) -> None:
    log, _ = fill(tmp_path / "t-0")
    log.maintain(samples.START + 3000, high_watermark=log.log_end_offset)
    log.close()
    whole = tmp_path / "batches"
    whole.write_bytes(b"".join(path.read_bytes() for path in files(log.folder, ".log")))
    lines = [line.split("\t") for line in java.run(PROGRAM, "decode", str(whole)).splitlines()]
    mine = [
        [str(each.offset), str(each.timestamp_ms), _hex(each.key), _hex(each.value), "h=null"]
        for each in records(whole.read_bytes())
    ]
    assert [line[5:] for line in lines] == mine


def _hex(value: bytes | None) -> str:
    return "null" if value is None else value.hex()


def test_kafka_reads_a_transaction_index_that_went_through_compaction(java: Java, tmp_path: Path) -> None:
    log, _ = fill(tmp_path / "t-0")
    first = log.log_end_offset
    aborted = build_batch(
        [b"key-1"], [b"aborted"], timestamps_ms=samples.START, producer_id=7, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    filler = build_batch([b"filler"], [bytes(700)], timestamps_ms=samples.START)
    for data in (aborted, marker(commit=False, producer_id=7, timestamp_ms=samples.START), *[filler] * 40):
        log.append([Chunk(data, scan(data), log.log_end_offset, 2)])
    log.maintain(samples.START + 3000, high_watermark=log.log_end_offset)
    log.close()
    told = "".join(java.dump(path) for path in files(log.folder, ".txnindex") if path.stat().st_size)
    assert not FAULT.search(told), FAULT.search(told)
    last = first + 1
    entry = rf"version: 0 producerId: 7 firstOffset: {first} lastOffset: {last} lastStableOffset: {last + 1}"
    assert re.search(entry, told), told
