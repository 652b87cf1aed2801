"""Fetch sessions on the wire: a follower's request names only what is new, and a lost session is begun anew."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import Admin, Node, Producer, wire
from insync.replication.core import messages as m
from insync.replication.core.broker import effects as fx
from insync.replication.core.broker.context import Context
from insync.replication.core.broker.events import FetchArrived
from insync.replication.core.broker.fetching import serving
from insync.replication.core.broker.fetching.fetch_session import SessionCache
from insync.replication.core.broker.timers import Timers
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition.effects import FetchAnswer
from insync.replication.core.partition.events import Fetch
from insync.replication.core.types import PartitionId
from insync.replication.node._dialler import Dialler
from insync.transport import Identity, Security, connect

from ..test_cluster import full_isr, replicas_agree, settings, until

PARTITIONS = 20


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[m.FetchRequest]:
    """Every request that a follower's node sends from now on."""
    sent: list[m.FetchRequest] = []
    right = Dialler.ask

    def ask(self: Dialler, effect: fx.Ask) -> None:
        if isinstance(effect.message, m.FetchRequest):
            sent.append(effect.message)
        right(self, effect)

    monkeypatch.setattr(Dialler, "ask", ask)
    return sent


async def has_sent(told: list[m.FetchRequest], count: int) -> bool:
    await trio.sleep(0.01)
    return len(told) >= count


async def has_come_to_rest(told: list[m.FetchRequest]) -> bool:
    """Whether every partition was asked for, however late its log was there, and then none any more."""
    await trio.sleep(0.01)
    named = {each.partition for request in told for each in request.partitions}
    return named == set(range(PARTITIONS)) and not any(request.partitions for request in told[-10:])


async def test_idle_partitions_are_not_named_again(tmp_path: Path, told: list[m.FetchRequest]) -> None:
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(Node(settings(tmp_path, n, replica_fetch_wait_max_ms=50)))
            for n in (1, 2)
        ]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin, Producer(servers) as producer:
            await admin.create_topic("t", partitions=PARTITIONS, replication_factor=2)
            await until(lambda: full_isr(admin, "t", 2))
            await until(lambda: has_come_to_rest(told))
            del told[:]
            await until(lambda: has_sent(told, 10))
            assert all(each.session_epoch > 0 for each in told)
            assert sum(len(each.partitions) for each in told) == 0
            await (await producer.send("t", b"x", partition=3)).wait()
            await until(lambda: replicas_agree(admin, "t", 2))
            await until(lambda: has_sent(told, 20))
            named = {each.partition for request in told for each in request.partitions}
            assert named == {3}


async def test_a_high_watermark_travels_with_the_next_batches(
    tmp_path: Path, told: list[m.FetchRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "QUIET_DELAY", 100.0)
    asked: list[PartitionId] = []
    ask = Context.ask_replica

    def noted(self: Context, partition: PartitionId, question: Fetch) -> FetchAnswer:
        asked.append(partition)
        return ask(self, partition, question)

    monkeypatch.setattr(Context, "ask_replica", noted)
    timers: list[str] = []
    call_at = Timers.call_at

    def timed(self: Timers, deadline: float, callback: Any) -> Any:
        by = getattr(callback, "func", callback).__qualname__
        if by != "Broker.tick_replicas":  # its number says how long the test took
            timers.append(by)
        return call_at(self, deadline, callback)

    monkeypatch.setattr(Timers, "call_at", timed)
    records = 20
    # A slow machine is neither watched nor put out: both would be more timers.
    options = {
        "replica_fetch_wait_max_ms": 20_000,
        "session_timeout_ms": 30_000,
        "leader_silence_timeout_ms": 0,
    }
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n, **options))) for n in (1, 2)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin, Producer(servers, linger_ms=0) as producer:
            await admin.create_topic("t", partitions=1, replication_factor=2)
            await until(lambda: full_isr(admin, "t", 2))
            await (await producer.send("t", b"first")).wait()
            del told[:], asked[:], timers[:]
            for _ in range(records):
                await (await producer.send("t", b"x")).wait()
            assert len(timers) < records, f"one wakes the loop for each, be it needed or not: {timers}"
            assert len(told) == records, "one request for each batch, none for a high watermark"
            assert len(asked) == records, "when there are batches, neither before nor for a high watermark"


async def test_a_partition_with_news_does_not_have_all_others_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many high watermarks may be held back for the next answer: what a change costs does not grow with them."""
    monkeypatch.setattr(serving, "QUIET_DELAY", 100.0)
    partitions = 60
    asked: list[PartitionId] = []
    most_held = 0
    ask, look_again = Context.ask_replica, serving.Serving._look_again

    def counted_ask(self: Context, partition: PartitionId, question: Fetch) -> FetchAnswer:
        asked.append(partition)
        return ask(self, partition, question)

    def checked_look_again(self: serving.Serving, partitions: Iterable[PartitionId]) -> None:
        nonlocal most_held
        woken = [
            each
            for partition in partitions
            for each in self._waiting.get(partition, ())
            if each.request is not None
        ]
        most_held = max([most_held, *(len(each.held) for each in woken)])
        before = len(asked)
        look_again(self, partitions)
        if all(each.request is not None for each in woken):
            assert len(asked) - before <= len(woken)

    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(Node(settings(tmp_path, n, replica_fetch_wait_max_ms=20_000)))
            for n in (1, 2, 3)
        ]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin, Producer(servers) as producer:
            await admin.create_topic("t", partitions=partitions, replication_factor=3)
            await until(lambda: full_isr(admin, "t", 3), 60)
            monkeypatch.setattr(Context, "ask_replica", counted_ask)
            monkeypatch.setattr(serving.Serving, "_look_again", checked_look_again)
            for delivery in [await producer.send("t", b"x", partition=n) for n in range(partitions)]:
                await delivery.wait()
    assert most_held > 3


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
async def test_a_refused_session_is_begun_anew_with_every_question(
    tmp_path: Path, told: list[m.FetchRequest], monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    refuse = trio.Event()
    right: Any = serving.Serving._inquiry

    def inquiry(self: serving.Serving, event: FetchArrived) -> object:
        if refuse.is_set() and event.message.session_epoch > 0:
            return code
        return right(self, event)

    monkeypatch.setattr(serving.Serving, "_inquiry", inquiry)
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(Node(settings(tmp_path, n, replica_fetch_wait_max_ms=50)))
            for n in (1, 2)
        ]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin, Producer(servers) as producer:
            await admin.create_topic("t", partitions=2, replication_factor=2)
            await until(lambda: replicas_agree(admin, "t", 2))
            refuse.set()
            del told[:]
            for number in range(4):
                await (await producer.send("t", b"x", partition=number % 2)).wait()
            await until(lambda: replicas_agree(admin, "t", 2))
            await until(lambda: has_sent(told, 6))
    assert {each.session_epoch for each in told} >= {0, 1}


async def test_a_strangers_request_leaves_a_followers_session_as_it_is(
    tmp_path: Path, told: list[m.FetchRequest]
) -> None:
    """A client that may only consume names the session of a follower, and withdraws what the follower asks."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2)]
        servers = [node.endpoints[0] for node in nodes]
        admin = await stack.enter_async_context(Admin(servers))
        producer = await stack.enter_async_context(Producer(servers))
        await admin.create_topic("t", partitions=1, replication_factor=2)
        await (await producer.send("t", b"x")).wait()
        await until(lambda: replicas_agree(admin, "t", 2))
        del told[:]
        await until(lambda: has_sent(told, 2))
        last = max(told, key=lambda each: each.session_epoch)
        nursery = await stack.enter_async_context(trio.open_nursery())
        for server in servers:
            stranger = await connect(
                server, identity=Identity(), security=Security(), nursery=nursery, timeout=5.0
            )
            for epoch in range(last.session_epoch - 2, last.session_epoch + 4):
                claim = m.FetchRequest(
                    replica_id=-1,
                    incarnation=-1,
                    max_wait_ms=0,
                    min_bytes=1,
                    max_bytes=1,
                    partitions=[],
                    session_id=last.session_id,
                    session_epoch=epoch,
                    forgotten=[m.PartitionName(topic="t", partition=0)],
                )
                with await stranger.request(m.Kind.FETCH, wire.encode(claim), timeout=5.0) as response:
                    answer: m.FetchResponse = wire.decode_response(m.Kind.FETCH, bytes(response.body))
                if epoch > 0:
                    assert answer.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        for number in range(20):
            await (await producer.send("t", b"%d" % number)).wait()
        await until(lambda: replicas_agree(admin, "t", 2))
        nursery.cancel_scope.cancel()


async def test_more_followers_than_sessions_are_served_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "QUIET_DELAY", 100.0)  # no test lasts until then
    monkeypatch.setattr(SessionCache, "begin", lambda *_: (None, None))
    async with three_nodes(tmp_path) as servers, Admin(servers) as admin, Producer(servers) as producer:
        await write_to_three(admin, producer)


async def test_followers_do_not_take_each_others_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[bool, bool]] = []
    begin = SessionCache.begin

    def counted(self: Any, questions: Any, now: float, owner: object) -> Any:
        session, evicted = begin(self, questions, now, owner)
        begun.append((session is not None, evicted is not None))
        return session, evicted

    monkeypatch.setattr(SessionCache, "begin", counted)
    nodes = three_nodes(tmp_path, max_incremental_fetch_session_cache_slots=1)
    async with nodes as servers, Admin(servers) as admin, Producer(servers) as producer:
        await write_to_three(admin, producer)
    assert set(begun) == {(True, False), (False, False)}, "some get a session, some none, nobody loses one"


@asynccontextmanager
async def three_nodes(folder: Path, **options: Any) -> AsyncIterator[list[str]]:
    """Where three nodes are reached."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(folder, n, **options))) for n in (1, 2, 3)]
        yield [node.endpoints[0] for node in nodes]


async def write_to_three(admin: Admin, producer: Producer) -> None:
    """Write to a partition of each, until all replicas have it all."""
    await admin.create_topic("t", partitions=3, replication_factor=3)
    for number in range(9):
        await (await producer.send("t", b"x", partition=number % 3)).wait()
    await until(lambda: replicas_agree(admin, "t", 3))


def test_a_request_without_a_session_is_as_it_was() -> None:
    """Consumers ask so, and nodes that know of no sessions."""
    request = m.FetchRequest(
        replica_id=-1, incarnation=-1, max_wait_ms=0, min_bytes=1, max_bytes=1, partitions=[]
    )
    decoded: m.FetchRequest = wire.decode_request(m.Kind.FETCH, wire.encode(request))
    assert (decoded.session_id, decoded.session_epoch, decoded.forgotten) == (0, -1, [])
