"""Groups of the consumer protocol: join, reconcile, leave, come back, time out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups import records as r
from insync.replication.core.groups.settings import GroupSettings
from insync.replication.core.messages import groups as gm

from .harness import KAFKAS, GroupHost, Member, given, lists, settle, topic_id

T = topic_id("t")


def pair() -> tuple[GroupHost, Member, Member]:
    """Two members that share four partitions."""
    host = GroupHost()
    one, two = Member(host, "one"), Member(host, "two")
    settle(one)
    settle(one, two)
    assert (one.short(), two.short()) == ("t0 t1", "t2 t3")
    return host, one, two


def test_the_first_member_gets_everything_at_once() -> None:
    host = GroupHost()
    one = Member(host, "one")
    assert one.beat() == ErrorCode.NONE
    assert (one.epoch, one.short()) == (1, "t0 t1 t2 t3")
    assert one.last.heartbeat_interval_ms == 5000 and one.last.session_timeout_ms == 45000
    [batch] = host.batches
    assert [type(key) for key, _ in batch] == [
        r.MemberKey,
        r.ConsumerGroupKey,
        r.TargetKey,
        r.TargetEpochKey,
        r.CurrentKey,
    ]


def test_a_second_member_gets_its_share_when_the_first_has_let_go() -> None:
    host = GroupHost()
    one, two = Member(host, "one"), Member(host, "two")
    one.beat()
    assert two.beat() == ErrorCode.NONE
    assert (two.epoch, two.short()) == (2, "")
    # It learns that it must let two partitions go, and keeps its epoch until it has.
    assert one.beat() == ErrorCode.NONE
    assert (one.epoch, one.short()) == (1, "t0 t1")
    assert two.beat() == ErrorCode.NONE and two.short() == ""
    assert one.beat() == ErrorCode.NONE and one.epoch == 2
    assert two.beat() == ErrorCode.NONE and two.short() == "t2 t3"


def test_who_still_owns_what_it_must_let_go_stays_where_it_is() -> None:
    host = GroupHost()
    one, two = Member(host, "one"), Member(host, "two")
    one.beat()
    two.beat()
    everything = lists(one.owned)
    one.beat()
    assert one.beat(owned=everything) == ErrorCode.NONE and one.epoch == 1
    assert one.beat(owned=None) == ErrorCode.NONE and one.epoch == 1
    assert two.beat() == ErrorCode.NONE and two.short() == ""


def test_a_heartbeat_that_changes_nothing_says_nothing_and_writes_nothing() -> None:
    host, one, _ = pair()
    written = len(host.batches)
    assert one.beat(owned=None) == ErrorCode.NONE
    assert one.last.assignment is None and len(host.batches) == written


def test_a_lost_answer_is_given_again_to_who_holds_nothing_it_may_not() -> None:
    host = GroupHost()
    one, two = Member(host, "one"), Member(host, "two")
    one.beat()
    two.beat()
    one.beat()
    lost = host.ask(one.request())
    assert lost.member_epoch == 2
    assert one.beat(owned=None) == ErrorCode.FENCED_MEMBER_EPOCH
    assert one.beat(owned=lists({r.TopicPartition(T, 3)})) == ErrorCode.FENCED_MEMBER_EPOCH
    assert one.beat() == ErrorCode.NONE
    assert (one.epoch, one.short()) == (2, "t0 t1")


@pytest.mark.parametrize("epoch", [1, 9])
def test_another_epoch_is_fenced(epoch: int) -> None:
    host, one, two = pair()
    three = Member(host, "three")
    settle(one, two, three)
    assert one.beat(member_epoch=epoch, owned=[]) == ErrorCode.FENCED_MEMBER_EPOCH
    assert str(epoch) in one.last.message


def test_a_member_that_leaves_hands_over() -> None:
    _, one, two = pair()
    assert two.beat(member_epoch=gm.LEAVE) == ErrorCode.NONE
    assert two.last.member_epoch == -1
    settle(one)
    assert one.short() == "t0 t1 t2 t3"
    assert two.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_one_to_leave_takes_the_target_along() -> None:
    """KAFKA-20442: a target epoch below the group's would be computed again, for nobody, under another epoch."""
    host = GroupHost()
    one = Member(host, "one")
    one.beat()
    one.beat(member_epoch=gm.LEAVE)
    state = host.machine.groups["g"]
    assert state.epoch == state.assignment_epoch == 2
    assert not state.members and not state.targets and not state.currents
    again = Member(host, "again")
    again.beat()
    assert again.epoch == 3


def test_a_silent_member_is_out_when_its_session_is_over() -> None:
    host, one, two = pair()
    host.pass_time(40)
    one.beat()
    host.pass_time(4.9)
    assert two.member_id in host.machine.groups["g"].members
    host.pass_time(0.1)
    assert two.member_id not in host.machine.groups["g"].members
    settle(one)
    assert one.short() == "t0 t1 t2 t3"


def test_nobody_else_is_out_because_the_coordinator_stood_still() -> None:
    host, one, two = pair()
    host.pass_time(5)
    two.beat()
    host.now += 300
    host.tell(ev.Contacted(since=host.now))
    host.tell(ev.Tick())
    assert set(host.machine.groups["g"].members) == {"two"}
    host.pass_time(4.9)
    assert two.beat() == ErrorCode.NONE
    assert one.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_coordinator_knows_all_and_gives_everybody_time() -> None:
    host, one, two = pair()
    host.pass_time(44)
    host.lead()
    host.pass_time(47.9)
    assert one.beat() == ErrorCode.NONE and one.short() == "t0 t1"
    host.pass_time(0.1)
    assert set(host.machine.groups["g"].members) == {"one"}
    settle(one)
    assert two.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_let_go_in_time_is_fenced_and_keeps_it_until_its_session_ends() -> None:
    host = GroupHost()
    one, two = Member(host, "one", rebalance_timeout_ms=20_000), Member(host, "two")
    one.beat()
    two.beat()
    everything = lists(one.owned)
    one.beat()
    host.pass_time(19.9)
    assert one.beat(owned=everything) == ErrorCode.NONE
    host.pass_time(0.1)
    assert one.beat(owned=everything) == ErrorCode.FENCED_MEMBER_EPOCH
    host.pass_time(20)
    two.beat()
    host.pass_time(24.8)
    two.beat()
    assert two.short() == ""
    host.pass_time(0.2)
    settle(two)
    assert two.short() == "t0 t1 t2 t3"


def test_who_was_fenced_and_has_let_go_comes_back_as_itself() -> None:
    host = GroupHost()
    one, two = Member(host, "one", rebalance_timeout_ms=20_000), Member(host, "two")
    one.beat()
    two.beat()
    one.beat(owned=None)
    host.pass_time(20)
    assert one.beat() == ErrorCode.FENCED_MEMBER_EPOCH
    one.owned.clear()
    assert one.beat(member_epoch=0) == ErrorCode.NONE
    settle(one, two)
    assert (one.short(), two.short()) == ("t0 t1", "t2 t3")


def test_who_was_fenced_may_leave() -> None:
    host = GroupHost()
    one, two = Member(host, "one", rebalance_timeout_ms=20_000), Member(host, "two")
    one.beat()
    two.beat()
    one.beat(owned=None)
    host.pass_time(20)
    assert one.beat(member_epoch=gm.LEAVE) == ErrorCode.NONE
    settle(two)
    assert two.short() == "t0 t1 t2 t3"


def test_the_time_to_let_go_belongs_to_one_revocation() -> None:
    host = GroupHost()
    one, *others = [
        Member(host, name, rebalance_timeout_ms=20_000) for name in ("one", "two", "three", "four")
    ]
    one.beat()
    others[0].beat()
    one.beat()
    for other in others[1:]:
        other.beat()
    host.pass_time(15)
    held = lists(one.owned)
    assert one.beat() == ErrorCode.NONE and one.short() == "t0"
    host.pass_time(19)
    assert one.beat(owned=held) == ErrorCode.NONE, "the first revocation's time is not this one's"
    host.pass_time(1)
    assert one.beat(owned=held) == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_revocation_is_timed_again_by_a_new_coordinator() -> None:
    host = GroupHost()
    one, two = Member(host, "one", rebalance_timeout_ms=20_000), Member(host, "two")
    one.beat()
    two.beat()
    everything = lists(one.owned)
    one.beat()
    host.pass_time(15)
    host.lead()
    host.pass_time(19)
    assert one.beat(owned=everything) == ErrorCode.NONE
    host.pass_time(1)
    assert one.beat(owned=everything) == ErrorCode.FENCED_MEMBER_EPOCH


# Parked heartbeats


def test_a_parked_heartbeat_brings_the_news() -> None:
    host = GroupHost()
    one, two = Member(host, "one"), Member(host, "two")
    one.beat()
    first = one.park()
    assert host.waits(first)
    two.beat()
    assert one.heard(host.said[first]) == ErrorCode.NONE and one.short() == "t0 t1"
    second = two.park()
    assert host.waits(second)
    one.beat()
    assert two.heard(host.said[second]) == ErrorCode.NONE and two.short() == "t2 t3"


def test_a_parked_heartbeat_without_news_ends_with_the_interval() -> None:
    host, one, _ = pair()
    asked = one.park(max_wait_ms=60_000)
    host.pass_time(4.9)
    assert host.waits(asked)
    host.pass_time(0.1)
    assert one.heard(host.said[asked]) == ErrorCode.NONE and host.said[asked].assignment is None
    shorter = one.park(max_wait_ms=1000)
    host.pass_time(1)
    assert not host.waits(shorter)


def test_a_second_heartbeat_ends_the_first() -> None:
    host, one, _ = pair()
    first = one.park()
    second = one.park()
    assert host.said[first].error == 0 and host.waits(second)
    host.pass_time(5)
    assert host.said[second].error == 0


def test_a_parked_heartbeat_ends_when_its_member_does() -> None:
    host, one, two = pair()
    asked = one.park()
    assert two.beat(member_id="one", member_epoch=gm.LEAVE) == ErrorCode.NONE
    assert host.said[asked].error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_parked_heartbeat_of_a_static_member_that_is_away_changes_nothing() -> None:
    host = GroupHost()
    one, two = Member(host, "one", instance_id="i"), Member(host, "two")
    settle(one, two)
    asked = one.park()
    assert host.ask(one.request(member_epoch=gm.LEAVE_STATIC)).error == ErrorCode.NONE
    assert not host.waits(asked)
    back = Member(host, "three", instance_id="i")
    assert back.beat() == ErrorCode.NONE
    assert back.owned == one.owned


def test_a_parked_heartbeat_ends_when_its_member_is_fenced() -> None:
    host = GroupHost(structs.replace(KAFKAS, consumer_heartbeat_interval_ms=40_000))
    one, two = Member(host, "one", rebalance_timeout_ms=20_000), Member(host, "two")
    one.beat()
    two.beat()
    one.beat(owned=None)
    asked = one.park(max_wait_ms=40_000)
    host.pass_time(20)
    assert host.said[asked].error == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_parked_heartbeat_ends_with_its_deadline_and_the_role() -> None:
    host, one, two = pair()
    asked = host.send(
        one.request(owned=None, topics=None, rebalance_timeout_ms=-1, max_wait_ms=5000), within=1
    )
    other = two.park()
    host.pass_time(1)
    assert host.said[asked].error == ErrorCode.REQUEST_TIMED_OUT
    host.tell(ev.ShardEnded(leader=3, leader_epoch=7))
    assert host.said[other] == gm.ConsumerGroupHeartbeatResponse(
        error=ErrorCode.NOT_COORDINATOR, leader=3, leader_epoch=7
    )


def test_a_late_copy_of_an_earlier_heartbeat_is_refused() -> None:
    """It would say that partitions are not owned which were given after it was sent."""
    _, one, two = pair()
    assert one.beat(sequence=5) == ErrorCode.NONE
    assert one.beat(sequence=5) == ErrorCode.REQUEST_TIMED_OUT
    assert one.beat(sequence=4, member_epoch=gm.LEAVE) == ErrorCode.REQUEST_TIMED_OUT
    assert one.beat(sequence=6) == ErrorCode.NONE
    assert two.beat(sequence=0) == ErrorCode.NONE


def test_a_late_copy_of_its_join_does_not_bring_a_static_member_back() -> None:
    host = GroupHost()
    one = Member(host, "one", instance_id="i")
    assert one.beat(sequence=1) == ErrorCode.NONE
    assert host.ask(one.request(member_epoch=gm.LEAVE_STATIC, sequence=2)).error == ErrorCode.NONE
    late = host.ask(one.request(member_epoch=gm.JOIN, sequence=1, owned=[]))
    assert late.error == ErrorCode.REQUEST_TIMED_OUT
    assert host.machine.groups["g"].current("one").epoch == gm.LEAVE_STATIC


def test_a_request_for_an_earlier_leadership_is_not_taken() -> None:
    host, one, _ = pair()
    host.tell(ev.Ask(request_id=900, message=one.request(), deadline=host.now + 9, leader_epoch=host.epoch))
    assert host.said[900].error == 0
    host.tell(
        ev.Ask(request_id=901, message=one.request(), deadline=host.now + 9, leader_epoch=host.epoch - 1)
    )
    assert host.said[901].error == ErrorCode.NOT_COORDINATOR


# Topics


def test_new_partitions_and_new_topics_are_dealt_at_once() -> None:
    host = GroupHost(t=1)
    one = Member(host, "one", topics=["t", "u"])
    one.beat()
    asked = one.park()
    host.see(t=2, u=1)
    one.heard(host.said[asked])
    assert one.short() == "t0 t1 u0"
    assert one.epoch == 2


def test_other_topics_are_no_cause() -> None:
    host, one, _ = pair()
    asked = one.park()
    host.see(t=4, other=9)
    assert host.waits(asked) and host.machine.groups["g"].epoch == 2


def test_a_topic_that_is_made_again_is_another() -> None:
    host = GroupHost(t=1)
    one = Member(host, "one")
    one.beat()
    host.see({"t": 1}, t=1)
    one.beat()
    assert one.owned == set()
    one.beat()
    assert one.owned == {r.TopicPartition(topic_id("t", 1), 0)}
    assert one.beat() == ErrorCode.NONE


def test_unsubscribing_takes_effect_at_once_and_others_get_it() -> None:
    host = GroupHost(t=1, u=1)
    one, two = Member(host, "one", topics=["t", "u"]), Member(host, "two", topics=["t", "u"])
    settle(one, two)
    assert (one.short(), two.short()) == ("t0", "u0")
    two.topics = ["t"]
    settle(two, one)
    assert (one.short(), two.short()) == ("u0", "t0") or one.short() == "t0 u0"
    assert host.machine.groups["g"].epoch == 3


def test_the_assignor_of_most_members_is_used() -> None:
    host = GroupHost(t=2, u=2)
    one, two = Member(host, "one", topics=["t", "u"]), Member(host, "two", topics=["t", "u"])
    one.beat(assignor="range")
    settle(one, two)
    assert (one.short(), two.short()) == ("t0 u0", "t1 u1")


def test_topics_of_a_pattern_that_kafka_resolved_are_read() -> None:
    """A member with a pattern may stand in a log that Kafka wrote."""
    host = GroupHost(t=1, u=1)
    for key, value in (
        (r.ConsumerGroupKey("g"), r.ConsumerGroupValue(epoch=4)),
        (r.MemberKey("g", "one"), r.MemberValue(topics=None, regex="u.*", rebalance_timeout_ms=1000)),
        (r.RegexKey("g", "u.*"), r.RegexValue(topics=("u",), version=1, timestamp=1)),
        (r.CurrentKey("g", "one"), r.CurrentValue(epoch=4, state=9)),
    ):
        host.log.append(ev.Entry(len(host.log), key, value))
    host.lead()
    one = Member(host, "one", epoch=4)
    one.heard(host.ask(one.request(topics=None)))
    assert one.short() == "u0" and one.epoch == 5


# Static members


def static(host: GroupHost, member_id: str) -> Member:
    return Member(host, member_id, instance_id="i")


def test_a_static_member_that_comes_back_has_what_it_had() -> None:
    host = GroupHost()
    one, other = static(host, "one"), Member(host, "other")
    settle(one, other)
    before, epoch = one.short(), host.machine.groups["g"].epoch
    assert one.beat(member_epoch=gm.LEAVE_STATIC) == ErrorCode.NONE
    assert one.last.member_epoch == -2
    settle(other)
    assert host.machine.groups["g"].epoch == epoch
    two = static(host, "two")
    assert two.beat() == ErrorCode.NONE
    assert two.short() == before and two.epoch == epoch
    assert one.beat(member_epoch=epoch) == ErrorCode.FENCED_INSTANCE_ID
    settle(two, other)
    assert host.machine.groups["g"].epoch == epoch


def test_the_same_process_may_come_back_too() -> None:
    host = GroupHost()
    one = static(host, "one")
    one.beat()
    one.beat(member_epoch=gm.LEAVE_STATIC)
    assert one.beat(member_epoch=1) == ErrorCode.FENCED_MEMBER_EPOCH
    one.owned.clear()
    assert one.beat(member_epoch=0) == ErrorCode.NONE
    assert one.short() == "t0 t1 t2 t3"
    assert one.beat(member_epoch=gm.LEAVE_STATIC) == ErrorCode.NONE
    written = len(host.batches)
    assert one.beat(member_epoch=gm.LEAVE_STATIC) == ErrorCode.NONE
    assert len(host.batches) == written


def test_a_live_instance_is_not_taken_over() -> None:
    host = GroupHost()
    one, two = static(host, "one"), static(host, "two")
    one.beat()
    assert two.beat() == ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.beat() == ErrorCode.NONE


def test_a_member_does_not_become_another_instance() -> None:
    """Else the instance that it was would be nobody's, and whoever comes back as it would get nothing of its."""
    host = GroupHost()
    one = static(host, "one")
    one.beat()
    epoch = one.epoch
    assert one.beat(instance_id="j") == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.beat(instance_id="j", member_epoch=gm.LEAVE_STATIC) == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.beat(member_epoch=epoch) == ErrorCode.NONE
    assert host.machine.groups["g"].members["one"].instance_id == "i"


def test_a_static_member_that_does_not_come_back_ends_with_its_session() -> None:
    host = GroupHost()
    one, other = static(host, "one"), Member(host, "other")
    settle(one, other)
    one.beat(member_epoch=gm.LEAVE_STATIC)
    for _ in range(5):
        host.pass_time(9)
        settle(other)
    assert other.short() == "t0 t1 t2 t3"


def test_a_static_member_that_comes_back_with_other_topics_rebalances() -> None:
    host = GroupHost(t=1, u=1)
    one = static(host, "one")
    one.beat()
    one.beat(member_epoch=gm.LEAVE_STATIC)
    two = static(host, "two")
    two.topics = ["u"]
    settle(two)
    assert two.short() == "u0" and two.epoch == 2


# Misuse


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"regex": "t.*"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topics": None}, ErrorCode.INVALID_REQUEST),
        ({"topics": []}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": lists({r.TopicPartition(T, 0)})}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_is_wrong_by_itself_is_refused_with_a_reason(changes: dict[str, Any], error: ErrorCode) -> None:
    host = GroupHost()
    one = Member(host, "one")
    assert one.beat(**changes) == error
    assert one.last.message
    assert host.batches == []


def test_a_full_group_takes_nobody_but_its_members() -> None:
    host = GroupHost(GroupSettings(consumer_max_size=1))
    one, two = Member(host, "one"), Member(host, "two")
    one.beat()
    assert two.beat() == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one.beat(member_epoch=0, owned=[]) == ErrorCode.NONE


def test_a_refused_write_renews_no_session() -> None:
    host = GroupHost()
    one, two = Member(host, "one"), Member(host, "two")
    one.beat()
    host.pass_time(44)
    host.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert two.beat() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert one.beat(topics=["u"]) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.pass_time(5)
    host.refuse = None
    host.pass_time(0.2)
    assert "g" not in host.machine.groups or not host.machine.groups["g"].members


def test_racks_and_hosts_are_kept() -> None:
    host = GroupHost()
    one = Member(host, "one")
    one.beat(rack="r1", client_id="c", client_host="/10.0.0.1")
    value = host.machine.groups["g"].members["one"]
    assert (value.rack, value.client_id, value.client_host) == ("r1", "c", "/10.0.0.1")
    one.beat(topics=None, client_id="c", client_host="/10.0.0.1")
    assert host.machine.groups["g"].members["one"] == value


def test_the_log_alone_gives_the_same_state() -> None:
    host, one, two = pair()
    three = Member(host, "three")
    settle(one, two, three)
    two.beat(member_epoch=gm.LEAVE)
    settle(one, three)
    assert host.replayed().groups == host.machine.groups
    # In whatever order the last records of the keys come, as after a compaction.
    last = {entry.key: entry for entry in host.log if isinstance(entry, ev.Entry)}
    other = GroupHost()
    for entry in reversed(last.values()):
        other.machine.apply(structs.replace(entry))
    assert other.machine.groups == host.machine.groups


def test_the_epochs_of_partitions_stay_while_they_do() -> None:
    host, _, two = pair()
    state = host.machine.groups["g"]
    assert set(r.as_owned(state.currents["one"].assigned, -1).values()) == {1}
    assert set(r.as_owned(state.currents["two"].assigned, -1).values()) == {2}
    assert given(two.last) == two.owned
