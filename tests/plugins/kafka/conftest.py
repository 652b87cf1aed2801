from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ...interop.kafka import Java, resolve
from ...requires import EVERYTHING, missing

_CLASSPATH = "insync/kafka-clients-4.4.0"


@pytest.fixture(scope="session")
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
