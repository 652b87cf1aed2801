"""The dashboard in a browser over a cluster of three processes that answers, but seconds later."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from insync.replication.client.threads.blocking import BlockingAdmin
from tests.processes import cluster

from .browser import browser, complaints, dashboard_process, find_browser, reads, shows, text_of, until

pytest.importorskip("nicegui")
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("dashboard-of-a-slow-cluster")]

DELAY = 1.0
"""Seconds of one answer; a look waits for three, one after the other."""
DASHBOARD = """
import sys
from insync.plugins.dashboard import _watcher
from insync.replication.cli import main

_watcher.SLOW = 2.0
sys.exit(main())
"""
"""Less than a look takes then, and much less than a node is given to answer."""
LATER = """
import os, trio
from insync.replication.core.messages import Kind
from insync.replication.node.requests import _handlers

take = _handlers.Handlers.take

def take_later(self, inbound):
    asks = Kind(inbound.kind).name.startswith(("METADATA", "DESCRIBE", "LIST"))
    if asks and os.path.exists(os.environ["SLOW_WHILE"]):
        self._nursery.start_soon(wait, self, inbound)
    else:
        take(self, inbound)

async def wait(self, inbound):
    await trio.sleep(%s)
    take(self, inbound)

_handlers.Handlers.take = take_later
"""
"""What anybody asks of a node waits while a file is there; what nodes do among themselves does not."""
BANNER = "//*[contains(@class, 'banner')]"
PAGES = ("Cluster", "Topics", "Groups", "Transactions", "Why", "Do")


def test_a_slow_cluster_is_said_to_be_slow_and_the_pages_wait_for_nothing(tmp_path: Path) -> None:
    find_browser()
    (tmp_path / "sitecustomize.py").write_text(LATER % DELAY)
    slow = tmp_path / "slow"
    env = {"PYTHONPATH": str(tmp_path), "SLOW_WHILE": str(slow)}
    with cluster(tmp_path, env=env) as nodes:
        servers = ",".join(node.endpoint for node in nodes)
        with (
            BlockingAdmin(servers) as admin,
            dashboard_process(servers, command=(sys.executable, "-c", DASHBOARD)) as process,
            browser(tmp_path / "browser") as page,
        ):
            url = process.url
            admin.wait_for_nodes(3)
            admin.create_topic("before", 1, 3)
            page.get(url + "topics")
            shows(page, "before")
            slow.touch()
            admin.create_topic("meanwhile", 1, 3)
            shows(page, "The cluster answers slowly: a query")
            assert "What is shown is of" in reads(page, BANNER)
            for title in PAGES:
                page.get(url + title.lower().replace("cluster", ""))
                until(lambda title=title: page.find_element(By.TAG_NAME, "h1").text == title, title)  # type: ignore[misc]
                assert "does not answer" not in text_of(page), "late answers are answers"
            shows(page, "The cluster answers slowly: a query takes")
            slow.unlink()
            until(lambda: not page.find_elements(By.XPATH, BANNER), "that it answers quickly again")
            page.get(url + "topics")
            shows(page, "meanwhile")
            assert complaints(page) == []
