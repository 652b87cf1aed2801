"""Kafka Connect's distributed workers at a cluster, from a file to a file: `connect.py CLASSPATH SERVERS NAME`.

The source writes to the topic between them exactly once, in transactions. One of the two workers is killed, and the
other continues its tasks. Ends with `done`.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

classpath, servers, name = sys.argv[1:]
PATIENCE = 180.0
LINES = 200
STORES = ("configs", "offsets", "status")
SETTINGS = """
bootstrap.servers={servers}
group.id={name}
config.storage.topic={name}-configs
offset.storage.topic={name}-offsets
status.storage.topic={name}-status
config.storage.replication.factor=3
offset.storage.replication.factor=3
status.storage.replication.factor=3
offset.flush.interval.ms=500
session.timeout.ms=6000
heartbeat.interval.ms=1500
scheduled.rebalance.max.delay.ms=1000
exactly.once.source.support=enabled
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
plugin.discovery=service_load
listeners=http://127.0.0.1:{port}
"""


@attrs.frozen
class Worker:
    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def worker(folder: Path, number: int) -> Iterator[Worker]:
    """It is gone when the block is left."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    settings, said = folder / f"worker-{number}.properties", folder / f"worker-{number}.out"
    settings.write_text(SETTINGS.format(servers=servers, name=name, port=port))
    command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", classpath]
    command += ["org.apache.kafka.connect.cli.ConnectDistributed", str(settings)]
    with said.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield Worker(f"http://127.0.0.1:{port}", process)
        except BaseException:
            sys.stderr.write(said.read_text()[-4000:])
            raise
        finally:
            process.kill()


def ask(at: Worker, path: str, content: object = None) -> Any:
    """None: the worker does not answer yet, or not while its group changes."""
    data = json.dumps(content).encode() if content is not None else None
    request = urllib.request.Request(at.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        assert error.code in (404, 409, 500, 503), (error.code, error.read())
    except OSError:
        assert at.process.poll() is None, "the worker has ended"
    return None


def until(holds: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.2)


def runs(at: Worker, connector: str) -> bool:
    told = ask(at, f"/connectors/{connector}/status")
    tasks = told["tasks"] if told else []
    assert all(each["state"] != "FAILED" for each in tasks), told
    return bool(tasks) and all(each["state"] == "RUNNING" for each in [told["connector"], *tasks])


def lines(start: int) -> list[str]:
    return [f"line {number}" for number in range(start, start + LINES)]


def append(file: Path, start: int) -> None:
    with file.open("a") as out:
        out.writelines(f"{each}\n" for each in lines(start))


def committed() -> list[str]:
    """All records of the topic, in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{name}-check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(f"{name}-lines", 0, 0)])
    found = []
    while (record := consumer.poll(30)) is not None and record.error() is None:
        value = record.value()
        assert value is not None
        found.append(value.decode())
    consumer.close()
    return found


def policies() -> list[str]:
    """The cleanup policies of the topics in which the workers keep their state."""
    asked = [ConfigResource(ResourceType.TOPIC, f"{name}-{each}") for each in STORES]
    admin = AdminClient({"bootstrap.servers": servers})
    found = [each.result(30) for each in admin.describe_configs(asked).values()]
    return [each["cleanup.policy"].value for each in found]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="insync-connect-") as place, ExitStack() as stack:
        folder = Path(place)
        given, taken = folder / "in.txt", folder / "out.txt"
        append(given, 0)
        first, second = [stack.enter_context(worker(folder, number)) for number in (1, 2)]
        file = "org.apache.kafka.connect.file.FileStream"
        source = {
            "connector.class": f"{file}SourceConnector",
            "file": str(given),
            "topic": f"{name}-lines",
            "topic.creation.default.replication.factor": 3,
            "topic.creation.default.partitions": 1,
        }
        sink = {
            "connector.class": f"{file}SinkConnector",
            "file": str(taken),
            "topics": f"{name}-lines",
            "consumer.override.isolation.level": "read_committed",
        }
        for connector, config in (("source", source), ("sink", sink)):
            wanted = {"name": connector, "config": config}
            until(lambda wanted=wanted: ask(first, "/connectors", wanted), f"the {connector} is created")
        for connector in ("source", "sink"):
            until(lambda connector=connector: runs(second, connector), f"the {connector} runs")
        until(lambda: taken.exists() and taken.read_text().splitlines() == lines(0), "the first lines")
        assert committed() == lines(0)
        assert policies() == ["compact"] * len(STORES)
        first.process.kill()
        append(given, LINES)
        until(lambda: {*taken.read_text().splitlines()} == {*lines(0), *lines(LINES)}, "the other lines")
        assert committed() == [*lines(0), *lines(LINES)], "nothing twice, nothing left out"
        for connector in ("source", "sink"):
            until(lambda connector=connector: runs(second, connector), f"the {connector} runs elsewhere")


if __name__ == "__main__":
    main()
    print("done")
