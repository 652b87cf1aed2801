"""Transactional segments, both ways: a real Kafka serves ours, and ours are read from Kafka's folder.

Readers of committed records of both see the same, by `.txnindex` and markers, whoever wrote them.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import Admin, Consumer, Node, NodeSettings, Producer
from insync.replication.client.consumer._isolation import Chunk, committed
from insync.replication.core.messages import AbortedProducer
from insync.storage import LogDirectory
from insync.storage.batch import records, scan

from ..requires import missing
from .kafka import Broker, Java, broker, wait_until_it_serves

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]

try:
    import aiokafka
except ImportError:
    missing("aiokafka is not installed")

SEGMENT = {"segment.bytes": str(1 << 20), "retention.ms": "-1"}
SCRIPT = "+a -b +c +b -a -c +b"
"""Commits and aborts of producers, whose transactions overlap: each writes before the end of the one before it."""


def steps() -> list[tuple[str, str, bool]]:
    """Producer, what it writes, and whether that is committed, in the order of the ends."""
    return [(step[1], f"{number}{step}", step[0] == "+") for number, step in enumerate(SCRIPT.split())]


VALUES = sorted(b"%s.%d" % (name.encode(), at) for _, name, commits in steps() if commits for at in range(3))


async def write_ours(servers: Sequence[str], topic: str) -> None:
    async with AsyncExitStack() as stack:
        producers = {
            name: await stack.enter_async_context(Producer(list(servers), transactional_id=name))
            for name in "abc"
        }
        ends: list[tuple[Producer, bool]] = []
        for who, name, commits in steps():
            producer = producers[who]
            if ends and ends[-1][0] is producer:
                await _end(*ends.pop())
            producer.begin()
            for at in range(3):
                await producer.send(topic, f"{name}.{at}".encode(), partition=0)
                await producer.flush()
            while ends:
                await _end(*ends.pop())
            ends.append((producer, commits))
        await _end(*ends.pop())


async def _end(producer: Producer, commits: bool) -> None:
    await (producer.commit() if commits else producer.abort())


async def ours(folder: Path) -> list[tuple[int, bytes]]:
    """What a node of ours has written, in its folder, and what its readers of committed records got."""
    settings = NodeSettings(
        node_id=1,
        data_dir=folder,
        store=f"sqlite://{folder}.db",
        transaction_state_log_num_partitions=1,
        controlled_shutdown_timeout_ms=0,
    )
    found: list[tuple[int, bytes]] = []
    async with Node(settings) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await write_ours(node.endpoints, "t")
        async with Consumer(
            node.endpoints, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([("t", 0)])
            with trio.fail_after(30):
                while len(found) < len(VALUES):
                    found += [(each.offset, each.value or b"") for each in await consumer.poll(200)]
    return found


async def read_from(address: str, count: int) -> list[tuple[int, bytes]]:
    """What aiokafka is given of what is committed."""
    found: list[tuple[int, bytes]] = []
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    consumer.assign([aiokafka.TopicPartition("t", 0)])
    try:
        while len(found) < count:
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                found += [(each.offset, each.value) for each in batch]
    finally:
        await consumer.stop()
    return found


def within(seconds: float, coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, seconds))


async def make_topic(address: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([NewTopic("t", 1, 1, topic_configs=SEGMENT)])
    await admin.close()


def test_a_real_kafka_serves_what_we_have_written(java: Java, tmp_path: Path) -> None:
    """By `.txnindex` and `.snapshot` as we wrote them."""
    written = trio.run(ours, tmp_path / "ours")
    assert sorted(value for _, value in written) == VALUES
    with broker(java, tmp_path) as kafka:
        within(60, make_topic(kafka.address))
        kafka.stop()
        theirs = kafka.folder / "t-0"
        for path in theirs.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        wanted = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
        for path in (tmp_path / "ours" / "t-0").iterdir():
            if path.suffix in wanted or path.name == "leader-epoch-checkpoint":
                shutil.copy(path, theirs)
        assert (theirs / f"{0:020}.txnindex").stat().st_size == 3 * 34
        with again(java, kafka, tmp_path):
            assert within(60, read_from(kafka.address, len(VALUES))) == written


class again:
    """The same Kafka, started again on its folder."""

    def __init__(self, java: Java, kafka: Broker, place: Path) -> None:
        self._place, self._port = place, int(kafka.address.rpartition(":")[2])
        with (place / "again.out").open("wb") as out:
            command = java.command("-Xmx384m", "kafka.Kafka", str(place / "server.properties"))
            self._process = subprocess.Popen(command, stdout=out, stderr=out)

    def __enter__(self) -> None:
        try:
            wait_until_it_serves(self._process, self._port, self._place / "again.out")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


async def write_theirs(address: str) -> list[tuple[int, bytes]]:
    """The same script by aiokafka at a real Kafka, and what its readers of committed records get."""
    await make_topic(address)
    options: dict[str, Any] = {"bootstrap_servers": address}
    producers = {name: aiokafka.AIOKafkaProducer(transactional_id=name, **options) for name in "abc"}
    for each in producers.values():
        await each.start()
    ends: list[tuple[Any, bool]] = []

    async def end() -> None:
        producer, commits = ends.pop()
        await (producer.commit_transaction() if commits else producer.abort_transaction())

    for who, name, commits in steps():
        if ends and ends[-1][0] is producers[who]:
            await end()
        await producers[who].begin_transaction()
        for at in range(3):
            await producers[who].send_and_wait("t", f"{name}.{at}".encode(), partition=0)
        while ends:
            await end()
        ends.append((producers[who], commits))
    await end()
    for each in producers.values():
        await each.stop()
    return await read_from(address, len(VALUES))


def test_what_a_real_kafka_has_written_reads_the_same_here(java: Java, tmp_path: Path) -> None:
    with broker(java, tmp_path) as kafka:
        read = within(120, write_theirs(kafka.address))
        kafka.stop()
        directory = LogDirectory(kafka.folder, cluster_id=kafka.cluster_id, node_id=1)
        try:
            log = directory.open_log("t", 0, create=False)
            aborted = log.aborted_transactions(0, log.log_end_offset)
            assert len(aborted) == SCRIPT.count("-")
            result = log.read(0, max_bytes=1 << 20)
            assert result.range is not None
            data = result.range.read_bytes()
        finally:
            directory.close(clean=False)
    told = [AbortedProducer(producer_id=each.producer_id, first_offset=each.first_offset) for each in aborted]
    told.sort(key=lambda each: each.first_offset)
    kept = committed(Chunk(data, scan(data), 0, result.next_offset), told)
    assert [(each.offset, each.value) for each in records(kept.data, start_offset=0)] == read
