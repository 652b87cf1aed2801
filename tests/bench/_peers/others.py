"""The near ends of other libraries: blocks received, and small requests answered, as fast as each can."""

from __future__ import annotations

import importlib.util
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from .other_peer import ECHO, HIGH_WATER, ORDER, SECONDS, STREAM, UNLIMITED

GIB = 1 << 30


@attrs.frozen
class Cost:
    """Bytes per second, and CPU seconds per GiB of both ends together."""

    rate: float
    cpu: float


@attrs.frozen
class Other:
    """A library beside which we stand. Both functions take the address that its far end printed."""

    name: str
    role: str
    module: str
    package: str
    blocks: Callable[[str, bytes, int, int], Cost]
    """(address, SEND or FILE, bytes of a block, of all)"""
    small: Callable[[str, int, int], float]
    """(address, requests, under way at a time) to requests per second"""

    @property
    def is_there(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


def zmq_blocks(addresses: str, how: bytes, size: int, total: int) -> Cost:
    import zmq

    orders, blocks = addresses.split()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer, context.socket(zmq.PULL) as pull:
        pull.rcvhwm = HIGH_WATER
        dealer.connect(orders)
        pull.connect(blocks)
        start, cpu = time.perf_counter(), time.process_time()
        dealer.send(how + ORDER.pack(size, total))
        for _ in range(total // size):
            pull.recv(copy=False)
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
        (theirs,) = SECONDS.unpack(dealer.recv())
    return Cost(total / elapsed, (cpu + theirs) / total * GIB)


def zmq_small(addresses: str, count: int, window: int) -> float:
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(addresses.split()[0])
        start = time.perf_counter()
        for _ in range(window):
            dealer.send(b"x" * 64)
        for number in range(count):
            dealer.recv()
            if number + window < count:
                dealer.send(b"x" * 64)
        return count / (time.perf_counter() - start)


def grpc_blocks(address: str, how: bytes, size: int, total: int) -> Cost:
    import grpc

    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        grpc.channel_ready_future(channel).result(10)
        start, cpu = time.perf_counter(), time.process_time()
        last, received = b"", 0
        for last in channel.unary_stream(STREAM)(how + ORDER.pack(size, total)):
            received += len(last)
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
        assert received == total + SECONDS.size
        return Cost(total / elapsed, (cpu + SECONDS.unpack(last)[0]) / total * GIB)


def grpc_small(address: str, count: int, window: int) -> float:
    import grpc

    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def bodies() -> Iterator[bytes]:
        while (body := waiting.get()) is not None:
            yield body

    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(10)
        start = time.perf_counter()
        for _ in range(window):
            waiting.put(b"x" * 64)
        answers: Any = channel.stream_stream(ECHO)(bodies())
        for number, _ in enumerate(answers, 1):
            if number == count:
                break
            if number + window <= count:
                waiting.put(b"x" * 64)
        elapsed = time.perf_counter() - start
        waiting.put(None)
        return count / elapsed


OTHERS = (
    Other("pyzmq tcp", "zmq-tcp", "zmq", "pyzmq", zmq_blocks, zmq_small),
    Other("pyzmq ipc", "zmq-ipc", "zmq", "pyzmq", zmq_blocks, zmq_small),
    Other("a gRPC stream", "grpc", "grpc", "grpcio", grpc_blocks, grpc_small),
)
