"""Streams for the ring's benchmark: a shared-memory ring and a unix socket, bare, both driven by trio.

`python -m tests.bench._peers.ring ring|unix MODULE_FOLDER DESCRIPTOR...` is the far end.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any, Protocol

import attrs
import cffi
import trio

CAPACITY = 4 << 20
HEADER = 4096
BLOCK = 1 << 20
SEND_BUFFER = 1 << 20
"""As unix:// has it."""
HERE = Path(__file__).parent


class Stream(Protocol):
    async def write(self, data: memoryview) -> None: ...
    async def read(self, buffer: memoryview) -> int: ...


def build(folder: str) -> None:
    """Compile the ring into `folder`; raises cffi's errors without a compiler."""
    ffi = cffi.FFI()
    ffi.cdef(re.sub(r"^#.*$", "", (HERE / "_ring.h").read_text(), flags=re.MULTILINE))
    ffi.set_source(
        "_insync_bench_ring",
        '#include "_ring.h"',
        sources=[str(HERE / "_ring.c")],
        include_dirs=[str(HERE)],
        extra_compile_args=["-O2", "-std=gnu11"],
    )
    ffi.compile(tmpdir=folder)


def load(folder: str) -> Any:
    (path,) = Path(folder).glob("_insync_bench_ring*.so")
    spec = importlib.util.spec_from_file_location("_insync_bench_ring", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class RingStream:
    """Two rings, one each way; an eventfd for each of the four reasons to wake somebody."""

    def __init__(self, native: Any, memory: int, events: list[int], *, first: bool) -> None:
        self._ffi, self._lib = native.ffi, native.lib
        self._map = mmap.mmap(memory, 2 * (HEADER + CAPACITY))
        base = self._ffi.from_buffer(self._map)
        rings = [base, base + HEADER + CAPACITY]
        self._out, self._in = rings if first else reversed(rings)
        ours, theirs = (events[:2], events[2:]) if first else (events[2:], events[:2])
        # Both of a pair are for the ring that its owner writes: there is something to read, there is room again.
        self._readable_there, self._writable_here = ours
        self._readable_here, self._writable_there = theirs

    async def write(self, data: memoryview) -> None:
        done = 0
        source = self._ffi.from_buffer(data)
        while done < len(data):
            count = self._lib.ring_write(
                self._out, CAPACITY, source + done, len(data) - done, self._readable_there
            )
            done += count
            if count == 0 and self._lib.ring_writer_may_sleep(self._out, CAPACITY):
                await self._wait(self._writable_here)
        await trio.lowlevel.checkpoint()

    async def read(self, buffer: memoryview) -> int:
        target = self._ffi.from_buffer(buffer)
        while True:
            count = self._lib.ring_read(self._in, CAPACITY, target, len(buffer), self._writable_there)
            if count:
                return int(count)
            if self._lib.ring_reader_may_sleep(self._in):
                await self._wait(self._readable_here)

    async def _wait(self, event: int) -> None:
        while True:
            await trio.lowlevel.wait_readable(event)
            try:
                os.eventfd_read(event)
                return
            except BlockingIOError:
                continue


@attrs.frozen
class UnixStream:
    """A socket, as the transport uses one: tried first, waited for when it would block."""

    sock: socket.socket

    async def write(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            try:
                done += self.sock.send(data[done:])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sock)
        await trio.lowlevel.checkpoint()

    async def read(self, buffer: memoryview) -> int:
        while True:
            try:
                return self.sock.recv_into(buffer)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.sock)


async def read_exactly(stream: Stream, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        count = await stream.read(buffer[done:])
        if count == 0:
            raise EOFError
        done += count


async def serve(stream: Stream) -> None:
    """Orders of 16 bytes: b"e" count, size (echo so many messages), or b"s" (take them, then answer one byte)."""
    order = memoryview(bytearray(16))
    buffer = memoryview(bytearray(BLOCK))
    while True:
        await read_exactly(stream, order)
        how, count, size = order[0], int.from_bytes(order[1:8], "little"), int.from_bytes(order[8:], "little")
        if how == ord("q"):
            return
        if how == ord("e"):
            for _ in range(count):
                await read_exactly(stream, buffer[:size])
                await stream.write(buffer[:size])
        else:
            left = count * size
            while left:
                left -= await stream.read(buffer[: min(left, BLOCK)])
            await stream.write(buffer[:1])


def order(how: str, count: int, size: int) -> memoryview:
    return memoryview(how.encode() + count.to_bytes(7, "little") + size.to_bytes(8, "little"))


def open_stream(kind: str, folder: str, descriptors: list[int], *, first: bool) -> Stream:
    if kind == "unix":
        sock = socket.socket(fileno=descriptors[0])
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return UnixStream(sock)
    return RingStream(load(folder), descriptors[0], descriptors[1:], first=first)


if __name__ == "__main__":
    trio.run(serve, open_stream(sys.argv[1], sys.argv[2], list(map(int, sys.argv[3:])), first=False))
