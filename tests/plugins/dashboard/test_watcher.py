"""The task that looks at the cluster, when nobody answers; and what a search for records is bounded by."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from insync.replication.asyncio import Admin, Consumer, Producer
from insync.replication.client import (
    ClusterInfo,
    NodeChanges,
    NodeHealth,
    NodeReport,
    RequestTimeoutError,
    UserInfo,
)
from insync.replication.client.admin import TopicInfo
from tests.processes import STEADY, NodeProcess, cluster

pytest.importorskip("nicegui")

from insync.plugins.dashboard import _browse, _watcher
from insync.plugins.dashboard._browse import CLIENT, BadSearchError, Found, Search, search
from insync.plugins.dashboard._login import Login, LoginError
from insync.plugins.dashboard._plans import BadPlanError, elect
from insync.plugins.dashboard._watcher import Watcher
from insync.plugins.dashboard.pages._frame import ChangesNotAllowedError, Site


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with cluster(tmp_path_factory.mktemp("one"), 1, *STEADY) as (one,):
        yield one


async def until(holds: Callable[[], object]) -> None:
    """The watcher tells nobody what it sees: it is looked at."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def found(
    node: NodeProcess, partitions: int, after: dict[int, int] | None = None, **wanted: object
) -> Found:
    async with Consumer(node.endpoint, **CLIENT) as consumer:
        return await search(consumer, Search(**wanted), range(partitions), after)  # type: ignore[arg-type]


def offsets(result: Found) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in result.records]


def test_searches_find_all_that_matches_within_their_bounds(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Admin(node.endpoint) as admin, Producer(node.endpoint) as producer:
            # The records are of 1970.
            await admin.create_topic("t", 2, 1, {"min_insync_replicas": 1, "retention_ms": -1})
            for number in range(1200):
                await producer.send(
                    "t",
                    b"v%d" % number,
                    key=b"k%d" % (number % 7),
                    partition=number % 2,
                    timestamp_ms=10_000 + number,
                    headers=[("h", b"seven")] if number == 777 else [],
                )
            await producer.flush()
        # However long a busy machine takes, no search stops for it.
        monkeypatch.setattr(_browse, "MOST_SECONDS", 120.0)
        whole = await found(node, 2, topic="t", start="earliest", count=100)
        assert len(whole.records) == 100 and whole.stopped == "100 records are shown"
        seen = offsets(whole)
        result, pages = whole, 1
        while result.stopped:
            result = await found(node, 2, result.next, topic="t", start="earliest", count=100)
            seen += offsets(result)
            pages += 1
        assert sorted(seen) == [(part, offset) for part in (0, 1) for offset in range(600)] and pages >= 12
        newest = await found(node, 2, topic="t", start="newest", count=6)
        assert offsets(newest) == [(0, 597), (0, 598), (0, 599), (1, 597), (1, 598), (1, 599)]
        assert offsets(await found(node, 2, topic="t", partition=1, start="offset", value=5, count=2)) == [
            (1, 5),
            (1, 6),
        ]
        assert offsets(await found(node, 2, topic="t", start="time", value=11_198)) == [(0, 599), (1, 599)]
        assert offsets(await found(node, 2, topic="t", start="newest", text=b"seven")) == [(1, 388)]
        assert offsets(await found(node, 2, topic="t", start="earliest", text=b"v1199")) == [(1, 599)]
        assert len((await found(node, 2, topic="t", start="newest", key=b"k3", count=100)).records) == 100
        with monkeypatch.context() as patch:
            patch.setattr(_browse, "MOST_SECONDS", 0.0)
            late = await found(node, 2, topic="t", start="earliest", text=b"nowhere")
        assert late.stopped == "it took longer than 0 s"
        monkeypatch.setattr(_browse, "MOST_SCANNED", 50)
        short = await found(node, 2, topic="t", start="earliest", text=b"v1199")
        assert (offsets(short), short.scanned, short.stopped) == ([], 50, "50 records were looked through")
        with pytest.raises(BadSearchError, match="has no partition 2: give a number from 0 to 1"):
            await found(node, 2, topic="t", partition=2)
        with pytest.raises(BadSearchError, match="'now' is not a start"):
            await found(node, 2, topic="t", start="now")

    asyncio.run(run())


def test_a_cluster_that_is_silent_is_told_and_asked_again(tmp_path: Path) -> None:
    async def run() -> None:
        watcher = Watcher("tcp://127.0.0.1:1", lambda servers: Admin(servers, request_timeout_ms=300))
        watching = asyncio.create_task(watcher.run())
        try:
            async with asyncio.timeout(30):
                await until(lambda: watcher.error)
                assert watcher.look is None
                with cluster(tmp_path, 1) as (one,):
                    watcher.servers = one.endpoint
                    await until(lambda: watcher.look is not None and not watcher.error)
                    assert sorted(watcher.look.reports) == [1]
                    async with Admin(one.endpoint) as admin:
                        await admin.create_topic("t", 1, 1)
                        await until(lambda: len(watcher.changes))
                        await until(lambda: watcher.look is not None and "t" in watcher.look.topics)
                        with pytest.raises(BadPlanError, match="led by its preferred replica"):
                            await elect(admin, watcher.look, "t", unclean=False)
                await until(lambda: watcher.error)
                assert watcher.look is not None and "t" in watcher.look.topics
        finally:
            watching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watching

    asyncio.run(run())


class Late:
    """A cluster of no nodes that answers when it may, and notes what its nodes were given to answer."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.given: list[int] = []
        self.asked = 0

    async def describe_cluster(self) -> ClusterInfo:
        self.asked += 1
        await self.may.wait()
        return ClusterInfo(cluster_id="c", controller_id=-1, revision=1, nodes=[])

    async def describe_topics(self, names: object = None) -> list[TopicInfo]:
        return []

    async def describe_replicas(self, topics: object = None, *, timeout_ms: int = 0) -> list[NodeReport]:
        self.given.append(timeout_ms)
        return []

    async def describe_nodes(self, *, timeout_ms: int = 0) -> list[NodeHealth]:
        self.given.append(timeout_ms)
        return []

    async def describe_changes(self, since: object = None, *, timeout_ms: int = 0) -> list[NodeChanges]:
        return []


def test_a_look_that_takes_long_is_told_while_it_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watcher, "SLOW", 0.0)

    async def run() -> None:
        late, watcher = Late(), Watcher("tcp://h:1")
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            looking = group.create_task(watcher.look_once(late))
            await until(lambda: watcher.slow_since)
            assert watcher.version == 1, "or the pages would not be drawn again"
            late.may.set()
            await looking
        assert watcher.slow_since == 0.0 and watcher.look is not None

    asyncio.run(run())


def test_a_cluster_that_answers_quickly_again_is_looked_at_before_the_pause_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_watcher, "LOOK_EVERY", 0.01)

    async def run() -> None:
        late, watcher = Late(), Watcher("tcp://h:1")
        watcher._first_answer = 8.0
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            pausing = group.create_task(watcher._pause(late, 3600.0))
            await until(lambda: late.asked)
            assert not pausing.done()
            late.may.set()

    asyncio.run(run())


def test_groups_that_could_not_be_asked_for_are_told_until_they_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Told:
        failing = True

        async def list_groups(self) -> list[object]:
            if self.failing:
                raise RequestTimeoutError("no answer")
            return []

    async def run() -> None:
        watcher, admin = Watcher("tcp://h:1"), Told()
        monkeypatch.setattr(_watcher, "GROUPS_EVERY", 0.01)
        looking = asyncio.ensure_future(watcher._keep_listing_groups(admin))  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await until(lambda: watcher.groups_error == "no answer")
            admin.failing = False
            await until(lambda: not watcher.groups_error)
        looking.cancel()

    asyncio.run(run())


def test_nodes_that_took_long_are_given_time_but_not_more_and_more_of_it() -> None:
    async def run() -> None:
        late, watcher = Late(), Watcher("tcp://h:1")
        late.may.set()
        await watcher.look_once(late)
        for took in (1.0, 100.0):
            assert watcher.look is not None
            watcher.look = attrs.evolve(watcher.look, took=took)
            await watcher.look_once(late)
        assert late.given == [3_000, 3_000, 7_000, 7_000, 30_000, 30_000]

    asyncio.run(run())


def test_a_plan_rests_on_a_look_that_was_begun_after_it_was_asked_for() -> None:
    async def run() -> None:
        late, watcher = Late(), Watcher("tcp://h:1")
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            under_way = group.create_task(watcher.look_once(late))
            await until(lambda: late.asked)
            plans = [group.create_task(watcher.fresh(late)) for _ in range(2)]
            late.may.set()
        assert late.asked == 2, "one look for both plans, and none that was under way before"
        assert under_way.done() and plans[0].result() is plans[1].result() is watcher.look
        await watcher.fresh(late)
        assert late.asked == 3

    asyncio.run(run())


def test_nothing_is_changed_unless_that_was_allowed() -> None:
    async def run() -> None:
        watcher = Watcher("tcp://h:1")
        with pytest.raises(ChangesNotAllowedError, match="start the dashboard with --allow-changes"):
            await Site(watcher=watcher).changing(None, "admin")
        await Site(watcher=watcher, allow_changes=True).changing(None, "admin")
        user = Login(name="a", operations=frozenset(), user=UserInfo(name="a", mechanisms={}))
        with pytest.raises(LoginError, match="the user's rights are unknown"):
            await Site(watcher=watcher, allow_changes=True).changing(user, "admin")

    asyncio.run(run())


@pytest.mark.slow
def test_the_process_serves_pages_without_a_cluster_and_ends_when_it_is_told_to() -> None:
    command = [
        sys.executable,
        "-m",
        "insync",
        "dashboard",
        "--servers",
        "tcp://127.0.0.1:1",
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert told["event"] == "ready" and told["url"].startswith("http://127.0.0.1:")
            with urllib.request.urlopen(told["url"], timeout=20) as answer:
                assert b"insync" in answer.read()
            process.terminate()
            assert process.wait(20) in (0, -15, 143)
        finally:
            process.kill()


@pytest.mark.slow
def test_a_local_cluster_brings_its_dashboard_which_ends_with_it(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "insync",
        "up",
        "--nodes",
        "1",
        "--data-dir",
        str(tmp_path),
        "--dashboard",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["dashboard"]
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert b"Cluster - insync" in answer.read()
        finally:
            # As it cannot be caught: nothing but the pipe tells the dashboard.
            process.kill()
        process.wait(20)

        async def gone() -> None:
            async with asyncio.timeout(20):
                await until(lambda: not _answers(url))

        asyncio.run(gone())


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=20):
            return True
    except OSError:
        return False
