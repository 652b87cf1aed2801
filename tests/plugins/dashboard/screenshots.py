"""`python -m tests.plugins.dashboard.screenshots FOLDER`: pictures of the pages, of a cluster less a node."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from selenium.webdriver.common.by import By

from insync.replication.client.threads.blocking import BlockingAdmin, BlockingConsumer, BlockingProducer
from tests.processes import cluster

from .browser import browser, dashboard, fill, press, shows, until

PAGES = {
    "cluster": "",
    "topics": "topics",
    "topic": "topic?name=orders",
    "records": "records?topic=orders",
    "groups": "groups",
    "group": "group?name=billing",
    "transactions": "transactions",
    "why": "why",
    "do": "do",
}


def main(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), 3, "--rack", "east") as nodes:
        servers = ",".join(node.endpoint for node in nodes)
        with (
            BlockingAdmin(servers) as admin,
            BlockingProducer(servers) as producer,
            BlockingConsumer(
                servers, group_id="billing", auto_offset_reset="earliest", max_poll_records=20
            ) as reader,
            BlockingProducer(servers, transactional_id="invoices-1") as working,
            dashboard(servers, "--allow-changes") as url,
            browser(Path(folder) / "browser") as page,
        ):
            admin.wait_for_nodes(3)
            admin.create_topic("orders", 3, 3, {"retention_ms": 86_400_000})
            admin.create_topic("payments", 6, 3)
            reader.subscribe(["orders"])
            for second in range(20):
                reader.poll(100)
                for number in range(40 + 5 * (second % 7)):
                    text = f'{{"order": {second * 100 + number}, "sum": {number}.90}}'
                    producer.send("orders", text.encode(), key=f"customer-{number}".encode())
                producer.flush()
                time.sleep(1)  # there is to be something to see over time
                if second == 12:
                    nodes[2].kill()
                elif second == 2:
                    working.begin()
                    working.send_and_wait("payments", b"{}", partition=1)
            for name, path in PAGES.items():
                page.get(url + path)
                if name == "records":
                    shows(page, "50 shown")
                elif name == "do":
                    fill(page, "Name", "invoices", "Create a topic")
                    press(page, "Plan: create")
                    shows(page, "3 partitions with")
                else:
                    until(lambda: page.find_element(By.TAG_NAME, "h1").is_displayed(), name)
                    if name == "group":
                        shows(page, "orders-0")
                    shows(page, "Node 3 does not answer")
                time.sleep(1)  # for what moves while a page is drawn
                page.save_screenshot(str(into / f"{name}.png"))
            with dashboard(servers, "--login") as guarded:
                page.set_window_size(700, 500)
                page.get(guarded)
                page.save_screenshot(str(into / "login.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
