"""Kit, group F: peers that are none, broken, or mean."""

from __future__ import annotations

import random
from contextlib import suppress

import trio

from ..abc import Link
from ..connections.connection import Connection
from ..errors import EndOfLink, FrameTooLargeError, LinkBroken, ProtocolError
from ..frames import HEADER_SIZE, Flag, FrameType, Limits, crc32c, encode_header
from ..patience import PATIENCE
from ..stream import ByteStream
from ._frame import Env, Needs, case, connected, dial, echo, pair, raw_dial, served

QUICK = Limits(handshake_timeout=1.0 * PATIENCE, max_half_open=16)
"""Good peers shake hands under it, too, beside all that."""


@case("F", Needs.STREAM)
async def garbage_is_hung_up_on(env: Env) -> None:
    """Random bytes, HTTP, TLS, a byte and silence: closed within the handshake's time; others are served."""
    garbage = [
        random.Random(3).randbytes(4096),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"\x89",
        b"\x89ISR\r\n\x1a\n" + b"\xff" * 40,
        b"",
    ]
    async with served(env, echo, limits=QUICK) as (nursery, url):
        streams = [await raw_dial(env, url) for _ in garbage]
        for stream, data in zip(streams, garbage, strict=True):
            if data:
                # On a busy machine its time may be over before it has said anything.
                with suppress(LinkBroken):
                    await stream.send([data])
        await _expect_service(env, url, nursery)
        for stream in streams:
            with trio.fail_after(5 * PATIENCE):
                await _until_hung_up(stream)
        await _expect_service(env, url, nursery)


@case("F", Needs.STREAM)
async def half_open_links_do_not_keep_others_out(env: Env) -> None:
    """More silent links than are kept: the oldest are hung up on, the next good peer gets in at once."""
    async with served(env, echo, limits=Limits(handshake_timeout=60, max_half_open=16)) as (nursery, url):
        silent = [await raw_dial(env, url) for _ in range(100)]
        with trio.fail_after(2 * PATIENCE):
            await _expect_service(env, url, nursery)
            for stream in silent[:80]:
                await _until_hung_up(stream)
        for stream in silent:
            stream.abort()


@case("F", is_long=True)
async def every_flipped_bit_of_a_header_is_found(env: Env) -> None:
    """ProtocolError, or FrameTooLargeError never: the CRC is checked before lengths are believed."""
    good = encode_header(FrameType.REQUEST, 1, kind=7, body=b"body")
    for bit in range(HEADER_SIZE * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        async with pair(env) as (one, other):
            await one.send(damaged, ())
            try:
                with trio.fail_after(1 * PATIENCE):
                    await other.recv_many()
            except ProtocolError:
                continue
            raise AssertionError(f"bit {bit} of a header was flipped, unnoticed")


@case("F", is_long=True)
async def every_damaged_byte_behind_a_header_is_found(env: Env) -> None:
    """ProtocolError: body and payload have CRCs, unless the payload is a file range."""
    body, payload = b"some body", b"and a payload"
    crc = crc32c(payload)
    good = encode_header(
        FrameType.REQUEST, 1, flags=Flag.PAYLOAD_CRC, body=body, payload_length=len(payload), payload_crc=crc
    )
    for at in range(len(body) + len(payload)):
        async with pair(env) as (one, other):
            damaged = bytearray(good + payload)
            damaged[HEADER_SIZE + at] ^= 1 << at % 8
            await one.send(damaged[: len(good)], [damaged[len(good) :]])
            try:
                with trio.fail_after(1 * PATIENCE):
                    await other.recv_many()
            except ProtocolError:
                continue
            raise AssertionError(f"byte {at} behind a header was changed, unnoticed")


@case("F")
async def lengths_above_the_limits_are_refused(env: Env) -> None:
    """FrameTooLargeError from the header alone: nothing is allocated, nothing awaited."""
    limits = Limits(max_body_bytes=100, max_payload_bytes=1000)
    heads = [
        (encode_header(FrameType.REQUEST, 1, body=bytes(101)), b""),
        (encode_header(FrameType.REQUEST, 1, payload_length=1001), bytes(1001)),
        (encode_header(FrameType.REQUEST, 1, payload_length=(1 << 64) - 1), b""),
    ]
    for head, payload in heads:
        async with pair(env, limits) as (one, other):
            await one.send(head, [payload] if payload else ())
            try:
                with trio.fail_after(1 * PATIENCE):
                    await other.recv_many()
            except FrameTooLargeError as error:
                assert "1000" in str(error)
            else:
                raise AssertionError("a frame above the limits was received")


@case("F", Needs.STREAM, is_long=True)
async def a_frame_cut_anywhere_breaks_the_link(env: Env) -> None:
    """LinkBroken when the stream ends inside a frame, EndOfLink only between two; no frame is invented."""
    frame = encode_header(FrameType.REQUEST, 1, body=b"some body", payload_length=150_000) + bytes(150_000)
    for cut in (*range(60), 1000, 65_536, len(frame) - 1):
        async with pair(env) as (one, other), trio.open_nursery() as nursery:
            nursery.start_soon(_send_and_close, one, frame, frame[:cut])
            assert len(await other.recv_many()) == 1
            try:
                await other.recv_many()
            except (EndOfLink, LinkBroken) as error:
                assert isinstance(error, LinkBroken if cut else EndOfLink), cut
            else:
                raise AssertionError(f"a frame cut at {cut} was received")


@case("F")
async def frames_out_of_turn_end_the_connection(env: Env) -> None:
    """An answer nobody asked for, a number used twice, an unknown type: ProtocolError; from 128 on: ignored."""
    for head, ends in (
        (encode_header(FrameType.REPLY, 999), True),
        (encode_header(FrameType.ERROR, 2), True),
        (encode_header(FrameType.REQUEST, 4), True),
        (encode_header(FrameType.REQUEST, 1), True),
        (encode_header(5, 0), True),
        (encode_header(77, 0), True),
        (encode_header(FrameType.CANCEL, 1), False),
        (encode_header(200, 0), False),
    ):
        accepted: list[Connection] = []
        async with connected(env, echo, on_connect=accepted.append) as connection:
            (await connection.request(1, timeout=5 * PATIENCE)).release()
            await _inject(connection, head)
            if ends:
                with trio.fail_after(2 * PATIENCE):
                    await accepted[0].closed.wait()
                assert isinstance(accepted[0].close_reason, ProtocolError), accepted[0].close_reason
            else:
                (await connection.request(1, timeout=5 * PATIENCE)).release()


async def _send_and_close(link: Link, *chunks: bytes) -> None:
    for chunk in chunks:
        if chunk:
            await link.send(chunk, ())
    await link.aclose()


async def _inject(connection: Connection, head: bytes) -> None:
    from ..connections._outgoing import Outgoing

    connection._session.outbox.append(Outgoing(head, (), 0))
    connection.queued()
    await trio.lowlevel.checkpoint()


async def _until_hung_up(stream: ByteStream) -> None:
    buffer = memoryview(bytearray(4096))
    try:
        while await stream.receive_into(buffer):
            pass
    except LinkBroken:
        pass
    stream.abort()


async def _expect_service(env: Env, url: str, nursery: trio.Nursery) -> None:
    connection = await dial(env, url, nursery)
    with await connection.request(1, b"served", timeout=5 * PATIENCE) as response:
        assert response.body == b"served"
    await connection.aclose()
