"""A thousand consumers that start at one moment, in several processes, against three nodes: none gets an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from insync.replication.client.threads.blocking import BlockingAdmin, BlockingProducer
from tests.processes import cluster

PROCESSES, EACH = 2, 500
MANY = """
import collections, json, sys
import trio
from insync.replication import Consumer

servers, count = sys.argv[1].split(","), int(sys.argv[2])
outcomes, all_are_in = collections.Counter(), trio.Event()

async def one():
    try:
        # For so long it waits for servers that are too busy, however little of a processor they get.
        async with Consumer(servers, auto_offset_reset="earliest", request_timeout_ms=200_000) as consumer:
            consumer.assign([("t", 0)])
            records = []
            with trio.fail_after(240):
                while not records:
                    records = await consumer.poll(1_000)
            outcomes["read" if records[0].value == b"here" else "wrong"] += 1
            if outcomes.total() == count:
                all_are_in.set()
            await all_are_in.wait()
    except Exception as error:
        outcomes[f"{type(error).__name__}: {error}"] += 1

async def main():
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)

print("ready", flush=True)
sys.stdin.readline()
trio.run(main)
print(json.dumps(outcomes))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_thousand_consumers_that_start_at_once_all_read(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as nodes:
        servers = [node.endpoint for node in nodes]
        with BlockingAdmin(servers) as admin, BlockingProducer(servers) as producer:
            admin.wait_for_nodes(3)
            admin.create_topic("t", 1, 3)
            producer.send_and_wait("t", b"here", partition=0)
        command = [sys.executable, "-c", MANY, ",".join(servers), str(EACH)]
        crowds = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]
        try:
            for crowd in crowds:
                assert crowd.stdout is not None
                assert crowd.stdout.readline() == "ready\n"
            for crowd in crowds:
                assert crowd.stdin is not None
                crowd.stdin.write("\n")
                crowd.stdin.flush()
            for crowd in crowds:
                told, _ = crowd.communicate(timeout=360)
                assert json.loads(told) == {"read": EACH}
        finally:
            for crowd in crowds:
                crowd.kill()
                crowd.wait()
