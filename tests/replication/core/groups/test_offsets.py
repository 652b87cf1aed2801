"""Committed offsets: who may commit, transactions, expiry, deletion, and what is told of it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups import records as r
from insync.replication.core.groups.embedded import EmbeddedSubscription, encode_subscription
from insync.replication.core.groups.settings import GroupSettings
from insync.replication.core.groups.state import GroupState
from insync.replication.core.messages import groups as gm

from ..coordination.shard_host import WALL
from .harness import GroupHost, Member, settle

DAY = 86_400
WEEK = 7 * DAY


def offsets(at: int = 7, *places: str, metadata: str = "") -> list[gm.GroupOffset]:
    return [
        gm.GroupOffset(
            topic=place[:-1], partition=int(place[-1]), offset=at, leader_epoch=3, metadata=metadata
        )
        for place in places or ("t0",)
    ]


def commit(host: GroupHost, at: int = 7, *places: str, **said: Any) -> list[ErrorCode] | ErrorCode:
    """The error of each partition, or that of all."""
    metadata = said.pop("metadata", "")
    asked = gm.CommitGroupOffsetsRequest(
        **{"group": "g"} | said, offsets=offsets(at, *places, metadata=metadata)
    )
    reply = host.ask(asked)
    return ErrorCode(reply.error) if reply.error else [ErrorCode(each.error) for each in reply.partitions]


def by(member: Member, **said: Any) -> dict[str, Any]:
    return {"member_id": member.member_id, "epoch": member.epoch} | said


def fetched(host: GroupHost, *places: str, **said: Any) -> Any:
    """Offset by place, or the error of a place, or that of all."""
    wanted = None
    if places:
        wanted = [gm.TopicPartitionName(topic=place[:-1], partition=int(place[-1])) for place in places]
    reply = host.ask(gm.GroupOffsetsRequest(**{"group": "g"} | said, partitions=wanted))
    if reply.error:
        return ErrorCode(reply.error)
    return {
        f"{each.topic}{each.partition}": ErrorCode(each.error) if each.error else each.offset
        for each in reply.offsets
    }


def within(host: GroupHost, at: int = 7, *places: str, producer: int = 5, **said: Any) -> Any:
    """A commit in a transaction."""
    asked = gm.TxnOffsetCommitRequest(
        **{"group": "g", "transactional_id": "x", "producer_id": producer, "producer_epoch": 0} | said,
        offsets=offsets(at, *places),
    )
    reply = host.ask(asked)
    return ErrorCode(reply.error) if reply.error else [ErrorCode(each.error) for each in reply.partitions]


OK = [ErrorCode.NONE]


def test_what_is_done_in_a_topic_that_is_gone_is_no_offset_of_its_namesake() -> None:
    host = GroupHost()
    old = host.view.topics["t"].topic_id
    host.see({"t": 1}, t=4)
    for topic_id, code in ((old, ErrorCode.INCONSISTENT_TOPIC_ID), (host.view.topics["t"].topic_id, OK[0])):
        said = gm.GroupOffset(topic="t", partition=0, offset=7, topic_id=topic_id)
        reply = host.ask(gm.CommitGroupOffsetsRequest(group="g", offsets=[said]))
        assert [each.error for each in reply.partitions] == [code]
        assert fetched(host, "t0") == {"t0": -1 if code else 7}


def test_without_membership_one_may_commit_while_nobody_is_a_member() -> None:
    host = GroupHost()
    assert commit(host, 7, "t0", "t3", metadata="why") == OK * 2
    assert fetched(host) == {"t0": 7, "t3": 7}
    assert fetched(host, "t3", "t1") == {"t3": 7, "t1": -1}
    assert host.log[0] == ev.Entry(
        0,
        r.OffsetKey("g", "t", 0),
        r.OffsetValue(offset=7, leader_epoch=3, metadata="why", commit_timestamp=WALL + 1_000_000),
    )
    Member(host, "one").beat()
    assert commit(host) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(host, "t0") == {"t0": 7}


def test_a_partition_that_is_named_often_is_told_of_once() -> None:
    """Each has a text of thousands of bytes, and its name a few."""
    host = GroupHost()
    commit(host, 7, "t0", "t1", metadata="m" * 4096)
    places = [gm.TopicPartitionName(topic="t", partition=at) for at in [1, 0, 2] * 1_000]
    reply = host.ask(gm.GroupOffsetsRequest(group="g", partitions=places))
    told = [(each.partition, each.offset, len(each.metadata)) for each in reply.offsets]
    assert told == [(1, 7, 4096), (0, 7, 4096), (2, -1, 0)]


def test_nobody_is_a_member_of_a_group_that_is_not_there() -> None:
    host = GroupHost()
    assert commit(host, epoch=3, member_id="m") == ErrorCode.ILLEGAL_GENERATION
    assert fetched(host, epoch=3, member_id="m") == ErrorCode.GROUP_ID_NOT_FOUND
    assert fetched(host) == {}
    assert commit(host) == OK
    assert commit(host, epoch=3, member_id="m") == ErrorCode.UNKNOWN_MEMBER_ID, "it has offsets by now"


def test_a_group_is_there_when_it_has_offsets_of_a_transaction_that_is_open() -> None:
    host = GroupHost()
    within(host, 9)
    assert commit(host, epoch=3, member_id="m") == ErrorCode.UNKNOWN_MEMBER_ID
    host.mark(5, committed=False)
    assert commit(host, epoch=3, member_id="m") == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(
    ("place", "at", "metadata", "error"),
    [
        ("u0", 1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t9", 1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t0", -1, "", ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t0", 1, "é" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("t0", 1, "é" * 2048, ErrorCode.NONE),
    ],
)
def test_a_partition_is_refused_by_itself(place: str, at: int, metadata: str, error: ErrorCode) -> None:
    host = GroupHost()
    assert commit(host, at, place, metadata=metadata) == [error]
    assert commit(host, 4, place, "t1")[1] == ErrorCode.NONE


def test_the_group_must_have_a_name() -> None:
    assert commit(GroupHost(), group="") == ErrorCode.INVALID_GROUP_ID


def test_a_commit_is_fenced_by_the_epoch_at_which_the_partition_was_given() -> None:
    host = GroupHost()
    one, two, three = Member(host, "one"), Member(host, "two"), Member(host, "three")
    settle(one)
    settle(one, two)
    assert two.short() == "t2 t3" and two.epoch == 2
    settle(one, two, three)
    assert (one.epoch, two.epoch, two.short(), three.short()) == (3, 3, "t2", "t3")
    # What was sent before the member learned of its new epoch is as good as ever (KAFKA-19779).
    assert commit(host, 5, "t2", **by(two, epoch=2)) == OK
    assert commit(host, 5, "t2", **by(two, epoch=1)) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert commit(host, 5, "t2", **by(two, epoch=4)) == ErrorCode.STALE_MEMBER_EPOCH
    # What the member does not own it may commit at its present epoch alone.
    assert commit(host, 5, "t3", "t2", **by(two, epoch=2)) == [ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.NONE]
    assert commit(host, 5, "t3", **by(two)) == OK
    assert commit(host, 5, "t2", member_id="four", epoch=3) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_commits_what_it_is_about_to_let_go() -> None:
    host = GroupHost()
    one, two = Member(host, "one"), Member(host, "two")
    one.beat()
    two.beat()
    one.beat()
    assert one.short() == "t0 t1" and one.epoch == 1
    assert commit(host, 9, "t3", **by(one)) == OK
    one.beat()
    assert commit(host, 9, "t3", **by(one, epoch=1)) == [ErrorCode.STALE_MEMBER_EPOCH]


def test_an_instance_that_was_replaced_commits_nothing() -> None:
    host = GroupHost()
    one, two = Member(host, "one", instance_id="i"), Member(host, "two", instance_id="i")
    one.beat()
    one.beat(member_epoch=gm.LEAVE_STATIC)
    two.beat()
    assert commit(host, **by(one, epoch=1, instance_id="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert within(host, **by(one, epoch=1, instance_id="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(host, **by(two, instance_id="i")) == OK


@pytest.mark.parametrize("ask", [commit, within])
def test_which_instance_a_member_says_it_is_does_not_matter_to_its_commits(
    ask: Callable[..., object],
) -> None:
    """As in Kafka; in a classic group it does."""
    host = GroupHost()
    one, two = Member(host, "one"), Member(host, "two", instance_id="i")
    one.beat()
    two.beat()
    for instance in (None, "nobody's", "i"):
        assert ask(host, **by(one, epoch=1, instance_id=instance)) == OK
        assert ask(host, **by(two, instance_id=instance)) == OK
    assert one.beat(instance_id="nobody's") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_reader_that_says_who_it_is_must_be_it() -> None:
    host = GroupHost()
    one = Member(host, "one")
    one.beat()
    commit(host, **by(one))
    assert fetched(host, **by(one)) == {"t0": 7}
    assert fetched(host, **by(one, epoch=9)) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetched(host, member_id="two", epoch=1) == ErrorCode.UNKNOWN_MEMBER_ID


# Transactions


def test_a_transactions_offsets_count_when_it_is_committed() -> None:
    host = GroupHost()
    commit(host, 3)
    assert within(host, 9) == OK
    assert fetched(host) == {"t0": 3}
    assert fetched(host, require_stable=True) == {"t0": ErrorCode.UNSTABLE_OFFSET_COMMIT}
    # The marker of a transaction that was fenced has a later epoch than its offsets.
    host.mark(5, 1)
    assert fetched(host, require_stable=True) == {"t0": 9}
    assert host.replayed().groups == host.machine.groups


def test_a_transactions_offsets_are_dropped_when_it_is_aborted() -> None:
    host = GroupHost()
    within(host, 9)
    assert fetched(host, require_stable=True) == {"t0": ErrorCode.UNSTABLE_OFFSET_COMMIT}
    host.mark(5, committed=False)
    assert fetched(host, require_stable=True) == {}
    assert host.machine.groups == {}
    host.mark(5)


def test_a_marker_is_of_one_producer() -> None:
    host = GroupHost()
    within(host, 9, "t0", producer=5)
    within(host, 8, "t1", producer=6)
    host.mark(6)
    assert fetched(host, require_stable=True) == {"t0": ErrorCode.UNSTABLE_OFFSET_COMMIT, "t1": 8}


def test_a_later_commit_outlives_a_transaction_that_ends_after_it() -> None:
    """A compaction keeps the last record of a key: the marker's place must not decide."""
    host = GroupHost()
    within(host, 9)
    commit(host, 4)
    host.mark(5)
    assert fetched(host) == {"t0": 4}


def test_a_deletion_takes_what_is_pending_along() -> None:
    host = GroupHost()
    within(host, 9, "t0", "t1")
    asked = gm.DeleteGroupOffsetsRequest(
        group="g", partitions=[gm.TopicPartitionName(topic="t", partition=0)]
    )
    assert [each.error for each in host.ask(asked).partitions] == [0]
    host.mark(5)
    assert fetched(host) == {"t1": 9}
    within(host, 9, "t0")
    assert host.ask(gm.DeleteGroupRequest(group="g")).error == 0
    host.mark(5)
    assert host.machine.groups == {}


def test_a_transaction_is_checked_as_a_commit_is() -> None:
    host = GroupHost()
    one = Member(host, "one")
    one.beat()
    assert within(host, 9, "t0", **by(one)) == OK
    assert within(host, 9, "t0", **by(one, epoch=2)) == ErrorCode.ILLEGAL_GENERATION
    assert within(host, 9, "t0", member_id="two", epoch=1) == ErrorCode.UNKNOWN_MEMBER_ID


# Classic groups, as the log has them


def classic(host: GroupHost, *members: str, protocol_type: str = "consumer", topics: str = "t") -> None:
    """A stable classic group at generation 4 in the log."""
    subscription = encode_subscription(EmbeddedSubscription(topics=tuple(topics)))
    value = r.ClassicGroupValue(
        protocol_type=protocol_type,
        generation=4,
        protocol="range" if members else None,
        leader=members[0] if members else None,
        state_timestamp=WALL + int(host.now * 1000),
        members=tuple(
            [
                r.ClassicMemberValue(
                    member_id=each,
                    instance_id=f"i-{each}",
                    session_timeout_ms=2_000_000_000,
                    subscription=subscription,
                )
                for each in members
            ]
        ),
    )
    host.log.append(ev.Entry(len(host.log), r.ClassicGroupKey("g"), value))
    host.lead()


def test_a_classic_member_commits_in_its_generation() -> None:
    host = GroupHost()
    classic(host, "m")
    assert commit(host, 7, member_id="m", epoch=4) == OK
    assert commit(host, 7, member_id="m", epoch=3) == ErrorCode.ILLEGAL_GENERATION
    assert commit(host, 7, member_id="n", epoch=4) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(host, 7, member_id="n", epoch=4, instance_id="i-m") == ErrorCode.FENCED_INSTANCE_ID
    assert commit(host, 7) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(host, member_id="m", epoch=4) == {"t0": 7}
    assert fetched(host, member_id="m", epoch=5) == ErrorCode.ILLEGAL_GENERATION
    # Transactions of clients that name no member are fenced by their transactional id.
    assert within(host, 9, "t0") == OK
    assert within(host, 9, "t0", member_id="m", epoch=3) == ErrorCode.ILLEGAL_GENERATION


def test_a_commit_renews_the_session_of_a_classic_member() -> None:
    host = GroupHost()
    classic(host, "m")
    session = host.machine.classics["g"].members["m"].session_timeout_ms / 1000
    for at in range(4):
        host.pass_time(session * 0.7)
        assert commit(host, at, member_id="m", epoch=4) == OK
    host.pass_time(session + 0.1)
    assert commit(host, 7, member_id="m", epoch=4) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("transactional", [False, True])
def test_what_is_refused_or_belongs_to_a_transaction_renews_no_session(transactional: bool) -> None:
    host = GroupHost()
    classic(host, "m")
    members = host.machine.classics["g"].members
    session = members["m"].session_timeout_ms / 1000
    host.pass_time(session * 0.9)
    assert list(members) == ["m"]
    if transactional:
        assert within(host, 9, "t0", member_id="m", epoch=4) == OK
    else:
        assert commit(host, 7, member_id="m", epoch=3) == ErrorCode.ILLEGAL_GENERATION
    host.pass_time(session * 0.3)
    assert not members


def test_an_empty_classic_group_takes_commits_without_membership() -> None:
    host = GroupHost()
    classic(host)
    assert commit(host) == OK
    assert commit(host, member_id="m", epoch=4) == ErrorCode.UNKNOWN_MEMBER_ID


# What ends by itself


def test_a_simple_groups_offsets_expire_and_the_group_with_them() -> None:
    host = GroupHost()
    commit(host, 1, "t0")
    host.pass_time(DAY)
    commit(host, 1, "t1")
    host.pass_time(WEEK - DAY - 1)
    assert fetched(host) == {"t0": 1, "t1": 1}
    host.pass_time(600)
    assert fetched(host) == {"t1": 1}
    host.pass_time(DAY)
    assert host.machine.groups == {}


def test_an_empty_group_keeps_its_offsets_from_when_it_became_empty() -> None:
    host = GroupHost()
    commit(host, 1)
    host.pass_time(WEEK - DAY)
    classic(host)
    host.pass_time(WEEK - 1200)
    assert fetched(host) == {"t0": 1}
    host.pass_time(2400)
    assert host.machine.groups == {}


def test_what_somebody_reads_does_not_expire() -> None:
    host = GroupHost(GroupSettings(consumer_session_timeout_ms=10**10), t=1, u=1)
    commit(host, 1, "t0", "u0")
    one = Member(host, "one")
    one.beat()
    host.pass_time(WEEK + 600)
    assert fetched(host) == {"t0": 1}
    one.beat(member_epoch=gm.LEAVE)
    host.pass_time(600)
    assert host.machine.groups == {}


def test_what_a_classic_member_reads_does_not_expire() -> None:
    host = GroupHost(GroupSettings(), t=1, u=1)
    commit(host, 1, "t0", "u0")
    classic(host, "m")
    host.pass_time(WEEK + 600)
    assert fetched(host) == {"t0": 1}
    classic(host, "m", protocol_type="connect")
    host.pass_time(WEEK + 600)
    assert fetched(host) == {"t0": 1}


def test_what_a_transaction_is_about_to_replace_does_not_expire() -> None:
    host = GroupHost()
    commit(host, 1, "t0", "t1")
    within(host, 2, "t0")
    host.pass_time(WEEK + 600)
    assert fetched(host) == {"t0": 1}
    host.mark(5, committed=False)
    host.pass_time(600)
    assert host.machine.groups == {}


def test_an_expiry_of_its_own_is_honoured() -> None:
    """From records of version 1."""
    host = GroupHost()
    value = r.OffsetValue(offset=1, commit_timestamp=0, expire_timestamp=WALL + int(host.now + 900) * 1000)
    host.log.append(ev.Entry(0, r.OffsetKey("g", "t", 0), value))
    host.lead()
    host.pass_time(600)
    assert fetched(host) == {"t0": 1}
    host.pass_time(600)
    assert host.machine.groups == {}


@pytest.mark.slow
def test_many_tombstones_go_in_several_batches() -> None:
    host = GroupHost(t=2500)
    asked = [gm.GroupOffset(topic="t", partition=each, offset=1) for each in range(2500)]
    host.ask(gm.CommitGroupOffsetsRequest(group="g", offsets=asked))
    host.pass_time(WEEK + 600)
    assert [len(batch) for batch in host.batches] == [2500, 1000, 1000, 500]
    assert host.machine.groups == {}


def test_offsets_of_a_deleted_topic_go() -> None:
    host = GroupHost(t=1, u=1, v=1)
    commit(host, 1, "t0", "u0", "v0")
    within(host, 2, "t0")
    host.see({"u": 1}, u=1, v=1)
    assert fetched(host) == {"v0": 1}
    host.mark(5)
    assert fetched(host) == {"v0": 1}


# Deletion and description


def test_a_group_is_deleted_when_nobody_is_in_it() -> None:
    host = GroupHost()
    assert host.ask(gm.DeleteGroupRequest(group="g")).error == ErrorCode.GROUP_ID_NOT_FOUND
    one = Member(host, "one")
    one.beat()
    commit(host, 1, **by(one))
    assert host.ask(gm.DeleteGroupRequest(group="g")).error == ErrorCode.NON_EMPTY_GROUP
    one.beat(member_epoch=gm.LEAVE)
    assert host.ask(gm.DeleteGroupRequest(group="g")).error == 0
    assert host.machine.groups == host.replayed().groups == {}


def test_a_classic_group_is_deleted_too() -> None:
    host = GroupHost()
    classic(host, "m")
    assert host.ask(gm.DeleteGroupRequest(group="g")).error == ErrorCode.NON_EMPTY_GROUP
    classic(host)
    assert host.ask(gm.DeleteGroupRequest(group="g")).error == 0
    assert host.machine.groups == {} and host.machine.classics == {}


def test_patterns_of_a_group_end_with_it() -> None:
    host = GroupHost()
    host.log.append(ev.Entry(0, r.RegexKey("g", "a"), r.RegexValue(topics=(), version=1, timestamp=1)))
    host.lead()
    assert host.ask(gm.DeleteGroupRequest(group="g")).error == 0
    assert host.machine.groups == {}


def test_offsets_that_a_transaction_was_about_to_write_go_with_their_topic() -> None:
    host = GroupHost()
    assert within(host, 9, "t0") == OK
    host.see({"t": 1}, t=4)
    host.mark(5)
    assert fetched(host, "t0") == {"t0": -1}


def test_offsets_are_deleted_of_topics_that_nobody_reads() -> None:
    host = GroupHost(t=1, u=1)
    places = [gm.TopicPartitionName(topic=each, partition=0) for each in ("t", "u", "w")]
    asked = gm.DeleteGroupOffsetsRequest(group="g", partitions=places)
    assert host.ask(asked).error == ErrorCode.GROUP_ID_NOT_FOUND
    commit(host, 1, "t0", "u0")
    Member(host, "one").beat()
    assert [each.error for each in host.ask(asked).partitions] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, 0]
    assert fetched(host) == {"t0": 1}


def test_offsets_of_a_classic_group_are_deleted_as_far_as_it_says_what_it_reads() -> None:
    host = GroupHost(t=1, u=1)
    commit(host, 1, "t0", "u0")
    places = [gm.TopicPartitionName(topic=each, partition=0) for each in ("t", "u")]
    asked = gm.DeleteGroupOffsetsRequest(group="g", partitions=places)
    classic(host, "m", protocol_type="connect")
    assert host.ask(asked).error == ErrorCode.NON_EMPTY_GROUP
    classic(host, "m")
    assert [each.error for each in host.ask(asked).partitions] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]


def test_groups_are_listed_with_type_and_state() -> None:
    host = GroupHost()
    classic(host, "m")
    Member(host, "one", group="h").beat()
    two = Member(host, "two", group="h")
    two.beat()
    commit(host, 1, group="s")
    Member(host, "left", group="e").beat()
    Member(host, "left", group="e", epoch=1).beat(member_epoch=gm.LEAVE)
    found = {each.group: (each.type, each.state) for each in host.ask(gm.ListGroupsRequest()).groups}
    assert found == {
        "e": ("consumer", "Empty"),
        "g": ("classic", "Stable"),
        "h": ("consumer", "Reconciling"),
        "s": ("simple", "Empty"),
    }
    stable = host.ask(gm.ListGroupsRequest(states=["Stable"])).groups
    assert [(each.group, each.protocol_type) for each in stable] == [("g", "consumer")]
    assert [each.group for each in host.ask(gm.ListGroupsRequest(types=["simple"])).groups] == ["s"]


def test_groups_are_described() -> None:
    host = GroupHost()
    classic(host, "m")
    one = Member(host, "one", group="h")
    settle(one)
    commit(host, 1, group="s")
    reply = host.ask(gm.DescribeGroupsRequest(groups=["g", "h", "s", "x"]))
    old, new, simple, none = reply.groups
    assert (old.type, old.state, old.epoch, old.protocol) == ("classic", "Stable", 4, "range")
    assert [(each.member_id, each.is_classic) for each in old.members] == [("m", True)]
    assert (new.state, new.epoch, new.target_epoch, new.protocol) == ("Stable", 1, 1, "uniform")
    [member] = new.members
    assert (member.member_id, member.epoch, member.topics) == ("one", 1, ["t"])
    assert member.owned == member.target and member.owned[0].partitions == [0, 1, 2, 3]
    assert (simple.type, simple.members) == ("simple", [])
    assert (none.error, none.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_a_consumer_group_is_described_with_the_assignor_that_it_goes_by() -> None:
    """Also if it has no members any more: the next one would find that."""
    host = GroupHost()

    def protocol() -> str:
        return str(host.ask(gm.DescribeGroupsRequest(groups=["g"])).groups[0].protocol)

    one = Member(host, "one")
    assert one.beat(assignor="range") == ErrorCode.NONE
    assert protocol() == "range"
    assert one.beat(member_epoch=gm.LEAVE) == ErrorCode.NONE
    assert protocol() == "uniform"


# The log as others may have left it


def test_tombstones_of_unknown_things_are_nothing() -> None:
    host = GroupHost()
    keys = [
        r.OffsetKey("g", "t", 0),
        r.ClassicGroupKey("g"),
        r.ConsumerGroupKey("g"),
        r.MemberKey("g", "m"),
        r.TargetEpochKey("g"),
        r.TargetKey("g", "m"),
        r.CurrentKey("g", "m"),
        r.RegexKey("g", "x"),
        r.TopicMetadataKey("g"),
    ]
    for key in keys:
        host.log.append(ev.Entry(len(host.log), key, None))
    host.lead()
    assert host.machine.groups == {}
    state = GroupState("g")
    for key in keys:
        state.put(key, None)
    assert state.empty


def test_an_empty_classic_group_becomes_one_of_the_consumer_protocol() -> None:
    host = GroupHost()
    classic(host)
    one = Member(host, "one")
    assert one.beat() == ErrorCode.NONE
    assert host.machine.groups["g"].classic is None and host.machine.classics == {}
