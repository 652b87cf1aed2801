"""The check of histories notices each way in which one can be wrong, and nothing in a right one."""

from __future__ import annotations

import pytest

from .history import History, Replica, judge, slowest
from .load import Load

PLACE = ("safe", 0)
RECORDS: Replica = [(offset, b"a:%d" % offset) for offset in range(10)]


def right() -> History:
    history = History()
    for offset, value in RECORDS[:8]:
        history.ack(PLACE, offset, value, 1.0)
    for offset, value in RECORDS:
        history.see(PLACE, offset, value, offset)
    return history


def promises(history: History, *replicas: Replica) -> set[str]:
    verdict = judge(history, {PLACE: dict(enumerate(replicas, 1))})
    return {violation.promise for violation in verdict.violations}


def test_a_right_history_passes() -> None:
    verdict = judge(right(), {PLACE: {1: RECORDS, 2: list(RECORDS)}})
    assert (verdict.lost, verdict.duplicated, verdict.violations) == (0, 0, [])


@pytest.mark.parametrize(
    ("replica", "promise"),
    [
        (RECORDS[:-1], "replicas are equal"),
        ([*RECORDS[:5], (5, b"b:5"), *RECORDS[6:]], "replicas are equal"),
        ([*RECORDS[:5], *RECORDS[6:]], "offsets are contiguous"),
    ],
)
def test_replicas_that_differ(replica: Replica, promise: str) -> None:
    assert promise in promises(right(), RECORDS, replica)


def test_what_is_acknowledged_and_gone_is_counted() -> None:
    short = RECORDS[:6]
    verdict = judge(right(), {PLACE: {1: short, 2: short}})
    assert verdict.lost == 2
    assert {violation.promise for violation in verdict.violations} == {
        "what is acknowledged stays",
        "what consumers saw stays",
    }


def test_a_partition_that_is_gone_is_lost() -> None:
    assert judge(right(), {}).lost == 8


def test_an_offset_with_other_content() -> None:
    other: Replica = [*RECORDS[:9], (9, b"a:99")]
    assert promises(right(), other, other) == {"what consumers saw stays"}


def test_a_record_that_is_there_twice() -> None:
    again: Replica = [*RECORDS, (10, b"a:4")]
    verdict = judge(right(), {PLACE: {1: again, 2: again}})
    assert verdict.duplicated == 1


def test_records_in_another_order() -> None:
    swapped: Replica = [*RECORDS[:8], (8, b"a:9"), (9, b"a:8")]
    history = History()
    history.ack(PLACE, 0, b"a:0", 1.0)
    assert promises(history, swapped) == {"idempotent writers' records are there once and in order"}


def test_an_offset_that_is_acknowledged_twice() -> None:
    history = right()
    history.ack(PLACE, 3, b"a:77", 2.0)
    assert "an offset is acknowledged once" in promises(history, RECORDS)


def test_consumers_that_see_another_record_or_skip_one() -> None:
    history = right()
    history.see(PLACE, 3, b"a:77", 3)
    assert "an offset keeps its record" in promises(history, RECORDS)
    history = right()
    history.see(PLACE, 9, b"a:9", 8)
    assert "consumers skip and repeat nothing" in promises(history, RECORDS)


def test_readers_end_when_they_have_all_that_is_acknowledged() -> None:
    load = Load([], right(), writers=1)
    assert not load.is_through({PLACE: 10})  # a writer may be acknowledged more
    load.writers = 0
    assert load.is_through({PLACE: 8})
    assert not load.is_through({PLACE: 7})
    assert load.is_through({("safe", 1): 0})
    load.history.unread(PLACE, "a reader came to 7")
    assert promises(load.history, RECORDS) == {"consumers read all that is acknowledged"}
    assert load.is_through({PLACE: 7})


def test_recovery_counts_the_last_place() -> None:
    places = [("safe", 0), ("safe", 1)]
    assert slowest({places[0]: 5.0}, places, 4.0) is None
    assert slowest({places[0]: 5.0, places[1]: 3.0}, places, 4.0) is None
    assert slowest({places[0]: 5.0, places[1]: 6.5}, places, 4.0) == 2.5
