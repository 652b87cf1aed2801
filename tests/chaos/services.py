"""`python -m tests.chaos.services`: the services of docs/examples under kill -9, SIGSTOP and rolling restarts.

An order service of three processes takes orders while its processes die, stand still and are restarted. No
acknowledged order is lost, none is there twice (clients repeat theirs at other processes), every current read finds
what was acknowledged before it, and in the end all copies are equal. A work queue does every item once.

Requests come by schedule, 200 a second: orders and, as soon as one is acknowledged, a current read of it at any
process. One that is refused is made again, with the same key, until it is told what became of it. An item of the
queue is four requests: it is put, taken, added to the results, and acknowledged; `behind` says how many waited when
the faults ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from insync.replication.client import ClientError
from insync.replication.state.asyncio import ReplicatedCounter, ReplicatedQueue

from ..processes import cluster
from .offered import Offered

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PATIENCE = 3.0
"""Seconds for which a client waits for one process before it asks another."""
RATE = 200.0
"""Requests a second."""
REQUESTS_OF_ITEM = 4


class Process:
    """One process of a service; it says one line when it is ready to be used, or where it listens."""

    def __init__(self, command: list[str], env: dict[str, str], errors: Path) -> None:
        self._command, self._env, self._errors = command, env, errors
        self.start()

    def start(self) -> None:
        with self._errors.open("a") as errors:
            self.process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **self._env},
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        if not self.line:
            raise RuntimeError(self._errors.read_text()[-3000:])

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.send_signal(signal.SIGCONT)
        self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()


def disturb(processes: list[Process], seconds: float, dice: random.Random) -> dict[str, int]:
    """One fault after the other, each of one process; all run when it ends.

    Drawn of the seed: 0.3 to 1.3 s of peace, then a process is killed, or restarted (and away for up to 1 s), or
    stands still for 0.5 to 3 s. Nothing is waited for by these: they are the schedule.
    """
    counts = {"kill": 0, "stop": 0, "restart": 0}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.3 + dice.random())
        one, fault = dice.choice(processes), dice.choice(list(counts))
        counts[fault] += 1
        if fault == "stop":
            one.send(signal.SIGSTOP)
            time.sleep(0.5 + 2.5 * dice.random())
            one.send(signal.SIGCONT)
        else:
            one.end(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            time.sleep(dice.random())
            one.start()
    return counts


@attrs.define(eq=False)
class Orders:
    """Clients of the order service; `urls` gives where its processes listen now."""

    urls: Callable[[], list[str]]
    done: dict[str, str] = attrs.Factory(dict)
    """By key: the number of an order that was acknowledged."""
    tried: set[str] = attrs.Factory(set)
    wrong: list[str] = attrs.Factory(list)
    reads: int = 0
    offered: Offered = attrs.Factory(Offered)
    dice: random.Random = attrs.Factory(lambda: random.Random(0))

    async def place(self, number: int, due: float) -> None:
        """One order, and a read of it as soon as it is acknowledged."""
        key = f"order-{number}"
        self.tried.add(key)
        told = await self.until_told("POST", "/orders", {"item": "seat", "count": 1, "note": key}, key, due)
        if told is None:
            return
        status, answer = told
        if status != 201:
            self.wrong.append(f"order {key}: {status} {answer}")
            return
        self.done[key] = answer["number"]
        # Current, at any process: also at one that was cut off when the order was acknowledged.
        found = await self.until_told("GET", f"/orders/{answer['number']}", None, key, time.monotonic())
        if found is not None:
            self.reads += 1
            if found[0] != 200 or found[1]["note"] != key:
                self.wrong.append(f"order {key} was acknowledged, and then: {found}")

    def check(self, notes: list[str]) -> None:
        """What the service has in the end: `notes` are the keys of its orders."""
        assert not self.wrong, self.wrong[:3]
        assert len(notes) == len(set(notes)), "an order is there twice"
        assert set(self.done) <= set(notes) <= self.tried, (
            "an acknowledged order is lost, or one is of nobody"
        )

    async def until_told(
        self, method: str, path: str, body: dict[str, Any] | None, key: str, due: float
    ) -> tuple[int, Any] | None:
        """Ask one process after the other, until one says what became of it."""

        async def attempt() -> tuple[int, Any] | None:
            try:
                async with asyncio.timeout(PATIENCE):
                    told = await ask(self.dice.choice(self.urls()), method, path, body, key)
            except (OSError, ValueError):
                return None
            return told if told[0] < 500 else None

        told: tuple[int, Any] | None = await self.offered.request(due, attempt)
        if told is None:
            self.wrong.append(f"{method} {path} {key}: no answer for a minute")
        return told


async def ask(url: str, method: str, path: str, body: dict[str, Any] | None, key: str) -> tuple[int, Any]:
    """One HTTP request; its status and decoded answer. ValueError: the answer is not whole."""
    where = urlsplit(url)
    data = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {where.netloc}\r\nconnection: close\r\nidempotency-key: {key}\r\n"
    )
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 26)
    try:
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.read(-1)
    finally:
        writer.close()
    head, separator, text = answer.decode().partition("\r\n\r\n")
    if not separator:
        raise ValueError(f"no answer: {answer[:100]!r}")
    return int(head.split(" ", 2)[1]), json.loads(text)


def order_service(folder: Path, seconds: float, seed: int, *, rate: float = RATE) -> dict[str, Any]:
    """The whole run; raises AssertionError where a promise was broken."""
    processes: list[Process] = []
    try:
        for number in (1, 2, 3):
            env = {
                "NODE_ID": str(number),
                "DATA": str(folder / f"node-{number}"),
                "STORE": f"sqlite://{folder / 'meta.db'}",
            }
            command = [sys.executable, str(EXAMPLES / "orders.py")]
            processes.append(Process(command, env, folder / f"service-{number}.err"))
        return asyncio.run(_orders(processes, seconds, seed, rate))
    finally:
        for each in processes:
            each.end()


async def _orders(processes: list[Process], seconds: float, seed: int, rate: float) -> dict[str, Any]:
    load = Orders(lambda: [each.line for each in processes], dice=random.Random(seed))
    stock = {"item": "seat", "count": 10**9}
    assert await load.until_told("POST", "/stock", stock, "stock", time.monotonic()) is not None
    load.offered = Offered()
    faults = asyncio.create_task(asyncio.to_thread(disturb, processes, seconds, random.Random(seed)))
    # An order and its read are two requests.
    await load.offered.schedule(rate / 2, faults.done, load.place)
    counts = await faults
    told = load.offered.told()
    # A key that is taken, and another order or delivery under it.
    for path, key in (("/stock", "stock"), ("/orders", next(iter(load.done)))):
        answer = await load.until_told("POST", path, {"item": "seat", "count": 2}, key, time.monotonic())
        assert answer is not None and answer[0] == 422, answer
    states = [await load_state(each.line) for each in processes]
    # Nobody writes any more; only what copies tell each other may still come.
    deadline = time.monotonic() + 60
    while len({(state["applied"], state["digest"]) for state in states}) > 1:
        assert time.monotonic() < deadline, states
        states = [await load_state(each.line) for each in processes]
    load.check(states[-1]["notes"])
    return {"orders": len(load.done), "reads": load.reads, **told, **counts}


async def load_state(url: str) -> dict[str, Any]:
    """What one process has, when it is well again."""
    found = await Orders(lambda: [url]).until_told("GET", "/state", None, "state", time.monotonic())
    assert found is not None and found[0] == 200, (url, found)
    state: dict[str, Any] = found[1]
    return state


def work_queue(folder: Path, seconds: float, seed: int, *, rate: float = RATE) -> dict[str, Any]:
    """Workers that die and stand still, over nodes that live; every item is counted once."""
    with cluster(folder) as nodes:
        servers = ",".join(node.endpoint for node in nodes)
        workers: list[Process] = []
        try:
            for n in (1, 2, 3):
                command = [sys.executable, str(EXAMPLES / "worker.py"), f"worker-{n}", servers]
                workers.append(Process(command, {}, folder / f"w{n}.err"))
            return asyncio.run(_items(servers, workers, seconds, seed, rate))
        finally:
            for each in workers:
                each.end()


async def _items(
    servers: str, workers: list[Process], seconds: float, seed: int, rate: float
) -> dict[str, Any]:
    offered, put = Offered(), 0
    async with (
        ReplicatedQueue.open(servers, "work", name="put") as queue,
        ReplicatedCounter.open(servers, "results", name="check") as results,
    ):

        async def one(number: int, due: float) -> None:
            nonlocal put
            put += number

            async def attempt() -> bool | None:
                try:
                    await queue.put(number, id=f"item {number}")
                except ClientError:
                    return None
                return True

            assert await offered.request(due, attempt), f"item {number}: not put for a minute"

        faults = asyncio.create_task(asyncio.to_thread(disturb, workers, seconds, random.Random(seed)))
        await offered.schedule(rate / REQUESTS_OF_ITEM, faults.done, one)
        counts, left = await faults, await queue.counts()
        behind = left["waiting"]
        deadline = time.monotonic() + 60
        while left != {"waiting": 0, "taken": 0, "dead": 0}:
            if left["dead"]:
                await queue.requeue_dead()
            assert time.monotonic() < deadline, f"nothing is done of what is left: {left}"
            await asyncio.sleep(0.1)
            before, left = left, await queue.counts()
            if left["waiting"] < before["waiting"]:
                deadline = time.monotonic() + 60
        assert await results.value("sum") == put, "an item was lost or counted twice"
        told = offered.told()
        told["requests_per_second"] *= REQUESTS_OF_ITEM
        return {"items": told.pop("requests"), "behind": behind, **told, **counts}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.services", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="how long each service is disturbed (120)"
    )
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second (200)")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    for name, run in (("orders", order_service), ("work queue", work_queue)):
        with tempfile.TemporaryDirectory() as folder:
            told = run(Path(folder), chosen.seconds, chosen.seed, rate=chosen.rate)
            print(name, json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
