"""Which offsets may be committed, and when."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from insync.replication.core.types import PartitionId
from insync.replication.listeners._progress import AckMode, Commits, Progress

AT, OTHER = PartitionId("t", 0), PartitionId("t", 1)


class Handled:
    """`Commits` of which records at two partitions were handed out; one is done at a time."""

    def __init__(self, mode: AckMode) -> None:
        self.commits = Commits(mode, count=2, seconds=5.0, now=0.0)
        # Compaction has left gaps.
        self.progress = {
            AT: self.commits.handed_out(AT, [3, 4, 7]),
            OTHER: self.commits.handed_out(OTHER, [0]),
        }

    def done(self, at: PartitionId, offset: int, now: float) -> dict[PartitionId, int]:
        return self.commits.done(self.progress[at], [offset], now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.commits, name)


commits = Handled


@given(st.permutations(range(12)), st.data())
def test_no_offset_is_committed_above_a_record_that_is_not_done(
    order: list[int], data: st.DataObject
) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 50), min_size=12, max_size=12)))
    progress, done = Progress(AT), set[int]()
    progress.handed_out(offsets)
    for index in order:
        progress.done([offsets[index]])
        progress.done([offsets[index], 51])
        done.add(offsets[index])
        reached = [offset for offset in offsets if progress.next is not None and offset < progress.next]
        assert set(reached) <= done
        left = [offset for offset in offsets if offset not in done]
        assert len(reached) == len(offsets) if not left else offsets.index(left[0]) == len(reached)
    assert progress.next == offsets[-1] + 1


def test_record_commits_each_and_batch_all_at_its_end() -> None:
    each, batch = commits(AckMode.RECORD), commits(AckMode.BATCH)
    assert each.done(AT, 3, 0.0) == {AT: 4}
    assert each.done(AT, 7, 0.0) == {}, "4 is not done"
    assert each.done(AT, 4, 0.0) == {AT: 8}
    assert [batch.done(AT, offset, 0.0) for offset in (3, 4, 7)] == [{}, {}, {}]
    assert batch.done(OTHER, 0, 0.0) == {}
    assert batch.ended(AT, 0.0) == {AT: 8} and batch.ended(AT, 0.0) == {}
    assert batch.ended(OTHER, 0.0) == {OTHER: 1}


def test_count_and_time() -> None:
    count, time, both = commits(AckMode.COUNT), commits(AckMode.TIME), commits(AckMode.COUNT_TIME)
    assert count.done(AT, 3, 99.0) == {} and count.tick(99.0) == {}
    assert count.done(OTHER, 0, 99.0) == {AT: 4, OTHER: 1}
    assert time.done(AT, 3, 4.9) == {} and time.done(AT, 4, 4.9) == {}
    assert time.tick(5.0) == {AT: 5} and time.tick(9.9) == {}
    assert time.done(AT, 7, 10.0) == {AT: 8}
    assert both.done(AT, 3, 1.0) == {} and both.tick(5.0) == {AT: 4}
    assert both.done(AT, 4, 6.0) == {} and both.done(AT, 7, 6.0) == {AT: 8}


def test_manual_modes_commit_what_is_acknowledged() -> None:
    manual, immediate = commits(AckMode.MANUAL), commits(AckMode.MANUAL_IMMEDIATE)
    assert manual.done(AT, 3, 0.0) == {} and manual.ended(AT, 0.0) == {AT: 4}
    assert immediate.done(AT, 4, 0.0) == {} and immediate.done(AT, 3, 0.0) == {AT: 5}


def test_a_commit_that_failed_is_due_again_and_what_is_lost_never() -> None:
    each = commits(AckMode.RECORD)
    first = each.done(AT, 3, 0.0)
    each.failed(first)
    assert each.take(0.0) == first and each.take(0.0) == {}
    each.done(OTHER, 0, 0.0)
    each.forget([AT])
    assert each.done(AT, 4, 0.0) == {} and each.take(0.0) == {}


def test_a_commit_that_failed_is_due_with_the_next_tick_also_when_nothing_more_comes() -> None:
    each = commits(AckMode.RECORD)
    each.failed(each.done(AT, 3, 0.0))
    assert each.tick(0.0) == {AT: 4} and each.tick(0.0) == {}


def test_a_commit_that_failed_behind_a_later_one_is_not_due_again() -> None:
    each = commits(AckMode.RECORD)
    first, second = each.done(AT, 3, 0.0), each.done(AT, 4, 0.0)
    each.failed(first)
    assert second == {AT: 5} and each.progress[AT].committed == 5
    assert each.tick(0.0) == {} and each.take(0.0) == {}


def test_a_commit_that_failed_is_forgotten_with_its_partition() -> None:
    """A tick commits nothing on its account, and the count of what is done goes on."""
    counted = commits(AckMode.COUNT)
    counted.done(AT, 3, 0.0)
    counted.failed(counted.take(0.0))
    counted.forget([AT])
    counted.handed_out(OTHER, [1])
    assert counted.done(OTHER, 0, 0.0) == {} and counted.tick(0.0) == {}
    assert counted.done(OTHER, 1, 0.0) == {OTHER: 2}


def test_what_is_done_of_a_former_assignment_does_not_count() -> None:
    """A handler ends late, when its partition was lost and has come back."""
    counted = commits(AckMode.COUNT)
    late = counted.progress[AT]
    counted.forget([AT])
    again = counted.handed_out(AT, [3, 4])
    assert counted.commits.done(late, [3], 0.0) == {}
    assert counted.commits.done(again, [3], 0.0) == {}
    assert counted.commits.done(again, [4], 0.0) == {AT: 5}


def test_what_was_acknowledged_late_is_due_with_the_next_tick() -> None:
    manual = commits(AckMode.MANUAL)
    assert manual.ended(AT, 0.0) == {}
    manual.done(AT, 3, 0.0)
    assert manual.tick(0.0) == {AT: 4}


def test_an_acknowledgement_from_before_a_partition_was_lost_counts_for_nothing() -> None:
    each = commits(AckMode.MANUAL_IMMEDIATE)
    each.forget([AT])
    each.commits.handed_out(AT, [3, 4])
    assert each.done(AT, 3, 0.0) == {}


def test_modes_that_count_handle_no_more_than_may_be_done_before_a_commit() -> None:
    count, record, batch = commits(AckMode.COUNT), commits(AckMode.RECORD), commits(AckMode.BATCH)
    assert (count.room, record.room) == (2, 1) and batch.room > 1000
    count.done(AT, 3, 0.0)
    assert count.room == 1
