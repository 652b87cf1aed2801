"""Kafka's command line tools at a cluster, which `test_tools.py` leaves out: `tools.py CLASSPATH SERVERS NAME`.

Ends with `done`. Programs that never end by themselves are asked for so many records.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

classpath, servers, name = sys.argv[1:]
TOOLS = "org.apache.kafka.tools."
BOOTSTRAP = ("--bootstrap-server", servers)


def run(tool: str, *arguments: str, given: str = "", status: int = 0) -> str:
    place = tool if tool.startswith("kafka.") else TOOLS + tool
    command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath, place, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=240)
    assert done.returncode == status, f"{tool}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def records(folder: Path) -> None:
    run("TopicCommand", *BOOTSTRAP, "--create", "--topic", name, "--partitions", "1")
    rate = ("--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    said = run(
        "ProducerPerformance", "--topic", name, *rate, "--producer-props", f"bootstrap.servers={servers}"
    )
    assert "2000 records sent" in said, said
    said = run("ConsumerPerformance", *BOOTSTRAP, "--topic", name, "--messages", "2000", "--timeout", "60000")
    assert " 2000," in said, said
    asked = {"version": 1, "partitions": [{"topic": name, "partition": 0, "offset": 500}]}
    (folder / "delete.json").write_text(json.dumps(asked))
    said = run("DeleteRecordsCommand", *BOOTSTRAP, "--offset-json-file", str(folder / "delete.json"))
    assert "low_watermark: 500" in said, said
    assert f"{name}:0:500" in run("GetOffsetShell", *BOOTSTRAP, "--topic", name, "--time", "-2")
    verified = f"{name}-verified"
    said = run(
        "VerifiableProducer", "--bootstrap-server", servers, "--topic", verified, "--max-messages", "50"
    )
    assert said.count('"producer_send_success"') == 50, said
    given = (
        "--topic",
        verified,
        "--group-id",
        verified,
        "--max-messages",
        "50",
        "--reset-policy",
        "earliest",
    )
    said = run("VerifiableConsumer", "--bootstrap-server", servers, *given)
    assert '"count":' in said and '"offsets_committed"' in said, said
    said = run("consumer.group.ConsumerGroupCommand", *BOOTSTRAP, "--describe", "--group", verified)
    assert verified in said, said
    state = f"{verified}-counts-changelog"  # as Kafka Streams calls it
    run("TopicCommand", *BOOTSTRAP, "--create", "--topic", state)
    application = ("--application-id", verified, "--input-topics", verified, "--force")
    said = run("StreamsResetter", *BOOTSTRAP, *application)
    assert f"Topic: {verified} Partition: 0 Offset: 0" in said and f"[{state}]" in said, said
    assert state not in run("TopicCommand", *BOOTSTRAP, "--list").split()
    said = run("consumer.group.ConsumerGroupCommand", *BOOTSTRAP, "--delete", "--group", verified)
    assert "successful" in said, said
    assert verified not in run("GroupsCommand", *BOOTSTRAP, "--list").split()


def whole_cluster() -> None:
    assert "Produce(0): 0 to 13" in run("BrokerApiVersionsCommand", *BOOTSTRAP)
    assert "Cluster ID: " in run("ClusterTool", "cluster-id", *BOOTSTRAP)
    said = run("LeaderElectionCommand", *BOOTSTRAP, "--election-type", "preferred", "--all-topic-partitions")
    assert "rror" not in said, said
    # No authoriser: that is what Kafka says without one, and not that an API is missing.
    said = run("AclCommand", *BOOTSTRAP, "--list", status=1)
    assert "SecurityDisabledException" in said and "ACLs are not supported" in said, said
    every = run("kafka.admin.ConfigCommand", *BOOTSTRAP, "--describe", "--entity-type", "topics")
    assert name in every, every


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        records(Path(folder))
        whole_cluster()
    print("done")


main()
