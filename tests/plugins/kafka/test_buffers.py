"""The memory into which a connection receives: it grows under load, within the node's budget, and shrinks again."""

from __future__ import annotations

import gc
import struct
from pathlib import Path

import pytest
import trio

from insync.plugins.kafka import listener
from insync.plugins.kafka.core import connection
from insync.plugins.kafka.core.connection import LEAST_BUFFER, MOST_BUFFER, SMALL_FRAME, Request
from insync.plugins.kafka.protocol import encode
from insync.plugins.kafka.protocol.apis import Api
from insync.replication import Consumer, Node
from insync.transport._payload import BufferPayload, PayloadPool
from insync.transport.kit._frame import until

from .test_listener import Produce, _links, batch, client_of, make, node_at, produce, write
from .wire_client import PATIENCE

COUNT = 200


async def values_of(node: Node, partition: int, count: int) -> list[bytes | None]:
    """The first records of a partition, by our own consumer."""
    found: list[bytes | None] = []
    async with Consumer(node.endpoints, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", partition)])
        with trio.fail_after(PATIENCE):
            while len(found) < count:
                found += [record.value for record in await consumer.poll()]
    return found


def views_of(buffer: object) -> int:
    """How many views of it there are. Each refers to what manages the buffer, and that to the buffer.

    Not by `gc.get_objects`, see `_links`.
    """
    managers = [each for each in gc.get_referrers(buffer) if type(each).__name__ == "managedbuffer"]
    return sum(type(each) is memoryview for each in gc.get_referrers(*managers))


def burst() -> bytes:
    """Produce requests one behind the other, each smaller than a small frame."""
    (body,) = encode(produce(batch(bytes(16_000))), 9)
    head = struct.pack(">hhih", Api.PRODUCE, 9, 7, 4) + b"test\0"
    return (struct.pack(">i", len(head) + len(body)) + head + body) * COUNT


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_burst_has_a_larger_buffer_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    monkeypatch.setattr(listener, "SWEEP", 0.05)
    sizes: list[int] = []
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await until(lambda: len(_links(node)) == 1, "the connection is there")
        (link,) = _links(node)
        machine, budget = link._machine, link._service.budget
        assert len(machine._buffer) == LEAST_BUFFER
        if not has_room:
            budget.take(budget.limit)
        before = budget.used
        received = machine.received

        def watched(count: int) -> None:
            sizes.append(len(machine._buffer))
            received(count)

        machine.received = watched
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stream.send_all, burst())
            for offset in range(COUNT):
                told = (await client.receive(Api.PRODUCE, 9)).responses[0].partition_responses[0]
                assert (told.error_code, told.base_offset) == (0, offset)
        assert max(sizes) == (MOST_BUFFER if has_room else SMALL_FRAME)
        await until(lambda: len(machine._buffer) == LEAST_BUFFER, "the buffer is small again")
        assert budget.used == before
        # And is read into.
        await client.stream.send_all(burst()[: len(burst()) // COUNT])
        told = (await client.receive(Api.PRODUCE, 9)).responses[0].partition_responses[0]
        assert (told.error_code, told.base_offset) == (0, COUNT)


@pytest.mark.slow
async def test_the_memory_of_large_frames_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = PayloadPool()
    monkeypatch.setattr(connection, "POOL", pool)
    used: list[int] = []
    lookers: list[int] = []
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"first")
        (link,) = _links(node)
        next_request = link._machine.next_request

        def watched() -> Request | None:
            request = next_request()
            if request is not None:
                assert isinstance(request.memory, BufferPayload)
                buffer = request.memory._buffer
                lookers.append(views_of(buffer))
                used.append(id(buffer))
            return request

        link._machine.next_request = watched
        for number in range(10):
            assert (await write(client, bytes([number]) * 300_000)).error_code == 0
            (kept,) = pool._free.values()
            assert len(kept) == 1, "nobody looks at it any more"
        assert len(used) == 10 and len(set(used)) == 1
        assert set(lookers) == {1}, "the request alone"
        for number, value in enumerate(await values_of(node, 0, 11)):
            assert value == (bytes([number - 1]) * 300_000 if number else b"first")


async def test_batches_of_several_partitions_in_a_large_frame(tmp_path: Path) -> None:
    """They are moved together; the largest of them may be any."""
    sizes = [(10, 90_000, 20), (100_000, 10, 70_000), (30, 200, 150_000), (70_000, 70_000, 70_000)]
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, partitions=3)
        for index in range(3):
            await write(client, b"first", partition=index)
        for number, each in enumerate(sizes):
            parts = [
                Produce.PartitionProduceData(index=index, records=batch(bytes([number, index]) * size))
                for index, size in enumerate(each)
            ]
            named = Produce.TopicProduceData(name="t", partition_data=parts)
            asked = Produce(acks=-1, timeout_ms=5000, topic_data=[named])
            told = (await client.ask(Api.PRODUCE, 9, asked)).responses[0].partition_responses
            assert [(part.error_code, part.base_offset) for part in told] == [(0, number + 1)] * 3
        for index in range(3):
            found = await values_of(node, index, len(sizes) + 1)
            assert found == [b"first"] + [
                bytes([number, index]) * each[index] for number, each in enumerate(sizes)
            ]
