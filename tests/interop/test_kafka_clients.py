"""Batches of ours in kafka-clients, Kafka's own code, and its batches here."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.storage.batch import Record, records, scan

from . import samples
from .kafka import HERE, Java

pytestmark = pytest.mark.interop
PROGRAM = str(HERE / "Batches.java")


def _hex(value: bytes | None) -> str:
    return "null" if value is None else value.hex()


def _line(codec: str, sequence: int, record: Record) -> str:
    fields = [codec, "4", "7", "true", str(sequence), str(record.offset), str(record.timestamp_ms)]
    fields += [_hex(record.key), _hex(record.value)]
    return "\t".join(fields + [f"{key}={_hex(value)}" for key, value in record.headers])


def test_ours_parse_there(java: Java, tmp_path: Path) -> None:
    file = tmp_path / "batches"
    file.write_bytes(
        b"".join(samples.ours(producer_id=7, producer_epoch=2, base_sequence=9, transactional=True))
    )
    lines = java.run(PROGRAM, "decode", str(file)).splitlines()
    assert lines == [
        _line(samples.CODECS[at // samples.COUNT], 9 + at % samples.COUNT, record)
        for at, record in enumerate(samples.expected())
    ]


def test_theirs_parse_here(java: Java, tmp_path: Path) -> None:
    file = tmp_path / "batches"
    java.run(PROGRAM, "encode", str(file))
    data = file.read_bytes()
    infos = scan(data)
    assert [info.compression for info in infos if not info.is_control] == samples.CODECS
    assert [info.is_control for info in infos] == [False, True] * 5
    assert all(info.is_transactional and info.producer_id == 77 for info in infos)
    found = list(records(data))
    assert found == [
        Record(
            (samples.COUNT + 1) * round_ + at,
            samples.START + at,
            None if at % 3 == 0 else b"key-%d" % at,
            None if at % 5 == 0 else b"value " * (at % 40) + b"%d" % at,
            (("größe", b"\x01\x02"), ("nil", None)) if at % 7 == 0 else (),
        )
        for round_ in range(5)
        for at in range(samples.COUNT)
    ]
