"""Many producers of single records, as a program of its own: `python -m tests.bench._many_producers WHOSE LOAD`.

WHOSE is `ours` or `kafka`; LOAD is JSON of a `Load`. Each producer sends single records to one partition, without
lingering, acknowledged by all. Ends with one line of JSON: the seconds from `send` to the acknowledgement of each
record, sorted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import attrs
import trio

from insync.replication import Producer
from insync.replication.client.producer.delivery import Delivery

PROCESSES = 5


@attrs.frozen(kw_only=True)
class Load:
    """per_second: records of each producer; 0 if it sends the next one when the last is acknowledged.

    size: bytes of a record.
    """

    servers: str
    topic: str
    partitions: int
    producers: int
    seconds: float
    per_second: int = 0
    size: int = 100

    def begins(self, number: int) -> float:
        """Seconds from the start: over the interval, as producers that know nothing of each other are."""
        return number / self.producers / self.per_second

    @property
    def records(self) -> int:
        """Of each producer."""
        return int(self.seconds * self.per_second)


def measure(whose: str, load: Load) -> list[float]:
    """All of it in several processes at once; sorted seconds of all records."""
    processes = min(PROCESSES, load.producers)
    share = attrs.evolve(load, producers=load.producers // processes)
    given = [whose, json.dumps(attrs.asdict(share))]
    command = [sys.executable, "-m", "tests.bench._many_producers", *given]
    running = [_started(command) for _ in range(processes)]
    taken: list[float] = []
    try:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        for process in running:
            _tell(process)
        for process in running:
            said, _ = process.communicate(timeout=120 + 10 * load.seconds)
            if process.returncode:
                raise RuntimeError(f"producers of {whose} ended with {process.returncode}")
            taken += json.loads(said.splitlines()[-1])
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return sorted(taken)


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _tell(process: subprocess.Popen[str]) -> None:
    """That all are ready."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, which its status says
        process.stdin.write("\n")
        process.stdin.flush()


def _wait_for_the_others() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


async def _ours(load: Load) -> list[float]:
    taken: list[float] = []
    failed: list[object] = []
    value = b"x" * load.size

    def note(begun: float, delivery: Delivery) -> None:
        (taken if delivery.error is None else failed).append(time.perf_counter() - begun)

    async def at_times(producer: Producer, number: int) -> None:
        start = trio.current_time() + load.begins(number)
        for index in range(load.records):
            await trio.sleep_until(start + index / load.per_second)
            told = partial(note, time.perf_counter())
            await producer.send(load.topic, value, partition=number % load.partitions, on_delivery=told)
        await producer.flush()

    async def in_turn(producer: Producer, number: int) -> None:
        end = time.perf_counter() + load.seconds
        while (begun := time.perf_counter()) < end:
            await producer.send_and_wait(load.topic, value, partition=number % load.partitions)
            if (now := time.perf_counter()) < end:
                taken.append(now - begun)

    async def one(number: int) -> None:
        async with Producer(load.servers.split(","), linger_ms=0) as producer:
            await producer.prepare(load.topic)
            if not load.per_second:  # a run is short, and to connect takes as long as some records
                await producer.send_and_wait(load.topic, value, partition=number % load.partitions)
            waiting.discard(number)
            if not waiting:
                await trio.to_thread.run_sync(_wait_for_the_others)
                everybody.set()
            await everybody.wait()
            await (at_times if load.per_second else in_turn)(producer, number)

    waiting = set(range(load.producers))
    everybody = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(load.producers):
            nursery.start_soon(one, number)
    if failed:
        raise RuntimeError(f"{len(failed)} records were not acknowledged")
    return taken


def _kafka(load: Load) -> list[float]:
    import confluent_kafka as ck

    settings = {
        "bootstrap.servers": load.servers,
        "linger.ms": 0,
        "socket.nagle.disable": True,
        "acks": "all",
    }
    made = [ck.Producer(settings) for _ in range(load.producers)]
    for producer in made:
        producer.list_topics(load.topic, 60)
    taken: list[float] = []
    failed: list[Any] = []

    def note(begun: float, error: Any, _: Any) -> None:
        now = time.perf_counter()
        if error is not None:
            failed.append(error)
        elif load.per_second or now < end:
            taken.append(now - begun)

    def send(number: int) -> None:
        made[number].produce(
            load.topic,
            b"x" * load.size,
            partition=number % load.partitions,
            on_delivery=partial(note, time.perf_counter()),
        )

    def in_turn(number: int) -> None:
        while time.perf_counter() < end:
            send(number)
            made[number].flush(60)

    end = 0.0
    if load.per_second:
        _wait_for_the_others()
        _at_times(load, made, send)
    else:
        for number, producer in enumerate(made):
            send(number)
            producer.flush(60)
        _wait_for_the_others()
        end = time.perf_counter() + load.seconds
        with ThreadPoolExecutor(load.producers) as pool:
            list(pool.map(in_turn, range(load.producers)))
    if failed:
        raise RuntimeError(f"{len(failed)} records were not acknowledged: {failed[:1]}")
    return taken


def _at_times(load: Load, made: Sequence[Any], send: Callable[[int], None]) -> None:
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            for producer in made:
                producer.poll(0)
            time.sleep(0.0005)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        start = time.perf_counter()
        for index in range(load.records * load.producers):
            round_, number = divmod(index, load.producers)
            due = start + load.begins(number) + round_ / load.per_second
            time.sleep(max(0.0, due - time.perf_counter()))
            send(number)
        for producer in made:
            producer.flush(60)
    finally:
        is_over.set()
        thread.join()


def main() -> None:
    """See above."""
    whose, load = sys.argv[1], Load(**json.loads(sys.argv[2]))
    taken = trio.run(_ours, load) if whose == "ours" else _kafka(load)
    print(json.dumps(sorted(taken)))


if __name__ == "__main__":
    main()
