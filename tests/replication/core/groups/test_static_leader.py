"""The static leader of a classic group comes back: what is assigned, and what topics there are by now."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups.assignors.assignment import Partition
from insync.replication.core.groups.embedded import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    as_numbers,
    encode_assignment,
    encode_subscription,
)
from insync.replication.core.messages import groups as gm

from .harness import GroupHost
from .test_classic import Old, state

READS_T = (("range", encode_subscription(EmbeddedSubscription(topics=("t", "later")))),)
ALL = [Partition("t", number) for number in range(4)]


def assigned(*partitions: Partition) -> bytes:
    return encode_assignment(EmbeddedAssignment(partitions=as_numbers(list(partitions))))


def led(
    one: bytes,
    other: bytes,
    protocol_type: str = "consumer",
    protocols: tuple[tuple[str, bytes], ...] = READS_T,
) -> tuple[GroupHost, Old, Old]:
    """A stable group of a static leader and another member, with what they were assigned."""
    host = GroupHost(t=4, other=2)
    leader, follower = Old(host, instance_id="i", protocols=protocols), Old(host, protocols=protocols)
    joins = [each.join(protocol_type=protocol_type) for each in (leader, follower)]
    host.pass_time(10)
    assert [each.joined(asked).error for each, asked in zip((leader, follower), joins, strict=True)] == [0, 0]
    share(leader, follower, one, other)
    return host, leader, follower


def share(leader: Old, follower: Old, one: bytes, other: bytes) -> None:
    given = [
        gm.MemberAssignment(member_id=leader.member_id, assignment=one),
        gm.MemberAssignment(member_id=follower.member_id, assignment=other),
    ]
    assert leader.host.said[leader.sync(assignments=given)].error == 0
    assert leader.host.said[follower.sync()].assignment == other


def back(host: GroupHost, leader: Old, protocol_type: str = "consumer") -> tuple[Old, int]:
    again = Old(host, instance_id="i", protocols=leader.protocols)
    return again, again.join(protocol_type=protocol_type)


def skips(host: GroupHost, leader: Old, follower: Old, protocol_type: str = "consumer") -> bool:
    """Whether it is told that all is shared out; if not, all join again."""
    again, asked = back(host, leader, protocol_type)
    if not host.waits(asked):
        assert again.joined(asked).skip_assignment and follower.beat() == ErrorCode.NONE
        return True
    assert follower.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert not follower.joined(follower.join(protocol_type=protocol_type)).skip_assignment
    told = again.joined(asked)
    assert not told.skip_assignment and told.leader_id == again.member_id and len(told.members) == 2
    return False


CHANGES: dict[str, tuple[Callable[[GroupHost], None], str]] = {
    "grown": (lambda host: host.see(t=5, other=2), "t-4 is assigned to nobody"),
    "made again": (lambda host: host.see({"t": 1}, t=5), "t-4 is assigned to nobody"),
    "made again and smaller": (
        lambda host: host.see({"t": 1}, t=3),
        "partitions are assigned that do not exist",
    ),
    "new": (lambda host: host.see(t=4, later=1), "later-0 is assigned to nobody"),
    "deleted": (lambda host: host.see(other=2), "partitions are assigned that do not exist"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_assigns_again_if_a_topic_has_changed_while_it_was_away(change: str) -> None:
    host, leader, follower = led(assigned(*ALL[:2]), assigned(*ALL[2:]))
    happens, why = CHANGES[change]
    happens(host)
    assert not skips(host, leader, follower)
    assert state(host).why == f"instance i has come back, and {why}"
    assert leader.beat() == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("now", [{"t": 4, "other": 2}, {"t": 4, "other": 3}, {"t": 4}])
def test_it_does_not_if_nothing_that_is_read_has_changed(now: dict[str, int]) -> None:
    host, leader, follower = led(assigned(*ALL[:2], Partition("other", 7)), assigned(*ALL[2:]))
    host.see(**now)
    assert skips(host, leader, follower)


@pytest.mark.parametrize("garbage", [b"?", b"\x00\x03\x7f\xff\xff\xff", b"\xff\xff\x00", assigned(*ALL)[:-6]])
def test_it_does_not_if_an_assignment_is_not_understood(garbage: bytes) -> None:
    host, leader, follower = led(assigned(*ALL[:2]), garbage)
    host.see(t=5)
    assert skips(host, leader, follower)


@pytest.mark.parametrize("said", [b"", b"t", b"\x00\x01\x7f\xff\xff\xff"])
def test_it_does_not_if_a_subscription_is_not_understood(said: bytes) -> None:
    host, leader, follower = led(assigned(*ALL[:2]), assigned(*ALL[2:]), protocols=(("range", said),))
    host.see(t=5)
    assert skips(host, leader, follower)


def test_it_does_not_if_the_members_are_no_consumers() -> None:
    host, leader, follower = led(assigned(*ALL[:2]), assigned(*ALL[2:]), "connect")
    host.see(t=5)
    assert skips(host, leader, follower, "connect")


def test_another_static_member_that_comes_back_leaves_it_to_the_leader() -> None:
    host, leader, follower = led(assigned(*ALL[:2]), assigned(*ALL[2:]))
    follower.leave()
    static = Old(host, instance_id="j", protocols=READS_T)
    asked, mine = static.join(), leader.join()
    assert leader.joined(mine).error == static.joined(asked).error == ErrorCode.NONE
    share(leader, static, assigned(*ALL[:2]), assigned(*ALL[2:]))
    host.see(t=5)
    again = Old(host, instance_id="j", protocols=READS_T)
    assert again.joined(again.join()).leader_id == leader.member_id and leader.beat() == ErrorCode.NONE


def test_an_assignor_that_leaves_partitions_out_costs_one_rebalance_for_each_return() -> None:
    host, leader, follower = led(assigned(ALL[0]), assigned(ALL[1]))
    for _ in range(2):
        again, asked = back(host, leader)
        follower.joined(follower.join())
        again.joined(asked)
        share(again, follower, assigned(ALL[0]), assigned(ALL[1]))
        host.see(t=5)
        host.see(t=6)
        assert again.beat() == follower.beat() == ErrorCode.NONE, "once is enough"
        leader = again


def test_the_coordinator_may_hear_of_the_change_after_it() -> None:
    host, leader, follower = led(assigned(*ALL[:2]), assigned(*ALL[2:]))
    again, asked = back(host, leader)
    again.joined(asked)
    host.see(t=4, other=3)
    assert again.beat() == follower.beat() == ErrorCode.NONE
    host.see(t=5)
    assert again.beat() == follower.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert state(host).why == "its leader has come back, and t-4 is assigned to nobody"

    share_again(again, follower)
    host.see(t=6)
    assert again.beat() == follower.beat() == ErrorCode.NONE, "it leads since then, and sees this itself"


def share_again(leader: Old, follower: Old) -> None:
    joins = [each.join() for each in (leader, follower)]
    for each, asked in zip((leader, follower), joins, strict=True):
        each.joined(asked)
    share(leader, follower, assigned(*ALL[:2]), assigned(*ALL[2:]))


def test_the_coordinator_may_hear_of_the_change_before_its_return_is_committed() -> None:
    host, leader, follower = led(assigned(*ALL[:2]), assigned(*ALL[2:]))
    host.commits = False
    again, asked = back(host, leader)
    host.see(t=5)
    host.commits = True
    host.commit()
    assert again.joined(asked).skip_assignment
    assert follower.beat() == again.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_was_never_away_sees_changes_itself() -> None:
    host, leader, follower = led(assigned(*ALL[:2]), assigned(*ALL[2:]))
    host.see(t=5)
    assert leader.beat() == follower.beat() == ErrorCode.NONE
    host.lead()
    assert leader.beat() == follower.beat() == ErrorCode.NONE
