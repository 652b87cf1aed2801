"""Batches of ours in the Python clients of Kafka, and theirs here."""

from __future__ import annotations

from typing import Any

import pytest

from insync.storage.batch import Record, records, scan

from ..requires import missing
from . import samples

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:importlib"),
]


class KafkaPython:
    """kafka-python's own reader and writer of batches."""

    def __init__(self) -> None:
        try:
            from kafka.record.default_records import DefaultRecordBatchBuilder
            from kafka.record.memory_records import MemoryRecords
        except ImportError:
            missing("kafka-python is not installed")
        self.reader, self.builder = MemoryRecords, DefaultRecordBatchBuilder
        self.producer: dict[str, Any] = {"is_transactional": True}


class AioKafka:
    """aiokafka's; the extension in C where it is there."""

    def __init__(self) -> None:
        try:
            from aiokafka.record.default_records import DefaultRecordBatchBuilder
            from aiokafka.record.memory_records import MemoryRecords
        except ImportError:
            missing("aiokafka is not installed")
        self.reader, self.builder = MemoryRecords, DefaultRecordBatchBuilder
        self.producer: dict[str, Any] = {"is_transactional": 1}


clients = pytest.mark.parametrize("client", [KafkaPython, AioKafka])
codecs = pytest.mark.parametrize("number", range(5), ids=samples.CODECS)


@clients
def test_ours_parse_there(client: type[KafkaPython] | type[AioKafka]) -> None:
    theirs = client()
    found, seen = theirs.reader(b"".join(samples.ours(producer_id=7, producer_epoch=2, base_sequence=9))), []
    while found.has_next():
        batch = found.next_batch()
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 9)
        seen += [
            Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in batch
        ]
    assert seen == samples.expected()


@clients
@codecs
def test_theirs_parse_here(client: type[KafkaPython] | type[AioKafka], number: int) -> None:
    theirs = client()
    builder = theirs.builder(
        magic=2,
        compression_type=number,
        producer_id=7,
        producer_epoch=2,
        base_sequence=9,
        batch_size=1 << 24,
        **theirs.producer,
    )
    rows = zip(samples.TIMES, samples.KEYS, samples.VALUES, samples.HEADERS, strict=True)
    for at, (time, key, value, headers) in enumerate(rows):
        assert builder.append(at, time, key, value, headers) is not None
    data = bytes(builder.build())
    (info,) = scan(data)
    assert info.compression == samples.CODECS[number]
    assert (info.producer_id, info.base_sequence, info.is_transactional) == (7, 9, True)
    assert list(records(data)) == samples.expected()[: samples.COUNT]
