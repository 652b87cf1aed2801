"""What the kernel itself takes to send a file that is in memory: the least that a node can take for fetches."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path

_PIECE = 1 << 20


def seconds_a_gib(folder: Path, size: int) -> float:
    """Processor seconds of a process that sends a GiB over loopback by `sendfile`, measured over `size` bytes."""
    path, size = folder / "sent", size // _PIECE * _PIECE
    path.write_bytes(os.urandom(_PIECE) * (size // _PIECE))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)  # a sender that cannot start never connects
        sender = context.Process(target=_send, args=(str(path), listener.getsockname()[1], there))
        sender.start()
        there.close()
        try:
            accepted, _ = listener.accept()
            buffer, left = bytearray(_PIECE), size
            with accepted:
                while left:
                    count = accepted.recv_into(buffer)
                    if not count:
                        raise RuntimeError(f"{left} bytes were not sent")
                    left -= count
            used: float = here.recv()
        finally:
            sender.join(10)
            if sender.is_alive():
                sender.kill()
                sender.join()
    path.unlink()
    return used * (1 << 30) / size


def _send(path: str, port: int, result: Connection) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link, open(path, "rb") as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        start = time.process_time()
        while at < size:
            at += os.sendfile(link.fileno(), file.fileno(), at, min(_PIECE, size - at))
        result.send(time.process_time() - start)
