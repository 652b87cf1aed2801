"""The dashboard in a browser where things are not as they should be: what hangs, what is huge, who stands still."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import attrs
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from insync.replication.client.threads.blocking import BlockingAdmin, BlockingProducer
from tests.processes import NodeProcess
from tests.tiers import uses

from .browser import browser, choose, complaints, confirm, dashboard, find_browser, press, reads, shows, until

pytest.importorskip("nicegui")
pytestmark = pytest.mark.xdist_group("dashboard-in-trouble")

UNHEARD = """
from insync.replication.core.broker.coordination import transacting
from insync.replication.core.errors import ErrorCode

ask = transacting.Transacting._join

def unheard(self, partition, effect):
    if partition.topic == "hangs":
        self._add_answered(partition, effect, ErrorCode.NONE)
    else:
        ask(self, partition, effect)

transacting.Transacting._join = unheard
"""
"""As a leader of a release without verification: it takes what the coordinator has never heard of."""
HUGE = 10 << 20


@attrs.define
class Place:
    page: WebDriver
    url: str
    node: NodeProcess

    def open(self, path: str, heading: str) -> None:
        self.page.get(self.url + path)
        until(lambda: self.page.find_element(By.TAG_NAME, "h1").text == heading, f"the page {heading}")


@pytest.fixture(scope="module")
@uses("browser")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    find_browser()
    folder = tmp_path_factory.mktemp("trouble")
    (folder / "sitecustomize.py").write_text(UNHEARD)
    node = NodeProcess.start(1, folder, env={"PYTHONPATH": str(folder)})
    try:
        with (
            dashboard(node.endpoint, "--allow-changes", "--hangs-after-ms", "0") as url,
            browser(folder / "browser") as page,
        ):
            yield Place(page, url, node)
    finally:
        node.kill()


def test_transactions_that_are_open_or_hang_are_shown_and_one_is_ended(place: Place) -> None:
    servers = place.node.endpoint
    with (
        BlockingAdmin(servers) as admin,
        BlockingProducer(servers, transactional_id="lost") as lost,
        BlockingProducer(servers, transactional_id="at work") as working,
    ):
        for name in ("hangs", "works"):
            admin.create_topic(name, 1, 1)
        lost.begin()
        lost.send_and_wait("hangs", b"never", partition=0)
        lost.abort()
        working.begin()
        working.send_and_wait("works", b"later", partition=0)
        place.open("transactions", "Transactions")
        row = "//tr[td[1]='at work']"
        until(lambda: "works-0" in reads(place.page, row), "the open transaction")
        assert "ongoing" in reads(place.page, row)
        hangs = reads(place.page, "//tr[td[1]='hangs']")
        assert hangs.split()[:3] == ["hangs", "0", "0"] and "lost" in hangs
        assert not place.page.find_elements(By.XPATH, "//tr[td[1]='works']"), "its coordinator will end it"
        place.open("why", "Why")
        shows(place.page, "A transaction hangs in hangs-0")
        place.open("do", "Do")
        press(place.page, "Plan: delete")
        shows(place.page, "choose a topic first")
        press(place.page, "Plan: abort")
        shows(place.page, "choose a hanging transaction")
        choose(place.page, "Which", "hangs-0 from offset 0")
        press(place.page, "Plan: abort")
        shows(place.page, "from offset 0 on never count")
        assert admin.find_hanging_transactions(longer_than_ms=0), "nothing is done before it is confirmed"
        confirm(place.page)
        shows(place.page, "the transaction in hangs-0 from offset 0 on was aborted")
        assert admin.find_hanging_transactions(longer_than_ms=0) == []
        working.commit()
        place.open("transactions", "Transactions")
        shows(place.page, "complete commit")
        until(lambda: not place.page.find_elements(By.XPATH, "//tr[td[1]='hangs']"), "that it is over")
    assert complaints(place.page) == []


def test_a_record_of_ten_megabytes_is_shown_in_part(place: Place) -> None:
    servers = place.node.endpoint
    with BlockingAdmin(servers) as admin:
        admin.create_topic("huge", 1, 1, {"max_message_bytes": 2 * HUGE})
        with BlockingProducer(servers, max_request_size=2 * HUGE) as producer:
            producer.send_and_wait("huge", b"<b>" + b"x" * HUGE, headers=[("h" * 100_000, b"y" * 100_000)])
    place.open("topics", "Topics")
    shows(place.page, "huge")
    place.open("records?topic=huge", "Records")
    shows(place.page, "1 shown")
    shows(place.page, f"{HUGE + 3:,} bytes in all")
    assert len(place.page.page_source) < 400_000
    choose(place.page, "Look at one record whole", "0: 0")
    press(place.page, "Look")
    shows(place.page, "huge-0, offset 0")
    assert len(place.page.page_source) < 1_000_000
    assert not place.page.find_elements(By.CSS_SELECTOR, "main b, .q-dialog b")
    assert complaints(place.page) == []


def test_a_cluster_that_stands_still_is_said_to_and_comes_back(place: Place) -> None:
    with BlockingAdmin(place.node.endpoint) as admin:
        admin.create_topic("seen-before", 1, 1)
    place.open("topics", "Topics")
    shows(place.page, "seen-before")
    place.node.process.send_signal(signal.SIGSTOP)
    try:
        shows(place.page, "The cluster has not answered since")
        # No page waits for a node.
        for title in ("Cluster", "Records", "Groups", "Transactions", "Why", "Do", "Topics"):
            place.open(title.lower().replace("cluster", ""), title)
            shows(place.page, "What is shown is of")
        shows(place.page, "seen-before")
    finally:
        place.node.process.send_signal(signal.SIGCONT)
    until(lambda: "does not answer" not in reads(place.page, "//body"), "that it answers again")
    place.open("", "Cluster")
    shows(place.page, "1 of 1")
