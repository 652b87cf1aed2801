"""Records of `__consumer_offsets` beside Kafka's: its serializers, and its dump tool over a log of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Node, Producer
from insync.replication.core.groups import records as r
from insync.replication.core.groups.record_codec import encode_key, encode_value
from insync.storage import Chunk, DiskLog
from insync.storage.batch import build_batch, scan

from ..replication.core.groups.golden import FILE, FIRST, GOLDEN, lines
from ..replication.core.groups.test_embedded import GOLDEN as EMBEDDED
from ..replication.node.test_cluster import settings
from .kafka import DUMP_TOOL, HERE, Java

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    ("program", "file"), [("GroupRecords.java", FILE), ("EmbeddedProtocol.java", EMBEDDED)]
)
def test_the_golden_bytes_are_what_kafkas_serializers_write(java: Java, program: str, file: Path) -> None:
    golden = [line for line in file.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert java.run(str(HERE / program)).splitlines() == golden


def test_kafkas_dump_tool_reads_a_log_of_ours(java: Java, tmp_path: Path) -> None:
    """Every type as it is written, one with a tag that the tool of this release does not know, and tombstones."""
    log = DiskLog(tmp_path, "__consumer_offsets", 0)
    given = [
        GOLDEN[name] for name in dict.fromkeys(name for name, *_ in lines()) if name != "offset_expiring"
    ]
    owned = {r.TopicPartition(FIRST, 4): 300}
    given.append((r.CurrentKey("modern", "n"), r.CurrentValue(epoch=300, assigned=r.owned_topics(owned))))
    pairs = [(encode_key(key), encode_value(key, value)) for key, value in given]
    tombstones = [(encode_key(key), None) for key, _ in given]
    for chosen in (pairs, tombstones):
        keys, values = zip(*chosen, strict=True)
        data = build_batch(list(keys), list(values), timestamps_ms=[1_700_000_000_000] * len(keys))
        log.append([Chunk(data, scan(data), log.log_end_offset, 0)])
    log.close()
    [file] = tmp_path.glob("*.log")
    said = java.run(DUMP_TOOL, "--offsets-decoder", "--files", str(file)).splitlines()
    records = [line for line in said if "payload: " in line]
    assert len(records) == 2 * len(given)
    assert not [line for line in records if "Unknown" in line or "Could not" in line], said
    for line in records[: len(given)]:
        assert '"type":"' in line and '"version":"' in line and "payload: <DELETE>" not in line
    assert sum("payload: <DELETE>" in line for line in records) == len(given)
    [current] = [line for line in records if '"memberId":"n"' in line and "assignedPartitions" in line]
    assert '"partitions":[4]' in current


async def _groups_of_both_protocols(folder: Path) -> None:
    """What a node writes: members that join, commit and leave."""
    async with Node(settings(folder, 1, offsets_topic_num_partitions=1)) as node:
        async with Admin(node.endpoints) as admin, Producer(node.endpoints) as producer:
            await admin.create_topic("t", partitions=2, replication_factor=1)
            for number in range(6):
                await (await producer.send("t", b"r", partition=number % 2)).wait()
        for protocol in ("consumer", "classic"):
            options = {"group_protocol": protocol, "auto_offset_reset": "earliest"}
            async with Consumer(node.endpoints, group_id=protocol, **options) as consumer:
                consumer.subscribe(["t"])
                got = 0
                with trio.fail_after(60):
                    while got < 6:
                        got += len(await consumer.poll(200))
                await consumer.commit()


def test_kafkas_dump_tool_reads_what_a_node_has_written(java: Java, tmp_path: Path) -> None:
    trio.run(_groups_of_both_protocols, tmp_path)
    [file] = tmp_path.glob("**/__consumer_offsets-0/*.log")
    said = java.run(DUMP_TOOL, "--offsets-decoder", "--files", str(file)).splitlines()
    records = [line for line in said if "payload: " in line]
    assert not [line for line in records if "Unknown" in line or "Could not" in line], said
    for group in ("consumer", "classic"):
        committed = [line for line in records if f'"group":"{group}"' in line and '"offset":3' in line]
        assert {part for part in (0, 1) for line in committed if f'"partition":{part}' in line} == {0, 1}, (
            said
        )
    assert any('"protocolType":"consumer"' in line and '"generation":1' in line for line in records), said
    assert any('"assignedPartitions"' in line and '"partitions":[0,1]' in line for line in records), said
