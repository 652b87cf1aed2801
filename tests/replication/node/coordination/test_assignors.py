"""Assignors of plugins on a coordinator: found by name, refused at the start, and harmless when they are wrong."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from insync.replication import NodeSettings
from insync.replication.core.groups.assignors.assignment import Partition, Subscription
from insync.replication.core.groups.settings import GroupSettings
from insync.replication.core.messages import groups as gm
from insync.replication.node import InvalidSettingError
from insync.replication.node.coordination._assignors import assignor
from insync.replication.node.coordination._group_settings import group_settings
from tests.replication.core.groups.harness import GroupHost, topic_id


class First:
    """All to the first member by its id."""

    name = "first"

    def assign(self, counts: Any, members: Any) -> Any:
        all_ = [(topic, number) for topic in counts for number in range(counts[topic])]
        return {min(members): all_}


class Answer:
    """Gives what it is told to give, or raises it."""

    name = "answer"
    given: Any = None

    def assign(self, counts: Any, members: Any) -> Any:
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given(counts, members) if callable(self.given) else self.given


class Unloadable:
    def __init__(self) -> None:
        raise RuntimeError("no licence")


@pytest.fixture(autouse=True)
def _points(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(*, group: str) -> list[EntryPoint]:
        assert group == "insync.assignors"
        here = f"{__name__}:"
        return [
            EntryPoint("first", f"{here}First", group),
            EntryPoint("answer", f"{here}Answer", group),
            EntryPoint("other", f"{here}First", group),
            EntryPoint("lost", f"{here}Nothing", group),
            EntryPoint("unloadable", f"{here}Unloadable", group),
        ]

    monkeypatch.setattr("insync.replication.node.coordination._assignors.entry_points", points)
    # The machine may stand still for longer than an assignor may take.
    monkeypatch.setattr("insync.replication.node.coordination._assignors.WITHIN", 60)


def test_a_node_is_started_with_assignors_of_plugins(tmp_path: Path) -> None:
    settings = NodeSettings(
        node_id=1,
        data_dir=tmp_path,
        store=f"sqlite://{tmp_path}/meta.db",
        group_consumer_assignors=("first", "range"),
    )
    assert [each.name for each in group_settings(settings).consumer_assignors] == ["first", "range"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "nobodys",
            "has 'nobodys', which no package registers in insync.assignors; there are uniform, range",
        ),
        ("lost", "assignor 'lost' .* cannot be loaded: AttributeError"),
        (
            "unloadable",
            r"cannot be loaded: RuntimeError\('no licence'\); repair it or remove it from the setting",
        ),
        ("other", "is not an assignor of that name; it needs name='other' and assign"),
        ("", "has '', which no package registers"),
    ],
)
def test_an_assignor_that_is_none_is_refused_by_name(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match=said) as caught:
        NodeSettings(
            node_id=1,
            data_dir=tmp_path,
            store=f"sqlite://{tmp_path}/meta.db",
            group_consumer_assignors=(name,),
        )
    assert "\n" not in str(caught.value)


def join(host: GroupHost, member: str, assignor_name: str | None = None) -> gm.ConsumerGroupHeartbeatResponse:
    said: dict[str, Any] = {
        "group": "g",
        "member_id": member,
        "member_epoch": 0,
        "topics": ["t"],
        "owned": [],
    }
    asked = gm.ConsumerGroupHeartbeatRequest(**said, rebalance_timeout_ms=1000, assignor=assignor_name)
    reply = host.ask(asked)
    assert isinstance(reply, gm.ConsumerGroupHeartbeatResponse) and not reply.error, reply
    return reply


def test_a_plugin_assigns() -> None:
    host = GroupHost(GroupSettings(consumer_assignors=(assignor("uniform"), assignor("first"))), t=4)
    (given,) = join(host, "a", "first").assignment or ()
    assert (given.topic_id, given.partitions) == (topic_id("t"), [0, 1, 2, 3])
    assert join(host, "b", "first").assignment == []


class Wordless(Exception):
    def __repr__(self) -> str:
        raise ValueError("no word")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (RuntimeError("oh"), r"raised RuntimeError\('oh'\)"),
        (RecursionError("deep"), "raised RecursionError"),
        (SystemExit(3), r"raised SystemExit\(3\)"),
        (Wordless(), "raised Wordless"),
        (RuntimeError("x" * 10_000), r"raised RuntimeError\('x{900,1000}\.\.\."),
        (None, "raised TypeError"),
        ({"a": [("t", 0)]}, "gives 1 of 2 partitions"),
        ({"a": [("t", 0), ("t", 1)], "b": [("t", 1)]}, "gives Partition.* to 'a' and to 'b'"),
        ({"a": [("t", 0), ("t", 0)], "b": [("t", 1)]}, "gives Partition.* to 'a' and to 'a'"),
        ({"a": [("t", 0), ("t", 2)], "b": []}, "gives Partition.*, which does not exist"),
        ({"a": [("t", 0), ("u", 0)], "b": []}, ".* to 'a', which does not read that topic"),
        ({"z": [("t", 0), ("t", 1)]}, "assigns partitions to 'z', which is not a member"),
        ({"a": 7}, "raised TypeError"),
        ({"a": [("t", "x")]}, "raised ValueError"),
        (lambda counts, members: counts.clear(), "raised AttributeError"),
        (lambda counts, members: members.clear(), "raised AttributeError"),
    ],
)
def test_one_that_is_wrong_harms_nobody(given: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    guarded = assignor("answer")
    guarded._foreign.given = given  # type: ignore[attr-defined]
    host = GroupHost(GroupSettings(consumer_assignors=(guarded,)), t=2, u=1)
    with caplog.at_level(logging.ERROR, logger="insync.node"):
        join(host, "a")
        join(host, "b")
        for _ in range(3):
            for member in ("a", "b"):
                reply = host.ask(
                    gm.ConsumerGroupHeartbeatRequest(
                        group="g",
                        member_id=member,
                        member_epoch=host.machine.groups["g"].current(member).epoch,
                        owned=[],
                    )
                )
                assert not reply.error
    shares = sorted(len(value.assigned) for value in host.machine.groups["g"].currents.values())
    assert shares == [1, 1], "uniform assigns in its place"
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == len(set(told)), "each mistake is told once"
    assert any(re.search(f"the assignor answer {said}", each) for each in told), told
    assert all(each.endswith("; uniform assigns in its place") for each in told)


def test_what_a_plugin_gives_is_taken_as_partitions() -> None:
    guarded = assignor("first")
    members = {"a": Subscription(topics=frozenset({"t"}))}
    assert guarded.assign({"t": 2}, members) == {"a": [Partition("t", 0), Partition("t", 1)]}


def test_one_that_does_not_return_is_put_aside_until_it_has(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insync.replication.node.coordination._assignors.WITHIN", 0.01)
    guarded, go_on, calls = assignor("answer"), threading.Event(), []

    def hang(counts: Any, members: Any) -> Any:
        calls.append(threading.current_thread())
        go_on.wait()
        return {min(members): [("t", 0), ("t", 1)]}

    guarded._foreign.given = hang  # type: ignore[attr-defined]
    members = {name: Subscription(topics=frozenset({"t"})) for name in "ab"}
    even = {"a": [Partition("t", 0)], "b": [Partition("t", 1)]}
    try:
        with caplog.at_level(logging.ERROR, logger="insync.node"):
            assert [guarded.assign({"t": 2}, members) for _ in range(3)] == [even] * 3
        assert len(calls) == 1, "it is not called again before it has returned"
        first, second = [each.getMessage() for each in caplog.records]
        assert "the assignor answer has not returned within 0.01 s" in first
        assert "has not returned from an earlier call" in second
    finally:
        go_on.set()
    calls[0].join(30)
    monkeypatch.setattr(guarded._ask, "_seconds", 60)  # type: ignore[attr-defined]
    assert guarded.assign({"t": 2}, members)["b"] == [], "it is asked again"


@pytest.mark.parametrize(
    "given",
    [
        {"a": (("t", 0) for _ in itertools.count())},
        {"a": (("t", number) for number in itertools.count())},
        ((f"member {number}", ()) for number in itertools.count()),
    ],
    ids=["one partition", "partitions", "members"],
)
def test_what_it_gives_may_be_without_end(given: Any) -> None:
    guarded = assignor("answer")
    guarded._foreign.given = lambda counts, members: given  # type: ignore[attr-defined]
    members = {"a": Subscription(topics=frozenset({"t"}))}
    assert guarded.assign({"t": 1}, members) == {"a": [Partition("t", 0)]}
    assert guarded._ask._late is None, "it takes no more memory"  # type: ignore[attr-defined]
