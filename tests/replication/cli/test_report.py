"""The verdict and what is shown on the way to it."""

from __future__ import annotations

import io
import json
from collections import Counter

import pytest
import trio
from rich.console import Console

from insync.replication.cli.demo.check import Defect, Kind, Verification
from insync.replication.cli.demo.inputs import Expectation, Expected, fingerprints
from insync.replication.cli.demo.report import ReadBack, Report, watermark_defects
from insync.replication.cli.demo.scene import (
    LiveView,
    NodeRow,
    PartitionRow,
    PlainView,
    Scene,
    make_view,
    progress_line,
    render,
)
from insync.replication.client import ConsumerRecord, NodeReport
from insync.replication.core.messages import ReplicaInfo


def good_report() -> Report:
    report = Report(nodes=3, seed=1, records=10, records_acked=10, records_read=10, in_flight_at_kill=4)
    report.failover_ms, report.rejoin_ms, report.verification = 12.3456, 99.0, Verification(records=10)
    return report


def test_a_good_run_passes() -> None:
    report = good_report()
    report.conclude()
    assert report.ok
    ((tone, line),) = report.lines()
    assert tone == "good" and line.startswith("PASSED: 10 records acknowledged, 10 read back; 0 lost")
    told = json.loads(json.dumps(report.as_dict()))
    assert told["verdict"] == "passed" and told["failover_ms"] == 12.3


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("records_acked", 9, "1 of 10 records were not acknowledged"),
        ("records_read", 11, "the consumer read 11 records of 10"),
        ("in_flight_at_kill", 0, "nothing was in flight"),
        ("failover_ms", None, "use more --records"),
    ],
)
def test_figures_that_cannot_be_right_fail_the_run(name: str, value: int | None, said: str) -> None:
    report = good_report()
    setattr(report, name, value)
    report.conclude()
    assert not report.ok and said in report.lines()[0][1]
    assert report.as_dict()["verdict"] == "failed"


def test_defects_are_named_and_all_are_counted() -> None:
    report = good_report()
    assert report.verification is not None
    report.verification.counts = Counter({Kind.LOST: 7})
    report.verification.defects = [Defect(Kind.LOST, 2, 5, b"a.py", "it was acknowledged")]
    texts = [line for _, line in report.lines()]
    assert texts[0] == "lost: partition 2, offset 5, key a.py (it was acknowledged)"
    assert texts[1] == "... 7 defects in all"
    assert texts[2].startswith("FAILED: 7 lost, 0 duplicated")
    assert report.as_dict()["lost"] == 7


def replica(partition: int, end: int, high_watermark: int, topic: str = "demo") -> ReplicaInfo:
    return ReplicaInfo(
        topic=topic,
        partition=partition,
        role="follower",
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        log_start_offset=0,
        log_end_offset=end,
        high_watermark=high_watermark,
        size_bytes=0,
        isr=[1, 2],
    )


def test_every_replica_must_be_level() -> None:
    level = [NodeReport(node_id=n, endpoints=[], replicas=[replica(0, 5, 5)]) for n in (1, 2)]
    assert watermark_defects(level, "demo", {0: 5}, 2) == []
    behind = [
        level[0],
        NodeReport(node_id=2, endpoints=[], replicas=[replica(0, 5, 4), replica(0, 9, 9, "other")]),
    ]
    (said,) = watermark_defects(behind, "demo", {0: 5}, 2)
    assert said == "partition 0 on node 2: high watermark 4, log end offset 5, 5 acknowledged"
    silent = [level[0], NodeReport(node_id=2, endpoints=[], error="connection refused")]
    assert watermark_defects(silent, "demo", {0: 5}, 2) == [
        "node 2 does not answer: connection refused",
        "partition 0: 1 of 2 replicas answer",
    ]


def consumed(offsets: list[int], values: list[bytes]) -> ReadBack:
    read = ReadBack()
    rows = [ConsumerRecord("demo", 0, o, 0, b"k", v, (), 0) for o, v in zip(offsets, values, strict=True)]
    assert read.add(0, rows) == sum(1 + len(value) for value in values)
    return read


def test_what_the_consumer_read_is_compared() -> None:
    expected = Expected()
    expected.fingerprints.extend(fingerprints([(b"k", b"a"), (b"k", b"b")]))
    expectation = Expectation({0: expected}, frozenset(), lambda partition, position: b"k")
    assert consumed([0, 1], [b"a", b"b"]).defects(expectation) == []
    assert "other records of partition 0" in consumed([0, 1], [b"a", b"c"]).defects(expectation)[0]
    assert "other records of partition 0" in consumed([0], [b"a"]).defects(expectation)[0]
    assert consumed([1, 0], [b"a", b"b"]).defects(expectation) == [
        "the consumer skipped or repeated offsets 2 times"
    ]


def scene() -> Scene:
    made = Scene("insync demo")
    made.nodes[1] = NodeRow(1, "killed", "tcp://x", 2, 41_000_000)
    made.nodes[2] = NodeRow(2, "alive", "tcp://y", 3, 42_000_000)
    made.partitions[0] = PartitionRow(0, 2, 7, (2, 3), (1, 2, 3), 1234, 1300)
    phase = made.phase("produced", 2000)
    phase.done, phase.size_bytes = 500, 1_000_000
    made.happen("SIGKILL to node 1", "bad")
    return made


def test_the_live_view_shows_all_there_is() -> None:
    out = io.StringIO()
    Console(file=out, width=140, force_terminal=False).print(render(scene()))
    shown = out.getvalue()
    for part in ("killed", "42 MB", "2,3", "1,234", "1,300", "produced", "25 %", "SIGKILL to node 1"):
        assert part in shown, part


def test_a_live_view_redraws_until_it_is_left() -> None:
    out = io.StringIO()
    shown = scene()
    with LiveView(shown, Console(file=out, width=140, force_terminal=True)) as view:
        view.show()
        shown.happen("the end", "good")
    assert out.getvalue().count("SIGKILL to node 1") >= 2
    assert "the end" in out.getvalue()


def test_plain_lines_come_once_and_in_order() -> None:
    out = io.StringIO()
    shown = scene()
    view = make_view(shown, out)
    assert isinstance(view, PlainView)
    with view:
        view.show()
        view.show()
        shown.happen("the end", "good")
    lines = out.getvalue().splitlines()
    assert [line.split(" s  ")[1] for line in lines] == ["SIGKILL to node 1", "the end"]


async def test_progress_is_told_now_and_then(autojump_clock: trio.testing.MockClock) -> None:
    out = io.StringIO()
    shown = scene()
    shown.began -= 10
    with PlainView(shown, out) as view, trio.move_on_after(1):
        await view.keep_showing()
    assert out.getvalue().count("produced: 500 of 2,000 records (25 %)") == 1


def test_a_progress_line_has_its_rates() -> None:
    phase = scene().phases[0]
    phase.started, phase.ended = 0.0, 2.0
    assert progress_line(phase) == "produced: 500 of 2,000 records (25 %), 250 records/s, 0.5 MB/s"
