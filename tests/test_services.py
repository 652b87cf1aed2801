"""The services of docs/examples, with real processes that are killed, stopped and restarted, for a short while.

`python -m tests.chaos.services` does the same for two minutes each.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import attrs
import pytest

from insync.replication.state import StateSettings
from tests.chaos.services import EXAMPLES, Orders, Process, order_service, work_queue

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.slow
def test_no_order_is_lost_or_done_twice_while_processes_die(tmp_path: Path) -> None:
    done = order_service(tmp_path, 5.0, seed=3, rate=60)
    assert done["orders"] > 20 and done["reads"] > 20


@pytest.mark.slow
def test_every_item_of_a_queue_is_done_once_while_workers_die(tmp_path: Path) -> None:
    done = work_queue(tmp_path, 4.0, seed=4, rate=60)
    assert done["items"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("program", ["counting.py", "counting_threads.py"])
def test_a_service_that_is_told_to_stop_hands_over_and_begins_where_it_was(
    program: str, tmp_path: Path
) -> None:
    for start in ("start 1", "start 2"):
        store = f"sqlite://{tmp_path / 'meta.db'}"
        command = [sys.executable, str(EXAMPLES / program), "1", str(tmp_path / "node"), store]
        service = Process(command, {}, tmp_path / "service.err")
        try:
            assert service.line == start
            service.send(signal.SIGTERM)
            assert service.process.stdout is not None
            assert service.process.stdout.read() == "left\n"
            assert service.process.wait(60) == 0, (tmp_path / "service.err").read_text()
        finally:
            service.end()


def test_what_the_check_is_for_is_noticed() -> None:
    load = Orders(list)
    load.done["a"], load.tried = "1", {"a", "b"}
    with pytest.raises(AssertionError, match="lost"):
        load.check(["b"])
    with pytest.raises(AssertionError, match="twice"):
        load.check(["a", "a"])
    with pytest.raises(AssertionError, match="lost"):
        load.check(["a", "of nobody"])
    load.check(["a", "b"])
    load.wrong.append("an order was not found")
    with pytest.raises(AssertionError, match="not found"):
        load.check(["a"])


def test_the_page_shows_the_programs_as_they_are() -> None:
    page = (DOCS / "a-service-from-nothing.md").read_text("utf-8")
    shown = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.S)
    assert {name for name, _ in shown} == {"orders.py", "worker.py", "counting.py", "counting_threads.py"}
    for name, text in shown:
        program = (DOCS / "examples" / name).read_text("utf-8")
        for part in re.split(r"\n*# \.\.\.\n*", text.strip()):
            assert part.strip() in program, f"{name} does not have:\n{part}"


def test_the_page_tells_every_setting_and_its_default() -> None:
    page = (DOCS / "replicated-state.md").read_text("utf-8")
    told = dict(
        re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page.split("## Settings")[1].split("\n## ")[0], re.M)
    )
    settings = StateSettings()
    assert set(told) == {field.name for field in attrs.fields(StateSettings)}
    words = {"create": "true", "raise_version": "true", "batch_bytes": "256 KiB", "cache_dir": "none"}
    words["replication_factor"] = "3, or as many as there are nodes"
    for name, default in told.items():
        assert default == words.get(name, str(getattr(settings, name))), name
