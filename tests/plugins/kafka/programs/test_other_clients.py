"""Clients of other languages and times at a real cluster; `tests.plugins.kafka.programs.clients` has more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ....requires import EVERYTHING, missing
from ..conftest import Cluster
from .clients import CLIENTS, ClientError, attempt

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("java-2.4.1-smoke", marks=pytest.mark.jvm),
        pytest.param("kafkajs", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_a_client_writes_reads_and_administers(tmp_path: Path, cluster: Cluster, name: str) -> None:
    """Each program ends with `done`, or says what was wrong; what it needs from outside may be missing."""
    client = CLIENTS[name]
    if shutil.which(client.needs) is None:
        missing(f"no {client.needs} on the path")
    if not EVERYTHING and client.needs in ("npm", "mvn"):
        try:
            client.prepare(tmp_path)
        except ClientError as error:
            missing(f"what {name} needs is not to be had: {error}")
    attempt(client, cluster.servers, tmp_path)
