"""The floor under following a log within one machine: the same loop by bare system calls, with nothing around it.

A follower asks for the next piece of a file, has it, computes its CRC and writes it to a file of its own, one piece
after the other. Over TCP the piece comes by sendfile; handed over, it is read from the leader's file.

`python -m tests.bench._peers.bare SCHEME BYTES` is the leader's end: it prints an address and ends with its input.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from insync.storage.batch import crc32c

from .._page_cache import touch

ORDER = struct.Struct("<QQ")
"""From where, and how much; nothing at all asks what CPU it took."""
SECONDS = struct.Struct("<d")
BLOCK = 1 << 20
GIB = 1 << 30


@attrs.frozen
class Load:
    """Bytes a second, and the CPU seconds per GiB of both ends together."""

    rate: float
    cpu: float


def follow(scheme: str, address: str, total: int, piece: int, folder: Path) -> Load:
    """Copy the leader's file from its beginning to its end."""
    touch(folder, total)
    take = _receive if scheme == "tcp" else _read
    with _connected(scheme, address) as link, tempfile.TemporaryFile(dir=folder) as own:
        source = -1 if scheme == "tcp" else _descriptor(link)
        buffer = memoryview(bytearray(piece))
        start, cpu = time.perf_counter(), time.process_time() + _cpu(link)
        for at in range(0, total, piece):
            link.sendall(ORDER.pack(at, piece))
            take(link, source, at, buffer)
            crc32c(buffer)
            os.pwrite(own.fileno(), buffer, at)
        elapsed = time.perf_counter() - start
        cpu = time.process_time() + _cpu(link) - cpu
        if source >= 0:
            os.close(source)
    return Load(total / elapsed, cpu / total * GIB)


def _connected(scheme: str, address: str) -> socket.socket:
    if scheme == "tcp":
        return socket.create_connection(("127.0.0.1", int(address)))
    link = socket.socket(socket.AF_UNIX)
    link.connect(f"\0{address}")
    return link


def _descriptor(link: socket.socket) -> int:
    _, (source,), _, _ = socket.recv_fds(link, 1, 1)
    return source


def _receive(link: socket.socket, source: int, at: int, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        done += link.recv_into(buffer[done:])


def _read(link: socket.socket, source: int, at: int, buffer: memoryview) -> None:
    place, length = ORDER.unpack(link.recv(ORDER.size, socket.MSG_WAITALL))
    assert os.preadv(source, [buffer[:length]], place) == length


def _cpu(link: socket.socket) -> float:
    link.sendall(ORDER.pack(0, 0))
    return float(SECONDS.unpack(link.recv(SECONDS.size, socket.MSG_WAITALL))[0])


def _serve(
    listener: socket.socket, file: int, answer: Callable[[socket.socket, int, int, int], None]
) -> None:
    while True:
        link, _ = listener.accept()
        with link:
            if link.family == socket.AF_UNIX:
                socket.send_fds(link, [b"f"], [file])
            else:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while order := link.recv(ORDER.size, socket.MSG_WAITALL):
                at, length = ORDER.unpack(order)
                if length:
                    answer(link, file, at, length)
                else:
                    link.sendall(SECONDS.pack(time.process_time()))


def _send(link: socket.socket, file: int, at: int, length: int) -> None:
    while length:
        count = os.sendfile(link.fileno(), file, at, length)
        at, length = at + count, length - count


def _point(link: socket.socket, file: int, at: int, length: int) -> None:
    link.sendall(ORDER.pack(at, length))


def main(scheme: str, size: int) -> None:
    with tempfile.TemporaryFile() as file:
        block = os.urandom(BLOCK)
        for _ in range(size // BLOCK):
            file.write(block)
        file.flush()
        if scheme == "tcp":
            listener, answer = socket.create_server(("127.0.0.1", 0)), _send
            print(listener.getsockname()[1], flush=True)
        else:
            listener, answer = socket.socket(socket.AF_UNIX), _point
            listener.bind("")
            listener.listen()
            print(listener.getsockname()[1:].decode(), flush=True)
        threading.Thread(target=_serve, args=(listener, file.fileno(), answer), daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
