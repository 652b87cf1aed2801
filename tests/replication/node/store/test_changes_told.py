"""The changes that nodes remember for those who ask: numbered, bounded, and the same as in the log."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from insync.replication import Admin, Node
from insync.replication.client import NodeChanges
from insync.replication.core.messages import DescribeChangesRequest
from insync.replication.node.log_lines import Event, event
from insync.replication.node.operations.history import MOST_TEXT, MOST_TOLD, ChangeHistory
from insync.replication.node.store import _changes_told
from insync.replication.node.store._changes_told import MOST_WAITING, PAUSE, PORTION, ChangesTold

from ..test_cluster import settings, until


@given(
    remembered=st.integers(1, 30),
    counts=st.lists(st.integers(0, 40), max_size=6),
    limit=st.integers(-1, 50),
)
def test_one_who_goes_on_where_it_was_told_misses_only_what_was_forgotten(
    remembered: int, counts: list[int], limit: int
) -> None:
    history, total, number = ChangeHistory(remembered), 0, 1
    for count in counts:
        for total in range(total + 1, total + count + 1):  # noqa: B020 - goes on where it stopped
            history.remember(event("x", at=total), 1.5)
        told = history.describe(DescribeChangesRequest(start=number, incarnation=7, limit=limit), 1, 7)
        first = max(1, total - remembered + 1)
        expected = list(range(max(number, first), total + 1))[: max(0, limit)]
        assert [each.number for each in told.changes] == expected
        assert all(each.facts == {"at": each.number} and each.at_ms == 1500 for each in told.changes)
        assert (told.first_number, told.next_number) == (first, max(number, first) + len(expected))
        number = told.next_number


def test_another_process_tells_all_that_it_has_and_no_answer_is_without_bound() -> None:
    history = ChangeHistory()
    for number in range(MOST_TOLD + 2):
        history.remember(event("x", n=number, nodes=(1, 2), why="y" * (2 * MOST_TEXT)), 0)
    told = history.describe(DescribeChangesRequest(start=400, incarnation=6, limit=10**9), 3, 7)
    assert (told.node_id, told.incarnation, len(told.changes)) == (3, 7, MOST_TOLD)
    assert told.changes[0].facts == {"n": 0, "nodes": [1, 2], "why": "y" * MOST_TEXT}
    rest = history.describe(DescribeChangesRequest(start=told.next_number, incarnation=7), 3, 7)
    assert [each.number for each in rest.changes] == [MOST_TOLD + 1, MOST_TOLD + 2]
    ahead = history.describe(DescribeChangesRequest(start=10**6, incarnation=7), 3, 7)
    assert (ahead.changes, ahead.next_number) == ([], MOST_TOLD + 3)


async def test_a_cluster_tells_why_a_leader_changed_once_to_each_who_asks(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as one, Admin(one.endpoints) as admin:
        async with Node(settings(tmp_path, 2)):
            await admin.create_topic("t", 4, 2)
            seen = {each.node_id: each for each in await admin.describe_changes()}
            assert sorted(seen) == [1, 2] and not any(each.error for each in seen.values())

        async def told() -> bool:
            nonlocal seen
            found = {each.node_id: each for each in await admin.describe_changes(seen)}
            changes = [each for each in found[1].changes if each.name == "partition_changed"]
            gone = [each for each in found[1].changes if each.name == "node_changed"]
            reasons = {str(each.facts["why"]) for each in changes if each.facts["was_leader"] == 2}
            return bool(gone) and any("node 2" in why for why in reasons)

        await until(told)
        again = {each.node_id: each for each in await admin.describe_changes(seen)}
        numbers = [each.number for each in again[1].changes]
        assert numbers == list(range(seen[1].next_number, again[1].next_number))
        last = NodeChanges(node_id=1, incarnation=again[1].incarnation, next_number=again[1].next_number)
        assert (await admin.describe_changes({1: last}))[0].changes == []
        other = attrs.evolve(last, incarnation=last.incarnation + 1)
        assert (await admin.describe_changes({1: other}))[0].changes != []


def lines(count: int) -> Iterator[Event]:
    return (event("x", at=number) for number in range(count))


@pytest.mark.parametrize("fact", ["g" * 30_000, RuntimeError("refused")], ids=["text", "error"])
def test_large_facts_are_not_kept_until_somebody_asks(fact: object) -> None:
    """Clients choose some texts, such as names of groups, and an error keeps alive all that its frames name."""
    history = ChangeHistory()
    told = event("x", fact=fact, n=1)
    history.remember(told, 0)
    kept = weakref.ref(told)
    del told
    assert kept() is None
    facts = history.describe(DescribeChangesRequest(), 1, 7).changes[0].facts
    assert facts == {"fact": str(fact)[:MOST_TEXT], "n": 1}


def times(history: ChangeHistory) -> list[int]:
    """Of the changes that are remembered, in milliseconds."""
    return [
        each.at_ms for each in history.describe(DescribeChangesRequest(start=1, incarnation=7), 1, 7).changes
    ]


async def test_lines_about_thousands_of_changes_leave_clients_their_turn(
    nursery: trio.Nursery, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover must not wait for its log; each line has the time at which its change was read."""
    history = ChangeHistory()
    told = ChangesTold(history, nursery)
    monkeypatch.setattr(_changes_told.time, "time", lambda: 1.0)
    told.tell(lines(2 * PORTION + 1))
    monkeypatch.setattr(_changes_told.time, "time", lambda: 2.0)
    told.tell(lines(1))
    assert len(times(history)) == PORTION
    await wait_all_tasks_blocked()
    assert len(times(history)) == 2 * PORTION
    await wait_all_tasks_blocked()
    assert len(times(history)) == 2 * PORTION, "only time brings the next portion"
    mock_clock.jump(PAUSE)
    await wait_all_tasks_blocked()
    assert times(history) == [1000] * (2 * PORTION + 1) + [2000]


async def test_a_node_that_stops_leaves_no_line_out(mock_clock: MockClock) -> None:
    history = ChangeHistory()
    async with trio.open_nursery() as nursery:
        ChangesTold(history, nursery).tell(lines(4 * PORTION))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(times(history)) == 4 * PORTION


async def test_there_is_no_pause_while_too_many_readings_wait(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    history = ChangeHistory()
    told = ChangesTold(history, nursery)
    told.tell(lines(3 * PORTION))
    for _ in range(MOST_WAITING):
        told.tell(lines(1))
    await wait_all_tasks_blocked()
    assert len(times(history)) == 3 * PORTION + MOST_WAITING


async def test_each_replica_of_a_large_topic_tells_that_it_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those whose log has gone before their line is written."""
    monkeypatch.setattr(_changes_told, "PAUSE", 1.0)
    count = PORTION + 20
    async with (
        Node(settings(tmp_path, 1)) as one,
        Node(settings(tmp_path, 2)),
        Admin(one.endpoints) as admin,
    ):
        await admin.create_topic("t", count, 2)
        await admin.delete_topic("t")

        async def told() -> bool:
            found = await admin.describe_changes()
            deleted = [sum(each.name == "partition_deleted" for each in node.changes) for node in found]
            return deleted == [count, count]

        await until(told, seconds=60.0)
