"""Fetch sessions against a client that names everything each time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.plugins.kafka.core import sessions as module
from insync.plugins.kafka.core.sessions import Sessions, Slots, UnknownSessionError, WrongEpochError
from insync.plugins.kafka.protocol import MAX_ELEMENTS

KEYS = st.sampled_from("abcdef")


def new(limit: int = 1000) -> Sessions[str, int]:
    return Sessions(Slots(Random(1), limit=limit))


@settings(max_examples=200)
@given(
    st.dictionaries(KEYS, st.integers(), min_size=1),
    st.lists(st.tuples(st.dictionaries(KEYS, st.integers()), st.sets(KEYS))),
)
def test_a_session_knows_all_that_was_asked_and_not_forgotten(
    first: dict[str, int], requests: list[tuple[dict[str, int], set[str]]]
) -> None:
    sessions = new()
    session = sessions.begin(first)
    assert session is not None
    everything = dict(first)
    for epoch, (changed, forgotten) in enumerate(requests, 1):
        for key in forgotten:
            everything.pop(key, None)
        everything |= changed
        found = sessions.go_on(session.session_id, epoch, changed, forgotten)
        assert found.asked == everything


def test_of_what_is_forgotten_nothing_counts_as_told() -> None:
    """Whoever asks for it again is told where it begins and ends, though that is as it was."""
    sessions = new()
    session = sessions.begin({"a": 1, "b": 2})
    assert session is not None
    session.told.update(a=(3, 3, 0), b=(4, 4, 0))
    found = sessions.go_on(session.session_id, 1, {}, ["a"])
    assert found.told == {"b": (4, 4, 0)}
    assert sessions.go_on(session.session_id, 2, {"a": 1}, []).told == {"b": (4, 4, 0)}


def test_another_epoch_or_id_is_refused_and_changes_nothing() -> None:
    sessions = new()
    session = sessions.begin({"a": 1})
    assert session is not None
    for epoch in (0, 2, -1):
        with pytest.raises(WrongEpochError):
            sessions.go_on(session.session_id, epoch, {"b": 1}, ["a"])
    with pytest.raises(UnknownSessionError):
        sessions.go_on(session.session_id + 1, 1, {}, [])
    assert sessions.go_on(session.session_id, 1, {}, []).asked == {"a": 1}
    sessions.end(session.session_id)
    with pytest.raises(UnknownSessionError):
        sessions.go_on(session.session_id, 2, {}, [])


def test_slots_are_bounded_and_given_back() -> None:
    slots = Slots(Random(1), limit=2)
    mine, others = Sessions[str, int](slots), Sessions[str, int](slots)
    assert mine.begin({"a": 1}) and others.begin({"a": 1})
    assert mine.begin({"a": 1}) is None
    others.end_all()
    assert mine.begin({"a": 1})
    assert mine.begin({}) is None, "a session about nothing"


def test_one_connection_keeps_few_sessions() -> None:
    sessions = new()
    for _ in range(module.MOST_OF_A_CLIENT + 5):
        assert sessions.begin({"a": 1})
    assert len(sessions) == module.MOST_OF_A_CLIENT


def test_epochs_go_on_from_one_after_the_greatest() -> None:
    sessions = new()
    session = sessions.begin({"a": 1})
    assert session is not None
    session.epoch = 2**31 - 1
    sessions.go_on(session.session_id, 2**31 - 1, {}, [])
    sessions.go_on(session.session_id, 1, {}, [])


def test_sessions_have_so_many_partitions_and_no_more() -> None:
    slots = Slots(Random(1), most_partitions=10)
    one, other = Sessions[int, int](slots), Sessions[int, int](slots)
    session = one.begin(dict.fromkeys(range(6), 0))
    assert session is not None
    assert other.begin(dict.fromkeys(range(5), 0)) is None, "it would have more than there is room for"
    second = other.begin(dict.fromkeys(range(4), 0))
    assert second is not None
    one.go_on(session.session_id, 1, {0: 1, 20: 0}, [1])
    assert slots.partitions == 10
    with pytest.raises(UnknownSessionError):
        other.go_on(second.session_id, 1, {99: 0}, ())
    assert (slots.partitions, slots.used, len(other)) == (6, 1, 0)
    one.end_all()
    assert (slots.partitions, slots.used) == (0, 0)


def test_a_session_of_no_partition_is_none() -> None:
    sessions = new()
    assert sessions.begin({}) is None and not sessions.ids


def test_a_session_has_as_many_partitions_as_a_request_can_name() -> None:
    """Each request of it, however small, costs the node all of them."""
    slots = Slots(Random(1))
    sessions = Sessions[int, int](slots)
    session = sessions.begin(dict.fromkeys(range(module.MOST_OF_A_SESSION), 0))
    assert session is not None and module.MOST_OF_A_SESSION == MAX_ELEMENTS
    sessions.go_on(session.session_id, 1, {-1: 0}, [0])
    with pytest.raises(UnknownSessionError):
        sessions.go_on(session.session_id, 2, {-2: 0}, [])
    assert (slots.partitions, slots.used, len(sessions)) == (0, 0, 0)
