"""Records of `__transaction_state` beside Kafka's: its serializers, and its dump tool over a log of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.replication.core.transactions.records import encode_transaction, encode_transaction_key
from insync.storage import Chunk, DiskLog
from insync.storage.batch import build_batch, scan

from ..replication.core.transactions.test_records import FILE, GOLDEN, KEY
from .kafka import DUMP_TOOL, HERE, Java

pytestmark = pytest.mark.interop


def test_the_golden_bytes_are_what_kafkas_serializers_write(java: Java) -> None:
    golden = [line for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert java.run(str(HERE / "TransactionRecords.java")).splitlines() == golden


def test_kafkas_dump_tool_reads_a_log_of_ours(java: Java, tmp_path: Path) -> None:
    """Every state as it is written, with the tag that the tool does not know, and a tombstone."""
    log = DiskLog(tmp_path, "__transaction_state", 0)
    values = [*map(encode_transaction, GOLDEN.values()), None]
    keys = [encode_transaction_key(KEY)] * len(values)
    data = build_batch(list(keys), values, timestamps_ms=1_700_000_000_000)
    log.append([Chunk(data, scan(data), 0, 0)])
    log.close()
    [file] = tmp_path.glob("*.log")
    said = java.run(DUMP_TOOL, "--transaction-log-decoder", "--files", str(file)).splitlines()
    records = [line for line in said if "payload: " in line]
    assert len(records) == len(values)
    assert not [line for line in records if "Unknown" in line or "Could not" in line], said
    assert sum('"transactionalId":"etl-épée"' in line for line in records) == len(values)
    assert '"nextProducerId":99' in "".join(records)
    assert "payload: <DELETE>" in records[-1]
