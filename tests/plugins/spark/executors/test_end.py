"""The end of an application, in order and not: no process and no file stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from insync.plugins.spark import JavaError, SparkMissingError, check_java, check_pyspark
from tests.requires import missing

from .clusters import QUICK, is_alive

PATIENCE_S = 200.0
DRIVER = """
import json, sys, time
from pathlib import Path
from insync.plugins.spark import ExecutorLogs, session

places, config = json.loads(sys.argv[1]), json.loads(sys.argv[2])
spark = session("local[2]", config=config)
ExecutorLogs(spark, replication_factor=1, data_dir=places[0]).__enter__()
there = len(list(Path(places[0]).glob("*/*/node-1/")))
spark.stop()
left = [str(path) for path in Path(places[0]).rglob("*")]
spark = session("local[2]", config=config)
logs = ExecutorLogs(spark, replication_factor=1, data_dir=places[1]).__enter__()
logs.create_topic("last", 1)
logs.write_partition("last")([b"words"])
pids = [logs._keeper_.pid, logs._keeper_.nodes[1].pid]
print(json.dumps({"there": there, "left": left, "pids": pids, "metadata": str(logs.metadata_dir)}), flush=True)
time.sleep(600)
"""


def wait_until(what: str, true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s"
        time.sleep(0.05)


def test_nothing_is_left_by_a_stopped_session_nor_by_a_killed_driver(tmp_path: Path) -> None:
    try:
        check_pyspark()
        check_java()
    except (SparkMissingError, JavaError) as error:
        missing(str(error))
    places = [tmp_path / "stopped", tmp_path / "killed"]
    config = {
        "spark.driver.extraJavaOptions": QUICK,
        "spark.local.dir": str(tmp_path / "local"),
        "spark.log.level": "OFF",
    }
    command = [sys.executable, "-c", DRIVER, json.dumps(list(map(str, places))), json.dumps(config)]
    with (tmp_path / "driver.err").open("w") as errors:
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert driver.stdout is not None
        line = driver.stdout.readline()
        assert line, (tmp_path / "driver.err").read_text()
        told = json.loads(line)
        assert told["there"] == 1, "the first logs stood elsewhere"
        assert told["left"] == [], "a stopped session left files behind"
        assert all(map(is_alive, told["pids"])) and list(places[1].glob("*/*/node-1/last-0/"))
        assert Path(told["metadata"]).exists()
        os.kill(driver.pid, signal.SIGKILL)
        wait_until("keeper and node end", lambda: not any(map(is_alive, told["pids"])))
        assert list(places[1].iterdir()) == [], "a killed driver left logs behind"
        assert not Path(told["metadata"]).exists(), "a killed driver left its metadata behind"
    finally:
        driver.kill()
        driver.wait()
        if driver.stdout is not None:
            driver.stdout.close()
