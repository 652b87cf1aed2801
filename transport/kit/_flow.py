"""Kit, group G: readers that are slow or stop, credit, and the budget of all connections."""

from __future__ import annotations

from collections.abc import Iterable

import trio
import trio.testing

from ..abc import Link, Payload
from ..connections._handshake import introduce, judge_acceptor, make_hello
from ..connections.connection import Connection
from ..connections.intake import ReceiveBudget
from ..connections.request import Request
from ..errors import DeadlineExceeded, LinkBroken, LinkClosed, ProtocolError, RemoteError, TransportError
from ..frames import FrameType, Limits, encode_header
from ..patience import PATIENCE
from ..requests import Identity, Response
from ..urls import URL
from ._frame import Env, case, connected, dial, listening, message, prepare, receive, served, until
from ._requests import Answers, Desk

MIB = 1 << 20
ATTEMPTS = 8


class Keeper:
    """A handler that answers at once and keeps each payload until `release`."""

    def __init__(self) -> None:
        self.kept: list[Payload] = []
        self.count = 0
        """Of requests with a payload, in all."""

    def __call__(self, request: Request) -> None:
        if request.payload.nbytes:
            self.count += 1
            self.kept.append(request.payload)
        request.reply(request.body)

    def release(self) -> None:
        for payload in self.kept:
            payload.release()
        self.kept.clear()


@case("G")
async def a_reader_that_stops_holds_the_sender_back(env: Env) -> None:
    """Sending to a link that nobody reads waits, with bounded memory, and goes on when it is read."""
    sent = 0
    payload = bytes(MIB)
    async with listening(env) as listener, trio.open_nursery() as nursery:
        one = await env.transport.connect(listener.endpoints[0])
        other = await listener.accept()
        await prepare(one, other)

        async def send() -> None:
            nonlocal sent
            for _ in range(64):
                await one.send(message(b"", [payload]), [payload])
                sent += 1

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert sent < 32, "nobody reads, but everything was taken"
        for _ in range(64):
            await receive(other)
        await until(lambda: sent == 64, "the sender goes on")
        one.abort()
        other.abort()


@case("G")
async def payloads_in_hand_are_bounded(env: Env) -> None:
    """A handler that keeps payloads gets a window of them, and the rest as it releases; all arrive."""
    keeper, ends = Keeper(), Answers()
    async with connected(env, keeper, limits=Limits(window_bytes=4 * MIB)) as connection:
        for _ in range(16):
            connection.request_nowait(1, b"", [bytes(MIB)], timeout=8, on_done=ends.append)
        await until(lambda: keeper.count == 4, "the window is used up")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert keeper.count == len(ends) == 4
        while len(ends) < 16:
            before = keeper.count
            keeper.release()
            await until(lambda before=before: keeper.count > before, "more arrive")  # type: ignore[misc]
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(keeper.kept) <= 4
        keeper.release()


@case("G")
async def without_credit_only_payloads_wait(env: Env) -> None:
    """The other side's requests and cancelling pass; a request that waits for credit can time out, undelivered."""
    keeper, desk, ends = Keeper(), Desk(), Answers()
    accepted: list[Connection] = []
    limits = Limits(window_bytes=MIB)
    async with served(env, keeper, limits=limits, on_connect=accepted.append) as (nursery, url):
        connection = await dial(env, url, nursery, handler=desk)
        for _ in range(2):
            connection.request_nowait(1, b"", [bytes(MIB)], timeout=0.5, on_done=ends.append)
        await until(lambda: len(ends) == 1, "the first is answered")
        accepted[0].request_nowait(2, timeout=5 * PATIENCE, on_done=ends.append)
        await until(lambda: len(desk.requests) == 1, "the other side's request arrives")
        desk.requests[0].reply()
        await until(lambda: len(ends) == 3, "the second ends")
        assert isinstance(ends[2], DeadlineExceeded) and ends[2].delivery == "never", ends
        assert keeper.count == 1
        keeper.release()
        (await connection.request(1, b"", [bytes(MIB)], timeout=5 * PATIENCE)).release()
        keeper.release()


@case("G")
async def credit_comes_back(env: Env) -> None:
    """After cancelling, after errors, after a payload above the whole window: a hundred windows go through."""

    def handler(request: Request) -> None:
        with request.payload:
            if request.kind == 1:
                request.reply()
            elif request.kind == 2:
                request.fail(7, "for the test")

    async with connected(env, handler, limits=Limits(window_bytes=256 << 10)) as connection:
        for number in range(100):
            payload = bytes(MIB if number % 10 == 0 else 256 << 10)
            kind = 1 + number % 3
            with trio.move_on_after(0.005 if kind == 3 else 5):
                try:
                    (await connection.request(kind, b"", [payload], timeout=5 * PATIENCE)).release()
                except RemoteError:
                    assert kind == 2
        with trio.fail_after(5 * PATIENCE):
            (await connection.request(1, b"", [bytes(256 << 10)], timeout=5 * PATIENCE)).release()


@case("G")
async def taking_more_than_the_credit_ends_the_connection(env: Env) -> None:
    """ProtocolError: a peer that claims to know credit must keep to it."""
    keeper, accepted = Keeper(), list[Connection]()
    limits = Limits(window_bytes=MIB)
    async with served(env, keeper, limits=limits, on_connect=accepted.append) as (nursery, url):
        greedy = await _introduced(env, url)
        payload = bytes(MIB)
        with trio.fail_after(5 * PATIENCE):
            for number in range(2):
                head = encode_header(FrameType.REQUEST, 1 + 2 * number, payload_length=MIB)
                nursery.start_soon(_try_send, greedy, head, payload)
                await until(lambda: keeper.count == 1, "the first arrives")
            await accepted[0].closed.wait()
        assert isinstance(accepted[0].close_reason, ProtocolError), accepted[0].close_reason
        assert keeper.count == 1
        keeper.release()
        greedy.abort()


@case("G")
async def all_connections_share_a_budget(env: Env) -> None:
    """While it is used up, payloads wait in turn and the rest is served; a lost connection gives its room back."""
    keeper, budget = Keeper(), ReceiveBudget(2 * MIB)
    async with served(env, keeper, budget=budget) as (nursery, url):
        connections = [await dial(env, url, nursery) for _ in range(4)]
        ends = Answers()
        for connection in connections:
            for _ in range(2):
                connection.request_nowait(1, b"", [bytes(MIB)], timeout=8, on_done=ends.append)
        await until(lambda: keeper.count >= 2, "the budget is used up")
        await trio.testing.wait_all_tasks_blocked(0.05)
        # Links that carry messages have one in hand when they learn its size.
        assert 2 <= keeper.count <= 2 + len(connections) and budget.used == keeper.count * MIB
        (await (await dial(env, url, nursery)).request(1, b"small", timeout=5 * PATIENCE)).release()
        connections.pop().abort("for the test")
        while keeper.count < 6:
            before = keeper.count
            keeper.release()
            await until(lambda before=before: keeper.count > before, "more arrive")  # type: ignore[misc]
        with trio.fail_after(5 * PATIENCE):
            while budget.used or not all(connection._session.is_idle for connection in connections):
                keeper.release()
                await trio.sleep(0.005)


@case("G")
async def who_has_no_room_gives_signs_of_life(env: Env) -> None:
    """A peer that reads no further until there is room is not taken for dead; then all of it arrives."""
    keeper, budget, limits = Keeper(), ReceiveBudget(MIB), Limits(keepalive=0.1 * PATIENCE)
    async with served(env, keeper, budget=budget, limits=limits) as (nursery, url):
        ends = Answers()
        connections = [await dial(env, url, nursery, limits=limits) for _ in range(3)]
        for connection in connections:
            for _ in range(3):
                connection.request_nowait(1, b"", [bytes(MIB)], timeout=8 * PATIENCE, on_done=ends.append)
        await until(lambda: keeper.count >= 1, "the budget is used up")
        with trio.move_on_after(10 * limits.keepalive):
            await wait_any(connection.closed for connection in connections)
        assert not [each.close_reason for each in connections if each.closed.is_set()]
        with trio.fail_after(5 * PATIENCE):
            while len(ends) < 9:
                keeper.release()
                await trio.sleep(0.005)
        assert all(isinstance(end, Response) for end in ends), ends
        keeper.release()


@case("G")
async def two_that_do_not_answer_do_not_deadlock(env: Env) -> None:
    """Requests with large payloads both ways to handlers that never answer end at their deadlines."""
    ends = Answers()
    accepted: list[Connection] = []
    limits = Limits(window_bytes=MIB)

    def keep(request: Request) -> None:
        kept.append(request)

    kept: list[Request] = []
    async with served(env, keep, limits=limits, on_connect=accepted.append) as (nursery, url):
        mine = await dial(env, url, nursery, handler=keep, limits=limits)
        await until(lambda: bool(accepted), "on_connect is called")
        for connection in (mine, accepted[0]):
            for _ in range(16):
                connection.request_nowait(1, b"", [bytes(MIB)], timeout=0.3, on_done=ends.append)
        await until(lambda: len(ends) == 32, "all requests end", timeout=2)
        assert all(isinstance(end, DeadlineExceeded) for end in ends)
        for request in kept:
            request.payload.release()


@case("G")
async def a_slow_peer_does_not_slow_another(env: Env) -> None:
    """Beside a connection whose answers nobody reads, another keeps 80 % of the rate that it has alone."""

    def large(request: Request) -> None:
        request.reply(b"", [bytes(4 * MIB)] if request.kind == 2 else ())

    async with served(env, large) as (nursery, url):
        lively = await dial(env, url, nursery)
        for _ in range(ATTEMPTS):
            alone = await _time_of_requests(lively)
            stuck = await _introduced(env, url)
            for number in range(8):
                await stuck.send(
                    encode_header(FrameType.REQUEST, 1 + 2 * number, kind=2, max_response=4 * MIB), ()
                )
            await trio.testing.wait_all_tasks_blocked(0.02)
            beside = await _time_of_requests(lively)
            stuck.abort()
            if beside * 0.8 <= alone:
                return
    raise AssertionError(f"beside a slow peer requests take {beside:.3f} s instead of {alone:.3f} s")


@case("G", is_long=True)
async def signs_of_life_pass_a_full_data_lane(env: Env) -> None:
    """Beside a lane that carries all it can, 99 of 100 requests on another lane take less than 50 ms."""
    payload = bytes(MIB)

    def handler(request: Request) -> None:
        request.reply(b"", [payload] if request.kind == 2 else ())

    async with served(env, handler) as (nursery, url):
        data, control = await dial(env, url, nursery), await dial(env, url, nursery, lane="control")
        taken = 0

        def again(answer: Response | TransportError) -> None:
            nonlocal taken
            if isinstance(answer, Response):
                taken += 1
                answer.release()
                data.request_nowait(2, timeout=30, on_done=again)

        for _ in range(4):
            data.request_nowait(2, timeout=30, on_done=again)
        for _ in range(ATTEMPTS):
            times, before = [], taken
            for _ in range(100):
                start = trio.current_time()
                (await control.request(1, timeout=5 * PATIENCE)).release()
                times.append(trio.current_time() - start)
                await trio.lowlevel.checkpoint()
            assert taken > before, "the data lane stands still"
            if sorted(times)[98] < 0.05 * PATIENCE:
                return
    raise AssertionError(f"a sign of life takes {sorted(times)[98] * 1000:.0f} ms beside a full data lane")


async def wait_any(events: Iterable[trio.Event]) -> None:
    """Return when one of them is set."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)


async def _time_of_requests(connection: Connection) -> float:
    start = trio.current_time()
    for _ in range(200):
        (await connection.request(1, b"x" * 100, timeout=5 * PATIENCE)).release()
    return trio.current_time() - start


async def _introduced(env: Env, url: str) -> Link:
    """A link to a server, after the handshake, that nobody reads."""
    link = await env.transport.connect(env.transport.parse(URL.parse(url)))
    await introduce(link, make_hello(Identity(), "", Limits()), judge_acceptor, dialer=True)
    return link


async def _try_send(link: Link, head: bytes, payload: bytes) -> None:
    try:
        await link.send(head, [payload])
    except (LinkBroken, LinkClosed):
        return
