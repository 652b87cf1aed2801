"""The dashboard in a real browser, over a real cluster of three processes."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from insync import __version__
from insync.replication.client.threads.blocking import BlockingAdmin, BlockingConsumer, BlockingProducer
from insync.transport.patience import PATIENCE as PATIENCE_OF_KITS
from tests.processes import NodeProcess, cluster, start_again
from tests.tiers import uses

from .browser import (
    PATIENCE,
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
    text_of,
    until,
)
from .looks import is_marked, pale, skip_link, tab_to

pytest.importorskip("nicegui")
pytestmark = pytest.mark.xdist_group("dashboard-in-a-browser")

HOSTILE = b"<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


REBALANCES = "//section[h2='Rebalances']//tbody/tr"
BANNER = "//*[contains(@class, 'banner')]"
OPTIONS = ("--rack", "east")
SOON = 2.0 * PATIENCE_OF_KITS
"""Seconds after which a change is to be on a page that is open."""
BILLING = ["billing", "consumer", "Stable", "1", "3", "20"]


@attrs.define
class Place:
    page: WebDriver
    url: str
    servers: str
    nodes: list[NodeProcess]


@pytest.fixture(scope="module")
@uses("browser")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    find_browser()
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, 3, *OPTIONS) as nodes:
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
    row = reads(place.page, "//tr[td[1]='node 1']")
    assert "ready" in row and f" {__version__} east tcp://" in row, row
    with BlockingAdmin(place.servers) as admin:
        controller = admin.describe_cluster().controller_id
    who = reads(place.page, "//table[contains(., 'Who was controller')]/tbody")
    assert f"node {controller} is controller" in who
    until(lambda: "ms" in reads(place.page, "//tr[td[1]='metadata']"), "how long requests take")
    chart = "//*[starts-with(@aria-label, 'Records in a second') and contains(@aria-label, 'node 3 ')]"
    until(lambda: place.page.find_element(By.XPATH, chart), "throughput")
    assert complaints(place.page) == []


def test_a_topic_with_offsets_settings_and_timelines(place: Place) -> None:
    open_page(place, "topics?text=ord", "Topics")
    shows(place.page, "orders")
    assert "hostile" not in reads(place.page, "//main")
    until(lambda: place.page.find_element(By.LINK_TEXT, "orders").click() or True, "the link to the topic")  # type: ignore[func-returns-value]
    until(lambda: place.page.find_element(By.TAG_NAME, "h1").text == "orders", "the page of the topic")
    row = "//table[contains(., 'High watermark')]/tbody/tr[1]"
    until(lambda: reads(place.page, row).split().count("30") == 4, "both ends, and the followers'")
    drawn = "//*[@role='img' and contains(@aria-label, 'node 1') and contains(@aria-label, ' leads')]"
    until(lambda: len(place.page.find_elements(By.XPATH, drawn)) >= 3, "timelines")
    changed = reads(place.page, "//tr[td='retention_ms']")
    assert changed.split() == ["retention_ms", "3600000", "changed"]
    assert reads(place.page, "//tr[td='cleanup_policy']").endswith(" yes"), "a default is marked"


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
    shows(place.page, "'x<b>' is not an offset")
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
        shows(place.page, "will be lost for good")
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
        lag = "//*[@role='img' and contains(@aria-label, 'furthest behind: orders-0 20 now')]"
        until(lambda: place.page.find_element(By.XPATH, lag), "lag over time")
        until(lambda: reads(place.page, f"{REBALANCES}[td[2]='billing'][1]/td[3]"), "why it rebalanced")
        open_page(place, "do", "Do")
        fill(place.page, "Group", "billing", "Reset the offsets of a group")
        press(place.page, "Plan: reset")
        shows(place.page, "has 1 member: stop it first")
    with BlockingAdmin(place.servers) as admin:
        until(lambda: not admin.describe_groups(["billing"])[0].members, "the member's leave")
        press(place.page, "Plan: reset")
        shows(place.page, "10 records are read again, 0 are skipped")
        shows(place.page, "orders-0: 10 becomes 0")
        assert admin.group_offsets("billing")["orders", 0] == 10  # type: ignore[index]
        confirm(place.page)
        shows(place.page, "group billing continues at 1 other offset")
        assert admin.group_offsets("billing")["orders", 0] == 0  # type: ignore[index]
    open_page(place, "groups", "Groups")
    shows(place.page, "Empty")
    assert complaints(place.page) == []


def test_a_record_is_produced(place: Place) -> None:
    with BlockingAdmin(place.servers) as admin:
        admin.create_topic("produced-to", 1, 3)
    open_page(place, "do", "Do")
    choose(place.page, "Topic", "produced-to", "Produce a record")
    fill(place.page, "Key (none if empty)", "k", "Produce a record")
    fill(place.page, "Value", "written by hand <b>é", "Produce a record")
    press(place.page, "Produce this record")
    shows(place.page, "written to produced-to-0 at offset 0")
    open_page(place, "records?topic=produced-to", "Records")
    shows(place.page, "1 shown")
    row = reads(place.page, "//tbody/tr[1]").split()
    assert row[:2] == ["0", "0"] and row[3:] == ["k", "written", "by", "hand", "<b>é"], row


def test_a_plan_is_answered_before_the_next_and_is_shown_again_if_the_cluster_has_changed(
    place: Place,
) -> None:
    page = place.page
    with BlockingAdmin(place.servers) as admin:
        admin.create_topic("twice", 1, 3)
        open_page(place, "do", "Do")
        fill(page, "Name", "never", "Create a topic")
        choose(page, "Topic", "twice", "Delete a topic")
        # As close together as two hands or two messages of a program can be.
        page.execute_script(
            "const all = [...document.querySelectorAll('button')];"
            "const named = text => all.find(each => each.textContent.trim() === text);"
            "named('Plan: delete').click(); named('Plan: create').click();"
        )
        shows(page, "another plan waits for an answer")
        shows(page, "1 partition with about 0 records")
        admin.delete_topic("twice")
        admin.create_topic("twice", 2, 3)
        press(page, "Do it")
        shows(page, "Nothing was done: the cluster has changed, and so has the plan.")
        shows(page, "2 partitions with about 0 records")
        assert "twice" in admin.list_topics()
        confirm(page)
        shows(page, "topic twice was deleted")
        assert not {"twice", "never"} & set(admin.list_topics())
    assert complaints(page) == []


LISTENERS = """
const app = document.querySelector("#app")._vnode.component.proxy;
return Object.entries(app.elements).flatMap(
    ([id, each]) => (each.events || []).map(event => [Number(id), event.listener_id]));
"""
SEND = """
for (const [id, listener] of arguments[0])
  for (const given of [[], ["null"], ["true"], ['"made by hand"'], ['{"a": 1}']])
    window.socket.emit("event", {id: id, client_id: window.clientId, listener_id: listener, args: given});
"""


def test_who_may_only_look_changes_nothing_by_messages_made_by_hand_either(place: Place) -> None:
    page = place.page
    open_page(place, "do", "Do")
    forms = page.execute_script(LISTENERS)
    assert len(forms) > 40, "the listeners of all fields and buttons"
    with BlockingAdmin(place.servers) as admin, dashboard(place.servers) as looking:
        before = {each.name: each for each in admin.describe_topics()}
        page.get(looking + "do")
        shows(page, "Nothing can be changed from here")
        until(lambda: page.execute_script("return window.did_handshake"), "the connection")
        assert not page.find_elements(By.TAG_NAME, "button") and not page.find_elements(
            By.CSS_SELECTOR, "[role=group]"
        )
        own = page.execute_script(LISTENERS)
        assert own, "the box that holds the page still"
        page.execute_script(SEND, [[each, name] for each in range(400) for name in {name for _, name in own}])
        page.execute_script(SEND, forms)
        page.execute_script(SEND, [[1, "no such"], [-1, None], ["x", {}]])
        page.get(looking + "topics")
        admin.create_topic("after-that", 1, 3)
        shows(page, "after-that")  # it has heard all that, and goes on
        after = {each.name: each for each in admin.describe_topics()}
        assert after.pop("after-that") and after == before
        admin.delete_topic("after-that")


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
        # Colours may be on their way from those of the other scheme.
        until(lambda scheme=scheme: pale(place.page, scheme) == [], f"contrast: {pale(place.page, scheme)}")  # type: ignore[misc]


def test_a_group_is_deleted(place: Place) -> None:
    open_page(place, "do", "Do")
    fill(place.page, "Group", "billing", "Reset the offsets of a group")
    press(place.page, "Plan: delete group")
    shows(place.page, "orders-0: committed 0")
    with BlockingAdmin(place.servers) as admin:
        assert [each.group for each in admin.list_groups()] == ["billing"]
        confirm(place.page)
        shows(place.page, "group billing was deleted")
        assert admin.list_groups() == []


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


def end_of_a_leader(place: Place) -> float:
    """Kill one, the controller if it leads, with the page of `orders` open.

    Gives how many seconds after the election the page shows it.
    """
    page = place.page
    with BlockingAdmin(place.servers) as admin:
        until(
            lambda: all(len(each.isr) == 3 for each in admin.describe_topics(["orders"])[0].partitions),
            "ISRs",
            3 * PATIENCE,
        )
        leaders = {each.leader: each.partition for each in admin.describe_topics(["orders"])[0].partitions}
        controller = admin.describe_cluster().controller_id
        gone = controller if controller in leaders else max(leaders)
        led = leaders[gone]
        open_page(place, "topic?name=orders", "orders")
        said = f"(was node {gone})"
        shows(page, "orders-0 was created")
        before = text_of(page).count(said)
        place.nodes[gone - 1].kill()
        until(
            lambda: admin.describe_topics(["orders"])[0].partitions[led].leader not in (-1, gone),
            "an election",
        )
        took = until(lambda: text_of(page).count(said) > before, f"{said} on {text_of(page)}")
        new = admin.describe_topics(["orders"])[0].partitions[led].leader
        shows(page, f"orders-{led} is led by node {new} {said}")
        shows(page, f"node {gone} is not alive")
        until(lambda: f"Node {gone} does not answer" in reads(page, BANNER), "the banner")
        until(lambda: timeline(page, f"node {gone} is out of sync: "), "the reason in the timeline")
        open_page(place, "", "Cluster")
        until(lambda: admin.describe_cluster().controller_id not in (-1, gone), "a controller")
        row = "//table[contains(., 'Who was controller')]/tbody/tr[1][contains(., 'node {} is controller')]"
        until(
            lambda: reads(page, row.format(admin.describe_cluster().controller_id)),
            "the controller that came",
        )
    return took


def timeline(page: WebDriver, begins: str) -> list[str]:
    """What bars of the timeline say when they are pointed at."""
    said: list[str] = page.execute_script(
        "return [...document.querySelectorAll('rect.span title')].map(each => each.textContent)"
    )
    return [each for each in said if each.startswith(begins) and each != begins]


def test_an_election_is_on_the_open_page_and_a_cluster_half_down_recovers(place: Place) -> None:
    """The last test here: it takes nodes away."""
    page = place.page
    for _ in range(3):
        took = end_of_a_leader(place)
        dead = next(node for node in place.nodes if node.process.poll() is not None)
        if took < SOON:
            break
        start_again(place.nodes, dead.node_id, *OPTIONS)  # what else runs on this machine may have held it up
    assert took < SOON
    open_page(place, "why", "Why")
    shows(page, f"Node {dead.node_id} does not answer")
    shows(page, "Partitions")
    shows(page, "orders-0")
    with BlockingAdmin(place.servers) as admin:
        last = admin.describe_cluster().controller_id
        second = next(node for node in place.nodes if node.node_id not in (dead.node_id, last))
        second.kill()
        open_page(place, "topic?name=orders", "orders")
        # Its ISR is too small to take writes, and who left it holds all that was acknowledged.
        row = "//table[contains(., 'High watermark')]/tbody/tr[1]/td"
        until(
            lambda: (
                reads(page, f"{row}[2]") == f"node {last}"
                and reads(page, f"{row}[5]") == str(last)
                and reads(page, f"{row}[6]") == str(second.node_id)
            ),
            "leader, ISR and ELR",
            3 * PATIENCE,
        )
        open_page(place, "", "Cluster")
        shows(page, "1 of 3")
        shows(page, "does not answer")
        until(lambda: int(reads(page, "//div[dt='Below minimum']/dd")) >= 3, "that writes are refused")
        for node in (dead, second):
            start_again(place.nodes, node.node_id, *OPTIONS)
        until(lambda: not page.find_elements(By.XPATH, BANNER), "that all is well again", 3 * PATIENCE)
        shows(page, "3 of 3")
        until(lambda: reads(page, "//div[dt='Under-replicated']/dd") == "0", "that all is whole again")
        open_page(place, "topic?name=orders", "orders")
        until(lambda: timeline(page, f"node {second.node_id} is in sync: "), "that it came back, and why")
    for node in place.nodes:
        node.kill()
    shows(page, "The cluster has not answered since")
