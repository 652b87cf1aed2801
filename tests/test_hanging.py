"""A test that hangs says where, also beside others and in trio."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_unsteady import Suite

CONFTEST = """
from tests import hanging
def pytest_configure(config): config.pluginmanager.register(hanging)
"""
HANGS = """
import threading, pytest, trio
LOCK = threading.Lock()
async def asks_forever():
    await trio.sleep_forever()  # the task
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asks_forever)
@pytest.mark.timeout(1)
async def test_in_trio():
    await main()  # the test
@pytest.mark.timeout(1)
def test_beside_a_thread_of_trio():
    threading.Thread(target=trio.run, args=(main,), name="its-loop", daemon=True).start()
    LOCK.acquire()
    LOCK.acquire()  # the main thread
def test_after_them():
    pass
"""
PLUGINS = "-p xdist.plugin -p pytest_timeout -p pytest_trio.plugin"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one", "several"])
def test_a_test_that_hangs_says_where(tmp_path: Path, processes: tuple[str, ...]) -> None:
    suite = Suite(tmp_path)
    suite.write("conftest.py", CONFTEST)
    suite.write("test_a.py", HANGS)
    code, text = suite.run(*processes, "-o", "trio_mode=true", env={"PYTEST_ADDOPTS": PLUGINS})
    assert (code, "2 failed, 2 passed" in text) == (1, True), text
    assert text.count("await trio.sleep_forever()  # the task") >= 2, text
    for line in ("await main()  # the test", "LOCK.acquire()  # the main thread", "of thread its-loop"):
        assert line in text.replace("__main__.", ""), (line, text)
    assert text.count("Timeout (>1 s)") >= 2, text
