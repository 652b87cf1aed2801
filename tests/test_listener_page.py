"""docs/listeners.md: its programs run, as they are shown, and its settings are those that there are."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from insync.replication import BlockingAdmin, BlockingConsumer, BlockingNode, BlockingProducer
from insync.replication.listeners import AckMode, ListenerSettings
from tests.replication.node.test_cluster import settings

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "listeners.md").read_text("utf-8")
ORDERS = [b"%d" % n for n in range(6)]


@contextmanager
def program(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(DOCS / "examples" / name), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def lines_until(process: subprocess.Popen[str], enough: Callable[[list[str]], bool]) -> list[str]:
    found: list[str] = []
    assert process.stdout is not None
    while not enough(found):
        line = process.stdout.readline()
        assert line, f"the program ended with {process.wait()}: {found}"
        found.append(line.strip())
    return found


def ended(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.read().splitlines()[-1:] == ["left"]
    assert process.wait(30) == 0


@pytest.mark.slow
def test_its_programs_run(tmp_path: Path) -> None:
    with ExitStack() as stack:
        node = stack.enter_context(BlockingNode(settings(tmp_path, 1)))
        servers = ",".join(node.endpoints)
        with BlockingAdmin(servers) as admin, BlockingProducer(servers) as producer:
            for topic in ("orders", "orders.retry", "orders.dlt", "invoices"):
                admin.create_topic(topic, 1, 1)
            for order in [*ORDERS[:3], b"", *ORDERS[3:]]:
                producer.send_and_wait("orders", order, key=order)
        listen, mail, pack, invoice = (
            stack.enter_context(program(name, servers, *more))
            for name, *more in (
                ("listen.py",),
                ("listen_asyncio.py",),
                ("listen_threads.py",),
                ("listen_transactions.py", "a"),
            )
        )
        orders = [order.decode() for order in ORDERS]
        told = lines_until(listen, lambda lines: len(lines) >= len(orders))
        assert told == [f"charged {order}" for order in orders]
        told = lines_until(mail, lambda lines: lines[-1:] == [f"mailed {orders[-1]}"])
        assert sorted(set(told)) == [f"mailed {order}" for order in orders]
        told = lines_until(pack, lambda lines: len(lines) >= len(orders) + 1)
        assert sorted(told) == sorted(f"packed {order}".strip() for order in ["", *orders])
        consumer = stack.enter_context(
            BlockingConsumer(servers, auto_offset_reset="earliest", isolation_level="read_committed")
        )
        consumer.assign([("invoices", 0)])
        found: list[bytes] = []
        while len(found) < len(ORDERS):
            found += [record.value for record in consumer.poll(1000)]
        assert found == [b"invoice for " + order for order in ORDERS]
        # The order of nothing comes to the dead letters by two ways: after its retries, and in a transaction.
        consumer.assign([("orders.dlt", 0)])
        letters = 0
        while letters < 2:
            letters += len(consumer.poll(1000))
        for each in (listen, mail, pack, invoice):
            ended(each)


def test_the_page_shows_the_programs_as_they_are() -> None:
    shown = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S)
    assert {name for name, _ in shown} == {path.name for path in (DOCS / "examples").glob("listen*.py")}
    for name, text in shown:
        program = (DOCS / "examples" / name).read_text("utf-8")
        assert text.strip("\n") in program, f"{name} does not have:\n{text}"


def test_the_page_tells_every_setting_and_its_default() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| (\S[^|]*?) \|", PAGE.split("## Settings")[1], re.M))
    known = ListenerSettings()
    assert set(told) == {field.name for field in attrs.fields(ListenerSettings)}
    for name, default in told.items():
        value = getattr(known, name)
        said = value.name if isinstance(value, AckMode) else value
        assert default.strip("`") == (str(said) if said else "none"), name


def test_the_page_tells_every_mode() -> None:
    table = PAGE.split("## When offsets are committed")[1].split("An offset is committed")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.M)[1:] == [mode.name for mode in AckMode]
