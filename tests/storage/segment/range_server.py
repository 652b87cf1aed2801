"""A process that sends ranges of a log over a TCP socket and changes the log when it is told to.

`python -m tests.storage.segment.range_server FOLDER` prints its port and takes one connection.
It carries out one line of its standard input after the other and answers each by a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio
import trio.testing

from insync.plugins.tcp import TcpTransport
from insync.storage import DiskLog, LogDirectory, LogSettings
from insync.storage.batch import build_batch
from insync.transport import ByteStream, TransportError
from insync.transport.urls import URL

from ..building import append

SETTINGS = LogSettings(segment_bytes=8 << 20, retention_bytes=1, file_delete_delay_ms=0)
COMPACTED = LogSettings(
    segment_bytes=8 << 20, cleanup_policy="compact", min_cleanable_dirty_ratio=0, file_delete_delay_ms=0
)
BATCH_BYTES = 40_000


def numbered(serial: int) -> bytes:
    """A batch of two records whose bytes tell which one it is everywhere; all have the same keys."""
    filler = (b"%07d." % serial) * (BATCH_BYTES // 16)
    return build_batch([b"a", b"b"], [filler, filler], timestamps_ms=serial)


class Server:
    def __init__(
        self, directory: LogDirectory, nursery: trio.Nursery, stream: ByteStream, settings: LogSettings
    ):
        self.log: DiskLog = directory.open_log("t", 0, create=True, settings=settings)
        self.nursery, self.stream = nursery, stream

    def do(self, command: str, *numbers: int) -> str:
        return str(getattr(self, command)(*numbers))

    def fill(self, first_serial: int, count: int, epoch: int) -> int:
        """Append so many batches; the log end."""
        for serial in range(first_serial, first_serial + count):
            append(self.log, numbered(serial), leader_epoch=epoch)
        return self.log.log_end_offset

    def send(self, offset: int, max_bytes: int) -> int:
        """Begin to send a range; its size."""
        found = self.log.read(offset, max_bytes=max_bytes)
        assert found.range is not None
        self.nursery.start_soon(self._send, found.range)
        return found.size

    async def _send(self, part: object) -> None:
        try:
            await self.stream.send([part])  # type: ignore[list-item]
        except TransportError:
            self.stream.abort()

    def truncate(self, offset: int) -> int:
        self.log.truncate(offset)
        return self.log.log_end_offset

    def maintain(self) -> int:
        """Delete or compact; how many segments went, or bytes."""
        end = self.log.log_end_offset
        for late in (0, 1):
            done = self.log.maintain(10**12 + late, high_watermark=end)
            if done.segments_deleted or done.compaction is not None:
                break
        self.log.maintain(10**12 + 2, high_watermark=end)
        return done.compaction.bytes_removed if done.compaction else done.segments_deleted


async def main() -> None:
    directory = LogDirectory(Path(sys.argv[1]), cluster_id="c", node_id=1)
    settings = COMPACTED if sys.argv[2:] == ["compact"] else SETTINGS
    listener = await TcpTransport().listen_streams(URL.parse("tcp://127.0.0.1:0"))
    print(str(listener.endpoints[0]).rpartition(":")[2], flush=True)
    stream = await listener.accept()
    async with trio.open_nursery() as nursery:
        server = Server(directory, nursery, stream, settings)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            command, *numbers = line.split()
            answer = server.do(command, *map(int, numbers))
            # What is being sent is done then, or waits for its reader.
            await trio.testing.wait_all_tasks_blocked(0.05)
            print(answer, flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
