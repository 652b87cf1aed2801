"""Coordinators of transactions: epochs, outcomes and who is told what, through retries and timeouts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import transactions as tm
from insync.replication.core.messages.admin import PartitionName
from insync.replication.core.transactions.records import LAST_EPOCH, Status
from insync.replication.core.transactions.shard import BRIEFLY, IDS_AT_ONCE, TransactionCoordinator

from .harness import ID, Coordinator, adding, ids


def while_it_ends() -> Coordinator:
    """A transaction of the first version is committed, and no leader has answered about its marker."""
    host = Coordinator()
    host.init()
    host.add(500, 0, "a", version=1)
    host.answers = False
    host.end(500, 0, version=1)
    return host


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


def test_each_transactional_id_has_a_producer_id_of_its_own() -> None:
    """The coordinator asks the store for one block of ids after another."""
    host = Coordinator()
    names = [f"etl-{number}" for number in range(2 * IDS_AT_ONCE + 2)]
    asked = [tm.InitTransactionsRequest(transactional_id=name, timeout_ms=60_000) for name in names]
    given = [ids(host.ask(each)) for each in asked]
    assert sorted(given) == [(500 + number, 0) for number in range(len(names))]


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
    request = adding(500, 0, "a")
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
    request = adding(500, 1, "b")
    parked = host.send(request)
    assert parked not in host.said
    assert host.end(500, 1).error == ErrorCode.CONCURRENT_TRANSACTIONS
    host.answer(host.last_sent())
    assert host.said[parked].error == ErrorCode.NONE
    assert host.add(500, 1, "a") == ErrorCode.NONE


def test_a_client_waits_for_the_end_of_its_previous_transaction_but_not_for_long() -> None:
    host = while_it_ends()
    request = adding(500, 0, "b", version=1)
    early = host.send(request)
    host.pass_time(BRIEFLY - 0.001)
    assert early not in host.said
    late = host.send(request)
    host.pass_time(0.002)
    assert host.said[early].error == ErrorCode.CONCURRENT_TRANSACTIONS and late not in host.said
    host.answer(host.last_sent())
    assert host.said[late].error == ErrorCode.NONE
    assert host.value.status is Status.ONGOING and host.value.partitions == {("b", 0)}
    host.pass_time(1.0)
    assert host.end(500, 0, version=1).error == ErrorCode.NONE


def test_who_waits_for_an_end_is_told_by_its_own_deadline_or_that_the_coordinator_has_moved() -> None:
    host = while_it_ends()
    request = adding(500, 0, "b", version=1)
    short = host.send(request, within=BRIEFLY / 2)
    host.pass_time(BRIEFLY * 0.75)
    assert host.said[short].error == ErrorCode.REQUEST_TIMED_OUT
    host.answer(host.last_sent())
    # Nothing is added in the name of a client that was told so.
    assert host.value.status is Status.COMPLETE_COMMIT
    host.add(500, 0, "a", version=1)
    host.end(500, 0, version=1)
    moved = host.send(request)
    host.tell(ev.ShardEnded(leader=2, leader_epoch=2))
    assert host.said[moved].error == ErrorCode.NOT_COORDINATOR
    host.answers = True
    host.lead()
    host.pass_time(2.0)
    assert host.value.status is Status.COMPLETE_COMMIT


def test_who_is_told_that_its_time_is_over_is_not_told_in_the_same_instant_that_it_waited_long_enough() -> (
    None
):
    host = while_it_ends()
    request = adding(500, 0, "b", version=1)
    waiting = host.send(request, within=BRIEFLY)
    other = host.send(request, within=1.0)
    host.pass_time(BRIEFLY)
    assert host.said[waiting].error == ErrorCode.REQUEST_TIMED_OUT
    assert host.said[other].error == ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_leader_that_asks_for_a_client_does_not_wait_for_the_end() -> None:
    host = while_it_ends()
    asked = host.add(500, 0, "a", version=1, verify_only=True)
    assert asked == ErrorCode.CONCURRENT_TRANSACTIONS


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
    host.log[-1] = structs.replace(host.log[-1], value=structs.replace(host.value, producer_epoch=LAST_EPOCH))
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
    host.log[-1] = structs.replace(host.log[-1], value=structs.replace(host.value, producer_epoch=LAST_EPOCH))
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
    host.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    before = host.value
    assert host.end(500, 0).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert host.value == before
    host.refuse = None
    assert ids(host.end(500, 0)) == (500, 1)


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


@pytest.mark.slow
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
    host.pass_time(5.0)
    began = tm.ListTransactionsRequest(longer_than_ms=0)
    assert host.ask(began).transactions == [], "an id without a transaction has begun none"
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
    host.end(500, 0)
    assert (listed(longer_than_ms=4000), listed(longer_than_ms=6000)) == (1, 0), "its markers may be stuck"
    assert listed(statuses=["ONGOING"], longer_than_ms=0) == 0


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


def test_a_shard_is_settled_when_all_that_it_has_taken_is_committed() -> None:
    on = Coordinator()
    first = ids(on.init())
    assert on.shard.is_settled
    on.commits = False
    on.send(adding(*first, "a"))
    assert not on.shard.is_settled
    on.commit()
    assert on.shard.is_settled


def test_a_transaction_holds_what_was_added_to_it_while_it_is_open() -> None:
    on = Coordinator()
    producer_id, epoch = ids(on.init())
    machine = on.shard.machine
    assert isinstance(machine, TransactionCoordinator)
    assert not machine.holds(ID, producer_id, epoch, [("a", 0)])
    assert on.add(producer_id, epoch, "a", "b") == ErrorCode.NONE
    for partitions in ([("a", 0)], [("b", 0), ("a", 0)]):
        assert machine.holds(ID, producer_id, epoch, partitions)
    assert not machine.holds(ID, producer_id, epoch, [("a", 0), ("a", 1)])
    assert not machine.holds(ID, producer_id, epoch + 1, [("a", 0)])
    assert not machine.holds(ID, producer_id + 1, epoch, [("a", 0)])
    assert not machine.holds("another", producer_id, epoch, [("a", 0)])
    on.answers = False
    on.end(producer_id, epoch, version=1)
    assert not machine.holds(ID, producer_id, epoch, [("a", 0)]), "its outcome is decided"
