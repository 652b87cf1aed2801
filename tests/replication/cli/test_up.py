"""A local cluster in the foreground, and the commands that work on it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.processes import STEADY_ENV

from .command_process import Command, all_end, command, in_the_end


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with command(["up", "--nodes", "3"], tmp_path_factory.mktemp("up"), STEADY_ENV) as run:
        run.wait_for_line("insync consume hello")
        yield run
        nodes = run.children()
        run.signal(signal.SIGINT)
        assert run.finish() == 130
        assert all_end(nodes, 1.0)
        assert not list(run.temporary.iterdir())


@pytest.fixture(scope="module")
def servers(cluster: Command) -> str:
    return cluster.wait_for_line("export INSYNC_SERVERS=").split("=", 1)[1]


def insync(servers: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "insync.replication.cli", *arguments, "--servers", servers],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_each_node_is_shown_with_its_endpoint(cluster: Command, servers: str) -> None:
    nodes = [line for line in cluster.lines["stdout"] if line.startswith("node ")]
    assert [
        re.match(r"node (\d)  pid \d+  (tcp://127\.0\.0\.1:\d+)  log ", line) is not None for line in nodes
    ] == [True] * 3
    assert len(servers.split(",")) == 3


@pytest.mark.slow
def test_records_go_in_and_come_out(servers: str) -> None:
    made = insync(servers, "topic", "create", "poem", "--partitions", "2")
    assert made.stdout == b"created topic poem: 2 partitions, replication factor 3\n", made.stderr
    wrote = insync(
        servers, "produce", "poem", "--key-separator", ":", stdin=b"a:roses\nb:violets\na:red:\n\xff\nlast"
    )
    assert wrote.stdout == b"5 records written to poem\n", wrote.stderr
    read = insync(servers, "consume", "poem", "--from-beginning", "--keys", "--max-records", "5")
    assert sorted(read.stdout.splitlines()) == [b"\tlast", b"\t\xff", b"a\tred:", b"a\troses", b"b\tviolets"]
    assert read.stdout.index(b"roses") < read.stdout.index(b"red")
    as_json = insync(servers, "consume", "poem", "--from-beginning", "--max-records", "5", "--json")
    rows = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert {row.get("value") or row["value_base64"] for row in rows} == {
        "roses",
        "violets",
        "red:",
        "/w==",
        "last",
    }
    assert {row["topic"] for row in rows} == {"poem"} and all(row["offset"] >= 0 for row in rows)


@pytest.mark.slow
def test_consume_stops_when_nothing_comes(servers: str) -> None:
    insync(servers, "topic", "create", "quiet")
    assert insync(servers, "consume", "quiet", "--timeout-ms", "200").stdout == b""
    insync(servers, "produce", "quiet", "--partition", "0", stdin=b"0\n1\n2\n")
    some = ("--offset", "1", "--partition", "0", "--max-records", "2")
    read = insync(servers, "consume", "quiet", *some)
    assert read.stdout == b"1\n2\n"


@pytest.mark.slow
def test_a_file_is_produced_with_fewer_acks(servers: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x\n" * 5000)
    insync(servers, "topic", "create", "bulk")
    wrote = insync(servers, "produce", "bulk", "--file", str(tmp_path / "lines"), "--acks", "1", "--json")
    assert json.loads(wrote.stdout) == {"topic": "bulk", "records": 5000}


@pytest.mark.slow
def test_topics_are_listed_and_described(servers: str) -> None:
    insync(servers, "topic", "create", "known", "--partitions", "2", "--config", "min_insync_replicas=1")
    assert "known" in json.loads(insync(servers, "topic", "list", "--json").stdout)
    told = json.loads(insync(servers, "topic", "describe", "known", "--json").stdout)
    assert told["config"]["min_insync_replicas"] == 1
    first = told["partitions"][0]
    assert sorted(first["replicas"]) == sorted(first["isr"]) == [1, 2, 3] and first["osr"] == []
    assert [state["log_end_offset"] for state in first["replica_states"]] == [0, 0, 0]
    # The topic is known everywhere; which epoch a replica is in it says when its log is open.
    text = ""
    while text.count("in sync; epoch 0, LEO 0, HW 0, begins at 0") != 6:
        text = insync(servers, "topic", "describe", "known").stdout.decode()
        assert text.count("in sync; epoch ") == 6 and text.count(", LEO 0, HW 0, begins at 0") == 6, text


def test_status_shows_the_cluster(servers: str) -> None:
    done = insync(servers, "status", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["under_replicated"] == [] and told["leaderless"] == []
    assert [(node["node_id"], node["alive"]) for node in told["nodes"]] == [(1, True), (2, True), (3, True)]
    assert told["controller_id"] in (1, 2, 3)
    assert b"all partitions are fully replicated" in insync(servers, "status").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topic", "create", "t", "--replication-factor", "9"], "ask for 1 to 3 replicas"),
        (["topic", "create", "no/slash"], "no/slash"),
        (["topic", "create", "t", "--config", "colour=red"], "colour"),
        (["topic", "describe", "absent"], "absent"),
        (["produce", "absent"], "insync topic create"),
        (["consume", "absent", "--from-beginning"], "absent"),
    ],
)
def test_errors_are_one_line(servers: str, arguments: list[str], said: str) -> None:
    done = insync(servers, *arguments, stdin=b"line\n")
    assert done.returncode == 1
    message = done.stderr.decode()
    assert message.startswith("insync: ") and message.count("\n") == 1 and said in message


def test_nobody_listening_is_said_with_the_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = insync(f"tcp://127.0.0.1:{free.getsockname()[1]}", "topic", "list")
        assert done.returncode == 1
        assert done.stderr.startswith(b"insync: ") and str(free.getsockname()[1]).encode() in done.stderr


@pytest.mark.slow
def test_a_node_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with command(
            ["up", "--nodes", "1", "--port", str(port), "--data-dir", str(tmp_path / "d")], tmp_path
        ) as run:
            assert run.finish() == 1
        (line,) = run.lines["stderr"]
    assert line.startswith("insync: node 1 ") and str(port) in line


@pytest.mark.slow
def test_a_node_that_dies_is_reported_and_the_others_stay(tmp_path: Path) -> None:
    with command(["up", "--nodes", "2", "--data-dir", str(tmp_path / "kept")], tmp_path) as run:
        shown = run.wait_for_line("node 1  pid")
        run.wait_for_line("insync consume hello")
        victim = next(child for child in run.children() if child.pid == int(shown.split()[3]))
        victim.kill()
        assert "node 1 ended by signal SIGKILL" in run.wait_for_line("node 1 ended", "stderr")
        (stays,) = psutil.Process(run.process.pid).children()
        assert stays.is_running()
        run.signal(signal.SIGTERM)
        assert run.finish() == 128 + signal.SIGTERM
    assert (tmp_path / "kept/node-2").is_dir()


def pids(run: Command) -> dict[int, int]:
    """The process of each node, as it was told."""
    return {int(each.split()[1]): int(each.split()[3]) for each in run.lines["stdout"] if "  pid " in each}


@pytest.mark.slow
def test_programs_get_one_line_with_the_store_and_the_metrics(tmp_path: Path) -> None:
    with command(["up", "--nodes", "2", "--metrics-port", "0", "--json"], tmp_path) as run:
        told = json.loads(run.wait_for_line('"event": "ready"'))
        assert told["store"].startswith("sqlite://") and len(told["servers"]) == 2
        for node in told["nodes"]:
            in_the_end(partial(is_ready, node["metrics"]))
            assert Path(node["log"]).exists()
        run.signal(signal.SIGINT)
        assert run.finish() == 130
    assert not list(run.temporary.iterdir())


def is_ready(place: str) -> None:
    try:
        urllib.request.urlopen(f"http://{place}/ready", timeout=10).close()
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read()) from error


@pytest.mark.slow
def test_a_log_that_an_error_names_is_there_afterwards(tmp_path: Path) -> None:
    """The data is temporary, and goes; the log of the node that failed stays."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with command(["up", "--nodes", "1", "--port", str(taken.getsockname()[1])], tmp_path) as run:
            assert run.finish() == 1
        (line,) = run.lines["stderr"]
    named = re.search(r"\(all of it: (.*\.log)\)", line)
    assert named is not None and "in use" in Path(named[1]).read_text(), line
    assert [each.name[:14] for each in run.temporary.iterdir()] == ["insync-up-logs"]


def test_a_cluster_that_never_was_leaves_nothing(tmp_path: Path) -> None:
    with command(["up", "--store", "nowhere://x"], tmp_path) as run:
        assert run.finish() == 2
    assert "no metadata store is installed" in run.lines["stderr"][-1]
    assert not list(run.temporary.iterdir())


@pytest.mark.slow
def test_what_is_unhealthy_is_shown_and_status_says_so(tmp_path: Path) -> None:
    with command(["up", "--nodes", "3"], tmp_path) as run:
        given = run.wait_for_line("export INSYNC_SERVERS=").split("=", 1)[1]
        insync(given, "topic", "create", "pair", "--replication-factor", "2", "--partitions", "3")

        def is_well() -> None:  # as soon as the logs are made
            assert insync(given, "topic", "describe", "--unhealthy").stdout == b"all partitions are healthy\n"
            assert insync(given, "status").returncode == 0

        in_the_end(is_well)
        pids = {
            int(each.split()[1]): int(each.split()[3]) for each in run.lines["stdout"] if "  pid " in each
        }
        os.kill(pids[3], signal.SIGKILL)
        run.wait_for_line("node 3 ended", "stderr")
        living = ",".join(given.split(",")[:2])

        def is_ill() -> None:
            # One look never contradicts itself, however soon it is.
            done = insync(living, "status")
            if b"takes no acks=all write" in done.stdout:
                consistent = (
                    done.returncode == 1 and b"all partitions are fully replicated" not in done.stdout
                )
                if not consistent:
                    pytest.fail(f"status {done.returncode}: {done.stdout.decode()}")
            # Two of three partitions have a replica there; a write with acks=all needs both replicas of a pair.
            told = json.loads(insync(living, "status", "--json").stdout)
            assert len(told["under_min_isr"]) == 2
            assert done.returncode == 1
            assert b"takes no acks=all write, under min_insync_replicas: pair-" in done.stdout
            assert b"no answer from nodes 3" in done.stdout
            assert max(node["lag"] for node in told["nodes"]) == 0
            (topic,) = json.loads(insync(living, "topic", "describe", "--unhealthy", "--json").stdout)
            assert {each["partition"] for each in topic["partitions"]} == {
                int(name.rpartition("-")[2]) for name in told["under_min_isr"]
            }
            shown = insync(living, "topic", "describe", "pair", "--unhealthy").stdout.decode()
            assert shown.startswith("topic pair: 3 partitions") and shown.count("\npartition ") == 2

        in_the_end(is_ill)
        run.signal(signal.SIGINT)
        run.finish()


def test_a_topic_or_unhealthy_has_to_be_given(servers: str) -> None:
    done = insync(servers, "topic", "describe")
    assert (done.returncode, done.stderr) == (
        2,
        b"insync: name a topic, or use --unhealthy to see the problems of all topics\n",
    )


@pytest.mark.slow
def test_a_node_is_drained(tmp_path: Path) -> None:
    with command(["up", "--nodes", "4"], tmp_path) as run:
        given = run.wait_for_line("export INSYNC_SERVERS=").split("=", 1)[1]
        insync(given, "topic", "create", "moving", "--partitions", "4")
        insync(given, "produce", "moving", stdin=b"line\n" * 1000)
        plan = json.loads(insync(given, "drain", "4", "--dry-run", "--json").stdout)
        assert len(plan) == 3 and all(4 not in nodes for nodes in plan.values())
        assert json.loads(insync(given, "topic", "describe", "moving", "--json").stdout)["partitions"] != []
        done = insync(given, "drain", "4", "--wait")
        assert done.returncode == 0 and done.stdout.count(b" is to move\n") == 3
        *steps, last = done.stderr.splitlines()
        assert last == b"insync: 3 of 3 partitions moved"
        for step in steps:  # none, where all was done at the first look
            assert re.fullmatch(rb"insync: \d of 3 partitions moved, [\d,]+ of [\d,]+ records .*", step)
        told = json.loads(insync(given, "topic", "describe", "moving", "--json").stdout)
        now = {f"moving-{each['partition']}": each["replicas"] for each in told["partitions"]}
        assert now.items() >= plan.items()
        assert insync(given, "drain", "4").stdout == b"node 4 has no replicas\n"
        unknown = insync(given, "drain", "44")
        assert (unknown.returncode, unknown.stdout) == (1, b"")
        assert unknown.stderr.startswith(b"insync: node 44 has no replicas and is none of the living nodes: ")
        os.kill(pids(run)[4], signal.SIGKILL)
        run.wait_for_line("node 4 ended", "stderr")
        living = ",".join(given.split(",")[:3])
        while (done := insync(living, "drain", "3", "--dry-run")).returncode == 0:
            pass  # until its session has ended, the node that was killed may take replicas
        assert b"a replica on every other living node, moving-" in done.stderr
        run.signal(signal.SIGINT)
        run.finish()


@pytest.mark.slow
def test_nodes_share_a_store_of_any_scheme(tmp_path: Path) -> None:
    """Here that of a server, as a plugin's is: nothing of it lies among the data."""
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "insync.replication.cli",
            "store",
            "--path",
            str(tmp_path / "meta.db"),
            "--json",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["store"]
        data = tmp_path / "data"
        arguments = ["up", "--nodes", "2", "--data-dir", str(data), "--store", url, "--json"]
        with command(arguments, tmp_path) as run:
            ready = json.loads(run.wait_for_line('"ready"'))
            assert ready["store"] == url
            made = insync(",".join(ready["servers"]), "topic", "create", "t", "--replication-factor", "2")
            assert made.returncode == 0, made.stderr
            assert not (data / "metadata.db").exists()
            assert data.stat().st_mode & 0o777 == 0o700
            run.signal(signal.SIGINT)
            run.finish()
    finally:
        server.kill()
        server.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "url", "words"),
    [
        ("up", "etcd://h", "no metadata store is installed for the scheme 'etcd'"),
        ("up", "memory://x", "each node is a separate process"),
        ("demo", "sqlite://relative.db", "sqlite:///absolute/path"),
    ],
)
def test_store_that_cannot_be_is_refused_before_any_node_starts(name: str, url: str, words: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "insync.replication.cli", name, "--store", url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2, ended
    assert words in ended.stderr.splitlines()[-1]


@pytest.mark.slow
def test_status_says_soon_that_a_server_does_not_speak_the_protocol_and_goes_on(tmp_path: Path) -> None:
    """It may be a node that is too busy; or anything else that listens."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with command(["status", "--servers", f"tcp://127.0.0.1:{mute.getsockname()[1]}"], tmp_path) as run:
            line = run.wait_for_line("no handshake within 5 s", "stderr")
            assert line.endswith("this client tries again for 30 s")
            assert run.process.poll() is None
