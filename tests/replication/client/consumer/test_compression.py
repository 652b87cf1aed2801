"""Compressed batches end to end: a real node keeps what the producer packed, and the consumer unpacks it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from insync.replication.client import Admin, Consumer, InvalidSettingError, Producer
from insync.storage.batch import scan
from tests.processes import cluster

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VALUES = [b"line %d of text that is much like the others" % n for n in range(500)]


@pytest.mark.slow
async def test_every_codec_passes_through_a_node_as_it_is(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as nodes:
        servers = [nodes[0].endpoint]
        with trio.fail_after(30):
            async with Admin(servers) as admin:
                await admin.create_topic("t", 1, 1)
            for codec in CODECS:
                async with Producer(servers, compression_type=codec, batch_size=1 << 18) as producer:
                    await (await producer.send_many("t", VALUES, partition=0)).wait()
            found = []
            async with Consumer(servers, auto_offset_reset="earliest", max_poll_records=5000) as consumer:
                consumer.assign([("t", 0)])
                while len(found) < len(CODECS) * len(VALUES):
                    found += [record.value for record in await consumer.poll(500)]
        assert found == VALUES * len(CODECS)
        assert nodes[0].stop() == 0
    (log,) = (tmp_path / "node-1").glob("t-0/*.log")
    assert [info.compression for info in scan(log.read_bytes())] == list(CODECS)


def test_an_unknown_compression_type_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidSettingError, match=r"'brotli'.*gzip, snappy, lz4, zstd"):
        Producer(["tcp://127.0.0.1:1"], compression_type="brotli")
