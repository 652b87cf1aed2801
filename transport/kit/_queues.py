"""Kit, groups B, E, F and G: frames that wait, are held, are cancelled, or are larger than anybody agreed to."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

import trio
import trio.testing

from ..abc import Link, Payload
from ..errors import EndOfLink, FrameTooLargeError, LinkBroken, LinkClosed, ProtocolError, TransportError
from ..frames import Limits
from ..patience import PATIENCE
from ._frame import Env, Needs, case, dial, echo, message, pair, receive, served
from ._hostile import QUICK

MIB = 1 << 20


@case("B")
async def order_is_kept_under_backlog(env: Env) -> None:
    """Frames that queue up because nobody reads arrive in the order in which they were sent."""
    sizes = [0, 100, 70_000, 3, 300_000, 48, 5_000]
    sent = 0
    async with pair(env) as (one, other), trio.open_nursery() as nursery:

        async def send() -> None:
            nonlocal sent
            for number in range(400):
                payload = bytes([number % 251]) * sizes[number % len(sizes)]
                await one.send(message(b"%d" % number, [payload]), [payload])
                sent += 1

        nursery.start_soon(send)
        before = -1
        while sent > before:
            before = sent
            await trio.testing.wait_all_tasks_blocked(0.02)
        for number in range(400):
            frame, payload = await receive(other)
            assert frame.body == b"%d" % number, (
                f"frame {frame.body.decode()} came where {number} was due, of {before} that had queued up"
            )
            assert payload == bytes([number % 251]) * sizes[number % len(sizes)], (
                f"frame {number} has another frame's payload"
            )


@case("B")
async def payloads_in_hand_stay_as_they_are(env: Env) -> None:
    """A payload is valid until it is released: 64 that are held are not changed by those that follow."""
    held: list[Payload] = []
    async with pair(env) as (one, other), trio.open_nursery() as nursery:

        async def send() -> None:
            for number in range(96):
                await one.send(message(b"", [_pattern(number)]), [_pattern(number)])

        nursery.start_soon(send)
        for _ in range(64):
            held.append((await other.recv())[1])
        _compare(held, 0)
        for payload in held[:32]:
            payload.release()
        for _ in range(32):
            held.append((await other.recv())[1])
        _compare(held, 32)
        for payload in held:
            payload.release()


@case("B")
async def a_ready_frame_survives_a_cancelled_receive(env: Env) -> None:
    """Cancelled at whatever moment while a frame is there already, `recv` gives it now or the next time."""
    async with pair(env) as (one, other):
        came: list[bytes] = []

        async def cancel(scope: trio.CancelScope, after: int) -> None:
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            scope.cancel()

        for number in range(200):
            await one.send(message(b"%d" % number), ())
            await trio.testing.wait_all_tasks_blocked()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_take, other, came)
                    nursery.start_soon(cancel, scope, number % 8)
        await one.aclose()
        with suppress(EndOfLink, LinkBroken), trio.fail_after(5 * PATIENCE):
            while True:
                await _take(other, came)
        expected = [b"%d" % number for number in range(200)]
        missing = [number for number in expected if number not in came]
        assert came == expected, f"{len(came)} of 200 frames came, without {missing[:5]}"


@case("B")
async def trimming_loses_nothing(env: Env) -> None:
    """`trim` may come at any moment, also while `recv` waits or has half a frame: what came arrives unchanged."""
    async with pair(env) as (one, other), trio.open_nursery() as nursery:

        async def send() -> None:
            for number in range(120):
                await one.send(message(b"%d" % number, [_pattern(number)]), [_pattern(number)])
                for _ in range(number % 5):
                    await trio.lowlevel.checkpoint()

        async def trim() -> None:
            while True:
                other.trim()
                await trio.lowlevel.checkpoint()

        nursery.start_soon(trim)
        nursery.start_soon(send)
        for number in range(120):
            frame, payload = await receive(other)
            assert frame.body == b"%d" % number, (
                f"frame {frame.body.decode()} came where {number} was due, after `trim`"
            )
            expected = _pattern(number)
            assert payload == expected, (
                f"of frame {number}, {len(expected)} bytes long, {len(payload)} bytes came after `trim`; of these "
                f"{sum(one != other for one, other in zip(payload, expected, strict=False))} are others"
            )
        nursery.cancel_scope.cancel()


@case("B")
async def a_cancelled_send_does_not_go_on(env: Env) -> None:
    """Once a cancelled `send` has returned the link does not look at its buffers: what arrives is as it was sent,
    or the link is broken."""
    for size in (100_000, 32 * MIB):
        buffer = bytearray(b"a" * size)
        arrived: list[tuple[bytes, bytes]] = []
        async with pair(env) as (one, other), trio.open_nursery() as nursery:
            if size < MIB:
                # Fill what lies between both ends, so that the next has to wait.
                with trio.move_on_after(0.1 * PATIENCE):
                    while True:
                        await one.send(message(b"fill", [bytes(MIB)]), [bytes(MIB)])
            with trio.move_on_after(0.02) as scope, suppress(LinkBroken, LinkClosed):
                # Of a stream the fill itself was cancelled inside a frame, and the link is broken.
                await one.send(message(b"cancelled", [buffer]), [buffer])
            buffer[:] = b"b" * size
            nursery.start_soon(_collect, other, arrived)
            # Now a send that goes on has all the time that it needs.
            await trio.testing.wait_all_tasks_blocked(0.05)
            await _send_last(one)
        for body, payload in arrived:
            if body == b"cancelled":
                changed = payload.count(b"b")
                assert len(payload) == size, f"{len(payload)} of {size} bytes of a cancelled frame came"
                assert not changed, (
                    f"{changed} bytes of a cancelled frame were read after `send` had returned"
                )
        bodies = [body for body, _ in arrived if body != b"fill"]
        assert bodies in ([], [b"cancelled"], [b"last"], [b"cancelled", b"last"]), f"these came: {bodies}"
        assert scope.cancelled_caught or bodies[:1] in ([], [b"cancelled"]), (
            f"a sent frame was lost: {bodies}"
        )


@case("F", Needs.WIRE)
async def a_frame_above_the_limits_is_not_taken_in(env: Env) -> None:
    """A peer that sends 64 MiB where a kilobyte was agreed on is refused before more than 4 MiB of it are there."""
    payload = bytes(64 * MIB)
    async with pair(env, Limits(max_body_bytes=1000, max_payload_bytes=1000)) as (one, other):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_try_to_send, one, message(b"", [payload]), payload)
            try:
                with trio.fail_after(5 * PATIENCE):
                    await other.recv_many()
            except (FrameTooLargeError, ProtocolError, LinkBroken):
                pass
            else:
                raise AssertionError("a frame of 64 MiB was received where a kilobyte was agreed on")
            taken = other.received
            other.abort()
        assert taken <= 4 * MIB, f"{taken} bytes had been taken in when the frame was refused"


@case("F", Needs.WIRE)
async def a_hello_without_end_is_not_taken_in(env: Env) -> None:
    """A peer that sends 64 MiB as its first words is refused before more than 4 MiB of them are there."""
    async with pair(env) as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(_try_to_send, one, bytes(64 * MIB), b"")
        try:
            with trio.fail_after(5 * PATIENCE):
                hello = await other.recv_hello()
        except (FrameTooLargeError, ProtocolError, LinkBroken):
            pass
        else:
            raise AssertionError(f"a HELLO of {len(hello)} bytes was received")
        taken = other.received
        other.abort()
        assert taken <= 4 * MIB, f"{taken} bytes had been taken in when the HELLO was refused"


@case("F", Needs.RAW)
async def strangers_at_the_door_keep_nobody_out(env: Env) -> None:
    """Bytes that are none of the transport's, and silence, on a raw connection: closed, and others are served."""
    garbage = [
        random.Random(3).randbytes(4096),
        b"hello\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"\x89",
        b"",
    ]
    async with served(env, echo, limits=QUICK) as (nursery, url):
        strangers = [await env.open_raw(url) for _ in garbage]
        for stranger, data in zip(strangers, garbage, strict=True):
            stranger.setblocking(False)
            with suppress(OSError):
                if data:
                    stranger.send(data)
        for _ in range(2):
            try:
                with trio.fail_after(5 * PATIENCE):
                    connection = await dial(env, url, nursery)
                    with await connection.request(1, b"served", timeout=5 * PATIENCE) as response:
                        assert response.body == b"served"
                    await connection.aclose()
            except (TransportError, trio.TooSlowError) as error:
                raise AssertionError(f"after strangers came nobody is served: {error!r}") from error
            for stranger, data in zip(strangers, garbage, strict=False):
                with stranger, trio.move_on_after(3 * QUICK.handshake_timeout) as scope:
                    await _until_hung_up(stranger)
                assert not scope.cancelled_caught, f"who sent {data[:20]!r} is not hung up on"
            strangers.clear()


@case("G", Needs.WIRE)
async def a_large_frame_gives_signs_of_life(env: Env) -> None:
    """`received` counts what has come of a frame that is not all there yet: a peer on a slow wire is not dead."""
    size = 64 * MIB
    payload = bytes(size)
    async with pair(env) as (one, other), trio.open_nursery() as nursery:
        seen: set[int] = set()

        async def watch() -> None:
            while True:
                seen.add(other.received)
                await trio.lowlevel.checkpoint()

        nursery.start_soon(one.send, message(b"", [payload]), [payload])
        nursery.start_soon(watch)
        before = other.received
        assert len((await receive(other))[1]) == size
        nursery.cancel_scope.cancel()
    between = [count for count in seen if before + size // 8 < count < before + size - size // 8]
    assert between, (
        f"`received` was only seen as {sorted(seen)[:3]} and {sorted(seen)[-3:]}, of {size} bytes, before the end"
    )


def _pattern(number: int) -> bytes:
    return bytes([number % 251]) * (1000 + 9000 * (number % 29))


def _compare(held: list[Payload], first: int) -> None:
    for number in range(first, len(held)):
        found = bytes(held[number].view())
        assert found == _pattern(number), (
            f"payload {number} of {len(held)} was changed while it was held: {found[:8]!r}, of {len(found)} bytes, "
            f"was {_pattern(number)[:8]!r}, of {len(_pattern(number))}"
        )


async def _take(link: Link, came: list[bytes]) -> None:
    frame, _ = await receive(link)
    came.append(frame.body)


async def _send_last(link: Link) -> None:
    with suppress(LinkBroken, LinkClosed):
        await link.send(message(b"last"), ())
    await link.aclose()


async def _collect(link: Link, arrived: list[tuple[bytes, bytes]]) -> None:
    with suppress(EndOfLink, LinkBroken):
        while True:
            frame, payload = await receive(link)
            arrived.append((frame.body, payload))


async def _until_hung_up(stranger: socket.socket) -> None:
    while True:
        await trio.lowlevel.wait_readable(stranger)
        try:
            if not stranger.recv(4096):
                return
        except OSError:
            return


async def _try_to_send(link: Link, head: bytes, payload: bytes) -> None:
    with suppress(LinkBroken, LinkClosed):
        await link.send(head, [payload] if payload else ())
