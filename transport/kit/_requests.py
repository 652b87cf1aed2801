"""Kit, groups D and E: requests over connections, and what becomes of them."""

from __future__ import annotations

import trio
import trio.testing

from ..connections._handshake import introduce, judge_acceptor, make_hello
from ..connections.connection import Connection
from ..connections.request import Request
from ..errors import (
    ConnectionLost,
    DeadlineExceeded,
    FrameTooLargeError,
    LinkClosed,
    Overloaded,
    PeerGoingAway,
    RemoteError,
    TransportError,
)
from ..frames import Limits, Status
from ..patience import PATIENCE
from ..requests import Identity, Response
from ..urls import URL
from ._frame import Env, case, connected, dial, echo, served, until

Answers = list[Response | TransportError]


class Desk:
    """A handler that answers only when told to."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> None:
        request.payload.release()
        self.requests.append(request)


@case("D")
async def requests_one_by_one(env: Env) -> None:
    """500 requests in turn, each with its own answer."""
    async with connected(env, echo) as connection:
        for number in range(500):
            with await connection.request(
                1, b"%d" % number, [b"p%d" % number], timeout=5 * PATIENCE
            ) as response:
                assert (response.body, bytes(response.payload.view())) == (b"%d" % number, b"p%d" % number)


@case("D")
async def answers_may_overtake(env: Env) -> None:
    """1,000 requests at once start in order; answered in reverse, each gets its own answer."""
    desk, answers = Desk(), {}
    async with connected(env, desk) as connection, trio.open_nursery() as nursery:

        async def ask(number: int) -> None:
            with await connection.request(1, b"%d" % number, timeout=5 * PATIENCE) as response:
                answers[number] = response.body

        for number in range(1000):
            nursery.start_soon(ask, number)
        await until(lambda: len(desk.requests) == 1000, "all requests arrive")
        for request in reversed(desk.requests):
            request.reply(b"to " + request.body)
    assert answers == {number: b"to %d" % number for number in range(1000)}


@case("D")
async def requests_start_in_the_order_of_sending(env: Env) -> None:
    """Also those that wait because too many are under way."""
    desk = Desk()
    async with connected(env, desk, limits=Limits(max_in_flight=10)) as connection:
        done: list[bytes] = []
        for number in range(50):
            connection.request_nowait(
                1, b"%d" % number, timeout=5 * PATIENCE, on_done=lambda answer: done.append(_body(answer))
            )
        while len(done) < 50:
            await until(lambda: len(desk.requests) > len(done), "requests arrive")
            assert len(desk.requests) - len(done) <= 10
            desk.requests[len(done)].reply(desk.requests[len(done)].body)
            count = len(done)
            await until(lambda count=count: len(done) > count, "an answer arrives")  # type: ignore[misc]
        assert done == [b"%d" % number for number in range(50)]


@case("D")
async def many_connections(env: Env) -> None:
    """32 connections with 30 requests each; and 50 that come and go."""
    async with served(env, echo) as (nursery, url):

        async def client(count: int) -> None:
            connection = await dial(env, url, nursery)
            for number in range(count):
                with await connection.request(1, b"%d" % number, timeout=5 * PATIENCE) as response:
                    assert response.body == b"%d" % number
            await connection.aclose()

        for clients, count in ((32, 30), (50, 0)):
            async with trio.open_nursery() as group:
                for _ in range(clients):
                    group.start_soon(client, count)


@case("D")
async def a_cancelled_request_frees_everybody(env: Env) -> None:
    """The caller at once, the handler by its callback; a late answer goes nowhere; the next request is fine."""
    desk, told = Desk(), []
    async with connected(env, desk) as connection:
        for round_ in range(3):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_ask, connection, b"never")
                    await until(lambda: len(desk.requests) > 2 * round_, "the request arrives")  # noqa: B023
                    desk.requests[-1].on_cancel(lambda: told.append(True))
                    scope.cancel()
            await until(lambda: len(told) > round_, "the handler is told")  # noqa: B023
            assert desk.requests[-1].cancelled
            desk.requests[-1].reply(b"too late")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_ask, connection, b"next")
                await until(lambda: len(desk.requests) == 2 * round_ + 2, "the next arrives")  # noqa: B023
                desk.requests[-1].reply(b"next")


@case("D")
async def cancelling_before_and_after(env: Env) -> None:
    """A request cancelled before it is sent does not arrive; cancelled after its answer, nothing happens."""
    desk, answers = Desk(), Answers()
    async with connected(env, desk) as connection:
        with trio.CancelScope() as scope:
            scope.cancel()
            await connection.request(1, b"never", timeout=5 * PATIENCE)
        assert scope.cancelled_caught
        handle = connection.request_nowait(1, b"asked", timeout=5 * PATIENCE, on_done=answers.append)
        await until(lambda: len(desk.requests) == 1, "one request arrives")
        desk.requests[0].reply(b"yes")
        await until(lambda: bool(answers), "the answer arrives")
        handle.cancel()
        assert [request.body for request in desk.requests] == [b"asked"]
        assert len(answers) == 1 and not connection.closed.is_set()


@case("D")
async def cancelling_inside_a_large_payload(env: Env) -> None:
    """The frame that has begun is finished; the connection lives."""
    payload = bytes(32 << 20)
    async with connected(env, echo) as connection:
        with trio.move_on_after(0.005):
            await connection.request(1, b"", [payload], timeout=5 * PATIENCE)
        with await connection.request(1, b"alive", timeout=5 * PATIENCE) as response:
            assert response.body == b"alive"


@case("D")
async def deadlines_hold(env: Env) -> None:
    """The caller is free in time; the handler knows the deadline and is told; the late answer is dropped."""
    desk = Desk()
    async with connected(env, desk) as connection:
        start = trio.current_time()
        try:
            await connection.request(1, timeout=0.1)
        except DeadlineExceeded as error:
            assert error.delivery == "maybe"
        else:
            raise AssertionError("an answer came from nowhere")
        assert 0.09 < trio.current_time() - start < 0.5
        assert desk.requests[0].deadline - start < 0.3
        await until(lambda: desk.requests[0].cancelled, "the handler is told")
        desk.requests[0].reply(b"late")
        await _expect_alive(connection, desk)


@case("D")
async def a_request_that_waits_can_time_out(env: Env) -> None:
    """Then it was never delivered."""
    desk, ends = Desk(), Answers()
    async with connected(env, desk, limits=Limits(max_in_flight=1)) as connection:
        connection.request_nowait(1, timeout=5 * PATIENCE, on_done=ends.append)
        connection.request_nowait(1, timeout=0.05, on_done=ends.append)
        await until(lambda: bool(ends), "the second ends")
        assert isinstance(ends[0], DeadlineExceeded) and ends[0].delivery == "never"
        assert len(desk.requests) == 1


@case("D")
async def too_many_waiting_requests_are_refused(env: Env) -> None:
    """Overloaded, by on_done, and for the caller of request."""
    ends = Answers()
    async with served(env, Desk()) as (nursery, url):
        limits = Limits(max_in_flight=1, max_waiting=2)
        connection = await dial(env, url, nursery, limits=limits)
        for _ in range(4):
            connection.request_nowait(1, timeout=5 * PATIENCE, on_done=ends.append)
        assert [type(end) for end in ends] == [Overloaded]
        try:
            await connection.request(1, timeout=5 * PATIENCE)
        except Overloaded as error:
            assert error.retryable and error.delivery == "never"
        else:
            raise AssertionError("a request above all limits was taken")


@case("D")
async def errors_of_handlers_come_back(env: Env) -> None:
    """`fail` and an exception become RemoteError; the connection lives."""

    def handler(request: Request) -> None:
        if request.kind == 1:
            request.fail(17, "no such thing")
        elif request.kind == 2:
            raise LookupError("a bug")
        else:
            echo(request)

    async with connected(env, handler) as connection:
        for kind, code, text in ((1, 17, "no such thing"), (2, Status.INTERNAL, "a bug")):
            try:
                await connection.request(kind, timeout=5 * PATIENCE)
            except RemoteError as error:
                assert error.code == code and text in error.detail
            else:
                raise AssertionError("an error came as an answer")
        with await connection.request(3, b"alive", timeout=5 * PATIENCE) as response:
            assert response.body == b"alive"


@case("D")
async def an_answer_above_the_limit_is_an_error(env: Env) -> None:
    """Of what the requester allows; the connection lives. A request above the limits is not sent."""
    async with connected(
        env, echo, limits=Limits(max_body_bytes=5000, max_payload_bytes=100_000)
    ) as connection:
        try:
            await connection.request(1, b"", [bytes(50_000)], timeout=5 * PATIENCE, max_response=10_000)
        except RemoteError as error:
            assert error.code == Status.RESPONSE_TOO_LARGE
        else:
            raise AssertionError("an answer above the limit came")
        for body, payload in ((bytes(5001), b""), (b"", bytes(100_001))):
            try:
                await connection.request(1, body, [payload], timeout=5 * PATIENCE)
            except FrameTooLargeError as error:
                assert "100000" in str(error) and error.delivery == "never"
            else:
                raise AssertionError("a request above the limit was sent")
        with await connection.request(1, bytes(5000), [bytes(100_000)], timeout=5 * PATIENCE) as response:
            assert response.payload.nbytes == 100_000


@case("D")
async def both_sides_may_ask(env: Env) -> None:
    """The acceptor asks the dialer's handler on the same connection; without one it is told so."""
    accepted: list[Connection] = []
    async with served(env, echo, on_connect=accepted.append) as (nursery, url):
        await dial(env, url, nursery, handler=echo)
        await until(lambda: len(accepted) == 1, "on_connect is called")
        with await accepted[0].request(5, b"you", timeout=5 * PATIENCE) as response:
            assert response.body == b"you"
        await dial(env, url, nursery)
        await until(lambda: len(accepted) == 2, "on_connect is called")
        try:
            await accepted[1].request(5, timeout=5 * PATIENCE)
        except RemoteError as error:
            assert error.code == Status.NO_HANDLER
        else:
            raise AssertionError("nobody serves, but an answer came")


@case("D")
async def closing_lets_requests_finish(env: Env) -> None:
    """aclose waits for those under way; new ones are refused on both sides, as never delivered."""
    desk, answers = Desk(), Answers()
    accepted: list[Connection] = []
    async with connected(env, desk, on_connect=accepted.append) as connection, trio.open_nursery() as nursery:
        connection.request_nowait(1, timeout=5 * PATIENCE, on_done=answers.append)
        await until(lambda: len(desk.requests) == 1, "the request arrives")
        nursery.start_soon(connection.aclose, 5.0)
        await trio.testing.wait_all_tasks_blocked()
        assert not connection.closed.is_set()
        await _expect_error(connection, LinkClosed)
        await _expect_error(accepted[0], PeerGoingAway)
        desk.requests[0].reply(b"finished")
    assert [_body(answer) for answer in answers] == [b"finished"]
    assert isinstance(connection.close_reason, LinkClosed)


@case("D")
async def a_closing_server_tells_what_it_has_not_begun(env: Env) -> None:
    """PeerGoingAway: requests under way finish, the connection ends for its user as closed by the peer."""
    desk, answers = Desk(), Answers()
    accepted: list[Connection] = []
    async with connected(env, desk, on_connect=accepted.append) as connection, trio.open_nursery() as nursery:
        connection.request_nowait(1, timeout=5 * PATIENCE, on_done=answers.append)
        await until(lambda: len(desk.requests) == 1, "the request arrives")
        nursery.start_soon(accepted[0].aclose, 5.0)
        await trio.testing.wait_all_tasks_blocked()
        await _expect_error(connection, PeerGoingAway)
        desk.requests[0].reply(b"finished")
        await connection.closed.wait()
        assert [_body(answer) for answer in answers] == [b"finished"]
        assert isinstance(connection.close_reason, PeerGoingAway)


@case("E")
async def a_lost_connection_ends_requests(env: Env) -> None:
    """ConnectionLost, maybe delivered; the handler's requests are cancelled; on_disconnect is called once."""
    desk, ends = Desk(), Answers()
    accepted: list[Connection] = []
    left: list[Connection] = []
    hooks = {"on_connect": accepted.append, "on_disconnect": left.append}
    async with connected(env, desk, **hooks) as connection:
        connection.request_nowait(1, timeout=5 * PATIENCE, on_done=ends.append)
        await until(lambda: len(desk.requests) == 1, "the request arrives")
        accepted[0].abort("for the test")
        await until(lambda: bool(ends) and bool(left), "both sides know")
        assert isinstance(ends[0], ConnectionLost) and ends[0].delivery == "maybe"
        assert desk.requests[0].cancelled and left == accepted
        desk.requests[0].reply(b"to nobody")
        await _expect_error(connection, ConnectionLost)


@case("E")
async def a_silent_peer_is_given_up(env: Env) -> None:
    """A peer that shakes hands and says nothing any more is dropped after a few intervals of keepalive."""
    left: list[Connection] = []
    limits = Limits(keepalive=0.05)
    async with served(env, echo, limits=limits, on_disconnect=left.append) as (nursery, url):
        lively = await dial(env, url, nursery)
        link = await env.transport.connect(env.transport.parse(URL.parse(url)))
        await introduce(link, make_hello(Identity(), "", Limits()), judge_acceptor, dialer=True)
        await until(lambda: len(left) == 1, "the silent peer is dropped", timeout=2)
        assert isinstance(left[0].close_reason, ConnectionLost) and "sign of life" in str(
            left[0].close_reason
        )
        link.abort()
        assert not lively.closed.is_set()


def _body(answer: Response | TransportError) -> bytes:
    assert isinstance(answer, Response), answer
    answer.release()
    return answer.body


async def _ask(connection: Connection, body: bytes) -> None:
    (await connection.request(1, body, timeout=5 * PATIENCE)).release()


async def _expect_alive(connection: Connection, desk: Desk) -> None:
    count = len(desk.requests)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ask, connection, b"alive")
        await until(lambda: len(desk.requests) > count, "the next request arrives")
        desk.requests[-1].reply()


async def _expect_error(connection: Connection, kind: type[TransportError]) -> None:
    try:
        await connection.request(1, timeout=5 * PATIENCE)
    except kind as error:
        assert error.delivery == "never", error
    else:
        raise AssertionError(f"expected {kind.__name__}")
