"""The dashboard of a topic of very many partitions: how soon its pages open, and what it and a browser use."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import psutil
import trio
from selenium.webdriver.remote.webdriver import WebDriver

from insync.replication import Admin
from insync.replication.client.threads.blocking import BlockingAdmin, BlockingConsumer, BlockingProducer

from ..plugins.dashboard.browser import COMMAND, Dashboard, browser, dashboard_process, until
from ..processes import cluster
from ._processor import share_of
from .partitions import LAG_SECONDS, TOPIC, settings, until_open, until_whole
from .report import Result, at_most

OTHER, GROUP, RECORDS = "orders", "billing", 50
WRITTEN = 50
"""Partitions that are written to while pages are open; a page of a topic shows as many."""
PATIENCE = 120.0
SEARCH = 60.0
"""Seconds at rest: the dashboard looks for transactions that hang each minute, and that is to be in it once."""
LONGEST = 55.0
"""Seconds for the hurried updates; if they take longer, there are fewer of them."""
MIB = 1 << 20
PAGES = (
    ("Cluster", "", "3 of 3"),
    ("Topics", "topics", TOPIC),
    ("the topic", f"topic?name={TOPIC}", "High watermark"),
    ("Records", f"records?topic={OTHER}", f"{RECORDS} shown"),
    ("Groups", "groups", GROUP),
    ("the group", f"group?name={GROUP}", f"{OTHER}-0"),
    ("Transactions", "transactions", "Hanging: its producer"),
    ("Why", "why", "Why"),
    ("Do", "do", "Plan: create"),
)
"""What each is called, where it is, and the text without which it is of no use."""
USABLE = """
const main = document.querySelector("main");
return !!window.did_handshake && !!main && main.textContent.includes(arguments[0]);
"""
"""The text is there, and the page is connected: fields and buttons do what they are for."""
COUNT = """
window.updates = 0;
new MutationObserver(() => { window.updates += 1; }).observe(
    document.querySelector("main"), {childList: true, subtree: true, characterData: true});
"""


@attrs.frozen
class Memory:
    """In MiB. browser: of all its processes, pages that they share counted once."""

    dashboard: float
    browser: float


def _opened(page: WebDriver, url: str, text: str) -> float:
    """Seconds from asking for a page until it is of use."""
    start = time.monotonic()
    page.get(url)
    until(lambda: page.execute_script(USABLE, text), f"{text} at {url}", PATIENCE)
    return time.monotonic() - start


def _memory(process: Dashboard, page: WebDriver) -> Memory:
    """After the browser has thrown away what it does not need."""
    page.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    driver = psutil.Process(page.service.process.pid)
    used = 0
    for each in driver.children(recursive=True):
        try:
            used += each.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue  # a browser ends its idle processes by itself
    return Memory(psutil.Process(process.pid).memory_info().rss / MIB, used / MIB)


@contextmanager
def _written(servers: str) -> Iterator[None]:
    """A record a partition each tenth of a second, so that there is something new at each look."""
    done = threading.Event()

    def write() -> None:
        with BlockingProducer(servers) as producer:
            while not done.wait(0.1):
                for partition in range(WRITTEN):
                    producer.send(TOPIC, b"x" * 100, partition=partition)
                producer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _prepare(servers: Sequence[str], partitions: int) -> None:
    async def make() -> None:
        async with Admin(servers, request_timeout_ms=600_000) as admin:
            await admin.create_topic(TOPIC, partitions=partitions, replication_factor=3)
            await until_whole(admin, partitions)
            await until_open(admin, partitions)

    with BlockingAdmin(servers) as admin, BlockingProducer(servers) as producer:
        admin.wait_for_nodes(3)
        admin.create_topic(OTHER, 3, 3)
        for number in range(RECORDS):
            producer.send(OTHER, b"%d" % number)
        producer.flush()
    trio.run(make)


def _updates(page: WebDriver) -> int:
    return int(page.execute_script("return window.updates"))


@attrs.frozen
class Usual:
    """Of the dashboard as it is. opened: seconds, by page. every: seconds between two updates of an open page."""

    opened: dict[str, float]
    rest: float
    watched: float
    every: float
    memory: Memory


def _usual(servers: str, page: WebDriver, rounds: int, resting: float, watching: float) -> Usual:
    with dashboard_process(servers, "--allow-changes") as process:
        _opened(page, process.url + "topics", TOPIC)
        _opened(page, process.url + "groups", GROUP)
        opened = {
            name: max(_opened(page, process.url + path, text) for _ in range(rounds))
            for name, path, text in PAGES
        }
        page.get("about:blank")
        rest = 100 * share_of([process.pid], resting)
        with _written(servers):
            _opened(page, process.url + f"topic?name={TOPIC}", "High watermark")
            page.execute_script(COUNT)
            start = time.monotonic()
            watched = 100 * share_of([process.pid], watching)
            every = (time.monotonic() - start) / max(1, _updates(page))
        return Usual(opened, rest, watched, every, _memory(process, page))


def _hurried(servers: str, page: WebDriver, wanted: int) -> tuple[int, list[Memory]]:
    """How many updates there were, and the memory at each quarter of them."""
    command = (COMMAND[0], "-m", "tests.bench._dashboard_in_haste")
    with _written(servers), dashboard_process(servers, command=command) as process:
        _opened(page, process.url + f"topic?name={TOPIC}", "High watermark")
        page.execute_script(COUNT)
        start, seen = time.monotonic(), []
        for quarter in range(1, 5):
            while _updates(page) < quarter * wanted / 4:
                if time.monotonic() - start > quarter * LONGEST / 4:
                    break
                time.sleep(0.05)
            seen.append(_memory(process, page))
        return _updates(page), seen


def _grown(before: float, after: float) -> float:
    return 100 * (after - before) / before


def run(*, smoke: bool) -> Sequence[Result]:
    partitions, rounds, wanted = (100, 1, 20) if smoke else (10_000, 3, 120)
    resting, watching = (2.0, 3.0) if smoke else (SEARCH, 10.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = stack.enter_context(cluster(folder, 3, *settings(LAG_SECONDS)))
        servers = ",".join(node.endpoint for node in nodes)
        _prepare([node.endpoint for node in nodes], partitions)
        reader = stack.enter_context(
            BlockingConsumer(servers, group_id=GROUP, auto_offset_reset="earliest", max_poll_records=10)
        )
        reader.subscribe([OTHER])
        until(lambda: len(reader.poll(500)), "records for the group")
        reader.commit()
        page = stack.enter_context(browser(folder / "browser"))
        usual = _usual(servers, page, rounds, resting, watching)
        updates, memory = _hurried(servers, page, wanted)
    half, end = memory[1], memory[3]
    return [
        *(
            at_most(f"{name}: usable, slowest of {rounds}", usual.opened[name], "s", 2)
            for name, _, _ in PAGES
        ),
        Result(name="all pages, median", value=round(statistics.median(usual.opened.values()), 3), unit="s"),
        Result(name="the dashboard, nobody looks", value=round(usual.rest, 2), unit="% core"),
        Result(name="the dashboard, a page is open", value=round(usual.watched, 2), unit="% core"),
        Result(name="between two updates of that page", value=round(usual.every, 2), unit="s"),
        Result(name="memory of the dashboard then", value=round(usual.memory.dashboard, 1), unit="MiB"),
        Result(name="memory of the browser then", value=round(usual.memory.browser, 1), unit="MiB"),
        Result(name="looks and updates one after the other", value=updates, unit=""),
        Result(name="memory of the dashboard after these", value=round(end.dashboard, 1), unit="MiB"),
        Result(name="memory of the browser after these", value=round(end.browser, 1), unit="MiB"),
        at_most("the dashboard's in the second half", _grown(half.dashboard, end.dashboard), "% more", 10),
        at_most("the browser's in the second half", _grown(half.browser, end.browser), "% more", 10),
    ]
