"""`python -m tests.plugins.kafka.idle_connections [COUNT] [--json]`: a node with so many idle Kafka connections.

They are more than a listener has, by default: those that are idle make room, and somebody else is served meanwhile.
Prints the node's memory for each that is open, and how much of it is there when all have ended.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from insync.plugins.kafka.listener import MAX_CONNECTIONS
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api

from .conftest import running_cluster
from .wire_client import WireClient

COUNT = 5_000
PATIENCE = 120.0
Versions, Metadata = message("ApiVersionsRequest"), message("MetadataRequest")


@attrs.frozen
class Found:
    """Bytes of the node's memory; the slowest answer to somebody else, in seconds."""

    connections: int
    each: int
    left: int
    slowest: float


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def visit(url: str, pid: int, count: int, rest: float) -> Found:
    """Be all of them."""
    idle: list[WireClient] = []
    limiter, slowest = trio.CapacityLimiter(50), 0.0

    async def come() -> None:
        async with limiter:
            client = await WireClient.connect(url)
            idle.append(client)
            with suppress(EOFError, trio.BrokenResourceError):  # it has made room already
                await client.ask(Api.API_VERSIONS, 0, Versions())

    async def ask() -> None:
        """Somebody who comes, asks and goes."""
        nonlocal slowest
        start = time.monotonic()
        with trio.fail_after(PATIENCE):
            while True:
                other = await WireClient.connect(url)
                try:
                    async with other.stream:
                        assert (await other.ask(Api.METADATA, 5, Metadata(topics=[]))).brokers
                except trio.TooSlowError:
                    continue
                break
        slowest = max(slowest, time.monotonic() - start)

    await ask()
    before, slowest = resident(pid), 0.0
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(come)
        await ask()
    await ask()
    opened = min(count, MAX_CONNECTIONS)
    taken = resident(pid) - before
    for each in idle:
        await trio.aclose_forcefully(each.stream)
    await trio.sleep(rest)
    await ask()
    return Found(connections=count, each=taken // opened, left=resident(pid) - before, slowest=slowest)


def measure(count: int, rest: float = 10.0) -> Found:
    """With a node of its own process, which has some seconds at the end to give its memory back."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with running_cluster("--nodes", "1") as cluster:
        return trio.run(visit, cluster.servers, cluster.pids[0], count, rest)


def main() -> int:
    """Prints what was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.plugins.kafka.idle_connections", description=__doc__
    )
    parser.add_argument("count", nargs="?", type=int, default=COUNT)
    parser.add_argument("--json", action="store_true", help="one line")
    options = parser.parse_args()
    found: Any = attrs.asdict(measure(options.count))
    print(json.dumps(found) if options.json else "\n".join(f"{name} {found[name]}" for name in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
