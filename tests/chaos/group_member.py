"""A process with one consumer of a group, which writes down what it is given, has done and has committed.

A line of JSON for each thing, in a file of its own, written before anything follows from it:

    {"what": "assigned" | "revoked" | "lost", "at": s, "partitions": [...]}   as the callback ends, or begins
    {"what": "handed", "since": s, "at": s, "records": {partition: [first, next]}}   by a poll that began at `since`
    {"what": "done", "at": s, "records": {...}}   with these the process is through
    {"what": "began", "at": s, "classic": ...}   SIGTERM is heard from now on; the classic strategy, if any
    {"what": "left", "at": s}   it has closed its consumer

Times are of the machine's monotonic clock, which all processes share. SIGTERM: finish what is at hand, and leave.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import trio

from insync.replication import Consumer, ReplicationError
from insync.replication.client import Listener

from .told_to_stop import Noting

_POLL_MS = 100


class Member(Noting):
    """Polls until it is told to stop."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given.log)
        self.given = given

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.stop_on_signal)
            self.note("began", classic=self.given.classic)
            await self._read()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        def notes(what: str) -> Any:
            return lambda partitions: self.note(what, partitions=[each.partition for each in partitions])

        listener = Listener(on_assigned=notes("assigned"), on_revoked=notes("revoked"), on_lost=notes("lost"))
        options: dict[str, Any] = {
            "group_id": self.given.group,
            "group_instance_id": self.given.instance,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": self.given.auto_commit,
            "auto_commit_interval_ms": 200,
            "max_poll_records": 100,
            "max_poll_interval_ms": 5_000,
            "request_timeout_ms": 10_000,
        }
        if self.given.classic:
            options |= {
                "group_protocol": "classic",
                "partition_assignment_strategy": self.given.classic,
                "session_timeout_ms": 4_000,
                "heartbeat_interval_ms": 500,
            }
        async with Consumer(self.given.servers.split(","), **options) as consumer:
            consumer.subscribe([self.given.topic], listener=listener)
            while not self.stopping:
                since = time.monotonic()
                try:
                    records = await consumer.poll(_POLL_MS)
                    if not records:
                        continue
                    spans: dict[int, list[int]] = {}
                    for each in records:
                        spans.setdefault(each.partition, [each.offset, 0])[1] = each.offset + 1
                    self.note("handed", since=since, records=spans)
                    await trio.sleep(0.001)
                    self.note("done", records=spans)
                    if not self.given.auto_commit:
                        await consumer.commit(timeout_ms=3_000)
                except ReplicationError as error:
                    self.note("error", said=f"{type(error).__name__}: {error}")
        self.note("left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--instance", default="")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--classic", default="", metavar="STRATEGY", help="speak the classic protocol")
    parser.add_argument("--auto-commit", action="store_true")
    trio.run(Member(parser.parse_args()).run)


if __name__ == "__main__":
    main()
