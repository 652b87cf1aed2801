"""The dashboard without a browser: readings over time, changes in words, findings, text that stays text."""

from __future__ import annotations

import asyncio
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup

from insync.replication.client import (
    ChangeInfo,
    ClusterInfo,
    GroupDescription,
    GroupListing,
    GroupMember,
    GroupPartition,
    NodeChanges,
    NodeHealth,
    NodeReport,
    RequestTimeoutError,
)
from insync.replication.client.admin import (
    FollowerInfo,
    HealthCheck,
    NodeInfo,
    PartitionInfo,
    ReplicaInfo,
    TopicInfo,
)
from insync.replication.core.types import PartitionId

pytest.importorskip("nicegui")

from insync.plugins.dashboard._changes import ChangeLog, in_words, timeline
from insync.plugins.dashboard._decode import UnknownDecoderError, decoders, readable
from insync.plugins.dashboard._findings import SHOWN, findings
from insync.plugins.dashboard._history import History, Series
from insync.plugins.dashboard._look import Look
from insync.plugins.dashboard._plans import reset_group
from insync.plugins.dashboard._transactions import Transactions
from insync.plugins.dashboard._watcher import Watcher
from insync.plugins.dashboard.pages import _cluster, _groups, _topics
from insync.plugins.dashboard.pages._frame import PAGES, banner

from .screenshots import PAGES as SCREENSHOTS

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def partition(number: int = 0, **facts: object) -> PartitionInfo:
    known: dict[str, object] = {
        "partition": number, "leader": 1, "leader_epoch": 3, "partition_epoch": 5,
        "replicas": [1, 2, 3], "isr": [1, 2, 3], "elr": [],
    }  # fmt: skip
    return PartitionInfo(**(known | facts))  # type: ignore[arg-type]


def look(
    *partitions: PartitionInfo, topic: str = "orders", silent: tuple[int, ...] = (), **facts: object
) -> Look:
    """A cluster of three nodes with one topic; `silent` ones do not answer. facts: of the leaders' reports."""
    at = float(facts.pop("at", time.time()))  # type: ignore[arg-type]
    end = int(facts.pop("end", 100))  # type: ignore[call-overload]
    behind = int(facts.pop("behind", 0))  # type: ignore[call-overload]
    error = str(facts.pop("error", "not registered; its process is down or cut off"))
    controller = int(facts.pop("controller", 1))  # type: ignore[call-overload]
    checks = facts.pop("checks", [HealthCheck(name="store", ok=True)])
    counters = facts.pop("counters", {})
    info = TopicInfo(
        name=topic,
        error=0,
        replication_factor=3,
        config={"min_insync_replicas": 2},
        partitions=list(partitions),
    )
    reports = []
    for node in (1, 2, 3):
        if node in silent:
            reports.append(NodeReport(node_id=node, endpoints=[], error=error))
            continue
        replicas = [
            ReplicaInfo(
                topic=topic, partition=each.partition, role="leader", leader=node, leader_epoch=3,
                partition_epoch=5,
                log_start_offset=0, log_end_offset=end, high_watermark=end, size_bytes=1000, isr=each.isr,
                followers=[
                    FollowerInfo(
                        node_id=other, log_end_offset=end - (0 if other in each.isr else behind),
                        lag_ms=0 if other in each.isr else 41_000, in_sync=other in each.isr,
                        why_out="" if other in each.isr else f"it is behind {HOSTILE}",
                    )
                    for other in each.replicas if other != node
                ],
            )
            for each in partitions if each.leader == node
        ]  # fmt: skip
        reports.append(
            NodeReport(
                node_id=node, endpoints=[f"tcp://h{node}:1"], incarnation=7, replicas=replicas, **facts
            )
        )  # type: ignore[arg-type]
    nodes = [NodeInfo(node_id=node, incarnation=7, endpoints=[]) for node in (1, 2, 3) if node not in silent]
    health = [
        NodeHealth(node_id=node, error=error)
        if node in silent
        else NodeHealth(node_id=node, incarnation=7, uptime_ms=5, checks=checks, counters=counters)  # type: ignore[arg-type]
        for node in (1, 2, 3)
    ]
    cluster = ClusterInfo(cluster_id="c", controller_id=controller, revision=9, nodes=nodes)
    return Look.of(at, 0.01, cluster, [info], reports, health)


def told(node: int, *changes: ChangeInfo) -> NodeChanges:
    return NodeChanges(node_id=node, incarnation=1, next_number=len(changes) + 1, changes=list(changes))


def change(epoch: int, at: float, **facts: object) -> ChangeInfo:
    known: dict[str, object] = {
        "partition": "orders-0", "leader": 1, "was_leader": 1, "isr": [1, 2], "was_isr": [1, 2, 3],
        "replicas": [1, 2, 3], "partition_epoch": epoch, "was_partition_epoch": epoch - 1, "why": "node 3 is slow",
    }  # fmt: skip
    return ChangeInfo(number=epoch, at_ms=int(at * 1000), name="partition_changed", facts=known | facts)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e9)), max_size=400), st.integers(2, 20))
def test_a_series_keeps_its_newest_value_and_never_more_points_than_it_may(
    values: list[tuple[float, float]], points: int
) -> None:
    series = Series(points)
    newest: tuple[float, float] | None = None
    for at, value in values:
        series.add(at, value)
        if newest is None or at >= newest[0]:
            newest = (at, value)
        assert len(series) <= points
        assert (series.at[-1], series.values[-1]) == newest
        assert list(series.at) == sorted(series.at)


def test_rates_are_of_one_process_and_lag_is_kept_of_those_that_lag() -> None:
    history = History()
    history.add(
        look(
            partition(),
            at=10.0,
            counters={"messages_in": 100, "requests_produce": 5, "request_us_produce": 9_000},
        )
    )
    history.add(
        look(
            partition(isr=[1, 2]),
            at=12.0,
            end=140,
            behind=30,
            counters={"messages_in": 180, "requests_produce": 45, "request_us_produce": 89_000},
        )
    )
    assert history.rates_of(1)["messages_in"] == 40
    assert history.takes == {"orders": 20.0}
    assert history.requests == {"produce": (3 * 40 / 2, 0.002)}
    assert {at: sorted(by_node) for at, by_node in history.lags.items()} == {("orders", 0): [3]}
    assert list(history.lags["orders", 0][3].values) == [30]
    history.add(look(partition(), at=14.0, silent=(1,)))
    assert history.rates_of(1)["messages_in"] == 0
    history.add(look(at=16.0, topic="others"))
    assert not history.lags and list(history.topics) == ["others"]


def test_what_several_nodes_tell_is_one_change_and_the_leader_knows_why() -> None:
    changes = ChangeLog()
    assert changes.add([told(2, change(6, 50.0, why="node 3 has not caught up")), told(3)]) == 1
    assert (
        changes.add([told(1, change(6, 50.1), change(7, 60.0, leader=2, was_leader=1, why="node 1 is gone"))])
        == 1
    )
    assert [each.why for each in changes] == ["node 3 is slow", "node 1 is gone"]
    assert [in_words(each) for each in changes] == [
        "orders-0 node 3 left the ISR",
        "orders-0 is led by node 2 (was node 1); node 3 left the ISR",
    ]
    assert changes.known[1].next_number == 3
    small = ChangeLog(remembered=2)
    for epoch in range(1, 6):
        small.add([told(1, change(epoch, 10.0 + epoch))])
    assert [each.number("partition_epoch") for each in small] == [4, 5]


def test_what_a_leader_says_of_a_known_change_is_shown_from_then_on_and_is_news_once() -> None:
    changes, at = ChangeLog(), ("orders", 0)
    changes.add([told(2, change(6, 50.0, why="node 3 has not caught up"))])
    assert [each.why for each in changes.of_partition(at)] == ["node 3 has not caught up"]
    before = changes.version
    assert changes.add([told(1, change(6, 50.1))]) == 0
    assert [each.why for each in changes.of_partition(at)] == ["node 3 is slow"]
    after = changes.version
    assert changes.add([told(1, change(6, 50.1))]) == 0
    assert after == changes.version > before


def test_of_changes_that_are_forgotten_nothing_is_kept() -> None:
    changes = ChangeLog(remembered=2)
    for epoch in range(1, 6):
        changes.add([told(1, change(epoch, 10.0 + epoch))])
    assert len(changes) == len(changes._places) == 2


def test_a_timeline_begins_with_what_the_first_change_says_and_ends_as_things_are() -> None:
    changes = ChangeLog()
    changes.add(
        [told(1, change(6, 50.0), change(7, 70.0, isr=[1, 2, 3], was_isr=[1, 2], why="node 3 has caught up"))]
    )
    spans = timeline(changes.of_partition(("orders", 0)), partition(), 0.0, 100.0)
    assert [(each.node, each.start, each.end, each.state) for each in spans] == [
        (1, 0.0, 100.0, "leads"),
        (2, 0.0, 100.0, "in"),
        (3, 0.0, 50.0, "in"),
        (3, 50.0, 70.0, "out"),
        (3, 70.0, 100.0, "in"),
    ]
    assert [each.why for each in spans if each.node == 3] == ["", "node 3 is slow", "node 3 has caught up"]
    born = ChangeLog()
    born.add([told(1, change(1, 40.0, was_partition_epoch=-1, was_isr=[], was_leader=-1, isr=[1, 2, 3]))])
    first = timeline(born.of_partition(("orders", 0)), partition(), 0.0, 100.0)
    assert {(each.start, each.state) for each in first} == {(40.0, "leads"), (40.0, "in")}
    assert {each.start for each in timeline([], partition(), 0.0, 100.0)} == {0.0}


def test_findings_name_cause_consequence_and_remedy_the_worst_first() -> None:
    changes = ChangeLog()
    changes.add([told(1, change(6, 50.0))])
    assert findings(look(partition()), changes) == []
    found = {each.key: each for each in findings(look(partition(isr=[1, 2]), end=100, behind=40), changes)}
    (short,) = found.values()
    assert short.title == "orders-0 has 2 of 3 in sync" and short.severity == "warning"
    assert "Node 3 is 40 records behind" in short.cause and "for 41 s" in short.cause
    assert "node 3 is slow" in short.cause and "Wait for node 3" in short.remedy
    assert "1 more replica leaves" in short.consequence
    (refused,) = findings(look(partition(isr=[1])), changes)
    assert refused.severity == "error" and "refused until 2" in refused.consequence
    lost = findings(
        look(partition(leader=-1, isr=[3]), partition(1, isr=[1, 2]), silent=(3,), controller=-1), changes
    )
    assert [each.key for each in lost] == ["controller", "node-3", "leader-orders-0"]
    assert "insync elect orders --partition 0 --unclean" in lost[2].remedy
    assert "insync drain 3" in lost[1].remedy
    sick = look(
        partition(), checks=[HealthCheck(name="log_directories", ok=False, detail="/data is offline: EIO")]
    )
    assert {each.key for each in findings(sick, changes)} == {f"log_directories-{node}" for node in (1, 2, 3)}
    old = look(partition(), store_age_ms=60_000)
    assert all("for 60 s" in each.cause for each in findings(old, changes))


def test_a_cluster_that_is_slow_is_told_with_the_time_of_what_is_shown() -> None:
    watcher = Watcher("tcp://h:1")
    assert "Asking the cluster" in banner(watcher)
    watcher.slow_since = 1.0
    assert "has been running since" in banner(watcher) and "It has not answered yet" in banner(watcher)
    watcher.look = attrs.evolve(look(partition()), took=12.0)
    assert "has been running since" in banner(watcher) and "What is shown is of" in banner(watcher)
    watcher.slow_since = 0.0
    assert "a query takes 12 s. What is shown is of" in banner(watcher)
    watcher.look = look(partition())
    assert banner(watcher) == ""


def test_the_cluster_page_counts_what_is_not_as_it_should_be() -> None:
    watcher = Watcher("tcp://h:1")
    checks = [HealthCheck(name="log_directories", ok=False, detail="/data is offline: EIO")]
    watcher.look = look(
        partition(isr=[1]), partition(1, leader=-1, isr=[2]), partition(2), silent=(3,), checks=checks
    )
    drawn = _cluster.cluster(watcher)
    page = drawn.striptags()
    facts = {
        name: Markup(value).striptags() for name, value in re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", drawn)
    }
    assert facts["Nodes alive"] == "2 of 3"
    assert (facts["Under-replicated"], facts["Below minimum"], facts["Without a leader"]) == ("2", "2", "1")
    assert "not ready log_directories: /data is offline: EIO" in page
    assert "does not answer not registered; its process is down or cut off" in page


def test_lag_is_a_line_for_each_follower_and_each_partition_of_a_group() -> None:
    watcher = Watcher("tcp://h:1")
    now = time.time()
    watcher.look = look(partition(isr=[1, 2]), end=140, behind=30, at=now)
    watcher.history.add(watcher.look)
    page = _topics.topic(watcher, "orders", 0)
    assert "records behind the leader, the last minute: node 3 30 now" in page
    read = [
        GroupPartition(topic="orders", partition=number, committed=3, end_offset=9, lag=6 - number)
        for number in (0, 1)
    ]
    group = GroupDescription(
        group="billing",
        type="consumer",
        state="Stable",
        epoch=1,
        protocol="",
        coordinator=1,
        members=[],
        partitions=read,
    )
    watcher.groups = {"billing": group}
    watcher.history.add_groups(now, [group])
    page = _groups.group(watcher, "billing")
    assert "All partitions, the last minute: records 11 now" in page
    assert "The partitions that are furthest behind: orders-0 6 now; orders-1 5 now" in page


def test_one_cause_is_one_finding_with_its_partitions_behind_it() -> None:
    numbers = range(51)
    behind = tuple(("orders", number) for number in numbers)
    short = [partition(number, isr=[1, 2]) for number in numbers]
    (node,) = findings(look(*short, silent=(3,)), ChangeLog())
    assert node.key == "node-3" and node.partitions == behind, (
        "a node that is down says it for its partitions"
    )
    (slow,) = findings(look(*short, end=100, behind=40), ChangeLog())
    assert slow.title == "51 partitions lack node 3 in their ISRs" and slow.partitions == behind
    assert slow.severity == "warning" and slow.cause.startswith("For example orders-0: Node 3 is 40 records")
    refused, still = findings(
        look(partition(0, isr=[1]), partition(1, isr=[1, 2]), partition(2, isr=[1])), ChangeLog()
    )
    assert refused.title == "2 partitions refuse acks=all writes without nodes 2 and 3"
    assert refused.partitions == (("orders", 0), ("orders", 2)) and refused.severity == "error"
    assert still.key == "isr-orders-1" and still.partitions == (("orders", 1),)
    more = partition(1, replicas=[1, 2, 3, 4], isr=[1, 2, 4])
    found = findings(look(partition(0, isr=[1, 2]), more), ChangeLog())
    assert [each.key for each in found] == ["isr-orders-0", "isr-orders-1"], "they tolerate different losses"
    *_, lost = findings(
        look(*(partition(number, leader=-1, isr=[3]) for number in numbers), silent=(3,)), ChangeLog()
    )
    assert lost.title == "51 partitions have no leader without node 3" and lost.severity == "error"
    assert "insync elect TOPIC --unclean" in lost.remedy and lost.partitions == behind


def test_of_many_causes_the_partitions_of_the_rest_are_counted() -> None:
    many = [partition(n, replicas=[1, 2, 10 + n % 100], isr=[1, 2]) for n in range(10_000)]
    found = findings(look(*many), ChangeLog())
    assert len(found) == SHOWN + 1
    assert found[0].title == "100 partitions lack node 10 in their ISRs"
    assert found[-1].title == "5,000 more partitions have problems"


class Tags(HTMLParser):
    """Which tags there are, and whether an attribute could run something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            assert not (value or "").lower().startswith("javascript:"), (tag, name, value)


def test_nothing_that_a_cluster_says_becomes_markup() -> None:
    watcher = Watcher("tcp://h:1")
    watcher.look = look(
        partition(isr=[1]), partition(1, leader=-1), topic=HOSTILE, silent=(3,), error=HOSTILE,
        checks=[HealthCheck(name="maintenance", ok=False, detail=HOSTILE)],
    )  # fmt: skip
    watcher.look = attrs.evolve(watcher.look, cluster=attrs.evolve(watcher.look.cluster, cluster_id=HOSTILE))
    watcher.look.topics[HOSTILE].config[HOSTILE] = HOSTILE
    watcher.history.add(watcher.look)
    bad = change(6, time.time(), partition=f"{HOSTILE}-0", why=HOSTILE, isr=HOSTILE, leader=HOSTILE)
    odd = ChangeInfo(number=9, at_ms=10**17, name=HOSTILE, facts={HOSTILE: HOSTILE})
    watcher.changes.add([told(1, bad, odd)])
    rebalance = ChangeInfo(
        number=10, at_ms=10**12, name="group_changed", facts={"group": HOSTILE, "why": HOSTILE}
    )
    watcher.changes.add([told(2, rebalance)])
    member = GroupMember(
        member_id=HOSTILE, instance_id=HOSTILE, client_id=HOSTILE, client_host=HOSTILE, topics=[HOSTILE],
        partitions=[PartitionId(HOSTILE, 0)],
    )  # fmt: skip
    read = GroupPartition(topic=HOSTILE, partition=0, committed=3, end_offset=9, lag=6, member_id=HOSTILE)
    group = GroupDescription(
        group=HOSTILE, type=HOSTILE, state=HOSTILE, epoch=1, protocol=HOSTILE, coordinator=1, members=[member],
        partitions=[read],
    )  # fmt: skip
    watcher.groups, watcher.groups_error = {HOSTILE: group}, HOSTILE
    watcher.group_names = [GroupListing(group=HOSTILE, type=HOSTILE, state=HOSTILE)]
    watcher.history.add_groups(time.time(), [group])
    watcher.findings = findings(watcher.look, watcher.changes)
    watcher.error = ""
    pages = [
        _cluster.cluster(watcher),
        _cluster.why(watcher),
        _topics.topics(watcher, "", 0),
        _topics.topics(watcher, HOSTILE, 0),
        _topics.topic(watcher, HOSTILE, 0),
        _topics.topic(watcher, HOSTILE + "?", 0),
        _groups.groups(watcher),
        _groups.group(watcher, HOSTILE),
        _groups.group(watcher, HOSTILE + "?"),
    ]
    watcher.error = HOSTILE
    pages.append(banner(watcher))
    for page in pages:
        assert "alert(1)" in page
        tags = Tags()
        tags.feed(str(page))
        assert not tags.found & {"script", "img"}


def test_pages_of_10_000_partitions_hold_what_fits_on_them() -> None:
    watcher = Watcher("tcp://h:1")
    watcher.look = look(*(partition(number) for number in range(10_000)))
    watcher.history.add(watcher.look)
    page = str(_topics.topic(watcher, "orders", 50))
    assert len(page) < 100_000
    assert "51 to 100 of 10,000" in page and '<td class="number">50</td>' in page


def test_the_links_to_further_topics_keep_the_filter() -> None:
    watcher = Watcher("tcp://h:1")
    known = look(partition())
    (topic,) = known.topics.values()
    watcher.look = attrs.evolve(known, topics={f"orders-{number:03}": topic for number in range(151)})
    page = str(_topics.topics(watcher, "orders", 50))
    assert "51 to 100 of 151" in page and "orders-099" in page
    assert '"/topics?first=0&amp;text=orders"' in page and '"/topics?first=100&amp;text=orders"' in page


@example(b'"\\ud800"', "auto")
@given(
    st.binary(max_size=3000) | st.text(max_size=500).map(str.encode),
    st.sampled_from(["auto", "json", "utf-8", "hex"]),
)
def test_any_bytes_become_text_of_bounded_length(data: bytes, decoder: str) -> None:
    text = readable(data, decoder, 300)
    assert len(text) < 400
    text.encode()  # half a surrogate pair, as JSON may name it, would stop the page


def test_decoders_show_json_text_and_hex_and_say_when_it_is_none() -> None:
    assert readable(b'{"a": [1]}') == json.dumps({"a": [1]}, indent=2)
    assert readable("groupe-é".encode()) == "groupe-é"
    assert readable(b"\x00\xffa") == f"00000000  {'00 ff 61':<47}  ..a"
    assert readable(b"[1", "json").startswith("(not json: ")
    assert readable(None) == "(null)"
    assert readable(b"[" * 100_000).endswith("(100,000 bytes in all)")
    with pytest.raises(UnknownDecoderError, match="'avro': use one of auto"):
        readable(b"", "avro")


def test_a_package_brings_a_format_and_what_it_raises_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brought.py").write_text(
        "def shown(data):\n    return f'avro {len(data) // (len(data) - 3)}'\n"
    )
    info = tmp_path / "brought-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[insync.decoders]\navro = brought:shown\ngone = brought:gone\njson = brought:shown\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    decoders.cache_clear()
    try:
        assert readable(b"four", "avro") == "avro 4"
        assert readable(b"3 3", "avro").startswith("(not avro: the decoder avro failed: ZeroDivisionError")
        assert readable(b"four", "gone").startswith("(not gone: the decoder gone failed: AttributeError")
        assert readable(b"[1]", "json") == json.dumps([1], indent=2), "ours are ours"
    finally:
        decoders.cache_clear()


def test_each_page_has_its_picture_in_the_docs() -> None:
    """They are made by `python -m tests.plugins.dashboard.screenshots docs/dashboard`."""
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "dashboard.md").read_text(encoding="utf-8")
    for name in (*SCREENSHOTS, "login"):
        assert f"](dashboard/{name}.png)" in page
        assert (docs / "dashboard" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert {path for _, path in PAGES} <= {"/" + path.partition("?")[0] for path in SCREENSHOTS.values()}


def test_a_search_that_comes_through_clears_the_error_of_the_one_before() -> None:
    class Told:
        failing = True

        async def find_hanging_transactions(self, **_: object) -> list[object]:
            if self.failing:
                raise RequestTimeoutError("no answer")
            return []

    transactions, admin = Transactions(), Told()
    asyncio.run(transactions.search(admin, 5, lambda: 7.0))  # type: ignore[arg-type]
    assert (transactions.hanging_error, transactions.searched_at) == ("no answer", 0.0)
    admin.failing = False
    asyncio.run(transactions.search(admin, 5, lambda: 7.0))  # type: ignore[arg-type]
    assert (transactions.hanging_error, transactions.searched_at) == ("", 7.0)


@pytest.mark.parametrize(("to", "dangerous"), [(9, True), (2, False)])
def test_a_reset_is_dangerous_if_records_are_left_out(to: int, dangerous: bool) -> None:
    class Told:
        async def describe_groups(self, names: list[str]) -> list[SimpleNamespace]:
            committed = SimpleNamespace(topic="orders", partition=0, committed=5)
            return [SimpleNamespace(members=[], partitions=[committed])]

        async def plan_group_reset(self, *_: object) -> dict[PartitionId, int]:
            return {PartitionId("orders", 0): to}

    plan = asyncio.run(reset_group(Told(), "readers", "earliest", None))  # type: ignore[arg-type]
    assert plan.dangerous is dangerous
