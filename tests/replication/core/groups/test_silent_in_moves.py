"""Who is silent while its group moves between the protocols, or has moved."""

from __future__ import annotations

from msgspec import structs

from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.errors import ErrorCode

from .harness import GroupHost, Member
from .test_moves import PARTITIONS, SESSION, SETTINGS, Classic, form, moved, owners, settle


def test_an_old_client_that_has_joined_in_time_is_not_put_out_later() -> None:
    host, (old,), new = moved(count=1)
    settle(host, old, new)
    host.see(t=PARTITIONS - 1)
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert not old.synced(old.sync(old.joined(old.join())))
    for _ in range(12):
        host.pass_time(SESSION / 3)
        new.beat()
        assert old.beat() == ErrorCode.NONE


def test_a_silent_old_client_is_put_out_by_its_own_session() -> None:
    host, (silent, alive), new = moved()
    settle(host, silent, alive, new)
    for _ in range(4):
        host.pass_time(SESSION / 3)
        alive.turn()
        new.beat()
    settle(host, alive, new)
    assert silent.member_id not in host.machine.groups["g"].members
    assert owners(host, alive, new) == [3, 3]


def test_who_was_put_out_lets_go_before_it_joins_again() -> None:
    """Others have by now what it still claims, and may be reading it."""
    host, (old,), new = moved(count=1)
    settle(host, old, new)
    assert len(old.owned) == 3
    for _ in range(4):
        host.pass_time(4.0)
        new.beat()
    assert old.member_id not in host.machine.groups["g"].members
    refused = host.said[old.join()]
    assert refused.error == ErrorCode.UNKNOWN_MEMBER_ID
    old.owned = frozenset()
    assert host.said[old.join()].error == ErrorCode.NONE


def test_who_is_silent_since_the_group_has_moved_up_is_put_out() -> None:
    host, (silent,), new = moved(count=1)
    for _ in range(4):
        host.pass_time(SESSION / 3)
        new.beat()
    assert silent.member_id not in host.machine.groups["g"].members
    settle(host, new)


def test_a_move_up_is_no_word_of_who_is_silent() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    alive, silent = Classic(host), Classic(host)
    form(host, alive, silent)
    host.pass_time(0.6 * SESSION)
    alive.beat()
    new = Member(host, "new")
    assert new.beat() == ErrorCode.NONE
    assert silent.member_id in host.machine.groups["g"].members
    host.pass_time(0.5 * SESSION)
    assert sorted(host.machine.groups["g"].members) == sorted([alive.member_id, "new"])


def test_who_waits_when_its_group_moves_up_has_a_session_from_then_on() -> None:
    host = GroupHost(SETTINGS, t=PARTITIONS)
    one, two = Classic(host, cooperative=True), Classic(host, cooperative=True)
    form(host, one)
    waiting = two.join()
    new = Member(host, "new")
    new.beat()
    assert not host.waits(waiting)
    host.pass_time(0.9 * SESSION)
    assert two.member_id in host.machine.groups["g"].members
    host.pass_time(0.2 * SESSION)
    assert two.member_id not in host.machine.groups["g"].members


def test_a_move_down_is_no_word_of_who_is_silent() -> None:
    host, (alive, silent), new = moved()
    settle(host, alive, silent, new)
    host.pass_time(0.6 * SESSION)
    alive.beat()
    new.beat(member_epoch=-1)
    assert sorted(host.machine.classics["g"].members) == sorted([alive.member_id, silent.member_id])
    host.pass_time(0.5 * SESSION)
    assert sorted(host.machine.classics["g"].members) == [alive.member_id]


def test_whose_sessions_end_together_are_all_out_though_the_first_takes_the_group_down() -> None:
    settings = structs.replace(SETTINGS, consumer_session_timeout_ms=int(SESSION * 1000))
    host = GroupHost(settings, t=PARTITIONS)
    silent, alive = Classic(host), Classic(host)
    form(host, silent, alive)
    new = Member(host, "new")
    new.beat()
    settle(host, new, silent, alive)
    host.pass_time(0.9 * SESSION)
    alive.beat()
    # Its node looks too late to see one end before the other.
    host.now += 0.1 * SESSION
    host.tell(ev.Tick())
    host.pass_time(0.01)
    assert "g" in host.machine.classics
    assert list(host.machine.classics["g"].members) == [alive.member_id]
