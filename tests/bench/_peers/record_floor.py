"""The floor under one record at a time: as many messages of the same size between as many processes, and no more.

A leader writes what a producer sends to a file and answers two followers, whose questions wait for it; each writes
it into a file of its own and asks again; then the leader answers the producer. No offsets, checks, epochs or ISR.
It is done by an event loop of trio, as nodes have it, with a task for each connection, or by a bare epoll in which
all connections stay registered.

`python -m tests.bench._peers.record_floor LOOP FILE [PORT]` is one of the processes: a leader that tells its port,
or a follower of the one at PORT.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self, get_args

import trio

Loop = Literal["trio", "epoll"]
LOOPS: tuple[Loop, ...] = get_args(Loop)

FOLLOWERS = 2
RECORD = 300
"""Bytes of the messages that carry a record; about what a batch of one record of 100 bytes and its request take."""
NEWS = 80
"""Bytes of the others."""
_LENGTH = struct.Struct("!I")
_ENOUGH = 64 << 10
_QUESTION, _RECORD = b"q", b"r"


class Stream:
    """Whole messages of a non-blocking socket; the first byte of each says what it is."""

    def __init__(self, sock: socket.socket, on_message: Callable[[Self, bytes], None]) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self.socket = sock
        self._on_message = on_message
        self._unread = b""

    def send(self, what: bytes, size: int) -> None:
        """All of it goes at once: never more than one message is under way."""
        message = _LENGTH.pack(size) + what + bytes(size - len(what))
        assert self.socket.send(message) == len(message)

    def take(self) -> bool:
        """Read what is there; False at the end."""
        got = self.socket.recv(_ENOUGH)
        self._unread += got
        while len(self._unread) >= _LENGTH.size:
            stop = _LENGTH.size + _LENGTH.unpack_from(self._unread)[0]
            if len(self._unread) < stop:
                break
            message, self._unread = self._unread[_LENGTH.size : stop], self._unread[stop:]
            self._on_message(self, message)
        return bool(got)


class Leader:
    """Acknowledges a record when each follower has asked for what comes behind it."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = 0
        self._waiting: list[Stream] = []
        self._producer: Stream | None = None

    def take(self, sender: Stream, message: bytes) -> None:
        if message[:1] == _QUESTION:
            self._waiting.append(sender)
            if self._producer is not None and len(self._waiting) == FOLLOWERS:
                producer, self._producer = self._producer, None
                producer.send(_RECORD, NEWS)
            return
        self._size += os.pwrite(self._file, message, self._size)
        self._producer = sender
        waiting, self._waiting = self._waiting, []
        for follower in waiting:
            follower.send(_RECORD, RECORD)


class Follower:
    """Writes what it is sent, and asks for more."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = 0

    def take(self, leader: Stream, message: bytes) -> None:
        self._size += os.pwrite(self._file, message, self._size)
        leader.send(_QUESTION, NEWS)


def _by_epoll(streams: list[Stream]) -> None:
    epoll = select.epoll()
    by_number = {stream.socket.fileno(): stream for stream in streams}
    for number in by_number:
        epoll.register(number, select.EPOLLIN)
    while True:
        for number, _ in epoll.poll():
            if not by_number[number].take():
                return


async def _by_trio(streams: list[Stream]) -> None:
    async def read(stream: Stream) -> None:
        while True:
            await trio.lowlevel.wait_readable(stream.socket)
            if not stream.take():
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(read, stream)


def main(loop: str, path: str, *port: str) -> None:
    """One process, until a connection ends."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    if port:
        follower = Follower(file)
        stream = Stream(socket.create_connection(("127.0.0.1", int(port[0]))), follower.take)
        stream.send(_QUESTION, NEWS)
        streams = [stream]
    else:
        leader = Leader(file)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            print(listener.getsockname()[1], flush=True)
            streams = [Stream(listener.accept()[0], leader.take) for _ in range(FOLLOWERS + 1)]
    if loop == "trio":
        trio.run(_by_trio, streams)
    else:
        _by_epoll(streams)


class Floor:
    """Three such processes, which end with `stack`, and a producer here."""

    def __init__(self, stack: ExitStack, folder: Path, loop: Loop) -> None:
        def start(name: str, *port: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.bench._peers.record_floor",
                    loop,
                    str(folder / f"{loop}-{name}"),
                    *port,
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        leader = start("leader")
        assert leader.stdout is not None
        port = leader.stdout.readline().strip()
        followers = [start(f"follower-{number}", port) for number in range(FOLLOWERS)]
        self.pids = [each.pid for each in (leader, *followers)]
        self._socket = stack.enter_context(socket.create_connection(("127.0.0.1", int(port))))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._message = _LENGTH.pack(RECORD) + _RECORD + bytes(RECORD - len(_RECORD))

    def one_by_one(self, count: int) -> None:
        """Send records, each when the one before is acknowledged."""
        answer = _LENGTH.size + NEWS
        for _ in range(count):
            self._socket.sendall(self._message)
            received = self._socket.recv(answer, socket.MSG_WAITALL)
            if len(received) < answer:
                raise RuntimeError("a process of the floor has ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
