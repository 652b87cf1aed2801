"""Clusters of Spark for tests: executors that are processes of their own, ended with what started them."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.spark_home import spark_home

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""A compiler that is done at once: tests run each path a few times only."""
_DEADLINE_S = 300.0
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


@attrs.frozen
class Cluster:
    """What a session is made with."""

    master: str
    config: dict[str, str]


def java_options(folder: Path) -> str:
    """Those of JVMs that start quickly and leave no files outside of a folder, even if they are killed."""
    place = folder / "java"
    place.mkdir(exist_ok=True)
    return f"{QUICK} -Djava.io.tmpdir={place}"


def config(folder: Path) -> dict[str, str]:
    """For small JVMs that start quickly and are given up soon when they are gone."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": java_options(folder),
        "spark.executor.extraJavaOptions": java_options(folder),
        "spark.executor.memory": "600m",
        "spark.executor.cores": "2",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "OFF",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def local_cluster(folder: Path, executors: int = 3) -> Iterator[Cluster]:
    """Executors as processes. The rest is in the driver's JVM and writes into SPARK_HOME, which is another one."""
    former = os.environ.get("SPARK_HOME")
    os.environ["SPARK_HOME"] = str(spark_home(folder))
    try:
        yield Cluster(f"local-cluster[{executors},2,1024]", config(folder))
    finally:
        del os.environ["SPARK_HOME"]
        if former is not None:
            os.environ["SPARK_HOME"] = former


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """A master and three workers on hosts of their own, as far as loopback addresses are hosts."""
    started: list[subprocess.Popen[bytes]] = []
    left_out = ("PYTHONPATH", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["SPARK_DAEMON_MEMORY"] = "256m"
    environment["SPARK_DAEMON_JAVA_OPTS"] = java_options(folder)

    def start(name: str, host: str, *arguments: str) -> Callable[[], str]:
        """What is given waits until it is there."""
        log = folder / f"{name}.log"
        place = ("--host", host, "--port", "0", "--webui-port", "0")
        command = [str(_spark() / "bin" / "spark-class"), *arguments[:1], *place, *arguments[1:]]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**environment, "SPARK_LOCAL_IP": host}, cwd=folder
            )
        started.append(process)

        def wait() -> str:
            deadline = time.monotonic() + _DEADLINE_S
            while process.poll() is None and time.monotonic() < deadline:
                found = re.search(r"spark://127\.0\.0\.1:\d+(?=\n)|Successfully registered", log.read_text())
                if found:
                    return found[0]
                time.sleep(0.1)
            raise AssertionError(f"{name} does not start: {log.read_text()}")

        return wait

    try:
        url = start("master", "127.0.0.1", "org.apache.spark.deploy.master.Master")()
        workers = []
        for number, host in enumerate(HOSTS, 1):
            work = ("--work-dir", str(folder / f"work-{number}"), "--cores", "2", "--memory", "1g")
            workers.append(
                start(f"worker-{number}", host, "org.apache.spark.deploy.worker.Worker", *work, url)
            )
        for wait in workers:
            wait()
        yield Cluster(url, config(folder))
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def executor_pid(application: str, executor: str) -> int:
    """The JVM of an executor, by its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            named = dict(itertools.pairwise(words))
            if named.get("--executor-id") == executor and named.get("--app-id") == application:
                return int(entry.name)
    raise AssertionError(f"there is no process of executor {executor} of {application}")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _spark() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent
