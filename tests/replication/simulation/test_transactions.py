"""In a part of the seeds the simulated nodes coordinate transactions; the others are as they were."""

from __future__ import annotations

import attrs
import pytest

from insync.replication.core.transactions.records import (
    Status,
    TopicPartitions,
    TransactionKey,
    TransactionValue,
    encode_transaction,
    encode_transaction_key,
)
from insync.replication.core.types import BatchMeta, PartitionId, TransactionMarker
from insync.replication.simulation import Replay, Run, Settings, Topic, Violated, replay_of, run
from insync.replication.simulation.oracles.facts import PartitionFacts
from insync.replication.simulation.oracles.transactions import (
    DecisionLog,
    Ids,
    Told,
    TransactionLog,
    left_out,
)
from insync.replication.simulation.settings import INTERNAL

TOPICS = (Topic(name="t", partitions=2), *(Topic(name=each, partitions=2) for each in INTERNAL))
PLAIN = Settings(faults=(), moves=0.0, reassignments=0.0, changes=0.0, topics=TOPICS, transactions=2)


def test_without_faults_transactions_end_both_ways_and_readers_are_given_what_is_committed() -> None:
    one = Run(4, PLAIN)
    one.play()
    transactions = one.cluster.transactions
    assert transactions.committed > 5
    assert transactions.aborted > 0
    assert transactions.reads > 10
    assert transactions.told.acknowledged
    assert not [each.unfinished for each in transactions.transactors if each.unfinished]


def test_leaderships_that_move_have_later_coordinators_go_on() -> None:
    one = Run(4, attrs.evolve(PLAIN, moves=1.0))
    one.play()
    assert one.cluster.coordinators.loads > 10


def test_about_one_of_ten_seeds_hosts_transactions_and_such_a_run_can_be_played_again() -> None:
    drawn = [seed for seed in range(500) if Settings.swarm(seed).transactions]
    assert 30 < len(drawn) < 75
    for seed in drawn:
        assert {*INTERNAL} <= {each.name for each in Settings.swarm(seed).topics}
    first = run(drawn[0])
    again = Replay.loads(replay_of(first).dumps())
    assert again.settings.transactions == first.settings.transactions
    assert run(again.seed, again.settings, again.script).digest == first.digest


def test_a_seed_that_is_to_host_them_is_otherwise_as_it_was() -> None:
    for seed in range(100):
        plain, forced = Settings.swarm(seed), Settings.swarm(seed, transactions=True)
        assert forced.transactions
        kept = {each.name: each for each in plain.topics}
        assert kept.items() <= {each.name: each for each in forced.topics}.items()
        same = attrs.evolve(forced, transactions=plain.transactions, topics=plain.topics, calm=plain.calm)
        assert same == plain
    assert not Settings.swarm(1, (Topic(name="t"),), transactions=True).transactions


@pytest.mark.slow
def test_as_transactions_end_their_coordinators_are_killed_and_lead_elsewhere() -> None:
    settings = attrs.evolve(PLAIN, faults=("TE",), transactions=4)
    runs = [Run(seed, settings) for seed in range(4)]
    for one in runs:
        one.play()
    kinds = {fault.kind for one in runs for fault in one.schedule}
    assert len(kinds) == 3
    assert sum(one.injector.applied["TE"] for one in runs) > 8
    assert all(each.label != "TE" for each in Run(4, attrs.evolve(settings, transactions=0)).schedule)


# The oracle


def _data(offset: int, epoch: int, producer_id: int = 7) -> BatchMeta:
    return BatchMeta(offset, 1, 0, 100, producer_id, epoch, 0, True)


def _marker(offset: int, epoch: int, committed: bool, coordinator_epoch: int = 0) -> BatchMeta:
    said = TransactionMarker(committed, coordinator_epoch)
    return BatchMeta(offset, 1, 0, 100, 7, epoch, -1, True, said)


@pytest.mark.parametrize(
    ("invariant", "batches"),
    [
        ("S32", [_data(0, 0), _marker(1, 1, True), _marker(2, 1, True)]),
        ("S32", [_data(0, 0), _data(1, 1)]),
        ("S32", [_data(0, 0), _marker(1, 1, True), _data(2, 0)]),
        ("S32", [_data(0, 0), _marker(1, 2, True)]),
        ("S36", [_data(0, 0), _marker(1, 1, True, 3), _data(2, 1), _marker(3, 2, True, 2)]),
    ],
)
def test_a_log_that_tells_two_stories_of_a_transaction_is_noticed(
    invariant: str, batches: list[BatchMeta]
) -> None:
    log = TransactionLog(Told(), PartitionFacts("t-0", "t", 1))
    for each in batches[:-1]:
        log.take(each, False)
    with pytest.raises(Violated) as found:
        log.take(batches[-1], False)
    assert found.value.invariant == invariant


def test_what_was_told_and_what_the_markers_of_all_partitions_say_is_one_thing() -> None:
    told = Told()
    one, other = (TransactionLog(told, PartitionFacts(name, "t", 1)) for name in ("t-0", "t-1"))
    for log in (one, other):
        log.take(_data(0, 0), False)
    one.take(_marker(1, 1, True), False)
    told.ended((7, 0), True)
    with pytest.raises(Violated, match="S32"):
        told.ended((7, 0), False)
    with pytest.raises(Violated, match="S32"):
        other.take(_marker(1, 1, False), False)


def test_ids_have_one_holder_and_shut_earlier_ones_out() -> None:
    told = Told()
    told.given((7, 1), "one", is_first=True)
    told.given((7, 1), "one", is_first=False)
    with pytest.raises(Violated, match="S35"):
        told.given((7, 1), "another", is_first=True)
    log = TransactionLog(told, PartitionFacts("t-0", "t", 1))
    with pytest.raises(Violated, match="S35"):
        log.take(_data(0, 0), False)


def test_a_reader_leaves_out_what_is_aborted_up_to_its_marker() -> None:
    other = _data(4, 0, producer_id=8)
    batches = [_data(0, 0), _data(1, 0), _marker(2, 1, False), _data(3, 1), other, _marker(5, 2, True)]
    assert left_out({7: [1]}, batches[1:]) == [True, True, False, False, True]
    assert left_out({7: [3]}, batches) == [False, False, True, True, False, True]


def _decided(epoch: int, status: Status) -> tuple[tuple[bytes, bytes], ...]:
    value = TransactionValue(
        producer_id=7,
        producer_epoch=epoch,
        timeout_ms=1000,
        status=status,
        topics=(TopicPartitions(topic="t", partitions=(0, 2)),) if status.is_prepared else (),
    )
    return ((encode_transaction_key(TransactionKey("x")), encode_transaction(value)),)


def test_a_marker_says_what_is_committed_at_the_coordinator_by_then() -> None:
    told, facts = Told(), PartitionFacts("s-0", "s", 1)
    records = {"a": _decided(1, Status.PREPARE_COMMIT), "b": _decided(1, Status.COMPLETE_COMMIT)}
    log, ended = DecisionLog(told, facts), list[tuple[Ids, PartitionId]]()

    def read_on() -> None:
        log.read_on(records, lambda ids, partition: ended.append((ids, partition)))

    with pytest.raises(Violated, match="S32"):
        told.marked((7, 0), True, "t-0")
    facts.committed.append((0, "a"))
    read_on()
    told.marked((7, 0), True, "t-0")
    with pytest.raises(Violated, match="S32"):
        told.marked((7, 0), False, "t-0")
    assert not ended
    facts.committed.append((0, "b"))
    read_on()
    assert ended == [((7, 0), PartitionId("t", 0)), ((7, 0), PartitionId("t", 2))]


def test_where_a_transaction_is_said_to_be_complete_its_marker_is() -> None:
    log = TransactionLog(Told(), PartitionFacts("t-0", "t", 1))
    log.is_complete((7, 0))
    log.take(_data(0, 0), False)
    with pytest.raises(Violated, match="S32"):
        log.is_complete((7, 0))
    log.take(_marker(1, 1, True), False)
    log.is_complete((7, 0))
