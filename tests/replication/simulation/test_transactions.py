"""In a part of the seeds the simulated nodes coordinate transactions; the others are as they were."""

from __future__ import annotations

import attrs
import pytest

from insync.replication.core.transactions.records import (
    LAST_EPOCH,
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
    Intent,
    Told,
    TransactionLog,
    left_out,
)
from insync.replication.simulation.settings import INTERNAL

SEEDS = 60
TOPICS = (Topic(name="t", partitions=2), *(Topic(name=each, partitions=2) for each in INTERNAL))
PLAIN = Settings(faults=(), moves=0.0, reassignments=0.0, changes=0.0, topics=TOPICS, transactions=2)


def test_without_faults_transactions_end_both_ways_and_readers_are_given_what_is_committed() -> None:
    one = Run(7, PLAIN)
    one.play()
    transactions = one.cluster.transactions
    assert transactions.committed > 5
    assert transactions.aborted > 0
    assert transactions.reads > 10
    assert any(each.acknowledged for each in transactions.told.intents.values())
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


def test_a_seed_that_is_to_host_them_is_otherwise_as_it_was_with_fewer_faults() -> None:
    for seed in range(100):
        plain, forced = Settings.swarm(seed), Settings.swarm(seed, profile="transactions")
        assert forced.transactions
        assert forced.faults == plain.faults and forced.nodes == plain.nodes
        kept = {each.name: each for each in plain.topics}
        assert kept.items() <= {each.name: each for each in forced.topics}.items()
        if plain.transactions:
            assert forced == plain
        else:
            assert plain.strength == 1.0
            assert forced.fault_rate == forced.strength * plain.fault_rate < plain.fault_rate
    assert not Settings.swarm(1, (Topic(name="t"),), profile="transactions").transactions


def test_seeds_have_clients_of_both_versions_few_epochs_and_ids_that_expire() -> None:
    drawn = [Settings.swarm(seed, profile="transactions") for seed in range(40)]
    assert {each.last_epoch for each in drawn} == {1, 2, 4, LAST_EPOCH}
    assert {each.expires for each in drawn} == {0.0, 6.0}
    one = Run(4, attrs.evolve(PLAIN, transactions=8))
    one.play()
    used = {each.versions for each in one.cluster.transactions.transactors}
    assert used == {(1,), (2,), (1, 2)}


@pytest.mark.slow
def test_no_promise_is_broken_in_any_of_some_seeds_that_host_them() -> None:
    runs = [Run(seed, Settings.swarm(seed, profile="transactions")) for seed in range(SEEDS)]
    for one in runs:
        one.play()
    kept = [one.cluster.transactions for one in runs]
    assert sum(each.committed for each in kept) > 5 * SEEDS
    assert sum(each.aborted for each in kept) > 5 * SEEDS
    assert sum(each.reads for each in kept) > 5 * SEEDS
    told = [intent for each in kept for intent in each.told.intents.values()]
    assert {intent.ids[1] for intent in told} > {0, 1, 2, 3, 4}
    assert any(each.told.expired for each in kept)


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


class Story:
    """The answers about one transactional id, `x`, with producer id 7, and the logs of its transactions."""

    def __init__(self) -> None:
        self.told = Told(10)
        self.ended: list[tuple[int, PartitionId]] = []
        self._records: dict[str, tuple[tuple[bytes, bytes | None], ...]] = {}
        self._decisions = DecisionLog(self.told, PartitionFacts("s-0", "s", 1))

    def log(self, name: str = "t-0") -> TransactionLog:
        return TransactionLog(self.told, PartitionFacts(name, "t", 1))

    def decide(self, epoch: int, status: Status, version: int = 2) -> None:
        """Its coordinator commits a state."""
        value = TransactionValue(
            producer_id=7,
            producer_epoch=epoch,
            timeout_ms=1000,
            status=status,
            topics=(TopicPartitions(topic="t", partitions=(0, 2)),) if status.is_prepared else (),
            client_version=version,
        )
        self._commit(encode_transaction(value))

    def expire(self) -> None:
        self._commit(None)

    def _commit(self, value: bytes | None) -> None:
        place = f"d{len(self._records)}"
        self._records[place] = ((encode_transaction_key(TransactionKey("x")), value),)
        self._decisions.facts.committed.append((0, place))
        self._decisions.read_on(self._records, lambda *complete: self.ended.append(complete))

    def give(self, epoch: int, holder: object = "one", *, goes_on: bool = False) -> None:
        """A producer takes the id over, and is told so."""
        if (7, epoch) not in self.told.order:
            self.decide(epoch, Status.EMPTY)
        self.told.given("x", (7, epoch), holder, is_first=True, goes_on=goes_on)

    def begin(self, epoch: int, owner: object = "one") -> Intent:
        intent = Intent("x", owner, (7, epoch))
        self.told.begun(intent)
        return intent

    def write(self, log: TransactionLog, intent: Intent, payload: str = "") -> None:
        payload = payload or f"{log.facts.name} of {intent}"
        self.told.intents[payload] = intent
        log.take(BatchMeta(0, 1, 0, 100, 7, intent.ids[1], 0, True), payload, False)

    def mark(self, log: TransactionLog, epoch: int, committed: bool, coordinator: int = 0) -> None:
        said = TransactionMarker(committed, coordinator)
        log.take(BatchMeta(0, 1, 0, 100, 7, epoch, -1, True, said), "", False)


@pytest.fixture
def story() -> Story:
    """One producer has the id, with epoch 0."""
    found = Story()
    found.give(0)
    return found


def test_a_marker_comes_once_and_nothing_of_the_transaction_comes_behind_it(story: Story) -> None:
    log, intent = story.log(), story.begin(0)
    story.write(log, intent)
    story.decide(1, Status.PREPARE_COMMIT)
    story.mark(log, 1, True)
    with pytest.raises(Violated, match=r"S32.* there twice"):
        story.mark(log, 1, True)
    with pytest.raises(Violated, match=r"S32.* behind the marker"):
        story.write(log, intent, "late")


def test_by_the_first_version_it_may_come_again_and_later_ones_have_the_same_epoch(story: Story) -> None:
    log, other, intent = story.log(), story.log("t-1"), story.begin(0)
    story.write(log, intent)
    story.decide(0, Status.PREPARE_COMMIT, version=1)
    story.mark(log, 0, True)
    story.mark(log, 0, True)
    after = story.begin(0)
    story.write(log, after, "after")
    story.write(other, after)
    with pytest.raises(Violated, match=r"S32.* decided otherwise"):
        story.mark(log, 0, False)
    story.decide(0, Status.PREPARE_ABORT, version=1)
    with pytest.raises(Violated, match=r"S32.* decided otherwise"):
        story.mark(other, 0, True)
    story.mark(log, 0, False)
    assert (intent.outcome, after.outcome) == (True, False)


def test_a_batch_that_its_producer_gave_up_may_begin_one_that_nobody_means(story: Story) -> None:
    log, intent = story.log(), story.begin(0)
    story.write(log, intent)
    story.decide(0, Status.PREPARE_ABORT, version=1)
    story.mark(log, 0, False)
    intent.is_given_up = True
    with pytest.raises(Violated, match=r"S32.* behind the marker"):
        story.write(log, intent, "late")
    log.open.clear()
    story.told.sharing.add("x")
    story.write(log, intent, "later")
    assert story.told.intents["later"] is not intent


def test_two_transactions_of_a_producer_are_never_open_at_once(story: Story) -> None:
    log = story.log()
    story.write(log, story.begin(0))
    with pytest.raises(Violated, match=r"S32.* is open"):
        story.write(log, story.begin(0), "second")
    plain = BatchMeta(0, 1, 0, 100, 7, 0, 1)
    with pytest.raises(Violated, match=r"S32.* in no transaction"):
        log.take(plain, "plain", False)


def test_a_marker_ends_the_transaction_of_its_epoch_as_its_coordinator_has_decided(story: Story) -> None:
    log = story.log()
    story.write(log, story.begin(0))
    with pytest.raises(Violated, match=r"S32.* decided anything"):
        story.mark(log, 1, True)
    story.decide(1, Status.PREPARE_COMMIT)
    with pytest.raises(Violated, match=r"S32.* decided otherwise"):
        story.mark(log, 1, False)
    story.decide(2, Status.PREPARE_COMMIT)
    with pytest.raises(Violated, match=r"S32.* ends the transaction"):
        story.mark(log, 2, True)


def test_no_earlier_coordinator_writes_a_marker_after_a_later_one(story: Story) -> None:
    log = story.log()
    story.decide(1, Status.PREPARE_COMMIT)
    story.mark(log, 1, True, coordinator=3)
    story.decide(2, Status.PREPARE_COMMIT)
    with pytest.raises(Violated, match="S36"):
        story.mark(log, 2, True, coordinator=2)


def test_what_was_told_and_what_the_markers_of_all_partitions_say_is_one_thing(story: Story) -> None:
    one, other, intent = story.log(), story.log("t-1"), story.begin(0)
    story.write(one, intent)
    story.write(other, intent)
    story.decide(1, Status.PREPARE_COMMIT)
    story.mark(one, 1, True)
    story.told.ended(intent, True, (7, 1))
    story.told.ended(intent, True, (7, 1))
    with pytest.raises(Violated, match=r"S32.* is told to be committed"):
        story.told.ended(intent, False)
    with pytest.raises(Violated, match=r"S32.* is told to give"):
        story.told.ended(intent, True, (7, 2))
    story.decide(1, Status.PREPARE_ABORT)
    with pytest.raises(Violated, match=r"S32.* a marker of"):
        story.mark(other, 1, False)


def test_ids_have_one_holder_and_shut_earlier_ones_out(story: Story) -> None:
    story.give(1, "two")
    story.give(1, "two")
    with pytest.raises(Violated, match=r"S35.* were told to two"):
        story.give(1, "three")
    with pytest.raises(Violated, match=r"S35.* after .* of another producer"):
        story.write(story.log(), story.begin(0))


def test_ids_are_committed_and_of_an_epoch_that_there_is(story: Story) -> None:
    with pytest.raises(Violated, match=r"S35.* not committed"):
        story.told.given("x", (7, 3), "one", is_first=False, goes_on=False)
    with pytest.raises(Violated, match=r"S35.* past 10"):
        story.give(11)


def test_who_was_shut_out_is_not_let_in_by_the_ids_that_it_had_until_the_id_expires(story: Story) -> None:
    story.give(1, "two")
    with pytest.raises(Violated, match=r"S35.* is let in"):
        story.give(2, "one", goes_on=True)
    story.expire()
    story.give(3, "one", goes_on=True)


def test_where_a_transaction_is_said_to_be_complete_its_marker_is(story: Story) -> None:
    log = story.log()
    log.is_complete(7)
    story.write(log, story.begin(0))
    story.decide(1, Status.PREPARE_COMMIT)
    assert not story.ended
    story.decide(1, Status.COMPLETE_COMMIT)
    assert story.ended == [(7, PartitionId("t", 0)), (7, PartitionId("t", 2))]
    with pytest.raises(Violated, match=r"S32.* said to be complete"):
        log.is_complete(7)
    story.mark(log, 1, True)
    log.is_complete(7)


def test_a_reader_leaves_out_what_is_aborted_up_to_its_marker() -> None:
    def data(offset: int, producer_id: int = 7) -> BatchMeta:
        return BatchMeta(offset, 1, 0, 100, producer_id, 0, 0, True)

    def marker(offset: int, committed: bool) -> BatchMeta:
        return BatchMeta(offset, 1, 0, 100, 7, 1, -1, True, TransactionMarker(committed, 0))

    batches = [data(0), data(1), marker(2, False), data(3), data(4, producer_id=8), marker(5, True)]
    assert left_out({7: [1]}, batches[1:]) == [True, True, False, False, True]
    assert left_out({7: [3]}, batches) == [False, False, True, True, False, True]
