"""A service of one file in trio, with a node and a copy inside: `python counting.py NODE_ID DATA STORE`.

Each start adds one; SIGTERM ends it in order.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import trio

from insync.replication import Node, NodeSettings
from insync.replication.state import ReplicatedCounter


async def main() -> None:
    number = int(sys.argv[1])
    settings = NodeSettings(node_id=number, data_dir=Path(sys.argv[2]), store=sys.argv[3])
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with (
            Node(settings) as node,
            ReplicatedCounter.open(node.endpoints, "starts", name=f"api-{number}") as starts,
        ):
            print("start", await starts.add("all"), flush=True)
            async for _ in signals:
                break  # leaving the blocks ends the session, and hands over what the node leads
    print("left", flush=True)


if __name__ == "__main__":
    trio.run(main)
