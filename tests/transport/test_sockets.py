"""Byte streams on sockets: what they leave to others."""

import socket

import pytest
import trio

from insync.transport import URL, Capabilities, LinkClosed
from insync.transport.sockets import QUANTUM, SocketStream


class Flooded(socket.socket):
    """There is always more to be read."""

    def recv_into(self, buffer):
        return len(buffer)


async def test_who_never_waits_lets_others_run():
    here, there = socket.socketpair()
    there.send(b"x")
    stream = SocketStream(Flooded(fileno=here.detach()), Capabilities(), URL("test", "a"), URL("test", "b"))
    turns = 0

    async def other():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    buffer = memoryview(bytearray(64 << 10))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        received = 0
        while received < 20 * QUANTUM:
            received += await stream.receive_into(buffer)
        assert 15 <= turns <= 40
        nursery.cancel_scope.cancel()
    stream.abort()
    there.close()


async def test_what_is_there_is_not_waited_for():
    """A frame's rest may have come while its beginning was looked at."""
    here, there = socket.socketpair()
    here.setblocking(False)
    stream = SocketStream(here, Capabilities(), URL("test", "a"), URL("test", "b"))
    there.send(b"0123456789")
    buffer = memoryview(bytearray(5))
    with trio.fail_after(5):
        assert await stream.receive_into(buffer) == 5
        # More than there is: of use or not, it is given.
        assert await stream.receive_into(buffer, 1 << 20) == 5
    assert bytes(buffer) == b"56789"
    await stream.aclose()
    there.close()


async def test_a_stream_that_is_closed_says_so_to_whoever_asks_for_bytes():
    """However many were closed before in this event loop: a socket without its descriptor is not waited for."""
    buffer = memoryview(bytearray(5))
    for _ in range(2):
        here, there = socket.socketpair()
        here.setblocking(False)
        stream = SocketStream(here, Capabilities(), URL("test", "a"), URL("test", "b"))
        assert stream.receive_now(buffer) == -1 and stream.is_drained
        stream.abort()
        there.close()
        with pytest.raises(LinkClosed):
            if stream.is_drained:
                await stream.until_readable(1)
            else:
                stream.receive_now(buffer)


def test_a_stream_that_receives_in_a_way_of_its_own_is_asked_for_it():
    class Own(SocketStream):
        async def receive_into(self, buffer, at_least=1):
            return await super().receive_into(buffer, at_least)

    class OwnAndQuick(Own):
        receives_now = True

        async def receive_into(self, buffer, at_least=1):
            return await super().receive_into(buffer, at_least)

    assert (SocketStream.receives_now, Own.receives_now, OwnAndQuick.receives_now) == (True, False, True)


def test_a_stream_with_bytes_of_its_own_is_asked_for_them_before_its_socket_is():
    """An empty socket says nothing of what a subclass holds."""

    class Holds(SocketStream):
        def receive_now(self, buffer):
            return super().receive_now(buffer)

    class HoldsAndSays(Holds):
        @property
        def is_drained(self):
            return True

    here, there = socket.socketpair()
    with here, there:
        ends = URL("test", "a"), URL("test", "b")
        kinds = (SocketStream, Holds, HoldsAndSays)
        drained = [kind(here, Capabilities(), *ends).is_drained for kind in kinds]
    assert drained == [True, False, True]
