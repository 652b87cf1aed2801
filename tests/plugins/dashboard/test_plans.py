"""What *Do* carries out, on three node processes: nothing before it was confirmed, then what the plan says. What
takes long, or takes nodes away, in a real browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from insync.replication.asyncio import Admin, Producer
from insync.replication.cli.watching.measures import THROTTLES
from insync.replication.client.admin import PartitionInfo
from insync.replication.client.threads.blocking import BlockingAdmin, BlockingProducer
from tests.processes import NodeProcess, cluster, start_again
from tests.tiers import uses

from .browser import (
    browser,
    choose,
    choose_all,
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

pytest.importorskip("nicegui")

from insync.plugins.dashboard import _plans
from insync.plugins.dashboard._look import Look
from insync.plugins.dashboard._plans import BadPlanError
from insync.plugins.dashboard._watcher import Watcher
from insync.plugins.dashboard.pages._do import moves

pytestmark = pytest.mark.xdist_group("dashboard-plans")
SLOWLY = 50_000
"""Bytes a second of a move that is to be seen under way."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    with cluster(tmp_path_factory.mktemp("three")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def servers(nodes: list[NodeProcess]) -> str:
    return ",".join(node.endpoint for node in nodes)


@pytest.fixture(scope="module")
@uses("browser")
def page(servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """With the forms of *Do*."""
    find_browser()
    with (
        dashboard(servers, "--allow-changes") as url,
        browser(tmp_path_factory.mktemp("browser")) as opened,
    ):
        opened.get(url + "do")
        shows(opened, "PLAN: DRAIN")
        yield opened


def against(servers: str, work: Callable[[Admin, Watcher], Awaitable[None]]) -> None:
    """`work` with an administrator and a dashboard's watcher, which looks when it is told to."""

    async def run() -> None:
        async with asyncio.timeout(60), Admin(servers) as admin:
            await admin.wait_for_nodes(3)
            await work(admin, Watcher(servers))

    asyncio.run(run())


async def looked(admin: Admin, watcher: Watcher) -> Look:
    await watcher.look_once(admin)
    assert watcher.look is not None
    return watcher.look


async def becomes(admin: Admin, watcher: Watcher, holds: Callable[[Look], object]) -> None:
    while not holds(await looked(admin, watcher)):  # noqa: ASYNC110 - in other processes
        await asyncio.sleep(0.05)


def replicas(look: Look, topic: str) -> list[list[int]]:
    return [list(each.replicas) for each in look.topics[topic].partitions]


def test_settings_are_changed_and_go_back(servers: str) -> None:
    async def work(admin: Admin, watcher: Watcher) -> None:
        await admin.create_topic("set", 1, 3, {"retention_ms": 1000})
        look = await looked(admin, watcher)
        plan = await _plans.alter_config(admin, look, "set", {"retention_ms": 2000}, [])
        assert plan.lines == ["retention_ms: 1000 becomes 2000"]
        assert (await admin.describe_config("set"))["retention_ms"] == 1000
        assert await plan.carry_out() == "the settings of set were changed"
        assert (await admin.describe_config("set"))["retention_ms"] == 2000
        with pytest.raises(BadPlanError, match="nothing would change"):
            await _plans.alter_config(admin, look, "set", {"retention_ms": 2000}, [])
        back = await _plans.alter_config(admin, look, "set", {}, ["retention_ms"])
        assert back.lines == ["retention_ms: 2000 goes back to its default"]
        await back.carry_out()
        assert (await admin.describe_config("set"))["retention_ms"] not in (1000, 2000)

    against(servers, work)


def test_the_preferred_replica_is_elected(servers: str) -> None:
    async def work(admin: Admin, watcher: Watcher) -> None:
        await admin.create_topic("led", assignments=[[1, 2, 3]])
        await becomes(admin, watcher, lambda look: look.topics["led"].partitions[0].leader == 1)
        await admin.reassign_partitions({("led", 0): [2, 1, 3]})
        await becomes(admin, watcher, lambda look: replicas(look, "led") == [[2, 1, 3]])
        plan = await _plans.elect(admin, await looked(admin, watcher), "led", unclean=False)
        assert plan.lines == ["led-0: node 2 leads instead of node 1"] and not plan.dangerous
        assert (await looked(admin, watcher)).topics["led"].partitions[0].leader == 1
        await plan.carry_out()
        await becomes(admin, watcher, lambda look: look.topics["led"].partitions[0].leader == 2)

    against(servers, work)


def test_a_move_is_limited_seen_under_way_and_taken_back_and_a_node_is_drained(servers: str) -> None:
    async def work(admin: Admin, watcher: Watcher) -> None:
        await admin.create_topic("moves", assignments=[[1, 2]])
        async with Producer(servers) as producer:
            for _ in range(40):
                await producer.send("moves", b"x" * 50_000)
            await producer.flush()
        look = await looked(admin, watcher)
        plan = await _plans.reassign(admin, look, "moves", [1, 3], SLOWLY)
        assert "1 partition moves, about 2,0" in plan.lines[0]
        assert f"at most {SLOWLY:,} bytes a second" in plan.lines[1]
        assert "moves-0: nodes [1, 2] become" in plan.lines[2]
        assert await admin.list_partition_reassignments() == {}
        assert await admin.describe_quotas() == []
        await plan.carry_out()
        (limited,) = await admin.describe_quotas()
        assert (limited.entity_type, limited.limits) == ("node", dict.fromkeys(THROTTLES, SLOWLY))
        await becomes(admin, watcher, lambda _: "moves" in moves(watcher) and " %" in moves(watcher))
        cancel = await _plans.cancel_moves(admin, await looked(admin, watcher), "moves")
        assert len(cancel.lines) == 1 and "moves-0: back from" in cancel.lines[0]
        await cancel.carry_out()
        await becomes(admin, watcher, lambda look: replicas(look, "moves") == [[1, 2]])
        assert await admin.list_partition_reassignments() == {}
        with pytest.raises(BadPlanError, match="nothing of moves is being moved"):
            await _plans.cancel_moves(admin, await looked(admin, watcher), "moves")
        for name in await admin.list_topics():
            if name != "moves":
                await admin.delete_topic(name)  # with three replicas it has nowhere to go
        await becomes(admin, watcher, lambda look: list(look.topics) == ["moves"])
        drain = await _plans.drain(admin, await looked(admin, watcher), 2, 100_000_000)
        assert "moves-0: nodes [1, 2] become" in drain.lines[2]
        await drain.carry_out()
        await becomes(admin, watcher, lambda look: sorted(replicas(look, "moves")[0]) == [1, 3])

    against(servers, work)


LIMIT = "Bytes a second at most (0: no limit)"
MOVING = "//table[contains(., 'Copied')]//tr[td[1]='{}']"


def replicas_of(admin: BlockingAdmin, topic: str) -> list[int]:
    return list(admin.describe_topics([topic])[0].partitions[0].replicas)


def test_a_move_is_seen_taken_back_and_a_node_is_drained_in_a_browser(servers: str, page: WebDriver) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic("slow", assignments=[[1, 2]])
        with BlockingProducer(servers) as producer:
            for _ in range(60):
                producer.send("slow", b"x" * 100_000)
            producer.flush()
        choose(page, "Topic", "slow", "Move a topic")
        choose_all(page, "To nodes", ["1", "3"], "Move a topic")
        fill(page, LIMIT, str(SLOWLY // 5), "Move a topic")
        press(page, "Plan: move")
        shows(page, "1 partition moves, about 6,0")
        shows(page, f"at most {SLOWLY // 5:,} bytes a second")
        assert replicas_of(admin, "slow") == [1, 2]
        confirm(page)
        shows(page, "to be moved: 1 partition")
        until(lambda: reads(page, MOVING.format("slow")).split()[:4] == ["slow", "0", "3", "2"], "the move")
        assert "%" in reads(page, MOVING.format("slow"))
        press(page, "Plan: cancel moves")
        shows(page, "slow-0: back from")
        confirm(page)
        shows(page, "going back: 1 partition")
        until(lambda: not page.find_elements(By.XPATH, MOVING.format("slow")), "the end of the move")
        assert replicas_of(admin, "slow") == [1, 2]
        choose(page, "Node", "2", "Drain a node")
        fill(page, LIMIT, "100000000", "Drain a node")
        press(page, "Plan: drain")
        shows(page, "slow-0: nodes [1, 2] become")
        confirm(page)
        until(lambda: sorted(replicas_of(admin, "slow")) == [1, 3], "that node 2 has nothing of it")
        until(lambda: not page.find_elements(By.XPATH, MOVING.format("slow")), "the end of the drain")
    assert complaints(page) == []


def test_settings_are_changed_in_a_browser(servers: str, page: WebDriver) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic("settled", 1, 2)
        choose(page, "Topic", "settled", "Change settings of a topic")
        fill(page, "Settings: name=value ...", "retention_ms=5000", "Change settings of a topic")
        press(page, "Plan: change settings")
        shows(page, "becomes 5000")
        confirm(page)
        shows(page, "the settings of settled were changed")
        assert admin.describe_config("settled")["retention_ms"] == 5000


def test_a_partition_whose_replicas_are_lost_is_elected_uncleanly(
    nodes: list[NodeProcess], servers: str, page: WebDriver
) -> None:
    """The last test here: it takes nodes away."""
    with BlockingAdmin(servers) as admin, BlockingProducer(servers) as producer:
        admin.create_topic("lost", assignments=[[1, 2]], config={"min_insync_replicas": 1})

        def partition() -> PartitionInfo:
            return admin.describe_topics(["lost"])[0].partitions[0]

        producer.send_and_wait("lost", b"on both")
        nodes[1].kill()
        until(lambda: partition().isr == [1], "node 2 to leave the ISR")
        producer.send_and_wait("lost", b"on one")
        nodes[0].kill()
        until(lambda: partition().leader == -1, "the loss of the leader")
        start_again(nodes, 2)
        choose(page, "Topic", "lost", "Elect leaders")
        press(page, "Plan: elect")
        shows(page, "no preferred replica can be elected now: lost-0: stays as it is: node 1 is down")
        page.find_element(By.XPATH, "//*[@role='checkbox'][contains(., 'Uncleanly')]").click()
        press(page, "Plan: elect")
        shows(page, "This cannot be undone.")
        shows(page, "the most complete living replica leads; what it does not hold is lost")
        assert partition().leader == -1
        confirm(page)
        shows(page, "led as asked: 1 partition")
        until(lambda: partition().leader == 2, "the election")
