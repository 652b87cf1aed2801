"""A follower believes the answer to the question that it asked last, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from insync.replication.core.control.records import PartitionRecord, Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.log_state import LogState
from insync.replication.core.types import BatchMeta, EpochEnd, EpochEntry

from .alone import PARTITION, WAKE, Alone


def record(epoch: int, leader: int = 1, unclean_epoch: int = -1) -> Versioned:
    return Versioned(
        PartitionRecord(
            topic="t",
            partition=0,
            topic_id="x",
            replicas=(1, 2),
            isr=(1, 2),
            leader=leader,
            leader_epoch=epoch,
            unclean_epoch=unclean_epoch,
        ),
        epoch,
    )


def follower(
    *,
    end: int = 10,
    epoch: int = 0,
    leader_epoch: int = 1,
    high_watermark: int = 0,
    unclean_epoch: int = -1,
) -> Alone:
    """Replica 2, with `end` records of `epoch`, following node 1."""
    replica = Alone(2, 22)
    entries = (EpochEntry(epoch, 0),) if end else ()
    replica.tell(
        ev.Opened(
            log_start_offset=0,
            log_end_offset=end,
            high_watermark=high_watermark,
            epochs=entries,
            producers=(),
        ),
        0.0,
    )
    replica.tell(ev.RecordChanged(versioned=record(leader_epoch, unclean_epoch=unclean_epoch)), 0.0)
    assert replica.role == "follower"
    return replica


def fetched(
    offset: int,
    *,
    last_fetched_epoch: int | None = None,
    error: ErrorCode = ErrorCode.NONE,
    high_watermark: int = 0,
    log_start_offset: int = 0,
    log_end_offset: int = 50,
    diverging: EpochEnd | None = None,
    batches: tuple[BatchMeta, ...] = (),
    leader_epoch: int = 1,
) -> ev.Fetched:
    return ev.Fetched(
        fetch_offset=offset,
        leader_epoch=leader_epoch,
        last_fetched_epoch=last_fetched_epoch,
        error=error,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        diverging=diverging,
        batches=batches,
    )


def only(effects: list[object], kind: type) -> list[object]:
    return [effect for effect in effects if isinstance(effect, kind)]


def truncated(end: int, *epochs: EpochEntry) -> ev.Truncated:
    return ev.Truncated(log_start_offset=0, log_end_offset=end, epochs=epochs, producers=())


def test_a_late_divergence_does_not_cut_what_was_fetched_since() -> None:
    replica = follower()
    late = fetched(10, last_fetched_epoch=0, diverging=EpochEnd(0, 0))
    assert only(replica.tell(late, 0.0), fx.Truncate) == [fx.Truncate(partition=PARTITION, offset=0)]
    replica.tell(truncated(0), 0.0)
    batch = BatchMeta(0, 10, 1, 100)
    replica.tell(fetched(0, last_fetched_epoch=-1, batches=(batch,)), 0.0)
    asked = replica.tell(ev.Appended(log_end_offset=10), 0.0)
    assert [(e.fetch_offset, e.last_fetched_epoch) for e in asked if isinstance(e, fx.FetchNext)] == [(10, 1)]
    assert replica.tell(late, 0.0) == []


@pytest.mark.parametrize(
    ("unclean_epoch", "answer", "cut"),
    [
        (-1, {"diverging": EpochEnd(0, 4)}, fx.Truncate(partition=PARTITION, offset=4)),
        (0, {"diverging": EpochEnd(0, 4)}, fx.Truncate(partition=PARTITION, offset=4)),
        (1, {"diverging": EpochEnd(0, 4)}, fx.Truncate(partition=PARTITION, offset=4, keep=True)),
        (1, {"diverging": EpochEnd(0, 10)}, fx.Truncate(partition=PARTITION, offset=10)),
        (
            1,
            {"diverging": EpochEnd(0, 4), "log_start_offset": 6},
            fx.Truncate(partition=PARTITION, offset=6, restart=True, keep=True),
        ),
        (1, {"log_start_offset": 12}, fx.Truncate(partition=PARTITION, offset=12, restart=True, keep=True)),
    ],
)
def test_a_cut_after_an_unclean_election_keeps_the_part_that_goes(
    unclean_epoch: int, answer: dict[str, Any], cut: fx.Truncate
) -> None:
    """The leader that was elected may lack committed records, and this may be their only copy."""
    replica = follower(unclean_epoch=unclean_epoch)
    assert only(replica.tell(fetched(10, last_fetched_epoch=0, **answer), 0.0), fx.Truncate) == [cut]


@pytest.mark.parametrize("bases", [(9,), (8,), (10, 11), (12, 10)])
def test_where_offsets_may_be_missing_none_comes_twice(bases: tuple[int, ...]) -> None:
    replica = follower()
    batches = tuple(BatchMeta(base, 2, 1, 100) for base in bases)
    taken = structs.replace(fetched(10, last_fetched_epoch=0, batches=batches), may_skip=True)
    effects = replica.tell(taken, 0.0)
    assert not only(effects, fx.Append)
    assert [each.fetch_offset for each in effects if isinstance(each, fx.FetchNext)] == [10]


def test_a_cut_that_a_newer_epoch_waits_for_leads_to_no_question_of_the_older_one() -> None:
    replica = follower()
    replica.tell(fetched(10, last_fetched_epoch=0, diverging=EpochEnd(0, 4)), 0.0)
    replica.tell(ev.RecordChanged(versioned=record(2, leader=3)), 0.0)
    assert replica.stepping
    asked = only(replica.tell(truncated(4, EpochEntry(0, 0)), 0.0), fx.FetchNext)
    assert [(each.leader, each.leader_epoch) for each in asked if isinstance(each, fx.FetchNext)] == [(3, 2)]


def test_an_answer_for_another_offset_or_epoch_is_ignored() -> None:
    replica = follower()
    assert replica.tell(fetched(9, high_watermark=9), 0.0) == []
    assert replica.tell(fetched(10, high_watermark=9, leader_epoch=0), 0.0) == []
    assert replica.log.high_watermark == 0


def test_a_divergence_tells_nothing_else() -> None:
    replica = follower(high_watermark=3)
    effects = replica.tell(fetched(10, high_watermark=10, diverging=EpochEnd(0, 4)), 0.0)
    assert effects == [fx.Truncate(partition=PARTITION, offset=4)]
    assert replica.log.high_watermark == 3


def test_the_high_watermark_is_never_above_the_end_nor_below_the_start() -> None:
    replica = follower()
    replica.tell(fetched(10, high_watermark=40), 0.0)
    assert replica.log.high_watermark == 10
    replica.tell(fetched(10, high_watermark=5), 0.0)
    assert replica.log.high_watermark == 10, "what was committed stays committed"
    replica.tell(fetched(10, diverging=EpochEnd(0, 7)), 0.0)
    replica.tell(truncated(7, EpochEntry(0, 0)), 0.0)
    assert replica.log.high_watermark == 7


@pytest.mark.parametrize(
    "batches",
    [
        (BatchMeta(11, 1, 1, 9),),
        (BatchMeta(9, 2, 1, 9),),
        (BatchMeta(10, 2, 1, 9), BatchMeta(13, 1, 1, 9)),
        (BatchMeta(10, 2, 2, 9),),
        (BatchMeta(10, 2, 1, 9), BatchMeta(12, 1, 0, 9)),
    ],
    ids=["gap", "overlap", "hole", "epoch beyond the leader's", "epoch goes back"],
)
def test_batches_that_do_not_go_on_from_the_end_are_asked_for_again(batches: tuple[BatchMeta, ...]) -> None:
    replica = follower()
    (again,) = replica.tell(fetched(10, batches=batches), 0.0)
    assert isinstance(again, fx.FetchNext)
    assert again.delayed
    assert replica.log.next_offset == 10


@pytest.mark.parametrize(
    ("batches", "goes_on"),
    [
        ((BatchMeta(38, 4, 1, 9), BatchMeta(42, 1, 1, 9)), True),
        ((BatchMeta(38, 2, 1, 9),), False),
        ((BatchMeta(40, 4, 1, 9), BatchMeta(42, 4, 1, 9)), False),
    ],
    ids=["from below the start", "all below the start", "the second one overlaps"],
)
def test_only_the_first_batch_of_an_empty_log_may_begin_below_its_start(
    batches: tuple[BatchMeta, ...], goes_on: bool
) -> None:
    replica = Alone(2, 22)
    opened = ev.Opened(log_start_offset=40, log_end_offset=40, high_watermark=40, epochs=(), producers=())
    replica.tell(opened, 0.0)
    replica.tell(ev.RecordChanged(versioned=record(1)), 0.0)
    (effect,) = replica.tell(fetched(40, log_start_offset=40, batches=batches), 0.0)
    if goes_on:
        assert effect == fx.Append(
            partition=PARTITION,
            handle=None,
            batches=batches,
            base_offset=38,
            leader_epoch=None,
            begins_inside=True,
        )
        assert replica.log.next_offset == 43
    else:
        assert isinstance(effect, fx.FetchNext) and effect.delayed


def test_out_of_range_cuts_to_a_shorter_leader_or_starts_over_past_the_end() -> None:
    shorter = follower().tell(
        fetched(10, error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0, log_end_offset=6), 0.0
    )
    assert shorter == [fx.Truncate(partition=PARTITION, offset=6)]
    replica = follower(high_watermark=10)
    over = replica.tell(
        fetched(10, error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=40, log_end_offset=50), 0.0
    )
    assert over == [fx.Truncate(partition=PARTITION, offset=40, restart=True)]
    replica.tell(
        ev.Truncated(log_start_offset=40, log_end_offset=40, epochs=(), producers=()),
        0.0,
    )
    assert (replica.log.log_start_offset, replica.log.high_watermark) == (40, 40)


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_other_errors_are_asked_about_again_after_a_pause(error: ErrorCode) -> None:
    (again,) = follower().tell(fetched(10, error=error), 0.0)
    assert isinstance(again, fx.FetchNext)
    assert again.delayed


def test_a_fenced_follower_waits_for_the_newer_record() -> None:
    replica = follower()
    assert replica.tell(fetched(10, error=ErrorCode.FENCED_LEADER_EPOCH), 0.0) == []
    effects = replica.tell(ev.RecordChanged(versioned=record(2)), 0.0)
    (asked,) = only(effects, fx.FetchNext)
    assert isinstance(asked, fx.FetchNext)
    assert asked.leader_epoch == 2


def test_it_leads_from_the_end_of_what_it_was_still_writing() -> None:
    replica = follower()
    replica.tell(fetched(10, batches=(BatchMeta(10, 5, 1, 9),)), 0.0)
    effects = replica.tell(ev.RecordChanged(versioned=record(2, leader=2)), 0.0)
    assert replica.stepping
    assert not only(effects, fx.AssignEpoch)
    effects = replica.tell(ev.Appended(log_end_offset=15), 0.0)
    assert only(effects, fx.AssignEpoch) == [fx.AssignEpoch(partition=PARTITION, epoch=2, start_offset=15)]
    assert replica.leader is not None
    assert replica.leader.epoch_start == 15


def test_an_older_record_changes_nothing() -> None:
    replica = follower(leader_epoch=5)
    assert replica.tell(ev.RecordChanged(versioned=record(4, leader=2)), 0.0) == []
    assert (replica.role, replica.leader_epoch) == ("follower", 5)


def test_offsets_that_compaction_took_are_counted_to_the_later_epoch() -> None:
    """Else whoever asks how far the earlier one goes would keep what was never committed there."""
    replica = follower(end=10, epoch=0)
    batch = BatchMeta(25, 5, 1, 100)
    event = structs.replace(fetched(10, last_fetched_epoch=0, batches=(batch,)), may_skip=True)
    effects = replica.tell(event, 1.0)
    assert [type(effect) for effect in effects if isinstance(effect, fx.Append)] == [fx.Append]
    assert replica.log.epochs.entries == (EpochEntry(0, 0), EpochEntry(1, 10))
    assert replica.log.next_offset == 30


def test_a_high_watermark_that_moves_wakes_readers_and_one_that_stands_does_not() -> None:
    replica = follower()
    assert WAKE in replica.tell(fetched(10, high_watermark=7), 0.0)
    assert WAKE not in replica.tell(fetched(10, high_watermark=7), 0.0)


def test_a_log_that_comes_back_shorter_than_a_truncation_may_have_left_it_stays_closed() -> None:
    replica = follower(end=10)
    (cut,) = only(replica.tell(fetched(10, diverging=EpochEnd(0, 6)), 0.0), fx.Truncate)
    assert isinstance(cut, fx.Truncate)
    replica.tell(ev.LogFailed(reason="a disk refused"), 0.0)
    epochs = (EpochEntry(0, 0),)

    def opened(end: int) -> ev.Opened:
        return ev.Opened(
            log_start_offset=0, log_end_offset=end, high_watermark=0, epochs=epochs, producers=()
        )

    replica.tell(opened(cut.offset - 1), 0.0)
    assert replica.role == "closed"
    replica.tell(opened(cut.offset), 0.0)
    assert replica.role == "follower"


def test_the_last_epoch_is_that_of_the_last_record() -> None:
    epochs = (EpochEntry(2, 0), EpochEntry(5, 10))
    assert LogState.opened(0, 10, 0, epochs, ()).last_epoch == 2
    assert LogState.opened(0, 11, 0, epochs, ()).last_epoch == 5
    assert LogState.opened(0, 0, 0, (), ()).last_epoch == -1


def diverging(replica: Alone, end: EpochEnd) -> list[object]:
    return replica.tell(fetched(10, last_fetched_epoch=0, diverging=end), 1.0)


def test_a_follower_does_not_cut_below_its_high_watermark() -> None:
    """Its leader was put back to an older state: what it lacks was acknowledged."""
    replica = follower(high_watermark=7)
    effects = diverging(replica, EpochEnd(0, 5))
    (refused,) = [each for each in effects if isinstance(each, fx.CutRefused)]
    assert (refused.offset, refused.high_watermark, refused.leader) == (5, 7, 1)
    assert not any(isinstance(each, fx.Truncate) for each in effects)
    assert [each.delayed for each in effects if isinstance(each, fx.FetchNext)] == [True]
    assert "lacks committed records" in replica.failure
    again = diverging(replica, EpochEnd(0, 5))
    assert [type(each) for each in again] == [fx.FetchNext], "it is told of once in an epoch"
    replica.tell(ev.RecordChanged(versioned=record(2)), 2.0)
    assert replica.failure == ""


def test_a_leader_whose_log_ends_below_it_is_refused_as_well() -> None:
    replica = follower(high_watermark=7)
    effects = replica.tell(
        fetched(10, last_fetched_epoch=0, error=ErrorCode.OFFSET_OUT_OF_RANGE, log_end_offset=5), 1.0
    )
    assert any(isinstance(each, fx.CutRefused) for each in effects)
    assert not any(isinstance(each, fx.Truncate) for each in effects)


@pytest.mark.parametrize(("unclean_epoch", "cuts"), [(-1, False), (0, False), (1, True)])
def test_what_an_unclean_election_has_given_up_is_cut(unclean_epoch: int, cuts: bool) -> None:
    """The log ends in epoch 0: an election that was unclean from epoch 1 on may have lost what was committed."""
    replica = follower(high_watermark=7)
    known = record(2)
    unclean = structs.replace(known.record, unclean_epoch=unclean_epoch)
    replica.tell(ev.RecordChanged(versioned=structs.replace(known, record=unclean)), 1.0)
    effects = replica.tell(
        structs.replace(fetched(10, last_fetched_epoch=0, diverging=EpochEnd(0, 5)), leader_epoch=2),
        1.0,
    )
    assert any(isinstance(each, fx.Truncate) for each in effects) == cuts
    assert any(isinstance(each, fx.CutRefused) for each in effects) != cuts
