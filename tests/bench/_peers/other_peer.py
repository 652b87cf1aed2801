"""Far ends of other libraries, each a process of its own: pyzmq (tcp, ipc) and a gRPC stream.

`python -m tests.bench._peers.other_peer ROLE` prints an address and ends with its standard input. An order to send
is SEND followed by ORDER; after that many blocks comes what CPU they took. With FILE for SEND each block is first
read from a file, which is where a log has them. Anything else is sent back.
"""

from __future__ import annotations

import functools
import itertools
import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .transport_peer import FILE_BYTES, open_file

SEND, FILE = b"send", b"file"
ORDER = struct.Struct("<QQ")
"""Bytes of a block, and of all of them."""
SECONDS = struct.Struct("<d")
HIGH_WATER = 16
"""Messages that zmq keeps at each end: enough that neither waits for the other, and not all of memory."""
STREAM, ECHO = "/bench/stream", "/bench/echo"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def zeromq(scheme: str) -> None:
    import zmq

    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        router, push = context.socket(zmq.ROUTER), context.socket(zmq.PUSH)
        push.sndhwm = HIGH_WATER
        for socket, name in ((router, "orders"), (push, "blocks")):
            socket.linger = 0
            socket.bind("tcp://127.0.0.1:*" if scheme == "tcp" else f"ipc://{folder}/{name}")
        _file()
        print(router.last_endpoint.decode(), push.last_endpoint.decode(), flush=True)
        threading.Thread(target=_end_with_stdin, args=(folder,), daemon=True).start()
        while True:
            who, body = router.recv_multipart()
            router.send_multipart([who, _push(push, body) if body[:4] in (SEND, FILE) else body])


def _end_with_stdin(folder: str) -> None:
    sys.stdin.read()
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()
    os._exit(0)


def _push(push: Any, order: bytes) -> bytes:
    blocks, start = _blocks(order), time.process_time()
    for block in blocks:
        push.send(block, copy=False)
    return SECONDS.pack(time.process_time() - start)


def _blocks(order: bytes) -> Iterator[bytes]:
    size, total = ORDER.unpack(order[len(SEND) :])
    if order.startswith(SEND):
        return itertools.repeat(os.urandom(size), total // size)
    return (os.pread(_file(), size, at * size % FILE_BYTES) for at in range(total // size))


@functools.cache
def _file() -> int:
    return open_file()


def grpc_server() -> None:
    import grpc

    def stream(order: bytes, _: object) -> Iterator[bytes]:
        blocks, start = _blocks(order), time.process_time()
        yield from blocks
        yield SECONDS.pack(time.process_time() - start)

    def echo(bodies: Iterator[bytes], _: object) -> Iterator[bytes]:
        yield from bodies

    handlers = {
        "stream": grpc.unary_stream_rpc_method_handler(stream),
        "echo": grpc.stream_stream_rpc_method_handler(echo),
    }
    server = grpc.server(ThreadPoolExecutor(4), options=UNLIMITED)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    _file()
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    role = sys.argv[1]
    if role == "grpc":
        grpc_server()
    else:
        zeromq(role.removeprefix("zmq-"))
