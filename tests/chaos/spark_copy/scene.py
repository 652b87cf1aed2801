"""What is killed: nodes, a driver with its executors, and the topics between them. All of it ended by ids."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import psutil

from insync.replication import BlockingAdmin, BlockingConsumer, BlockingProducer

from ...processes import NodeProcess
from ...spark_home import spark_home

SOURCE, TARGET = "copied-from", "copied-to"
PARTITIONS = 3
NODES = 3
EXECUTORS = 3
PATIENCE_S = 900.0
"""For anything to recover; a machine with other work takes a minute to start a JVM."""
_LOOK_EVERY_S = 0.1
_LOOK_AT_PROCESSES_EVERY_S = 1.0
"""All of the machine's are looked through for it."""
_KEYS = 97
_EXECUTOR = "CoarseGrainedExecutorBackend"


class StuckError(Exception):
    """Something did not come within `PATIENCE_S`."""


def wait_until(what: str, there: Callable[[], bool], every: float = _LOOK_EVERY_S) -> None:
    """Raises StuckError."""
    began = time.monotonic()
    while not there():
        if time.monotonic() - began > PATIENCE_S:
            raise StuckError(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(every)


class Nodes:
    """Three nodes, each started again where it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[int, NodeProcess] = {}
        self._listen: dict[int, str] = {}
        for number in range(1, NODES + 1):
            self.start(number)
        self.servers = ",".join(self._listen.values())
        self.admin = BlockingAdmin(self.servers)
        for name in (SOURCE, TARGET):
            self.admin.create_topic(name, PARTITIONS, NODES)

    @property
    def folders(self) -> list[Path]:
        return [node.folder / f"node-{number}" for number, node in sorted(self._running.items())]

    def start(self, number: int) -> None:
        listen = self._listen.get(number, "tcp://127.0.0.1:0")
        node = NodeProcess.start(number, self._folder, "--listen", listen, "--session-timeout-ms", "5000")
        # The port of the first start is kept, so that clients find the node again.
        self._listen.setdefault(number, node.endpoint.partition("?")[0])
        self._running[number] = node

    def kill(self, number: int) -> None:
        self._running[number].kill()

    def leaders(self) -> list[int]:
        """Of the target's partitions."""
        (found,) = self.admin.describe_topics([TARGET])
        return [each.leader for each in found.partitions]

    def all_in_sync(self) -> bool:
        found = self.admin.describe_topics([SOURCE, TARGET])
        return all(len(each.isr) == NODES for topic in found for each in topic.partitions)

    def stop(self) -> None:
        """In good order."""
        self.admin.close()
        for node in self._running.values():
            if node.stop():
                raise RuntimeError(f"node {node.node_id} ended badly")

    def end(self) -> None:
        for node in self._running.values():
            node.kill()


class Feeder:
    """Writes numbers to the source without pause, in a thread, by an idempotent producer."""

    def __init__(self, servers: str, per_second: int) -> None:
        self.sent = 0
        self.error: BaseException | None = None
        self._servers = servers
        self._pause = 0.1
        self._at_once = max(1, int(per_second * self._pause))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with BlockingProducer(self._servers, delivery_timeout_ms=300_000) as producer:
                while not self._over.wait(self._pause):
                    for _ in range(self._at_once):
                        producer.send(SOURCE, b"%d" % self.sent, key=b"key-%d" % (self.sent % _KEYS))
                        self.sent += 1
                producer.flush(PATIENCE_S)
        except BaseException as error:  # noqa: BLE001 - told by whoever stops the thread
            self.error = error

    def stop(self) -> int:
        """How many were sent, each of them acknowledged."""
        self._over.set()
        self._thread.join(PATIENCE_S)
        if self.error is not None or self._thread.is_alive():
            raise RuntimeError(f"the input could not be written: {self.error}")
        return self.sent


@attrs.define
class Driver:
    """The process of the job; with it its JVM and, below that, its executors."""

    process: subprocess.Popen[str]
    _started: dict[str, Any] = attrs.Factory(dict)

    def started(self) -> dict[str, Any]:
        """How long it took to have a session and to start the query; waits until it has."""
        if not self._started:
            self._started = self.answer()
            assert self._started["state"] == "started", self._started
        return self._started

    def executors(self) -> list[psutil.Process]:
        """Those that work, in a JVM each."""
        return [each for each in _below(self.process.pid) if _is_executor(each)]

    def everything(self) -> list[psutil.Process]:
        return _below(self.process.pid)

    def kill(self) -> None:
        """Python and its JVM at once. Executors find out by themselves, and may go on until they do."""
        with_jvm = psutil.Process(self.process.pid).children()
        self.process.kill()
        for each in with_jvm:
            _kill(each)
        self.process.wait()

    def ask(self, order: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise StuckError(f"the driver ended with status {self.process.wait()}")
        return json.loads(line)


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_executor(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and any(
            _EXECUTOR in each for each in process.cmdline()
        )
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


class Job:
    """The copy: its drivers, one after the other, and what their checkpoint says."""

    def __init__(self, folder: Path, servers: str, *, exactly_once: bool, transactional: bool) -> None:
        self._folder = folder
        self._checkpoint = folder / "checkpoint"
        self._about = {
            "master": f"local-cluster[{EXECUTORS},1,1024]",
            "folder": str(folder),
            "servers": servers,
            "source": SOURCE,
            "target": TARGET,
            "checkpoint": str(self._checkpoint),
            "rows": 15_000,
            "exactly_once": exactly_once,
            "transactional": transactional,
        }
        self.ended_by_itself = 0
        self._seen: set[psutil.Process] = set()
        self._looked = 0.0
        (folder / "tmp").mkdir()
        self.driver = self._start()

    def _start(self) -> Driver:
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home(self._folder)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self._folder / "tmp"),
        }
        with (self._folder / "driver.err").open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.spark_copy.job", json.dumps(self._about)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                # As if on a machine of its own: where sessions share processors evenly, nodes leave it some.
                start_new_session=True,
            )
        return Driver(process)

    def start_again(self) -> None:
        """Whatever the last driver left is left alone: a task of it may still write."""
        self.driver = self._start()

    def planned(self) -> int:
        return _last(self._checkpoint / "offsets")

    def committed(self) -> int:
        return _last(self._checkpoint / "commits")

    def committed_at(self, batch: int) -> float:
        """When a batch was done, by the clock of files."""
        return (self._checkpoint / "commits" / str(batch)).stat().st_mtime

    def last_took(self) -> float:
        """Seconds from the plan of the last batch that is done to its end."""
        batch = self.committed()
        return self.committed_at(batch) - (self._checkpoint / "offsets" / str(batch)).stat().st_mtime

    def rows_committed(self) -> int:
        """Of the source, up to the end of the last batch that is done."""
        batch = self.committed()
        if batch < 0:
            return 0
        # The first two lines are a version and Spark's own notes.
        source = json.loads((self._checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
        return sum(source[SOURCE].values())

    def wait_for_batch(self, after: int) -> None:
        """Until a batch later than `after` is done; a driver that ends by itself is started again, and counted."""

        def done() -> bool:
            self._note_processes()
            if self.driver.process.poll() is not None:
                self.ended_by_itself += 1
                self.start_again()
            return self.committed() > after

        wait_until(f"batch {after + 1}", done)

    def _note_processes(self) -> None:
        if time.monotonic() >= self._looked + _LOOK_AT_PROCESSES_EVERY_S:
            self._looked = time.monotonic()
            self._seen |= set(self.driver.everything())

    def wait_for_executors(self) -> None:
        """Until as many work as there should be."""
        wait_until(
            "all executors",
            lambda: len(self.driver.executors()) == EXECUTORS,
            every=_LOOK_AT_PROCESSES_EVERY_S,
        )

    def wait_for_work(self) -> None:
        """Until a batch is planned that is not done."""
        wait_until("a batch under way", lambda: self.planned() > self.committed())

    def end(self) -> None:
        self._seen |= set(self.driver.everything())
        if self.driver.process.poll() is None:
            self.driver.kill()
        for each in self._seen:
            _kill(each)
        for pipe in (self.driver.process.stdin, self.driver.process.stdout):
            if pipe is not None:
                pipe.close()


def _last(folder: Path) -> int:
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def ends(servers: str, topic: str) -> int:
    """Records that are committed, in all partitions."""
    with BlockingConsumer(servers) as consumer:
        return sum(consumer.end_offsets(consumer.assign_topic(topic)).values())


def read_all(servers: str, topic: str) -> dict[int, list[bytes]]:
    """The committed values of each partition, in order."""
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    with (
        BlockingConsumer(
            servers,
            auto_offset_reset="earliest",
            max_poll_records=100_000,
            isolation_level="read_committed",
        ) as consumer,
        BlockingConsumer(servers) as everything,
    ):
        ends = everything.end_offsets(consumer.assign_topic(topic))
        wait_until("every transaction decided", lambda: consumer.end_offsets(list(ends)) == ends)
        while any((consumer.position(at) or 0) < end for at, end in ends.items()):
            before = {at: consumer.position(at) for at in ends}
            for record in (records := consumer.poll(30_000)):
                found[record.partition].append(record.value or b"")
            if not records and before == {at: consumer.position(at) for at in ends}:
                raise StuckError(f"{topic}: records do not come from {before} on")
    return found


def pick(choice: random.Random, among: Sequence[Any]) -> Any:
    return among[choice.randrange(len(among))]
