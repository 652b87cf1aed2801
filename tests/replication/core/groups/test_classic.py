"""Groups of the classic protocol: join, sync, heartbeat, leave, static members, silence."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from msgspec import structs

from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups import classic_state
from insync.replication.core.groups import records as r
from insync.replication.core.groups.classic_joins import MAX_PENDING
from insync.replication.core.groups.classic_state import ClassicMember, ClassicPhase, ClassicState
from insync.replication.core.groups.records import ClassicProtocol
from insync.replication.core.groups.settings import GroupSettings
from insync.replication.core.messages import groups as gm

from .harness import GroupHost, Member

IDS = iter(range(10**9))


@attrs.define
class Old:
    """A client of the classic protocol."""

    host: GroupHost
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    protocols: tuple[tuple[str, bytes], ...] = (("range", b"t"),)
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000

    def join(self, **changes: Any) -> int:
        """A parked join; with the id that it is given first, if it needs one."""
        said: dict[str, Any] = {
            "group": "g",
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "session_timeout_ms": self.session_timeout_ms,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "protocol_type": "consumer",
            "protocols": [gm.GroupProtocol(name=name, metadata=data) for name, data in self.protocols],
            "fresh_id": f"m{next(IDS)}",
        }
        asked = self.host.send(gm.JoinGroupRequest(**said | changes))
        reply = self.host.said.get(asked)
        if reply is not None and reply.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            return self.join(**changes)
        return asked

    def joined(self, asked: int) -> gm.JoinGroupResponse:
        reply = self.host.said[asked]
        if reply.error == 0:
            self.member_id, self.generation = reply.member_id, reply.generation
        return reply

    def sync(self, *assigned: Old, **changes: Any) -> int:
        """With assignments, as the leader; each gets its own id in upper case."""
        said: dict[str, Any] = {
            "group": "g",
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "generation": self.generation,
            "assignments": [
                gm.MemberAssignment(member_id=each.member_id, assignment=each.member_id.upper().encode())
                for each in assigned
            ],
        }
        return self.host.send(gm.SyncGroupRequest(**said | changes))

    def beat(self, **changes: Any) -> ErrorCode:
        said: dict[str, Any] = {
            "group": "g",
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "generation": self.generation,
        }
        return ErrorCode(self.host.ask(gm.HeartbeatRequest(**said | changes)).error)

    def leave(self) -> ErrorCode:
        named = gm.LeavingMember(member_id=self.member_id, instance_id=self.instance_id)
        [error] = self.host.ask(gm.LeaveGroupRequest(group="g", members=[named])).errors
        return ErrorCode(error)


def state(host: GroupHost) -> ClassicState:
    return host.machine.classics["g"]


def error(host: GroupHost, asked: int) -> ErrorCode:
    return ErrorCode(host.said[asked].error)


def stable(count: int = 2, **changes: Any) -> tuple[GroupHost, list[Old]]:
    """A stable group; the first member leads."""
    host = GroupHost()
    members = [Old(host, **changes) for _ in range(count)]
    form(host, members)
    return host, members


def form(host: GroupHost, members: list[Old]) -> None:
    joins = [each.join() for each in members]
    host.pass_time(3 * len(members) + 3)
    for each, asked in zip(members, joins, strict=True):
        assert each.joined(asked).error == 0
    share(host, members)


def share(host: GroupHost, members: list[Old]) -> None:
    leader = next(each for each in members if each.member_id == state(host).leader)
    syncs = [each.sync(*(members if each is leader else ())) for each in members]
    for each, asked in zip(members, syncs, strict=True):
        assert host.said[asked].assignment == each.member_id.upper().encode()


def test_a_group_forms_when_nobody_has_come_for_a_while() -> None:
    host = GroupHost()
    one, two = Old(host), Old(host)
    first = one.join()
    host.pass_time(2)
    second = two.join()
    host.pass_time(2.9)
    assert host.waits(first) and host.waits(second)
    host.pass_time(0.1)
    told, other = one.joined(first), two.joined(second)
    assert (told.generation, told.protocol, told.leader_id) == (1, "range", one.member_id)
    assert [each.member_id for each in told.members] == [one.member_id, two.member_id]
    assert other.members == [] and other.leader_id == one.member_id
    # Nothing is stored before the leader has assigned.
    assert host.batches == []
    parked = two.sync()
    assert host.waits(parked)
    done = one.sync(one, two)
    assert host.said[done].assignment == one.member_id.upper().encode()
    assert host.said[parked].assignment == two.member_id.upper().encode()
    [((key, value),)] = host.batches
    assert key == r.ClassicGroupKey("g") and value.generation == 1 and len(value.members) == 2
    assert state(host).phase is ClassicPhase.STABLE


def test_syncs_are_answered_when_the_assignment_is_committed() -> None:
    host = GroupHost()
    one = Old(host)
    asked = one.join()
    host.pass_time(3)
    one.joined(asked)
    host.commits = False
    sync = one.sync(one)
    assert host.waits(sync)
    host.commit()
    assert error(host, sync) == ErrorCode.NONE


def test_a_refused_assignment_may_be_handed_in_again() -> None:
    host = GroupHost()
    one = Old(host)
    asked = one.join()
    host.pass_time(3)
    one.joined(asked)
    host.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert error(host, one.sync(one)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.refuse = None
    assert error(host, one.sync(one)) == ErrorCode.NONE
    host.pass_time(10)
    assert state(host).phase is ClassicPhase.EMPTY, "its session goes on"


def test_the_initial_wait_ends_with_the_rebalance_timeout() -> None:
    host = GroupHost()
    first = Old(host, rebalance_timeout_ms=5_000).join()
    for _ in range(2):
        host.pass_time(2)
        Old(host, rebalance_timeout_ms=5_000).join()
    host.pass_time(1)
    assert error(host, first) == ErrorCode.NONE


def test_another_member_rebalances_and_heartbeats_say_so() -> None:
    host, [one, two] = stable()
    three = Old(host)
    third = three.join()
    assert host.waits(third)
    assert one.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert error(host, one.sync()) == ErrorCode.REBALANCE_IN_PROGRESS
    first, second = one.join(), two.join()
    assert one.joined(first).generation == 2 and two.joined(second).generation == 2
    assert one.joined(first).leader_id == one.member_id
    assert three.joined(third).generation == 2
    share(host, [one, two, three])
    assert one.beat() == ErrorCode.NONE


def test_an_unchanged_follower_is_told_what_is_and_a_leader_rebalances() -> None:
    host, [one, two] = stable()
    again = two.joined(two.join())
    assert (again.generation, again.members) == (1, [])
    asked = one.join()
    assert host.waits(asked)
    two.joined(two.join())
    assert one.joined(asked).generation == 2
    # Before the assignment is there, the same answer is given to both.
    assert one.joined(one.join()).generation == 2
    assert len(one.joined(one.join()).members) == 2
    changed = attrs.evolve(two, protocols=(("range", b"u"),))
    assert host.waits(changed.join())
    assert state(host).phase is ClassicPhase.PREPARING


def test_who_does_not_join_in_time_is_out() -> None:
    host, [one, two] = stable(session_timeout_ms=30_000, rebalance_timeout_ms=20_000)
    asked = one.join()
    host.pass_time(20)
    assert [each.member_id for each in one.joined(asked).members] == [one.member_id]
    assert two.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_sync_in_time_is_out() -> None:
    host, [one, two] = stable(session_timeout_ms=30_000, rebalance_timeout_ms=20_000)
    first, second = one.join(), two.join()
    one.joined(first), two.joined(second)
    parked = one.sync(one, two)
    assert error(host, parked) == ErrorCode.NONE
    first, second = one.join(), two.join()
    one.joined(first), two.joined(second)
    waits = two.sync()
    host.pass_time(20)
    assert error(host, waits) == ErrorCode.REBALANCE_IN_PROGRESS
    assert one.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    two.joined(two.join())
    assert state(host).leader == two.member_id


def test_a_silent_member_is_out_and_a_parked_one_is_not() -> None:
    host, [one, two] = stable()
    asked = one.join()
    host.pass_time(9.9)
    assert host.waits(asked)
    host.pass_time(0.1)
    assert one.joined(asked).generation == 2
    assert two.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_never_comes_back_blocks_nobody_for_long() -> None:
    """KAFKA-9752: it counts among those who are awaited; KAFKA-7909: its end lets the others go on."""
    host, [one, two] = stable(session_timeout_ms=30_000)
    ghost = Old(host)
    asked = host.send(
        gm.JoinGroupRequest(
            group="g",
            session_timeout_ms=8_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[gm.GroupProtocol(name="range", metadata=b"")],
            fresh_id="ghost",
        )
    )
    assert error(host, asked) == ErrorCode.MEMBER_ID_REQUIRED
    assert one.beat() == ErrorCode.NONE, "it starts no rebalance"
    first, second = one.join(), two.join()
    assert host.waits(second)
    host.pass_time(7.9)
    assert host.waits(first)
    host.pass_time(0.1)
    assert one.joined(first).generation == 2
    assert error(host, attrs.evolve(ghost, member_id="ghost").join()) == ErrorCode.UNKNOWN_MEMBER_ID


def test_ids_are_bounded_and_a_group_of_ghosts_is_nothing() -> None:
    host = GroupHost()
    asked = gm.JoinGroupRequest(
        group="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[gm.GroupProtocol(name="range", metadata=b"")],
    )
    for number in range(MAX_PENDING):
        assert host.ask(structs.replace(asked, fresh_id=f"x{number}")).error == ErrorCode.MEMBER_ID_REQUIRED
    assert host.ask(structs.replace(asked, fresh_id="y")).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    host.pass_time(10)
    assert host.machine.classics == {}


def test_a_member_leaves_and_the_last_one_leaves_an_empty_group() -> None:
    host, [one, two] = stable()
    assert two.leave() == ErrorCode.NONE
    assert one.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert two.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.leave() == ErrorCode.NONE
    value = host.machine.groups["g"].classic
    assert value is not None and value.members == () and value.protocol is None
    assert value.generation == 2 and value.state_timestamp > 0
    assert host.replayed().groups == host.machine.groups


def test_that_a_group_is_empty_is_written_as_soon_as_it_can_be() -> None:
    host, [one] = stable(1)
    host.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    assert one.leave() == ErrorCode.NONE
    host.refuse = None
    host.pass_time(0.1)
    value = host.machine.groups["g"].classic
    assert value is not None and value.members == ()


def test_a_static_member_comes_back_under_another_id_without_a_rebalance() -> None:
    host, [one, two] = stable()
    static = Old(host, instance_id="i")
    asked = [each.join() for each in (static, one, two)]
    for each, mine in zip((static, one, two), asked, strict=True):
        each.joined(mine)
    share(host, [one, two, static])
    written = len(host.batches)
    again = Old(host, instance_id="i")
    told = again.joined(again.join())
    assert told.generation == static.generation and again.member_id != static.member_id
    assert len(host.batches) == written + 1, "the new id is known to the next coordinator"
    assert static.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert error(host, static.sync()) == ErrorCode.FENCED_INSTANCE_ID
    # It has what it had.
    assert host.said[again.sync()].assignment == static.member_id.upper().encode()
    host.lead()
    assert again.beat() == ErrorCode.NONE and one.beat() == ErrorCode.NONE


def test_an_instance_that_nobody_has_is_no_member() -> None:
    host, [one, two] = stable()
    assert one.beat(instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert error(host, one.sync(instance_id="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert attrs.evolve(one, instance_id="i").leave() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.beat() == two.beat() == ErrorCode.NONE


def test_a_static_leader_that_comes_back_need_not_assign() -> None:
    host, _ = stable(1, instance_id="i")
    again = Old(host, instance_id="i")
    told = again.joined(again.join())
    assert told.skip_assignment and told.leader_id == again.member_id and len(told.members) == 1


def test_a_static_member_that_is_replaced_before_the_assignment_rebalances() -> None:
    host, [one, static] = stable(instance_id=None)
    static.leave()
    static = Old(host, instance_id="i")
    asked = static.join()
    one.joined(one.join())
    static.joined(asked)
    parked = static.sync()
    again = Old(host, instance_id="i")
    asked = again.join()
    assert error(host, parked) == ErrorCode.FENCED_INSTANCE_ID
    assert host.waits(asked) and one.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    one.joined(one.join())
    assert again.joined(asked).generation == 3
    # And while members join, it takes the place of its former self among them.
    other = attrs.evolve(one, protocols=(("range", b"new"),))
    other.join()
    waits = again.join()
    assert not host.waits(waits)


def test_a_static_member_that_is_dead_goes_however_often_the_others_join() -> None:
    host, [static] = stable(1, instance_id="i")
    other = Old(host, rebalance_timeout_ms=6_000)
    state(host).members[static.member_id].rebalance_timeout_ms = 6_000
    asked = other.join()
    host.pass_time(6.1)
    assert other.joined(asked).error == 0 and static.member_id in state(host).members
    asked = other.join(protocols=[gm.GroupProtocol(name="range", metadata=b"u")])
    # Its session began when it was heard last, before the first rebalance.
    host.pass_time(4.0)
    assert list(state(host).members) == [other.member_id]
    assert other.joined(asked).error == 0


def test_a_static_member_that_is_dead_goes_however_often_the_others_share_out() -> None:
    host, [static] = stable(1, instance_id="i")
    other = Old(host, rebalance_timeout_ms=6_000)
    state(host).members[static.member_id].rebalance_timeout_ms = 6_000
    asked = other.join()
    host.pass_time(6.1)
    other.joined(asked)
    assert host.said[other.sync(other)].error == 0 and static.member_id in state(host).members
    # What its leader shares out is no word of its own: its session began before the rebalance.
    host.pass_time(4.0)
    assert list(state(host).members) == [other.member_id]


def test_a_commit_starts_no_session_of_a_member_whose_join_is_parked() -> None:
    host, [one, other] = stable()
    asked = one.join()
    offset = gm.GroupOffset(topic="t", partition=0, offset=1)
    said = gm.CommitGroupOffsetsRequest(
        group="g", member_id=one.member_id, epoch=one.generation, offsets=[offset]
    )
    assert host.waits(asked) and not host.ask(said).error
    for _ in range(3):
        # Longer than a session, in which the other is heard, and does not join.
        host.pass_time(5)
        assert other.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert host.waits(asked) and one.member_id in state(host).members


def test_a_parked_static_join_is_fenced_by_its_successor() -> None:
    host, [one] = stable(1)
    static, again = Old(host, instance_id="i"), Old(host, instance_id="i")
    first = static.join()
    second = again.join()
    assert error(host, first) == ErrorCode.FENCED_INSTANCE_ID
    one.joined(one.join())
    assert again.joined(second).generation == 2


def test_an_operator_removes_a_static_member_by_its_instance() -> None:
    host, [one] = stable(1, instance_id="i")
    asked = gm.LeaveGroupRequest(
        group="g",
        members=[
            gm.LeavingMember(instance_id="i"),
            gm.LeavingMember(instance_id="j"),
            gm.LeavingMember(member_id="x", instance_id="i"),
        ],
    )
    errors = host.ask(asked).errors
    assert errors == [0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert one.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_of_another_id_does_not_leave_for_an_instance() -> None:
    host, _ = stable(1, instance_id="i")
    named = gm.LeavingMember(member_id="x", instance_id="i")
    reply = host.ask(gm.LeaveGroupRequest(group="g", members=[named]))
    assert reply.errors == [ErrorCode.FENCED_INSTANCE_ID]


def test_the_protocol_that_most_prefer_is_used() -> None:
    host = GroupHost()
    one = Old(host, protocols=(("a", b"1"), ("b", b"2")))
    two = Old(host, protocols=(("b", b"3"), ("a", b"4")))
    three = Old(host, protocols=(("b", b"5"), ("c", b"6")))
    asked = [each.join() for each in (one, two, three)]
    host.pass_time(9)
    told = one.joined(asked[0])
    assert told.protocol == "b" and [each.metadata for each in told.members] == [b"2", b"3", b"5"]
    stranger = Old(host, protocols=(("c", b""),))
    assert error(host, stranger.join()) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(host, Old(host).join(protocol_type="connect")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_misuse_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    host = GroupHost()
    assert error(host, Old(host).join(**changes)) == code
    assert host.machine.classics == {} and host.batches == []


def test_requests_of_no_group_or_another_generation_are_refused() -> None:
    host = GroupHost()
    assert Old(host, member_id="x", generation=1).beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert Old(host, member_id="x").leave() == ErrorCode.UNKNOWN_MEMBER_ID
    host, [one] = stable(1)
    assert one.beat(generation=0) == ErrorCode.ILLEGAL_GENERATION
    assert error(host, one.sync(generation=2)) == ErrorCode.ILLEGAL_GENERATION
    assert one.beat(member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    small = GroupHost(GroupSettings(max_size=1))
    Old(small).join()
    assert error(small, Old(small).join()) == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_client_that_needs_no_id_first_joins_at_once() -> None:
    host = GroupHost()
    one = Old(host)
    asked = one.join(known_member_id=False)
    host.pass_time(3)
    assert one.joined(asked).error == 0


def test_a_second_join_ends_the_first() -> None:
    host, [one, _] = stable()
    first, second = one.join(), one.join()
    assert error(host, first) == ErrorCode.REBALANCE_IN_PROGRESS and host.waits(second)
    host.pass_time(10)
    assert one.joined(second).generation == 2
    waits = one.sync(generation=2)
    assert error(host, waits) == ErrorCode.NONE


def test_a_join_that_is_given_up_is_heard_again_or_out() -> None:
    host, [one, two] = stable()
    message = gm.JoinGroupRequest(
        group="g",
        member_id=one.member_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[gm.GroupProtocol(name="range", metadata=b"t")],
    )
    asked = host.send(message, within=5)
    host.pass_time(5)
    assert error(host, asked) == ErrorCode.REQUEST_TIMED_OUT
    two.join()
    host.pass_time(9.9)
    assert one.member_id in state(host).members
    host.pass_time(0.1)
    assert one.member_id not in state(host).members


def test_a_new_coordinator_knows_the_ids_and_gives_time() -> None:
    host, [one, two] = stable()
    host.pass_time(9)
    host.lead()
    host.pass_time(12.9)
    assert one.beat() == ErrorCode.NONE
    host.pass_time(0.1)
    assert two.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_types_do_not_mix_and_an_empty_group_changes_its() -> None:
    host, [one] = stable(1)
    assert Member(host, "new").beat() == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    one.leave()
    new = Member(host, "new")
    assert new.beat() == ErrorCode.NONE
    assert host.machine.classics == {}
    assert error(host, Old(host).join()) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    new.beat(member_epoch=gm.LEAVE)
    old = Old(host)
    assert error(host, old.join()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    asked = old.join()
    host.pass_time(3)
    assert old.joined(asked).generation == 1
    listed = host.ask(gm.ListGroupsRequest()).groups
    assert [(each.type, each.state) for each in listed] == [("classic", "CompletingRebalance")]
    assert host.ask(gm.DeleteGroupRequest(group="g")).error == ErrorCode.NON_EMPTY_GROUP
    assert host.ask(gm.DescribeGroupsRequest(groups=["g"])).groups[0].epoch == 1
    host.pass_time(60)
    assert Member(host, "late").beat() == ErrorCode.NONE


def test_commits_wait_for_the_assignment_but_for_those_of_transactions() -> None:
    host, [one] = stable(1)
    one.joined(one.join())
    commit = gm.CommitGroupOffsetsRequest(
        group="g",
        member_id=one.member_id,
        epoch=one.generation,
        offsets=[gm.GroupOffset(topic="t", partition=0, offset=1)],
    )
    assert host.ask(commit).error == ErrorCode.REBALANCE_IN_PROGRESS
    one.sync(one)
    assert host.ask(commit).partitions[0].error == 0


def test_a_static_member_that_is_late_stays_and_the_leader_stays_too() -> None:
    host = GroupHost()
    static, two = Old(host, instance_id="i", session_timeout_ms=90_000), Old(host, session_timeout_ms=90_000)
    form(host, [static, two])
    assert state(host).leader == static.member_id
    asked = two.join(protocols=[gm.GroupProtocol(name="range", metadata=b"new")])
    host.pass_time(60)
    # Its place in the group is kept; somebody who is there leads.
    assert two.joined(asked).leader_id == two.member_id
    assert static.member_id in state(host).members
    two.sync(two, static)
    asked = static.join(protocols=[gm.GroupProtocol(name="range", metadata=b"newer")])
    two.joined(two.join())
    assert static.joined(asked).leader_id == two.member_id


def test_what_all_members_support_follows_every_change() -> None:
    """Members come, go, come back under another id and name other protocols, whichever way the state is changed."""
    dice = random.Random(1)

    def member(member_id: str) -> ClassicMember:
        names = dice.sample("abcdefg", dice.randrange(3, 7))
        protocols = tuple([ClassicProtocol(name=name, metadata=b"") for name in [*names, names[0]]])
        return ClassicMember(member_id, None, "", "", 1, 1, protocols)

    found, met = ClassicState(group="g"), 0
    for step in range(3000):
        ids = list(found.members)
        act = dice.randrange(8)
        if len(ids) < 2 or (act < 3 and len(ids) < 6):
            found.members[f"m{step}"] = member(f"m{step}")
        elif act < 5:
            del found.members[dice.choice(ids)]
        elif act == 5:
            found.members[dice.choice(ids)].protocols = member("").protocols
        elif act == 6:
            gone = dice.choice(ids)
            found.members = {
                (f"s{step}" if each == gone else each): (member(f"s{step}") if each == gone else it)
                for each, it in found.members.items()
            }
        else:
            found = attrs.evolve(found, members=dict(found.members))
        for but in ("", "nobody", *list(found.members)[:2]):
            sets = [
                {p.name for p in each.protocols} for each in found.members.values() if each.member_id != but
            ]
            wanted = set.intersection(*sets) if sets else set()
            assert found.common(but) == wanted, step
            met += bool(wanted) and len(sets) > 1
    assert met > 500


def test_a_join_takes_no_other_members_protocols_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of members with a hundred protocols each held a node for 0.15 s at each request."""
    host, members = stable()
    for _ in range(30):
        Old(host).join()
    taken: list[object] = []
    names = classic_state._names
    monkeypatch.setattr(
        classic_state, "_names", lambda protocols: taken.append(protocols) or names(protocols)
    )
    for ask in (members[1].join, Old(host).join):
        taken.clear()
        ask()
        assert 1 <= len(taken) <= 4
