"""Many producers that write seldom, as a program of its own.

`python -m tests.bench._many_producers WHOSE SERVERS TOPIC PARTITIONS PRODUCERS PER_SECOND SECONDS`, where WHOSE is
`ours` or `kafka`: each producer sends single records of 100 bytes to one partition, without lingering, acknowledged
by all. Ends with one line of JSON: the seconds from `send` to the acknowledgement of each record, sorted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import trio

from insync.replication import Producer
from insync.replication.client.producer.delivery import Delivery

VALUE = b"x" * 100
PROCESSES = 5


def measure(
    whose: str, servers: str, topic: str, partitions: int, producers: int, per_second: int, seconds: float
) -> list[float]:
    """All of it in several processes at once; sorted seconds of all records."""
    each = max(1, producers // PROCESSES)
    arguments = [whose, servers, topic, *map(str, (partitions, each, per_second, seconds))]
    command = [sys.executable, "-m", "tests.bench._many_producers", *arguments]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    taken: list[float] = []
    try:
        for process in running:
            said, _ = process.communicate(timeout=120 + 10 * seconds)
            if process.returncode:
                raise RuntimeError(f"producers of {whose} ended with {process.returncode}")
            taken += json.loads(said.splitlines()[-1])
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return sorted(taken)


async def _ours(
    servers: str, topic: str, partitions: int, producers: int, per_second: int, seconds: float
) -> list[float]:
    taken: list[float] = []
    failed: list[object] = []

    def note(begun: float, delivery: Delivery) -> None:
        (taken if delivery.error is None else failed).append(time.perf_counter() - begun)

    async def one(number: int, everybody: trio.Event) -> None:
        async with Producer(servers.split(","), linger_ms=0) as producer:
            await producer.prepare(topic)
            waiting.discard(number)
            if not waiting:
                everybody.set()
            await everybody.wait()
            # Spread over the interval, as producers that know nothing of each other are.
            start = trio.current_time() + number / producers / per_second
            for index in range(int(seconds * per_second)):
                await trio.sleep_until(start + index / per_second)
                told = partial(note, time.perf_counter())
                await producer.send(topic, VALUE, partition=number % partitions, on_delivery=told)
            await producer.flush()

    waiting = set(range(producers))
    everybody = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(producers):
            nursery.start_soon(one, number, everybody)
    if failed:
        raise RuntimeError(f"{len(failed)} records were not acknowledged")
    return taken


def _kafka(
    servers: str, topic: str, partitions: int, producers: int, per_second: int, seconds: float
) -> list[float]:
    import confluent_kafka as ck

    settings = {"bootstrap.servers": servers, "linger.ms": 0, "socket.nagle.disable": True, "acks": "all"}
    made = [ck.Producer(settings) for _ in range(producers)]
    for producer in made:
        producer.list_topics(topic, 60)
    taken: list[float] = []
    failed: list[Any] = []
    is_over = threading.Event()

    def note(begun: float, error: Any, _: Any) -> None:
        (taken if error is None else failed).append(time.perf_counter() - begun)

    def poll() -> None:
        while not is_over.is_set():
            for producer in made:
                producer.poll(0)
            time.sleep(0.0005)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        start = time.perf_counter()
        for index in range(int(seconds * per_second) * producers):
            time.sleep(max(0.0, start + index / per_second / producers - time.perf_counter()))
            number = index % producers
            made[number].produce(
                topic, VALUE, partition=number % partitions, on_delivery=partial(note, time.perf_counter())
            )
        for producer in made:
            producer.flush(60)
    finally:
        is_over.set()
        thread.join()
    if failed:
        raise RuntimeError(f"{len(failed)} records were not acknowledged: {failed[:1]}")
    return taken


def main() -> None:
    """See above."""
    whose, servers, topic, partitions, producers, per_second, seconds = sys.argv[1:]
    given = servers, topic, int(partitions), int(producers), int(per_second), float(seconds)
    taken = trio.run(_ours, *given) if whose == "ours" else _kafka(*given)
    print(json.dumps(sorted(taken)))


if __name__ == "__main__":
    main()
