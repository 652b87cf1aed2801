"""Groups that move between the protocols, and groups whose members speak both."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from msgspec import structs

from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups import records as r
from insync.replication.core.groups.assignors.assignment import Partition, Subscription
from insync.replication.core.groups.assignors.range import RangeAssignor
from insync.replication.core.groups.classic_state import ClassicPhase
from insync.replication.core.groups.embedded import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    as_numbers,
    as_partitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from insync.replication.core.groups.settings import GroupSettings
from insync.replication.core.messages import groups as gm

from .harness import GroupHost, Member

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, consumer_session_timeout_ms=45_000)
SESSION = 10.0
PARTITIONS = 6
IDS = iter(range(10**9))


@attrs.define
class Classic:
    """A consumer of the classic protocol: eager (it lets all go before it joins), or cooperative."""

    host: GroupHost
    cooperative: bool = False
    instance_id: str | None = None
    topics: tuple[str, ...] = ("t",)
    member_id: str = ""
    generation: int = -1
    owned: frozenset[Partition] = frozenset()
    rebalance_timeout_ms: int = 30_000
    withheld: frozenset[Partition] = frozenset()
    """What it gives to nobody when it leads: its owner is to let it go first."""
    rejoins: int = 0

    def metadata(self, version: int) -> bytes:
        owned = as_numbers(self.owned) if self.cooperative else ()
        return encode_subscription(EmbeddedSubscription(topics=self.topics, owned=owned), version)

    def join(self) -> int:
        """The request, parked or answered."""
        self.rejoins += 1
        if not self.cooperative:
            self.owned = frozenset()
        ask = gm.JoinGroupRequest(
            group="g",
            member_id=self.member_id,
            instance_id=self.instance_id,
            session_timeout_ms=int(SESSION * 1000),
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocol_type="consumer",
            protocols=[gm.GroupProtocol(name="range", metadata=self.metadata(1))],
            fresh_id=f"c{next(IDS)}",
        )
        asked = self.host.send(ask)
        reply = self.host.said.get(asked)
        if reply is not None and reply.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            return self.join()
        return asked

    def joined(self, asked: int) -> gm.JoinGroupResponse:
        reply = self.host.said[asked]
        if not reply.error:
            self.member_id, self.generation = reply.member_id, reply.generation
        return reply

    def sync(self, reply: gm.JoinGroupResponse) -> int:
        """As the leader it assigns by range."""
        given = []
        if reply.leader_id == reply.member_id:
            members = {
                each.member_id: Subscription(topics=frozenset(decode_subscription(each.metadata).topics))
                for each in reply.members
            }
            shared = RangeAssignor().assign({"t": PARTITIONS}, members)
            mine = set(shared[self.member_id])
            shared = {
                name: [each for each in got if each in mine or each not in self.withheld]
                for name, got in shared.items()
            }
            given = [
                gm.MemberAssignment(
                    member_id=name,
                    assignment=encode_assignment(EmbeddedAssignment(partitions=as_numbers(got)), 1),
                )
                for name, got in shared.items()
            ]
        return self.host.send(
            gm.SyncGroupRequest(
                group="g", member_id=self.member_id, generation=self.generation, assignments=given
            )
        )

    def synced(self, asked: int) -> ErrorCode:
        reply = self.host.said[asked]
        if not reply.error:
            self.owned = as_partitions(decode_assignment(reply.assignment).partitions)
        return ErrorCode(reply.error)

    def beat(self) -> ErrorCode:
        ask = gm.HeartbeatRequest(group="g", member_id=self.member_id, generation=self.generation)
        return ErrorCode(self.host.ask(ask).error)

    def turn(self) -> None:
        """One heartbeat; what follows from it is done as a client does it. A cooperative one that has let
        partitions go joins once more."""
        error = self.beat()
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id, self.owned = "", frozenset()
        elif error == ErrorCode.NONE:
            return
        before = self.owned
        asked = self.join()
        if self.host.waits(asked):
            return
        reply = self.joined(asked)
        if not reply.error and not self.synced(self.sync(reply)) and self.cooperative and before - self.owned:
            self.turn_again()

    def turn_again(self) -> None:
        reply = self.joined(self.join())
        assert not reply.error and not self.synced(self.sync(reply))

    def leave(self) -> None:
        named = gm.LeavingMember(member_id=self.member_id)
        assert self.host.ask(gm.LeaveGroupRequest(group="g", members=[named])).errors == [0]


def form(host: GroupHost, *members: Classic) -> None:
    """A stable classic group."""
    joins = [each.join() for each in members]
    host.pass_time(0.1)
    replies = [each.joined(asked) for each, asked in zip(members, joins, strict=True)]
    syncs = [each.sync(reply) for each, reply in zip(members, replies, strict=True)]
    assert [each.synced(asked) for each, asked in zip(members, syncs, strict=True)] == [0] * len(members)


def owners(host: GroupHost, *members: Member | Classic) -> list[int]:
    """How many partitions each has; nobody shares one with another."""
    owned: list[set[Partition]] = []
    for each in members:
        if isinstance(each, Classic):
            owned.append(set(each.owned))
        else:
            names = host.view.names
            owned.append({Partition(names[one.topic_id], one.partition) for one in each.owned})
    assert sum(map(len, owned)) == len(set().union(*owned)), owned
    return [len(each) for each in owned]


def settle(host: GroupHost, *members: Member | Classic) -> None:
    for _ in range(12):
        for each in members:
            if isinstance(each, Classic):
                each.turn()
            else:
                assert each.beat() == ErrorCode.NONE
            owners(host, *members)
        host.pass_time(0.2)
    assert sum(owners(host, *members)) == PARTITIONS


def moved(cooperative: bool = True, count: int = 2) -> tuple[GroupHost, list[Classic], Member]:
    """A classic group, and the member of the consumer protocol that moves it up."""
    host = GroupHost(SETTINGS, t=PARTITIONS)
    old = [Classic(host, cooperative=cooperative) for _ in range(count)]
    form(host, *old)
    new = Member(host, "new")
    assert new.beat() == ErrorCode.NONE
    return host, old, new


def types(batch: tuple[tuple[Any, Any], ...]) -> list[str]:
    return [f"{type(key).__name__}{'' if value is not None else ' gone'}" for key, value in batch]


def test_a_group_moves_up_in_one_batch_and_everybody_keeps_what_he_has() -> None:
    host, old, new = moved()
    assert types(host.batches[-1])[:4] == [
        "ClassicGroupKey gone",
        "ConsumerGroupKey",
        "MemberKey",
        "TargetKey",
    ]
    state = host.machine.groups["g"]
    assert state.is_consumer and state.classic is None and "g" not in host.machine.classics
    assert state.epoch == 2 and new.epoch == 2
    for each in old:
        current = state.current(each.member_id)
        assert current.epoch == each.generation == 1
        assert {number for one in current.assigned for number in one.partitions} == {
            one.partition for one in each.owned
        }
    assert owners(host, *old, new) == [3, 3, 0]
    assert host.machine.groups == host.replayed().groups


@pytest.mark.parametrize("cooperative", [True, False])
def test_members_of_both_protocols_share_what_there_is(cooperative: bool) -> None:
    host, old, new = moved(cooperative=cooperative)
    assert old[0].beat() == ErrorCode.REBALANCE_IN_PROGRESS
    settle(host, *old, new)
    assert owners(host, *old, new) == [2, 2, 2]
    joins = [each.rejoins for each in old]
    settle(host, *old, new)
    assert [each.rejoins for each in old] == joins, "nobody joins again without a cause"


def test_an_old_client_joins_a_group_of_the_new_protocol() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    new, old = Member(host, "new"), Classic(host, cooperative=True)
    new.beat()
    reply = old.joined(old.join())
    assert (reply.error, reply.protocol, reply.leader_id, reply.members) == (0, "range", "", [])
    assert old.synced(old.sync(reply)) == ErrorCode.NONE
    settle(host, new, old)
    assert owners(host, new, old) == [3, 3]
    described = host.ask(gm.DescribeGroupsRequest(groups=["g"])).groups[0]
    assert [each.is_classic for each in described.members] == [True, False]


def test_old_clients_commit_by_their_generation() -> None:
    host, old, new = moved()
    settle(host, *old, new)
    one = old[0]
    number = min(each.partition for each in one.owned)

    def commit(generation: int) -> gm.CommitGroupOffsetsResponse:
        offsets = [gm.GroupOffset(topic="t", partition=number, offset=5)]
        return host.ask(
            gm.CommitGroupOffsetsRequest(
                group="g", member_id=one.member_id, epoch=generation, offsets=offsets
            )
        )

    assert [each.error for each in commit(one.generation).partitions] == [0]
    assert commit(one.generation + 1).error == ErrorCode.ILLEGAL_GENERATION


def test_what_an_old_client_was_given_by_name_is_not_a_later_topic_of_that_name() -> None:
    host, old, new = moved(count=1)
    settle(host, *old, new)
    one = old[0]
    number = min(each.partition for each in one.owned)

    def begins() -> ErrorCode:
        """Where the client is to begin in what it takes its assignment for."""
        place = gm.TopicPartitionName(topic="t", partition=number, topic_id=host.view.topics["t"].topic_id)
        asked = gm.GroupOffsetsRequest(
            group="g", member_id=one.member_id, epoch=one.generation, partitions=[place]
        )
        return ErrorCode(host.ask(asked).offsets[0].error)

    assert begins() == ErrorCode.NONE
    host.see({"t": 1}, t=PARTITIONS)
    assert begins() == ErrorCode.STALE_MEMBER_EPOCH
    # It learns by its heartbeat that there is something new, and is given its share of the later topic.
    one.turn()
    assert new.beat() == ErrorCode.NONE
    settle(host, one, new)
    number = min(each.partition for each in one.owned)
    assert begins() == ErrorCode.NONE


def test_joins_that_waited_come_again_when_the_group_moves_up() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    one, two = Classic(host, cooperative=True), Classic(host, cooperative=True)
    form(host, one)
    waiting = two.join()
    assert host.waits(waiting)
    new = Member(host, "new")
    new.beat()
    assert two.joined(waiting).error == ErrorCode.REBALANCE_IN_PROGRESS
    settle(host, one, two, new)
    assert owners(host, one, two, new) == [2, 2, 2]


def test_the_last_new_member_takes_the_group_down_with_it_in_one_batch() -> None:
    host, old, new = moved()
    settle(host, *old, new)
    new.beat(member_epoch=-1)
    batch = types(host.batches[-1])
    assert batch[-1] == "ClassicGroupKey" and "ConsumerGroupKey gone" in batch
    state = host.machine.groups["g"]
    assert not state.is_consumer and state.classic is not None and not state.members
    assert host.machine.groups == host.replayed().groups
    # They rejoin, the leader assigns, and all goes on as before.
    joins = []
    for each in old:
        assert each.beat() in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
        joins.append(each.join())
    replies = [each.joined(asked) for each, asked in zip(old, joins, strict=True)]
    assert [each.error for each in replies] == [0, 0]
    syncs = [each.sync(reply) for each, reply in zip(old, replies, strict=True)]
    assert [each.synced(asked) for each, asked in zip(old, syncs, strict=True)] == [0, 0]
    assert owners(host, *old) == [3, 3]


def test_a_static_member_goes_to_the_new_protocol_and_back_with_what_it_has() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    old, other = Classic(host, cooperative=True, instance_id="i"), Classic(host, cooperative=True)
    form(host, old, other)
    new = Member(host, "new", instance_id="i")
    assert new.beat() == ErrorCode.NONE
    assert old.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    settle(host, new, other)
    assert owners(host, new, other) == [3, 3]
    back = Classic(host, cooperative=True, instance_id="i")
    assert host.said[back.join()].error == ErrorCode.REBALANCE_IN_PROGRESS
    assert host.machine.groups["g"].classic is not None
    assert new.beat() != ErrorCode.NONE


def test_a_static_member_that_moves_a_group_up_has_it_shared_out_anew() -> None:
    """It stands for a member that was there, and what a client had shared out need not be all."""
    host = GroupHost(SETTINGS, t=PARTITIONS)
    old = Classic(host, instance_id="i")
    form(host, old)
    host.see(t=PARTITIONS + 2)
    new = Member(host, "new", instance_id="i")
    assert new.beat() == ErrorCode.NONE
    assert len(new.owned) == PARTITIONS + 2 and new.epoch == 2


def test_offsets_are_common_to_both_types() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    old = Classic(host)
    form(host, old)
    offsets = [gm.GroupOffset(topic="t", partition=0, offset=9)]
    commit = gm.CommitGroupOffsetsRequest(
        group="g", member_id=old.member_id, epoch=old.generation, offsets=offsets
    )
    assert [each.error for each in host.ask(commit).partitions] == [0]
    new = Member(host, "new")
    new.beat()
    old.leave()
    settle(host, new)
    assert [each.offset for each in host.ask(gm.GroupOffsetsRequest(group="g")).offsets] == [9]


@pytest.mark.parametrize("step", ["join", "sync"])
def test_an_old_client_that_does_not_come_in_time_begins_anew(step: str) -> None:
    """It keeps its partitions until its session is over: it may still read them."""
    host, (old,), new = moved(count=1)
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    if step == "sync":
        settle(host, old, new)
        old.joined(old.join())
    for _ in range(10):
        host.pass_time(4.0)
        new.beat()
        if old.beat() == ErrorCode.UNKNOWN_MEMBER_ID:
            break
    else:
        raise AssertionError("nobody has told it")
    assert old.member_id in host.machine.groups["g"].members
    host.pass_time(SESSION)
    assert old.member_id not in host.machine.groups["g"].members


@pytest.mark.parametrize("lets_go", [False, True])
def test_an_old_client_cannot_keep_what_it_is_to_let_go_by_joining_again(lets_go: bool) -> None:
    host, (old,), new = moved(count=1)

    def join() -> ErrorCode:
        return ErrorCode(old.joined(old.join()).error)

    assert join() == ErrorCode.NONE
    for _ in range(7):
        host.pass_time(4.0)
        new.beat()
        assert join() == ErrorCode.NONE, "it has its time to let go"
    host.pass_time(4.0)
    new.beat()
    if lets_go:
        wanted = host.machine.groups["g"].current(old.member_id).assigned
        old.owned = frozenset(Partition("t", number) for each in wanted for number in each.partitions)
        assert join() == ErrorCode.NONE, "late, but it has let go"
        settle(host, old, new)
        return
    assert join() == ErrorCode.UNKNOWN_MEMBER_ID
    # What it may still hand out is given to others when its session is over.
    assert old.member_id in host.machine.groups["g"].members
    for _ in range(4):
        host.pass_time(SESSION / 3)
        assert join() == ErrorCode.UNKNOWN_MEMBER_ID
        new.beat()
    assert old.member_id not in host.machine.groups["g"].members
    settle(host, new)


def test_a_member_is_told_to_join_again_while_it_has_to_let_go_and_when_there_is_something_for_it() -> None:
    host, (giver,), new = moved(count=1)
    assert giver.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    reply = giver.joined(giver.join())
    assert reply.generation == 1, "it has its new epoch when it has let go"
    assert giver.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    taker = Classic(host, cooperative=True)
    assert not taker.synced(taker.sync(taker.joined(taker.join())))
    assert taker.beat() == ErrorCode.NONE, "there is nothing for it yet"
    assert not giver.synced(giver.sync(reply))
    giver.turn()
    assert taker.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    settle(host, giver, taker, new)
    assert owners(host, giver, taker, new) == [2, 2, 2]


def test_members_stay_over_a_change_of_the_coordinator() -> None:
    host, old, new = moved()
    settle(host, *old, new)
    host.lead()
    for _ in range(2):
        host.pass_time(SESSION / 2)
        assert new.beat() == ErrorCode.NONE
    assert [each.beat() for each in old] == [ErrorCode.NONE] * 2
    host.lead()
    for _ in range(4):
        host.pass_time(SESSION / 2)
        assert new.beat() == ErrorCode.NONE
    assert [each.member_id in host.machine.groups["g"].members for each in old] == [False, False]


def down_and_over(**how: Any) -> tuple[GroupHost, Classic]:
    """The last member of the consumer protocol has gone; the coordinator changes before the rebalance."""
    host = GroupHost(SETTINGS, t=PARTITIONS)
    old, new = Classic(host, **how), Member(host, "new")
    form(host, old)
    assert new.beat() == ErrorCode.NONE
    settle(host, old, new)
    assert new.beat(member_epoch=-1) == ErrorCode.NONE
    host.lead()
    return host, old


@pytest.mark.parametrize("changes", [1, 2])
def test_a_later_coordinator_shares_out_what_a_group_that_moved_down_was_left(changes: int) -> None:
    host, old = down_and_over(cooperative=True)
    for _ in range(changes - 1):
        host.lead()
    settle(host, old)
    assert owners(host, old) == [PARTITIONS]
    # It is shared out by now: another change of the coordinator begins nothing.
    generation = old.generation
    host.lead()
    assert old.beat() == ErrorCode.NONE and old.generation == generation


def test_who_replaces_a_static_member_after_a_move_down_waits_for_what_the_others_left() -> None:
    host, _ = down_and_over(instance_id="i")
    again = Classic(host, instance_id="i")
    reply = again.joined(again.join())
    assert again.synced(again.sync(reply)) == ErrorCode.NONE
    assert owners(host, again) == [PARTITIONS]


def test_a_static_member_that_comes_late_after_a_move_down_leads_though_nobody_was_there() -> None:
    # A new coordinator waits for it a little longer than for its join.
    how: dict[str, Any] = {"instance_id": "i", "rebalance_timeout_ms": int(SESSION * 1000)}
    host, old = down_and_over(**how)
    host.pass_time(SESSION + 0.5 * SETTINGS.isolation_timeout_ms / 1000)
    assert host.machine.classics["g"].phase is ClassicPhase.COMPLETING
    settle(host, old)


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_the_policy_says_which_moves_there_are(policy: str, up: bool, down: bool) -> None:
    settings = structs.replace(SETTINGS, consumer_migration_policy=policy)
    host = GroupHost(settings, t=PARTITIONS)
    form(host, Classic(host))
    new = Member(host, "new")
    assert (new.beat() == ErrorCode.NONE) == up
    if not up:
        assert new.last.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and "policy" in new.last.message
    other = GroupHost(settings, t=PARTITIONS)
    last, old = Member(other, "last"), Classic(other, cooperative=True)
    last.beat()
    assert not old.synced(old.sync(old.joined(old.join())))
    last.beat(member_epoch=-1)
    assert other.machine.groups["g"].is_consumer == (not down)


def test_a_group_of_others_than_consumers_does_not_move() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    connect = gm.JoinGroupRequest(
        group="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="connect",
        protocols=[gm.GroupProtocol(name="sessioned", metadata=b"?")],
        known_member_id=False,
        fresh_id="worker",
    )
    host.send(connect)
    assert Member(host, "new").beat() == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = GroupHost(SETTINGS, t=PARTITIONS)
    Member(other, "new").beat()
    assert other.ask(connect).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    garbage = structs.replace(connect, protocol_type="consumer")
    refused = other.ask(garbage)
    assert refused.error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and "cannot be decoded" in refused.message


def test_a_move_that_the_log_does_not_take_changes_nothing() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    old = Classic(host)
    form(host, old)
    host.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert Member(host, "new").beat() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.refuse = None
    assert old.beat() == ErrorCode.NONE
    assert host.machine.classics["g"].members


def test_an_assignment_of_a_client_that_gives_a_partition_twice_gives_it_once() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    one, two = Classic(host), Classic(host)
    form(host, one, two)
    twice = encode_assignment(EmbeddedAssignment(partitions=as_numbers(one.owned | two.owned)), 1)
    for member in host.machine.classics["g"].members.values():
        member.assignment = twice
    Member(host, "new").beat()
    held = [
        each for current in host.machine.groups["g"].currents.values() for each in r.as_set(current.assigned)
    ]
    assert len(held) == len(set(held)) == PARTITIONS


def test_what_a_member_still_holds_is_given_to_nobody_when_the_group_moves_up() -> None:
    """A cooperative assignor withholds what is to move; the group moves up before the owner has heard of it."""
    host = GroupHost(SETTINGS, t=PARTITIONS)
    one, two = Classic(host, cooperative=True), Classic(host, cooperative=True)
    form(host, one)
    assert owners(host, one) == [PARTITIONS]
    first = two.join()
    joins = [one.join(), first]
    replies = [each.joined(asked) for each, asked in zip((one, two), joins, strict=True)]
    one.withheld = one.owned
    syncs = [each.sync(reply) for each, reply in zip((one, two), replies, strict=True)]
    new = Member(host, "new")
    assert new.beat() == ErrorCode.NONE
    assert owners(host, one, new) == [PARTITIONS, 0], "the owner hands it out until it hears its assignment"
    current = host.machine.groups["g"].current(one.member_id)
    assert current.state == r.MemberState.UNREVOKED
    assert {each.partition for each in r.as_set(current.pending)} == {3, 4, 5}
    assert two.synced(syncs[1]) == one.synced(syncs[0]) == ErrorCode.NONE
    assert owners(host, one, two, new) == [3, 0, 0]
    one.turn_again()
    one.withheld = frozenset()
    settle(host, one, two, new)
    assert owners(host, one, two, new) == [2, 2, 2]
    assert host.machine.groups == host.replayed().groups


def test_of_two_that_claim_a_partition_the_later_generation_still_holds_it() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    old, late = Classic(host, cooperative=True), Classic(host, cooperative=True)
    form(host, old, late)
    claimed = as_numbers({Partition("t", number) for number in range(PARTITIONS)})
    for generation, (member, given) in enumerate(((old, ()), (late, (0,)))):
        known = host.machine.classics["g"].members[member.member_id]
        said = EmbeddedSubscription(topics=("t",), owned=claimed, generation=generation)
        known.protocols = (r.ClassicProtocol(name="range", metadata=encode_subscription(said, 2)),)
        mine = as_numbers({Partition("t", number) for number in given})
        known.assignment = encode_assignment(EmbeddedAssignment(partitions=mine), 1)
    Member(host, "new").beat()
    currents = host.machine.groups["g"].currents
    held = {name: {each.partition for each in r.as_set(value.pending)} for name, value in currents.items()}
    assert held == {old.member_id: set(), late.member_id: {1, 2, 3, 4, 5}, "new": set()}
