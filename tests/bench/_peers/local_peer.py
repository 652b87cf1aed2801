"""The far end of the benchmark of transports within one machine: a leader's log, served by a URL.

`python -m tests.bench._peers.local_peer URL FOLDER BYTES` prints its URL and log end, and ends with its input.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
import time
from pathlib import Path

import attrs
import trio

from insync.storage import Chunk, DiskLog
from insync.storage.batch import scan
from insync.transport import Identity, Request, serve

from ..storage import block_of

ECHO, FETCH, BYTES, CPU = 1, 2, 3, 4
FETCH_BODY = struct.Struct("<qi")
"""Of a fetch: the offset, and how many bytes at most."""
SECONDS = struct.Struct("<d")
BATCH_BYTES = 16 << 10
PAYLOAD_BYTES = 1 << 20


def filled_log(folder: Path, size: int) -> DiskLog:
    """A log of at least so many bytes, in batches as a producer makes them."""
    folder.mkdir()
    log = DiskLog(folder, "bench", 0)
    batch = block_of(BATCH_BYTES)
    chunk = batch * max(1, (1 << 20) // len(batch))
    infos = scan(chunk)
    while log.size_bytes < size:
        log.append([Chunk(chunk, infos, log.log_end_offset, 0)])
    return log


@attrs.define
class Leader:
    log: DiskLog
    payload: bytes = attrs.Factory(lambda: os.urandom(PAYLOAD_BYTES))

    def handle(self, request: Request) -> None:
        request.payload.release()
        if request.kind == ECHO:
            request.reply(request.body)
        elif request.kind == FETCH:
            offset, most = FETCH_BODY.unpack(request.body)
            found = self.log.read(offset, max_bytes=most)
            assert found.range is not None
            request.reply(b"", [found.range])
        elif request.kind == BYTES:
            request.reply(b"", [self.payload])
        else:
            request.reply(SECONDS.pack(time.process_time()))

    async def run(self, url: str) -> None:
        async with trio.open_nursery() as nursery:
            start = functools.partial(serve, url, self.handle, identity=Identity("bench", 1))
            serving = await nursery.start(start)
            print(serving.endpoints[0], self.log.log_end_offset, flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    url, folder, size = sys.argv[1:]
    trio.run(Leader(filled_log(Path(folder), int(size))).run, url)
