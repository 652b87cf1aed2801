"""The dashboard in a real browser, over a real cluster of three processes."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from insync.replication.client.blocking import BlockingAdmin, BlockingConsumer, BlockingProducer
from tests.processes import NodeProcess, cluster

from .browser import (
    browser,
    choose,
    complaints,
    confirm,
    dashboard,
    fill,
    find_browser,
    press,
    reads,
    shows,
    until,
)
from .looks import is_marked, pale, skip_link, tab_to

pytest.importorskip("nicegui")
find_browser()
pytestmark = pytest.mark.xdist_group("dashboard-in-a-browser")

HOSTILE = b"<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


BILLING = ["billing", "consumer", "Stable", "1", "3", "20"]


@attrs.define
class Place:
    page: WebDriver
    url: str
    servers: str
    nodes: list[NodeProcess]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder) as nodes:
        servers = ",".join(node.endpoint for node in nodes)
        with BlockingAdmin(servers) as admin, BlockingProducer(servers) as producer:
            admin.wait_for_nodes(3)
            admin.create_topic("orders", 3, 3, {"retention_ms": 3_600_000})
            admin.create_topic("hostile", 1, 3)
            for number in range(30):
                producer.send(
                    "orders", f'{{"number": {number}}}'.encode(), key=f"k{number}".encode(), partition=0
                )
            producer.send(
                "hostile", HOSTILE, key=HOSTILE, headers=[(HOSTILE.decode(), b"\xff\xfe" + HOSTILE)]
            )
            producer.send("hostile", b"{" + b"x" * 900_000)
            producer.flush()
        with dashboard(servers, "--allow-changes") as url, browser(folder / "browser") as page:
            yield Place(page, url, servers, nodes)


def open_page(place: Place, path: str, heading: str) -> None:
    place.page.get(place.url + path)
    until(lambda: place.page.find_element(By.TAG_NAME, "h1").text == heading, f"the page {heading}")


def test_the_cluster_with_its_nodes_and_what_happened(place: Place) -> None:
    open_page(place, "", "Cluster")
    shows(place.page, "3 of 3")
    assert len(place.page.find_elements(By.XPATH, "//td[starts-with(., 'node ')]")) >= 3
    shows(place.page, "orders-0 was created")
    assert complaints(place.page) == []


def test_a_topic_with_offsets_settings_and_timelines(place: Place) -> None:
    open_page(place, "topics?text=ord", "Topics")
    shows(place.page, "orders")
    assert "hostile" not in reads(place.page, "//main")
    until(lambda: place.page.find_element(By.LINK_TEXT, "orders").click() or True, "the link to the topic")  # type: ignore[func-returns-value]
    until(lambda: place.page.find_element(By.TAG_NAME, "h1").text == "orders", "the page of the topic")
    row = reads(place.page, "//table[contains(., 'High watermark')]/tbody/tr[1]")
    assert row.split().count("30") == 4, row
    said = place.page.execute_script(
        "return [...document.querySelectorAll('svg[role=img]')].map(each => each.getAttribute('aria-label'))"
    )
    assert len([each for each in said if "node 1" in each and " leads" in each]) >= 3, said
    changed = reads(place.page, "//tr[td='retention_ms']")
    assert changed.split() == ["retention_ms", "3600000", "changed"]


def test_records_are_found_by_offset_and_content_and_nothing_in_them_runs(place: Place) -> None:
    open_page(place, "records?topic=orders", "Records")
    shows(place.page, "30 shown")
    choose(place.page, "From", "offset ...")
    fill(place.page, "Offset or time (2026-03-01T12:00)", "7")
    fill(place.page, "How many", "2")
    press(place.page, "Show")
    shows(place.page, "2 shown")
    first = reads(place.page, "//tbody/tr[1]")
    assert first.split()[:2] == ["0", "7"] and '"number": 7' in first
    press(place.page, "Go on")
    until(lambda: place.page.find_element(By.XPATH, "//tbody/tr[1]/td[2]").text == "9", "the next records")
    fill(place.page, "Offset or time (2026-03-01T12:00)", "x<b>")
    press(place.page, "Show")
    shows(place.page, "'x<b>' is no offset")
    open_page(place, "records?topic=hostile", "Records")
    shows(place.page, "2 shown")
    shows(place.page, "onerror=")
    shows(place.page, "900,001 bytes in all")
    assert len(place.page.page_source) < 400_000
    choose(place.page, "Look at one record whole", "0: 0")
    press(place.page, "Look")
    shows(place.page, "hostile-0, offset 0")
    assert "<script>" in place.page.find_element(By.CSS_SELECTOR, ".q-dialog").text
    assert place.page.title == "Records - insync"
    assert not place.page.find_elements(By.CSS_SELECTOR, "main img, main script")
    assert complaints(place.page) == []


def test_a_topic_is_created_changed_and_deleted_after_its_plan_was_seen(place: Place) -> None:
    open_page(place, "do", "Do")
    fill(place.page, "Name", "made-here", "Create a topic")
    press(place.page, "Plan: create")
    shows(place.page, "3 partitions with 3 replicas each")
    with BlockingAdmin(place.servers) as admin:
        assert "made-here" not in admin.list_topics()
        confirm(place.page)
        shows(place.page, "topic made-here was created")
        assert "made-here" in admin.list_topics()
        open_page(place, "do", "Do")
        choose(place.page, "Topic", "made-here", "Delete a topic")
        press(place.page, "Plan: delete")
        shows(place.page, "are gone for good")
        confirm(place.page, "Leave it")
        shows(place.page, "left as it was")
        assert "made-here" in admin.list_topics()
        press(place.page, "Plan: delete")
        confirm(place.page)
        shows(place.page, "topic made-here was deleted")
        assert "made-here" not in admin.list_topics()


def test_a_group_that_lags_is_shown_and_goes_on_where_it_is_told_to(place: Place) -> None:
    with BlockingConsumer(
        place.servers,
        group_id="billing",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=10,
    ) as consumer:
        consumer.subscribe(["orders"])
        until(lambda: len(consumer.poll(500)), "records")
        consumer.commit()
        open_page(place, "groups", "Groups")
        until(
            lambda: reads(place.page, "//tr[td[1]='billing']").split()[:6] == BILLING, "the group and its lag"
        )
        place.page.get(place.url + "group?name=billing")
        until(
            lambda: (
                reads(place.page, "//tr[td[1]='orders' and td[2]='0']").split()[2:5] == ["10", "30", "20"]
            ),
            "lag",
        )
        shows(place.page, "orders-0, orders-1, orders-2")
        open_page(place, "do", "Do")
        fill(place.page, "Group", "billing", "Reset the offsets of a group")
        press(place.page, "Plan: reset")
        shows(place.page, "has 1 members: stop them first")
    with BlockingAdmin(place.servers) as admin:
        until(lambda: not admin.describe_groups(["billing"])[0].members, "the member's leave")
        press(place.page, "Plan: reset")
        shows(place.page, "10 records are read again, 0 are left out")
        shows(place.page, "orders-0: 10 becomes 0")
        assert admin.group_offsets("billing")["orders", 0] == 10  # type: ignore[index]
        confirm(place.page)
        shows(place.page, "group billing goes on at 1 other offsets")
        assert admin.group_offsets("billing")["orders", 0] == 0  # type: ignore[index]
    open_page(place, "groups", "Groups")
    shows(place.page, "Empty")
    assert complaints(place.page) == []


PAGES = (
    ("", "Cluster"),
    ("topics", "Topics"),
    ("topic?name=orders", "orders"),
    ("records?topic=orders", "Records"),
    ("groups", "Groups"),
    ("group?name=billing", "billing"),
    ("transactions", "Transactions"),
    ("why", "Why"),
    ("do", "Do"),
)


@pytest.mark.parametrize(("path", "heading"), PAGES)
def test_everything_has_a_name_and_stands_out(place: Place, path: str, heading: str) -> None:
    open_page(place, path, heading)
    assert len(place.page.find_elements(By.TAG_NAME, "h1")) == 1
    assert place.page.find_elements(By.CSS_SELECTOR, "main#main")
    nameless = place.page.execute_script(
        "return [...document.querySelectorAll('input,textarea,button,svg[role=img]')].filter(e =>"
        "!(e.getAttribute('aria-label')||e.labels?.length||e.closest('label,[role=checkbox]')||e.textContent.trim()))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    for scheme in ("dark", "light"):
        assert pale(place.page, scheme) == [], scheme


def test_a_plan_is_made_and_left_by_the_keyboard_alone(place: Place) -> None:
    open_page(place, "do", "Do")
    assert skip_link(place.page) == "Skip to the content"
    assert is_marked(place.page)
    place.page.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: place.page.switch_to.active_element.get_attribute("id") == "main", "the content")
    tab_to(place.page, "Name")
    assert is_marked(place.page)
    place.page.switch_to.active_element.send_keys("by-keyboard")
    tab_to(place.page, "PLAN: CREATE")
    assert is_marked(place.page)
    place.page.switch_to.active_element.send_keys(Keys.ENTER)
    shows(place.page, "3 partitions with 3 replicas each")
    until(lambda: place.page.switch_to.active_element.text == "LEAVE IT", "the focus where nothing happens")
    place.page.switch_to.active_element.send_keys(Keys.ENTER)
    shows(place.page, "left as it was")


def test_an_election_and_its_reason_are_on_the_open_page_within_two_seconds(place: Place) -> None:
    """The last test here: it takes a node away."""
    open_page(place, "topic?name=orders", "orders")
    shows(place.page, "orders-0 was created")
    with BlockingAdmin(place.servers) as admin:
        (topic,) = admin.describe_topics(["orders"])
        leader = topic.partitions[0].leader
        place.nodes[leader - 1].kill()
        until(
            lambda: admin.describe_topics(["orders"])[0].partitions[0].leader not in (-1, leader),
            "an election",
        )
    new = place.page
    assert shows(new, f"(was node {leader})", 10) < 2.0
    assert f"node {leader} is not alive" in reads(new, "//main")
    until(
        lambda: f"Node {leader} does not answer" in new.find_element(By.CSS_SELECTOR, ".banner").text,
        "the banner",
    )
    open_page(place, "why", "Why")
    shows(new, f"Node {leader} does not answer")
    shows(new, "orders-0 has 2 of 3 in sync")
    for node in place.nodes:
        if node.process.poll() is None:
            node.kill()
    shows(new, "The cluster does not answer since")
