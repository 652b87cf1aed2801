"""The socket under a TLS stream."""

from __future__ import annotations

import errno
import socket

import trio


class BelowTls(trio.abc.Stream):
    """trio.SocketStream, but sending to who has gone raises no SIGPIPE: that ends who does not ignore it.

    turns: it hands out what it receives when it is its turn. The work of a handshake takes up to milliseconds of
    the loop at once, with a large key six of them: of many dialers that come together one goes on in each step of
    the loop, and connections that are open run in between.
    """

    def __init__(self, sock: trio.socket.SocketType, turns: trio.Lock | None) -> None:
        self._socket, self._stream = sock, trio.SocketStream(sock)
        self.turns = turns

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        if not rest:
            await trio.lowlevel.checkpoint()
        while rest:
            try:
                rest = rest[await self._socket.send(rest, socket.MSG_NOSIGNAL) :]
            except OSError as error:
                if error.errno in (errno.EBADF, errno.ENOTSOCK):
                    raise trio.ClosedResourceError("this stream was closed") from error
                raise trio.BrokenResourceError(f"the connection broke: {error}") from error

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        if self.turns is not None:
            async with self.turns:
                pass  # the next stream goes on in the next step
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


__all__ = ["BelowTls"]
