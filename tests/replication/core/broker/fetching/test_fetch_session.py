"""A session's requests are worth as much as requests that repeat every open question."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from insync.replication.core.broker.fetching.fetch_session import (
    NEW_SESSION,
    FollowerSession,
    LeaderSession,
    SessionCache,
    SessionRequest,
)
from insync.replication.core.errors import ErrorCode

KEYS = st.integers(0, 4)
Pair = tuple[FollowerSession[int, object], LeaderSession[int, object]]


def begun(*keys: int) -> Pair:
    """A session that has begun, nothing answered yet but the request that began it."""
    follower: FollowerSession[int, object] = FollowerSession()
    for key in keys:
        follower.ask(key, f"first {key}")
    leader: LeaderSession[int, object] = LeaderSession(7)
    leader.begin(follower.request().questions)
    leader.answer([])
    assert follower.answered(7, []) == {}
    return follower, leader


def test_what_was_told_once_is_not_told_again() -> None:
    follower, leader = begun(1, 2)
    assert follower.request() == SessionRequest(7, 1, {}, ())
    follower.ask(3, "third")
    follower.withdraw(1)
    request = follower.request()
    assert (request.questions, request.withdrawn) == ({3: "third"}, (1,))
    assert leader.accept(request) == [3]
    assert leader.open == follower.open
    leader.answer([2])
    assert follower.answered(7, [2]) == {2: "first 2"}
    assert follower.request() == SessionRequest(7, 2, {}, ())


def test_a_request_that_was_given_up_is_told_again_with_the_next() -> None:
    follower, leader = begun(1)
    follower.ask(2, "second")
    follower.request()
    follower.ask(3, "third")
    assert leader.accept(follower.request()) == [2, 3]
    assert leader.open == follower.open


def test_the_questions_of_a_lost_answer_are_open_again() -> None:
    follower, leader = begun(1, 2)
    leader.accept(follower.request())
    leader.answer([1])
    assert 1 not in leader.open
    assert leader.accept(follower.request()) == [1]
    assert leader.open == follower.open


def test_a_session_outlives_any_number_of_lost_answers() -> None:
    follower, leader = begun(1, 2)
    for _ in range(3):
        assert leader.accept(follower.request()) is not None
        leader.answer([1])
    assert follower.answered(7, [1]) == {1: "first 1"}
    assert leader.accept(follower.request()) == []
    leader.answer([2])
    assert follower.answered(7, [2]) == {2: "first 2"}
    assert follower.request() == SessionRequest(7, 3, {}, ())
    assert leader.open == {}


def test_an_answer_to_what_was_asked_anew_meanwhile_is_none() -> None:
    follower, leader = begun(1)
    leader.accept(follower.request())
    follower.ask(1, "anew")
    leader.answer([1])
    assert follower.answered(7, [1]) == {}
    assert leader.accept(follower.request()) == [1]
    assert leader.open == follower.open == {1: "anew"}


@pytest.mark.parametrize("epoch", [0, 3])
def test_two_answers_that_one_side_does_not_know_of_end_the_session(epoch: int) -> None:
    follower, leader = begun(1)
    leader.accept(follower.request())
    leader.answer([])
    assert leader.accept(SessionRequest(7, epoch, {}, ())) is None
    follower.end()
    assert follower.request() == SessionRequest(0, NEW_SESSION, {1: "first 1"}, ())


def test_the_session_that_was_used_least_recently_gives_way() -> None:
    cache: SessionCache[int, object] = SessionCache(2)
    first, second = (_begun(cache, now=0.0) for _ in range(2))
    assert cache.find(first.id, 0.0) is first
    third, evicted = cache.begin({}, 0.0)
    assert evicted is second and third is not None
    assert cache.find(second.id, 0.0) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache) == 2
    assert len({first.id, second.id, third.id}) == 3
    cache.end(third.id)
    assert cache.find(third.id, 0.0) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_in_use_gives_way_to_nobody() -> None:
    cache: SessionCache[int, object] = SessionCache(1, idle=120.0)
    session = _begun(cache, now=1000.0)
    assert cache.begin({}, 1119.9) == (None, None)
    assert cache.find(session.id, 1119.9) is session
    assert cache.begin({}, 1239.8) == (None, None)
    other, evicted = cache.begin({}, 1239.9)
    assert other is not None and evicted is session
    cache.end(other.id)
    _begun(cache, now=1240.0)


def test_a_session_is_of_the_connection_that_began_it() -> None:
    cache: SessionCache[int, object] = SessionCache(2, b"seed", idle=10.0)
    owner, stranger = object(), object()
    session, _ = cache.begin({1: "first"}, 0.0, owner)
    assert session is not None
    for someone in (stranger, None):
        assert cache.find(session.id, 5.0, someone) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    cache.begin({}, 0.0, stranger)
    other, evicted = cache.begin({}, 10.0, stranger)
    assert other is not None and evicted is session, "what a stranger asked has not kept it in use"
    assert cache.find(other.id, 10.0, stranger) is other


def test_ids_of_sessions_are_drawn_from_the_seed() -> None:
    def ids(seed: bytes) -> list[int]:
        cache: SessionCache[int, object] = SessionCache(50, seed)
        return [_begun(cache, now=0.0).id for _ in range(50)]

    assert ids(b"one") == ids(b"one")
    assert not set(ids(b"one")) & set(ids(b"two"))
    drawn = ids(b"one")
    assert all(0 < each < 2**63 for each in drawn)
    assert max(drawn) - min(drawn) > 2**60, "one id says nothing of the next"


def _begun(cache: SessionCache[int, object], now: float) -> LeaderSession[int, object]:
    session, evicted = cache.begin({}, now)
    assert session is not None and evicted is None
    return session


class Wire:
    """Both ends, and between them messages that are lost and doubled; a model knows what is open.

    `most`: how many changes a request tells at most; None: all.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.follower: FollowerSession[int, object] = FollowerSession()
        self.cache: SessionCache[int, object] = SessionCache(1)
        self.model: dict[int, object] = {}
        self.earlier: list[SessionRequest[int, object]] = []
        self.count = 0

    def ask(self, key: int) -> None:
        self.count += 1
        question = f"{key} for the {self.count}th time"
        self.follower.ask(key, question)
        self.model[key] = question

    def withdraw(self, key: int) -> None:
        self.follower.withdraw(key)
        self.model.pop(key, None)

    def exchange(self, arrives: bool, comes_back: bool, keys: set[int], anew: set[int]) -> None:
        """One request; `keys` are answered if they are open. `anew` is asked while the answer is on its way."""
        request = self.follower.request(self.most)
        assert self.most is None or len(request.questions) + len(request.withdrawn) <= self.most
        is_behind = self.follower.is_behind
        self.earlier.append(request)
        if not arrives:
            return
        session = self.receive(request)
        assert session is not None, "requests and answers that get lost end no session"
        assert is_behind or session.open == self.model, "the leader knows exactly what is open"
        answered = [key for key in keys if key in session.open]
        told = {key: session.open[key] for key in answered}
        session.answer(answered)
        for key in anew:
            self.ask(key)
        if comes_back:
            found = self.follower.answered(session.id, answered)
            # Of what has been asked otherwise since, or withdrawn, an answer tells nothing.
            assert found == {
                key: told[key] for key in answered if key not in anew and self.model.get(key) == told[key]
            }
            for key in found:
                del self.model[key]

    def receive(self, request: SessionRequest[int, object]) -> LeaderSession[int, object] | None:
        if request.session_epoch == NEW_SESSION and request.session_id == 0:
            return self.cache.begin(request.questions, 0.0)[0]
        session = self.cache.find(request.session_id, 0.0)
        if isinstance(session, ErrorCode) or session.accept(request) is None:
            return None
        return session

    def repeat(self, which: int) -> None:
        """A request that was answered, or given up, arrives again: at worst it ends the session."""
        if self.earlier:
            session = self.receive(self.earlier[which % len(self.earlier)])
            if session is not None:
                session.answer([])
            self.follower.end()


STEPS: st.SearchStrategy[tuple[Any, ...]] = st.one_of(
    st.tuples(st.just("ask"), KEYS),
    st.tuples(st.just("withdraw"), KEYS),
    st.tuples(st.just("exchange"), st.booleans(), st.booleans(), st.sets(KEYS), st.sets(KEYS, max_size=2)),
    st.tuples(st.just("exchange"), st.just(True), st.just(True), st.sets(KEYS), st.just(set())),
    st.tuples(st.just("repeat"), st.integers(0, 9)),
)


@hypothesis.settings(deadline=None, max_examples=400)
@hypothesis.given(st.lists(STEPS, max_size=30), st.sampled_from([None, 1, 2]))
def test_the_leader_knows_what_is_open_whatever_is_lost(
    steps: list[tuple[Any, ...]], most: int | None
) -> None:
    wire = Wire(most)
    for name, *arguments in steps:
        getattr(wire, name)(*arguments)
        assert wire.follower.open == wire.model
    for _ in range(6):
        wire.exchange(True, True, set(), set())
    assert not wire.follower.is_behind, "every request that is answered tells more of it"


def test_changes_are_told_in_portions_the_oldest_first() -> None:
    follower, leader = begun(1, 2, 3)
    follower.ask(4, "fourth")
    follower.withdraw(2)
    follower.ask(5, "fifth")
    assert follower.request(2) == SessionRequest(7, 1, {4: "fourth"}, (2,))
    assert (follower.is_behind, follower.told) == (True, 2)
    leader.accept(follower.request(2))
    leader.answer([])
    follower.answered(7, [])
    assert follower.request(2) == SessionRequest(7, 2, {5: "fifth"}, ())
    assert not follower.is_behind
