"""The far ends of the transport's benchmark, each a process of its own: ours, raw sockets, and a bare trio echo.

`python -m tests.bench._peers.transport_peer ROLE` prints an address and ends with its standard input.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import sys
import tempfile
import threading
import time

import attrs
import trio

from insync.transport import Identity, Request, serve

FILE_BYTES = 64 << 20
BLOCK = 1 << 20
ECHO, RANGE, BYTES, CPU, SIZED, SIZED_RANGE = 1, 2, 3, 4, 5, 6
"""SIZED: so many bytes as the body says, at most BLOCK; or of the file."""
SIZE = struct.Struct("<I")
OURS = {"ours": "tcp://127.0.0.1:0", "ours-unix": "unix://@"}
ORDER = struct.Struct("<cQ")
"""To a raw peer: b"r" (file ranges) or b"b" (bytes), and how many bytes; it sends them, then its CPU seconds."""
SECONDS = struct.Struct("<d")


@attrs.frozen
class Slice:
    fd: int
    offset: int
    length: int

    def fileno(self) -> int:
        return self.fd


def open_file() -> int:
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        return os.dup(file.fileno())


class Ours:
    def __init__(self) -> None:
        self.fd = open_file()
        self.block = os.urandom(BLOCK)
        self.at = 0

    def handle(self, request: Request) -> None:
        request.payload.release()
        if request.kind == ECHO:
            request.reply(request.body)
        elif request.kind == RANGE:
            self.at = (self.at + BLOCK) % FILE_BYTES
            request.reply(b"", [Slice(self.fd, self.at, BLOCK)])
        elif request.kind == BYTES:
            request.reply(b"", [self.block])
        elif request.kind == SIZED_RANGE:
            (size,) = SIZE.unpack(request.body)
            self.at = (self.at + size) % FILE_BYTES // size * size
            request.reply(b"", [Slice(self.fd, self.at, size)])
        elif request.kind == SIZED:
            request.reply(b"", [memoryview(self.block)[: SIZE.unpack(request.body)[0]]])
        else:
            request.reply(SECONDS.pack(time.process_time()))

    async def run(self, url: str) -> None:
        async with trio.open_nursery() as nursery:
            start = functools.partial(serve, url, self.handle, identity=Identity("bench", 1))
            serving = await nursery.start(start)
            print(serving.endpoints[0], flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()


def raw() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_accept, args=(listener, open_file()), daemon=True).start()
    sys.stdin.read()


def _accept(listener: socket.socket, fd: int) -> None:
    block = os.urandom(BLOCK)
    while True:
        link, _ = listener.accept()
        with link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            how, total = ORDER.unpack(link.recv(ORDER.size, socket.MSG_WAITALL))
            start = time.thread_time()
            (_send_file if how == b"r" else _send_bytes)(link, fd, block, total)
            link.sendall(SECONDS.pack(time.thread_time() - start))


def _send_file(link: socket.socket, fd: int, block: bytes, total: int) -> None:
    sent = 0
    while sent < total:
        at = sent % FILE_BYTES
        sent += os.sendfile(link.fileno(), fd, at, min(BLOCK - at % BLOCK, total - sent))


def _send_bytes(link: socket.socket, fd: int, block: bytes, total: int) -> None:
    for _ in range(total // BLOCK):
        link.sendall(block)


async def echo() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        while data := await stream.receive_some(4096):
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        serve_echo = functools.partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve_echo)
        print(listener.socket.getsockname()[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    role = sys.argv[1]
    if role == "raw":
        raw()
    elif role == "echo":
        trio.run(echo)
    else:
        trio.run(Ours().run, OURS[role])
