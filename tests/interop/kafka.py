"""Kafka's own programs, from Maven Central: found, run, and ended by their ids."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import attrs
import pytest

from ..requires import EVERYTHING, missing

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
DUMP_TOOL = "kafka.tools.DumpLogSegments"
_CLASSPATH = "insync/kafka-4.1.0"
_QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def find_java(remembered: pytest.Cache) -> Java:
    """Kafka's classes. Downloaded only where everything is required; otherwise taken from Maven's cache."""
    if shutil.which("java") is None:
        missing("no java on the path")
    known = remembered.get(_CLASSPATH, "")
    if known and all(os.path.exists(jar) for jar in known.split(":")):
        return Java(known)
    found = resolve(POM, online=EVERYTHING)
    remembered.set(_CLASSPATH, found)
    return Java(found)


def resolve(pom: Path, *options: str, online: bool) -> str:
    """The jars that a page for Maven names, as a class path. options: of Maven. online: get what is missing."""
    if shutil.which("mvn") is None:
        missing("no mvn on the path to find Kafka's jars with")
    with tempfile.NamedTemporaryFile("r") as answer:
        asked = ["dependency:build-classpath", f"-Dmdep.outputFile={answer.name}"]
        result = subprocess.run(
            ["mvn", "-q", "-B", *([] if online else ["--offline"]), "-f", str(pom), *options, *asked],
            capture_output=True,
            text=True,
            timeout=600,
        )
        if result.returncode:
            missing(
                f"Maven cannot get Kafka: {result.stdout[-500:]}"
                if online
                else "Maven's cache has no Kafka; "
                "INSYNC_TEST_REQUIRE=all python -m pytest -m '' tests/interop fetches it"
            )
        return answer.read().strip()


@attrs.frozen
class Java:
    classpath: str
    options: Sequence[str] = _QUICK
    """Of the virtual machine: by default those of a program that does not run for long."""

    def command(self, *arguments: str) -> list[str]:
        return ["java", *self.options, "-cp", self.classpath, *arguments]

    def run(self, *arguments: str) -> str:
        """Standard output of a program that ends well."""
        result = subprocess.run(self.command(*arguments), capture_output=True, timeout=120)
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout.decode()

    def dump(self, *files: Path, deep: bool = True) -> str:
        """What Kafka's dump tool says of files, its standard error too: faults may be named in either.

        All but the lines in which the logging facade says that it has nothing to log with.
        """
        wanted = ["--deep-iteration"] if deep else ["--index-sanity-check"]
        listed = ",".join(map(str, files))
        result = subprocess.run(
            self.command(DUMP_TOOL, *wanted, "--files", listed), capture_output=True, timeout=120
        )
        lines = (result.stdout + result.stderr).decode().splitlines()
        return "\n".join(line for line in lines if not line.startswith("SLF4J"))


def free_port() -> int:
    """A port that the system gives to nobody else for a minute; a server that sets `SO_REUSEADDR` can have it.

    The side that closes a connection first keeps its port in TIME_WAIT: here the one that accepted.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            accepted, _ = probe.accept()
            accepted.close()
            assert connection.recv(1) == b""
    return port


@attrs.frozen
class Broker:
    """A running Kafka of one node, controller and broker in one."""

    address: str
    folder: Path
    cluster_id: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Cleanly, as an operator does."""
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def broker(java: Java, place: Path, *, heap: str = "384m") -> Iterator[Broker]:
    """A Kafka on ports of the loopback interface; it is gone when the block is left."""
    folder, settings = place / "kafka", place / "server.properties"
    port, controller = free_port(), free_port()
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
        "controller.listener.names=CONTROLLER\n"
        f"log.dirs={folder}\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "transaction.state.log.num.partitions=1\nauto.create.topics.enable=false\n"
        "log.cleaner.enable=false\n"
    )
    cluster_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
    java.run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings))
    with (place / "kafka.out").open("wb") as out:
        process = subprocess.Popen(
            java.command(f"-Xmx{heap}", "kafka.Kafka", str(settings)), stdout=out, stderr=out
        )
    try:
        wait_until_it_serves(process, port, place / "kafka.out")
        yield Broker(f"127.0.0.1:{port}", folder, cluster_id, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until_it_serves(process: subprocess.Popen[bytes], port: int, out: Path) -> None:
    """Kafka accepts connections before it answers, and answers with errors before it is ready."""
    for _ in range(1200):
        try:
            if _lists_versions(port):
                break
        except OSError:
            pass
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            break
    if process.poll() is not None:
        raise AssertionError(f"Kafka has ended: {out.read_text()}")
    assert _lists_versions(port), out.read_text()


def _lists_versions(port: int) -> bool:
    """Whether a broker answers ApiVersions, version 0, without an error."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        answer = connection.makefile("rb").read(14)
    if len(answer) < 14:
        return False
    _, _, error, count = struct.unpack(">iihi", answer)
    return error == 0 and count > 0
