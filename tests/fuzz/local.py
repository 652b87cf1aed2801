"""`shm://` under the fuzzer: the chunks that a peer on the same machine sends, and the files that it hands over."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator, Sequence
from unittest.mock import patch

import trio

from insync.plugins.shm import _files, _shm
from insync.plugins.shm._chunks import PLACE, PREFIX, Chunk
from insync.transport import URL, LinkBroken, ProtocolError, RangeTruncated

from ._python import PythonTarget
from .transport import finish

FILE_BYTES = 1000
CONTENT = random.Random(4).randbytes(FILE_BYTES)
MOST_BYTES = 5000
"""Of the stream: ranges can name the same bytes again and again."""
_TAKE_PAYLOADS = 1


class Script(_shm.ShmStream):
    """A stream of given bytes in pieces of given size; descriptors of one file come with the first."""

    def __init__(self, sock: socket.socket, data: bytes, piece: int, descriptors: Sequence[int]) -> None:
        peer = URL("fuzz", "peer")
        super().__init__(sock, peer, peer)
        self._has_greeted = True
        self._taken = _files.TakenFiles(3)
        self._script, self._piece = memoryview(data), piece
        self._descriptors.extend(map(_files.OpenFile, descriptors))

    async def _receive(self, buffer: memoryview) -> int:
        self.check_open()
        size = min(len(buffer), len(self._script), self._piece)
        buffer[:size], self._script = self._script[:size], self._script[size:]
        return size


async def _at_once() -> None:
    """In place of a checkpoint."""


def _nobody(_: object) -> None:
    """In place of telling tasks that wait for a socket: there are none."""


def bytes_of(data: bytes, piece: int, files: int, read: int, *, payloads: bool) -> tuple[bytes, str]:
    """The stream's bytes, and how it ends."""
    source = os.memfd_create("fuzz")
    os.write(source, CONTENT)
    ours, theirs = socket.socketpair()
    stream = Script(ours, data, piece, [os.dup(source) for _ in range(files)])
    found, buffer = bytearray(), memoryview(bytearray(read))
    try:
        while len(found) < MOST_BYTES:
            if payloads and (stream._is_fresh and stream._places):
                payload = finish(stream.receive_ranges(stream._places_bytes))
                assert payload is not None
                with payload:
                    if payload.nbytes <= MOST_BYTES:
                        found += payload.view()
                    continue
            count = finish(stream.receive_into(buffer[: MOST_BYTES - len(found)]))
            if count == 0:
                return bytes(found), "end"
            found += buffer[:count]
    except (LinkBroken, ProtocolError, RangeTruncated) as error:
        return bytes(found), type(error).__name__
    finally:
        stream.abort()
        theirs.close()
        os.close(source)
    return bytes(found), "enough"


def run_chunks(raw: bytes) -> None:
    """The same bytes, and the same end, come out of chunks in whatever pieces they come; no descriptor is left."""
    if len(raw) < 4:
        return
    files, data = raw[1] % 5, raw[4:]
    with patch.multiple(trio.lowlevel, checkpoint=_at_once, notify_closing=_nobody):
        whole, end = bytes_of(data, 1 << 20, files, MOST_BYTES, payloads=False)
        pieces, end_in_pieces = bytes_of(data, 1 + raw[2], files, 1 + raw[3], payloads=False)
        if raw[0] & _TAKE_PAYLOADS:
            bytes_of(data, 1 + raw[2], files, 1 + raw[3], payloads=True)
    assert (whole, end) == (pieces, end_in_pieces), "the pieces matter"
    assert _files.OpenFile.count == 0, "descriptors are left"


def _chunk(kind: int, number: int, length: int, rest: bytes = b"") -> bytes:
    return PREFIX.pack(kind, number, length) + rest


def _streams() -> Iterator[bytes]:
    noise = random.Random(9)
    for number in range(40):
        parts = [bytes([number & 1, noise.randrange(256), noise.randrange(256), noise.randrange(256)])]
        for _ in range(noise.randrange(1, 8)):
            kind = noise.choice(list(Chunk))
            if kind == Chunk.BYTES:
                data = noise.randbytes(noise.choice((0, 1, 40)))
                parts.append(_chunk(kind, 0, len(data), data))
            elif kind == Chunk.RANGES:
                places = [
                    (noise.randrange(3), noise.randrange(FILE_BYTES), noise.randrange(60)) for _ in range(3)
                ]
                table = b"".join(PLACE.pack(*place) for place in places)
                parts.append(_chunk(kind, len(places), sum(place[2] for place in places), table))
            else:
                parts.append(_chunk(kind, noise.randrange(3), 0))
        yield b"".join(parts)
    files = _chunk(Chunk.FILE, 1, 0) + _chunk(Chunk.FILE, 2, 0)
    for offset, length in ((0, 10), (FILE_BYTES - 5, 5), (FILE_BYTES - 5, 6), (FILE_BYTES, 1)):
        ranges = _chunk(Chunk.RANGES, 2, 2 * length, 2 * PLACE.pack(2, offset, length))
        yield (
            bytes([1, 2, 9, 3]) + files + ranges + _chunk(Chunk.DROP, 2, 0) + _chunk(Chunk.BYTES, 0, 1, b"x")
        )


TARGETS = [PythonTarget("chunks", run_chunks, (_shm, _files), _streams, max_len=600)]
