"""Batches that no consumer could read: refused for their partition alone, before anything is acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from insync.replication import Admin, Node, wire
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.storage.batch import build_batch, crc32c
from insync.transport import Connection, Identity, Response, TransportError, connect

from ..test_cluster import consume, produce, settings, until

GOOD = build_batch([b"k"], [b"good"], timestamps_ms=1000)


def lie(data: bytes, **changes: object) -> bytes:
    """With other bytes at some places (`at_57=...`), and the right CRC."""
    out = bytearray(data)
    for place, value in changes.items():
        assert isinstance(value, bytes)
        at = int(place.removeprefix("at_"))
        out[at : at + len(value)] = value
    out[17:21] = crc32c(bytes(out[21:])).to_bytes(4)
    return bytes(out)


def compressed(size: int) -> bytes:
    return build_batch([b"k"], [bytes(size)], timestamps_ms=1000, compression="zstd")


NOT_ZSTD = lie(GOOD, at_22=b"\x04")
REFUSED = {
    "two records said, one there": lie(GOOD, at_23=(1).to_bytes(4), at_57=(2).to_bytes(4)),
    "garbage": lie(GOOD, at_61=b"\xff" * (len(GOOD) - 61)),
    "codec 7": lie(GOOD, at_22=b"\x07"),
    "a delete horizon": lie(GOOD, at_22=b"\x40"),
    "2^31 records in no bytes": lie(NOT_ZSTD, at_23=(2**31 - 2).to_bytes(4), at_57=(2**31 - 1).to_bytes(4)),
}


@attrs.define
class Client:
    connection: Connection
    answers: list[m.ProduceResult] = attrs.Factory(list)
    order: list[int] = attrs.Factory(list)
    """Of the requests, as they were answered."""
    sent: int = 0

    def send(self, *batches: tuple[str, int, bytes]) -> None:
        """One request; its answers are added when they come."""
        wanted = [
            m.ProducePartition(topic=topic, partition=partition, size=len(batch))
            for topic, partition, batch in batches
        ]
        body = wire.encode(m.ProduceRequest(acks=1, timeout_ms=30_000, partitions=wanted))
        payload = [batch for _, _, batch in batches]
        done = partial(self._done, self.sent)
        self.sent += 1
        self.connection.request_nowait(m.Kind.PRODUCE, body, payload, timeout=30, on_done=done)

    def _done(self, number: int, outcome: Response | TransportError) -> None:
        self.order.append(number)
        assert not isinstance(outcome, TransportError), outcome
        with outcome:
            told: m.ProduceResponse = wire.decode_response(m.Kind.PRODUCE, outcome.body)
        self.answers += told.partitions

    async def all(self, count: int) -> list[m.ProduceResult]:
        async def there() -> bool:
            return len(self.answers) == count

        await until(there)
        return self.answers


@asynccontextmanager
async def client(folder: Path, **config: object) -> AsyncIterator[tuple[Node, Client]]:
    async with trio.open_nursery() as nursery, Node(settings(folder, 1)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 2, 1, config=config)
        await produce(node.endpoints, "t", [b"first"])
        connection = await connect(
            node.endpoints[0], identity=Identity(), lane="data", nursery=nursery, timeout=5
        )
        yield node, Client(connection)
        connection.abort("the test is over")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", REFUSED)
async def test_such_a_batch_is_refused_for_its_partition_alone(tmp_path: Path, name: str) -> None:
    async with client(tmp_path) as (node, sender):
        sender.send(("t", 0, GOOD), ("t", 1, REFUSED[name]), ("t", 0, GOOD))
        answers = {result.partition: result for result in await sender.all(3)}
        assert [answers[partition].error for partition in (0, 1)] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_RECORD,
        ]
        values = await consume(node.endpoints, "t", 2, 3)
        assert sorted(values) == [b"first", b"good", b"good"]


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({}, True),
        ({"produce_batch_validation": "strict"}, False),
        ({"cleanup_policy": "compact"}, False),
        ({"cleanup_policy": "compact", "produce_batch_validation": "relaxed"}, True),
    ],
)
async def test_compressed_records_are_read_where_it_is_asked_for_or_the_topic_is_compacted(
    tmp_path: Path, config: dict[str, object], taken: bool
) -> None:
    async with client(tmp_path, **config) as (_, sender):
        sender.send(("t", 0, NOT_ZSTD))
        (result,) = await sender.all(1)
        assert result.error == (ErrorCode.NONE if taken else ErrorCode.INVALID_RECORD)
        if not taken:
            assert "no consumer could read it" in result.message


async def test_what_inflates_too_far_is_refused(tmp_path: Path) -> None:
    bomb = compressed(129 << 20)
    assert len(bomb) < 1 << 20
    async with client(tmp_path, cleanup_policy="compact") as (_, sender):
        sender.send(("t", 0, bomb))
        (result,) = await sender.all(1)
        assert result.error == ErrorCode.RECORD_TOO_LARGE and "134217728 bytes" in result.message


async def test_nothing_overtakes_what_is_being_decompressed(tmp_path: Path) -> None:
    async with client(tmp_path, produce_batch_validation="strict") as (_, sender):
        for number in range(6):
            plain = build_batch([b"k"], [b"%d" % number], timestamps_ms=0)
            sender.send(("t", 0, compressed(8 << 20) if number % 3 == 0 else plain))
        answers = await sender.all(6)
        assert [answer.error for answer in answers] == [0] * 6
        offsets = dict(zip(sender.order, (answer.base_offset for answer in answers), strict=True))
        assert sorted(offsets, key=lambda number: offsets[number]) == [*range(6)]


async def test_unreadable_batches_are_told_of_once_and_make_the_node_unready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {
        "cleanup_policy": "compact",
        "produce_batch_validation": "relaxed",
        "segment_bytes": 1024,
        "min_cleanable_dirty_ratio": 0.0,
    }
    async with trio.open_nursery() as nursery:
        node = Node(settings(tmp_path, 1, log_maintenance_interval_ms=20))
        async with node, Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1, config=config)
            connection = await connect(
                node.endpoints[0], identity=Identity(), lane="data", nursery=nursery, timeout=5
            )
            sender = Client(connection)

            async def check(ok: bool) -> bool:
                (told,) = await admin.describe_nodes()
                return {each.name: each.ok for each in told.checks}["maintenance"] == ok

            await produce(node.endpoints, "t", [b"first"])
            await until(lambda: check(True))
            sender.send(("t", 0, NOT_ZSTD))
            for _ in range(40):
                sender.send(("t", 0, build_batch([b"k"], [bytes(200)], timestamps_ms=1000)))
            await sender.all(41)
            await until(lambda: check(False), 30)
            assert node._driver is not None
            assert list(node._driver.directories.troubles.unreadable.values()) == [1]
            for _ in range(40):
                sender.send(("t", 0, build_batch([b"k"], [bytes(200)], timestamps_ms=1000)))
            await sender.all(81)
            lines = [each for each in caplog.messages if "unreadable record batches" in each]
            assert len(lines) == 1 and "its records are not valid zstd data" in lines[0]
            connection.abort("the test is over")
        nursery.cancel_scope.cancel()
