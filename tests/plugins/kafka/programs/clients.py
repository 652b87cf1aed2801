"""`python -m tests.plugins.kafka.programs.clients [NAME ...] [--json]`: clients of five languages at three nodes.

Each client has a program that ends with `done` if all is as it must be: records written and read with each
acknowledgement and codec, groups, transactions and administration, as far as the client has them. Programs and
libraries come from Maven Central, the Go module proxy, npm and PyPI.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs

from ....interop.kafka import Java, resolve
from ..conftest import running_cluster

HERE = Path(__file__).parent
PATIENCE = 600.0
Command = tuple[Sequence[str], Mapping[str, str]]


@attrs.frozen
class Client:
    """`prepare`: given a folder, the command, without servers and name, and what it needs in its environment."""

    name: str
    version: str
    needs: str
    """The command without which it cannot run."""
    prepare: Callable[[Path], Command]
    suffix: tuple[str, ...] = ()
    """Arguments between servers and name."""


class ClientError(Exception):
    """A client's program has failed, or could not be prepared; the text is what it said."""


def java(program: str, version: str, folder: Path) -> Command:
    """One of the programs here with a version of kafka-clients."""
    options = (f"-Dkafka.clients={version}",)
    return Java(resolve(HERE.parent / "pom.xml", *options, online=True)).command(str(HERE / program)), {}


def spring(folder: Path) -> Command:
    classpath = resolve(HERE / "spring" / "pom.xml", online=True)
    return Java(classpath).command(str(HERE / "spring" / "Spring.java")), {}


def streams(folder: Path) -> Command:
    classpath = resolve(HERE / "streams" / "pom.xml", online=True)
    return Java(classpath).command(str(HERE / "streams" / "Streams.java")), {}


def go(name: str, folder: Path) -> Command:
    built = folder / name
    _run(["go", "build", "-mod=mod", "-o", str(built), f"./{name}"], cwd=_copied("go", folder))
    return [str(built)], {}


def javascript(folder: Path) -> Command:
    copy = _copied("javascript", folder)
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=copy)
    return ["node", str(copy / "program.js")], {}


def python(program: str, requirement: str, folder: Path) -> Command:
    """requirement: installed beside everything else; none: what is here."""
    command = [sys.executable, "-P", str(HERE / "python" / program)]
    if not requirement:
        return command, {}
    place = folder / requirement
    options = ["--quiet", "--only-binary", ":all:", "--root-user-action", "ignore", "--target", str(place)]
    _run([sys.executable, "-m", "pip", "install", *options, requirement], cwd=folder)
    return command, {"PYTHONPATH": str(place)}


def confluent(version: str, folder: Path) -> Command:
    """Empty: the version that is here."""
    return python("librdkafka.py", f"confluent-kafka=={version}" if version else "", folder)


def tools(folder: Path) -> Command:
    command, _ = python("tools.py", "", folder)
    return [*command, resolve(HERE / "tools.xml", online=True)], {}


def connect(folder: Path) -> Command:
    command, _ = python("connect.py", "", folder)
    return [*command, resolve(HERE / "connect.xml", online=True)], {}


def spark(folder: Path) -> Command:
    from ....bench._spark_logs import connector_jars

    command, _ = python("spark_connector.py", "", folder)
    return command, {"INSYNC_SPARK_JARS": connector_jars()}


def _java_clients() -> list[Client]:
    """Each version's programs."""
    found = []
    for version in ("2.4.1", "3.9.2", "4.4.0"):
        for program in ("Smoke", "Groups", "Transactions"):
            protocols = "classic,consumer" if version >= "4" else "classic"
            suffix = (protocols,) if program == "Groups" else ()
            prepare = partial(java, f"{program}.java", version)
            found.append(Client(f"java-{version}-{program.lower()}", version, "mvn", prepare, suffix))
    return found


KAFKA_PYTHON = "kafka-python==2.0.2"
CLIENTS = {
    each.name: each
    for each in (
        *_java_clients(),
        Client("spring", "3.3.10 (kafka-clients 3.8.1)", "mvn", spring),
        Client("streams", "4.1.0", "mvn", streams),
        Client("connect", "4.1.0", "mvn", connect),
        Client("spark", "4.2.0 (kafka-clients 3.9.2)", "mvn", spark),
        Client(
            "librdkafka-old",
            "2.0.2",
            sys.executable,
            partial(confluent, "2.0.2"),
        ),
        Client(
            "librdkafka-exact",
            "2.10.0",
            sys.executable,
            partial(confluent, "2.10.0"),
        ),
        Client("librdkafka", "2.16.0", sys.executable, partial(confluent, "")),
        Client(
            "kafka-python-old",
            "2.0.2",
            sys.executable,
            partial(python, "kafka_python.py", "kafka-python==2.0.2"),
        ),
        Client("kafka-python", "3.0.12", sys.executable, partial(python, "kafka_python.py", "")),
        Client("aiokafka", "0.14.0", sys.executable, partial(python, "aio.py", "")),
        Client("kcat", "1.7.1 (librdkafka 2.0.2)", "kcat", partial(python, "kcat.py", "")),
        Client("tools", "4.1.0", "mvn", tools),
        Client("franz-go", "1.22.2", "go", partial(go, "franz")),
        Client("sarama", "1.61.1", "go", partial(go, "sarama")),
        Client("kafkajs", "2.2.4", "npm", javascript),
    )
}


def attempt(client: Client, servers: str, folder: Path, *, name: str = "") -> float:
    """Run a client's program; how many seconds it took. name: of its topics.

    Raises:
      ClientError: It has failed, or what it needs is not to be had.
    """
    command, environment = client.prepare(folder)
    start = time.monotonic()
    said = _run([*command, servers, *client.suffix, name or client.name], cwd=folder, environment=environment)
    if said.splitlines()[-1:] != ["done"]:
        raise ClientError(said[-2000:])
    return time.monotonic() - start


def _run(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str] = {}) -> str:
    try:
        result = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise ClientError(f"{command[0]} did not end within {PATIENCE:g} s") from error
    if result.returncode:
        raise ClientError((result.stdout + result.stderr)[-2000:])
    return result.stdout


def _copied(name: str, folder: Path) -> Path:
    """The programs of a language, where their tools may write."""
    return Path(shutil.copytree(HERE / name, folder / f"{name}-programs", dirs_exist_ok=True))


def main() -> int:
    """Run those that were named, or all; 1 if one of them fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.plugins.kafka.programs.clients", description=__doc__
    )
    parser.add_argument("names", nargs="*", choices=[*CLIENTS, []], metavar="NAME", help=", ".join(CLIENTS))
    parser.add_argument("--json", action="store_true", help="one line for each client")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="insync-clients-") as place, running_cluster() as cluster:
        for name in options.names or CLIENTS:
            client, told = CLIENTS[name], {"client": name, "version": CLIENTS[name].version}
            try:
                if shutil.which(client.needs) is None:
                    raise ClientError(f"no {client.needs} on the path")
                told |= {"passed": True, "seconds": round(attempt(client, cluster.servers, Path(place)), 1)}
            except ClientError as error:
                failed += 1
                told |= {"passed": False, "error": str(error)}
            print(json.dumps(told) if options.json else "  ".join(map(str, told.values())), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
