"""What a node in a process of its own reports: in order, and without waiting for its parent."""

from __future__ import annotations

import io
import json
import threading

import pytest

from insync.replication.node.process import _child
from insync.replication.node.process._child import Report


class Parent(io.BytesIO):
    """Reads while it `reads`; once it is `gone`, nothing can be written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Event()
        self.takes = threading.Event()
        self.gone = False
        self.read = b""
        self.lines = threading.Semaphore(0)

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.takes.set()
        assert self.reads.wait(30)
        if self.gone:
            raise BrokenPipeError
        return super().write(data)

    def flush(self) -> None:
        self.read = self.getvalue()
        self.lines.release()

    def heard(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.read.splitlines()]


def ends(report: Report) -> bool:
    """Whether closing it comes to an end."""
    thread = threading.Thread(target=report.close, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def hold_up(report: Report, parent: Parent, lines: int) -> None:
    """The parent has taken line 0 and does not read on; `lines` more are said."""
    report.say("log", number=0)
    assert parent.takes.wait(30)
    for number in range(1, lines + 1):
        report.say("log", number=number)


def test_lines_reach_the_parent_in_order() -> None:
    parent = Parent()
    parent.reads.set()
    report = Report(parent)
    for number in range(3):
        report.say("log", number=number)
    assert ends(report) and not report._thread.is_alive(), "all is written"
    assert parent.heard() == [{"kind": "log", "number": number} for number in range(3)]


def test_a_parent_that_does_not_read_delays_nobody_and_learns_how_much_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_child, "LINES_HELD", 4)
    parent = Parent()
    report = Report(parent)
    hold_up(report, parent, 6)
    parent.reads.set()
    for _ in range(5):
        assert parent.lines.acquire(timeout=30)
    report.say("log", number=7)
    report.say("log", number=8)
    assert ends(report)
    assert [each.get("number", each.get("count")) for each in parent.heard()] == [0, 1, 2, 3, 4, 2, 7, 8]


@pytest.mark.parametrize("gone", [True, False])
def test_the_end_waits_for_no_parent_that_is_gone_or_stands_still(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(_child, "LINES_HELD", 3)
    monkeypatch.setattr(_child, "GRACE", 0.05)
    parent = Parent()
    report = Report(parent)
    hold_up(report, parent, 5)
    parent.gone = gone
    if gone:
        parent.reads.set()
    assert ends(report)
    parent.reads.set()
