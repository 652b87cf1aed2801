"""Shards on their node: they begin and end with leadership, and answer only while nobody else can lead."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from msgspec import structs

from insync.replication.core.broker.coordination.loading import MOST, PATIENCE
from insync.replication.core.broker.coordination.shards import LATE, LINGER, MANY
from insync.replication.core.broker.effects import (
    CreateInternalTopic,
    ShardFaulty,
    ShardUnreadable,
)
from insync.replication.core.broker.events import (
    CoordinationArrived,
    Disconnected,
    Report,
    ShardRead,
    ViewRead,
)
from insync.replication.core.coordination import shard_events as sev
from insync.replication.core.coordination.routing import GROUP_TOPIC
from insync.replication.core.coordination.shard import Shard
from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups import records as r
from insync.replication.core.messages import Kind, PartitionName
from insync.replication.core.messages import groups as gm
from insync.replication.core.messages import transactions as tm
from insync.replication.core.partition import events as ev
from tests.replication.core.partition.test_isr_change import A, B, C

from .coordinator_node import (
    CONNECTIONS,
    PARTITION,
    READ,
    SESSION_MS,
    SETTINGS,
    SIZE_OF_RECORD,
    Marking,
    Node,
    commit,
    join,
)


def test_a_shard_serves_what_its_leader_has_committed() -> None:
    node = Node()
    assert node.ask("c", commit(7)).error == 0
    assert [each.offset for each in node.ask("o", READ).offsets] == [7]
    assert len(node.maker.made) == 1


def test_the_log_is_read_up_to_where_the_leadership_began_and_late_reads_count_for_nothing() -> None:
    node = Node(log_end=5)
    (read,) = node.reads
    assert (read.start, read.end) == (0, 5)
    assert node.ask("early", READ) is None
    key, value = r.OffsetKey("g", "t", 0), r.OffsetValue(offset=3)
    entries = (sev.Entry(4, key, value),)
    node.tell(ShardRead(PARTITION, read.reading + 100, (), 5))
    assert "early" not in node.said
    node.tell(ShardRead(PARTITION, read.reading, entries, 5))
    assert [each.offset for each in node.said["early"].offsets] == [3]
    assert [each.offset for each in node.ask("o", READ).offsets] == [3]


def test_the_groups_of_a_node_are_listed_and_a_shard_that_still_loads_is_an_error() -> None:
    node = Node()
    node.ask("c", commit(7, group="b"))
    node.ask("d", commit(7, group="a"))
    said = node.ask("l", gm.ListGroupsRequest())
    assert (said.error, [each.group for each in said.groups]) == (ErrorCode.NONE, ["a", "b"])
    loads = Node(log_end=5)
    assert loads.ask("l", gm.ListGroupsRequest()) is None
    loads.wait(2 * PATIENCE)
    assert loads.said["l"].error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_request_waits_for_a_log_that_is_being_made() -> None:
    """The view names a leader before that has its log; who asked another node for the coordinator comes sooner."""
    node = Node(is_open=False)
    assert node.ask("r", READ) is None and node.ask("c", commit(7)) is None
    node.open()
    assert node.said["r"].error == node.said["c"].error == 0
    assert not node.said["r"].offsets, "it came before the commit"


def test_a_request_waits_only_a_moment_for_its_shard_to_be_loaded() -> None:
    node = Node(log_end=5)
    node.ask("first", READ)
    node.stand_still(PATIENCE / 2)
    node.ask("second", READ)
    node.wait(PATIENCE * 0.6)
    assert node.said["first"].error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert "second" not in node.said
    node.tell(ShardRead(PARTITION, node.reads[-1].reading, (), 5))
    assert node.said["second"].error == 0
    node.wait(2 * PATIENCE)


def test_no_more_requests_wait_for_a_coordinator_than_a_node_can_keep() -> None:
    """One that has been answered, in whatever way, makes room for another."""
    node = Node(log_end=5)
    for number in range(MOST - 1):
        assert node.ask(f"early-{number}", READ) is None
    node.stand_still(PATIENCE / 2)
    assert node.ask("last", READ) is None
    assert node.ask("too many", READ).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    node.wait(PATIENCE * 0.6)
    for number in range(MOST - 1):
        assert node.ask(f"late-{number}", READ) is None
    assert node.ask("again too many", READ).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    node.tell(ShardRead(PARTITION, node.reads[-1].reading, (), 5))
    assert node.said["last"].error == node.said["late-0"].error == 0
    for leader, epoch in ((B, 2), (A, 3)):
        node.leader, node.epoch = leader, epoch
        node.look()
    for number in range(MOST):
        assert node.ask(f"later-{number}", READ) is None


def test_what_waited_for_its_shard_is_done_before_what_comes_when_that_is_loaded() -> None:
    node = Node(log_end=5)
    node.broker.step(CoordinationArrived("old", commit(7)), node.now)
    node.broker.step(ShardRead(PARTITION, node.reads[-1].reading, (), 5), node.now)
    node.broker.step(CoordinationArrived("new", commit(8)), node.now)
    node._obey(node.broker.settle(node.now))
    assert [each.offset for each in node.ask("o", READ).offsets] == [8]


def test_who_waits_for_a_shard_is_told_when_another_node_leads() -> None:
    node = Node(log_end=5)
    node.ask("waits", READ)
    node.leader, node.epoch = B, 2
    node.look()
    told = node.said["waits"]
    assert (told.error, told.leader, told.leader_epoch) == (ErrorCode.NOT_COORDINATOR, B, 2)
    early = Node(is_open=False)
    early.ask("waits", READ)
    early.leader, early.epoch = C, 2
    early.look()
    assert early.said["waits"].error == ErrorCode.NOT_COORDINATOR


def test_a_request_that_means_another_leadership_does_not_wait() -> None:
    node = Node(log_end=5)
    assert node.ask("o", structs.replace(READ, coordinator_epoch=7)).error == ErrorCode.NOT_COORDINATOR


def test_a_log_that_cannot_be_read_is_given_up() -> None:
    node = Node(log_end=5)
    for _ in range(3):
        node.tell(ShardRead(PARTITION, node.reads[-1].reading, None, -1))
    assert ShardUnreadable(PARTITION, 1) in node.effects


def test_whoever_waits_is_told_when_the_leadership_ends_and_where_to_go() -> None:
    node = Node(A, B)
    assert node.ask("waits", commit()) is None
    node.leader, node.epoch = B, 2
    node.look()
    told = node.said["waits"]
    assert (told.error, told.leader, told.leader_epoch) == (ErrorCode.NOT_COORDINATOR, B, 2)
    told = node.ask("after", commit())
    assert (told.error, told.leader, told.leader_epoch) == (ErrorCode.NOT_COORDINATOR, B, 2)


def test_followers_are_listened_to_while_there_is_a_shard() -> None:
    """Each of their fetches would cost something else on a node that coordinates nothing."""
    node = Node(A, B)
    assert node.broker.serving.on_followed is not None
    node.leader, node.epoch = B, 2
    node.look()
    assert node.broker.serving.on_followed is None


def test_a_write_is_answered_when_all_in_sync_have_it() -> None:
    node = Node(A, B)
    node.fetch(B)
    assert node.ask("c", commit()) is None
    node.answered(B, node.effects)
    assert "c" not in node.said
    node.fetch(B)
    assert node.said["c"].error == 0


def test_a_state_is_current_while_nothing_of_it_is_on_its_way_and_nobody_else_may_lead() -> None:
    alone = Node()
    assert alone.broker.shards.current(PARTITION) is alone.broker.shards.machine(PARTITION) is not None
    alone.broker.shards.wake(PARTITION)
    assert alone.broker.shards.current(PARTITION) is None, "it may have lost its role within this turn"
    assert Node(A, B).broker.shards.current(PARTITION) is None
    assert Node(log_end=5).broker.shards.current(PARTITION) is None, "it is being loaded"
    assert Node(leader=B).broker.shards.current(PARTITION) is None


def test_commits_that_come_together_are_one_batch() -> None:
    node = Node(A, B)
    node.fetch(B)
    for number in range(1000):
        node.broker.step(CoordinationArrived(f"c{number}", commit(number, f"g{number}")), node.now)
    assert node.context.is_unsettled and not node.maker.made
    node._obey(node.broker.settle(node.now))
    assert [len(each) for each in node.maker.made[:1]] == [1000]
    node.answered(B, node.effects)
    node.fetch(B)
    assert all(node.said[f"c{number}"].error == 0 for number in range(1000))


def test_a_commit_waits_for_the_one_before_it_and_no_longer_than_a_moment() -> None:
    node = Node(A, B)
    node.fetch(B)
    node.ask("first", commit(1))
    node.answered(B, node.effects)
    assert len(node.maker.made) == 1, "nothing is under way: it goes at once"
    node.ask("second", commit(2))
    node.ask("third", commit(3, "h"))
    assert len(node.maker.made) == 1
    node.fetch(B)
    assert node.said["first"].error == 0
    assert [len(each) for each in node.maker.made] == [1, 2], "the write before is committed"
    node.ask("fourth", commit(4))
    assert len(node.maker.made) == 2
    node.wait(2 * LINGER)
    assert len(node.maker.made) == 3, "followers are slow; others may be waiting for nothing"
    for number in range(MANY):
        node.ask(f"many {number}", commit(number))
    assert [len(each) for each in node.maker.made[3:]] == [MANY]


def test_a_leadership_that_ends_takes_what_was_gathered_with_it() -> None:
    node = Node(A, B)
    node.fetch(B)
    node.ask("first", commit(1))
    node.ask("second", commit(2))
    node.leader, node.epoch = B, 2
    node.look()
    assert node.said["second"].error == ErrorCode.NOT_COORDINATOR
    node.wait(1.0)
    assert len(node.maker.made) == 1


def test_a_read_waits_until_all_who_could_lead_have_shown_that_they_follow() -> None:
    """Those who wait for news are answered at once for it; when a request arrives proves nothing."""
    node = Node(A, B, C)
    node.follow(B, C)
    node.stand_still(1.0)
    assert node.ask("o", READ) is None
    answered = node.effects
    assert node.answered(B, answered) and node.answered(C, answered)
    node.fetch(B)
    assert "o" not in node.said
    node.fetch(C)
    assert node.said["o"].error == 0


def test_a_request_that_was_on_its_way_before_proves_nothing() -> None:
    """It may have lain in a socket while its sender elected another leader."""
    node = Node(A, B)
    node.follow(B)
    answered = node.wait(0.5)
    assert node.answered(B, answered)
    # Its next request is on its way while this one arrives; it goes on from an answer of before.
    node.stand_still(0.2)
    assert node.ask("o", READ) is None
    assert node.fetch(B), "it is answered at once, so that it comes again"
    assert "o" not in node.said
    node.fetch(B)
    assert node.said["o"].error == 0


def joined() -> Node:
    """With a follower, and one member of the group."""
    node = Node(A, B)
    node.follow(B)
    assert node.ask("j", join()) is None
    node.answered(B, node.effects)
    node.fetch(B)
    assert node.said["j"].error == 0
    return node


def test_a_question_that_stays_open_shows_that_its_follower_follows() -> None:
    """A request names only what has changed: this one is silent about the partition, and asks about it still."""
    node = Node(A, B)
    node.follow(B)
    node.stand_still(5.0)
    assert node.ask("o", READ) is None
    assert node.answered(B, node.effects), "it was hurried"
    assert not node.fetch(B, silent=True)
    assert node.said["o"].error == 0


def test_members_that_go_on_take_no_further_timers() -> None:
    node = Node()
    assert node.ask("j", join()).error == 0
    beat = join(member_epoch=1, owned=None, topics=None, rebalance_timeout_ms=-1)
    node.wait(6.0)  # the time of that request is over, and the timer is that of the session
    timers = len(node.context.timers)
    for number in range(20):
        assert node.ask(f"read {number}", READ).error == 0
        node.stand_still(0.01)
        assert node.ask(f"b{number}", beat).error == 0
    assert len(node.context.timers) == timers
    node.wait(SESSION_MS / 1000 - 0.5)
    assert node.ask("late", beat).error == 0, "the one timer looked again, and put nobody out"
    assert len(node.context.timers) == timers
    node.wait(SESSION_MS / 1000 + 1)
    assert node.ask("too late", beat).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sooner_deadline_replaces_the_timer_for_good() -> None:
    """The one that was set for later comes no more: it would set others beside those that it finds."""
    node = Node()
    assert node.ask("j", join()).error == 0
    timers = len(node.context.timers)
    silent = {"member_epoch": 1, "owned": None, "topics": None, "rebalance_timeout_ms": -1}
    assert node.ask("b", join(**silent, max_wait_ms=2000)) is None
    node.wait(2.5)
    assert node.said["b"].error == 0
    assert node.ask("b2", join(**silent)).error == 0
    node.wait(SESSION_MS / 1000 - 2)
    assert node.ask("b3", join(**silent)).error == 0
    assert len(node.context.timers) == timers


def test_a_lease_needs_followers_that_were_there_lately() -> None:
    node = joined()
    node.stand_still(SETTINGS.isolation_timeout_ms / 1000 + 0.1)
    beat = join(member_epoch=1, owned=None, topics=None, rebalance_timeout_ms=-1)
    assert node.ask("b", beat) is None
    assert node.answered(B, node.effects)
    node.fetch(B)
    assert node.said["b"].error == 0


def test_what_followers_have_shown_counts_when_a_heartbeats_wait_is_over() -> None:
    """They are not asked once more for what they have shown since it came."""
    node = joined()
    node.stand_still(SETTINGS.isolation_timeout_ms / 1000 - 0.5)
    silent = {"owned": None, "topics": None, "rebalance_timeout_ms": -1, "max_wait_ms": 2000}
    assert node.ask("b", join(member_epoch=1, **silent)) is None
    # The question that B has open ends, and it asks the next one.
    assert node.answered(B, node.wait(0.5))
    node.fetch(B)
    node.wait(1.4)
    assert "b" not in node.said
    node.fetch(B)
    node.wait(0.2)
    assert node.said["b"].error == 0


def test_a_follower_that_left_the_isr_is_not_waited_for() -> None:
    node = Node(A, B)
    node.follow(B)
    node.stand_still(1.0)
    node.tell(Disconnected(CONNECTIONS[B]))
    assert node.ask("o", READ) is None
    node.isr = (A,)
    node.look()
    assert node.said["o"].error == 0


def test_who_left_an_isr_below_its_minimum_is_waited_for_because_it_may_lead_next() -> None:
    """KIP-966: a leader alone in the ISR that stood still may have been replaced by it."""
    node = Node(A)
    node.elr, node.min_isr = (B,), 2
    node.look()
    node.stand_still(5.0)
    assert node.ask("o", READ) is None
    node.fetch(B)
    assert "o" not in node.said, "it has followed nobody yet"
    node.fetch(B)
    assert node.said["o"].error == 0


def test_a_write_that_the_replica_refuses_is_refused_by_the_coordinator() -> None:
    node = Node(A)
    node.elr, node.min_isr = (B,), 2
    node.look()
    refused = node.ask("o", commit())
    assert refused is not None and refused.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert node.log_end == 0, "nothing was written"


def test_a_member_that_could_not_be_heard_is_not_put_out() -> None:
    """A process that stood still first hears what has arrived meanwhile."""
    node = Node()
    assert node.ask("j", join()).error == 0
    node.stand_still(3 * SESSION_MS / 1000)
    effects = node.broker.tick(node.now)
    node._obey(effects)
    beat = join(member_epoch=1, owned=None, topics=None, rebalance_timeout_ms=-1)
    node.now += LATE / 2
    assert node.ask("b", beat).error == 0
    node.wait(SESSION_MS / 1000 - 1)
    assert node.ask("b2", beat).error == 0
    node.wait(SESSION_MS / 1000 + 1)
    assert node.ask("b3", beat).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_decision_that_no_batch_takes_is_refused_and_leaves_nothing() -> None:
    node = Node(max_message_bytes=SIZE_OF_RECORD)
    offsets = [gm.GroupOffset(topic="t", partition=number, offset=1) for number in range(2)]
    told = node.ask("c", gm.CommitGroupOffsetsRequest(group="g", offsets=offsets))
    assert told.error == ErrorCode.RECORD_LIST_TOO_LARGE
    assert node.ask("o", READ).offsets == []


def test_a_decision_that_cannot_be_written_harms_nobody_else() -> None:
    """Such as one about a topic whose id in the store is no id."""
    node = Node()
    spoilt = structs.replace(node.topics["t"], name="s", topic_id="no hexadecimal digits")
    node.topics["s"] = spoilt
    node.look()
    assert node.ask("j", join(topics=["s"], group="bad")).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [each.partition for each in node.effects if isinstance(each, ShardFaulty)] == [PARTITION]
    assert node.ask("c", commit(7)).error == 0


def test_the_first_who_looks_for_a_coordinator_has_the_topic_made() -> None:
    node = Node()
    node.context.view = attrs.evolve(node.context.view, topics=node.topics, partitions={})
    find = gm.FindCoordinatorRequest(keys=["g", ""])
    for name, made in (("f1", 1), ("f2", 0)):
        found = node.ask(name, find).coordinators
        assert [each.error for each in found] == [
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.INVALID_GROUP_ID,
        ]
        assert len([each for each in node.effects if isinstance(each, CreateInternalTopic)]) == made
    node.stand_still(1.5)
    node.ask("f3", find)
    assert CreateInternalTopic(GROUP_TOPIC) in node.effects


def test_a_coordinator_is_found_with_its_address_and_epoch() -> None:
    node = Node()
    (found,) = node.ask("f", gm.FindCoordinatorRequest(keys=["g"])).coordinators
    assert (found.node_id, found.endpoints, found.leader_epoch) == (A, [f"tcp://{A}:1"], 1)
    (refused,) = node.ask("x", gm.FindCoordinatorRequest(keys=["g"], key_type=7)).coordinators
    assert refused.error == ErrorCode.INVALID_REQUEST and "key type 7" in refused.message
    many = node.ask("m", gm.FindCoordinatorRequest(keys=["g"] * 1001)).coordinators
    assert len(many) == 1001 and "at most 1000" in many[0].message


def test_every_kind_of_request_to_a_coordinator_is_taken() -> None:
    node = Node()
    transactions = {*tm.RESPONSES, tm.WriteMarkersRequest, tm.AbortTransactionRequest}
    known = set(gm.RESPONSES) | {gm.FindCoordinatorRequest} | transactions
    assert known == set(node.broker.coordinating.takes)
    assert Kind.FIND_COORDINATOR == 10


def write_markers(*producer_ids: int, committed: bool = True) -> CoordinationArrived:
    markers = [
        tm.TransactionMarkers(
            transactional_id="x",
            producer_id=producer_id,
            producer_epoch=0,
            committed=committed,
            version=2,
            start_ms=0,
            partitions=[PartitionName(topic=GROUP_TOPIC, partition=0)],
        )
        for producer_id in producer_ids
    ]
    return CoordinationArrived("w", tm.WriteMarkersRequest(coordinator_epoch=1, markers=markers))


def test_markers_of_one_request_are_told_in_the_order_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that waits for the last of them would be given when an earlier one is committed."""
    node, told, step = Node(), [], Shard.step

    def noted(shard: Shard, event: sev.Event, *clocks: Any) -> Any:
        if isinstance(event, sev.MarkerWritten):
            told.append(event.marker.offset)
        return step(shard, event, *clocks)

    monkeypatch.setattr(Shard, "step", noted)
    node.context.batches = Marking()
    node.tell(write_markers(7, 8, 9))
    assert told == [0, 1, 2]


@pytest.mark.parametrize("in_one_turn", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_in_the_turn_in_which_a_leadership_begins_counts(in_one_turn: bool, committed: bool) -> None:
    """The shard reads the log up to where the leadership began, and the marker is behind that."""
    node = Node(leader=B, log_end=5)
    node.context.batches = Marking()
    node.leader, node.epoch = A, 2
    marking = write_markers(7, committed=committed)
    if in_one_turn:
        node._obey(node.broker.step(ViewRead(node.view()), node.now) + node.broker.step(marking, node.now))
        node._obey(node.broker.settle(node.now))
    else:
        node.look()
        node.tell(marking)
    node.tell(Report(PARTITION, ev.EpochAssigned()))
    (outcome,) = node.said["w"].outcomes
    assert outcome.error == ErrorCode.NONE and node.log_end == 6
    (read,) = node.reads
    assert (read.start, read.end) == (0, 5)
    entries = (
        sev.Entry(0, r.OffsetKey("g", "t", 0), r.OffsetValue(offset=2)),
        sev.Entry(4, r.OffsetKey("g", "t", 0), r.OffsetValue(offset=3), sev.ProducerId(7, 0)),
    )
    node.tell(ShardRead(PARTITION, read.reading, entries, 5))
    (found,) = node.ask("o", structs.replace(READ, require_stable=True)).offsets
    assert (found.error, found.offset) == (ErrorCode.NONE, 3 if committed else 2)
