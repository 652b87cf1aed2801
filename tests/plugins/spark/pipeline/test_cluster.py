"""Source, sink and jobs on a standalone cluster of Spark: master, workers, executors and driver in processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from insync.plugins.spark import JavaError, SparkMissingError, check_java, check_pyspark
from insync.replication import BlockingAdmin
from tests.requires import missing

from ..conftest import QUICK
from . import data_folders as data

DEADLINE_S = 500.0
WORKERS = 3
ROWS = 3000
RUN = """
import json, sys
from insync.plugins.spark import exactly_once, session
from insync.replication.cli import main

master, servers, rows, java, commands = sys.argv[1:]
# The commands take the session that runs already.
spark = session(master, config={
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": java,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": java,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.enabled": "false",
})
options = {"servers": servers, "topic": "out"}
numbers = spark.range(0, int(rows), 1, 6).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
exactly_once(numbers).options(**options).save()
found = spark.read.format("insync").options(servers=servers, subscribe="out").load()
read = found.selectExpr("COUNT(*)", "COUNT(DISTINCT value)", "COUNT(DISTINCT partition)").first()
print(json.dumps(list(read)))
for arguments in commands.split("|"):
    status = main(arguments.split())
    if status:
        sys.exit(status)
spark.stop()
"""


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> re.Match[str]:
    deadline = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        found = re.search(pattern, log.read_text())
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"no {pattern!r} in {log.read_text()}")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with three workers, whose environment knows nothing of this package."""
    try:
        check_pyspark()
        check_java()
    except (SparkMissingError, JavaError) as error:
        missing(str(error))
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    left_out = ("PYTHONPATH", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> tuple[Path, subprocess.Popen[bytes]]:
        log = tmp_path / f"{name}.log"
        with log.open("wb") as out:
            command = [str(program), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
            started.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=tmp_path))
        return log, started[-1]

    try:
        loopback = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = wait_for(*_swap(start("master", "master.Master", *loopback), r"spark://127\.0\.0\.1:\d+"))[0]
        workers = []
        for number in range(WORKERS):
            work = ("--work-dir", str(tmp_path / f"work-{number}"), "--cores", "1", "--memory", "1g")
            workers.append(start(f"worker-{number}", "worker.Worker", *loopback, *work, url))
        for worker in workers:
            wait_for(*_swap(worker, "Successfully registered with master"))
        yield url
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def _swap(
    started: tuple[Path, subprocess.Popen[bytes]], pattern: str
) -> tuple[Path, str, subprocess.Popen[bytes]]:
    log, process = started
    return log, pattern, process


def test_a_topic_an_audit_and_an_export_by_executors_of_their_own(
    master: str, servers: str, admin: BlockingAdmin, tmp_path: Path
) -> None:
    admin.create_topic("out", 3, 1, {"min_insync_replicas": 1})
    folders = data.three(tmp_path, {0: data.batches(), 1: data.batches(20)})
    audit = f"pipeline audit {' '.join(map(str, folders))} --master {master} --json"
    export = f"pipeline export orders {tmp_path / 'out'} --data-dir {folders[0]} --master {master} --json"
    run = subprocess.run(
        [sys.executable, "-c", RUN, master, servers, str(ROWS), QUICK, f"{audit}|{export}"],
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=DEADLINE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    read, audited, exported = map(json.loads, run.stdout.splitlines())
    assert read == [ROWS, ROWS, 3]
    assert (audited["ok"], audited["replicas"], audited["records"]) == (True, 6, 3 * 2200)
    assert (exported["rows"], exported["offsets"]) == (2200, {"0": 2000, "1": 200})
    used = {path.parents[2].name for path in tmp_path.glob("work-*/app-*/*/insync-lib")}
    assert len(used) == WORKERS, "each worker's executor has unpacked the package"
