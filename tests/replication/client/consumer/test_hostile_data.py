"""Batches that cannot be read, or grow without bound: refused by name, and skipped by who asks for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import trio
from msgspec import structs

from insync.replication import wire
from insync.replication.client import (
    Admin,
    Consumer,
    CorruptMessageError,
    DecompressionBombError,
    InvalidSettingError,
    Producer,
    UndecodableError,
    UnknownServerError,
)
from insync.replication.client.consumer import _fetcher
from insync.replication.core import messages as m
from insync.storage.batch import build_batch, crc32c

from ..fake_cluster import FakeNode, Partition, fake_cluster
from .test_consumer import fill, read

MIB = 1 << 20


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader gets no time to find damage in its log."""
    monkeypatch.setattr(_fetcher, "_CORRUPT_PATIENCE", 0.0)


async def test_a_leader_has_its_time_once(monkeypatch: pytest.MonkeyPatch, autojump_clock: object) -> None:
    """However many batches are damaged, and whatever is read of the partition meanwhile."""
    monkeypatch.setattr(_fetcher, "_CORRUPT_PATIENCE", 3.0)
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 40)
        for index in range(4):
            spoil(log, index, rotten)
        began = trio.current_time()
        async with Consumer(cluster.urls, auto_offset_reset="earliest", on_corrupt="skip") as consumer:
            consumer.assign([("t", 0)])
            while not consumer.skipped():
                await consumer.poll(timeout_ms=100)
            assert trio.current_time() - began > 3
            while consumer.position(("t", 0)) < log.end:
                await consumer.poll(timeout_ms=100)
            assert trio.current_time() - began < 6


def with_crc(batch: bytearray) -> bytes:
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4)
    return bytes(batch)


def rotten(batch: bytes) -> bytes:
    """A record's byte has changed."""
    return batch[:-3] + bytes([batch[-3] ^ 1]) + batch[-2:]


def rotten_length(batch: bytes) -> bytes:
    """Its length says that the next batch is a part of it."""
    return batch[:8] + (int.from_bytes(batch[8:12]) + 20).to_bytes(4) + batch[12:]


def rotten_header(batch: bytes) -> bytes:
    """Neither its checksum nor its place make sense."""
    return batch[:23] + b"\x7f\xff\xff\xf0" + batch[27:]


def unknown_codec(batch: bytes) -> bytes:
    strange = bytearray(batch)
    strange[22] |= 6
    return with_crc(strange)


def lying_length(batch: bytes) -> bytes:
    """Its first record says that it is longer than the batch."""
    strange = bytearray(batch)
    strange[61:63] = b"\xfe\x7f"
    return with_crc(strange)


def spoil(log: Partition, index: int, how: Callable[[bytes], bytes]) -> None:
    log.batches[index] = how(log.batches[index])


CORRUPT = [rotten, rotten_length, rotten_header]
UNDECODABLE = [unknown_codec, lying_length]


@pytest.mark.parametrize("how", CORRUPT + UNDECODABLE)
@pytest.mark.parametrize("spoiled", [[0], [1], [4], [1, 2], [0, 2, 4], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("fetched", [1, MIB])
async def test_a_consumer_steps_over_what_cannot_be_read_and_tells_it(how, spoiled, fetched, caplog):
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 50)
        for index in spoiled:
            spoil(log, index, how)
        async with Consumer(
            cluster.urls, auto_offset_reset="earliest", on_corrupt="skip", max_partition_fetch_bytes=fetched
        ) as consumer:
            consumer.assign([("t", 0)])
            found, skipped = [], []
            with trio.fail_after(10):
                while consumer.position(("t", 0)) != 50:
                    found += await consumer.poll(50)
            skipped = consumer.skipped()
            assert consumer.skipped() == []
    assert all(each.value == b"%d" % each.offset for each in found)
    # Neighbours are stepped over together where one answer shows both.
    if how is not rotten_header and (fetched == 1 or spoiled != [1, 2]):
        assert len(skipped) == len(spoiled)
    missing = {n for index in spoiled for n in range(10 * index, 10 * index + 10)}
    told = [n for each in skipped for n in range(each.offset, each.next_offset)]
    assert len(told) == len(set(told))
    assert {each.offset for each in found} | set(told) == set(range(50))
    assert set(told) <= missing
    assert {(each.topic, each.partition) for each in skipped} == {("t", 0)}
    assert [line for line in caplog.messages if "skipped offsets" in line]


async def test_no_position_passes_records_that_nobody_has_read():
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 30)
        spoil(log, 1, rotten)
        async with Consumer(
            cluster.urls, auto_offset_reset="earliest", on_corrupt="skip", max_poll_records=3
        ) as consumer:
            consumer.assign([("t", 0)])
            assert len(await consumer.poll(1000)) == 3
            with trio.fail_after(5):
                while not (skipped := consumer.skipped()):
                    await trio.lowlevel.checkpoint()
            assert [(each.offset, each.next_offset) for each in skipped] == [(10, 20)]
            assert consumer.position(("t", 0)) == 3
            assert [each.offset for each in await read(consumer, 17)] == [*range(3, 10), *range(20, 30)]


@pytest.mark.parametrize("how", CORRUPT)
async def test_by_default_it_stops_there_with_the_place_and_the_remedy(how):
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 30)
        spoil(log, 1, how)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert [each.offset for each in await read(consumer, 10)] == list(range(10))
            with (
                trio.fail_after(5),
                pytest.raises(CorruptMessageError, match="t-0 at offset 10: node 0") as got,
            ):
                await consumer.poll(10_000)
            assert (got.value.topic, got.value.partition, got.value.offset) == ("t", 0, 10)
            assert "seek to 20 to step over it" in str(got.value) and "on_corrupt=skip" in str(got.value)
            assert consumer.skipped() == []
            consumer.seek(("t", 0), 20)
            assert [each.offset for each in await read(consumer, 10)] == list(range(20, 30))


@pytest.mark.parametrize("how", UNDECODABLE)
async def test_what_cannot_be_decoded_is_named_by_its_batch(how):
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 40)
        spoil(log, 2, how)
        async with Consumer(cluster.urls, auto_offset_reset="earliest", max_poll_records=7) as consumer:
            consumer.assign([("t", 0)])
            assert [each.offset for each in (await read(consumer, 20))[:20]] == list(range(20))
            with trio.fail_after(5), pytest.raises(UndecodableError, match="seek to 30") as got:
                while True:
                    await consumer.poll(1000)
            assert (got.value.partition, got.value.next_offset) == (0, 30)
            assert got.value.offset == consumer.position(("t", 0))
            assert 20 <= got.value.offset <= 30


async def test_base_offsets_that_rot_are_stepped_over_without_a_record_at_a_wrong_place():
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 50)
        for index, bit in ((1, 1), (2, 62), (3, 2)):
            wrong = int.from_bytes(log.batches[index][:8], "big") ^ 1 << bit
            log.batches[index] = wrong.to_bytes(8, "big") + log.batches[index][8:]
        async with Consumer(cluster.urls, auto_offset_reset="earliest", on_corrupt="skip") as consumer:
            consumer.assign([("t", 0)])
            found = await read(consumer, 20)
            assert [each.offset for each in found] == [*range(10), *range(40, 50)]
            assert all(each.value == b"%d" % each.offset for each in found)


def bomb(size: int, records: int = 1) -> bytes:
    return build_batch([None] * records, [bytes(size)] * records, timestamps_ms=1, compression="zstd")


def put(log: Partition, *batches: bytes) -> None:
    for each in batches:
        log.append(each)


async def test_a_decompression_bomb_is_refused_by_name():
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 10)
        put(log, bomb(120 * MIB))
        fill(log, 10)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert [each.offset for each in await read(consumer, 10)] == list(range(10))
            with (
                trio.fail_after(20),
                pytest.raises(DecompressionBombError, match="raise fetch_max_bytes") as got,
            ):
                await consumer.poll(10_000)
            assert (got.value.offset, got.value.next_offset) == (10, 11)
        async with Consumer(
            cluster.urls, auto_offset_reset="earliest", fetch_max_bytes=130 * MIB
        ) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 10)
            with trio.fail_after(20):
                assert len((await consumer.poll(10_000))[0].value) == 120 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(("each", "records", "skip"), [(120 * MIB, 1, True), (MIB, 15, False)])
async def test_many_batches_that_grow_cost_the_memory_of_a_few(each, records, skip):
    """40 batches, of 120 MiB each or of 15 MiB: a poll takes no more than `fetch_max_bytes` of them."""
    options: dict[str, Any] = {"on_corrupt": "skip"} if skip else {}
    grown = bomb(each, records)
    async with fake_cluster(nodes=1, t=1) as cluster:
        put(cluster.topics["t"][0], *[grown] * 40)
        fill(cluster.topics["t"][0], 10)
        async with Consumer(
            cluster.urls, auto_offset_reset="earliest", fetch_max_bytes=20 * MIB, **options
        ) as consumer:
            consumer.assign([("t", 0)])
            tracemalloc.start()
            try:
                count = 0
                with trio.fail_after(60):
                    while consumer.position(("t", 0)) != 40 * records + 10:
                        found = await consumer.poll(1000)
                        count += len(found)
                        assert sum(len(record.value) for record in found) <= 20 * MIB + each
                        del found
                assert tracemalloc.get_traced_memory()[1] < 6 * 20 * MIB
            finally:
                tracemalloc.stop()
            assert count == (10 if skip else 40 * records + 10)
            assert len(consumer.skipped()) == (40 if skip else 0)


async def test_small_fetches_still_take_compressed_batches():
    async with fake_cluster(nodes=1, t=1) as cluster:
        put(cluster.topics["t"][0], *[bomb(100_000, 3)] * 3)
        async with Consumer(
            cluster.urls, auto_offset_reset="earliest", fetch_max_bytes=1, max_partition_fetch_bytes=1
        ) as consumer:
            consumer.assign([("t", 0)])
            assert [each.offset for each in await read(consumer, 9)] == list(range(9))


def test_what_is_neither_is_refused():
    with pytest.raises(InvalidSettingError, match="on_corrupt is 'ignore'; it must be raise or skip"):
        Consumer("mem://x/y", on_corrupt="ignore")


@pytest.mark.parametrize("numbers", [[], [-1], [0, -(1 << 31)], [0, 1 << 31], [(1 << 63) - 1]], ids=repr)
async def test_metadata_of_topics_that_cannot_be_are_not_used(
    numbers: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A place for each partition up to the greatest number would be all memory there is."""
    right, told = FakeNode._topic, []

    def topic(self: FakeNode, name: str) -> m.TopicInfo:
        info = right(self, name)
        if len(told) >= 3:
            return info
        told.append(name)
        return structs.replace(
            info, partitions=[structs.replace(info.partitions[0], partition=n) for n in numbers]
        )

    async with fake_cluster(nodes=1, t=1) as cluster:
        monkeypatch.setattr(FakeNode, "_topic", topic)
        async with Producer(cluster.urls) as producer:
            delivery = await producer.send("t", b"v")
            assert (await delivery.wait()).offset == 0
    assert len(told) == 3 and "no topic is like that" in caplog.text


async def test_an_answer_without_what_was_asked_for_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def metadata(self: FakeNode, request: Any, message: m.MetadataRequest) -> None:
        told = m.MetadataResponse(cluster_id="c", revision=1, controller_id=0, nodes=[], topics=[])
        request.reply(wire.encode(told))

    async with fake_cluster(nodes=1, t=1) as cluster, Admin(cluster.urls) as admin:
        monkeypatch.setattr(FakeNode, "_metadata", metadata)
        for ask in (admin.describe_topics, lambda names: admin.describe_config(*names)):
            with pytest.raises(UnknownServerError, match=r"topic 't': .* leaves it out"):
                await ask(["t"])
