"""What a node asks of the leaders that it follows, and when."""

from __future__ import annotations

import attrs
import pytest
from msgspec import structs

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.broker import effects as fx
from insync.replication.core.broker import events as ev
from insync.replication.core.broker.fetching.channels import LONGEST_CONNECT_TIMEOUT
from insync.replication.core.broker.fetching.following import (
    DOUBT,
    HANDED_OVER,
    LONGEST_PAUSE,
    SETTLE_TIMEOUT,
)
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as partition_fx
from insync.replication.core.types import PartitionId
from insync.transport import Limits

from ..desk import SETTINGS, Desk, Info, Payload, led_by, named, node, result

LEADER = 2
MAX_NAME = 249
"""The longest name that a topic may have."""
ZERO, ONE, TWO = (PartitionId("t", number) for number in range(3))
BACKOFF = SETTINGS.replica_fetch_backoff


def asking(*partitions: PartitionId) -> tuple[Desk, fx.Ask]:
    """A node with a fetch under way about all of these."""
    desk = Desk(LEADER)
    desk.follow(LEADER, *partitions)
    desk.connect()
    return desk, desk.one(fx.Ask)


def in_session(*partitions: PartitionId) -> tuple[Desk, fx.Ask]:
    """The same with a fetch that goes on with a session, and names nothing."""
    desk, ask = asking(*partitions)
    desk.answer(ask)
    assert named(desk.request) == set()
    return desk, desk.one(fx.Ask)


def test_one_fetch_asks_for_every_partition_of_a_leader() -> None:
    desk = Desk(LEADER)
    desk.follow(LEADER, ZERO, ONE, TWO)
    assert desk.one(fx.Dial).endpoints == ("tcp://2:1",)
    request = desk.connect()
    assert named(request) == {0, 1, 2}
    assert (request.replica_id, request.incarnation, request.session_epoch) == (1, 7, 0)
    assert request.max_wait_ms == 500
    assert request.max_bytes == SETTINGS.replica_fetch_response_max_bytes


def test_each_leader_has_a_connection_of_its_own() -> None:
    desk = Desk(LEADER, 3)
    desk.follow(LEADER, ZERO)
    first = desk.one(fx.Dial)
    desk.follow(3, ONE)
    second = desk.one(fx.Dial)
    assert (first.peer, second.peer) == (LEADER, 3)
    desk.tell(ev.Connected(dial=second.dial, connection="b"))
    assert (desk.one(fx.Ask).connection, named(desk.request)) == ("b", {1})
    desk.tell(ev.Connected(dial=first.dial, connection="a"))
    assert (desk.one(fx.Ask).connection, named(desk.request)) == ("a", {0})


def test_what_arrives_is_appended_and_the_next_fetch_waits_for_it() -> None:
    desk, ask = asking(ZERO, ONE)
    desk.answer(
        ask,
        result(ZERO, size=10),
        result(ONE, size=20),
        payload=Payload(30, {0: [Info(base_offset=0)], 10: [Info(base_offset=0, size_bytes=20)]}),
    )
    assert [job.partition for job in desk.jobs] == [ZERO, ONE]
    assert not desk.all(fx.Ask)
    desk.written(ZERO)
    assert not desk.all(fx.Ask), "the append of the other is not done"
    desk.written(ONE)
    assert {each.partition: each.fetch_offset for each in desk.request.partitions} == {0: 1, 1: 1}


def test_a_slow_append_does_not_hold_up_the_others_for_long() -> None:
    desk, ask = asking(ZERO, ONE)
    desk.answer(
        ask,
        result(ZERO, size=10),
        result(ONE, size=10),
        payload=Payload(20, {0: [Info(base_offset=0)], 10: [Info(base_offset=0)]}),
    )
    desk.written(ZERO)
    assert not desk.wait(SETTLE_TIMEOUT / 2)
    desk.wait(SETTLE_TIMEOUT)
    assert named(desk.request) == {0}


def test_a_slow_append_is_waited_for_each_time() -> None:
    desk, ask = asking(ZERO, ONE)
    for offset in range(3):
        batch = Info(base_offset=offset)
        payload = Payload(20, {0: [batch], 10: [Info(base_offset=0)]} if not offset else {0: [batch]})
        results = [result(ZERO, size=10), result(ONE, size=10)] if not offset else [result(ZERO, size=10)]
        desk.answer(ask, *results, payload=payload)
        desk.written(ZERO)
        assert not desk.all(fx.Ask)
        desk.wait(SETTLE_TIMEOUT)
        ask = desk.one(fx.Ask)
        assert [each.fetch_offset for each in desk.request.partitions] == [offset + 1]


def test_a_parked_fetch_is_given_up_for_a_new_question_and_its_answer_ignored() -> None:
    desk, ask = in_session(ZERO)
    desk.follow(LEADER, ONE)
    assert desk.one(fx.GiveUp).question == ask.question
    assert named(desk.request) == {1}
    late = desk.answer(ask, result(ZERO, size=10), payload=Payload(10, {0: [Info(base_offset=0)]}))
    assert not late, "nobody waits for that answer"


def test_nothing_is_under_way_when_nobody_wants_anything() -> None:
    desk, ask = in_session(ZERO)
    desk.record(led_by(1, ZERO, epoch=2, version=2))
    assert desk.one(fx.GiveUp).question == ask.question
    assert not desk.all(fx.Ask)


def test_a_partition_that_changes_leaders_is_asked_about_once() -> None:
    desk, ask = in_session(ZERO, ONE)
    desk.ctx.view = attrs.evolve(desk.ctx.view, nodes={each: node(each) for each in (1, 2, 3)})
    desk.record(led_by(3, ZERO, epoch=2, version=2))
    assert desk.one(fx.Dial).peer == 3
    assert desk.following.asked == {ZERO: 3, ONE: LEADER}
    desk.answer(ask, result(ZERO, size=10), payload=Payload(10, {0: [Info(base_offset=0)]}))
    assert not desk.jobs, "the former leader answers in vain"
    assert [(each.topic, each.partition) for each in desk.request.forgotten] == [("t", 0)]


def test_a_replica_that_asks_another_leader_has_withdrawn_from_the_first() -> None:
    desk, _ = asking(ZERO)
    question = structs.replace(desk.following.questions(LEADER)[ZERO], leader=3)
    with pytest.raises(AssertionError, match="asks two leaders"):
        desk.following.want(ZERO, question)


def test_a_question_of_an_earlier_epoch_is_answered_in_vain() -> None:
    desk, ask = asking(ZERO)
    desk.record(led_by(LEADER, ZERO, epoch=2, version=2))
    assert desk.one(fx.GiveUp).question == ask.question
    second = desk.one(fx.Ask)
    assert [each.leader_epoch for each in desk.request.partitions] == [2]
    desk.answer(ask, result(ZERO, size=10), payload=Payload(10, {0: [Info(base_offset=0)]}))
    assert not desk.jobs
    desk.answer(second, result(ZERO, size=10), payload=Payload(10, {0: [Info(base_offset=0)]}))
    assert [job.partition for job in desk.jobs] == [ZERO]


# What a peer may do wrong


def test_a_damaged_batch_costs_its_partition_alone() -> None:
    desk, ask = asking(ZERO, ONE)
    results = result(ZERO, size=10), result(ONE, size=10)
    rotten = Payload(20, {0: "the CRC does not match", 10: [Info(base_offset=0)]})
    desk.answer(ask, *results, payload=rotten)
    assert [job.partition for job in desk.jobs] == [ONE]
    assert desk.one(fx.PartitionDamaged).reason == "the CRC does not match"
    assert not desk.all(fx.HangUp) and not desk.all(fx.PeerFailing)
    desk.written(ONE)
    second = desk.one(fx.Ask)
    assert named(desk.request) == {1}
    assert not desk.wait(BACKOFF - 0.01)
    desk.wait(0.011)
    assert desk.one(fx.GiveUp).question == second.question
    assert named(desk.request) == {0, 1}, "what was given up is told again"
    assert desk.following.damaged == {ZERO: "the CRC does not match"}


def test_damage_is_told_once_and_over_when_the_batch_is_sound() -> None:
    desk, ask = asking(ZERO)
    for attempt in range(3):
        desk.answer(ask, result(ZERO, size=10), payload=Payload(10, {0: "the CRC does not match"}))
        assert len(desk.all(fx.PartitionDamaged)) == (attempt == 0)
        desk.wait(BACKOFF)
        ask = desk.one(fx.Ask)
    desk.answer(ask, result(ZERO, size=10), payload=Payload(10, {0: [Info(base_offset=0)]}))
    assert not desk.following.damaged
    assert len(desk.jobs) == 1


@pytest.mark.parametrize("size", [-1, 11])
def test_sizes_that_do_not_add_up_cost_the_connection(size: int) -> None:
    desk, ask = asking(ZERO, ONE)
    desk.answer(
        ask,
        result(ZERO, size=10),
        result(ONE, size=size),
        payload=Payload(20, {0: [Info(base_offset=0)], 10: [Info(base_offset=0, size_bytes=11)]}),
    )
    assert desk.one(fx.HangUp).connection == "c"
    assert desk.one(fx.PeerFailing).malformed
    assert not desk.jobs, "nothing of such an answer is believed"
    assert not desk.wait(BACKOFF / 2)
    desk.wait(BACKOFF)
    assert named(desk.connect("d")) == {0, 1}


def test_an_answer_that_cannot_be_decoded_costs_the_connection() -> None:
    desk, ask = asking(ZERO)
    desk.tell(ev.AskFailed(question=ask.question, reason="no such field", malformed=True))
    assert desk.one(fx.HangUp).connection == "c"
    assert desk.one(fx.PeerFailing).malformed


def test_a_lost_answer_costs_a_pause_and_no_connection() -> None:
    desk, ask = asking(ZERO, ONE)
    desk.tell(ev.AskFailed(question=ask.question, reason="no answer within 30 s"))
    assert not desk.all(fx.HangUp)
    assert not desk.wait(BACKOFF - 0.01)
    desk.wait(0.011)
    assert (named(desk.request), desk.request.session_epoch) == ({0, 1}, 0)


def test_a_failing_peer_is_told_of_once_until_it_answers() -> None:
    desk, ask = asking(ZERO)
    told = []
    for _ in range(3):
        desk.tell(ev.AskFailed(question=ask.question, reason="lost"))
        told.append(len(desk.all(fx.PeerFailing)))
        desk.wait(BACKOFF)
        ask = desk.one(fx.Ask)
    assert told == [1, 0, 0]
    desk.answer(ask)
    desk.tell(ev.AskFailed(question=desk.one(fx.Ask).question, reason="lost"))
    assert len(desk.all(fx.PeerFailing)) == 1


def test_a_leader_whose_connection_ends_is_in_doubt_for_a_moment_or_until_it_answers() -> None:
    desk, _ = asking(ZERO)
    following = desk.following
    assert not following.doubted(desk.ctx.now)
    desk.tell(ev.PeerDisconnected(connection="c", reason="reset"))
    since = desk.ctx.now
    assert following.doubted(since) == {LEADER}
    # No other failure makes the time longer: clients are not kept from a leader that this node alone cannot reach.
    desk.wait(BACKOFF)
    desk.tell(ev.DialFailed(dial=desk.one(fx.Dial).dial, reason="no answer"))
    assert following.doubted(since + DOUBT - 0.01) == {LEADER}
    assert not following.doubted(since + DOUBT)
    desk.wait(BACKOFF)
    desk.connect("d")
    assert following.doubted(since + DOUBT - 0.01) == {LEADER}, "it may still not answer"
    desk.answer(desk.one(fx.Ask))
    assert not following.doubted(since)


def test_a_leader_that_nothing_is_fetched_from_any_more_is_not_in_doubt() -> None:
    desk, ask = asking(ZERO)
    desk.answer(ask, result(ZERO, size=10), payload=Payload(10, {0: [Info(base_offset=0)]}))
    desk.written(ZERO)
    assert [each.fetch_offset for each in desk.request.partitions] == [1]
    desk.tell(ev.PeerDisconnected(connection="c", reason="reset"))
    desk.record(led_by(1, ZERO, epoch=2, version=2))
    assert not desk.following.doubted(desk.ctx.now)


def test_an_answer_about_what_was_not_asked_changes_nothing() -> None:
    desk, ask = asking(ZERO)
    stranger = PartitionId("other", 0)
    desk.answer(ask, result(stranger, size=10), payload=Payload(10, {0: [Info(base_offset=0)]}))
    assert not desk.jobs
    assert named(desk.request) == set()


def test_an_error_of_a_later_version_is_an_error() -> None:
    desk, ask = asking(ZERO)
    desk.answer(ask, result(ZERO, error=9999))
    assert not desk.all(fx.Ask), "nothing is open: the replica rests"
    desk.wait(BACKOFF)
    assert named(desk.request) == {0}


def test_a_session_that_is_over_is_begun_again_at_once() -> None:
    desk, ask = in_session(ZERO, ONE)
    error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    over = m.FetchResponse(partitions=[], error=error)
    desk.tell(ev.Answered(question=ask.question, message=over, payload=Payload()))
    assert (named(desk.request), desk.request.session_epoch) == ({0, 1}, 0)


def test_a_leader_that_refuses_every_session_is_asked_with_pauses() -> None:
    desk, ask = asking(ZERO)
    refusal = m.FetchResponse(partitions=[], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    for _ in range(3):
        desk.tell(ev.Answered(question=ask.question, message=refusal, payload=Payload()))
        assert not desk.all(fx.Ask), "asked at once, it would refuse as fast as messages travel"
        desk.wait(BACKOFF)
        ask = desk.one(fx.Ask)


def test_a_partition_that_is_refused_again_and_again_asks_less_and_less_often() -> None:
    desk, ask = asking(ZERO)
    pauses = []
    for _ in range(6):
        refused = m.FetchResult(
            topic=ZERO.topic, partition=ZERO.partition, error=ErrorCode.KAFKA_STORAGE_ERROR, leader_epoch=1
        )
        response = m.FetchResponse(partitions=[refused], session_id=7)
        desk.tell(ev.Answered(question=ask.question, message=response, payload=Payload()))
        pause = 0.0
        while not desk.all(fx.Ask):
            desk.wait(BACKOFF)
            pause += BACKOFF
        pauses.append(round(pause / BACKOFF))
        ask = desk.one(fx.Ask)
    # One more where a clock reading falls short of the deadline by rounding.
    least = [1, 2, 4, *[round(LONGEST_PAUSE / BACKOFF)] * 3]
    assert all(pause - each in (0, 1) for pause, each in zip(pauses, least, strict=True)), pauses


# Thousands of partitions


def test_a_failure_costs_the_same_however_many_partitions_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(LEADER)
    desk.follow(LEADER, *(PartitionId("t", number) for number in range(100)))
    steps: list[PartitionId] = []
    monkeypatch.setattr(desk.ctx, "step_replica", lambda partition, event: steps.append(partition))
    for _ in range(3):
        desk.tell(ev.DialFailed(dial=desk.one(fx.Dial).dial, reason="connection refused", refused=True))
        assert len(desk.ctx.timers) <= 3, "one pause for all of them"
        desk.wait(BACKOFF)
    desk.connect()
    desk.tell(ev.AskFailed(question=desk.one(fx.Ask).question, reason="lost"))
    desk.wait(BACKOFF)
    assert not steps, "nothing has changed for any replica: its question stands"
    assert len(named(desk.request)) == 100


def test_many_questions_are_told_in_portions_each_of_them_confirmed_at_once() -> None:
    desk = Desk(LEADER, settings=structs.replace(SETTINGS, questions_at_a_time=20))
    partitions = [PartitionId("t", number) for number in range(50)]
    desk.follow(LEADER, *partitions[:45])
    request = desk.connect()
    assert (named(request), request.max_wait_ms) == (set(range(20)), 0)
    ask = desk.one(fx.Ask)
    desk.follow(LEADER, *partitions[45:])
    assert not desk.all(fx.GiveUp) and not desk.all(fx.Ask), "it is answered at once anyway"
    desk.answer(ask)
    assert (named(desk.request), desk.request.max_wait_ms) == (set(range(20, 40)), 0)
    assert desk.request.session_epoch == 1
    desk.answer(desk.one(fx.Ask), result(PartitionId("t", 3), high_watermark=1))
    assert named(desk.request) == {*range(40, 50), 3}, "the one that was answered asks on"
    desk.answer(desk.one(fx.Ask))
    assert (named(desk.request), desk.request.max_wait_ms) == (set(), 500), "nothing is left: it is parked"


def test_a_leader_without_room_for_a_session_is_asked_about_all_in_turn_and_with_pauses() -> None:
    desk = Desk(LEADER, settings=structs.replace(SETTINGS, questions_at_a_time=20))
    desk.follow(LEADER, *(PartitionId("t", number) for number in range(45)))
    desk.connect()
    told: list[set[int]] = []
    for _ in range(6):
        told.append(named(desk.request))
        ask = desk.one(fx.Ask)
        desk.tell(
            ev.Answered(question=ask.question, message=m.FetchResponse(partitions=[]), payload=Payload())
        )
        assert desk.request.max_wait_ms == 1000 * BACKOFF, "it asks no faster than it would after a failure"
    assert all(len(each) == 20 for each in told)
    assert set().union(*told[:3]) == set().union(*told[3:]) == set(range(45))
    assert desk.request.session_epoch == 0


def test_a_fetch_that_tells_all_is_parked_where_the_leader_has_no_room_for_a_session() -> None:
    desk = Desk(LEADER, settings=structs.replace(SETTINGS, questions_at_a_time=20))
    desk.follow(LEADER, *(PartitionId("t", number) for number in range(10)))
    assert desk.connect().max_wait_ms == 0
    ask = desk.one(fx.Ask)
    desk.tell(ev.Answered(question=ask.question, message=m.FetchResponse(partitions=[]), payload=Payload()))
    assert (named(desk.request), desk.request.max_wait_ms) == (set(range(10)), 500)


def test_a_portion_that_was_lost_is_told_again_from_the_first() -> None:
    desk = Desk(LEADER, settings=structs.replace(SETTINGS, questions_at_a_time=20))
    desk.follow(LEADER, *(PartitionId("t", number) for number in range(30)))
    desk.connect()
    desk.answer(desk.one(fx.Ask))
    assert named(desk.request) == set(range(20, 30))
    desk.tell(ev.AskFailed(question=desk.one(fx.Ask).question, reason="lost"))
    desk.wait(BACKOFF)
    assert (named(desk.request), desk.request.session_epoch) == (set(range(20)), 0)


def test_no_fetch_exceeds_what_a_request_may_be() -> None:
    """More than some 6,000 partitions did; with names of 249 characters 2,500 were enough."""
    name, most = "t" * MAX_NAME, Limits().max_body_bytes
    desk = Desk(LEADER)
    partitions = [PartitionId(name, 10**6 + number) for number in range(3000)]
    desk.follow(LEADER, *partitions, log_end_offset=1 << 62)
    desk.connect()
    told: set[int] = set()
    while desk.request.max_wait_ms == 0:
        request = structs.replace(
            desk.request,
            partitions=[structs.replace(each, topic_id="0" * 32) for each in desk.request.partitions],
            session_id=1 << 62,
        )
        assert len(wire.encode(request)) < most
        told |= named(request)
        desk.answer(desk.one(fx.Ask))
    assert len(told) == len(partitions)


# Connecting


def test_who_refuses_is_suspected_and_dialled_after_a_pause() -> None:
    desk = Desk(LEADER)
    desk.follow(LEADER, ZERO)
    desk.tell(ev.DialFailed(dial=desk.one(fx.Dial).dial, reason="connection refused", refused=True))
    assert desk.one(fx.Suspect).node == node(LEADER)
    desk.follow(LEADER, ONE)
    assert not desk.all(fx.Dial), "another partition is no reason to dial at once"
    assert not desk.wait(BACKOFF - 0.01)
    desk.wait(0.011)
    assert named(desk.connect()) == {0, 1}


def test_who_does_not_answer_is_given_more_time_and_not_suspected() -> None:
    desk = Desk(LEADER)
    desk.follow(LEADER, ZERO)
    timeouts = []
    for _ in range(5):
        dial = desk.one(fx.Dial)
        timeouts.append(dial.timeout)
        desk.tell(ev.DialFailed(dial=dial.dial, reason="no answer"))
        assert not desk.all(fx.Suspect)
        desk.wait(BACKOFF)
    assert timeouts == [2.0, 4.0, 8.0, LONGEST_CONNECT_TIMEOUT, LONGEST_CONNECT_TIMEOUT]
    desk.connect()
    desk.tell(ev.PeerDisconnected(connection="c", reason="reset"))
    desk.wait(BACKOFF)
    assert desk.one(fx.Dial).timeout == 2.0


def test_a_leader_that_is_not_registered_is_not_dialled_until_it_is() -> None:
    desk = Desk()
    desk.follow(LEADER, ZERO)
    assert not desk.all(fx.Dial)
    desk.nodes(node(1), node(LEADER))
    desk.wait(BACKOFF)
    assert desk.one(fx.Dial).endpoints == node(LEADER).endpoints


def test_a_peer_that_was_started_again_is_dialled_at_its_new_address() -> None:
    desk, _ = asking(ZERO)
    desk.nodes(node(1), node(LEADER, 2, 99))
    assert desk.one(fx.HangUp).connection == "c"
    desk.wait(BACKOFF)
    assert desk.one(fx.Dial).endpoints == ("tcp://2:99",)


def test_a_new_process_is_not_waited_for_as_long_as_its_silent_predecessor() -> None:
    desk = Desk(LEADER)
    desk.follow(LEADER, ZERO)
    for _ in range(3):
        desk.tell(ev.DialFailed(dial=desk.one(fx.Dial).dial, reason="no answer"))
        desk.wait(BACKOFF)
    assert desk.one(fx.Dial).timeout == LONGEST_CONNECT_TIMEOUT
    desk.nodes(node(1), node(LEADER, 2, 99))
    assert desk.one(fx.Dial).timeout == 2.0


def test_a_dial_to_an_old_address_is_given_up_for_the_new_one() -> None:
    desk = Desk(LEADER)
    desk.follow(LEADER, ZERO)
    old = desk.one(fx.Dial)
    desk.nodes(node(1), node(LEADER, 2, 99))
    new = desk.one(fx.Dial)
    assert new.endpoints == ("tcp://2:99",)
    desk.tell(ev.Connected(dial=old.dial, connection="old"))
    assert desk.one(fx.HangUp).connection == "old"
    desk.tell(ev.Connected(dial=new.dial, connection="new"))
    assert desk.one(fx.Ask).connection == "new"


def test_a_registration_that_says_the_same_ends_no_connection() -> None:
    desk, _ = asking(ZERO)
    leaving = structs.replace(node(LEADER), leaving=True, offline=frozenset({ONE}))
    assert not desk.nodes(node(1), leaving)


def test_a_lost_connection_begins_another_session() -> None:
    desk, _ = in_session(ZERO, ONE)
    desk.tell(ev.PeerDisconnected(connection="c", reason="reset by peer"))
    desk.wait(BACKOFF)
    request = desk.connect("d")
    assert (named(request), request.session_id, request.session_epoch) == ({0, 1}, 0, 0)


def test_a_connection_that_ends_again_and_again_is_dialled_with_pauses() -> None:
    desk, _ = asking(ZERO)
    for _ in range(3):
        desk.tell(ev.PeerDisconnected(connection="c", reason="reset by peer"))
        desk.follow(LEADER, PartitionId("t", len(desk.ctx.replicas)))
        assert not desk.all(fx.Dial)
        desk.wait(BACKOFF)
        desk.connect()


# How much


def test_where_files_are_handed_over_more_is_asked_for_at_a_time() -> None:
    desk = Desk(LEADER)
    desk.follow(LEADER, ZERO)
    (over_a_wire,) = desk.connect().partitions
    other = Desk(LEADER)
    other.follow(LEADER, ZERO)
    (handed_over,) = other.connect(hands_over_files=True).partitions
    assert handed_over.max_bytes == HANDED_OVER * over_a_wire.max_bytes


def test_a_reassignment_is_fetched_for_at_its_rate() -> None:
    desk = Desk(LEADER, settings=structs.replace(SETTINGS, follower_replication_throttled_rate=100))
    adding = led_by(LEADER, ZERO)
    record = structs.replace(adding.record, replicas=(LEADER, 1), isr=(LEADER,), adding=(1,))
    desk.ctx.view = attrs.evolve(
        desk.ctx.view,
        partitions={ZERO: structs.replace(adding, record=record), ONE: led_by(LEADER, ONE)},
    )
    desk.follow(LEADER, ZERO, ONE)
    request = desk.connect()
    assert {each.partition: each.max_bytes for each in request.partitions} == {0: 100, 1: 1 << 20}
    payload = Payload(
        100, {0: [Info(base_offset=0, size_bytes=50)], 50: [Info(base_offset=0, size_bytes=50)]}
    )
    desk.answer(desk.one(fx.Ask), result(ZERO, size=50), result(ONE, size=50), payload=payload)
    desk.written(ZERO)
    desk.written(ONE)
    assert named(desk.request) == {1}, "what is in sync does not wait for the throttle"
    assert not desk.wait(0.4)
    desk.wait(0.2)
    assert 0 in named(desk.request)


def test_an_appending_replica_that_is_told_to_stop_holds_up_nobody() -> None:
    desk, ask = asking(ZERO, ONE)
    desk.answer(ask, result(ZERO, size=10), payload=Payload(10, {0: [Info(base_offset=0)]}))
    assert not desk.all(fx.Ask)
    desk.record(led_by(1, ZERO, epoch=2, version=2))
    desk.written(ZERO)
    assert desk.following.asked == {ONE: LEADER}
    assert desk.all(fx.Ask) or desk.wait(SETTLE_TIMEOUT)


def test_an_answer_is_appended_as_it_came() -> None:
    desk, ask = asking(ZERO)
    desk.answer(ask, result(ZERO, size=10), payload=Payload(10, {0: [Info(base_offset=0, count=3)]}))
    append = desk.jobs[0]
    assert isinstance(append, partition_fx.Append)
    assert (append.base_offset, append.leader_epoch, append.batches[0].offset_count) == (0, None, 3)
