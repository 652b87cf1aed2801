"""Markers: they are sent until every partition has them, through refusals, moves and a store that is away."""

from __future__ import annotations

import pytest

from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import transactions as tm
from insync.replication.core.transactions.marker_queue import MarkersAnswered
from insync.replication.core.transactions.records import Status

from .harness import ID, Coordinator, View


def ending(*topics: str) -> Coordinator:
    """A transaction in these topics is committed, and its markers are on their way."""
    host = Coordinator()
    host.init()
    host.add(500, 0, *topics)
    host.answers = False
    host.end(500, 0)
    return host


def test_markers_go_on_until_every_partition_has_said_that_it_has_them() -> None:
    host = ending("a", "b")
    first, second = host.outward[-2:]
    host.answer(first)
    host.answer(second, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert host.value.status is Status.PREPARE_COMMIT
    host.pass_time(0.06)
    again = host.last_sent()
    assert (again.node, again.attempt > second.attempt) == (2, True)
    host.hear(MarkersAnswered(again.attempt))
    host.see({"a": 1, "b": 7}, 2)
    assert host.last_sent().node == 7, "at once when the leader moves"
    host.answer(again)
    assert host.value.status is Status.PREPARE_COMMIT, "an answer to an earlier attempt"
    host.answer(host.last_sent())
    assert host.value.status is Status.COMPLETE_COMMIT


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_no_error_counts_as_done(error: ErrorCode) -> None:
    host = ending("a")
    for _ in range(5):
        host.answer(host.last_sent(), error)
        host.pass_time(1.0)
    assert host.value.status is Status.PREPARE_COMMIT
    assert len(host.outward) >= 5
    host.answer(host.last_sent())
    assert host.value.status is Status.COMPLETE_COMMIT


def test_a_partition_without_a_leader_is_not_skipped() -> None:
    host = Coordinator(a=-1)
    host.init()
    host.add(500, 0, "a")
    host.end(500, 0)
    host.pass_time(60.0)
    assert (host.markers, host.value.status) == ([], Status.PREPARE_COMMIT)
    host.see({"a": 4}, 2)
    assert host.value.status is Status.COMPLETE_COMMIT


def test_only_a_view_that_must_know_of_it_says_that_a_topic_is_gone() -> None:
    host = Coordinator(b=2)
    host.init()
    host.add(500, 0, "a", view_revision=5)
    host.end(500, 0)
    assert host.value.status is Status.PREPARE_COMMIT, "this view is older than the topic"
    host.see({"b": 2}, 4)
    assert host.value.status is Status.PREPARE_COMMIT
    host.see({"b": 2}, 5)
    assert host.value.status is Status.COMPLETE_COMMIT


def test_a_topic_that_is_made_again_within_a_transaction_is_not_gone_by_a_view_of_before() -> None:
    host = Coordinator(b=2)
    host.init()
    host.add(500, 0, "a", view_revision=5)
    host.add(500, 0, "a", view_revision=9)
    host.add(500, 0, "a", view_revision=7)
    host.end(500, 0)
    host.see({"b": 2}, 8)
    assert host.value.status is Status.PREPARE_COMMIT, "by this view it was deleted, and not yet made again"
    host.see({"b": 2}, 9)
    assert host.value.status is Status.COMPLETE_COMMIT


def test_a_node_that_does_not_know_a_partition_is_asked_again() -> None:
    host = ending("a")
    sent = host.last_sent()
    host.answer(sent, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    host.pass_time(1.0)
    again = host.last_sent()
    assert (again is not sent, host.value.status) == (True, Status.PREPARE_COMMIT)
    host.answer(again)
    assert host.value.status is Status.COMPLETE_COMMIT


def test_after_a_move_the_next_coordinator_goes_on_with_the_markers() -> None:
    host = ending("a", "b")
    old = host.outward[-1]
    sent = len(host.outward)
    host.revision = 9
    host.view = View({("a", 0): 1})
    host.lead()
    (again,) = host.outward[sent:]
    assert (again.node, again.request.coordinator_epoch) == (1, 2)
    host.hear(MarkersAnswered(old.attempt, ()), 1)
    host.answer(again)
    assert host.value.status is Status.PREPARE_COMMIT, "the view may be older than topic b"
    host.see({"a": 1}, 9)
    assert host.value.status is Status.COMPLETE_COMMIT


def test_a_store_that_is_away_is_asked_again() -> None:
    host = ending("a", "b")
    host.store_is_away = True
    host.view = View({("a", 0): 1}, 9)
    host.lead()
    host.answer(host.last_sent())
    waiting = host.send(tm.InitTransactionsRequest(transactional_id="other", timeout_ms=60_000), 600.0)
    host.pass_time(30.0)
    assert host.value.status is Status.PREPARE_COMMIT, "nobody knows how old topic b is"
    assert waiting not in host.said
    host.store_is_away = False
    host.pass_time(2.0)
    assert host.value.status is Status.COMPLETE_COMMIT
    assert host.said[waiting].producer_id == 510, "those of the coordinator before are lost"


def test_a_marker_that_is_refused_is_tried_each_second_for_as_long_as_it_takes() -> None:
    host = ending("a")
    times = []
    for _ in range(20):
        host.answer(host.last_sent(), ErrorCode.NOT_ENOUGH_REPLICAS)
        sent, before = len(host.outward), host.now
        while len(host.outward) == sent:
            host.pass_time(0.05)
            assert host.now < before + 2.0, "it is not sent again"
        times.append(round(host.now - before, 2))
    assert times[0] < 0.15 and 0.95 < max(times) < 1.15


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(("added", "ended"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_a_marker_is_of_the_version_of_the_end(added: int, ended: int, committed: bool) -> None:
    """The version says whether the marker has an epoch above that of the transaction's batches."""
    host = Coordinator(a=1)
    host.init()
    assert host.add(500, 0, "a", version=added) == ErrorCode.NONE
    assert host.end(500, 0, committed=committed, version=ended).error == ErrorCode.NONE
    ((_, marker),) = host.markers
    assert (marker.version, marker.producer_epoch) == (ended, 0 if ended == 1 else 1)
    assert host.value.status.is_committed is committed


@pytest.mark.parametrize("added", [1, 2])
def test_a_marker_after_the_timeout_has_an_epoch_of_its_own(added: int) -> None:
    host = Coordinator(a=1)
    host.init(timeout_ms=1000)
    host.add(500, 0, "a", version=added)
    host.pass_time(12.0)
    ((_, marker),) = host.markers
    assert (marker.version, marker.producer_epoch, marker.committed) == (2, 1, False)


def test_partitions_that_refuse_a_marker_are_told_of_until_they_take_it() -> None:
    host = ending("a", "b")
    host.answer(host.outward[-2])

    def refused() -> list[str]:
        (told,) = host.ask(tm.DescribeTransactionsRequest(transactional_ids=[ID])).transactions
        assert told.status == "PREPARE_COMMIT"
        return [each.topic for each in told.refused]

    assert refused() == []
    for _ in range(3):
        host.answer(host.last_sent(), ErrorCode.INVALID_PRODUCER_EPOCH)
        assert refused() == ["b"]
        host.pass_time(1.0)
    assert [(each.group, dict(each.details)) for each in host.noted if "topic" in each.details] == [
        (ID, {"cause": "refused", "topic": "b", "partition": 0})
    ], "told once"
    host.answer(host.last_sent(), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert refused() == []
    host.pass_time(1.0)
    host.answer(host.last_sent())
    assert host.value.status is Status.COMPLETE_COMMIT
