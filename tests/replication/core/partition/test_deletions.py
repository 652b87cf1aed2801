"""Records deleted on a client's request or by retention: who may delete what, who is told, who has let go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.control.records import Versioned
from insync.replication.core.epochs import EpochCache
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.log_state import LogState
from insync.replication.core.types import BatchMeta, EpochEnd, EpochEntry

from .alone import PARTITION, WAKE
from .test_follower import fetched, follower
from .test_isr_change import A, B, C, Lead, proposals, record
from .test_replica import newer


class Deleting(Lead):
    """A leader with ten committed records, of which followers can tell where their logs begin."""

    def __init__(self, isr: tuple[int, ...] = (A, B)) -> None:
        super().__init__(isr)
        self.append(10)
        for node in isr:
            if node != A:
                self.fetch_from(node, 10, 0)

    def fetch_from(self, node: int, offset: int, start: int) -> list[object]:
        return self.question_answered(
            ev.Fetch(
                replica_id=node,
                incarnation=self.replica.live[node],
                leader_epoch=self.replica.leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=self.replica.log.epochs.latest,
                high_watermark=self.high_watermark,
                log_start_offset=start,
            )
        )

    def delete(self, offset: int, request: int = 1) -> list[object]:
        return self.step(ev.DeleteRecords(request_id=request, offset=offset, deadline=5.0))


def told(effects: list[object]) -> dict[int, tuple[ErrorCode, int]]:
    return {
        effect.request_id: (effect.error, effect.low_watermark)
        for effect in effects
        if isinstance(effect, fx.ReplyDeleteRecords)
    }


def advanced(effects: list[object]) -> list[int]:
    return [effect.offset for effect in effects if isinstance(effect, fx.AdvanceLogStart)]


def test_a_deletion_is_done_when_every_member_has_let_go() -> None:
    lead = Deleting()
    effects = lead.delete(4)
    assert (advanced(effects), told(effects)) == ([4], {})
    effects = lead.step(ev.LogStartAdvanced(log_start_offset=4))
    assert told(effects) == {}
    assert lead.replica.log.log_start_offset == 4
    assert told(lead.fetch_from(B, 10, 3)) == {}
    assert told(lead.fetch_from(C, 10, 4)) == {}
    assert told(lead.fetch_from(B, 10, 4)) == {1: (ErrorCode.NONE, 4)}


def test_minus_one_deletes_all_that_is_committed() -> None:
    lead = Deleting()
    lead.append(3)
    assert advanced(lead.delete(-1)) == [10]


@pytest.mark.parametrize("offset", [11, -2])
def test_nothing_uncommitted_is_deleted(offset: int) -> None:
    lead = Deleting()
    lead.append(3)
    effects = lead.delete(offset, request=70)
    assert (advanced(effects), told(effects)) == ([], {70: (ErrorCode.OFFSET_OUT_OF_RANGE, -1)})


def test_a_dead_replica_is_waited_for_as_long_as_it_may_be_elected() -> None:
    lead = Deleting()
    lead.delete(4)
    lead.step(ev.LogStartAdvanced(log_start_offset=4))
    lead.fetch_from(C, 4, 4)
    assert told(lead.step(ev.NodesChanged(live={A: 11, C: 13}))) == {}
    eligible = structs.replace(record(isr=(A,)), elr=(B,), partition_epoch=1)
    assert told(lead.step(ev.RecordChanged(versioned=Versioned(eligible, 2)))) == {}
    without = structs.replace(record(isr=(A, C)), partition_epoch=2)
    effects = lead.step(ev.RecordChanged(versioned=Versioned(without, 3)))
    assert told(effects) == {1: (ErrorCode.NONE, 4)}


def test_a_deletion_that_waits_is_answered_at_its_deadline_or_when_the_epoch_ends() -> None:
    lead = Deleting()
    lead.delete(4)
    lead.delete(5, request=2)
    lead.step(ev.LogStartAdvanced(log_start_offset=4))
    lead.step(ev.LogStartAdvanced(log_start_offset=5))
    lead.now = 5.0
    assert told(lead.step(ev.Tick())) == {
        1: (ErrorCode.REQUEST_TIMED_OUT, -1),
        2: (ErrorCode.REQUEST_TIMED_OUT, -1),
    }
    lead.step(ev.DeleteRecords(request_id=3, offset=6, deadline=99.0))
    assert told(lead.step(newer())) == {}
    assert told(lead.delete(7, request=4)) == {4: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}
    effects = lead.step(ev.LogStartAdvanced(log_start_offset=6))
    assert told(effects) == {3: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}
    assert told(lead.delete(7, request=5)) == {5: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}


def test_nobody_joins_who_still_holds_what_is_deleted() -> None:
    lead = Deleting()
    lead.step(ev.LogStartRaised(log_start_offset=4))
    assert proposals(lead.fetch_from(C, 10, 3)) == []
    assert lead.replica.leader is not None
    assert "deleted records below offset 4" in lead.replica.leader.why_out(C)
    assert len(proposals(lead.fetch_from(C, 10, 4))) == 1


def test_a_raised_log_start_is_news_to_followers_and_ends_reads_below_it() -> None:
    lead = Deleting()
    assert any(e == WAKE for e in lead.step(ev.LogStartRaised(log_start_offset=4)))
    lead.fetch_from(B, 10, 0)
    answer = lead.answer
    assert (answer.news, answer.log_start_offset) == (True, 4)
    lead.fetch_from(B, 10, 4)
    assert not lead.answer.news
    read = ev.Fetch(replica_id=-1, incarnation=0, leader_epoch=-1, fetch_offset=3, last_fetched_epoch=-1)
    answer = lead.ask(read)
    assert (answer.error, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 4)


def test_a_follower_copies_the_log_start_before_it_asks_on() -> None:
    replica = follower()
    effects = replica.tell(fetched(10, high_watermark=10, log_start_offset=6), 0.0)
    assert advanced(effects) == [6]
    assert not [e for e in effects if isinstance(e, fx.FetchNext)]
    effects = replica.tell(ev.LogStartAdvanced(log_start_offset=6), 0.0)
    (asked,) = [e for e in effects if isinstance(e, fx.FetchNext)]
    assert (asked.log_start_offset, asked.fetch_offset) == (6, 10)


def test_a_follower_deletes_only_what_it_knows_to_be_committed() -> None:
    replica = follower()
    assert advanced(replica.tell(fetched(10, high_watermark=5, log_start_offset=6), 0.0)) == [5]


def test_a_follower_whose_end_is_deleted_begins_again_inside_a_batch() -> None:
    replica = follower(end=2)
    out = fetched(2, error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=5)
    assert replica.tell(out, 0.0) == [fx.Truncate(partition=PARTITION, offset=5, restart=True)]
    effects = replica.tell(ev.Truncated(log_start_offset=5, log_end_offset=5, epochs=(), producers=()), 0.0)
    assert isinstance(effects[0], fx.FetchNext)
    assert (effects[0].fetch_offset, effects[0].last_fetched_epoch) == (5, -1)
    batch = BatchMeta(3, 5, 1, 100)
    (append,) = replica.tell(fetched(5, high_watermark=8, log_start_offset=5, batches=(batch,)), 0.0)
    assert isinstance(append, fx.Append)
    assert append.base_offset == 3
    replica.tell(ev.Appended(log_end_offset=8), 0.0)
    assert replica.log.epochs.entries == (EpochEntry(1, 5),)
    assert (replica.log.log_start_offset, replica.log.high_watermark) == (5, 8)


@pytest.mark.parametrize(("base", "count"), [(3, 2), (6, 2), (2, 1)])
def test_an_empty_log_takes_no_batch_that_does_not_hold_its_start(base: int, count: int) -> None:
    replica = follower(end=0)
    replica.tell(
        ev.Opened(log_start_offset=5, log_end_offset=5, high_watermark=5, epochs=(), producers=()), 0.0
    )
    effects = replica.tell(fetched(5, batches=(BatchMeta(base, count, 1, 100),)), 0.0)
    assert not [e for e in effects if isinstance(e, fx.Append)]


def test_what_the_leader_has_deleted_cannot_be_compared_so_none_of_it_is_kept() -> None:
    replica = follower(end=4)
    effects = replica.tell(fetched(4, diverging=EpochEnd(0, 2), log_start_offset=2), 0.0)
    assert effects == [fx.Truncate(partition=PARTITION, offset=2, restart=True)]
    replica = follower(end=4)
    effects = replica.tell(fetched(4, diverging=EpochEnd(0, 3), log_start_offset=2), 0.0)
    assert effects == [fx.Truncate(partition=PARTITION, offset=3)]


@pytest.mark.parametrize(("last_epoch", "diverges"), [(0, True), (1, False)])
def test_an_epoch_that_is_all_deleted_here_ends_nobody_knows_where(last_epoch: int, diverges: bool) -> None:
    lead = Deleting()
    lead.delete(-1)
    lead.step(ev.LogStartAdvanced(log_start_offset=10))
    ask = ev.Fetch(
        replica_id=B,
        incarnation=lead.replica.live[B],
        leader_epoch=1,
        fetch_offset=10,
        last_fetched_epoch=last_epoch,
    )
    answer = lead.ask(ask)
    assert (answer.diverging is not None) is diverges
    replica = follower(end=10)
    if answer.diverging is not None:
        effects = replica.tell(fetched(10, diverging=answer.diverging, log_start_offset=10), 0.0)
        assert effects == [fx.Truncate(partition=PARTITION, offset=10, restart=True)]


def test_a_report_that_a_truncation_has_overtaken_is_not_heeded() -> None:
    log = LogState.opened(0, 10, 10, (), ())
    assert not log.raise_start(11)
    assert log.raise_start(10)
    assert not log.raise_start(9)
    assert (log.log_start_offset, log.high_watermark) == (10, 10)


@given(st.lists(st.integers(0, 6), max_size=12).map(sorted), st.integers(0, 14))
def test_the_epochs_of_what_is_kept_are_kept(epochs: list[int], start: int) -> None:
    cache = EpochCache()
    for offset, epoch in enumerate(epochs):
        cache.assign(epoch, offset)
    cache.trim_start(min(start, len(epochs)))
    kept = {epoch: offset for offset, epoch in reversed(list(enumerate(epochs))) if offset >= start}
    if kept:
        assert dict(cache.entries) == kept
    else:
        assert [epoch for epoch, _ in cache.entries] == epochs[-1:]


def test_deleting_up_to_the_beginning_is_done_at_once() -> None:
    lead = Deleting()
    lead.fetch_from(C, 0, 0)
    assert told(lead.delete(0)) == {1: (ErrorCode.NONE, 0)}


NODES = st.sets(st.sampled_from((B, C)))
STARTS = st.integers(0, 9)


@given(NODES, NODES, NODES, NODES, STARTS, st.fixed_dictionaries({B: STARTS, C: STARTS}), STARTS)
def test_a_deletion_is_done_when_nobody_alive_or_electable_holds_it(
    live: set[int],
    isr: set[int],
    elr: set[int],
    have_fetched: set[int],
    own: int,
    starts: dict[int, int],
    admin_requested: int,
) -> None:
    lead = Lead((A, B, C))
    lead.append(10)
    for node in (B, C):
        lead.fetch(node, 10)
    lead.step(ev.LogStartRaised(log_start_offset=own))
    assert lead.replica.leader is not None
    for node, known in lead.replica.leader.followers.items():
        known.log_start_offset = starts[node] if node in have_fetched else -1
    members = (A, *sorted(isr))
    state = structs.replace(record(isr=members), elr=tuple(sorted(elr - isr)) if not isr else ())
    lead.step(ev.NodesChanged(live={A: 11, **{node: 10 + node for node in live}}))
    lead.step(ev.RecordChanged(versioned=Versioned(state, 2)))
    counted = live | set(members) | set(state.elr)
    holding = [own, *(starts[node] if node in have_fetched else -1 for node in counted - {A})]
    effects = lead.step(ev.DeleteRecords(request_id=1, offset=admin_requested, deadline=5.0))
    assert advanced(effects) == ([admin_requested] if admin_requested > own else [])
    done = told(effects) | told(lead.step(ev.LogStartAdvanced(log_start_offset=max(own, admin_requested))))
    low = min([max(own, admin_requested), *holding[1:]])
    if admin_requested > low:
        assert done == {}
    else:
        assert done.keys() == {1}
        error, answered = done[1]
        assert error == ErrorCode.NONE
        assert admin_requested <= answered <= low
