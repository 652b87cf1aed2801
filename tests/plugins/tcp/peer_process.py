"""A server in a process of its own, to be killed or stopped. Prints its URL; ends with its standard input.

It listens on the URL that it is given, else on tcp://127.0.0.1:0.
"""

import os
import signal
import sys

import trio

from insync.transport import Identity, Limits, serve

CHUNK = 1 << 20
KEEPALIVE = 0.6
"""Seconds; three times that is longer than a busy machine lets a process wait."""


class Slice:
    def __init__(self, fd, length):
        self.fd, self.offset, self.length = fd, 0, length

    def fileno(self):
        return self.fd


def handler(request):
    request.payload.release()
    if request.kind == 1:
        request.reply(b"%d" % os.getpid())
    elif request.kind == 2:
        request.reply(b"", [bytes(CHUNK)] * 32)
    elif request.kind == 3:
        fd = os.memfd_create("range")
        os.truncate(fd, int(request.body))
        request.reply(b"", [Slice(fd, int(request.body))])
    # Others are never answered.


async def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    async def start(task_status):
        limits = Limits(keepalive=KEEPALIVE)
        url = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:0"
        await serve(url, handler, identity=Identity("c", 1, 1), limits=limits, task_status=task_status)

    async with trio.open_nursery() as nursery:
        serving = await nursery.start(start)
        print(serving.endpoints[0], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
