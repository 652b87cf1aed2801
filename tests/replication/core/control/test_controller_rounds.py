"""The controller's rounds: questions to replicas, requests whose time runs out, leaderships that go back."""

from __future__ import annotations

import attrs
import pytest
from msgspec import structs

from insync.replication.core.control.controller import (
    AdminRequest,
    AdminRequestExpired,
    AskReplicas,
    Commit,
    CommitDone,
    Controller,
    ControllerEffect,
    LogsTold,
    RebalanceDue,
    Reply,
    ViewChanged,
)
from insync.replication.core.control.elections import ROUNDS_FOR_ABSENT, LogInfo
from insync.replication.core.control.records import (
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
    topic_key,
)
from insync.replication.core.control.transitions import above
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionName,
)

from .test_controller import ME, OTHER, admin_request, led_by, only_commit, replies, view, with_partition

ABSENT = 9
"""No node of the views has this id."""


@pytest.fixture
def controller() -> Controller:
    return Controller(ME, 10 + ME)


# Elections without anybody complete


def dark(*, version: int = 9, epoch: int = 9, known: tuple[int, ...] = ()) -> Versioned:
    record = led_by(-1, isr=(), version=version).record
    alive = structs.replace(record, replicas=(ME, OTHER), leader_epoch=epoch, last_known_elr=known)
    return Versioned(alive, version)


def told(controller: Controller, *logs: tuple[int, int, int], epoch: int = 9) -> list[ControllerEffect]:
    infos = {
        node: LogInfo(
            incarnation=10 + node, leader_epoch=epoch, last_epoch=last, log_end_offset=end, topic_id="x"
        )
        for node, last, end in logs
    }
    return controller.step(LogsTold(logs={dark().record.id: infos}))


def test_the_last_known_are_asked_and_the_most_complete_is_elected(controller: Controller) -> None:
    partition = dark(known=(ME, OTHER))
    (asked,) = controller.step(ViewChanged(view=with_partition(view(5), partition)))
    assert isinstance(asked, AskReplicas)
    assert asked.partitions == {partition.record.id: (ME, OTHER)}
    assert asked.leader_epochs == {partition.record.id: 9}
    assert asked.topic_ids == {partition.record.id: "x"}
    assert controller.step(ViewChanged(view=with_partition(view(6), partition))) == []
    commit = only_commit(told(controller, (ME, 4, 10), (OTHER, 5, 3)))
    (put,) = commit.puts
    assert isinstance(put.record, PartitionRecord)
    assert (put.record.leader, put.record.isr, put.record.recovering) == (OTHER, (OTHER,), True)


def _with_an_absent_replica() -> Versioned:
    partition = dark(known=(ME, OTHER))
    return structs.replace(partition, record=structs.replace(partition.record, replicas=(ME, OTHER, ABSENT)))


def test_an_absent_replica_is_asked_in_some_rounds_and_then_the_others_elect(controller: Controller) -> None:
    partition = _with_an_absent_replica()
    (asked,) = controller.step(ViewChanged(view=with_partition(view(5), partition)))
    assert isinstance(asked, AskReplicas)
    assert asked.partitions == {partition.record.id: (ME, OTHER, ABSENT)}
    for _ in range(ROUNDS_FOR_ABSENT - 1):
        (again,) = told(controller, (ME, 4, 10), (OTHER, 5, 3))
        assert again == asked
    (put,) = only_commit(told(controller, (ME, 4, 10), (OTHER, 5, 3))).puts
    assert isinstance(put.record, PartitionRecord)
    assert put.record.leader == OTHER


def test_rounds_before_a_process_began_do_not_count(controller: Controller) -> None:
    before = with_partition(view(5), _with_an_absent_replica())
    controller.step(ViewChanged(view=before))
    for _ in range(ROUNDS_FOR_ABSENT - 1):
        told(controller, (ME, 4, 10), (OTHER, 5, 3))
    nodes = {**before.nodes, OTHER: structs.replace(before.nodes[OTHER], incarnation=99)}
    controller.step(ViewChanged(view=attrs.evolve(before, nodes=nodes, revision=6)))
    mine = LogInfo(incarnation=10 + ME, leader_epoch=9, last_epoch=4, log_end_offset=10, topic_id="x")
    answers = {ME: mine, OTHER: structs.replace(mine, incarnation=99)}
    for _ in range(ROUNDS_FOR_ABSENT):
        (again,) = controller.step(LogsTold(logs={dark().record.id: answers}))
        assert isinstance(again, AskReplicas)
    only_commit(controller.step(LogsTold(logs={dark().record.id: answers})))


def test_what_was_told_in_another_epoch_or_of_another_process_counts_for_nothing(
    controller: Controller,
) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), dark(known=(ME, OTHER)))))
    (again,) = told(controller, (ME, 4, 10), (OTHER, 5, 3), epoch=8)
    assert isinstance(again, AskReplicas)
    restarted = with_partition(view(6), dark(known=(ME, OTHER)))
    nodes = {**restarted.nodes, OTHER: structs.replace(restarted.nodes[OTHER], incarnation=99)}
    controller.step(ViewChanged(view=attrs.evolve(restarted, nodes=nodes)))
    (once_more,) = told(controller, (ME, 4, 10), (OTHER, 5, 3))
    assert isinstance(once_more, AskReplicas)


def test_what_a_process_told_that_the_store_has_not_shown_yet_counts(controller: Controller) -> None:
    partition = dark(known=(ME, OTHER))
    controller.step(ViewChanged(view=with_partition(view(5), partition)))
    mine = LogInfo(incarnation=11, leader_epoch=9, last_epoch=4, log_end_offset=10, topic_id="x")
    theirs = structs.replace(mine, incarnation=10 + OTHER + 1, log_end_offset=11)
    (put,) = only_commit(
        controller.step(LogsTold(logs={partition.record.id: {ME: mine, OTHER: theirs}}))
    ).puts
    assert isinstance(put.record, PartitionRecord)
    assert put.record.leader == OTHER


def test_what_was_told_of_another_topic_of_the_name_counts_for_nothing(controller: Controller) -> None:
    (asked,) = controller.step(ViewChanged(view=with_partition(view(5), dark(known=(ME, OTHER)))))
    assert isinstance(asked, AskReplicas)
    here = LogInfo(incarnation=11, leader_epoch=9, last_epoch=4, log_end_offset=1, topic_id="x")
    gone = LogInfo(incarnation=12, leader_epoch=9, last_epoch=8, log_end_offset=9, topic_id="gone")
    partition = dark().record.id
    assert (asked.is_answered(partition, here), asked.is_answered(partition, gone)) == (True, False)
    (again,) = controller.step(LogsTold(logs={partition: {ME: here, OTHER: gone}}))
    assert isinstance(again, AskReplicas)
    told(controller, (ME, 4, 1), (OTHER, 5, 3))
    anew = structs.replace(dark(known=(ME, OTHER)).record, topic_id="y")
    controller.step(CommitDone(outcome="conflict", key="/x"))
    made = with_partition(view(6), Versioned(anew, 9))
    (asked,) = controller.step(ViewChanged(view=made))
    assert isinstance(asked, AskReplicas), "in the same epoch, but of another topic"
    assert asked.topic_ids == {partition: "y"}


def test_a_leader_that_died_is_first_taken_out_and_only_then_its_replicas_are_asked(
    controller: Controller,
) -> None:
    seen = most_complete(with_partition(view(5), led_by(3, isr=(3,), version=9)))
    commit = only_commit(controller.step(ViewChanged(view=seen)))
    (put,) = commit.puts
    assert isinstance(put.record, PartitionRecord)
    assert (put.record.leader, put.record.leader_epoch) == (-1, 10)


def most_complete(base: ClusterView) -> ClusterView:
    settings = TopicConfig(unclean_leader_election="most_complete")
    topic = TopicRecord(name="t", topic_id="x", partitions=1, replication_factor=3, config=settings)
    return attrs.evolve(base, topics={"t": topic})


def test_the_policy_most_complete_asks_once_and_takes_the_best_of_those_who_answer(
    controller: Controller,
) -> None:
    (asked,) = controller.step(ViewChanged(view=most_complete(with_partition(view(5), dark()))))
    assert isinstance(asked, AskReplicas)
    assert asked.partitions == {dark().record.id: (ME, OTHER)}
    (put,) = only_commit(told(controller, (OTHER, 5, 3))).puts
    assert isinstance(put.record, PartitionRecord)
    assert (put.record.leader, put.record.leader_epoch) == (OTHER, above(9, ""))


def test_who_comes_to_life_after_the_round_is_asked_as_well(controller: Controller) -> None:
    """Also when it is another process of a node that was asked: what that held may be gone, or be there again."""
    seen = most_complete(with_partition(view(5), dark()))
    me, other = seen.nodes[ME], seen.nodes[OTHER]
    controller.step(ViewChanged(view=attrs.evolve(seen, nodes={ME: me})))
    later = attrs.evolve(seen, revision=6)
    assert controller.step(ViewChanged(view=later)) == [], "the round is not over"
    (asked,) = told(controller, (ME, 4, 10))
    assert isinstance(asked, AskReplicas)
    assert asked.partitions == {dark().record.id: (ME, OTHER)}
    again = attrs.evolve(later, revision=7, nodes={ME: me, OTHER: structs.replace(other, incarnation=99)})
    assert controller.step(ViewChanged(view=again)) == []
    (again,) = told(controller)
    assert isinstance(again, AskReplicas)
    (put,) = only_commit(told(controller)).puts
    assert isinstance(put.record, PartitionRecord)
    assert put.record.leader == ME, "it was asked, and did not answer"


def test_a_replica_that_is_added_after_the_round_is_asked_as_well(controller: Controller) -> None:
    """A reassignment leaves the leader epoch as it is (seed 279 of the simulator)."""
    two = dark()
    alone = Versioned(structs.replace(two.record, replicas=(ME,)), 9)
    controller.step(ViewChanged(view=most_complete(with_partition(view(5), alone))))
    assert controller.step(ViewChanged(view=most_complete(with_partition(view(6), two)))) == []
    (asked,) = told(controller, (ME, 4, 10))
    assert isinstance(asked, AskReplicas)
    assert set(asked.partitions[two.record.id]) == {ME, OTHER}


def test_a_round_that_is_over_counts_in_its_epoch_only(controller: Controller) -> None:
    controller.step(ViewChanged(view=most_complete(with_partition(view(5), dark()))))
    (again,) = told(controller)
    assert isinstance(again, AskReplicas), "nobody answered"
    later = most_complete(with_partition(view(6), dark(version=10, epoch=10)))
    assert controller.step(ViewChanged(view=later)) == []
    (anew,) = told(controller, (OTHER, 5, 3))
    assert isinstance(anew, AskReplicas)
    assert anew.leader_epochs == {dark().record.id: 10}


def test_answers_that_nobody_asked_for_count_for_nothing(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    assert told(controller, (ME, 4, 10), (OTHER, 5, 3)) == []
    (asked,) = controller.step(ViewChanged(view=most_complete(with_partition(view(6), dark()))))
    assert isinstance(asked, AskReplicas)


def test_several_dark_partitions_are_asked_about_in_one_round(controller: Controller) -> None:
    other = structs.replace(dark().record, partition=1, leader_epoch=4)
    base = most_complete(with_partition(view(5), dark()))
    both = attrs.evolve(base, partitions={**base.partitions, other.id: Versioned(other, 9)})
    (asked,) = controller.step(ViewChanged(view=both))
    assert isinstance(asked, AskReplicas)
    assert asked.partitions == {dark().record.id: (ME, OTHER), other.id: (ME, OTHER)}
    assert asked.leader_epochs == {dark().record.id: 9, other.id: 4}


def unclean_request() -> AdminRequest:
    named = [PartitionName(topic="t", partition=0)]
    return AdminRequest(request_id=8, request=ElectLeadersRequest(unclean=True, partitions=named))


def outcomes(effects: list[ControllerEffect]) -> list[int]:
    (reply,) = [effect for effect in effects if isinstance(effect, Reply)]
    assert isinstance(reply.response, ElectLeadersResponse)
    return [each.error for each in reply.response.partitions]


def test_who_asks_for_an_unclean_election_gets_the_most_complete_one(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), dark())))
    (asked,) = controller.step(unclean_request())
    assert isinstance(asked, AskReplicas)
    commit = only_commit(told(controller, (OTHER, 5, 3)))
    assert isinstance(commit.puts[0].record, PartitionRecord)
    assert commit.puts[0].record.leader == OTHER
    assert outcomes(controller.step(CommitDone(outcome="committed", revision=6))) == [ErrorCode.NONE]


def test_what_was_told_in_an_earlier_round_of_the_epoch_still_counts(controller: Controller) -> None:
    """Who answered once, and not when all were asked again, may be the most complete one all the same."""
    controller.step(ViewChanged(view=with_partition(view(5), dark(known=(ME, OTHER)))))
    (again,) = told(controller, (ME, 5, 10))
    assert isinstance(again, AskReplicas), "not all of the last known have told"
    (put,) = only_commit(told(controller, (OTHER, 4, 30))).puts
    assert isinstance(put.record, PartitionRecord)
    assert put.record.leader == ME


def test_an_unclean_election_nobody_answers_for_is_refused_after_one_round(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), dark())))
    controller.step(unclean_request())
    assert outcomes(told(controller)) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    (asked,) = controller.step(unclean_request())
    assert isinstance(asked, AskReplicas), "another request asks anew"


def test_the_most_complete_one_leads_uncleanly_though_it_is_about_to_stop(controller: Controller) -> None:
    """As it does by policy: whoever stays can copy from it before it goes, and nothing else is lost."""
    seen = with_partition(view(5), dark())
    nodes = {**seen.nodes, OTHER: structs.replace(seen.nodes[OTHER], leaving=True)}
    controller.step(ViewChanged(view=attrs.evolve(seen, nodes=nodes)))
    (asked,) = controller.step(unclean_request())
    assert isinstance(asked, AskReplicas)
    (put,) = only_commit(told(controller, (ME, 5, 2), (OTHER, 5, 3))).puts
    assert isinstance(put.record, PartitionRecord)
    assert put.record.leader == OTHER


def test_a_partition_that_is_led_is_left_alone_by_an_unclean_election(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), led_by(ME, isr=(ME, OTHER), version=9))))
    assert outcomes(controller.step(unclean_request())) == [ErrorCode.ELECTION_NOT_NEEDED]


# Requests that take too long


def expired(controller: Controller, request_id: int = 7) -> list[ControllerEffect]:
    return controller.step(AdminRequestExpired(request_id=request_id))


def test_a_admin_request_whose_time_is_over_is_answered_and_never_begun(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), led_by(3, isr=(3, OTHER), version=9))))
    controller.step(admin_request("one", 7))
    controller.step(admin_request("two", 8))
    (late,) = expired(controller)
    assert isinstance(late, Reply)
    assert (late.request_id, late.response.error) == (7, ErrorCode.REQUEST_TIMED_OUT)
    assert late.response.revision == 0, "it speaks of no revision: nothing is known to be written"
    assert "check before you repeat it" in late.response.message
    assert expired(controller) == [], "it is answered once"
    controller.step(CommitDone(outcome="committed", revision=6))
    elected = with_partition(view(6), led_by(OTHER, isr=(OTHER,), version=10))
    commit = only_commit(controller.step(ViewChanged(view=elected)))
    assert topic_key("two") in commit.checks


@pytest.mark.parametrize("outcome", ["committed", "conflict", "unknown"])
def test_one_that_is_being_written_is_not_answered_again(controller: Controller, outcome: str) -> None:
    controller.step(ViewChanged(view=view(5)))
    only_commit(controller.step(admin_request()))
    assert replies(expired(controller, 6)) == [], "that is another one"
    assert replies(expired(controller)) == [(7, ErrorCode.REQUEST_TIMED_OUT)]
    done = controller.step(CommitDone(outcome=outcome, revision=6))
    again = controller.step(ViewChanged(view=view(6)))
    assert [e for e in (*done, *again) if isinstance(e, Reply | Commit)] == []


def test_one_that_replicas_are_asked_for_is_given_up_and_the_next_one_asks_for_itself(
    controller: Controller,
) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), dark())))
    (asked,) = controller.step(unclean_request())
    assert isinstance(asked, AskReplicas)
    assert replies(expired(controller, 8)) == [(8, ErrorCode.REQUEST_TIMED_OUT)]
    assert controller.step(structs.replace(unclean_request(), request_id=9)) == [], "one round is under way"
    (again,) = told(controller)
    assert isinstance(again, AskReplicas)
    assert outcomes(told(controller)) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]


# Rebalance


def elsewhere(count: int, *, of: int = 10) -> ClusterView:
    """Partitions that all prefer this node; `count` of them are led by the other."""
    partitions = {}
    for number in range(of):
        versioned = led_by(OTHER if number < count else ME, isr=(ME, OTHER, 3), version=9)
        record = structs.replace(versioned.record, partition=number)
        partitions[record.id] = Versioned(record, 9)
    return attrs.evolve(view(5, nodes=(ME, OTHER, 3)), partitions=partitions)


@pytest.mark.parametrize(("percentage", "moved"), [(10, 2), (19, 2), (20, 0)])
def test_leaderships_go_back_only_when_it_is_time_and_only_once(percentage: int, moved: int) -> None:
    controller = Controller(ME, 10 + ME, imbalance_percentage=percentage)
    assert controller.step(ViewChanged(view=elsewhere(2))) == []
    effects = controller.step(RebalanceDue())
    assert sum(len(effect.puts) for effect in effects if isinstance(effect, Commit)) == moved
    for effect in effects:
        assert isinstance(effect, Commit)
        assert [put.record.leader for put in effect.puts if isinstance(put.record, PartitionRecord)] == [
            ME
        ] * moved
    if moved:
        controller.step(CommitDone(outcome="committed", revision=6))
    assert controller.step(ViewChanged(view=attrs.evolve(elsewhere(2), revision=6))) == []


def test_by_default_a_tenth_may_be_led_elsewhere(controller: Controller) -> None:
    controller.step(ViewChanged(view=elsewhere(1)))
    assert controller.step(RebalanceDue()) == []
    controller.step(ViewChanged(view=attrs.evolve(elsewhere(2), revision=6)))
    assert len(only_commit(controller.step(RebalanceDue())).puts) == 2


def test_admin_requests_wait_for_a_rebalance_to_be_written(controller: Controller) -> None:
    controller.step(ViewChanged(view=elsewhere(5)))
    only_commit(controller.step(RebalanceDue()))
    assert controller.step(admin_request()) == []
