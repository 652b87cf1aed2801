"""Kit, groups A, B and E: addresses, framing, and how links end."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import trio
import trio.testing

from ..abc import Link, Part
from ..errors import AddressInUseError, ConnectError, EndOfLink, LinkBroken, LinkClosed
from ..patience import PATIENCE
from ..urls import URL
from ..verdicts import NotTestedError
from ._frame import (
    CASE_TIMEOUT,
    Env,
    FileSlice,
    Needs,
    case,
    file_of,
    listening,
    message,
    pair,
    prepare,
    receive,
)

SIZES = (0, 1, 7, 8, 47, 48, 49, 4095, 4096, 4097, 65535, 65536, 65537, (256 << 10) - 48, 256 << 10, 1 << 20)


@case("A")
async def addresses_round_trip(env: Env) -> None:
    """`str(parse(url))` is canonical: parsed again it is the same."""
    endpoint = env.transport.parse(URL.parse(env.listen_url()))
    assert env.transport.parse(URL.parse(str(endpoint))) == endpoint


@case("A")
async def malformed_addresses_are_refused(env: Env) -> None:
    """ValueError, naming the address; also for an option that nobody knows."""
    for text in (*env.malformed_urls(), env.listen_url() + "?no_such_option=1"):
        try:
            env.transport.parse(URL.parse(text))
        except ValueError as error:
            assert text.split("?")[0] in str(error) or text in str(error), error
        else:
            raise AssertionError(f"{text} was accepted")


@case("A")
async def a_contact_endpoint_can_be_dialled(env: Env) -> None:
    """The address that a listener advertises leads to it."""
    async with pair(env) as (dialer, acceptor):
        await dialer.send(message(b"hello"), ())
        frame, _ = await receive(acceptor)
        assert frame.body == b"hello"


@case("A")
async def a_second_listener_is_refused(env: Env) -> None:
    """AddressInUseError names the address."""
    async with listening(env) as listener:
        try:
            await env.transport.listen(listener.endpoints[0])
        except AddressInUseError as error:
            here = listener.endpoints[0]
            assert here.authority + here.path in str(error)
        else:
            raise AssertionError("two listeners share an address")


@case("A")
async def a_dead_address_refuses_soon(env: Env) -> None:
    """ConnectError, which may be tried again, within a second."""
    with trio.fail_after(1 * PATIENCE):
        try:
            await env.transport.connect(env.transport.parse(URL.parse(env.dead_url())))
        except ConnectError as error:
            assert error.retryable and error.delivery == "never"
        else:
            raise AssertionError("nobody listens, but a link was made")


@case("A")
async def a_cancelled_dial_leaves_nothing(env: Env) -> None:
    """No descriptor stays open."""
    async with listening(env) as listener:
        with trio.CancelScope() as scope:
            scope.cancel()
            await env.transport.connect(listener.endpoints[0])
        assert scope.cancelled_caught


@case("A")
async def a_cancelled_accept_can_be_repeated(env: Env) -> None:
    """The next accept gets the next link."""
    async with listening(env) as listener:
        with trio.move_on_after(0.01) as scope:
            await listener.accept()
        assert scope.cancelled_caught
        dialer = await env.transport.connect(listener.endpoints[0])
        (await listener.accept()).abort()
        dialer.abort()


@case("A")
async def closing_wakes_accept(env: Env) -> None:
    """A blocked accept ends with LinkClosed."""
    woken: list[bool] = []

    async def accept() -> None:
        try:
            await listener.accept()
        except LinkClosed:
            woken.append(True)

    async with listening(env) as listener, trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        await listener.aclose()
    assert woken


@case("A")
async def closing_a_listener_keeps_links(env: Env) -> None:
    """Accepted links live on; new ones are refused; the address is free again."""
    async with listening(env) as listener:
        dialer = await env.transport.connect(listener.endpoints[0])
        acceptor = await listener.accept()
        await prepare(dialer, acceptor)
        await listener.aclose()
        await dialer.send(message(b"still"), ())
        assert (await receive(acceptor))[0].body == b"still"
        try:
            await env.transport.connect(listener.endpoints[0])
        except ConnectError:
            pass
        else:
            raise AssertionError("a closed listener accepts")
        dialer.abort()
        acceptor.abort()
        await (await env.transport.listen(listener.endpoints[0])).aclose()


@case("B")
async def all_sizes_arrive(env: Env) -> None:
    """Bodies and payloads of every size around the buffers' edges arrive unchanged, in order."""
    async with pair(env) as (one, other), trio.open_nursery() as nursery:

        async def send() -> None:
            for size in SIZES:
                body, payload = _pattern(size), _pattern(size + 3)
                await one.send(message(body, [payload]), [payload])

        nursery.start_soon(send)
        for size in SIZES:
            frame, payload = await receive(other)
            assert frame.body == _pattern(size), size
            assert payload == _pattern(size + 3), size


@case("B")
async def all_kinds_of_buffers_are_sent(env: Env) -> None:
    """bytes, bytearray, memoryviews: sliced, read-only, of wider items."""
    parts: list[Part] = [
        b"ab",
        bytearray(b"cd"),
        memoryview(b"xefx")[1:3],
        memoryview(bytearray(b"ghijklmn")).cast("Q"),
    ]
    async with pair(env) as (one, other):
        await one.send(message(b"", parts), parts)
        assert (await receive(other))[1] == b"abcdefghijklmn"


@case("B")
async def sent_buffers_may_be_reused(env: Env) -> None:
    """When send returns, changing a buffer does not change what arrives."""
    buffer = bytearray(b"a" * 100_000)
    async with pair(env) as (one, other), trio.open_nursery() as nursery:

        async def send() -> None:
            await one.send(message(b"", [buffer]), [buffer])
            buffer[:] = b"b" * len(buffer)

        nursery.start_soon(send)
        assert (await receive(other))[1] == b"a" * 100_000


@case("B")
async def many_parts_make_one_payload(env: Env) -> None:
    """256 parts, some empty, of one frame; and 1,500 small ones."""
    async with pair(env) as (one, other), trio.open_nursery() as nursery:
        for count, step in ((256, 37), (1500, 3)):
            parts = [_pattern(index * step % 1001) for index in range(count)]
            nursery.start_soon(one.send, message(b"many", parts), parts)
            assert (await receive(other))[1] == b"".join(parts)


@case("B")
async def order_is_kept(env: Env) -> None:
    """5,000 frames arrive in the order in which they were sent."""
    async with pair(env) as (one, other), trio.open_nursery() as nursery:

        async def send() -> None:
            for number in range(0, 5000, 10):
                await one.send_many([(message(b"%d" % (number + i)), ()) for i in range(10)])

        nursery.start_soon(send)
        for number in range(5000):
            assert (await receive(other))[0].body == b"%d" % number


@case("B")
async def both_directions_at_once(env: Env) -> None:
    """Two ends that send 16 MiB each, and receive, do not stop each other."""
    payload = _pattern(1 << 20)
    async with pair(env) as ends, trio.open_nursery() as nursery:
        for link in ends:
            nursery.start_soon(_send_repeatedly, link, payload, 16)
            nursery.start_soon(_receive_repeatedly, link, payload, 16)


@case("B")
async def more_does_not_hold_back(env: Env) -> None:
    """A frame sent with more=True arrives, although none follows."""
    async with pair(env) as (one, other):
        await one.send(message(b"alone"), (), more=True)
        with trio.fail_after(1 * PATIENCE):
            assert (await receive(other))[0].body == b"alone"


@case("B")
async def a_second_user_is_refused(env: Env) -> None:
    """trio.BusyResourceError for a second task that receives, or sends."""
    async with pair(env) as (one, _), trio.open_nursery() as nursery:
        nursery.start_soon(_ignore_end, one)
        await trio.testing.wait_all_tasks_blocked()
        try:
            await one.recv()
        except trio.BusyResourceError:
            nursery.cancel_scope.cancel()
        else:
            raise AssertionError("two tasks receive on one link")
    payload = bytes(32 << 20)
    async with pair(env) as (one, _), trio.open_nursery() as nursery:
        nursery.start_soon(_send_repeatedly, one, payload, 4)
        await trio.testing.wait_all_tasks_blocked(0.01)
        try:
            await one.send(message(), ())
        except trio.BusyResourceError:
            nursery.cancel_scope.cancel()
        else:
            raise AssertionError("two tasks send on one link")


@case("B")
async def the_largest_payload_arrives(env: Env) -> None:
    """64 MiB in one frame, and a small one behind it."""
    payload = _pattern(64 << 20)
    async with pair(env) as (one, other), trio.open_nursery() as nursery:

        async def send() -> None:
            await one.send(message(b"large", [payload]), [payload])
            await one.send(message(b"small"), ())

        nursery.start_soon(send)
        assert (await receive(other))[1] == payload
        assert (await receive(other))[0].body == b"small"


@case("B")
async def a_cancelled_receive_loses_nothing(env: Env) -> None:
    """Cancelled while a large frame comes in, the next receive gets it whole."""
    payload = _pattern(3 << 20)
    for moments in range(16):
        came: list[bytes] = []
        async with pair(env) as (one, other):
            with trio.move_on_after(CASE_TIMEOUT / 2):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.send, message(b"big", [payload]), [payload])
                    while not came:
                        await _receive_and_cancel(other, moments, came)
        assert came, "after cancelled receives the rest of the frame is waited for in vain"
        assert len(came[0]) == len(payload), (
            f"{len(came[0])} of {len(payload)} bytes came after cancelled receives"
        )
        assert came[0] == payload


async def _receive_and_cancel(link: Link, moments: int, came: list[bytes]) -> None:
    """Receive a frame; be cancelled so many moments after more of it has come in."""
    before = link.received

    async def take() -> None:
        came.append((await receive(link))[1])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        while link.received == before and not came:
            await trio.lowlevel.checkpoint()
        for _ in range(moments):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


@case("E")
async def a_clean_close_delivers_everything(env: Env) -> None:
    """Frames that were sent before aclose arrive; then EndOfLink."""
    async with pair(env) as (one, other):
        for number in range(100):
            await one.send(message(b"%d" % number), ())
        await one.aclose()
        for number in range(100):
            assert (await receive(other))[0].body == b"%d" % number
        assert await _end_of(other) is EndOfLink


@case("E", Needs.HALF_CLOSE)
async def half_a_close_leaves_the_other_half(env: Env) -> None:
    """After send_eof the peer sees the end, and can still send."""
    async with pair(env) as (one, other):
        await one.send_eof()
        assert await _end_of(other) is EndOfLink
        await other.send(message(b"yet"), ())
        assert (await receive(one))[0].body == b"yet"


@case("E")
async def closing_is_idempotent(env: Env) -> None:
    """aclose twice, after abort, and when cancelled; then LinkClosed for whoever uses the link."""
    async with pair(env) as (one, other):
        with trio.CancelScope() as scope:
            scope.cancel()
            await one.aclose()
        await one.aclose()
        one.abort()
        assert await _end_of(one) is LinkClosed
        try:
            await one.send(message(), ())
        except LinkClosed:
            pass
        else:
            raise AssertionError("a closed link sends")
        assert await _end_of(other) in (EndOfLink, LinkBroken)


@case("E")
async def abort_wakes_both_tasks(env: Env) -> None:
    """A blocked sender and a blocked receiver end with LinkClosed within 100 ms."""
    ends: list[type[Exception]] = []
    payload = bytes(64 << 20)
    async with pair(env) as (one, _), trio.open_nursery() as nursery:

        async def send() -> None:
            try:
                for _ in range(4):
                    await one.send(message(b"", [payload]), [payload])
            except LinkClosed:
                ends.append(LinkClosed)

        async def recv() -> None:
            ends.append(await _end_of(one))

        nursery.start_soon(send)
        nursery.start_soon(recv)
        await trio.testing.wait_all_tasks_blocked(0.01)
        one.abort()
        nursery.cancel_scope.deadline = trio.current_time() + 0.1
    assert ends == [LinkClosed, LinkClosed], ends


@case("E")
async def an_aborting_peer_invents_nothing(env: Env) -> None:
    """The other side gets a prefix of what was sent, then LinkBroken or EndOfLink; its sends fail."""
    async with pair(env) as (one, other):
        for number in range(10):
            await one.send(message(b"%d" % number), ())
        one.abort()
        arrived = []
        try:
            while True:
                arrived.append((await receive(other))[0].body)
        except (LinkBroken, EndOfLink):
            assert arrived == [b"%d" % number for number in range(len(arrived))]
        try:
            with trio.fail_after(2 * PATIENCE):
                while True:
                    await other.send(message(b"x"), ())
        except LinkBroken:
            return


@case("E")
async def an_end_inside_a_frame_is_no_clean_end(env: Env) -> None:
    """LinkBroken when a peer goes while a frame of it comes in: EndOfLink says that all had come."""
    payload = bytes(8 << 20)
    ends: list[type[Exception] | None] = []

    async def send(link: Link) -> None:
        with suppress(LinkBroken, LinkClosed):
            await link.send(message(b"cut", [payload]), [payload])

    async def recv(link: Link) -> None:
        try:
            await receive(link)
            ends.append(None)
        except (EndOfLink, LinkBroken) as error:
            ends.append(type(error))

    async with pair(env) as (one, other), trio.open_nursery() as nursery:
        before = other.received
        nursery.start_soon(send, one)
        nursery.start_soon(recv, other)
        while not ends and other.received == before:
            await trio.lowlevel.checkpoint()
        one.abort()
    assert ends != [EndOfLink], "the end of a link inside a frame was told as EndOfLink"


@case("E")
async def signals_interrupt_nothing(env: Env) -> None:
    """A thousand signals a second, handled in Python, while bytes and a range are sent: all arrives."""
    if threading.current_thread() is not threading.main_thread():
        raise NotTestedError("run the kit in the main thread, which handles signals")
    count = 0

    def handle(*_: object) -> None:
        nonlocal count
        count += 1

    payload = _pattern(2 << 20)
    previous = signal.signal(signal.SIGALRM, handle)
    try:
        with file_of(payload) as fd:
            parts: list[Part] = [payload, FileSlice(fd, 0, len(payload)), b"end"]
            async with pair(env) as (one, other), trio.open_nursery() as nursery:
                signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
                for _ in range(8):
                    nursery.start_soon(one.send, message(b"", parts), parts)
                    assert (await receive(other))[1] == payload + payload + b"end"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert count, "no signal came"


def _pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


async def _send_repeatedly(link: Link, payload: bytes, count: int) -> None:
    for _ in range(count):
        await link.send(message(b"", [payload]), [payload])


async def _receive_repeatedly(link: Link, payload: bytes, count: int) -> None:
    for _ in range(count):
        assert (await receive(link))[1] == payload


async def _ignore_end(link: Link) -> None:
    await _end_of(link)


async def _end_of(link: Link) -> type[Exception]:
    try:
        await receive(link)
    except (EndOfLink, LinkBroken, LinkClosed) as error:
        return type(error)
    raise AssertionError("a frame arrived instead of an end")
