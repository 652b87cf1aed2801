"""`health`, `top`, `bench` and limits, as commands against real nodes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication.cli import main
from insync.replication.cli.bench import percentile
from insync.replication.cli.watching.measures import amount
from insync.replication.cli.watching.top import _Sample, picture
from insync.replication.cli.watching.top_tables import Sort, by, console, draw
from insync.replication.client import Admin, BootstrapError, NodeHealth, RequestTimeoutError
from insync.replication.client.connection._client import Client
from insync.replication.core.messages import HealthCheck
from tests.processes import STEADY, NodeProcess, cluster, kept_address

pytestmark = pytest.mark.xdist_group("operations")
"""They share two nodes, and what the first of them wrote."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    with cluster(tmp_path_factory.mktemp("cluster"), 2, *STEADY) as nodes:
        assert (
            main(["topic", "create", "load", "--partitions", "2", "--replication-factor", "2", *at(nodes)])
            == 0
        )
        yield nodes


def at(nodes: list[NodeProcess]) -> list[str]:
    return ["--servers", ",".join(node.endpoint for node in nodes)]


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == status, capsys.readouterr()
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    (line,) = said(capsys, *arguments, "--json", status=status).splitlines()
    return json.loads(line)


def until_quotas(
    capsys: pytest.CaptureFixture[str], nodes: list[NodeProcess], wanted: dict[str, Any]
) -> None:
    """A change is answered once it is stored; each node learns of it after that, by itself."""
    for node in nodes:
        while told(capsys, "config", "quotas", *at([node])) != wanted:
            pass


def test_health_is_a_status_and_says_why_not(
    nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert said(capsys, "health", "--wait", "60", *at(nodes)) == "node 1: ready\nnode 2: ready\n"
    (one,) = told(capsys, "health", "--wait", "60", "--node", "1", *at(nodes))
    assert one["node_id"] == 1 and one["ready"] and all(check["ok"] for check in one["checks"])
    assert main(["health", "--node", "9", *at(nodes)]) == 1
    assert "there is no node 9: the cluster has 1, 2" in capsys.readouterr().err
    assert main(["health", "--wait", "0.5", "--node", "9", *at(nodes)]) == 1
    assert "no node is ready after 0.5 s: there is no node 9: the" in capsys.readouterr().err


def test_health_that_waits_says_for_what_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with kept_address() as url:
        assert main(["health", "--wait", "0.8", "--servers", url]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert (
        told.err.startswith("insync: no node is ready after 0.8 s: no node could be reached")
        and url in told.err
    )


def test_health_looks_again_whatever_passes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, hopeless = BootstrapError("refused"), BootstrapError("wrong secret")
    refused.patience = 0.5
    sick = [NodeHealth(node_id=1, checks=[HealthCheck(name="min_isr", ok=False, detail="t-0")])]
    looks: list[Any] = [refused, [], sick, RequestTimeoutError("busy"), [NodeHealth(node_id=1)]]

    async def describe_nodes(*_: Any, timeout_ms: int) -> list[NodeHealth]:
        result = looks.pop(0)
        if isinstance(result, Exception):
            raise result
        return list(result)

    async def enter(admin: Any) -> Any:
        return admin

    async def leave(*_: Any) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Admin, "__aenter__", enter)
    monkeypatch.setattr(Admin, "__aexit__", leave)
    monkeypatch.setattr(Admin, "describe_nodes", describe_nodes)
    monkeypatch.setattr("insync.replication.cli.watching.health._LOOK", 0)
    assert said(capsys, "health", "--wait", "60", "-s", "tcp://x:1") == "node 1: ready\n" and looks == []
    looks = [sick] * 1_000_000
    assert main(["health", "--wait", "0.1", "-s", "tcp://x:1"]) == 1
    told = capsys.readouterr()
    assert told.out == "node 1: NOT READY\n  min_isr: t-0\n"
    assert told.err == "insync: not ready after 0.1 s: node 1 (min_isr)\n"
    looks = [hopeless]
    assert main(["health", "--wait", "60", "-s", "tcp://x:1"]) == 1
    assert capsys.readouterr().err == "insync: wrong secret\n"


@pytest.mark.slow
def test_health_waits_for_a_node_that_does_not_listen_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reach, refused = Client._reach_a_node, threading.Event()

    async def reach_a_node(client: Client) -> None:
        try:
            await reach(client)
        except BootstrapError:
            refused.set()
            raise

    monkeypatch.setattr(Client, "_reach_a_node", reach_a_node)
    nodes: list[NodeProcess] = []
    with kept_address() as url:

        def start() -> None:
            assert refused.wait(60)
            nodes.append(NodeProcess.start(1, tmp_path, "--listen", url))

        starting = threading.Thread(target=start)
        starting.start()
        try:
            assert said(capsys, "health", "--wait", "60", "--servers", url) == "node 1: ready\n"
        finally:
            starting.join()
            for node in nodes:
                node.kill()


@pytest.mark.slow
def test_health_of_a_cluster_that_has_lost_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    with cluster(tmp_path, 2) as nodes:
        servers = at(nodes[:1])
        said(capsys, "topic", "create", "t", "--partitions", "2", "--replication-factor", "2", *servers)
        said(capsys, "health", "--wait", "60", *servers)
        nodes[1].kill()
        lines = ""
        # That it is gone, and what this comes to for each partition, are learnt one after the other.
        while "not registered" not in lines or "t-0, t-1" not in lines:
            lines = said(capsys, "health", *servers, status=1)
        assert "node 2: NO ANSWER: not registered" in lines
        assert (
            "node 1: NOT READY\n  min_isr: 2 partitions led here under min_insync_replicas: t-0, t-1" in lines
        )
        one, two = told(capsys, "health", *servers, status=1)
        assert [check["name"] for check in one["checks"] if not check["ok"]] == ["min_isr"]
        assert two["error"].startswith("not registered")
        shown = said(capsys, "top", "--once", "--interval", "0.1", *servers)
        assert "DOWN" in shown and "not ready: min_isr" in shown
        assert "under-replicated: 2 partitions without node 2 in their ISRs: t-0, t-1\n" in shown
        described = said(capsys, "topic", "describe", "t", *servers)
        assert "AR [1, 2], ISR [1], OSR [2], ELR [2]" in described
        assert "node 2: OUT OF SYNC; why: its node is not registered" in described
        again = NodeProcess.start(2, tmp_path)
        nodes.append(again)
        assert said(capsys, "health", "--wait", "60", *servers) == "node 1: ready\nnode 2: ready\n"


def test_a_bench_writes_and_reads_what_it_says(
    nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    written = told(
        capsys, "bench", "produce", "load", "--records", "2500", "--record-size", "100", *at(nodes)
    )
    assert (written["records"], written["bytes"]) == (2500, 250_000)
    assert written["records_per_second"] == pytest.approx(2500 / written["seconds"], rel=0.05)
    assert 0 < written["latency_ms"]["p50"] <= written["latency_ms"]["p99"] <= written["latency_ms"]["max"]
    read = told(capsys, "bench", "consume", "load", *at(nodes))
    assert read["records"] >= 2500 and read["bytes"] >= 250_000 and read["latency_ms"] == {}
    some = told(capsys, "bench", "consume", "load", "--records", "10", *at(nodes))
    assert 10 <= some["records"] <= read["records"]
    text = said(capsys, "bench", "produce", "load", "--records", "10", *at(nodes))
    assert text.startswith("10 records, 10,240 bytes in ") and "latency p50" in text


def test_a_bench_keeps_to_its_rate(nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]) -> None:
    paced = told(
        capsys, "bench", "produce", "load", "--records", "60", "--rate", "100", "--linger-ms", "0", *at(nodes)
    )
    assert 0.55 <= paced["seconds"] < 5


def test_an_empty_topic_is_not_waited_for(
    nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "topic", "create", "empty", "--replication-factor", "1", *at(nodes))
    assert main(["bench", "consume", "empty", *at(nodes)]) == 1
    assert "topic 'empty' is empty: write to it first" in capsys.readouterr().err
    followed = told(capsys, "bench", "consume", "empty", "--follow", "--seconds", "0.3", *at(nodes))
    assert followed["records"] == 0 and followed["latency_ms"] == {}


def test_limits_are_set_shown_and_taken_away(
    nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no limits are set" in said(capsys, "config", "quotas", *at(nodes))
    entity = "client_id/insync-bench"
    shown = said(capsys, "config", "quota", entity, "producer_byte_rate=400000", *at(nodes))
    assert shown == f"{entity}: producer_byte_rate=400000\n"
    said(capsys, "config", "quota", "node", "leader_replication_throttled_rate=1000000", *at(nodes))
    both = {
        entity: {"producer_byte_rate": 400000},
        "node": {"leader_replication_throttled_rate": 1000000},
    }
    until_quotas(capsys, nodes, both)
    slow = told(
        capsys,
        *("bench", "produce", "load", "--records", "3000", "--record-size", "1000", "--batch-size", "4000"),
        *("--linger-ms", "0", *at(nodes)),
    )
    assert slow["seconds"] > 0.8, (
        "each node takes a request of up to 1 MiB at once, and lets its rate pass before the next"
    )
    assert told(capsys, "config", "quota", entity, "--remove", "producer_byte_rate", *at(nodes)) == {}
    said(capsys, "config", "quota", "node", "--remove", "leader_replication_throttled_rate", *at(nodes))
    until_quotas(capsys, nodes, {})
    assert main(["config", "quota", "group/x", "producer_byte_rate=5", *at(nodes)]) == 1
    assert "name one of user, client_id, node" in capsys.readouterr().err


def test_a_throttled_move_takes_its_limit_away_when_it_is_done(
    nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "topic", "create", "moving", "--replication-factor", "1", *at(nodes))
    (info,) = told(capsys, "topic", "describe", "moving", *at(nodes))["partitions"]
    target = 3 - info["leader"]
    said(
        capsys,
        *("reassign", "moving", "--replicas", f"0={target}", "--throttle", "1000000", "--wait", *at(nodes)),
    )
    (info,) = told(capsys, "topic", "describe", "moving", *at(nodes))["partitions"]
    assert info["replicas"] == [target]
    until_quotas(capsys, nodes, {})


def test_top_measures_one_interval(nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "top", "--once", "--interval", "0.2", *at(nodes))
    assert [node["node_id"] for node in shown["nodes"]] == [1, 2]
    assert shown["interval_s"] >= 0.2 and "load" in [each["topic"] for each in shown["by_topic"]]
    text = said(capsys, "top", "--once", "--interval", "0.1", *at(nodes))
    assert "controller" in text and "ready" in text and "load" in text
    shown = told(capsys, "top", "--once", "--interval", "0.1", "--partitions", *at(nodes))
    load = {each["partition"]: each for each in shown["by_partition"]}["load-0"]
    assert load["leader"] in (1, 2) and load["isr"] == load["replicas"] and load["lag"] == 0
    assert load["high_watermark"] == load["end_offset"] > 0 and load["size_bytes"] > 0
    text = said(capsys, "top", "--once", "--interval", "0.1", "--partitions", "--sort", "size", *at(nodes))
    assert text.index("load-0") > text.index("watermark")


@pytest.mark.parametrize(
    ("sort", "order"), [("records", "dcba"), ("size", "dbac"), ("lag", "dabc"), ("name", "dabc")]
)
def test_what_is_asked_for_stands_first_and_without_a_leader_before_all(sort: Sort, order: str) -> None:
    rows = [
        {"partition": "a", "leader": 1, "records_per_second": 0.0, "size_bytes": 5, "lag": 9},
        {"partition": "b", "leader": 1, "records_per_second": 2.5, "size_bytes": 9, "lag": 8},
        {"partition": "c", "leader": 2, "records_per_second": 7.0, "size_bytes": 5, "lag": 0},
        {"partition": "d", "leader": -1, "records_per_second": 0.0, "size_bytes": 0, "lag": 0},
    ]
    assert "".join(each["partition"] for each in by(sort, rows, "partition")) == order


@pytest.mark.parametrize("sort", ["records", "size", "lag", "name"])
def test_of_equal_ones_those_of_users_come_first_and_numbers_are_numbers(sort: Sort) -> None:
    names = ["__consumer_offsets-0", "zebras-10", "zebras-9", "apples-1-2", "zebras"]
    rows = [
        {"partition": name, "leader": 1, "records_per_second": 0.0, "size_bytes": 0, "lag": 0}
        for name in names
    ]
    found = [each["partition"] for each in by(sort, rows, "partition")]
    assert found == ["apples-1-2", "zebras", "zebras-9", "zebras-10", "__consumer_offsets-0"]


def sample(at: float, counters: dict[str, int], ends: int, incarnation: int = 1, error: str = "") -> _Sample:
    checks = [HealthCheck(name="min_isr", ok=not error)]
    health = NodeHealth(node_id=1, incarnation=incarnation, counters=counters, checks=checks, error=error)
    node = {"node_id": 1, "alive": True, "leads": 1, "replicas": 1, "lag": 3, "error": ""}
    seen = {
        "cluster_id": "c",
        "controller_id": -1,
        "topics": 1,
        "partitions": 1,
        "nodes": [node],
        "under_replicated": [],
        "leaderless": ["t-0"],
        "under_min_isr": [],
        "waiting": [],
    }
    topic = {
        "partitions": 1,
        "under_replicated": 0,
        "leaderless": 1,
        "end_offsets": ends,
        "size_bytes": 5,
        "lag": 3,
    }
    return _Sample(at, seen, [health], {"t": topic})


def test_rates_are_what_was_counted_over_the_time_between() -> None:
    shown = picture(
        sample(10, {"bytes_in": 100, "messages_in": 10}, 50),
        sample(12, {"bytes_in": 300, "messages_in": 14}, 60),
    )
    assert shown["nodes"][0]["per_second"]["bytes_in"] == 100
    assert shown["nodes"][0]["per_second"]["messages_in"] == 2
    assert shown["by_topic"][0]["records_per_second"] == 5
    restarted = picture(sample(10, {"bytes_in": 100}, 50), sample(12, {"bytes_in": 5}, 50, incarnation=2))
    assert restarted["nodes"][0]["per_second"]["bytes_in"] == 0, "a new process counts from 0"
    silent = picture(sample(10, {"bytes_in": 1}, 5), sample(12, {}, 5, error="no answer"))
    assert silent["nodes"][0]["per_second"]["bytes_in"] == 0 and not silent["nodes"][0]["ready"]


def test_what_is_wrong_stands_below_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    shown = picture(sample(1, {}, 5), sample(2, {}, 5))
    console().print(draw(shown, "records"))
    drawn = capsys.readouterr().out
    assert "WITHOUT A LEADER: t-0" in drawn and "controller none" in drawn


def test_names_in_the_tables_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    shown = picture(sample(1, {}, 5), sample(2, {}, 5))
    name = "[red]\x1b[2J[/]:bug:"
    row = {"group": name, "members": 1, "lag": 0, "committed_per_second": 0.0, "state": "Stable"}
    console().print(draw({**shown, "groups": [row]}, "records"))
    assert r"[red]\u001b[2J[/]:bug:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1536 << 10, "1.5 MiB"), (1 << 50, "1,024.0 TiB")],
)
def test_amounts_are_read_by_people(number: int, text: str) -> None:
    assert amount(number) == text


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, at) for at in (50, 95, 99, 99.9)] == [50, 95, 99, 100]
    assert percentile([7.0], 50) == 7.0 and percentile([3.0, 1.0, 2.0], 0) == 1.0


def test_log_directories_are_listed_with_the_size_of_each_replica(
    nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    create = ("topic", "create", "sized", "--partitions", "1", "--replication-factor", "2")
    assert main([*create, *at(nodes)]) == 0
    assert main(["bench", "produce", "sized", "--records", "100", "--acks", "all", *at(nodes)]) == 0
    found = told(capsys, "log-dirs", "--topic", "sized", *at(nodes))
    assert [each["node_id"] for each in found] == [1, 2]
    for node in found:
        (directory,) = node["log_dirs"]
        (replica,) = directory["replicas"]
        assert (replica["topic"], replica["partition"]) == ("sized", 0)
        assert directory["error"] == "" and directory["size_bytes"] >= replica["size_bytes"] > 100
    text = said(capsys, "log-dirs", "--node", "2", *at(nodes))
    path = found[1]["log_dirs"][0]["path"]
    assert text.startswith(f"node 2 {path}: ") and "  sized-0: " in text and "  load-1: " in text
    assert main(["log-dirs", "--node", "9", *at(nodes)]) == 1
    assert "there is no node 9: the cluster has 1, 2" in capsys.readouterr().err
    assert main(["log-dirs", "--topic", "sized", "--topic", "nowhere", *at(nodes)]) == 1
    answer = capsys.readouterr()
    assert "'nowhere'" in answer.err and not answer.out


def test_log_directories_are_for_admins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(tmp_path, 1, "--allow", "client=consume") as (node,):
        assert main(["log-dirs", "--servers", node.endpoint]) == 1
    assert "this client needs a rule with admin" in capsys.readouterr().err


@pytest.mark.slow
def test_a_topic_is_placed_as_asked_or_only_looked_at(
    nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--assignment", "2,1", "--assignment", "1,2", "--assignment", "2,1")
    create = ("topic", "create", "placed", *given, *at(nodes))
    text = said(capsys, *create, "--validate-only")
    assert text == "could create topic placed: 3 partitions, replication factor 2\n"
    assert "placed" not in told(capsys, "topic", "list", *at(nodes))
    assert told(capsys, *create)["created"] is True
    found = told(capsys, "topic", "describe", "placed", *at(nodes))["partitions"]
    assert [part["replicas"] for part in found] == [[2, 1], [1, 2], [2, 1]]
    assert main(["topic", "create", "other", "--assignment", "1,9", *at(nodes)]) == 1
    assert "node 9 is not alive: choose among 1, 2" in capsys.readouterr().err
    assert main(["topic", "create", "other", "--assignment", "1:2", *at(nodes)]) == 2
    assert "such as 1,2,3" in capsys.readouterr().err
