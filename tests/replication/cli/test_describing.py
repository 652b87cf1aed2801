"""What `topic describe` and `status` make of the nodes' answers, and how lines become records."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest
from msgspec import structs

from insync.replication.cli.produce import read_lines, split_keys
from insync.replication.cli.topic import _partition, _remarks, _replica_line
from insync.replication.cli.watching.status import _print, summarise, troubles
from insync.replication.client import ClusterInfo, NodeReport
from insync.replication.core.messages import FollowerInfo, NodeInfo, PartitionInfo, ReplicaInfo, TopicInfo

PARTITION = PartitionInfo(
    partition=0, leader=1, leader_epoch=4, partition_epoch=9, replicas=[1, 2, 3], isr=[1, 2], elr=[]
)
TOPIC = TopicInfo(name="t", error=0, topic_id="id", replication_factor=3, partitions=[PARTITION])


def replica(node: int, end: int, followers: list[FollowerInfo] | None = None) -> ReplicaInfo:
    return ReplicaInfo(
        topic="t",
        partition=0,
        role="leader" if node == 1 else "follower",
        leader=1,
        leader_epoch=4,
        partition_epoch=9,
        log_start_offset=0,
        log_end_offset=end,
        high_watermark=10,
        size_bytes=100,
        isr=[1, 2],
        followers=followers or [],
    )


FOLLOWERS = [
    FollowerInfo(node_id=2, log_end_offset=12, lag_ms=0, in_sync=True),
    FollowerInfo(node_id=3, log_end_offset=4, lag_ms=31_000, in_sync=False, why_out="lags 31000 ms"),
]
REPORTS = [
    NodeReport(node_id=1, endpoints=["tcp://a"], replicas=[replica(1, 12, FOLLOWERS)]),
    NodeReport(node_id=2, endpoints=["tcp://b"], replicas=[replica(2, 12)]),
    NodeReport(node_id=3, endpoints=[], error="not registered"),
]


def test_the_reason_of_being_out_of_sync_is_the_leaders() -> None:
    unreached = NodeReport(node_id=3, endpoints=["tcp://c"], error="no answer in time")
    described = _partition(TOPIC, PARTITION, [*REPORTS[:2], unreached])
    assert described["osr"] == [3]
    one, two, three = described["replica_states"]
    assert (one["role"], one["log_end_offset"], two["high_watermark"]) == ("leader", 12, 10)
    assert three == {"node_id": 3, "in_sync": False, "error": "no answer in time", "why_out": "lags 31000 ms"}
    assert _replica_line(two) == "in sync; epoch 4, LEO 12, HW 10, begins at 0, 100 bytes"
    assert _replica_line(three) == "OUT OF SYNC; why: lags 31000 ms"


def test_that_a_node_is_down_or_cannot_use_its_log_says_more_than_its_leader() -> None:
    down = _partition(TOPIC, PARTITION, REPORTS)["replica_states"][2]
    assert (down["error"], down["why_out"]) == ("not registered", "its node is not registered")
    unusable = structs.replace(replica(3, 4), error="the log directory /srv/a is offline")
    report = NodeReport(node_id=3, endpoints=["tcp://c"], replicas=[unusable])
    told = _partition(TOPIC, PARTITION, [*REPORTS[:2], report])["replica_states"][2]
    assert told["why_out"] == "the log directory /srv/a is offline"


def test_without_a_leaders_word_the_nodes_silence_is_the_reason() -> None:
    described = _partition(TOPIC, PARTITION, [REPORTS[2]])
    assert described["replica_states"][2]["why_out"] == "its node is not registered"
    assert _replica_line(described["replica_states"][0]) == "in sync"


@pytest.mark.parametrize(
    ("elr", "known", "words"),
    [
        ([2], [3], "no leader: it waits for one of [2] to come back"),
        ([], [2, 3], "it waits for all of [2, 3] to come back, and for a report of every living log"),
        ([], [], "insync elect --unclean takes the longest log"),
    ],
)
def test_a_partition_without_a_leader_says_whom_it_waits_for(
    elr: list[int], known: list[int], words: str
) -> None:
    dark = structs.replace(PARTITION, leader=-1, isr=[], elr=elr, last_known_elr=known)
    (remark,) = _remarks(_partition(TOPIC, dark, []))
    assert words in remark


def test_status_counts_lag_and_what_is_under_replicated() -> None:
    cluster = ClusterInfo(
        cluster_id="c",
        controller_id=2,
        revision=1,
        nodes=[NodeInfo(node_id=n, incarnation=1, endpoints=[]) for n in (1, 2)],
    )
    seen = summarise(cluster, [TOPIC], REPORTS)
    assert [(node["node_id"], node["alive"], node["leads"], node["lag"]) for node in seen["nodes"]] == [
        (1, True, 1, 0),
        (2, True, 0, 0),
        (3, False, 0, 8),
    ]
    assert seen["under_replicated"] == [{"partition": "t-0", "isr": [1, 2], "replicas": [1, 2, 3]}]
    assert seen["leaderless"] == [] and seen["under_min_isr"] == []
    strict = structs.replace(TOPIC, config={"min_insync_replicas": 3})
    assert summarise(cluster, [strict], REPORTS)["under_min_isr"] == ["t-0"]


def test_status_says_a_cause_once_with_the_partitions_behind_it() -> None:
    def partitions(*numbers: int, name: str = "t", **facts: object) -> list[dict[str, object]]:
        return [{"partition": f"{name}-{number}", **facts} for number in numbers]

    seen = {
        "leaderless": ["__consumer_offsets-4", *(f"t-{number}" for number in range(6))],
        "under_min_isr": ["t-7"],
        "waiting": partitions(1, ms=4_000, **{"for": 3})
        + partitions(2, ms=6_000, **{"for": 3})
        + partitions(5, ms=9_000, **{"for": 2}),
        "under_replicated": [
            *partitions(*range(50), name="__consumer_offsets", isr=[1, 2], replicas=[1, 2, 3]),
            *partitions(8, 9, isr=[1, 2], replicas=[2, 3, 1]),
            *partitions(3, isr=[2], replicas=[1, 2, 3]),
        ],
    }
    assert list(troubles(seen)) == [
        "WITHOUT A LEADER: t-0, t-1, t-2, t-3, t-4 and 2 more",
        "takes no acks=all write, under min_insync_replicas: t-7",
        "nothing is acknowledged (acks=all): t-1, t-2 wait for node 3, in the ISR and silent for 6 s",
        "nothing is acknowledged (acks=all): t-5 waits for node 2, in the ISR and silent for 9 s",
        "under-replicated: 52 partitions without node 3 in their ISRs: t-8, t-9, __consumer_offsets-0, "
        "__consumer_offsets-1, __consumer_offsets-2 and 47 more",
        "under-replicated: t-3, ISR [2] of [1, 2, 3]",
    ]


def test_status_names_internal_topics_with_fewer_replicas_than_there_are_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = ClusterInfo(cluster_id="c", controller_id=2, revision=1, nodes=[])
    alive = [NodeReport(node_id=n, endpoints=["tcp://c"], replicas=[]) for n in (1, 2, 3)]
    one = structs.replace(PARTITION, replicas=[1], isr=[1])
    offsets = structs.replace(TOPIC, name="__consumer_offsets", partitions=[one])
    seen = summarise(cluster, [offsets, structs.replace(offsets, name="t")], alive)
    assert seen["thin"] == {"__consumer_offsets": 1}
    _print(seen)
    assert "FEW REPLICAS: __consumer_offsets has 1, " in capsys.readouterr().out
    assert summarise(cluster, [offsets], alive[:2])["thin"] == {}
    full = structs.replace(offsets, partitions=[structs.replace(PARTITION, replicas=[1, 2, 3])])
    assert summarise(cluster, [full], alive)["thin"] == {}


def test_keys_end_at_the_first_separator() -> None:
    assert split_keys([b"a=1=2", b"plain", b"=x"], b"=") == ([b"a", None, b""], [b"1=2", b"plain", b"x"])


@pytest.mark.parametrize("content", [b"", b"one\n", b"one\n\nthree", b"x" * 600_000 + b"\n" + b"y\n" * 10])
async def test_lines_of_a_file_descriptor_are_whole(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    with path.open("rb") as file:
        found = [line async for lines in read_lines(file.fileno()) for line in lines]
    assert not any(b"\n" in line for line in found)
    assert b"\n".join(found) + b"\n" * content.endswith(b"\n") == content


async def test_lines_of_a_pipe_come_as_they_are_written() -> None:
    reading, writing = os.pipe()
    lines = read_lines(reading)
    os.write(writing, b"first\nsec")
    assert await anext(lines) == [b"first"]
    os.write(writing, b"ond\n")
    os.close(writing)
    assert await anext(lines) == [b"second"]
    with pytest.raises(StopAsyncIteration):
        await anext(lines)
    os.close(reading)


def test_status_shows_people_where_nodes_are_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    local = NodeReport(node_id=1, endpoints=["tcp://a:1", "shm://@x?host=0123.4567"], replicas=[])
    cluster = ClusterInfo(cluster_id="c", controller_id=1, revision=1, nodes=[])
    _print(summarise(cluster, [], [local, REPORTS[2]]))
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == "node 1 tcp://a:1, shm://@x: leads 0, 0 replicas, lag 0; alive"
    assert shown[2] == "node 3: leads 0, 0 replicas, lag 0; DOWN: not registered"


def test_status_does_not_say_that_all_is_well_while_the_store_takes_no_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A full disk under the store stops no write, and no controller can do anything."""
    cluster = ClusterInfo(cluster_id="c", controller_id=1, revision=1, nodes=[])
    well = NodeReport(node_id=1, endpoints=["tcp://a:1"], replicas=[], store_age_ms=900)
    _print(summarise(cluster, [], [well]))
    assert "all partitions are fully replicated" in capsys.readouterr().out
    _print(summarise(cluster, [], [attrs.evolve(well, store_age_ms=24_000)]))
    shown = capsys.readouterr().out
    assert "node 1 has written nothing to the metadata store for 24 s" in shown
    assert "fully replicated" not in shown
