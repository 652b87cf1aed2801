"""What peers declare, send and leave behind takes bounded memory, and all of it comes back."""

from __future__ import annotations

import functools
import gc
import os
import sys
import weakref

import pytest
import trio
import trio.testing

from insync.transport import Identity, Limits, ReceiveBudget, connect, serve
from insync.transport._payload import POOL, PayloadPool
from insync.transport.connections._handshake import introduce, judge_acceptor, make_hello
from insync.transport.connections.intake import FREE_BODIES, MOST_BODIES
from insync.transport.frames import LARGE_BODY, FrameType, encode_header
from insync.transport.kit._frame import until
from insync.transport.registry import resolve

MIB = 1 << 20
CLIENT = Identity()
PAYLOAD = 300 << 10


@pytest.fixture(autouse=True)
def nothing_is_collected():
    """What comes back only when cycles are collected may never come back on a node that is idle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def listen(nursery, handler, **settings):
    start = functools.partial(serve, "tcp://127.0.0.1:0", handler, identity=Identity("c", 1, 1), **settings)
    return (await nursery.start(start)).endpoints[0]


async def raw_link(url):
    transport, endpoint = resolve(url)
    link = await transport.connect(endpoint)
    await introduce(link, make_hello(CLIENT, "", Limits()), judge_acceptor, dialer=True)
    return link


async def test_what_was_declared_and_never_came_takes_nothing_afterwards(nursery):
    budget = ReceiveBudget(128 * MIB)
    url = await listen(nursery, lambda request: None, budget=budget)
    head = encode_header(FrameType.REQUEST, 1, payload_length=60 * MIB)
    before = resident()
    for _ in range(50):
        link = await raw_link(url)
        await link.send(head + bytes(1024), ())
        await until(lambda: budget.used > 0, "it is being received")
        await link.aclose()
        await until(lambda: budget.used == 0, "the room comes back")
    await trio.testing.wait_all_tasks_blocked()
    assert resident() - before < 10 * MIB


@pytest.mark.parametrize("declared", [LARGE_BODY + 1, 900 << 10])
async def test_bodies_that_never_come_keep_to_the_budget(nursery, declared):
    """Eight peers announce large bodies; those beyond the budget get no memory, and the rest gives it back."""
    budget = ReceiveBudget(2 * (declared + PAYLOAD))
    url = await listen(nursery, lambda request: None, budget=budget)
    whole = encode_header(FrameType.REQUEST, 1, body=bytes(declared), payload_length=PAYLOAD)
    head = whole[:2048]
    links = [await raw_link(url) for _ in range(8)]
    for link in links:
        await link.send(head, ())
    await until(lambda: budget.used == budget.limit, "two are let in")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert budget.used == budget.limit
    for link in links:
        link.abort()
    await until(lambda: budget.used == 0, "the room comes back")


async def test_bodies_of_parked_requests_are_bounded(nursery):
    """A peer that parks 1,024 requests of half a megabyte gets 8 MiB of them in, and others are served."""
    parked, budget = [], ReceiveBudget(128 * MIB)

    def park(request):
        if len(request.body) > 100:
            parked.append(request)
        else:
            request.reply(request.body)

    url = await listen(nursery, park, budget=budget)
    greedy = await connect(url, identity=CLIENT, nursery=nursery)
    body, answers = bytes(500_000), []
    for _ in range(100):
        greedy.request_nowait(1, body, timeout=60, on_done=answers.append)
    await until(lambda: budget.bodies > MOST_BODIES, "it has its share")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert budget.bodies <= MOST_BODIES + 2 * len(body)
    other = await connect(url, identity=CLIENT, nursery=nursery)
    (await other.request(1, b"served", timeout=5)).release()
    with trio.fail_after(20):
        while len(answers) < 100:
            while parked:
                parked.pop().reply()
            await trio.sleep(0.001)
    assert budget.bodies == 0


async def test_the_bodies_of_all_connections_are_bounded(nursery):
    """Once all together have much, each may still have a little."""
    parked, budget = [], ReceiveBudget(16 * MIB)
    url = await listen(nursery, parked.append, budget=budget)
    body, answers = bytes(500_000), []
    for _ in range(16):
        greedy = await connect(url, identity=CLIENT, nursery=nursery)
        for _ in range(8):
            greedy.request_nowait(1, body, timeout=60, on_done=answers.append)
    await until(lambda: budget.has_many_bodies, "they have their share")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert budget.bodies <= 16 * MIB // 4 + 17 * len(body)
    modest = await connect(url, identity=CLIENT, nursery=nursery)
    served = len(parked)
    for _ in range(3):
        modest.request_nowait(1, bytes(FREE_BODIES // 4), timeout=60, on_done=answers.append)
    await until(lambda: len(parked) == served + 3, "a modest peer is heard")


async def test_cancelled_and_abandoned_requests_give_their_bodies_back(nursery):
    budget, parked = ReceiveBudget(16 * MIB), []
    url = await listen(nursery, parked.append, budget=budget)
    one = await connect(url, identity=CLIENT, nursery=nursery)
    handles = [one.request_nowait(1, bytes(1000), timeout=60, on_done=print) for _ in range(4)]
    await until(lambda: budget.bodies == 4000, "they are there")
    handles[0].cancel()
    await until(lambda: budget.bodies == 3000, "one was cancelled")
    parked[1].fail(5, "for the test")
    assert budget.bodies == 2000
    one.abort("for the test")
    await until(lambda: budget.bodies == 0, "the connection has ended")


async def test_idle_connections_take_little(nursery):
    url = await listen(nursery, lambda request: request.reply())
    count, before = 200, resident()
    connections = [await connect(url, identity=CLIENT, nursery=nursery) for _ in range(count)]
    for connection in connections:
        (await connection.request(1, b"small", timeout=5)).release()
    assert (resident() - before) / count < 2 * 64 << 10, "of both ends"
    for connection in connections:
        connection.abort("for the test")


@pytest.mark.slow
async def test_what_many_idle_connections_took_is_given_back(nursery, tmp_path):
    """Both ends in processes of their own: this one may have memory left over from earlier tests."""
    each, _ = await idle_connections(3000)
    assert each < 64 << 10
    # Python's own allocator keeps what lies beside anything that lives on; the C library keeps less.
    each, left = await idle_connections(3000, PYTHONMALLOC="malloc")
    assert left < each * 3000 / 4


async def idle_connections(count: int, **environment: str) -> tuple[int, int]:
    """Bytes that each takes, and bytes that stay of all."""
    program = [sys.executable, "-m", "tests.plugins.tcp.idle_connections", str(count)]
    told = await trio.run_process(program, capture_stdout=True, env=os.environ | environment)
    each, left = map(int, told.stdout.split())
    return each, left


async def test_links_give_back_what_a_burst_took(nursery):
    """Once nothing has come for a while, as `Connection` finds out."""
    transport, endpoint = resolve("tcp://127.0.0.1:0")
    listener = await transport.listen(endpoint)
    frame, pairs = encode_header(FrameType.REQUEST, 1, body=bytes(200_000)), []
    for _ in range(100):
        pairs.append((await transport.connect(listener.endpoints[0]), await listener.accept()))
        await pairs[-1][0].send(frame, ())
        assert len(await pairs[-1][1].recv_many()) == 1
    before = resident()
    for _, other in pairs:
        other.trim()
    assert before - resident() > 100 * 150_000
    for one, other in pairs:
        await one.send(frame, ())
        assert len(await other.recv_many()) == 1, "it goes on"
        one.abort()
        other.abort()
    await listener.aclose()


async def test_a_connection_trims_its_link_when_nothing_comes(nursery):
    limits, trimmed = Limits(keepalive=0.05), trio.Event()
    url = await listen(nursery, lambda request: request.reply())
    connection = await connect(url, identity=CLIENT, nursery=nursery, limits=limits)
    connection._link.trim = trimmed.set
    with trio.fail_after(5):
        await trimmed.wait()
    connection.abort("for the test")


def test_pooled_memory_that_nobody_needs_is_let_go():
    pool = PayloadPool()
    pool.entered()
    held = [pool.take(MIB) for _ in range(4)]
    for each in held:
        each.release()
    pool.tidy(10.0)
    pool.take(MIB).release()
    pool.tidy(10.1)
    assert pool._kept == 4 * MIB, "too soon"
    pool.tidy(20.0)
    assert pool._kept == MIB, "one was needed"
    pool.left()
    assert pool._kept == 0, "nobody is there"


async def test_a_closed_link_keeps_nothing(nursery, monkeypatch):
    """Not even if somebody keeps the link, and not what was half received."""
    laid_out, take = [], POOL.take

    def noting(size):
        payload = take(size)
        laid_out.append(weakref.ref(payload.view().obj))
        return payload

    monkeypatch.setattr(POOL, "take", noting)
    transport, endpoint = resolve("tcp://127.0.0.1:0")
    listener = await transport.listen(endpoint)
    one = await transport.connect(listener.endpoints[0])
    other = await listener.accept()
    await one.send(encode_header(FrameType.REQUEST, 1, payload_length=40 * MIB) + bytes(1000), ())
    async with trio.open_nursery() as receiving:
        receiving.start_soon(other.recv_many)
        await until(lambda: bool(laid_out), "it is laid out")
        receiving.cancel_scope.cancel()
    (memory,) = laid_out
    assert memory() is not None, "and kept for the rest"
    other.abort()
    assert memory() is None
    one.abort()
    await listener.aclose()
