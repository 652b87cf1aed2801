"""A service of one file in threads, with a node and a copy inside: `python counting_threads.py NODE_ID DATA STORE`.

Each start adds one; SIGTERM ends it in order.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from insync.replication import BlockingNode, NodeSettings
from insync.replication.state.blocking import ReplicatedCounter


def main() -> None:
    number = int(sys.argv[1])
    settings = NodeSettings(node_id=number, data_dir=Path(sys.argv[2]), store=sys.argv[3])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    with (
        BlockingNode(settings) as node,
        ReplicatedCounter.open(node.endpoints, "starts", name=f"api-{number}") as starts,
    ):
        print("start", starts.add("all"), flush=True)
        stop.wait()  # leaving the blocks ends the session, and hands over what the node leads
    print("left", flush=True)


if __name__ == "__main__":
    main()
