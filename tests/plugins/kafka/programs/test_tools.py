"""Kafka's own command line tools, and kcat, at a real cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ....interop.kafka import Java, resolve
from ....requires import EVERYTHING, missing
from ....tiers import uses
from ..conftest import Cluster
from .test_python_clients import librdkafka as librdkafka

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]
_CLASSPATH = "insync/kafka-tools-4.1.0"
TOOLS = "org.apache.kafka.tools."


@pytest.fixture(scope="module")
@uses("jvm")
def tools(request: pytest.FixtureRequest) -> Java:
    remembered = request.config.cache
    assert remembered is not None
    if shutil.which("java") is None:
        missing("no java on the path")
    known = remembered.get(_CLASSPATH, "")
    if not known or not all(os.path.exists(jar) for jar in known.split(":")):
        known = resolve(Path(__file__).parent / "tools.xml", online=EVERYTHING)
        remembered.set(_CLASSPATH, known)
    return Java(known)


def run(tools: Java, cluster: Cluster, tool: str, *arguments: str, given: str = "") -> str:
    """What a tool says; it has ended well."""
    name = tool if tool.startswith("kafka.") else TOOLS + tool
    done = subprocess.run(
        tools.command(name, "--bootstrap-server", cluster.servers, *arguments),
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_topics_settings_and_records(tools: Java, cluster: Cluster, tmp_path: Path) -> None:
    run(tools, cluster, "TopicCommand", "--create", "--topic", "tools", "--partitions", "3")
    assert "PartitionCount: 3" in run(tools, cluster, "TopicCommand", "--describe", "--topic", "tools")
    config = "kafka.admin.ConfigCommand"
    named = ("--entity-type", "topics", "--entity-name", "tools")
    run(tools, cluster, config, *named, "--alter", "--add-config", "retention.ms=1234567")
    assert "retention.ms=1234567" in run(tools, cluster, config, *named, "--describe")
    run(tools, cluster, "ConsoleProducer", "--topic", "tools", given="".join(f"{n}\n" for n in range(30)))
    group = ("--topic", "tools", "--from-beginning", "--max-messages", "30", "--group", "tools")
    said = run(tools, cluster, "consumer.ConsoleConsumer", *group)
    assert sorted(map(int, said.split())) == list(range(30))
    ends = [
        int(line.rpartition(":")[2])
        for line in run(tools, cluster, "GetOffsetShell", "--topic", "tools").split()
    ]
    assert sum(ends) == 30
    groups = "consumer.group.ConsumerGroupCommand"
    assert "tools" in run(tools, cluster, groups, "--list").split()
    # A line for each partition that got records: how many that are is the producer's choice.
    assert run(tools, cluster, groups, "--describe", "--group", "tools").count("tools ") >= 1
    back = ("--reset-offsets", "--group", "tools", "--topic", "tools", "--to-earliest", "--execute")
    assert "NEW-OFFSET" in run(tools, cluster, groups, *back)


def test_operators_tools(tools: Java, cluster: Cluster, tmp_path: Path) -> None:
    run(tools, cluster, "TopicCommand", "--create", "--topic", "moved", "--partitions", "1")
    plan = tmp_path / "plan.json"
    parts = [{"topic": "moved", "partition": 0, "replicas": [2, 3]}]
    plan.write_text(json.dumps({"version": 1, "partitions": parts}))
    reassign = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
    assert "Successfully started" in run(tools, cluster, *reassign, "--execute", "--throttle", "1000000")
    while "is still in progress" in (said := run(tools, cluster, *reassign, "--verify")):
        pass
    assert "moved-0 is completed" in said and "Clearing topic-level throttles" in said
    assert '"partition":"moved-0"' in run(
        tools, cluster, "LogDirsCommand", "--describe", "--topic-list", "moved"
    )
    elect = ("--election-type", "preferred", "--all-topic-partitions")
    run(tools, cluster, "LeaderElectionCommand", *elect)


def test_users_and_their_limits(tools: Java, cluster: Cluster) -> None:
    config, user = "kafka.admin.ConfigCommand", ("--entity-type", "users", "--entity-name", "tools-user")
    for change in ("SCRAM-SHA-256=[iterations=8192,password=x]", "producer_byte_rate=123456"):
        run(tools, cluster, config, *user, "--alter", "--add-config", change)
    said = run(tools, cluster, config, *user, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in said and "producer_byte_rate=123456.0" in said
    for change in ("SCRAM-SHA-256", "producer_byte_rate"):
        run(tools, cluster, config, *user, "--alter", "--delete-config", change)
    assert "tools-user" not in run(tools, cluster, config, "--entity-type", "users", "--describe")


def test_transactions_and_producers(tools: Java, cluster: Cluster, librdkafka: Any) -> None:
    producer = librdkafka.Producer({"bootstrap.servers": cluster.servers, "transactional.id": "tools-txn"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("tools-txn-topic", b"x", partition=0)
    producer.flush(30)
    tool = "TransactionsCommand"
    listed = run(tools, cluster, tool, "list")
    assert next(line for line in listed.splitlines() if "tools-txn" in line).strip().endswith("Ongoing")
    told = run(tools, cluster, tool, "describe", "--transactional-id", "tools-txn")
    assert "Ongoing" in told and "tools-txn-topic-0" in told
    producers = run(
        tools, cluster, tool, "describe-producers", "--topic", "tools-txn-topic", "--partition", "0"
    )
    assert len(producers.splitlines()) == 2
    producer.abort_transaction(30)
    hanging = run(
        tools, cluster, tool, "find-hanging", "--topic", "tools-txn-topic", "--max-transaction-timeout", "0"
    )
    assert "tools-txn-topic" not in hanging
    # Asks this node of all partitions that have a replica there, whoever leads them.
    for broker in ("1", "2", "3"):
        assert "Topic" in run(tools, cluster, tool, "find-hanging", "--broker-id", broker)


def test_kcat_writes_lists_and_reads(cluster: Cluster) -> None:
    kcat = shutil.which("kcat") or shutil.which("kafkacat")
    if kcat is None:
        missing("no kcat on the path (Debian's package kcat)")

    def said(*arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [kcat, "-b", cluster.servers, *arguments], input=given, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    said("-t", "by-kcat", "-P", "-z", "gzip", given="one\ntwo\n")
    assert said("-t", "by-kcat", "-C", "-e", "-q") == "one\ntwo\n"
    assert 'topic "by-kcat" with 1 partitions' in said("-L")
