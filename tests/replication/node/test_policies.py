"""Election policies of plugins: what goes wrong in one costs the partition's election, never the controller."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from insync.replication.core.control.elections import AskLogs, Elect, Situation, Verdict, Wait
from insync.replication.core.control.records import PartitionRecord
from insync.replication.node import _policies
from insync.replication.node._policies import election_policies

SITUATION = Situation(
    record=PartitionRecord(
        topic="t",
        partition=4,
        topic_id="id",
        replicas=(1, 2, 3),
        isr=(1,),
        elr=(),
        last_known_elr=(),
        leader=-1,
        leader_epoch=7,
        partition_epoch=9,
        controller_epoch=1,
        min_insync_replicas=2,
    ),
    live={2: 1, 3: 1, 8: 1},
)


def ask(monkeypatch: pytest.MonkeyPatch, policy: Any, times: int = 1) -> Verdict:
    """What is made of a plugin's verdict."""
    monkeypatch.setattr(f"{__name__}.installed", policy, raising=False)
    offers = [EntryPoint("mine", f"{__name__}:installed", _policies.GROUP)]
    monkeypatch.setattr(_policies, "entry_points", lambda group: offers)
    guarded = election_policies()["mine"]
    return [guarded(SITUATION) for _ in range(times)][-1]


@pytest.mark.parametrize("verdict", [Wait(), Elect(3), AskLogs((2, 3)), AskLogs((2,))])
def test_a_verdict_that_can_be_carried_out_is_passed_on(
    verdict: Verdict, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(monkeypatch, lambda situation: verdict) == verdict
    assert not caplog.records


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (lambda situation: 1 // 0, "raised ZeroDivisionError"),
        (lambda: Wait(), "raised TypeError"),
        (lambda situation: None, "has decided None, with [2, 3] alive"),
        (lambda situation: 3, "has decided 3"),
        (lambda situation: Elect(1), "has decided Elect(node=1)"),
        (lambda situation: Elect(8), "has decided Elect(node=8)"),
        (lambda situation: AskLogs(()), "has decided AskLogs"),
        (lambda situation: AskLogs((1, 2)), "has decided AskLogs"),
        (lambda situation: AskLogs(2), "raised TypeError"),
    ],
)
def test_a_mistake_makes_the_partition_wait_and_is_told_once(
    policy: Any, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert ask(monkeypatch, policy, times=3) == Wait()
    (line,) = caplog.messages
    assert line.startswith(f"the election policy mine {said}") and "t-4 waits" in line
