"""Files of ours under Kafka's dump tool, whose words are searched: its exit status says nothing."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from insync.storage import Chunk, DiskLog, LogSettings
from insync.storage._transactions import read_index
from insync.storage.batch import build_batch, build_marker, records, scan

from . import samples
from .kafka import Java

pytestmark = pytest.mark.interop

FAULT = re.compile(
    r"mismatch|non-consecutive|out of order|isvalid: false|valid: false|corrupt|exception|not a |could not"
    r"|error|fail|indexed offset|following",
    re.IGNORECASE,
)
SETTINGS = LogSettings(segment_bytes=30_000, index_interval_bytes=1000)


def fill(folder: Path) -> DiskLog:
    """Several segments of batches in every codec, by two leaders and an idempotent producer."""
    folder.mkdir()
    log = DiskLog(folder, "t", 0, settings=SETTINGS)
    noise = random.Random(3)
    for at in range(150):
        log.assign_epoch(1 + at // 100, log.log_end_offset)
        data = build_batch(
            [b"key", None],
            [noise.randbytes(800), None],
            timestamps_ms=[samples.START + at * 10, samples.START + at * 10 - 5],
            headers=[[("h", None)], []],
            producer_id=5,
            producer_epoch=0,
            base_sequence=2 * at,
            compression=samples.CODECS[at % 5],
        )
        log.append([Chunk(data, scan(data), log.log_end_offset, 1 + at // 100)])
    return log


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


def test_it_finds_no_fault_in_a_log_that_was_stopped(java: Java, tmp_path: Path) -> None:
    log = fill(tmp_path / "t-0")
    log.close()
    logs, indexes = files(log.folder, ".log"), files(log.folder, ".index")
    assert len(logs) > 3
    assert any(path.stat().st_size for path in indexes)
    told = java.dump(*logs)
    assert not FAULT.search(told), FAULT.search(told)
    assert len(re.findall(r"\| offset: \d+", told)) == 300
    assert told.count("isvalid: true") == 150
    assert [int(each) for each in re.findall(r"\| offset: (\d+)", told)] == list(range(300))
    times = files(log.folder, ".timeindex")
    assert any(path.stat().st_size for path in times)
    rest = [*indexes, *times, *files(log.folder, ".snapshot")]
    told = java.dump(*rest)
    assert not FAULT.search(told), FAULT.search(told)
    assert told.count("Dumping ") == len(rest)
    assert re.search(r"producerId: 5 producerEpoch: 0 .*lastSequence: 299", told)
    told = java.dump(*indexes, *times, deep=False)
    assert told.count("passed sanity check") == len(indexes) + len(times)


def test_it_finds_the_fault_that_is_there(java: Java, tmp_path: Path) -> None:
    log = fill(tmp_path / "t-0")
    log.close()
    damaged = files(log.folder, ".log")[1]
    data = bytearray(damaged.read_bytes())
    second = scan(data)[1]
    data[second.position + 70] ^= 1
    damaged.write_bytes(data)
    assert FAULT.search(java.dump(damaged))
    index = next(path for path in files(log.folder, ".index") if path.stat().st_size)
    entries = bytearray(index.read_bytes())
    entries[7] ^= 1
    index.write_bytes(entries)
    assert FAULT.search(java.dump(index))


def test_it_finds_no_fault_after_a_crash_and_recovery(java: Java, tmp_path: Path) -> None:
    log = fill(tmp_path / "t-0")
    log.close(clean=False)
    last = files(log.folder, ".log")[-1]
    last.write_bytes(last.read_bytes()[:-10])
    log = DiskLog(log.folder, "t", 0, settings=SETTINGS)
    assert log.recovery.bytes_cut > 0
    log.truncate(100)
    log.close()
    logs = files(log.folder, ".log")
    rest = [path for suffix in (".index", ".timeindex", ".snapshot") for path in files(log.folder, suffix)]
    told = java.dump(*logs, *rest)
    assert not FAULT.search(told), FAULT.search(told)
    assert told.count("isvalid: true") == 50
    assert [each.offset for path in logs for each in records(path.read_bytes())] == list(range(100))


def test_it_reads_markers_and_the_indexes_of_aborted_transactions(java: Java, tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    log = DiskLog(folder, "t", 0, settings=LogSettings(segment_bytes=1024))

    def append(data: bytes) -> None:
        log.append([Chunk(data, scan(data), log.log_end_offset, 1)])

    for at in range(12):
        producer, epoch = 5 + at % 2, at // 2
        append(
            build_batch(
                [b"key"],
                [bytes(200)],
                timestamps_ms=samples.START + at,
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=True,
            )
        )
        if at % 2:
            # The other producer's transaction goes on until the next round.
            append(
                build_marker(
                    producer,
                    epoch,
                    committed=at % 4 == 1,
                    coordinator_epoch=7,
                    timestamp_ms=samples.START + at,
                )
            )
            if at > 1:
                append(
                    build_marker(
                        5,
                        epoch + 1,
                        committed=at % 4 == 3,
                        coordinator_epoch=7,
                        timestamp_ms=samples.START + at,
                    )
                )
    log.close()
    logs, aborted = files(folder, ".log"), files(folder, ".txnindex")
    snapshots = files(folder, ".snapshot")
    assert len(logs) > 3 and len(aborted) > 1
    told = java.dump(*logs)
    assert not FAULT.search(told), FAULT.search(told)
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", told)
    assert markers.count(("COMMIT", "7")) == 6 and markers.count(("ABORT", "7")) == 5, markers
    assert told.count("isTransactional: true isControl: true") == 11
    told = java.dump(*aborted)
    assert not FAULT.search(told), FAULT.search(told)
    found = re.findall(
        r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", told
    )
    assert [tuple(map(int, each)) for each in found] == [
        (*each,) for path in aborted for each in read_index(path)
    ]
    assert found
    told = java.dump(*snapshots)
    assert not FAULT.search(told), FAULT.search(told)
    assert re.search(
        r"producerId: 5 producerEpoch: 6 .*coordinatorEpoch: 7 currentTxnFirstOffset: OptionalLong.empty",
        told,
    )
    assert re.search(
        r"producerId: 5 .*coordinatorEpoch: -?\d+ currentTxnFirstOffset: OptionalLong\[0\]", told
    )
