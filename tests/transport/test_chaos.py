"""chaos+SCHEME://: the kit without faults and with delays, and each fault for itself."""

from __future__ import annotations

import functools
import itertools

import pytest
import trio

from insync.plugins.tcp import TcpTransport
from insync.transport import (
    URL,
    ConnectionLost,
    DeadlineExceeded,
    Identity,
    InsecureAddressError,
    Limits,
    LinkBroken,
    Security,
    TransportError,
    UnknownSchemeError,
    connect,
    registry,
    serve,
)
from insync.transport.chaos import ChaosTransport, Faults
from insync.transport.kit._frame import message
from insync.transport.testing import Env, cases_for, run_case

numbers = itertools.count()


class ChaosEnv(Env):
    def __init__(self, options):
        self.transport = registry.get("chaos+mem")
        self._options = options

    def listen_url(self):
        return f"chaos+mem://kit/chaos-{next(numbers)}{self._options}"

    def dead_url(self):
        return f"chaos+mem://kit/nobody{self._options}"

    def malformed_urls(self):
        return [
            "chaos+mem://net",
            "chaos+mem://net/a?loss=2",
            "chaos+mem://net/a?loss=x",
            "chaos+mem://net/a?cut=up",
            "chaos+mem://net/a?seed=-1",
            "chaos+mem://net/a?delay_ms=1.5",
        ]


def cases(env):
    """An option that nobody knows cannot follow others by a second question mark."""
    return [one for one in cases_for(env) if env._options == "" or "malformed" not in one.name]


@pytest.mark.parametrize("case", cases(ChaosEnv("")), ids=lambda case: case.name)
async def test_without_faults_it_is_as_good_as_the_transport(case):
    await run_case(case, ChaosEnv(""))


@pytest.mark.parametrize(
    "case",
    [one for one in cases(ChaosEnv("?delay_ms=1")) if one.name[0] in "ABCH" and "order" not in one.name],
    ids=lambda case: case.name,
)
async def test_delays_break_no_promise(case):
    await run_case(case, ChaosEnv("?seed=3&delay_ms=1"))


def answer(request):
    with request.payload as payload:
        request.reply(b"", [bytes(payload.view())])


async def start(nursery, options, **settings):
    url = f"mem://chaos/{next(numbers)}"
    begin = functools.partial(serve, url, answer, identity=Identity("c", 1, 1), **settings)
    await nursery.start(begin)
    return await connect(f"chaos+{url}{options}", identity=Identity(), nursery=nursery, **settings)


async def frames_until_loss(seed):
    transport = registry.get("chaos+mem")
    inner = await registry.get("mem").listen(URL.parse("mem://chaos/loss"))
    link = await ChaosTransport(registry.get("mem")).connect(
        transport.parse(URL.parse(f"chaos+mem://chaos/loss?loss=0.05&seed={seed}"))
    )
    count = 0
    with pytest.raises(LinkBroken, match="as asked for"):
        while True:
            await link.send(message(b"x"), ())
            count += 1
    await inner.aclose()
    return count


async def test_loss_breaks_the_link_at_the_same_frame_for_the_same_seed():
    counts = [await frames_until_loss(seed) for seed in (1, 1, 2, 3, 4)]
    assert counts[0] == counts[1] and len(set(counts)) > 1


async def test_a_lost_link_ends_requests():
    async with trio.open_nursery() as nursery:
        connection = await start(nursery, "?loss=0.2&seed=5")
        with pytest.raises(ConnectionLost):
            for _ in range(200):
                (await connection.request(1, timeout=5)).release()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["in", "out"])
async def test_a_cut_one_way_is_silence_until_keepalive_ends_it(way, autojump_clock):
    async with trio.open_nursery() as nursery:
        connection = await start(nursery, f"?cut={way}&cut_after=3", limits=Limits(keepalive=0.1))
        for _ in range(2):
            (await connection.request(1, timeout=5)).release()
        with pytest.raises(DeadlineExceeded):
            await connection.request(1, timeout=0.05)
        assert not connection.closed.is_set()
        if way == "out":
            with trio.fail_after(3):
                await connection.closed.wait()
        nursery.cancel_scope.cancel()


async def test_a_slow_reader_takes_its_time(autojump_clock):
    async with trio.open_nursery() as nursery:
        connection = await start(nursery, "?rate_bytes=10000", limits=Limits(keepalive=1000))
        before = trio.current_time()
        for _ in range(3):
            (await connection.request(1, b"", [bytes(10_000)], timeout=60)).release()
        assert 2 <= trio.current_time() - before < 4
        nursery.cancel_scope.cancel()


async def test_delays_are_of_the_seed(autojump_clock):
    async def taken(seed):
        async with trio.open_nursery() as nursery:
            connection = await start(nursery, f"?delay_ms=1000&seed={seed}", limits=Limits(keepalive=1000))
            before = trio.current_time()
            for _ in range(10):
                (await connection.request(1, timeout=60)).release()
            seconds = trio.current_time() - before
            nursery.cancel_scope.cancel()
        return round(seconds, 6)

    first, second, other = [await taken(seed) for seed in (1, 1, 2)]
    assert first == second != other and 1 < first < 10


def test_faults_are_taken_from_the_url_and_the_rest_is_left():
    url = URL.parse("chaos+tcp://h:1?contact=a&loss=0.5&seed=9&cut=in&cut_after=4&delay_ms=2&rate_bytes=7")
    faults, inner = Faults.take(url)
    assert faults == Faults(seed=9, delay_ms=2, loss=0.5, rate_bytes=7, cut="in", cut_after=4)
    assert str(inner) == "tcp://h:1?contact=a"
    assert str(registry.get("chaos+tcp").parse(url)).startswith("chaos+tcp://h:1?contact=a&loss=0.5")


def test_faults_make_nothing_secure():
    registry.register("tcp", TcpTransport, override=True)
    transport = registry.get("chaos+tcp")
    with pytest.raises(InsecureAddressError):
        Security().check_address(transport, transport.parse(URL.parse("chaos+tcp://10.0.0.1:1")))
    Security().check_address(transport, transport.parse(URL.parse("chaos+tcp://127.0.0.1:1")))


def test_chaos_of_nothing_is_unknown():
    with pytest.raises(UnknownSchemeError, match="nothing://"):
        registry.get("chaos+nothing")
    assert issubclass(UnknownSchemeError, TransportError)
