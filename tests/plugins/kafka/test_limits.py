"""What one client takes, or does not send, is bounded, comes back, and keeps nobody else from being served."""

from __future__ import annotations

import gc
import socket
import struct
import weakref
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
import trio.testing

from insync.plugins.kafka import gateway, listener
from insync.plugins.kafka.handlers import group_admin, versions
from insync.plugins.kafka.handlers import topics as topic_handlers
from insync.plugins.kafka.handlers.table import IN_A_TURN
from insync.plugins.kafka.protocol import encode, message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication import Admin, Node
from insync.replication.core.errors import ErrorCode
from insync.replication.node.service import ServiceError
from insync.storage.batch import build_batch
from insync.transport import LinkBroken, guests
from insync.transport._payload import BufferPayload
from insync.transport.buffers import POOL
from insync.transport.kit._frame import until

from .idle_connections import measure
from .steps import Steps
from .test_listener import (
    _links,
    batch,
    client_of,
    fetch,
    make,
    node_at,
    parts_of,
    produce,
    write,
)
from .wire_client import WireClient

Metadata, Versions = message("MetadataRequest"), message("ApiVersionsRequest")
DECLARED = 60 << 20


def head(size: int, version: int = 9) -> bytes:
    """The beginning of a produce request."""
    return struct.pack(">ihhih", size, Api.PRODUCE, version, 1, 0) + bytes(100)


def whole(*values: bytes) -> bytes:
    (body,) = encode(produce(batch(*values)), 9)
    start = struct.pack(">hhih", Api.PRODUCE, 9, 7, 4) + b"test\0"
    return struct.pack(">i", len(start) + len(body)) + start + body


async def is_served(client: WireClient) -> None:
    assert (await client.ask(Api.METADATA, 5, Metadata(topics=[]))).brokers


async def link_of(node: Node) -> Any:
    """That of the only client."""
    await until(lambda: len(_links(node)) == 1, "the connection is there")
    (link,) = _links(node)
    return link


@pytest.mark.slow
async def test_room_for_what_was_declared_and_never_came_is_given_back(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        for _ in range(5):
            async with client_of(node) as client:
                link = await link_of(node)
                await client.stream.send_all(head(DECLARED))
                await until(lambda: link._service.budget.used == DECLARED, "it is being received")  # noqa: B023
            await until(lambda: not _links(node), "the connection has ended")
            assert link._service.budget.used == 0


async def test_room_for_a_large_frame_that_is_no_request_is_given_back(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        data = head(200_000, version=99)
        await client.stream.send_all(data + bytes(200_004 - len(data)))
        assert await client.has_ended()
        await until(lambda: not _links(node), "the connection has ended")
        assert link._service.budget.used == 0


async def test_room_for_a_large_request_for_versions_is_given_back(tmp_path: Path) -> None:
    """It may come from anyone, before a login."""
    asked = Versions(client_software_name="a" * 200_000, client_software_version="1")
    async with node_at(tmp_path) as node, client_of(node) as client:
        assert (await client.ask(Api.API_VERSIONS, 3, asked)).error_code == 0
        assert (await link_of(node))._service.budget.used == 0


async def test_a_frame_that_is_broken_off_leaves_its_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not when cycles are collected: on a node that has nothing else to do that is never."""
    taken: list[bytearray] = []

    def take(size: int) -> BufferPayload:
        taken.append(bytearray(size))
        return BufferPayload(memoryview(taken[-1]))

    monkeypatch.setattr(POOL, "take", take)
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        await client.stream.send_all(head(1 << 20))
        await until(lambda: bool(link._machine.large_missing) and link._is_receiving, "it is being received")
        gc.disable()
        try:
            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.stream.socket.close()
            await until(lambda: not _links(node), "it has ended")
            taken[0].append(0)  # raises BufferError while anybody looks at it
        finally:
            gc.enable()


async def test_who_has_sent_many_requests_waits_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as a client likes come in one read, and each may be answered at once."""
    monkeypatch.setattr(listener, "SLICE", 0.0)
    steps, answered, real = Steps(), [], versions.answer

    def answer(*asked: Any) -> Any:
        answered.append(steps.count)
        return real(*asked)

    monkeypatch.setattr(versions, "answer", answer)
    async with node_at(tmp_path) as node, client_of(node) as client:
        trio.lowlevel.add_instrument(steps)
        try:
            await client.stream.send_all(client.framed(Api.API_VERSIONS, 0, Versions()) * 100)
            for _ in range(100):
                assert (await client.receive(Api.API_VERSIONS, 0)).error_code == 0
        finally:
            trio.lowlevel.remove_instrument(steps)
    assert max(Counter(answered).values()) == 1


async def test_who_ends_while_it_waits_for_room_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as first, client_of(node) as other:
        await make(node)
        await write(first, b"x")
        await write(other, b"x")
        both = _links(node)
        budget = both[0]._service.budget
        taken = budget.limit - DECLARED + 1
        budget.take(taken)
        await first.stream.send_all(head(DECLARED))
        await until(lambda: any(budget.keeps_waiting(each) for each in both), "it waits for room")
        (waiting,) = [each for each in both if budget.keeps_waiting(each)]
        waiting.abort("for the test")
        await until(lambda: waiting not in _links(node), "it has ended")
        assert (await write(other, b"y" * 200_000)).error_code == 0
        budget.give(taken)
        assert budget.used == 0


async def test_who_is_told_to_close_while_it_waits_for_room_is_not_read_from(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        budget = link._service.budget
        budget.take(budget.limit)
        await client.stream.send_all(head(DECLARED))
        await until(lambda: budget.keeps_waiting(link), "it waits for room")
        link.close("for the test")
        budget.give(budget.limit)
        assert await client.has_ended()
        await until(lambda: budget.used == 0, "the room comes back")


async def test_a_connection_that_is_told_to_close_ends_when_its_answers_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        go_on, send = trio.Event(), link._stream.send

        async def late(parts: Any) -> None:
            await go_on.wait()
            await send(parts)

        monkeypatch.setattr(link._stream, "send_now", lambda parts: 0)
        monkeypatch.setattr(link._stream, "send", late)
        await client.send(Api.METADATA, 5, Metadata(topics=[]))
        await until(lambda: bool(link._unsent), "an answer waits to be sent")
        link.close("for the test")
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        assert (await client.receive(Api.METADATA, 5)).brokers
        assert await client.has_ended()


async def test_a_connection_that_is_told_to_close_answers_what_was_begun(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        assert (await write(client, b"0")).error_code == 0
        link = await link_of(node)
        await client.send(Api.FETCH, 11, fetch(1, wait_ms=60_000))
        await until(lambda: not link._machine.is_idle, "the request is being served")
        link.close("for the test")
        await trio.testing.wait_all_tasks_blocked()
        async with client_of(node) as other:
            assert (await write(other, b"1")).error_code == 0
        assert parts_of(await client.receive(Api.FETCH, 11))[0].high_watermark == 2
        assert await client.has_ended()


async def test_a_frame_that_does_not_go_on_is_given_up(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        await client.stream.send_all(head(DECLARED))
        await until(lambda: bool(link._machine.large_missing), "it is being received")
        link.look(link._heard + listener.STUCK - 1)
        assert link in _links(node)
        link.look(link._heard + listener.STUCK + 1)
        assert await client.has_ended()
        await until(lambda: link._service.budget.used == 0, "the room comes back")


async def test_a_frame_that_comes_by_drops_is_given_up_and_a_slow_one_is_not(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        await client.stream.send_all(head(DECLARED) + bytes(1 << 20))
        await until(lambda: link._machine.large_filled >= 1 << 20, "a part has come")
        since, pace = link._large_since, (1 << 20) / listener.LEAST_PACE
        for after, is_given_up in ((listener.STUCK + pace - 1, False), (listener.STUCK + pace + 2, True)):
            link._heard = since + after  # as if another byte had come just now
            link.look(since + after)
            assert link._scope.cancel_called == is_given_up


async def test_a_frame_that_stops_after_much_of_it_is_given_up(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        await client.stream.send_all(head(DECLARED) + bytes(4 << 20))
        await until(lambda: link._machine.large_filled >= 4 << 20, "a part has come")
        link.look(link._heard + listener.STUCK - 1)
        assert not link._scope.cancel_called
        link.look(link._heard + listener.STUCK + 1)
        assert link._scope.cancel_called


async def test_who_takes_a_large_answer_slowly_is_waited_for(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as other:
        await make(node)
        for _ in range(16):
            await write(other, b"x" * 900_000)
        slow = await WireClient.connect(node.gateway_endpoints[0])
        async with slow.stream:
            slow.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 10)
            asked = fetch()
            asked.max_bytes = asked.topics[0].partitions[0].partition_max_bytes = 50 << 20
            await slow.send(Api.FETCH, 11, asked)
            await until(lambda: any(each._unsent for each in _links(node)), "more than goes at once")
            (link,) = [each for each in _links(node) if each._unsent]
            link.look(trio.current_time())
            for step in range(1, 4):
                before = link._stream.sent
                with trio.fail_after(60):
                    while link._stream.sent == before:
                        await slow.stream.receive_some(1 << 20)
                assert link._unsent
                link.look(trio.current_time() + step * listener.STUCK)
                assert not link._scope.cancel_called
            # Nothing more is taken: what had gone on its way meanwhile is counted by a first look.
            now = trio.current_time() + 4 * listener.STUCK
            await until(lambda: _is_still(link, now), "it is still")
            link.look(now + listener.STUCK + 1)
            assert link._scope.cancel_called


def _is_still(link: Any, now: float) -> bool:
    before = link._stream.sent
    link.look(now)
    return bool(before == link._seen_sent and link._moved < now)


@pytest.mark.slow
async def test_idle_connections_make_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(guests, "MOST_ENDED", 1)
    monkeypatch.setattr(guests, "IDLE", 0.01)
    async with node_at(tmp_path) as node, client_of(node) as waiting:
        await make(node)
        await write(waiting, b"x")
        await waiting.send(Api.FETCH, 11, fetch(1, wait_ms=60_000))
        (parked,) = _links(node)
        await until(lambda: not parked._machine.is_idle, "the fetch waits")
        async with trio.open_nursery() as nursery:
            idle = [await WireClient.connect(node.gateway_endpoints[0]) for _ in range(12)]
            async with client_of(node) as client:
                await is_served(client)
                assert "no more connections are allowed" in caplog.text
                assert (await write(client, b"news")).error_code == 0
            assert parts_of(await waiting.receive(Api.FETCH, 11))[0].high_watermark == 2
            for each in idle:
                nursery.start_soon(each.stream.aclose)


async def test_a_mistake_over_a_new_connection_is_that_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right, calls = gateway._link, 0

    async def wrong(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a mistake")
        return await right(*arguments)

    monkeypatch.setattr(gateway, "_link", wrong)
    async with node_at(tmp_path) as node:
        async with client_of(node) as client:
            assert await client.has_ended()
        async with client_of(node) as client:
            await is_served(client)
    assert "a mistake" in caplog.text


async def test_small_batches_count_until_they_are_written(tmp_path: Path) -> None:
    """While the budget is exceeded each client has one produce request at a time."""
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"first")
        (link,) = _links(node)
        budget, used, kept = link._service.budget, [], []
        budget.take(budget.limit)
        call, answer = link._service.call, link._machine.answer

        def called(*arguments: Any, **more: Any) -> Any:
            used.append(budget.used - budget.limit)
            return call(*arguments, **more)

        def answered(request: Any, parts: Any) -> None:
            kept.append(len(request.body))
            assert request.size > 1000
            answer(request, parts)

        link._service.call, link._machine.answer = called, answered
        one = whole(b"x" * 1000)
        try:
            await client.stream.send_all(one * 20)
            for _ in range(20):
                told = (await client.receive(Api.PRODUCE, 9)).responses[0].partition_responses[0]
                assert told.error_code == 0
        finally:
            link._service.call = call
        assert used == [len(one) - 4] * 20
        assert kept == [0] * 20, "whoever waits for an answer does not keep the batches"
        assert budget.used == budget.limit
        budget.give(budget.limit)


async def test_the_next_batch_waits_for_what_is_written_not_for_what_is_answered(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        service, budget, waiting = link._service, link._service.budget, []
        budget.take(budget.limit)
        call, payloads = service.call, []

        def called(caller: Any, asked: Any, done: Any, *, payload: Any = None) -> None:
            payloads.append(payload)
            waiting.append(done)

        service.call = called
        try:
            await client.stream.send_all(whole(b"x") * 3)
            for count in range(1, 4):
                await until(lambda: len(payloads) == count, "the next one has started")  # noqa: B023
                await trio.testing.wait_all_tasks_blocked()
                assert len(payloads) == count
                payloads[-1].release()
        finally:
            service.call = call
        for done in waiting:
            done(ServiceError(ErrorCode.REQUEST_TIMED_OUT, "for the test"))
        for _ in range(3):
            (part,) = (await client.receive(Api.PRODUCE, 9)).responses[0].partition_responses
            assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
        budget.give(budget.limit)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_batches_are_counted_until_they_are_written(tmp_path: Path, partitions: int) -> None:
    Produce = message("ProduceRequest")
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, partitions=3)
        for index in range(3):
            await write(client, b"first", partition=index)
        (link,) = _links(node)
        budget, service = link._service.budget, link._service
        call, seen = service.call, []

        def called(caller: Any, asked: Any, done: Any, *, payload: Any = None) -> Any:
            release = payload.release

            class Watched(type(payload)):  # type: ignore[misc]
                def release(self) -> None:
                    seen.append(budget.used)
                    release()
                    seen.append(budget.used)

            return call(caller, asked, done, payload=Watched(payload.view(), lambda: None))

        service.call = called
        parts = [
            Produce.PartitionProduceData(index=index, records=batch(bytes(100_000)))
            for index in range(partitions)
        ]
        named = Produce.TopicProduceData(name="t", partition_data=parts)
        try:
            asked = Produce(acks=-1, timeout_ms=5000, topic_data=[named])
            told = (await client.ask(Api.PRODUCE, 9, asked)).responses[0].partition_responses
        finally:
            service.call = call
        assert [each.error_code for each in told] == [0] * partitions
        assert seen[0] > 100_000 * partitions
        assert seen[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
async def test_a_batch_that_inflates_too_far_is_refused(
    tmp_path: Path, codec: Literal["gzip", "lz4", "zstd"]
) -> None:
    bomb = build_batch([b"k"], [bytes(129 << 20)], timestamps_ms=1000, compression=codec)
    assert len(bomb) < 1 << 20
    async with node_at(tmp_path) as node, client_of(node) as client, client_of(node) as other:
        await make(node)
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("c", 1, 1, config={"cleanup_policy": "compact"})
        await write(client, b"x")
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        while error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            await client.send(Api.PRODUCE, 9, produce(bomb, topic="c"))
            await is_served(other)
            (part,) = (await client.receive(Api.PRODUCE, 9)).responses[0].partition_responses
            error = part.error_code
        assert error == ErrorCode.RECORD_TOO_LARGE
        assert "134217728 bytes" in part.error_message


@pytest.mark.parametrize("how", ["the client ends it", "the node aborts it", "closing it fails"])
async def test_what_follows_a_connection_is_done_however_it_ends(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node hears that the client has gone, and the pool of buffers counts one connection less."""
    before, gone = POOL._users, []
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        own, real = link.client, link._service.gone
        assert POOL._users > before
        during = POOL._users

        def noted(caller: object) -> None:
            gone.append(caller)
            real(caller)

        monkeypatch.setattr(link._service, "gone", noted)
        if how == "the node aborts it":
            link.abort("a test")
        else:
            if how == "closing it fails":
                monkeypatch.setattr(link._stream, "aclose", fails)
            await client.stream.aclose()
        await until(lambda: not _links(node), "the connection has ended")
        assert gone == [own] and POOL._users == during - 1


async def fails() -> None:
    raise LinkBroken("it is closed already")


async def test_room_for_a_large_request_that_cannot_be_read_is_given_back(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        link = await link_of(node)
        data = head(200_000)
        await client.stream.send_all(data + b"\xff" * (200_004 - len(data)))
        assert await client.has_ended()
        await until(lambda: not _links(node), "the connection has ended")
        assert link._service.budget.used == 0


async def test_connections_that_have_ended_are_not_kept(tmp_path: Path) -> None:
    """Cycles are not looked for on a node that is idle."""
    async with node_at(tmp_path) as node:
        gc.collect()
        gc.disable()
        try:
            async with client_of(node) as client:
                await is_served(client)
                kept = weakref.ref(await link_of(node))
            await until(lambda: kept() is None, "nothing holds on to it")
        finally:
            gc.enable()


def test_idle_connections_take_little_and_others_are_served() -> None:
    """`python -m tests.plugins.kafka.idle_connections` does it with five thousand, and says what is given back."""
    found = measure(300, rest=0)
    assert found.each < 64 << 10
    assert found.slowest < 60


Groups, Delete = message("DescribeGroupsRequest"), message("DeleteTopicsRequest")
Commit = message("TxnOffsetCommitRequest")


class Turns(trio.abc.Instrument):
    """Of the loop: which one it is, and in which something was done."""

    def __init__(self) -> None:
        self.now = 0
        self.of: dict[str, list[int]] = defaultdict(list)

    def before_io_wait(self, timeout: float) -> None:
        self.now += 1

    def noted(self, step: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """What does the same, and whose turn is noted as it begins."""

        def call(*given: Any, **options: Any) -> Any:
            self.of[step].append(self.now)
            return plain(*given, **options)

        return call


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    found = Turns()
    trio.lowlevel.add_instrument(found)
    yield found
    trio.lowlevel.remove_instrument(found)


@pytest.mark.parametrize(("count", "is_large"), [(100, False), (2000, True)])
async def test_a_large_request_is_read_and_served_and_its_answer_written_in_a_turn_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: Turns, count: int, is_large: bool
) -> None:
    """Each may take tens of milliseconds; others wait for one of them."""
    part = Commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [Commit.TxnOffsetCommitRequestTopic(name="t", partitions=[part] * count)]
    commit = Commit(transactional_id="t", group_id="g", producer_id=1, topics=topics)
    groups = Groups(groups=[f"group-{index}" for index in range(count)])
    ask = group_admin.ask

    async def asked(*given: Any) -> Any:
        found = await ask(*given)
        turns.of["served"].append(turns.now)
        return found

    async with node_at(tmp_path) as node, client_of(node) as client:
        monkeypatch.setattr(listener, "decode", turns.noted("read", listener.decode))
        monkeypatch.setattr(listener, "encode", turns.noted("written", listener.encode))
        monkeypatch.setattr(listener.Link, "_exchange", turns.noted("served", listener.Link._exchange))
        monkeypatch.setattr(group_admin, "ask", asked)
        await client.ask(Api.DESCRIBE_GROUPS, 5, groups)
        assert (turns.of["served"] != turns.of["written"]) == is_large
        turns.of.clear()
        await client.ask(Api.TXN_OFFSET_COMMIT, 2, commit)
        assert (turns.of["read"] != turns.of["served"]) == is_large


async def test_many_topics_are_deleted_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: Turns
) -> None:
    monkeypatch.setattr(topic_handlers, "_delete", turns.noted("deleted", topic_handlers._delete))
    ids = [Delete.DeleteTopicState(name=None, topic_id=at.to_bytes(16, "big")) for at in range(1, 9000)]
    async with node_at(tmp_path) as node, client_of(node) as client:
        told = await client.ask(Api.DELETE_TOPICS, 6, Delete(topics=ids, timeout_ms=1000))
        assert len(told.responses) == len(ids)
    assert sum(Counter(turns.of["deleted"]).values()) == len(ids)
    assert max(Counter(turns.of["deleted"]).values()) <= IN_A_TURN
