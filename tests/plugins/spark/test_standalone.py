"""One application on a standalone cluster of Spark: master, workers, executors and driver in processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from insync.plugins.spark import JavaError, SparkMissingError, check_java, check_pyspark
from insync.replication import BlockingAdmin
from tests.requires import missing
from tests.tiers import uses

from .executors.clusters import HOSTS, Cluster, is_alive, standalone
from .pipeline import data_folders as data

DEADLINE_S = 500.0
ROWS = 3000
DRIVER = """
import json, sys, time
from insync.plugins.spark import ExecutorLogs, exactly_once, session
from insync.replication.cli import main

master, config, servers, rows, commands, place = sys.argv[1:]
# The commands take the session that runs already.
spark = session(master, config=json.loads(config))

def copy_numbers(options):
    numbers = spark.range(0, int(rows), 1, 6).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    exactly_once(numbers).options(topic="out", **options).save()
    found = spark.read.format("insync").options(subscribe="out", **options).load()
    return list(found.selectExpr("COUNT(*)", "COUNT(DISTINCT value)", "COUNT(DISTINCT partition)").first())

print(json.dumps(copy_numbers({"servers": servers})))
for arguments in commands.split("|"):
    status = main(arguments.split())
    if status:
        sys.exit(status)
logs = ExecutorLogs(spark, data_dir=place).__enter__()
logs.create_topic("out", 3)
copied = copy_numbers(logs.options)
logs.create_topic("tasks", 3)
values = spark.sparkContext.parallelize([b"%d" % n for n in range(int(rows))], 6)
values.foreachPartition(logs.write_partition("tasks"))
written = logs.rdd("tasks").map(lambda record: record.value).collect()
print(json.dumps({
    "copied": copied,
    "written": sorted(map(int, written)) == list(range(int(rows))),
    "nodes": logs.nodes,
    "pids": [logs._keeper_.pid, *(report.pid for report in logs._keeper_.nodes.values())],
    "metadata": str(logs.metadata_dir),
}), flush=True)
time.sleep(600)
"""


@attrs.frozen
class Application:
    """What the driver has told, in the order of the above; it goes on until it is killed."""

    process: subprocess.Popen[str]
    read: list[int]
    audited: dict[str, object]
    exported: dict[str, object]
    logs: dict[str, object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
@uses("jvm")
def master(folder: Path) -> Iterator[Cluster]:
    """A master with three workers, whose environment knows nothing of this package."""
    try:
        check_pyspark()
        check_java()
    except (SparkMissingError, JavaError) as error:
        missing(str(error))
    with standalone(folder) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def application(master: Cluster, servers: str, admin: BlockingAdmin, folder: Path) -> Iterator[Application]:
    admin.create_topic("out", 3, 1, {"min_insync_replicas": 1})
    folders = data.three(folder, {0: data.batches(), 1: data.batches(20)})
    audit = f"pipeline audit {' '.join(map(str, folders))} --master {master.master} --json"
    export = (
        f"pipeline export orders {folder / 'out'} --data-dir {folders[0]} --master {master.master} --json"
    )
    config = {**master.config, "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    arguments = (
        master.master,
        json.dumps(config),
        servers,
        str(ROWS),
        f"{audit}|{export}",
        str(folder / "logs"),
    )
    errors = folder / "driver.err"
    with errors.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    overdue = threading.Timer(DEADLINE_S, process.kill)
    overdue.start()
    try:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(4)]
        overdue.cancel()
        assert all(told), errors.read_text()
        yield Application(process, *map(json.loads, told))
    finally:
        overdue.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_what_the_sink_writes_the_source_reads(application: Application, folder: Path) -> None:
    assert application.read == [ROWS, ROWS, 3]
    used = {path.parents[2].name for path in folder.glob("work-*/app-*/*/insync-lib")}
    assert len(used) == len(HOSTS), "each worker's executor has unpacked the package"


def test_an_audit_and_an_export(application: Application) -> None:
    audited, exported = application.audited, application.exported
    assert (audited["ok"], audited["replicas"], audited["records"]) == (True, 6, 3 * 2200)
    assert (exported["rows"], exported["offsets"]) == (2200, {"0": 2000, "1": 200})


def test_logs_on_the_executors_are_written_and_read_by_tasks(application: Application) -> None:
    logs = application.logs
    assert logs["copied"] == [ROWS, ROWS, 3] and logs["written"] is True
    nodes = logs["nodes"]
    assert isinstance(nodes, dict) and len(set(nodes.values())) == len(HOSTS), "a node for each executor"


def test_a_driver_that_is_killed_leaves_no_process_and_no_file(
    application: Application, folder: Path
) -> None:
    place, pids = folder / "logs", application.logs["pids"]
    assert isinstance(pids, list) and len(pids) == 1 + len(HOSTS)
    assert all(map(is_alive, pids)) and len(list(place.glob("*/*/node-?/tasks-?/"))) == 9
    metadata = Path(str(application.logs["metadata"]))
    assert metadata.exists()
    application.process.kill()
    wait_until("keeper and nodes end", lambda: not any(map(is_alive, pids)))
    assert list(place.iterdir()) == [], "a killed driver left logs behind"
    assert not metadata.exists(), "a killed driver left its metadata behind"


def wait_until(what: str, true: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S:g} s"
        time.sleep(0.05)
