"""What a partition's leader does with transactions: who begins one, which marker counts, how far readers read."""

from __future__ import annotations

import random

import pytest

from insync.replication.core.control.records import Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.open_transactions import OpenTransactions
from insync.replication.core.partition.transaction_gate import MOST_HELD_BYTES
from insync.replication.core.types import BatchMeta, EndedTransaction, TransactionMarker

from .test_isr_change import B, Lead, record
from .test_replica import newer, replies

P = 77
TAG = ev.TransactionTag("t", 2)
FIRST_VERSION = ev.TransactionTag("t", 1)
CLIENT, COORDINATOR = ev.Origin.CLIENT, ev.Origin.COORDINATOR


class Gate(Lead):
    """Node A leads; what it appends is written at once, and committed when B has fetched it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 100

    def _produce(self, batch: BatchMeta, **options: object) -> tuple[int, list[object]]:
        self.requests += 1
        event = ev.Produce(
            request_id=self.requests,
            batch=batch,
            handle=None,
            **{"acks": -1, "deadline": 1e9, "transaction": TAG, **options},  # type: ignore[arg-type]
        )
        return self.requests, self.write(self.step(event))

    def write(self, effects: list[object]) -> list[object]:
        for effect in list(effects):
            if isinstance(effect, fx.Append):
                effects += self.step(ev.Appended(log_end_offset=effect.batches[-1].next_offset))
        return effects

    def data(self, epoch: int = 0, sequence: int = 0, **options: object) -> tuple[int, list[object]]:
        return self._produce(BatchMeta(-1, 1, -1, 10, P, epoch, sequence, True), **options)

    def plain(self, epoch: int, sequence: int) -> tuple[int, list[object]]:
        return self._produce(BatchMeta(-1, 1, -1, 10, P, epoch, sequence), transaction=None)

    def marker(
        self, epoch: int, *, coordinator: int = 1, committed: bool = True, **options: object
    ) -> tuple[int, list[object]]:
        batch = BatchMeta(-1, 1, -1, 10, P, epoch, -1, True, TransactionMarker(committed, coordinator))
        return self._produce(batch, origin=COORDINATOR, **options)

    def offsets(self, epoch: int) -> tuple[int, list[object]]:
        """Those of a group, which its shard has decided to write."""
        return self._produce(BatchMeta(-1, 1, -1, 10, P, epoch, -1, True), origin=COORDINATOR)

    def answer(self, effects: list[object], error: ErrorCode = ErrorCode.NONE) -> list[object]:
        (asked,) = questions(effects)
        said = ev.AddAnswered(
            producer_id=asked.producer_id,
            leader_epoch=asked.leader_epoch,
            attempt=asked.attempt,
            error=error,
        )
        return self.write(self.step(said))

    def begin(self, epoch: int = 0) -> None:
        _, effects = self.data(epoch)
        assert appends(self.answer(effects)) == 1

    def commit(self) -> list[object]:
        return self.fetch(B, self.replica.log.log_end_offset)

    @property
    def stable(self) -> int:
        return self.replica.log.last_stable_offset


def questions(effects: list[object]) -> list[fx.AddToTransaction]:
    return [effect for effect in effects if isinstance(effect, fx.AddToTransaction)]


def appends(effects: list[object]) -> int:
    return sum(isinstance(effect, fx.Append) for effect in effects)


def errors(effects: list[object]) -> dict[int, ErrorCode]:
    return {request: error for request, (error, _) in replies(effects).items()}


def test_the_first_batch_waits_until_the_coordinator_knows_of_the_partition() -> None:
    lead = Gate()
    first, effects = lead.data()
    (asked,) = questions(effects)
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("t", P, 0)
    assert not asked.verify_only
    assert appends(effects) == 0
    second, more = lead.data(sequence=1)
    assert more == [fx.KeepBatch(None)], "one question, and the order of the batches stays"
    effects = lead.answer(effects)
    assert appends(effects) == 2
    third, effects = lead.data(sequence=2)
    assert (appends(effects), questions(effects)) == (1, [])
    assert errors(lead.commit()) == dict.fromkeys((first, second, third), ErrorCode.NONE)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_whom_the_coordinator_refuses_the_partition_refuses(said: ErrorCode, told: ErrorCode) -> None:
    lead = Gate()
    first, effects = lead.data()
    second, _ = lead.data(sequence=1)
    answered = lead.answer(effects, said)
    assert errors(answered) == {first: told, second: told}
    assert appends(answered) == 0


def test_a_busy_coordinator_is_asked_again_soon_and_the_last_word_is_told_at_the_deadline() -> None:
    lead = Gate()
    request, effects = lead.data(deadline=5.0)
    delays = []
    for _ in range(5):
        effects = lead.answer(effects, ErrorCode.CONCURRENT_TRANSACTIONS)
        delays.append(questions(effects)[0].delay)
    assert delays == [0.02, 0.04, 0.08, 0.1, 0.1]
    lead.now = 5.0
    assert errors(lead.step(ev.Tick())) == {request: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert ErrorCode.CONCURRENT_TRANSACTIONS.definite
    assert lead.answer(effects) == [], "nobody waits any more"
    assert lead.replica.log.next_offset == 0


def test_an_answer_to_an_earlier_attempt_counts_for_nothing() -> None:
    lead = Gate()
    _, effects = lead.data()
    lead.answer(effects, ErrorCode.NOT_COORDINATOR)
    assert lead.answer(effects) == []


def test_nor_does_one_to_an_earlier_leadership() -> None:
    lead = Gate()
    _, before = lead.data(1)
    lead.step(ev.RecordChanged(versioned=Versioned(record(epoch=2), 2)))
    lead.step(ev.EpochAssigned())
    assert lead.replica.role == "leader"
    _, effects = lead.data(0)
    assert lead.answer(before) == [], "it was about another epoch of the producer"
    assert appends(lead.answer(effects)) == 1


def test_a_marker_in_between_voids_the_answer_to_clients_whose_transactions_share_an_epoch() -> None:
    first_version = {"transaction": ev.TransactionTag("t", 1)}
    lead = Gate()
    _, effects = lead.data(0, **first_version)
    _, marked = lead.marker(0, **first_version)
    assert appends(marked) == 1
    again = lead.answer(effects)
    assert appends(again) == 0
    assert questions(again)
    assert appends(lead.answer(again)) == 1


def test_so_does_the_marker_of_a_transaction_that_ends_by_the_first_version() -> None:
    """Its partitions were added by the second one, and its markers have the epoch of the question."""
    lead = Gate()
    request, effects = lead.data(0)
    _, marked = lead.marker(0, transaction=FIRST_VERSION)
    assert appends(marked) == 1
    again = lead.answer(effects)
    assert appends(again) == 0, "the answer was about the transaction that has ended"
    assert errors(lead.answer(again, ErrorCode.PRODUCER_FENCED)) == {
        request: ErrorCode.INVALID_PRODUCER_EPOCH
    }


def test_the_marker_of_the_transaction_before_says_nothing_of_the_next_one() -> None:
    lead = Gate()
    lead.begin(0)
    _, effects = lead.data(1)
    assert questions(effects), "a transaction of an older epoch is open: its marker is still to come"
    _, marked = lead.marker(1)
    assert appends(marked) == 1
    answered = lead.answer(effects)
    assert (appends(answered), questions(answered)) == (1, [])


def test_a_marker_of_a_later_epoch_fences_what_waits() -> None:
    lead = Gate()
    lead.begin(0)
    request, effects = lead.data(1)
    lead.marker(2)
    again = lead.answer(effects)
    assert appends(again) == 0
    assert errors(lead.answer(again)) == {request: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_each_transaction_of_the_second_version_begins_at_sequence_0() -> None:
    lead = Gate()
    lead.begin(0)
    lead.marker(1)
    request, effects = lead.data(1, 1)
    assert errors(lead.answer(effects)) == {request: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
    _, effects = lead.data(1, 0)
    assert appends(lead.answer(effects)) == 1
    request, effects = lead.data(2, 1)
    assert errors(lead.answer(effects)) == {request: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}


def test_so_does_the_first_one_of_a_producer_that_nobody_knows() -> None:
    lead = Gate()
    request, effects = lead.data(0, 3)
    assert errors(lead.answer(effects))[request] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    lead = Gate()
    _, effects = lead.data(0, 3, transaction=FIRST_VERSION)
    assert appends(lead.answer(effects)) == 1, "of the first version earlier ones may have been deleted"


def test_clients_of_the_first_version_are_verified_and_go_on_with_their_sequences() -> None:
    lead = Gate()
    _, effects = lead.data(0, 0, transaction=FIRST_VERSION)
    assert questions(effects)[0].verify_only
    assert appends(lead.answer(effects)) == 1
    _, effects = lead.marker(0, transaction=FIRST_VERSION)
    assert appends(effects) == 1
    _, effects = lead.data(0, 1, transaction=FIRST_VERSION)
    assert questions(effects), "the next transaction of the same epoch"
    assert appends(lead.answer(effects)) == 1


def test_a_retry_and_a_fenced_batch_are_answered_before_anybody_is_asked() -> None:
    lead = Gate()
    lead.begin(0)
    lead.marker(1)
    request, effects = lead.data(0, 1)
    assert (errors(effects), questions(effects)) == ({request: ErrorCode.INVALID_PRODUCER_EPOCH}, [])
    _, effects = lead.data(1)
    lead.answer(effects)
    lead.commit()
    request, effects = lead.data(1)
    assert (errors(effects), appends(effects)) == ({request: ErrorCode.NONE}, 0)


def test_what_does_not_belong_is_refused() -> None:
    lead = Gate()
    lead.begin(0)
    request, effects = lead.plain(0, 1)
    assert errors(effects) == {request: ErrorCode.INVALID_TXN_STATE}, "a plain batch within a transaction"
    request, effects = lead.data(0, 1, acks=1)
    assert errors(effects) == {request: ErrorCode.INVALID_REQUIRED_ACKS}
    lead = Gate()
    request, effects = lead.data(transaction=None)
    assert errors(effects) == {request: ErrorCode.INVALID_TXN_STATE}, "of no transactional id"


def test_an_older_epoch_in_the_queue_is_fenced_by_a_newer_one() -> None:
    lead = Gate()
    first, _ = lead.data(0)
    _, effects = lead.data(1)
    assert errors(effects) == {first: ErrorCode.INVALID_PRODUCER_EPOCH}
    late, more = lead.data(0, 1)
    assert errors(more) == {late: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert appends(lead.answer(effects)) == 1


def test_what_is_held_is_bounded() -> None:
    lead = Gate()
    batch = BatchMeta(-1, 1, -1, MOST_HELD_BYTES // 2 + 1, P, 0, 0, True)
    lead._produce(batch)
    request, effects = lead._produce(batch)
    assert errors(effects) == {request: ErrorCode.CONCURRENT_TRANSACTIONS}


def test_there_is_room_again_for_what_has_waited_for_too_long() -> None:
    lead = Gate()
    batch = BatchMeta(-1, 1, -1, MOST_HELD_BYTES // 2 + 1, P, 0, 0, True)
    for _ in range(3):
        request, effects = lead._produce(batch, deadline=lead.now + 1.0)
        assert (errors(effects), len(questions(effects))) == ({}, 1)
        lead.now += 1.0
        assert request in errors(lead.step(ev.Tick()))


def test_nothing_held_outlives_the_leader_epoch() -> None:
    lead = Gate()
    request, effects = lead.data()
    assert errors(lead.step(newer())) == {request: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert appends(lead.answer(effects)) == 0


def test_a_shard_asks_as_a_producer_does() -> None:
    lead = Gate()
    admit = ev.Admit(request_id=5, producer_id=P, producer_epoch=0, transaction=TAG, deadline=9.0)
    effects = lead.step(admit)
    assert lead.answer(effects) == [fx.Admission(request_id=5, error=ErrorCode.NONE)]
    batch = BatchMeta(-1, 2, -1, 10, P, 0, -1, True)
    _, effects = lead._produce(batch, origin=COORDINATOR, transaction=None)
    assert appends(effects) == 1
    assert lead.step(admit) == [fx.Admission(request_id=5, error=ErrorCode.NONE)], "it is open now"
    lead.marker(1)
    assert lead.step(admit) == [fx.Admission(request_id=5, error=ErrorCode.INVALID_PRODUCER_EPOCH)]
    request, effects = lead._produce(batch, origin=COORDINATOR, transaction=None)
    assert errors(effects) == {request: ErrorCode.INVALID_PRODUCER_EPOCH}


@pytest.mark.parametrize("is_open", [False, True], ids=["asked", "open"])
def test_what_a_shard_writes_too_late_is_refused_also_within_the_epoch(is_open: bool) -> None:
    lead = Gate()
    if is_open:
        lead.begin()
    admit = ev.Admit(request_id=5, producer_id=P, producer_epoch=0, transaction=FIRST_VERSION, deadline=9.0)
    effects = lead.step(admit)
    said = effects if is_open else lead.answer(effects)
    assert fx.Admission(request_id=5, error=ErrorCode.NONE) in said
    lead.marker(0, transaction=FIRST_VERSION)
    late, effects = lead.offsets(0)
    assert (appends(effects), errors(effects)) == (0, {late: ErrorCode.INVALID_TXN_STATE})


def test_a_shard_writes_from_its_admission_on_until_a_marker_comes() -> None:
    lead = Gate()
    admit = ev.Admit(request_id=5, producer_id=P, producer_epoch=0, transaction=FIRST_VERSION, deadline=9.0)
    lead.answer(lead.step(admit))
    assert appends(lead.offsets(1)[1]) == 0, "that is another transaction"
    assert [appends(lead.offsets(epoch)[1]) for epoch in (0, 0)] == [1, 1]
    lead.marker(0, transaction=FIRST_VERSION)
    assert appends(lead.offsets(0)[1]) == 0


def test_markers_of_former_coordinators_are_fenced() -> None:
    lead = Gate()
    lead.begin(0)
    lead.marker(1, coordinator=5)
    request, effects = lead.marker(2, coordinator=4)
    assert errors(effects) == {request: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    request, effects = lead.marker(0, coordinator=5)
    assert errors(effects) == {request: ErrorCode.INVALID_PRODUCER_EPOCH}


def test_a_marker_that_comes_twice_is_answered_when_the_first_is_committed() -> None:
    lead = Gate()
    lead.begin(0)
    first, _ = lead.marker(1)
    again, effects = lead.marker(1)
    assert (appends(effects), errors(effects)) == (0, {})
    assert {first, again} <= errors(lead.commit()).keys()


def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    lead = Gate()
    lead.begin(0)
    lead.marker(1)
    lead.begin(1)
    request, effects = lead.marker(1)
    assert errors(effects) == {request: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert lead.replica.log.producers.transactions.first_offset(P) == 2


def test_without_an_open_transaction_none_begins_anywhere() -> None:
    """Snapshots have it as Kafka's have: -1."""
    lead = Gate()
    lead.begin(0)
    table = lead.replica.log.producers
    assert [each.first_offset for each in table.entries] == [0]
    lead.marker(1)
    assert table.transactions.first_offset(P) == -1
    assert [each.first_offset for each in table.entries] == [-1]


def test_a_marker_of_a_producer_that_nobody_knows_is_taken() -> None:
    _, effects = Gate().marker(32767)
    assert appends(effects) == 1


def test_readers_of_committed_records_read_up_to_what_is_decided_and_committed() -> None:
    lead = Gate()
    lead.append(2)
    lead.begin(0)
    lead.append(1)
    lead.commit()
    assert (lead.high_watermark, lead.stable) == (4, 2)
    lead.marker(1)
    assert lead.stable == 2, "the marker may yet be cut off"
    lead.commit()
    assert (lead.high_watermark, lead.stable) == (5, 5)


def test_a_fetch_of_theirs_ends_there_and_waits_there() -> None:
    lead = Gate()
    lead.append(1)
    lead.begin(0)
    lead.commit()

    def ask(offset: int, *, read_committed: bool) -> fx.FetchAnswer:
        question = ev.Fetch(
            replica_id=-1,
            incarnation=-1,
            leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            read_committed=read_committed,
        )
        return lead.replica.fetch(question, lead.now)

    assert (ask(0, read_committed=True).limit_offset, ask(0, read_committed=True).last_stable_offset) == (
        1,
        1,
    )
    assert ask(0, read_committed=False).limit_offset == 2
    waits = ask(2, read_committed=True)
    assert (waits.error, waits.news) == (ErrorCode.NONE, False), "in the log, but not decided"
    assert lead.replica.leader is not None
    assert lead.replica.leader.latest_offset(read_committed=True) == (ErrorCode.NONE, 1)
    assert lead.replica.leader.latest_offset() == (ErrorCode.NONE, 2)


def test_the_stable_offset_is_that_of_its_definition() -> None:
    dice = random.Random(5)
    for _ in range(300):
        table, log = OpenTransactions(), list[tuple[str, int]]()
        high_watermark, last = 0, 0
        for offset in range(dice.randint(1, 30)):
            kind, producer = dice.choice(["data", "marker"]), dice.randint(1, 4)
            log.append((kind, producer))
            (table.begin if kind == "data" else table.end)(producer, offset)
            high_watermark = dice.randint(high_watermark, len(log))
            begun: dict[int, int] = {}
            unsettled = [high_watermark]
            for at, (kind, producer) in enumerate(log):
                if kind == "data":
                    begun.setdefault(producer, at)
                elif producer in begun:
                    first = begun.pop(producer)
                    if at >= high_watermark:
                        unsettled.append(first)
            expected = min([*unsettled, *begun.values()])
            found = table.stable_offset(high_watermark, 0)
            assert found == expected >= last, "and it never goes back"
            last = found


def test_a_log_that_was_opened_knows_what_is_not_settled() -> None:
    table = OpenTransactions([(1, 7)], [EndedTransaction(2, 5, 9), EndedTransaction(3, 6, 12)])
    assert [table.stable_offset(hw, 0) for hw in (4, 9, 10, 13)] == [4, 5, 6, 7]
    assert table.stable_offset(20, 8) == 8, "retention has cut the beginning of one"
