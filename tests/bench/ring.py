"""Would a shared-memory ring be worth its while? A bare one beside a bare unix socket, both driven by trio.

What is measured has neither frames nor requests: it is the most that a ring under them could gain.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import trio

from ._peers.ring import BLOCK, CAPACITY, HEADER, Stream, build, open_stream, order, read_exactly
from .report import Result, against, interleaved

BATCH = 64
"""Small messages that are written at once."""


@contextmanager
def far_end(kind: str, folder: str) -> Iterator[Stream]:
    """A stream to a process of its own."""
    if kind == "unix":
        here, there = socket.socketpair()
        ours, theirs = [here.detach()], [there.detach()]
    else:
        memory = os.memfd_create("ring")
        os.posix_fallocate(memory, 0, 2 * (HEADER + CAPACITY))
        ours = theirs = [memory, *(os.eventfd(0, os.EFD_NONBLOCK) for _ in range(4))]
    command = [sys.executable, "-m", "tests.bench._peers.ring", kind, folder, *map(str, theirs)]
    process = subprocess.Popen(command, pass_fds=theirs)
    try:
        stream = open_stream(kind, folder, ours, first=True)
        round_trip(stream, 1)  # it has started, and nothing is measured that is done once
        yield stream
        trio.run(stream.write, order("q", 0, 0))
        process.wait(5)
    finally:
        process.kill()
        process.wait()


def round_trip(stream: Stream, count: int) -> float:
    """Seconds for a message of 64 bytes there and back."""

    async def run() -> float:
        await stream.write(order("e", count, 64))
        message, answer = memoryview(bytes(64)), memoryview(bytearray(64))
        start = time.perf_counter()
        for _ in range(count):
            await stream.write(message)
            await read_exactly(stream, answer)
        return (time.perf_counter() - start) / count

    return trio.run(run)


def flow(stream: Stream, size: int, count: int) -> float:
    """Bytes a second of `count` writes of `size` bytes, until the other end has read them."""

    async def run() -> float:
        await stream.write(order("s", count, size))
        data, done = memoryview(bytes(size)), memoryview(bytearray(1))
        start = time.perf_counter()
        for _ in range(count):
            await stream.write(data)
        await read_exactly(stream, done)
        return size * count / (time.perf_counter() - start)

    return trio.run(run)


def run(*, smoke: bool) -> Sequence[Result]:
    trips, rounds, total = (200, 1, 16 << 20) if smoke else (10_000, 5, 1 << 30)
    measures: list[Callable[[Stream], float]] = [
        partial(round_trip, count=trips),
        partial(flow, size=64 * BATCH, count=10 * trips),
        partial(flow, size=64 << 10, count=total // (64 << 10)),
        partial(flow, size=BLOCK, count=total // BLOCK),
    ]
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        with far_end("ring", folder) as ring, far_end("unix", folder) as unix:
            found = [
                interleaved(rounds, partial(measure, ring), partial(measure, unix)) for measure in measures
            ]
    trip, small, medium, large = found
    return [
        against("round trip of 64 B, beside a socket", trip[0] * 1e6, "us", trip[1] * 1e6),
        against(f"64 B, {BATCH} at once", small[0] / 64, "1/s", small[1] / 64),
        against("64 KiB at once", medium[0] / 1e6, "MB/s", medium[1] / 1e6),
        against("1 MiB at once", large[0] / 1e6, "MB/s", large[1] / 1e6),
    ]
