"""Coordinators of transactions: epochs, outcomes and who is told what, through retries, timeouts and moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from insync.replication.core.control.admin_messages import PartitionName
from insync.replication.core.coordination import shard_effects as fx
from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination import transaction_messages as tm
from insync.replication.core.coordination.marker_queue import MarkersAnswered, SendMarkers
from insync.replication.core.coordination.shard import Shard
from insync.replication.core.coordination.transaction_records import LAST_EPOCH, Status, TransactionValue
from insync.replication.core.coordination.transaction_shard import (
    AllocateIds,
    IdsAllocated,
    ReadRevision,
    RevisionRead,
    TransactionCoordinator,
)
from insync.replication.core.errors import ErrorCode

WALL = 1_700_000_000_000
ID = "etl-1"


@attrs.frozen
class View:
    leaders: Mapping[tuple[str, int], int]
    revision: int = 1

    def leader(self, topic: str, partition: int) -> int | None:
        return self.leaders.get((topic, partition))


class Coordinator:
    """One partition of `__transaction_state` on a log that commits at once; nodes write markers at once."""

    def __init__(self, **leaders: int) -> None:
        self.now = 1000.0
        self.shard = Shard(TransactionCoordinator)
        self.log: list[ev.Entry] = []
        self.said: dict[int, Any] = {}
        self.commits = self.answers = True
        self.outward: list[Any] = []
        self.markers: list[tuple[int, tm.TransactionMarkers]] = []
        self.epoch = self.requests = 0
        self.next_id = 500
        self.revision = 1
        self.refuse = False
        self.store_is_away = False
        self.view = View({(topic, 0): node for topic, node in (leaders or {"a": 1, "b": 2}).items()})
        self.lead()

    def lead(self) -> None:
        self.epoch += 1
        self.tell(ev.ViewChanged(view=self.view))
        self.tell(ev.ShardLed(leader_epoch=self.epoch, log_start=0, epoch_start=len(self.log)))
        if self.log:
            entries = tuple(self.log)
            self.tell(ev.LogRead(leader_epoch=self.epoch, entries=entries, next_offset=len(self.log)))
        self.commit()
        self.tell(ev.Contacted(since=self.now))

    def commit(self) -> None:
        self.tell(ev.Advanced(high_watermark=len(self.log)))

    def tell(self, event: ev.Event) -> None:
        outward = []
        for effect in self.shard.step(event, self.now, self.wall):
            match effect:
                case fx.Write(write_id=write_id) if self.refuse:
                    self.tell(ev.Refused(write_id=write_id, error=ErrorCode.NOT_ENOUGH_REPLICAS))
                case fx.Write(write_id=write_id, entries=entries):
                    base = len(self.log)
                    self.log += [ev.Entry(base + at, *pair) for at, pair in enumerate(entries)]
                    self.tell(ev.Accepted(write_id=write_id, base_offset=base))
                    if self.commits:
                        self.commit()
                case fx.Answer(request_id=request_id, reply=reply):
                    assert request_id not in self.said, "answered twice"
                    self.said[request_id] = reply
                case fx.Outward():
                    outward.append(effect)
        for effect in outward:
            self.obey(effect)

    def obey(self, effect: fx.Outward) -> None:
        match effect.message:
            case ReadRevision():
                known = None if self.store_is_away else self.revision
                self.hear(RevisionRead(known), effect.leader_epoch)
            case AllocateIds() if self.store_is_away:
                self.hear(IdsAllocated(-1, 0), effect.leader_epoch)
            case AllocateIds(count=count):
                first, self.next_id = self.next_id, self.next_id + count
                self.hear(IdsAllocated(first, count), effect.leader_epoch)
            case SendMarkers() as sent:
                assert sent.request.coordinator_epoch == effect.leader_epoch
                self.markers += [(sent.node, each) for each in sent.request.markers]
                self.outward.append(sent)
                if self.answers:
                    self.answer(sent)

    def hear(self, message: Any, epoch: int | None = None) -> None:
        self.tell(ev.Heard(leader_epoch=self.epoch if epoch is None else epoch, message=message))

    def answer(self, sent: SendMarkers, error: ErrorCode = ErrorCode.NONE) -> None:
        outcomes = [
            tm.MarkerOutcome(
                producer_id=each.producer_id, topic=at.topic, partition=at.partition, error=error
            )
            for each in sent.request.markers
            for at in each.partitions
        ]
        self.hear(MarkersAnswered(sent.attempt, tuple(outcomes)))

    def last_sent(self) -> SendMarkers:
        sent = self.outward[-1]
        assert isinstance(sent, SendMarkers)
        return sent

    def see(self, leaders: Mapping[str, int], revision: int) -> None:
        self.view = View({(topic, 0): node for topic, node in leaders.items()}, revision)
        self.tell(ev.ViewChanged(view=self.view))

    @property
    def wall(self) -> int:
        return WALL + int(self.now * 1000)

    def send(self, message: Any, within: float = 60.0) -> int:
        self.requests += 1
        asked = self.requests
        self.tell(ev.Ask(request_id=asked, message=message, deadline=self.now + within))
        self.tell(ev.Contacted(since=self.now))
        return asked

    def ask(self, message: Any) -> Any:
        return self.said[self.send(message)]

    def init(self, *expected: int, timeout_ms: int = 60_000) -> tm.ProducerIdResponse:
        ids = dict(zip(("producer_id", "producer_epoch"), expected, strict=False))
        return self.ask(tm.InitTransactionsRequest(transactional_id=ID, timeout_ms=timeout_ms, **ids))

    def add(self, producer_id: int, epoch: int, *topics: str, **options: Any) -> ErrorCode:
        partitions = [PartitionName(topic=topic, partition=0) for topic in topics]
        request = tm.AddPartitionsRequest(
            transactional_id=ID,
            producer_id=producer_id,
            producer_epoch=epoch,
            partitions=partitions,
            **options,
        )
        return ErrorCode(self.ask(request).error)

    def end(self, producer_id: int, epoch: int, *, committed: bool = True, version: int = 2) -> Any:
        return self.ask(
            tm.EndTransactionRequest(
                transactional_id=ID,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=committed,
                version=version,
            )
        )

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.shard.deadline) is not None and due <= end:
            self.now = max(self.now, due)
            self.tell(ev.Contacted(since=self.now))
            self.tell(ev.Tick())
        self.now = end

    @property
    def value(self) -> TransactionValue:
        machine = self.shard.machine
        assert isinstance(machine, TransactionCoordinator)
        return machine.transactions[ID]


def ids(answer: tm.ProducerIdResponse) -> tuple[int, int]:
    assert answer.error == ErrorCode.NONE, answer
    return answer.producer_id, answer.producer_epoch


def test_each_transaction_has_an_epoch_of_its_own() -> None:
    host = Coordinator()
    assert ids(host.init()) == (500, 0)
    for epoch in range(3):
        assert host.add(500, epoch, "a", "b") == ErrorCode.NONE
        assert host.value.status is Status.ONGOING
        assert ids(host.end(500, epoch, committed=epoch != 1)) == (500, epoch + 1)
        sent = dict(host.markers[-2:])
        assert {node: (m.producer_epoch, m.committed) for node, m in sent.items()} == {
            1: (epoch + 1, epoch != 1),
            2: (epoch + 1, epoch != 1),
        }
    assert host.value.status is Status.COMPLETE_COMMIT


def test_nobody_is_told_before_the_outcome_is_committed() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "a")
    host.commits = False
    asked = host.send(
        tm.EndTransactionRequest(transactional_id=ID, producer_id=500, producer_epoch=0, committed=True)
    )
    assert host.value.status is Status.PREPARE_COMMIT
    assert asked not in host.said
    assert host.markers == []
    host.commits = True
    host.commit()
    assert ids(host.said[asked]) == (500, 1)
    assert len(host.markers) == 1
    assert host.value.status is Status.COMPLETE_COMMIT


def test_a_partition_is_known_before_its_leader_is_told_so() -> None:
    host = Coordinator()
    host.init()
    host.commits = False
    request = tm.AddPartitionsRequest(
        transactional_id=ID,
        producer_id=500,
        producer_epoch=0,
        partitions=[PartitionName(topic="a", partition=0)],
    )
    first, again = host.send(request), host.send(request)
    assert not {first, again} & host.said.keys(), "neither the first nor a retry that finds it there"
    host.commit()
    assert {first, again} <= host.said.keys()


def test_an_end_that_comes_twice_is_told_the_same_and_a_late_one_is_fenced() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "a")
    assert ids(host.end(500, 0)) == ids(host.end(500, 0)) == (500, 1)
    assert host.end(500, 0, committed=False).error == ErrorCode.INVALID_TXN_STATE
    host.add(500, 1, "b")
    assert host.end(500, 0).error == ErrorCode.PRODUCER_FENCED, "it must not end the next one (KAFKA-17754)"
    assert host.value.status is Status.ONGOING
    assert len(host.markers) == 1


def test_a_transaction_that_timed_out_was_aborted_and_a_commit_of_it_says_so() -> None:
    host = Coordinator()
    host.init(timeout_ms=30_000)
    host.add(500, 0, "a")
    host.pass_time(29.9)
    assert host.value.status is Status.ONGOING
    host.pass_time(10.2)
    assert host.value.status is Status.COMPLETE_ABORT
    assert host.end(500, 0).error == ErrorCode.TRANSACTION_ABORTED
    assert ids(host.end(500, 0, committed=False)) == (500, 1)
    assert ids(host.init(500, 0)) == (500, 1), "the same producer goes on (KIP-588)"
    assert host.add(500, 1, "a") == ErrorCode.NONE


def test_the_timeout_is_counted_from_the_start_that_is_stored() -> None:
    host = Coordinator()
    host.init(timeout_ms=30_000)
    host.add(500, 0, "a")
    host.pass_time(25.0)
    host.lead()
    assert host.value.status is Status.ONGOING
    host.pass_time(15.1)
    assert host.value.status is Status.COMPLETE_ABORT


def test_taking_over_aborts_what_is_open_and_waits_for_its_end() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "a")
    host.answers = False
    asked = host.send(tm.InitTransactionsRequest(transactional_id=ID, timeout_ms=1000))
    assert host.value.status is Status.PREPARE_ABORT
    assert asked not in host.said
    assert host.add(500, 0, "b") == ErrorCode.PRODUCER_FENCED
    host.answer(host.last_sent())
    assert ids(host.said[asked]) == (500, 2), "one epoch for the abort, one for the answer (KAFKA-19367)"
    assert host.end(500, 0).error == ErrorCode.PRODUCER_FENCED
    assert host.end(500, 1).error == ErrorCode.PRODUCER_FENCED


def test_a_producer_that_lost_its_answer_is_told_the_same_and_a_zombie_is_fenced() -> None:
    host = Coordinator()
    assert ids(host.init()) == (500, 0)
    assert ids(host.init(500, 0)) == (500, 1)
    assert ids(host.init(500, 0)) == (500, 1), "no bump for a retry"
    assert ids(host.init()) == (500, 2)
    assert host.init(500, 1).error == ErrorCode.PRODUCER_FENCED
    assert host.init(500, 0).error == ErrorCode.PRODUCER_FENCED
    host.add(500, 2, "a")
    assert host.init(500, 1).error == ErrorCode.PRODUCER_FENCED
    assert host.value.status is Status.ONGOING, "a zombie aborts nothing"


def test_an_open_transaction_of_the_asker_itself_costs_one_epoch() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "a")
    assert ids(host.init(500, 0)) == (500, 1)
    assert host.value.status is Status.COMPLETE_ABORT


def test_while_the_previous_one_is_being_ended_nothing_is_added() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "a")
    host.answers = False
    host.end(500, 0)
    # Clients of the first version ask again by themselves. A leader is told when it is so.
    assert host.add(500, 1, "a", version=1) == ErrorCode.CONCURRENT_TRANSACTIONS
    request = tm.AddPartitionsRequest(
        transactional_id=ID,
        producer_id=500,
        producer_epoch=1,
        partitions=[PartitionName(topic="b", partition=0)],
    )
    parked = host.send(request)
    assert parked not in host.said
    assert host.end(500, 1).error == ErrorCode.CONCURRENT_TRANSACTIONS
    host.answer(host.last_sent())
    assert host.said[parked].error == ErrorCode.NONE
    assert host.add(500, 1, "a") == ErrorCode.NONE


def test_who_is_not_the_holder_adds_nothing() -> None:
    host = Coordinator()
    assert host.add(1, 0, "a") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    host.init()
    host.init()
    assert host.add(1, 1, "a") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert host.add(500, 0, "a") == ErrorCode.PRODUCER_FENCED
    assert host.add(500, 2, "a") == ErrorCode.PRODUCER_FENCED


def test_an_abort_without_a_transaction_fences_what_is_on_its_way() -> None:
    host = Coordinator()
    host.init()
    assert host.end(500, 0).error == ErrorCode.INVALID_TXN_STATE, "there is nothing to commit"
    assert ids(host.end(500, 0, committed=False)) == (500, 1)
    assert host.add(500, 0, "a") == ErrorCode.PRODUCER_FENCED
    assert ids(host.end(500, 0, committed=False)) == (500, 1)
    assert host.markers == []


def test_past_the_last_epoch_a_fresh_id_goes_on() -> None:
    host = Coordinator()
    host.init()
    host.log[-1] = attrs.evolve(host.log[-1], value=attrs.evolve(host.value, producer_epoch=LAST_EPOCH))
    host.lead()
    host.add(500, LAST_EPOCH, "a")
    host.answers = False
    answer = ids(host.end(500, LAST_EPOCH))
    assert answer[0] > 500 and answer[1] == 0
    assert host.markers[-1][1].producer_epoch == LAST_EPOCH + 1
    assert host.add(500, LAST_EPOCH + 1, "b") != ErrorCode.NONE, "an epoch that nobody was given"
    assert ids(host.end(500, LAST_EPOCH)) == answer
    host.lead()
    assert host.value.next_producer_id == answer[0], "it is stored"
    host.answer(host.last_sent())
    assert (host.value.producer_id, host.value.previous_producer_id) == (answer[0], 500)
    assert ids(host.end(500, LAST_EPOCH)) == answer
    assert ids(host.init(500, LAST_EPOCH)) == answer
    assert host.add(answer[0], 0, "a") == ErrorCode.NONE


def test_an_epoch_of_the_id_before_is_not_taken_for_the_last_one() -> None:
    host = Coordinator()
    host.init()
    host.log[-1] = attrs.evolve(host.log[-1], value=attrs.evolve(host.value, producer_epoch=LAST_EPOCH))
    host.lead()
    fresh = ids(host.init(500, LAST_EPOCH))
    assert fresh[0] > 500 and ids(host.init(500, LAST_EPOCH)) == fresh
    host.add(*fresh, "a")
    told = ids(host.end(*fresh))
    assert ids(host.end(*fresh)) == told
    assert host.end(500, 0).error == ErrorCode.PRODUCER_FENCED, "a zombie from long ago, with the same epoch"


def test_a_refused_write_changes_nothing() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "a")
    host.refuse = True
    before = host.value
    assert host.end(500, 0).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert host.value == before
    host.refuse = False
    assert ids(host.end(500, 0)) == (500, 1)


# Markers


def test_markers_go_on_until_every_partition_has_said_that_it_has_them() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "a", "b")
    host.answers = False
    host.end(500, 0)
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
    host = Coordinator()
    host.init()
    host.add(500, 0, "a")
    host.answers = False
    host.end(500, 0)
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


def test_after_a_move_the_next_coordinator_goes_on_with_the_markers() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "a", "b")
    host.answers = False
    host.end(500, 0)
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
    host = Coordinator()
    host.init()
    host.add(500, 0, "a", "b")
    host.answers = False
    host.end(500, 0)
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
    host = Coordinator()
    host.init()
    host.add(500, 0, "a")
    host.answers = False
    host.end(500, 0)
    times = []
    for _ in range(20):
        host.answer(host.last_sent(), ErrorCode.NOT_ENOUGH_REPLICAS)
        sent, before = len(host.outward), host.now
        while len(host.outward) == sent:
            host.pass_time(0.05)
            assert host.now < before + 2.0, "it is not sent again"
        times.append(round(host.now - before, 2))
    assert times[0] < 0.15 and 0.95 < max(times) < 1.15


# Clients whose transactions share an epoch


def test_the_first_version_keeps_its_epoch_and_may_ask_again() -> None:
    host = Coordinator()
    host.init()
    assert host.add(500, 0, "a", verify_only=True, version=1) == ErrorCode.TRANSACTION_ABORTABLE
    assert host.add(500, 0, "a", version=1) == ErrorCode.NONE
    assert host.add(500, 0, "a", verify_only=True, version=1) == ErrorCode.NONE
    assert host.add(500, 0, "b", verify_only=True, version=1) == ErrorCode.TRANSACTION_ABORTABLE
    assert ids(host.end(500, 0, version=1)) == (500, 0)
    assert ids(host.end(500, 0, version=1)) == (500, 0)
    assert host.end(500, 0, version=1, committed=False).error == ErrorCode.INVALID_TXN_STATE
    start = host.value.start_ms
    assert host.add(500, 0, "a", version=1) == ErrorCode.NONE
    assert host.value.start_ms > start, "it names the transaction"


# Expiration, and what is told


def test_an_id_that_nobody_uses_is_forgotten_and_never_an_open_one() -> None:
    host = Coordinator()
    host.init(timeout_ms=900_000)
    host.pass_time(604_800.0 - 3601)
    assert host.value.status is Status.EMPTY
    host.add(500, 0, "a")
    host.pass_time(800.0)
    host.end(500, 0)
    host.pass_time(604_800.0 - 3601)
    assert host.value.status is Status.COMPLETE_COMMIT
    host.pass_time(7300.0)
    assert host.log[-1].value is None
    assert host.add(500, 1, "a") == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_timeouts_that_are_too_long_are_refused() -> None:
    host = Coordinator()
    for timeout in (0, -1, 900_001):
        assert host.init(timeout_ms=timeout).error == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_transactions_are_described_and_listed() -> None:
    host = Coordinator()
    host.init()
    host.add(500, 0, "b", "a")
    host.pass_time(5.0)
    (told, unknown) = host.ask(tm.DescribeTransactionsRequest(transactional_ids=[ID, "?"])).transactions
    assert (told.status, told.producer_id, told.producer_epoch) == ("ONGOING", 500, 0)
    assert [each.topic for each in told.partitions] == ["a", "b"]
    assert unknown.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def listed(**wanted: Any) -> int:
        return len(host.ask(tm.ListTransactionsRequest(**wanted)).transactions)

    assert (listed(), listed(statuses=["EMPTY"]), listed(statuses=["ONGOING"])) == (1, 0, 1)
    assert (listed(producer_ids=[500]), listed(producer_ids=[1])) == (1, 0)
    assert (listed(longer_than_ms=4000), listed(longer_than_ms=6000)) == (1, 0)


@pytest.mark.parametrize(
    "message",
    [
        tm.InitTransactionsRequest(transactional_id="x" * 1025, timeout_ms=1),
        tm.InitTransactionsRequest(transactional_id="", timeout_ms=1),
        tm.EndTransactionRequest(
            transactional_id="x" * 1025, producer_id=1, producer_epoch=0, committed=True
        ),
        tm.AddPartitionsRequest(
            transactional_id=ID,
            producer_id=500,
            producer_epoch=0,
            partitions=[PartitionName(topic="t", partition=2**31)],
        ),
        tm.AddPartitionsRequest(
            transactional_id=ID, producer_id=500, producer_epoch=0, partitions=[], version=2**15
        ),
        tm.DescribeTransactionsRequest(transactional_ids=["x"] * 10_001),
        tm.ListTransactionsRequest(statuses=["x" * 1025]),
    ],
)
def test_what_is_too_large_is_refused(message: Any) -> None:
    host = Coordinator()
    host.init()
    written = len(host.log)
    assert host.ask(message).error == ErrorCode.INVALID_REQUEST
    assert len(host.log) == written
