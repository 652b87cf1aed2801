"""Executors are killed while records are written to logs that live on them: what is lost, and how long it takes.

    python -m tests.plugins.spark.executor_loss --times 10 --json
    python -m tests.plugins.spark.executor_loss --cluster standalone --times 10 --json

Three executors with a node each, a topic with three replicas, a writer for each of its partitions and a job after
the other whose tasks write as well. Each round kills the JVM of the executor whose node leads one of the partitions
by its process id; every other round what it had on disk goes, too, as if the replacement stood on another machine.
No writer may wait for longer than 5 s, and all replicas must be in sync again before the next round. A second
topic has two replicas and `min_insync_replicas=2`: where one of them is lost nothing may be acknowledged before
there is a replacement, no writer may fail, and all go on. At the end the files of all replicas are read, by a
decoder that is not ours: every acknowledged record must be in each of them. And a session that is stopped with logs
open must leave no file of theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from insync.plugins.spark import ExecutorLogs, session
from insync.plugins.spark.executors import _jobs
from insync.plugins.spark.executors._folders import Claim
from tests.chaos.replica_files import read_node

from .executors.clusters import Cluster, executor_pid, is_alive, local_cluster, standalone
from .executors.writers import TaskWriter, Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, TASKS, PAIRS = "writers", "tasks", "pairs"
PARTITIONS = 3
REPLICAS = {TOPIC: 3, TASKS: 3, PAIRS: 2}
IN_ALL = PARTITIONS * sum(REPLICAS.values())
WITHIN_S = 5.0
"""How long a writer may wait for the acknowledgement of a record (`writes_on_s`), the killed leader's included."""
PATIENCE_S = 240.0
"""How long anything may take at all."""

T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T | None]) -> T:
    return wait_for_all({what: look})[what][0]


def wait_for_all(looks: dict[str, Callable[[], T | None]]) -> dict[str, tuple[T, float]]:
    """What each has found, and when; they may come in any order."""
    deadline = time.monotonic() + PATIENCE_S
    found: dict[str, tuple[T, float]] = {}
    while time.monotonic() < deadline:
        for what in looks.keys() - found.keys():
            seen = looks[what]()
            if seen is not None:
                found[what] = seen, time.monotonic()
        if len(found) == len(looks):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{', '.join(sorted(looks.keys() - found.keys()))}: not within {PATIENCE_S:g} s")


class Loss:
    """A run: rounds, and what the replicas have in the end."""

    def __init__(self, spark: SparkSession, logs: ExecutorLogs, data: Path) -> None:
        self._context = spark.sparkContext
        self._application = str(self._context.applicationId)
        self._logs = logs
        self._folder = next(data.glob("*/*"))
        self._admin = logs.admin()
        self.writers = [Writer(logs.handle, TOPIC, number) for number in range(PARTITIONS)]
        patient = {"delivery_timeout_ms": int(2000 * PATIENCE_S)}
        self.pairs = [Writer(logs.handle, PAIRS, number, **patient) for number in range(PARTITIONS)]
        self.tasks = TaskWriter(spark.sparkContext, logs.handle, TASKS)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in (*self.writers, *self.pairs, self.tasks):
                stack.enter_context(each)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def warm_up(self) -> None:
        """All writers write, from tasks as well."""
        since = time.monotonic()
        wait_for("all writers write", lambda: self._went_on([*self.writers, *self.pairs], since))
        wait_for("a job has ended", lambda: self._check() or self.tasks.jobs or None)

    def round(self, number: int, lose_disk: bool) -> dict[str, Any]:
        """Kill the leader's executor, and wait until all is as before."""
        slot = self._leader(number % PARTITIONS)
        report = self._logs._keeper_.nodes[slot]
        known, halved = self._executors(), self._pairs_of(slot)
        killed = time.monotonic()
        os.kill(executor_pid(self._application, report.executor), signal.SIGKILL)
        wait_for("the node is gone", lambda: None if is_alive(report.pid) else True)
        gone = time.monotonic()
        if lose_disk:
            claim = Claim(self._folder, slot)
            # Threads of a process that has ended may take a moment to let go of its files.
            wait_for("the folder is free", lambda: claim.take() or None)
            claim.release(remove=True)
        came = wait_for_all(
            {
                "writes go on": lambda: self._went_on(self.writers, gone),
                "an executor has come": lambda: bool(self._executors() - known) or None,
            }
        )
        longest = max(each.longest_gap(killed) for each in self.writers)
        back = wait_for("a node has the slot", lambda: self._back(slot, report.executor))
        node_back = time.monotonic()
        wait_for("all replicas are in sync", self._in_sync)
        in_sync = time.monotonic()
        wait_for("writes to two replicas go on", lambda: self._went_on(halved, gone))
        return {
            "slot": slot,
            "executor": report.executor,
            "replacement": back,
            "disk": "lost" if lose_disk else "kept",
            "node_gone_s": round(gone - killed, 2),
            "writes_on_s": round(longest, 2),
            "executor_back_s": round(came["an executor has come"][1] - killed, 2),
            "node_back_s": round(node_back - killed, 2),
            "full_isr_s": round(in_sync - killed, 2),
            "pairs_waited_s": [round(each.first_after(gone) - killed, 2) for each in halved],
        }

    def _executors(self) -> set[str]:
        return {executor.id for executor in _jobs.executors(self._context)}

    def _check(self) -> None:
        for each in (*self.writers, *self.pairs, self.tasks):
            if each.failure is not None:
                raise AssertionError("a writer has failed") from each.failure

    def _went_on(self, writers: Iterable[Writer], since: float) -> bool | None:
        self._check()
        return all(each.went_on(since) for each in writers) or None

    def _pairs_of(self, slot: int) -> list[Writer]:
        """Those that write to one of two replicas in this slot."""
        (topic,) = self._admin.describe_topics([PAIRS])
        return [self.pairs[each.partition] for each in topic.partitions if slot in each.replicas]

    def _leader(self, partition: int) -> int:
        (topic,) = self._admin.describe_topics([TOPIC])
        return topic.partitions[partition].leader

    def _back(self, slot: int, former: str) -> str | None:
        executor = self._logs.nodes.get(slot)
        return executor if executor != former else None

    def _in_sync(self) -> bool | None:
        self._check()
        topics = self._admin.describe_topics(list(REPLICAS))
        return (
            all(len(each.isr) == REPLICAS[topic.name] for topic in topics for each in topic.partitions)
            or None
        )

    def settle(self) -> None:
        """Nobody writes any more, and every replica has all."""
        wait_for("all replicas are in sync", self._in_sync)
        wait_for("all replicas end at the same offset", self._all_equal)
        self._admin.close()

    def _all_equal(self) -> bool | None:
        ends: dict[tuple[str, int], list[int]] = {}
        reports = self._admin.describe_replicas(list(REPLICAS))
        for node in reports:
            for replica in node.replicas:
                ends.setdefault((replica.topic, replica.partition), []).append(replica.log_end_offset)
        complete = sum(map(len, ends.values())) == IN_ALL
        return (complete and all(len(set(each)) == 1 for each in ends.values())) or None

    def verdict(self) -> dict[str, Any]:
        """What the files of the replicas say."""
        writers = [*self.writers, *self.pairs]
        lost = missing = read = 0
        for folder in sorted(self._folder.glob("node-?")):
            found, damaged = read_node([folder])
            assert not damaged, damaged
            read += len(found)
            for each in writers:
                if (at := (each.topic, each.partition)) in found:
                    records = dict(found[at])
                    lost += sum(records.get(one.offset) != one.value for one in each.acknowledged)
            written = {value for n in range(PARTITIONS) for _, value in found[TASKS, n]}
            missing += len(self.tasks.values - written)
        return {
            "replicas_read": read,
            "acknowledged": sum(len(each.acknowledged) for each in self.writers),
            "acknowledged_by_two": sum(len(each.acknowledged) for each in self.pairs),
            "lost": lost,
            "task_jobs": self.tasks.jobs,
            "task_records": len(self.tasks.values),
            "task_records_lost": missing,
        }


def run(cluster: Cluster, folder: Path, times: int, tell: Callable[[str], None]) -> dict[str, Any]:
    spark = session(cluster.master, app_name="executor loss", config=cluster.config)
    data = folder / "logs"
    began = time.monotonic()
    rounds = []
    metadata: Path | None = None
    try:
        with ExecutorLogs(spark, replication_factor=3, data_dir=data, keep=True) as logs:
            metadata = logs.metadata_dir
            started = time.monotonic() - began
            for topic, replicas in REPLICAS.items():
                logs.create_topic(topic, PARTITIONS, replicas)
            with Loss(spark, logs, data) as loss:
                loss.warm_up()
                for number in range(times):
                    rounds.append(loss.round(number, lose_disk=number % 2 == 1))
                    tell(f"{number + 1}/{times}: {rounds[-1]}")
            loss.settle()
        verdict = loss.verdict()
        left = left_by_stop(spark, folder / "stopped")
    finally:
        spark.stop()
        if metadata is not None:
            shutil.rmtree(metadata, ignore_errors=True)
    return {"started_s": round(started, 2), "rounds": rounds, **verdict, "left_by_stop": left}


def left_by_stop(spark: SparkSession, data: Path) -> int:
    """Files and folders of logs that were open when their session was stopped."""
    logs = ExecutorLogs(spark, replication_factor=3, data_dir=data).__enter__()
    metadata = logs.metadata_dir
    if len(list(data.glob("*/*/node-?/"))) != 3 or not metadata.exists():
        raise AssertionError(f"the logs stood elsewhere than in {data} and {metadata}")
    spark.stop()
    return len(list(data.rglob("*"))) + metadata.exists()


def clusters(name: str, folder: Path) -> Iterator[Cluster]:
    with local_cluster(folder) if name == "local-cluster" else standalone(folder) as cluster:
        yield cluster


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--times", type=int, default=1, help="how many executors are killed, one after the other"
    )
    parser.add_argument("--cluster", choices=("local-cluster", "standalone"), default="local-cluster")
    parser.add_argument(
        "--within", type=float, default=WITHIN_S, help="seconds that writers may have to wait"
    )
    parser.add_argument("--json", action="store_true", help="nothing but one line of JSON on standard output")
    arguments = parser.parse_args()
    tell = (lambda line: print(line, file=sys.stderr)) if arguments.json else print
    with tempfile.TemporaryDirectory(prefix="insync-executor-loss-") as name:
        for cluster in clusters(arguments.cluster, Path(name)):
            result = run(cluster, Path(name), arguments.times, tell)
    too_early = sum(
        waited < each["executor_back_s"] for each in result["rounds"] for waited in each["pairs_waited_s"]
    )
    slowest = max((each["writes_on_s"] for each in result["rounds"]), default=0.0)
    wrong = result["lost"] + result["task_records_lost"] + result["left_by_stop"] + too_early
    result = {
        "ok": not wrong and result["acknowledged"] > 0 and slowest <= arguments.within,
        "cluster": arguments.cluster,
        "times": arguments.times,
        "slowest_writes_on_s": slowest,
        "acknowledged_too_early": too_early,
        **result,
    }
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
