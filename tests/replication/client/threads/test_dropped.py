"""Clients for threads that are dropped without `close`: their threads and connections end, and nothing is lost."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from insync.replication import BlockingNode, _portal
from insync.replication.client import BlockingAdmin, BlockingConsumer, BlockingDelivery, BlockingProducer
from insync.replication.core.messages import Kind
from insync.replication.state.blocking import ReplicatedDict
from tests.processes import cluster as processes
from tests.replication.node.test_cluster import settings

from ..faults import drop
from ..threaded_cluster import ThreadedCluster, threaded_cluster

PATIENCE = 30.0


@pytest.fixture(scope="module")
def threaded() -> Iterator[ThreadedCluster]:
    with threaded_cluster() as cluster:
        yield cluster


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, "not in time"
        threading.Event().wait(0.005)


def ours() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("insync-")}


def warned(heard: list[warnings.WarningMessage]) -> list[str]:
    """What our own have said: the collector may come across what other tests have left, too."""
    return [str(each.message) for each in heard if str(each.message).startswith("unclosed <insync.")]


@pytest.fixture
def heard() -> Iterator[list[warnings.WarningMessage]]:
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("make", [BlockingProducer, BlockingConsumer, BlockingAdmin])
def test_threads_and_connections_end(
    make: Callable[[list[str]], Any], threaded: ThreadedCluster, heard: list[warnings.WarningMessage]
) -> None:
    before = ours()
    clients = [make(threaded.urls) for _ in range(10)]
    assert len(ours() - before) == 10
    links = [each._held._cluster.links for each in clients]
    assert all(each.open_connections() for each in links)
    clients.clear()
    gc.collect()
    until(lambda: ours() <= before)
    assert not any(each.open_connections() for each in links)
    said = warned(heard)
    assert len(said) == 10
    assert all(each.startswith("unclosed <insync.") and make.__name__ in each for each in said)
    assert all("call close()" in each for each in said)
    assert sum(type(each.source) is make for each in heard) == 10


def test_what_is_closed_says_nothing(threaded: ThreadedCluster, heard: list[warnings.WarningMessage]) -> None:
    before = ours()
    producer: Any = BlockingProducer(threaded.urls)
    producer.close()
    del producer
    with BlockingConsumer(threaded.urls):
        pass
    gc.collect()
    assert not warned(heard) and ours() <= before


@pytest.mark.slow
def test_replicated_state(tmp_path: Path, heard: list[warnings.WarningMessage]) -> None:
    before = ours()
    with processes(tmp_path, 1) as nodes:
        state: Any = ReplicatedDict.open([nodes[0].endpoint], "d")
        state.put("a", 1)
        del state
        gc.collect()
        until(lambda: ours() <= before)
        (said,) = warned(heard)
        assert "ReplicatedDict" in said
        with ReplicatedDict.open([nodes[0].endpoint], "d") as state:
            assert state.get("a") == 1


def test_records_under_way_are_sent(threaded: ThreadedCluster, heard: list[warnings.WarningMessage]) -> None:
    log = threaded.cluster.topics["t"][0]
    start, before = len(log.values()), ours()
    producer: Any = BlockingProducer(threaded.urls, linger_ms=3_600_000)
    for n in range(500):
        producer.send("t", b"%d" % n)
    del producer
    until(lambda: ours() <= before)
    assert log.values()[start:] == [b"%d" % n for n in range(500)]
    (said,) = warned(heard)
    assert "records that it has taken are still sent" in said


def test_a_delivery_keeps_its_producer(threaded: ThreadedCluster) -> None:
    producer: Any = BlockingProducer(threaded.urls)
    delivery: Any = producer.send("t", b"x")
    del producer
    gc.collect()
    assert delivery.result(PATIENCE).offset >= 0
    delivery._producer.close()


def test_it_may_be_collected_in_its_own_thread(
    threaded: ThreadedCluster, heard: list[warnings.WarningMessage]
) -> None:
    before, told = ours(), threading.Event()
    kept: list[Any] = [BlockingProducer(threaded.urls)]

    def last(delivery: BlockingDelivery) -> None:
        kept.clear()
        told.set()

    sent = [kept[0].send("t", b"x", on_delivery=last)]
    sent.clear()
    assert told.wait(PATIENCE)
    until(lambda: ours() <= before)
    assert len(warned(heard)) == 1


DROPPED_AT_EXIT = """
import logging, sys, warnings
from insync.replication.client import BlockingProducer
warnings.simplefilter("ignore")
producer = BlockingProducer(sys.argv[1], linger_ms=0)
producer.prepare("t")
print("ready", flush=True)
sys.stdin.readline()
for n in range(7):
    producer.send("t", b"lost?")
if sys.argv[2] == "dropped":
    del producer
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dropped", "held"])
def test_records_without_an_outcome_at_exit_are_told(threaded: ThreadedCluster, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DROPPED_AT_EXIT, threaded.urls[0], how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        assert script.stdout is not None and script.stdout.readline() == "ready\n"
        nodes = threaded.cluster.nodes
        threaded.do(lambda: [node.script(Kind.PRODUCE, *[drop] * 1000) for node in nodes])
        _, errors = script.communicate("go\n", timeout=PATIENCE)
    threaded.do(lambda: [node.before.clear() for node in nodes])
    assert script.returncode == 0, errors
    assert "7 records have no outcome: the producer was ended before" in errors


FORKED = """
import gc, os, sys, warnings
from insync.replication.client import BlockingProducer
warnings.simplefilter("error")
producer = BlockingProducer(sys.argv[1])
producer.send("t", b"parent").result(5)
if (child := os.fork()) == 0:
    del producer
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
producer.send("t", b"parent again").result(5)
"""


def test_a_forked_child_may_drop_it(threaded: ThreadedCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, threaded.urls[0]], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")


AT_EXIT = """
import sys
from insync.replication.client import BlockingAdmin, BlockingConsumer, BlockingProducer
held = [make(sys.argv[1]) for make in (BlockingAdmin, BlockingConsumer, BlockingProducer)]
held[2].send("t", b"last")
"""


def test_an_exit_with_open_clients_warns_of_nothing(threaded: ThreadedCluster) -> None:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", AT_EXIT, threaded.urls[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert threaded.cluster.topics["t"][0].values()[-1] == b"last"


def test_a_node_serves_others_whoever_has_it(tmp_path: Path, heard: list[warnings.WarningMessage]) -> None:
    node: Any = BlockingNode(settings(tmp_path, 1))
    servers = node.endpoints
    del node
    gc.collect()
    with BlockingAdmin(servers) as admin:
        assert [each.node_id for each in admin.describe_cluster().nodes] == [1]
    (left,) = [each for each in _portal._left_open if isinstance(each, BlockingNode)]
    left.close()
    assert not warned(heard)
