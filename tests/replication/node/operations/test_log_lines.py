"""The log of a node: one line for each change, with every fact and why; as text and as JSON."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

from insync.replication import Admin, Node, Producer
from insync.replication.core.control import records as rec
from insync.replication.core.control import transitions
from insync.replication.core.control.records import ControllerRecord, NodeRecord, PartitionRecord, Versioned
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId
from insync.replication.node.log_lines import Event, JsonFormatter, TextFormatter, event
from insync.replication.node.operations.changes import Changes
from tests.processes import NodeProcess, cluster

from ..test_cluster import full_isr, settings, until

RECORD = PartitionRecord(
    topic="t", partition=0, topic_id="x", replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, min_insync_replicas=2
)


def node(node_id: int, incarnation: int = 1, **more: Any) -> NodeRecord:
    return NodeRecord(node_id=node_id, incarnation=incarnation, endpoints=(), **more)


def view(record: PartitionRecord | None, nodes: Iterable[NodeRecord], **more: Any) -> ClusterView:
    partitions = {} if record is None else {record.id: Versioned(record, record.partition_epoch + 1)}
    return ClusterView(
        revision=5, nodes={each.node_id: each for each in nodes}, partitions=partitions, **more
    )


ALL = (node(1), node(2), node(3))


def lines(before: ClusterView, after: ClusterView, reasons: Any = None) -> list[Event]:
    return list(Changes(before, after, lambda _: True, reasons or {}).events())


def changed(record: PartitionRecord | None) -> PartitionRecord:
    assert record is not None
    return record


LEADERLESS = changed(transitions.elect(structs.replace(RECORD, isr=(1,)), {}))
ALONE = structs.replace(RECORD, isr=(1,), elr=(2,), leader=-1)
MOVING = changed(transitions.reassign(RECORD, (1, 2, 4)))
MOVED = changed(transitions.finish_reassignment(transitions.change_isr(MOVING, (1, 2, 3, 4))))


@pytest.mark.parametrize(
    ("before", "after", "nodes", "why"),
    [
        (None, RECORD, ALL, "the partition is new"),
        (
            RECORD,
            changed(transitions.elect(RECORD, {2: 1, 3: 1})),
            ALL[1:],
            "node 1 is not alive",
        ),
        (
            RECORD,
            changed(transitions.elect(RECORD, {2: 1, 3: 1})),
            (node(1, leaving=True), *ALL[1:]),
            "node 1 is about to stop",
        ),
        (
            RECORD,
            changed(transitions.elect(RECORD, {2: 1, 3: 1})),
            (node(1, offline=frozenset({RECORD.id})), *ALL[1:]),
            "the log directory on node 1 is offline",
        ),
        (
            RECORD,
            changed(transitions.restarted(RECORD, 1)),
            (node(1, 2), *ALL[1:]),
            "node 1 was started again; no eligible replica is alive",
        ),
        (
            structs.replace(RECORD, isr=(1,)),
            LEADERLESS,
            (),
            "node 1 is not alive; no eligible replica is alive",
        ),
        (
            RECORD,
            transitions.change_isr(RECORD, (1, 2)),
            ALL,
            "node 3 has not caught up, or came back without proof",
        ),
        (transitions.change_isr(RECORD, (1, 2)), RECORD, ALL, "node 3 has caught up"),
        (
            structs.replace(RECORD, leader=2),
            changed(transitions.prefer(structs.replace(RECORD, leader=2), {1: 1, 2: 1, 3: 1})),
            ALL,
            "node 1 is the preferred leader",
        ),
        (
            ALONE,
            changed(transitions.elect(ALONE, {1: 1, 2: 1})),
            ALL,
            "node 1 is alive and has all that was committed",
        ),
        (
            structs.replace(RECORD, isr=(), leader=-1),
            changed(transitions.elect(structs.replace(RECORD, isr=(), leader=-1), {3: 1}, 3)),
            ALL,
            "node 3 was elected uncleanly: records may be lost; node 3 leads",
        ),
        (RECORD, MOVING, ALL, "it is to move to nodes [1, 2, 4]"),
        (MOVING, MOVED, ALL, "its move to nodes [1, 2, 4] is complete"),
        (RECORD, changed(transitions.set_min_insync(RECORD, 1)), ALL, "min_insync_replicas is 1 now"),
        (RECORD, transitions.change_isr(RECORD, RECORD.isr), ALL, "rewritten without a change"),
    ],
)
def test_each_change_of_a_partition_is_one_line_that_says_why(
    before: PartitionRecord | None, after: PartitionRecord, nodes: tuple[NodeRecord, ...], why: str
) -> None:
    after = structs.replace(after, partition_epoch=(before.partition_epoch + 1) if before else 0)
    told = [each for each in lines(view(before, ALL), view(after, nodes)) if each.name == "partition_changed"]
    (line,) = told
    assert why in str(line.facts["why"])
    assert (line.facts["leader"], line.facts["isr"]) == (after.leader, list(after.isr))
    assert line.facts["was_leader"] == (before.leader if before is not None else -1)
    assert line.facts["partition_epoch"] == after.partition_epoch
    assert line.facts["was_partition_epoch"] == (before.partition_epoch if before is not None else -1)


def test_what_has_not_changed_is_not_told_and_what_we_wrote_ourselves_says_why() -> None:
    after = transitions.change_isr(RECORD, (1, 2))
    assert lines(view(RECORD, ALL), view(RECORD, ALL)) == []
    same = structs.replace(RECORD)
    assert same is not RECORD and lines(view(RECORD, ALL), view(same, ALL)) == []
    (line,) = lines(
        view(RECORD, ALL), view(after, ALL), {(RECORD.id, 1): "nodes [3] have not caught up for 30 s"}
    )
    assert line.facts["why"] == "nodes [3] have not caught up for 30 s"
    silent = Changes(view(RECORD, ALL), view(after, ALL), lambda _: False, {})
    assert list(silent.events()) == []


def test_a_topic_of_the_same_name_is_another_one() -> None:
    other = structs.replace(RECORD, topic_id="y")
    (line,) = lines(view(RECORD, ALL), view(other, ALL))
    assert line.facts["why"] == "the partition is new"
    (gone,) = lines(view(RECORD, ALL), view(None, ALL))
    assert (gone.name, gone.facts["partition"]) == ("partition_deleted", "t-0")


def test_controllers_and_nodes_are_told_when_they_change() -> None:
    office = ControllerRecord(node_id=1, incarnation=1, controller_epoch=3)
    successor = ControllerRecord(node_id=2, incarnation=1, controller_epoch=4)
    before = view(RECORD, ALL, controller=office, controller_epoch=3)
    after = view(RECORD, ALL[1:], controller=successor, controller_epoch=4)
    gone, elected = lines(before, after)
    assert (gone.name, gone.facts["member"], gone.facts["state"]) == ("node_changed", 1, "gone")
    assert elected.facts == {
        "controller": 2,
        "was_controller": 1,
        "controller_epoch": 4,
        "why": "node 1 is not alive",
    }
    (lost,) = lines(before, view(RECORD, ALL, controller_epoch=3))
    assert lost.facts["controller"] == -1 and "resigned" in str(lost.facts["why"])
    states = [
        (node(2, leaving=True), "leaving"),
        (node(2, 2), "alive"),
        (node(2, offline=frozenset({RECORD.id})), "alive"),
    ]
    for now, state in states:
        (line,) = lines(view(RECORD, ALL), view(RECORD, (node(1), now, node(3))))
        assert (line.name, line.facts["member"], line.facts["state"]) == ("node_changed", 2, state)


def test_the_first_reading_is_one_line_however_much_there_is() -> None:
    (line,) = lines(ClusterView(), view(RECORD, ALL))
    assert line.name == "cluster_read" and line.facts["partitions"] == 1


def record_of(message: object, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("insync.node", logging.WARNING, "f.py", 1, message, arguments, None)


def test_text_quotes_what_has_blanks_and_json_keeps_types() -> None:
    told = event(
        "happened", number=3, isr=[1, 2], none=[], why='it said "no"', path=Path("/a b"), plain="x-1"
    )
    text = TextFormatter(7).format(record_of(told))
    assert text.endswith(
        "WARNING node=7 insync.node: event=happened number=3 isr=1,2 none=- "
        r'why="it said \"no\"" path="/a b" plain=x-1'
    )
    line = json.loads(JsonFormatter(7).format(record_of(told)))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "node": 7,
        "logger": "insync.node",
        "event": "happened",
        "number": 3,
        "isr": [1, 2],
        "none": [],
        "why": 'it said "no"',
        "path": "/a b",
        "plain": "x-1",
    }
    assert json.loads(JsonFormatter(7).format(record_of("%d of %s", 1, "many")))["message"] == "1 of many"


HOSTILE = "\x1b[2J\x9b31m\x7fa\u202eb\nevent=forged"


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (event("happened", group=HOSTILE, members=[HOSTILE]), ()),
        ("%s is strange", (HOSTILE,)),
        (f"{HOSTILE} is strange", ()),
    ],
)
def test_a_name_of_a_client_moves_no_cursor_and_ends_no_line(
    message: object, arguments: tuple[object, ...]
) -> None:
    record = record_of(message, *arguments)
    assert TextFormatter(7).format(record).isprintable()
    line = JsonFormatter(7).format(record)
    assert line.isprintable() and HOSTILE in (json.loads(line).get("group") or json.loads(line)["message"])


def test_an_event_is_one_printable_line_in_any_log_of_the_host_program() -> None:
    assert str(event("happened", group=HOSTILE, members=[HOSTILE, "m"])) == (
        r'event=happened group="\u001b[2J\u009b31m\u007fa\u202eb\nevent=forged" '
        r"members=\u001b[2J\u009b31m\u007fa\u202eb\nevent=forged,m"
    )


def test_an_exception_in_text_is_of_printable_lines() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        record = record_of("failed")
        record.exc_info = (type(error), error, error.__traceback__)
    first, *trace = TextFormatter(1).format(record).split("\n")
    assert first.endswith("failed") and trace[0] == "Traceback (most recent call last):"
    assert all(each.isprintable() for each in trace)


def test_an_exception_stays_on_the_line_in_json() -> None:
    try:
        raise ValueError("bad\nluck")
    except ValueError as error:
        record = record_of("failed")
        record.exc_info = (type(error), error, error.__traceback__)
    line = JsonFormatter(1).format(record)
    assert "\n" not in line and "bad\nluck" in json.loads(line)["exception"]


def told_by(node: NodeProcess, folder: Path) -> list[dict[str, Any]]:
    """Every event of all processes of a node, in order; each line is JSON, and one being written is none yet."""
    text, _, _ = (folder / f"node-{node.node_id}.err").read_text().rpartition("\n")
    return [line for line in map(json.loads, text.splitlines()) if "event" in line]


@pytest.mark.slow
async def test_real_nodes_tell_each_change_exactly_once(tmp_path: Path) -> None:
    """A leader is killed and comes back: on every node the lines of a partition make one chain without gaps."""
    # Only the end of a session shows that the victim is gone: a node that a busy machine keeps waiting stays.
    options = ("--log-format", "json", "--session-timeout-ms", "5000", "--set", "leader_silence_timeout_ms=0")
    with cluster(tmp_path, 3, *options) as nodes:
        servers = [each.endpoint for each in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 3, 3)
            await until(lambda: full_isr(admin, "t", 3), 60)
            (info,) = await admin.describe_topics(["t"])
            victim = nodes[info.partitions[0].leader - 1]
            await trio.to_thread.run_sync(victim.kill)
            others = [each.endpoint for each in nodes if each is not victim]
        async with Admin(others) as admin, Producer(others) as producer:
            for partition in range(3):
                await (await producer.send("t", b"x", partition=partition)).wait()
            again = await trio.to_thread.run_sync(
                lambda: NodeProcess.start(victim.node_id, tmp_path, *options)
            )
            nodes[victim.node_id - 1] = again
            await until(lambda: full_isr(admin, "t", 3), 60)
            final: dict[str, int] = {}

            def caught_up() -> bool:
                return all(
                    {
                        line["partition"]: line["partition_epoch"]
                        for line in told_by(each, tmp_path)
                        if line["event"] == "partition_changed"
                    }
                    == final
                    for each in nodes
                    if each is not again
                )

            async def all_told() -> bool:
                await trio.sleep(0.05)
                (info,) = await admin.describe_topics(["t"])
                final.update((f"t-{part.partition}", part.partition_epoch) for part in info.partitions)
                return caught_up()

            await until(all_told, 60)
    for each in nodes:
        told = told_by(each, tmp_path)
        assert all(line["why"] for line in told if line["event"] != "cluster_read")
        chains: dict[str, list[tuple[int, int]]] = defaultdict(list)
        offices = []
        for line in told:
            if line["event"] == "partition_changed":
                chains[line["partition"]].append((line["was_partition_epoch"], line["partition_epoch"]))
            elif line["event"] == "controller_changed":
                offices.append((line["controller"], line["controller_epoch"]))
        assert len(offices) == len(set(offices)), "a controller is told of once"
        if each.node_id == victim.node_id:
            for chain in chains.values():
                steps = [step for step in chain if step[0] != -1]
                assert all(now[0] >= then[1] for then, now in pairwise(steps)), "away for a while, never back"
            continue
        assert set(chains) == set(final)
        for partition, chain in chains.items():
            assert chain[0][0] == -1 and chain[-1][1] == final[partition]
            assert all(now[0] == then[1] for then, now in pairwise(chain)), chain
        reasons = " ".join(str(line.get("why")) for line in told)
        assert f"node {victim.node_id} is not alive" in reasons
        assert f"node {victim.node_id} has caught up" in reasons
        assert "node_changed" in {line["event"] for line in told}
    starts = [line for line in told_by(victim, tmp_path) if line["event"] == "session_changed"]
    assert [line["state"] for line in starts if line["why"] == "the node has started"] == ["registered"] * 2
    assert {line["incarnation"] for line in starts if "incarnation" in line} == {1, 2}


def test_partition_keys_are_what_the_lines_name() -> None:
    assert str(PartitionId("t", 0)) == "t-0" and rec.partition_key(PartitionId("t", 0)) == "/partitions/t/0"


async def test_a_node_that_is_alone_tells_what_its_own_return_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its registration ends its leaderships, before it has read anything: no other line could tell of that."""
    caplog.set_level(logging.INFO, "insync.node")
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await until(lambda: full_isr(admin, "t", 1))
    caplog.clear()
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await until(lambda: full_isr(admin, "t", 1))

        async def leads() -> bool:
            return (await admin.describe_topics(["t"]))[0].partitions[0].leader == 1

        await until(leads)
    told = [
        record.msg.facts
        for record in caplog.records
        if isinstance(record.msg, Event) and record.msg.name == "partition_changed"
    ]
    steps = [(each["was_partition_epoch"], each["partition_epoch"], each["leader"]) for each in told]
    assert steps[:2] == [(steps[0][0], steps[0][0] + 1, -1), (steps[0][0] + 1, steps[0][0] + 2, 1)]
    assert told[0]["why"] == "node 1 was started again"
