"""The floor under replication: the same bytes from a sender to a leader that writes them and sends its file to two
followers that write them. No protocol, no checks, no acknowledgement but the last; one process each.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

BLOCK = 1 << 20


def measure(folder: Path, total: int, block_size: int) -> float:
    """Bytes per second from the sender's first byte to the followers' last write."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    leader = context.Process(target=_lead, args=(str(folder), total, block_size, there))
    leader.start()
    there.close()
    try:
        elapsed: float = here.recv()
    finally:
        leader.join(5)
        if leader.is_alive():
            leader.kill()
            leader.join()
        for name in ("leader", "follower-0", "follower-1"):
            (folder / name).unlink(missing_ok=True)
    return total / elapsed


def _lead(folder: str, total: int, block_size: int, result: Connection) -> None:
    context = multiprocessing.get_context("spawn")
    inbound = socket.create_server(("127.0.0.1", 0))
    outbound = socket.create_server(("127.0.0.1", 0))
    followers = [
        context.Process(target=follow, args=(outbound.getsockname()[1], f"{folder}/follower-{n}", total))
        for n in range(2)
    ]
    sender = context.Process(target=_send, args=(inbound.getsockname()[1], total, block_size))
    for process in (*followers, sender):
        process.start()
    links = [outbound.accept()[0] for _ in followers]
    source = inbound.accept()[0]
    log = os.open(f"{folder}/leader", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    written = Watermark()
    senders = [threading.Thread(target=forward, args=(link, log, written, total)) for link in links]
    start = time.perf_counter()
    for thread in senders:
        thread.start()
    buffer = memoryview(bytearray(BLOCK))
    source.sendall(b"g")
    while written.value < total:
        count = source.recv_into(buffer)
        os.write(log, buffer[:count])
        written.advance(count)
    for thread in senders:
        thread.join()
    for link in links:
        link.recv(1)
    result.send(time.perf_counter() - start)
    for process in (*followers, sender):
        process.join()


class Watermark:
    def __init__(self) -> None:
        self.value = 0
        self._changed = threading.Condition()

    def advance(self, count: int) -> None:
        with self._changed:
            self.value += count
            self._changed.notify_all()

    def wait_above(self, offset: int) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self.value > offset)
            return self.value


def forward(link: socket.socket, log: int, written: Watermark, total: int) -> None:
    offset = 0
    while offset < total:
        end = written.wait_above(offset)
        while offset < end:
            offset += os.sendfile(link.fileno(), log, offset, min(end - offset, BLOCK))


def follow(port: int, path: str, total: int) -> None:
    link = socket.create_connection(("127.0.0.1", port))
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    buffer = memoryview(bytearray(BLOCK))
    received = 0
    while received < total:
        count = link.recv_into(buffer)
        if not count:
            return
        os.write(log, buffer[:count])
        received += count
    link.sendall(b"k")


def _send(port: int, total: int, block_size: int) -> None:
    link = socket.create_connection(("127.0.0.1", port))
    block = os.urandom(block_size)
    link.recv(1)
    sent = 0
    while sent < total:
        sent += len(block)
        link.sendall(block[: len(block) - max(0, sent - total)])
