"""`python -m tests.chaos.services`: the services of docs/examples under kill -9, SIGSTOP and rolling restarts.

An order service of three processes takes orders while its processes die, stand still and are restarted. No
acknowledged order is lost, none is there twice (clients repeat theirs at other processes), every current read finds
what was acknowledged before it, and in the end all copies are equal. A work queue does every item once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from insync.replication.state.blocking import ReplicatedCounter, ReplicatedQueue

from ..processes import cluster

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PATIENCE = 3.0


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
    repeats: int = 0
    stopping: threading.Event = attrs.Factory(threading.Event)

    def client(self, number: int, pause: float) -> None:
        dice = random.Random(number)
        count = 0
        while not self.stopping.is_set():
            key = f"{number}-{count}"
            count += 1
            self.tried.add(key)
            body = {"item": "seat", "count": 1, "note": key}
            answer = self.until_told(dice, "POST", "/orders", body, key)
            if answer is None:
                return
            status, told = answer
            if status != 201:
                self.wrong.append(f"order {key}: {status} {told}")
                return
            self.done[key] = told["number"]
            # Current, at any process: also at one that was cut off when the order was acknowledged.
            found = self.until_told(dice, "GET", f"/orders/{told['number']}", None, key)
            if found is not None:
                self.reads += 1
                if found[0] != 200 or found[1]["note"] != key:
                    self.wrong.append(f"order {key} was acknowledged, and then: {found}")
            self.stopping.wait(pause)

    def check(self, notes: list[str]) -> None:
        """What the service has in the end: `notes` are the keys of its orders."""
        assert not self.wrong, self.wrong[:3]
        assert len(notes) == len(set(notes)), "an order is there twice"
        assert set(self.done) <= set(notes) <= self.tried, (
            "an acknowledged order is lost, or one is of nobody"
        )

    def until_told(
        self, dice: random.Random, method: str, path: str, body: dict[str, Any] | None, key: str
    ) -> tuple[int, Any] | None:
        """Ask one process after the other, until one says what became of it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                status, told = ask(dice.choice(self.urls()), method, path, body, key)
            except (OSError, http.client.HTTPException, ValueError):
                status, told = 503, None
            if status < 500:
                return status, told
            self.repeats += 1
            time.sleep(0.05)
        self.wrong.append(f"{method} {path} {key}: no answer for a minute")
        return None


def ask(
    url: str, method: str, path: str, body: dict[str, Any] | None = None, key: str = ""
) -> tuple[int, Any]:
    """One HTTP request; its status and decoded answer."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE)
    try:
        headers = {"idempotency-key": key, "content-type": "application/json"} if key else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def order_service(
    folder: Path, seconds: float, seed: int, *, clients: int = 16, pause: float = 0.03
) -> dict[str, Any]:
    """The whole run; raises AssertionError where a promise was broken."""
    processes: list[Process] = []
    starting: list[threading.Thread] = []
    for number in (1, 2, 3):
        env = {
            "NODE_ID": str(number),
            "DATA": str(folder / f"node-{number}"),
            "STORE": f"sqlite://{folder / 'meta.db'}",
        }
        command = [sys.executable, str(EXAMPLES / "orders.py")]
        processes.append(Process(command, env, folder / f"service-{number}.err"))
    try:
        load = Orders(lambda: [each.line for each in processes])
        dice = random.Random(seed)
        assert load.until_told(dice, "POST", "/stock", {"item": "seat", "count": 10**9}, "stock") is not None
        starting = [threading.Thread(target=load.client, args=(n, pause)) for n in range(clients)]
        for thread in starting:
            thread.start()
        began = time.monotonic()
        counts = disturb(processes, seconds, dice)
        rate = (len(load.done) + load.reads + load.repeats) / (time.monotonic() - began)
        load.stopping.set()
        for thread in starting:
            thread.join()
        states = [load_state(load, each.line, dice) for each in processes]
        # Nobody writes any more; only what copies tell each other may still come.
        deadline = time.monotonic() + 60
        while len({(state["applied"], state["digest"]) for state in states}) > 1:
            assert time.monotonic() < deadline, states
            states = [load_state(load, each.line, dice) for each in processes]
        load.check(states[-1]["notes"])
        return {
            "orders": len(load.done),
            "reads": load.reads,
            "repeats": load.repeats,
            "requests_per_second": round(rate),
            **counts,
        }
    finally:
        for each in processes:
            each.end()


def load_state(load: Orders, url: str, dice: random.Random) -> dict[str, Any]:
    """What one process has, when it is well again."""
    found = Orders(lambda: [url]).until_told(dice, "GET", "/state", None, "state")
    assert found is not None and found[0] == 200, (url, found)
    state: dict[str, Any] = found[1]
    return state


def work_queue(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Workers that die and stand still, over nodes that live; every item is counted once."""
    dice = random.Random(seed)
    with cluster(folder) as nodes:
        servers = ",".join(node.endpoint for node in nodes)
        workers = [
            Process(
                [sys.executable, str(EXAMPLES / "worker.py"), f"worker-{n}", servers],
                {},
                folder / f"w{n}.err",
            )
            for n in (1, 2, 3)
        ]
        put = 0
        try:
            with (
                ReplicatedQueue.open(servers, "work", name="put") as queue,
                ReplicatedCounter.open(servers, "results", name="check") as results,
            ):
                counts: dict[str, int] = {}
                faults = threading.Thread(target=lambda: counts.update(disturb(workers, seconds, dice)))
                faults.start()
                while faults.is_alive():
                    put += 1
                    queue.put(put)
                    time.sleep(0.01)
                faults.join()
                assert counts, "the faults have ended by an error"
                deadline = time.monotonic() + 60
                while (left := queue.counts()) != {"waiting": 0, "taken": 0, "dead": 0}:
                    if left["dead"]:
                        queue.requeue_dead()
                    assert time.monotonic() < deadline, left
                    time.sleep(0.1)
                assert results.value("sum") == put * (put + 1) // 2, "an item was lost or counted twice"
                return {"items": put, **counts}
        finally:
            for each in workers:
                each.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.services", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="how long each service is disturbed (120)"
    )
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    for name, run in (("orders", order_service), ("work queue", work_queue)):
        with tempfile.TemporaryDirectory() as folder:
            print(name, json.dumps(run(Path(folder), chosen.seconds, chosen.seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
