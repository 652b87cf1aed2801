"""isolation_level=read_committed: what a log from Kafka may hold of transactions, as readers see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication import Node, NodeSettings
from insync.replication.client import Admin, Consumer, InvalidSettingError, Producer
from insync.replication.client.consumer._isolation import Chunk, committed
from insync.replication.client.producer import _batch
from insync.replication.client.transaction_errors import InvalidTxnStateError
from insync.replication.core.messages import AbortedProducer
from insync.storage import DiskLog
from insync.storage.batch import build_batch, records, scan
from tests.processes import NodeProcess, cluster
from tests.storage.building import append, marker, stamped

from ..fake_cluster import FakeCluster, fake_cluster, transactions_of


def batch(value: bytes, *, by: int | None = None) -> bytes:
    options = {} if by is None else {"producer_id": by, "producer_epoch": 0, "transactional": True}
    return build_batch([None], [value], timestamps_ms=1, **options)  # type: ignore[arg-type]


def put(cluster: FakeCluster, *data: bytes) -> None:
    log = cluster.topics["t"][0]
    for each in data:
        log.batches.append(stamped(each, log.end, 0))
        log.bases.append(log.end)
        log.end += scan(each)[0].last_offset_delta + 1
    cluster.appended()


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with trio.fail_after(5):
        while len(found) < count:
            found += [each.value for each in await consumer.poll(500)]
    return found


async def test_what_is_open_waits_and_what_was_aborted_is_never_seen(autojump_clock):
    async with (
        fake_cluster(t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset="earliest", isolation_level="read_committed") as committed,
        Consumer(cluster.urls, auto_offset_reset="earliest") as uncommitted,
    ):
        put(cluster, batch(b"a"), batch(b"x", by=5), batch(b"b"), batch(b"y", by=6))
        for consumer in (committed, uncommitted):
            consumer.assign([("t", 0)])
        assert await values(uncommitted, 4) == [b"a", b"x", b"b", b"y"]
        assert await values(committed, 1) == [b"a"]
        assert await committed.poll(50) == []
        assert committed.position(("t", 0)) == 1
        put(cluster, marker(commit=False, producer_id=5))
        assert await values(committed, 1) == [b"b"]
        put(cluster, batch(b"c"), marker(commit=True, producer_id=6), batch(b"z", by=5))
        assert await values(committed, 2) == [b"y", b"c"]
        assert await committed.poll(50) == []
        assert committed.position(("t", 0)) == 7
        assert await values(uncommitted, 2) == [b"c", b"z"]


async def test_raw_batches_leave_out_the_aborted_ones_and_say_how_far_they_go(autojump_clock):
    async with (
        fake_cluster(t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset="earliest", isolation_level="read_committed") as consumer,
    ):
        put(cluster, batch(b"x", by=5), batch(b"a"), marker(commit=False, producer_id=5))
        consumer.assign([("t", 0)])
        with trio.fail_after(5):
            (fetched,) = await consumer.poll_batches(1000)
        assert [each.value for each in records(fetched.data)] == [b"a"]
        assert [info.base_offset for info in fetched.batches] == [1, 2]
        assert scan(fetched.data) == list(fetched.batches)
        assert (fetched.start_offset, fetched.next_offset) == (0, 3)


steps = st.lists(
    st.tuples(st.sampled_from(["plain", "data", "commit", "abort"]), st.integers(1, 3)), max_size=40
)


def model(done: list[tuple[str, int]], start: int) -> list[int]:
    """Offsets that are to be seen: in order, up to the first of which nobody knows."""
    seen = []
    for offset, (kind, producer) in enumerate(done):
        if offset < start or kind in ("commit", "abort"):
            continue
        ends = [k for k, p in done[offset + 1 :] if p == producer and k in ("commit", "abort")]
        if kind == "data" and not ends:
            break
        if kind == "plain" or ends[0] == "commit":
            seen.append(offset)
    return seen


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(0, 40), st.lists(st.integers(1, 6), min_size=1))
def test_it_agrees_with_the_whole_log_wherever_one_begins(done, start, sizes):
    parts = []
    for offset, (kind, producer) in enumerate(done):
        data = {
            "plain": lambda: batch(b"p"),
            "data": lambda producer=producer: batch(b"d", by=producer),
            "commit": lambda producer=producer: marker(commit=True, producer_id=producer),
            "abort": lambda producer=producer: marker(commit=False, producer_id=producer),
        }[kind]()
        parts.append(stamped(data, offset, 0))
    stable, aborted = transactions_of(b"".join(parts), len(parts))
    found, at, turn = [], min(start, len(done)), 0
    while at < stable:
        end = min(at + sizes[turn % len(sizes)], stable)
        turn += 1
        told = [
            AbortedProducer(producer_id=producer_id, first_offset=first)
            for producer_id, first, last in sorted(aborted, key=lambda each: each[1])
            if last >= at and first < end
        ]
        data = b"".join(parts[at:end])
        chunk = committed(Chunk(data, scan(data), at, end), told)
        assert (chunk.start_offset, chunk.next_offset) == (at, end)
        found += [each.offset for each in records(chunk.data)] if chunk.batches else []
        at = end
    assert found == [each for each in model(done, start) if each < stable]


async def test_a_transaction_without_a_transactional_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody would ever end would hold up all readers of committed records."""
    seal = _batch.Batch.seal

    def transactional(self: _batch.Batch, *given: Any) -> None:
        seal(self, *given[:3], True)

    monkeypatch.setattr(_batch.Batch, "seal", transactional)
    store = f"memory://{tmp_path.name}"
    settings = NodeSettings(
        node_id=1, data_dir=tmp_path, store=store, listeners=(f"mem://{tmp_path.name}/1",)
    )
    async with Node(settings) as node, Admin(node.endpoints) as admin, Producer(node.endpoints) as producer:
        await admin.create_topic("t", 1, 1, {"min_insync_replicas": 1})
        with trio.fail_after(10), pytest.raises(InvalidTxnStateError):
            await (await producer.send("t", b"x")).wait()


@pytest.mark.slow
async def test_a_real_node_serves_a_log_from_elsewhere(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as nodes:
        async with Admin([nodes[0].endpoint]) as admin:
            await admin.create_topic("t", 1, 1, {"min_insync_replicas": 1})
        assert nodes[0].stop() == 0
        log = DiskLog(tmp_path / "node-1" / "t-0", "t", 0)
        append(log, batch(b"a"), batch(b"x", by=5), batch(b"y", by=6))
        append(log, marker(commit=False, producer_id=5), marker(commit=True, producer_id=6), batch(b"b"))
        log.close()
        nodes[0] = NodeProcess.start(1, tmp_path)
        for level, expected in (
            ("read_committed", [b"a", b"y", b"b"]),
            ("read_uncommitted", [b"a", b"x", b"y", b"b"]),
        ):
            async with Consumer(
                [nodes[0].endpoint], auto_offset_reset="earliest", isolation_level=level
            ) as consumer:
                consumer.assign([("t", 0)])
                assert await values(consumer, len(expected)) == expected


def test_an_unknown_level_is_refused():
    with pytest.raises(InvalidSettingError, match=r"'serializable'.*read_uncommitted or read_committed"):
        Consumer("mem://x/y", isolation_level="serializable")
