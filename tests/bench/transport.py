"""The transport beside raw sockets, a bare trio echo, pyzmq and gRPC; each end is its own process.

Ours is tcp://, but unix:// beside ipc, which is the same.
"""

from __future__ import annotations

import math
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import attrs
import trio

from insync.transport import Connection, Identity, Response, TransportError, connect

from ._peers.far_end import far_process
from ._peers.other_peer import FILE, SEND
from ._peers.others import OTHERS, Cost, Other
from ._peers.transport_peer import BLOCK, BYTES, CPU, ECHO, ORDER, RANGE, SECONDS, SIZE, SIZED, SIZED_RANGE
from .report import Result, against, at_least, at_most, interleaved

GIB = 1 << 30
WINDOW = 4
"""Blocks asked for ahead of those that have arrived."""
SMALL_WINDOW = 64
BLOCK_SIZES = (64 << 10, 256 << 10, 1 << 20)
HEARTBEAT_PAUSE = 0.005


@attrs.frozen
class Load:
    """Bytes per second, and the sender's CPU seconds per GiB."""

    rate: float
    cpu: float


def peer(role: str) -> AbstractContextManager[str]:
    """A far end; gives its address."""
    return far_process("_peers.transport_peer", role)


def raw_load(port: str, how: bytes, total: int) -> Load:
    """As fast as blocking sockets go: one loop of sendfile or sendall, one of recv_into."""
    buffer = memoryview(bytearray(BLOCK))
    with socket.create_connection(("127.0.0.1", int(port))) as link:
        link.sendall(ORDER.pack(how, total))
        start = time.perf_counter()
        left = total
        while left:
            left -= link.recv_into(buffer, min(left, BLOCK))
        elapsed = time.perf_counter() - start
        (cpu,) = SECONDS.unpack(link.recv(SECONDS.size, socket.MSG_WAITALL))
    return Load(total / elapsed, cpu / total * GIB)


async def our_load(url: str, kind: int, total: int) -> Load:
    """Blocks as payloads of answers, a few asked for ahead."""
    async with trio.open_nursery() as nursery:
        connection = await connect(url, identity=Identity(), nursery=nursery)
        before = await _cpu(connection)
        start = time.perf_counter()
        await _pipeline(connection, kind, b"", total // BLOCK, WINDOW)
        elapsed = time.perf_counter() - start
        cpu = await _cpu(connection) - before
        await connection.aclose()
    return Load(total / elapsed, cpu / total * GIB)


async def _cpu(connection: Connection) -> float:
    with await connection.request(CPU, timeout=30) as response:
        return float(SECONDS.unpack(response.body)[0])


async def _pipeline(connection: Connection, kind: int, body: bytes, count: float, window: int) -> None:
    """So many requests, `window` of them under way at a time, without a task for each."""
    asked = done = 0
    finished = trio.Event()
    failures: list[TransportError] = []

    def ask() -> None:
        nonlocal asked
        asked += 1
        connection.request_nowait(kind, body, timeout=60, on_done=take)

    def take(answer: Response | TransportError) -> None:
        nonlocal done
        if isinstance(answer, TransportError):
            failures.append(answer)
            finished.set()
            return
        answer.release()
        done += 1
        if asked < count:
            ask()
        if done == count:
            finished.set()

    for _ in range(window):
        ask()
    await finished.wait()
    if failures:
        raise failures[0]


async def our_round_trip(url: str, count: int) -> float:
    async with trio.open_nursery() as nursery:
        connection = await connect(url, identity=Identity(), nursery=nursery)
        start = time.perf_counter()
        for _ in range(count):
            (await connection.request(ECHO, b"x" * 64, timeout=30)).release()
        elapsed = time.perf_counter() - start
        await connection.aclose()
    return elapsed / count


async def bare_round_trip(port: str, count: int) -> float:
    async with await trio.open_tcp_stream("127.0.0.1", int(port)) as stream:
        start = time.perf_counter()
        for _ in range(count):
            await stream.send_all(b"x" * 64)
            await stream.receive_some(4096)
        return (time.perf_counter() - start) / count


async def small_requests(url: str, count: int) -> float:
    async with trio.open_nursery() as nursery:
        connection = await connect(url, identity=Identity(), nursery=nursery)
        start = time.perf_counter()
        await _pipeline(connection, ECHO, b"x" * 64, count, SMALL_WINDOW)
        elapsed = time.perf_counter() - start
        await connection.aclose()
    return count / elapsed


async def heartbeats(url: str, count: int) -> list[float]:
    """Round trips on the control lane, in order of length, while the data lane carries all that it can."""
    taken: list[float] = []
    async with trio.open_nursery() as nursery:
        data = await connect(url, identity=Identity(), nursery=nursery, lane="data")
        control = await connect(url, identity=Identity(), nursery=nursery, lane="control")
        nursery.start_soon(_pipeline, data, RANGE, b"", math.inf, WINDOW)
        for _ in range(count):
            start = time.perf_counter()
            (await control.request(ECHO, b"alive", timeout=30)).release()
            taken.append(time.perf_counter() - start)
            await trio.sleep(HEARTBEAT_PAUSE)
        nursery.cancel_scope.cancel()
    return sorted(taken)


async def our_blocks(url: str, kind: int, size: int, total: int) -> Cost:
    """Payloads of one size, about as many bytes asked for ahead as the others have under way."""
    async with trio.open_nursery() as nursery:
        connection = await connect(url, identity=Identity(), nursery=nursery)
        before, cpu = await _cpu(connection), time.process_time()
        start = time.perf_counter()
        window = max(WINDOW, WINDOW * BLOCK // size // 4)
        await _pipeline(connection, kind, SIZE.pack(size), total // size, window)
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
        cpu += await _cpu(connection) - before
        await connection.aclose()
    return Cost(total / elapsed, cpu / total * GIB)


def beside_others(tcp: str, unix: str, total: int, requests: int, rounds: int) -> Iterator[Result]:
    """What pyzmq and gRPC do with the same bytes and requests, in turn with us; each beside its like."""
    for other in OTHERS:
        if not other.is_there:
            print(f"not run: {other.name}: pip install {other.package}", file=sys.stderr)
            continue
        url = unix if other.role == "zmq-ipc" else tcp
        with far_process("_peers.other_peer", other.role) as address:
            for what, kind, how in (("ranges", SIZED_RANGE, FILE), ("bytes", SIZED, SEND)):
                for size in BLOCK_SIZES:
                    yield from _blocks_beside(url, kind, other, address, how, size, total, rounds, what)
            small, beside = interleaved(
                rounds,
                lambda url=url: trio.run(small_requests, url, requests),  # type: ignore[misc]
                lambda address=address, other=other: other.small(address, requests, SMALL_WINDOW),  # type: ignore[misc]
            )
            # What moves small messages without an answer's promises is allowed to be faster.
            bar = 1.0 if other.module == "grpc" else None
            yield against(f"small requests, beside {other.name}", small, "1/s", beside, bar)


def _blocks_beside(
    url: str, kind: int, other: Other, address: str, how: bytes, size: int, total: int, rounds: int, what: str
) -> Iterator[Result]:
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(trio.run(our_blocks, url, kind, size, total))
        theirs.append(other.blocks(address, how, size, total))
    rate, beside = (statistics.median(one.rate for one in each) / 1e6 for each in (ours, theirs))
    yield against(f"{what} of {size >> 10} KiB, beside {other.name}", rate, "MB/s", beside, 1.0)
    cpu, beside = (statistics.median(one.cpu for one in each) for each in (ours, theirs))
    yield _no_more("the CPU of both ends", cpu, "s/GiB", beside, 1.0)


def _median(rounds: int, *measures: Callable[[], Load]) -> list[Load]:
    """The median of each, taken in turn so that all see the same machine."""
    samples: list[list[Load]] = [[] for _ in measures]
    for _ in range(rounds):
        for measure, into in zip(measures, samples, strict=True):
            into.append(measure())
    return [
        Load(statistics.median(one.rate for one in loads), statistics.median(one.cpu for one in loads))
        for loads in samples
    ]


def run(*, smoke: bool) -> Sequence[Result]:
    total, requests, rounds = (64 << 20, 500, 1) if smoke else (1 << 30, 10_000, 5)
    with peer("ours") as url, peer("ours-unix") as unix, peer("raw") as port, peer("echo") as echo_port:
        ranges, sendfile, payloads, sendall = _median(
            rounds,
            lambda: trio.run(our_load, url, RANGE, total),
            lambda: raw_load(port, b"r", total),
            lambda: trio.run(our_load, url, BYTES, total),
            lambda: raw_load(port, b"b", total),
        )
        ours, bare = [], []
        for _ in range(rounds):
            ours.append(trio.run(our_round_trip, url, requests))
            bare.append(trio.run(bare_round_trip, echo_port, requests))
        small = statistics.median(trio.run(small_requests, url, 5 * requests) for _ in range(rounds))
        beats = trio.run(heartbeats, url, requests // 10)
        others = list(beside_others(url, unix, total // 2, 2 * requests, rounds))
    return [
        against(
            "file ranges of 1 MiB, beside sendfile", ranges.rate / 1e6, "MB/s", sendfile.rate / 1e6, 0.85
        ),
        _no_more("their sender's CPU", ranges.cpu, "s/GiB", sendfile.cpu, 1.2),
        against("bytes of 1 MiB, beside sendall", payloads.rate / 1e6, "MB/s", sendall.rate / 1e6, 0.8),
        _no_more("their sender's CPU", payloads.cpu, "s/GiB", sendall.cpu),
        _no_more(
            "round trip, beside a bare trio echo",
            statistics.median(ours) * 1e6,
            "us",
            statistics.median(bare) * 1e6,
            1.5,
        ),
        at_least(f"small requests, {SMALL_WINDOW} under way", small, "1/s", 20_000),
        at_most("heartbeat p99 beside a full data lane", beats[int(len(beats) * 0.99)] * 1000, "ms", 50),
        *others,
    ]


def _no_more(name: str, value: float, unit: str, beside: float, bar: float | None = None) -> Result:
    """A figure that should be at most `bar` times the one beside it."""
    result = against(name, value, unit, beside)
    return attrs.evolve(result, bar=bar, holds=None if bar is None else value <= bar * beside)
