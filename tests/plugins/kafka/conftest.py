from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from ...interop.kafka import Java, resolve
from ...processes import STEADY_ENV
from ...requires import EVERYTHING, missing
from ...tiers import uses

_CLASSPATH = "insync/kafka-clients-4.4.0"


@pytest.fixture(scope="session")
@uses("jvm")
def clients(request: pytest.FixtureRequest) -> Java:
    """The newest kafka-clients, found as the tests of `tests/interop` find Kafka."""
    remembered = request.config.cache
    assert remembered is not None
    if shutil.which("java") is None:
        missing("no java on the path")
    known = remembered.get(_CLASSPATH, "")
    if not known or not all(os.path.exists(jar) for jar in known.split(":")):
        known = resolve(Path(__file__).parent / "pom.xml", online=EVERYTHING)
        remembered.set(_CLASSPATH, known)
    return Java(known)


@attrs.frozen
class Cluster:
    """Nodes of `insync up --kafka`. servers: for Kafka's clients."""

    servers: str
    native: tuple[str, ...]
    pids: tuple[int, ...]


@contextmanager
def running_cluster(
    *options: str, steady: bool = True, env: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """A cluster as a user starts it; it is gone when the block is left.

    steady: no node is ended; one that a busy machine stops for seconds keeps its place.
    """
    # The logs of a node that a test has killed stay: here not for long.
    with tempfile.TemporaryDirectory(prefix="insync-kafka-") as place:
        process = subprocess.Popen(
            [sys.executable, "-m", "insync", "up", "--kafka", "--json", *options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": place, **(STEADY_ENV if steady else {}), **(env or {})},
        )
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            pids = tuple([node["pid"] for node in ready["nodes"]])
            yield Cluster(",".join(ready["kafka"]), tuple(ready["servers"]), pids)
        finally:
            process.terminate()
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Three nodes that the tests of real clients share; each test has topics of its own."""
    with running_cluster() as made:
        yield made
