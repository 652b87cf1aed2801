"""A process that commits offsets: `python -m tests.bench._committers FIRST COUNT SECONDS SERVER...`.

It stands for groups FIRST to FIRST + COUNT, each of which commits one offset after the other. It says `ready` when
it knows their coordinators, begins with the next line of its input, and ends with one JSON object: `commits`, and
`busy`, the share of the time for which it used a processor.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from insync.replication.core.messages import groups as gm
from tests.replication.node.coordination.group_clients import Caller, calling


def commit_of(group: str, offset: int, partitions: int = 1) -> gm.CommitGroupOffsetsRequest:
    """One offset in each partition of the topic `t`."""
    offsets = [gm.GroupOffset(topic="t", partition=number, offset=offset) for number in range(partitions)]
    return gm.CommitGroupOffsetsRequest(group=group, offsets=offsets)


@attrs.frozen
class Committers:
    """Processes that wait for the start, or have begun."""

    processes: Sequence[subprocess.Popen[bytes]]

    def run(self) -> list[tuple[int, float]]:
        """Let all begin; commits of each, and how busy each was. Blocks until they are done."""
        for each in self.processes:
            assert each.stdin is not None
            each.stdin.write(b"go\n")
            each.stdin.flush()
        told = []
        for each in self.processes:
            assert each.stdout is not None
            found = json.loads(each.stdout.readline())
            told.append((found["commits"], found["busy"]))
        return told


@contextmanager
def committers(count: int, groups: int, seconds: float, servers: Sequence[str]) -> Iterator[Committers]:
    """`count` processes that share the groups, ready to begin; they are gone when the block is left."""
    each = groups // count
    command = [sys.executable, "-m", "tests.bench._committers"]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            arguments = [str(number * each), str(each), str(seconds), *servers]
            processes.append(
                subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", "a process that commits has failed"
        yield Committers(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                assert end is not None
                end.close()


async def _main(first: int, count: int, seconds: float, servers: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        with calling(servers, nursery) as caller:
            names = [f"group-{number}" for number in range(first, first + count)]
            for name in names:
                await caller.find(name)
            print("ready", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            began, spent = time.monotonic(), time.process_time()
            done = [0] * count
            async with trio.open_nursery() as committing:
                for number, name in enumerate(names):
                    committing.start_soon(_commit, caller, name, began + seconds, done, number)
            busy = (time.process_time() - spent) / (time.monotonic() - began)
            print(json.dumps({"commits": sum(done), "busy": busy}), flush=True)
        nursery.cancel_scope.cancel()


async def _commit(caller: Caller, group: str, end: float, done: list[int], place: int) -> None:
    offset = 0
    while time.monotonic() < end:
        offset += 1
        reply = await caller.ask(commit_of(group, offset))
        assert not reply.error, reply
        done[place] = offset


if __name__ == "__main__":
    trio.run(_main, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
