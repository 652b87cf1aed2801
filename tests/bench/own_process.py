"""A node inside the program, and one in its child process, while the program is idle, and while it computes.

Two more nodes are processes of their own. A client of the program writes with acks=all to a partition that the node
leads; computing is a thread that holds the interpreter's lock for longer than a session, again and again.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from insync.replication import BlockingAdmin, BlockingNode, BlockingProducer, NodeSettings

from ..processes import cluster
from .report import Result

TOPIC = "t"
_SUBJECT = "a" * 26 + "!"
"""The pattern below goes through all ways to divide it: seconds in C, with the interpreter's lock."""


def run(*, smoke: bool) -> Sequence[Result]:
    seconds = 1.0 if smoke else 10.0
    results: list[Result] = []
    for where, own_process in (("in this process", False), ("in a child process", True)):
        for what, is_busy in (("idle", False), ("computing", True)):
            with tempfile.TemporaryDirectory() as folder, _three(Path(folder), own_process) as node:
                times, epochs = _writes(node, seconds, is_busy)
            name = f"{where}, {what}"
            times.sort()
            results += [
                Result(name=f"{name}: write, p50", value=round(times[len(times) // 2] * 1000, 3), unit="ms"),
                Result(name=f"{name}: longest write", value=round(times[-1] * 1000, 1), unit="ms"),
                Result(name=f"{name}: leaderships lost", value=epochs, unit=""),
            ]
    return results


@contextmanager
def _three(folder: Path, own_process: bool) -> Iterator[BlockingNode]:
    with cluster(folder, 2):
        settings = NodeSettings(node_id=3, data_dir=folder / "node-3", store=f"sqlite://{folder / 'meta.db'}")
        with BlockingNode(settings, own_process=own_process) as node:
            with BlockingAdmin(node.endpoints) as admin:
                admin.wait_for_nodes(3)
                admin.create_topic(TOPIC, 1, 3)
                admin.reassign_partitions({(TOPIC, 0): [3, 1, 2]})
                admin.wait_for_reassignments()
                admin.elect_leaders([(TOPIC, 0)])
            yield node


def _writes(node: BlockingNode, seconds: float, is_busy: bool) -> tuple[list[float], int]:
    """How long each took, and how often the partition got another leader meanwhile."""
    stop = threading.Event()
    threads = [threading.Thread(target=_compute, args=(stop,))] if is_busy else []
    times: list[float] = []
    with BlockingAdmin(node.endpoints) as admin, BlockingProducer(node.endpoints, linger_ms=0) as producer:
        producer.send_and_wait(TOPIC, b"first")
        before = _epoch(admin)
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            producer.send_and_wait(TOPIC, bytes(100))
            times.append(time.monotonic() - began)
        stop.set()
        for thread in threads:
            thread.join()
        return times, _epoch(admin) - before


def _epoch(admin: BlockingAdmin) -> int:
    (topic,) = admin.describe_topics([TOPIC])
    return topic.partitions[0].leader_epoch


def _compute(stop: threading.Event) -> None:
    pattern = re.compile("(a+)+$")
    while not stop.wait(0.5):
        pattern.match(_SUBJECT)
