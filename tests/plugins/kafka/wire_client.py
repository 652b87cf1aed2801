"""A client by the tables, request by request, for tests that must send what no client library would."""

from __future__ import annotations

import struct
from typing import Any

import trio

from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import Struct, decode, encode, message_of
from insync.plugins.kafka.protocol.apis import Api

PATIENCE = 60.0
"""Seconds for an answer on a machine that has much else to do."""


class WireClient:
    """One connection; answers are read in order."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._sent = 0
        self._buffer = b""

    @classmethod
    async def connect(cls, url: str) -> WireClient:
        host, _, port = url.removeprefix("kafka://").partition("?")[0].rpartition(":")
        return cls(await trio.open_tcp_stream(host, int(port)))

    def framed(self, api: Api, version: int, request: Struct) -> bytes:
        """The bytes of the next request."""
        self._sent += 1
        head = struct.pack(">hhih", api, version, self._sent, 4) + b"test"
        if OFFERED.is_flexible(api, version):
            head += b"\0"
        (body,) = encode(request, version)
        return struct.pack(">i", len(head) + len(body)) + head + body

    async def send(self, api: Api, version: int, request: Struct) -> None:
        await self.stream.send_all(self.framed(api, version, request))

    async def receive(self, api: Api, version: int) -> Any:
        """The next answer; its records are left where they lie in `frame`."""
        frame = await self.frame()
        has_tags = api != Api.API_VERSIONS and OFFERED.is_flexible(api, version)
        kind = message_of(api, is_request=False)
        assert kind is not None
        # An answer may have more elements than any request.
        answer, end = decode(kind, version, frame, 5 if has_tags else 4, elements=len(frame))
        assert end == len(frame)
        return answer

    async def frame(self) -> bytes:
        """The next answer as it came, without its size."""
        (size,) = struct.unpack(">i", await self._take(4))
        return await self._take(size)

    async def ask(self, api: Api, version: int, request: Struct) -> Any:
        await self.send(api, version, request)
        return await self.receive(api, version)

    async def has_ended(self) -> bool:
        """Whether the node hangs up, with nothing more to say."""
        with trio.fail_after(PATIENCE):
            try:
                return await self.stream.receive_some(1) == b""
            except trio.BrokenResourceError:
                return True

    async def _take(self, count: int) -> bytes:
        with trio.fail_after(PATIENCE):
            while len(self._buffer) < count:
                piece = await self.stream.receive_some(1 << 16)
                if not piece:
                    raise EOFError
                self._buffer += piece
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken
