"""A client's membership of the classic protocol, by itself: what it makes of topics that change under it."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from insync.replication.core.client import membership_events as me
from insync.replication.core.client.classic_membership import ClassicMembership, ClassicSettings
from insync.replication.core.groups.assignors.assignment import Assignor, Partition
from insync.replication.core.groups.assignors.range import RangeAssignor
from insync.replication.core.groups.assignors.sticky import CooperativeStickyAssignor
from insync.replication.core.groups.embedded import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    as_numbers,
    encode_assignment,
    encode_subscription,
)
from insync.replication.core.groups.records import TopicPartition
from insync.replication.core.messages import groups as gm

Message = TypeVar("Message")


class Follower:
    """A member of generation 1 that has been given partition 0 of `t`, whose id is `old`."""

    def __init__(self, assignor: Assignor) -> None:
        settings = ClassicSettings(
            group="g", member_id="", assignors=(assignor,), session_timeout=10.0, heartbeat_interval=1.0
        )
        self.now = 1.0
        self.machine = ClassicMembership(settings, 0.0)
        self.effects: list[me.Effect] = []
        self.tell(me.Subscribed(topics=("t",)))
        self.knows("old")
        self.tell(me.PollBegan())
        (find,) = [each for each in self.effects if isinstance(each, me.FindCoordinator)]
        self.tell(me.CoordinatorFound(token=find.token, leader_epoch=1))
        self.join()
        self.sync()

    def tell(self, event: me.Event) -> None:
        self.effects = self.machine.step(event, self.now)
        for each in self.effects:
            if isinstance(each, me.CallBack):
                self.effects = [*self.effects, *self.machine.step(me.CallbackDone(), self.now)]

    def knows(self, topic_id: str) -> None:
        self.tell(me.TopicsKnown(names={topic_id: "t"}, counts={"t": 2}, looked=frozenset({"t"})))

    def asks(self, kind: type[Message]) -> list[tuple[int, Message]]:
        sent = [each for each in self.effects if isinstance(each, me.Send)]
        return [(each.token, each.message) for each in sent if isinstance(each.message, kind)]

    def _answer(self, kind: type[Any], reply: object) -> None:
        ((token, _),) = self.asks(kind)
        self.tell(me.Answered(token=token, reply=reply))

    def join(self) -> None:
        name = self.machine.settings.assignors[0].name
        joined = gm.JoinGroupResponse(generation=1, protocol=name, leader_id="other", member_id="m")
        self._answer(gm.JoinGroupRequest, joined)

    def sync(self) -> None:
        given = encode_assignment(EmbeddedAssignment(partitions=as_numbers([Partition("t", 0)])))
        self._answer(gm.SyncGroupRequest, gm.SyncGroupResponse(assignment=given))

    @property
    def held(self) -> set[TopicPartition]:
        return set(self.machine.held.all)


@pytest.mark.parametrize("assignor", [RangeAssignor(), CooperativeStickyAssignor()])
def test_a_topic_that_is_made_again_is_not_taken_over_for_its_name(assignor: Assignor) -> None:
    member = Follower(assignor)
    assert member.held == {TopicPartition("old", 0)}
    member.knows("new")
    assert member.held == set(), "the coordinator may have given it to another"
    assert len(member.asks(gm.JoinGroupRequest)) == 1, "it asks what is its own now"
    member.join()
    member.sync()
    assert member.held == {TopicPartition("new", 0)}


def test_what_is_known_later_is_taken() -> None:
    member = Follower(RangeAssignor())
    member.knows("old")
    assert member.held == {TopicPartition("old", 0)} and not member.asks(gm.JoinGroupRequest)


def test_the_leader_shares_out_again_when_a_topic_has_got_partitions() -> None:
    member = Follower(CooperativeStickyAssignor())
    grown = me.TopicsKnown(names={"new": "t"}, counts={"t": 3}, looked=frozenset({"t"}))
    member.knows("new")
    ((token, said),) = member.asks(gm.JoinGroupRequest)
    me_alone = [gm.JoinedMember(member_id="m", metadata=said.protocols[0].metadata)]
    led = gm.JoinGroupResponse(
        generation=2, protocol="cooperative-sticky", leader_id="m", member_id="m", members=me_alone
    )
    member.tell(me.Answered(token=token, reply=led))
    assert [each.assignments != [] for _, each in member.asks(gm.SyncGroupRequest)] == [True]
    member.sync()
    member.tell(grown)
    assert len(member.asks(gm.JoinGroupRequest)) == 1


def test_a_follower_leaves_it_to_its_leader_that_a_topic_has_got_partitions() -> None:
    member = Follower(CooperativeStickyAssignor())
    member.tell(me.TopicsKnown(names={"old": "t"}, counts={"t": 3}, looked=frozenset({"t"})))
    assert not member.asks(gm.JoinGroupRequest)


def comes_back_as_leader(metadata: bytes) -> Follower:
    """A static leader that is told that all is shared out; `metadata`: what another member says that it reads."""
    member = Follower(RangeAssignor())
    member.knows("new")
    ((token, said),) = member.asks(gm.JoinGroupRequest)
    members = [
        gm.JoinedMember(member_id="m", metadata=said.protocols[0].metadata),
        gm.JoinedMember(member_id="n", metadata=metadata),
    ]
    back = gm.JoinGroupResponse(
        generation=2, protocol="range", leader_id="m", member_id="m", members=members, skip_assignment=True
    )
    member.tell(me.Answered(token=token, reply=back))
    return member


@pytest.mark.parametrize("grown", ["t", "u"])
def test_a_leader_that_comes_back_sees_when_a_topic_gets_partitions(grown: str) -> None:
    member = comes_back_as_leader(encode_subscription(EmbeddedSubscription(topics=("u",))))
    assert [each.topics for each in member.effects if isinstance(each, me.LearnTopics)] == [{"u"}]
    assert [each.assignments for _, each in member.asks(gm.SyncGroupRequest)] == [[]]
    member.sync()
    names, counts = {"new": "t", "other": "u"}, {"t": 2, "u": 1}
    member.tell(me.TopicsKnown(names=names, counts=counts, looked=frozenset({"u"})))
    assert not member.asks(gm.JoinGroupRequest), "that it had not looked at it is no change"
    counts[grown] += 1
    member.tell(me.TopicsKnown(names=names, counts=counts, looked=frozenset({"t", "u"})))
    assert len(member.asks(gm.JoinGroupRequest)) == 1


def test_a_leader_that_comes_back_watches_what_it_understands() -> None:
    member = comes_back_as_leader(b"?")
    member.sync()
    member.tell(me.TopicsKnown(names={"new": "t"}, counts={"t": 3}, looked=frozenset({"t"})))
    assert len(member.asks(gm.JoinGroupRequest)) == 1


def test_each_heartbeat_that_is_answered_renews_the_session_from_when_it_was_sent() -> None:
    member = Follower(RangeAssignor())
    for _ in range(20):
        member.now += 1.0
        member.tell(me.Tick())
        ((token, beat),) = member.asks(gm.HeartbeatRequest)
        assert beat.generation == 1
        member.tell(me.Answered(token=token, reply=gm.HeartbeatResponse()))
    assert member.held == {TopicPartition("old", 0)}
    member.now += 1.0
    member.tell(me.Tick())
    assert member.asks(gm.HeartbeatRequest), "this one is not answered"
    member.now += 7.9
    member.tell(me.Tick())
    assert member.held, "the last answered one was sent less than its share of the session ago"
    member.now += 1.0
    member.tell(me.Tick())
    assert not member.held, "another may hold it"
