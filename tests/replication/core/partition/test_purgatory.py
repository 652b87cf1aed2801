"""Requests that wait leave in the order of what they wait for, then of their arrival."""

from __future__ import annotations

from insync.replication.core.broker.fetching.fetch_session import SessionCache
from insync.replication.core.partition.purgatory import Parked, ProducePurgatory


def test_whoever_waits_for_less_leaves_first_however_late_it_came() -> None:
    purgatory = ProducePurgatory()
    for request_id, end in ((1, 30), (2, 10), (3, 20), (4, 10)):
        purgatory.park(request_id=request_id, base_offset=0, end_offset=end, deadline=9.0, committed=True)
    assert not purgatory.committed(9)
    assert [each.request_id for each in purgatory.committed(20)] == [2, 4, 3]
    assert [each.request_id for each in purgatory.drain()] == [1]


def test_nobody_is_before_itself() -> None:
    one = Parked(5, 7, 0, 1.0)
    same = Parked(5, 7, 0, 1.0)
    assert not one < same and one < Parked(5, 8, 0, 0.0) and Parked(5, 8, 0, 0.0) < Parked(6, 1, 0, 0.0)


def test_a_session_may_be_ended_twice_and_leaves_nothing() -> None:
    cache: SessionCache[str, int] = SessionCache(2)
    session, _ = cache.begin({"a": 1}, 0.0)
    assert session is not None
    cache.end(session.id)
    assert len(cache) == 0 and not cache._used
    cache.end(session.id)
