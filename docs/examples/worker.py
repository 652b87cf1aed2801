"""A worker of a shared queue, in threads: `python worker.py NAME SERVERS`. Start as many as there is work for.

An item may be given out twice: a worker that stands still for longer than its lease does not know it. So what is
done with an item carries the item's id as an idempotency key, and is done once.
"""

from __future__ import annotations

import signal
import sys
import threading

from insync.replication.client import ClientError
from insync.replication.state import FencedError
from insync.replication.state.blocking import ReplicatedCounter, ReplicatedQueue

LEASE_MS = 2000


def work(name: str, servers: str, stop: threading.Event) -> None:
    with (
        ReplicatedQueue.open(servers, "work", name=name) as queue,
        ReplicatedCounter.open(servers, "results", name=name) as results,
    ):
        print("ready", flush=True)
        while not stop.is_set():
            try:
                item = queue.take_nowait(LEASE_MS)
                if item is None:
                    stop.wait(0.1)
                    continue
                results.add("sum", item.value, id=f"work {item.id}")
                queue.ack(item)
            except FencedError:
                raise
            except ClientError as error:
                # It may have been taken: then its lease runs out, and somebody gets it again.
                print(f"{name}: {error}", file=sys.stderr)
                stop.wait(0.5)


def main() -> None:
    stop = threading.Event()
    # What is in hand is finished and acknowledged, then both copies are closed.
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    work(sys.argv[1], sys.argv[2], stop)


if __name__ == "__main__":
    main()
