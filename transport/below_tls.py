"""Parts that TLS streams have in common: the socket below them, and certificates that are renewed."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence

import trio

from .repeats import limited

log = limited(logging.getLogger("insync.transport"))


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


class RenewedContext:
    """A TLS context of files as they are now: certificates that were renewed serve the next connection."""

    def __init__(self, files: Sequence[str], make: Callable[[], ssl.SSLContext]) -> None:
        """make: gives the context of these files; OSError (ssl.SSLError is one) if they cannot be used."""
        self._files, self._make = files, make
        self._made: tuple[object, ssl.SSLContext] | None = None

    def get(self) -> ssl.SSLContext:
        """The context for new connections. While renewed files are unusable (half written, say), the former stays.

        Raises:
          OSError: The files cannot be used, and never could.
        """
        try:
            state = [_state(path) for path in self._files]
            if self._made is None or self._made[0] != state:
                self._made = state, self._make()
        except OSError as error:
            if self._made is None:
                raise
            log.warning(
                "the certificates cannot be used (%s): %s; new connections have the previous ones",
                ", ".join(self._files),
                reason_of(error),
            )
        return self._made[1]


def reason_of(error: OSError) -> str:
    """The cause, and the file if that is known; of a file that is no PEM OpenSSL names none."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _state(path: str) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


__all__ = ["BelowTls", "RenewedContext", "reason_of"]
