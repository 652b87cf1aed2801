"""One process of a replicated state: `python -m tests.bench._peers.state_peer WHO NUMBER FOLDER PORTS`.

It says when it is ready, then does what lines on its standard input ask for, each a JSON object, and answers each
with a line.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

TOPIC = "bench"
VALUE = "x" * 100


def figures(seconds: list[float], elapsed: float) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "per_second": len(seconds) / elapsed,
        "p50_ms": 1000 * statistics.median(ordered),
        "p99_ms": 1000 * ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)],
    }


async def ours(number: int, folder: Path) -> None:
    """A node and a copy in one process, as a service has them."""
    from insync.replication import Admin, Node, NodeSettings
    from insync.replication.state import ReplicatedDict

    settings = NodeSettings(
        node_id=number, data_dir=folder / f"node-{number}", store=f"sqlite://{folder / 'meta.db'}"
    )
    async with Node(settings) as node:
        async with Admin(node.endpoints) as admin:
            await admin.wait_for_nodes(3)
        async with ReplicatedDict.open(node.endpoints, TOPIC, name=f"copy-{number}", snapshot_every=0) as d:
            say({"ready": True, "endpoints": list(node.endpoints)})
            while (line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)) != "":
                asked = json.loads(line)
                say(await _do(d, asked))


async def _do(d: Any, asked: dict[str, Any]) -> dict[str, Any]:
    if asked["do"] == "fill":
        for first in range(0, asked["count"], 1000):
            await d.put_many({f"key-{n}": n for n in range(first, min(first + 1000, asked["count"]))})
        await d.snapshot()
        return {"keys": len(d)}
    if asked["do"] == "digest":
        await d.read()
        return {"digest": d.digest().hex(), "keys": len(d)}
    call: Callable[[int], Any]
    if asked["do"] == "write":
        call = lambda n: d.put(f"key-{n % 1000}", VALUE)  # noqa: E731
    else:
        call = lambda n: d.get(f"key-{n % 1000}")  # noqa: E731
    seconds: list[float] = []
    left = iter(range(asked["count"]))

    async def work() -> None:
        for n in left:
            began = time.perf_counter()
            await call(n)
            seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(asked["under_way"]):
            nursery.start_soon(work)
    return figures(seconds, time.perf_counter() - began)


def theirs(number: int, ports: list[int]) -> None:
    """PySyncObj, in memory."""
    from pysyncobj import SyncObj, SyncObjConf, replicated  # type: ignore[import-not-found]

    class Shared(SyncObj):  # type: ignore[misc]
        def __init__(self) -> None:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            own = addresses.pop(number - 1)
            super().__init__(own, addresses, SyncObjConf(autoTick=True))
            self.data: dict[str, str] = {}

        @replicated  # type: ignore[misc]
        def put(self, key: str, value: str) -> None:
            self.data[key] = value

    shared = Shared()
    shared.waitReady()
    say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        say(_do_theirs(shared, asked["under_way"], asked["count"]))
    shared.destroy()


def _do_theirs(shared: Any, under_way: int, count: int) -> dict[str, float]:
    """As many callbacks under way as asked for; of one command at a time the call that blocks."""
    seconds: list[float] = []
    began = time.perf_counter()
    if under_way == 1:
        for n in range(count):
            at = time.perf_counter()
            shared.put(f"key-{n % 1000}", VALUE, sync=True)
            seconds.append(time.perf_counter() - at)
        return figures(seconds, time.perf_counter() - began)
    done = threading.Event()
    slots = threading.Semaphore(under_way)

    def submit(n: int) -> None:
        at = time.perf_counter()

        def told(result: object, error: object) -> None:
            seconds.append(time.perf_counter() - at)
            slots.release()
            if len(seconds) >= count:
                done.set()

        shared.put(f"key-{n % 1000}", VALUE, callback=told)

    for n in range(count):
        slots.acquire()
        submit(n)
    done.wait(120)
    return figures(seconds, time.perf_counter() - began)


async def restore(servers: list[str]) -> None:
    """A new process on an empty disk: how long until it can answer."""
    from insync.replication.state import ReplicatedDict

    began = time.perf_counter()
    async with ReplicatedDict.open(servers, TOPIC, snapshot_every=0) as d:
        say({"seconds": time.perf_counter() - began, "keys": len(d), "from": d.restored_from})


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    who, number, where, *ports = sys.argv[1:]
    if who == "ours":
        trio.run(ours, int(number), Path(where))
    elif who == "restore":
        trio.run(restore, where.split(","))
    else:
        theirs(int(number), [int(port) for port in ports])


if __name__ == "__main__":
    main()
