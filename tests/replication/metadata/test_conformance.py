"""Every store of the framework keeps every promise of the interface."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from insync.replication.metadata.testing import CASES, Case

from .benches import GuardedBench, MemoryBench, RemoteBench, SqliteBench

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
async def test_memory(case: Case, autojump_clock: MockClock) -> None:
    await case.run(MemoryBench())


@every_case
async def test_memory_behind_the_border(case: Case, autojump_clock: MockClock) -> None:
    await case.run(GuardedBench(MemoryBench()))


@pytest.mark.slow
@every_case
async def test_sqlite_behind_the_border(case: Case, tmp_path: Path) -> None:
    await case.run(GuardedBench(SqliteBench(tmp_path)))


@every_case
@pytest.mark.parametrize("writes_apart", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_sqlite(case: Case, writes_apart: bool, tmp_path: Path) -> None:
    await case.run(SqliteBench(tmp_path, writes_apart=writes_apart))


@every_case
@pytest.mark.parametrize(
    "url", ["tcp://127.0.0.1:0", pytest.param("mem://stores/served", marks=pytest.mark.slow)]
)
async def test_remote(case: Case, url: str, tmp_path: Path) -> None:
    bench = RemoteBench(tmp_path, url)
    async with bench.serving():
        await case.run(bench)
