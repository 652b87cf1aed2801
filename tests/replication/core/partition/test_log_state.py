"""What a replica knows of its log: in order whatever happens to it, and exact after each kind of change."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from insync.replication.core.partition.log_state import LogState
from insync.replication.core.types import NO_EPOCH, BatchMeta, EpochEntry


def opened(start: int, end: int, high_watermark: int, *epochs: tuple[int, int]) -> LogState:
    return LogState.opened(start, end, high_watermark, [EpochEntry(*epoch) for epoch in epochs], ())


OFFSETS = st.integers(0, 12)
STEPS: st.SearchStrategy[tuple[Any, ...]] = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 2)),
    st.tuples(st.just("written"), OFFSETS),
    st.tuples(st.just("learn"), OFFSETS),
    st.tuples(st.just("raise"), OFFSETS),
    st.tuples(st.just("truncate"), OFFSETS),
)


@hypothesis.given(OFFSETS, OFFSETS, OFFSETS, st.lists(STEPS, max_size=15))
def test_start_high_watermark_and_end_keep_their_order(
    start: int, length: int, hint: int, story: list[tuple[Any, ...]]
) -> None:
    """And each is what a model that knows nothing of the others says, kept between its neighbours."""
    log = opened(start, start + length, hint)
    waiting: list[int] = []
    epoch = 0
    for name, *what in story:
        before = (log.log_start_offset, log.high_watermark, log.log_end_offset)
        match name:
            case "append":
                epoch += what[1]
                log.expect([BatchMeta(log.next_offset, what[0], epoch, 10)])
                waiting.append(log.next_offset)
            case "written" if waiting:
                log.appended(waiting.pop(0))
            case "learn":
                expected = max(before[1], min(what[0], before[2]))
                assert log.learn_high_watermark(what[0]) == (expected != before[1])
                assert log.high_watermark == expected
            case "raise":
                # Retention deletes what is committed, though the news of that may come later.
                news = before[0] < what[0] <= before[2]
                assert log.raise_start(what[0]) == news
                assert log.log_start_offset == (what[0] if news else before[0])
            case "truncate" if not waiting:
                end = max(log.log_start_offset, min(what[0], log.log_end_offset))
                log = log.truncated(log.log_start_offset, end, log.epochs.entries, ())
                assert (log.log_end_offset, log.high_watermark) == (end, min(before[1], end))
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset <= log.next_offset
        assert log.outstanding == len(waiting)
        assert log.is_empty == (log.log_start_offset == log.next_offset)


def test_the_epochs_of_what_is_about_to_be_written_count_already() -> None:
    log = opened(0, 0, 0)
    log.expect([BatchMeta(0, 3, 1, 10), BatchMeta(3, 2, 2, 10)])
    assert log.epochs.entries == (EpochEntry(1, 0), EpochEntry(2, 3))
    assert (log.outstanding, log.next_offset, log.log_end_offset, log.last_epoch) == (1, 5, 0, NO_EPOCH)
    log.expect([BatchMeta(5, 1, -1, 10)], leader_epoch=4)
    assert log.epochs.latest == 4
    log.appended(5)
    assert (log.last_epoch, log.outstanding) == (2, 1)
    log.appended(6)
    assert (log.last_epoch, log.outstanding) == (4, 0)


def test_an_epoch_that_has_begun_and_has_no_record_is_not_that_of_the_last_one() -> None:
    assert opened(0, 5, 0, (1, 0), (2, 3), (3, 5)).last_epoch == 2
    assert opened(0, 6, 0, (1, 0), (2, 3), (3, 5)).last_epoch == 3
    assert opened(0, 0, 0, (3, 0)).last_epoch == NO_EPOCH


@pytest.mark.parametrize(
    ("cut", "restart", "least"), [(None, False, 8), (3, False, 3), (20, False, 8), (12, True, 0)]
)
def test_how_short_the_log_may_be_found_after_a_failure(cut: int | None, restart: bool, least: int) -> None:
    log = opened(0, 8, 0)
    if cut is not None:
        log.expect_cut(cut, restart=restart)
        assert log.outstanding == 1
    assert log.least_end == least


@pytest.mark.parametrize(("base", "start"), [(3, 5), (5, 5), (7, 5)])
def test_an_epoch_begins_where_its_first_batch_may_have_begun(base: int, start: int) -> None:
    """After the log start, and not past offsets that compaction took away before the batch."""
    log = opened(5, 5, 5)
    log.expect([BatchMeta(base, 4, 2, 10)])
    assert log.epochs.entries == (EpochEntry(2, start),)
    assert log.next_offset == base + 4
