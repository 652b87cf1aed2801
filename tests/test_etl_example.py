"""docs/examples/etl.py on real nodes: each input has its output once, though workers of each face are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Producer
from tests.processes import cluster
from tests.tiers import slow_but

DOCS = Path(__file__).parent.parent / "docs"
PROGRAM = DOCS / "examples" / "etl.py"
FACES = ("trio", "asyncio", "threads")
COUNT = 240
OPTIONS = (
    *("--set", "group_consumer_session_timeout_ms=2000", "--set", "group_consumer_heartbeat_interval_ms=500"),
    *("--set", "offsets_topic_num_partitions=3", "--set", "transaction_state_log_num_partitions=3"),
)


def start(face: str, servers: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(PROGRAM), face, servers, "worker"])


@pytest.mark.slow
@pytest.mark.parametrize("face", slow_but(FACES, "trio"))
async def test_each_input_has_its_output_once_though_its_worker_is_killed(tmp_path: Path, face: str) -> None:
    """The worker is killed amid its work, and started again under its name."""
    with cluster(tmp_path, 1, *OPTIONS) as nodes:
        servers = nodes[0].endpoint
        async with Admin(servers) as admin:
            await admin.create_topic("in", 2, 1)
            await admin.create_topic("out", 2, 1)
        found: list[bytes] = []
        async with (
            Producer(servers) as producer,
            Consumer(servers, auto_offset_reset="earliest", isolation_level="read_committed") as reader,
        ):
            reader.assign([("out", 0), ("out", 1)])
            for first, last, enough in ((0, COUNT // 2, COUNT // 4), (COUNT // 2, COUNT, COUNT)):
                worker = start(face, servers)
                try:
                    for number in range(first, last):
                        await producer.send("in", b"%d" % number, partition=number % 2)
                    with trio.fail_after(60):
                        while len(found) < enough:
                            found += [each.value or b"" for each in await reader.poll(100)]
                            assert worker.poll() is None, "it ended by itself"
                finally:
                    worker.kill()
                    worker.wait()
        assert sorted(found) == sorted(b"<%d>" % number for number in range(COUNT))


def test_the_page_quotes_the_program() -> None:
    page, program = (DOCS / "transactions.md").read_text(), PROGRAM.read_text()
    quoted = page.partition("```python")[2].partition("```")[0].strip().split("\n\n\n")
    assert len(quoted) == 2
    for each in quoted:
        assert each in program
