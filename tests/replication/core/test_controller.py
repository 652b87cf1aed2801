"""The controller never stops on an answer that tells nothing new, and answers every wish once and truly."""

from __future__ import annotations

import attrs
import pytest

from insync.replication.core.controller import (
    AskReplicas,
    Commit,
    CommitDone,
    Controller,
    ControllerEffect,
    LogsTold,
    ReadView,
    RebalanceDue,
    Reply,
    SessionLost,
    ViewChanged,
    Wish,
    WishExpired,
)
from insync.replication.core.elections import LogInfo
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import (
    CreateTopicRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionName,
)
from insync.replication.core.records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    ControllerRecord,
    EpochRecord,
    NodeRecord,
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
    topic_key,
)
from insync.replication.core.types import PartitionId
from insync.replication.core.view import ClusterView

ME, OTHER = 1, 2


def view(revision: int, *, controller: int | None = ME, nodes: tuple[int, ...] = (ME, OTHER)) -> ClusterView:
    holder = None
    if controller is not None:
        holder = ControllerRecord(node_id=controller, incarnation=10 + controller, controller_epoch=4)
    return ClusterView(
        revision=revision,
        nodes={node: NodeRecord(node_id=node, incarnation=10 + node, endpoints=()) for node in nodes},
        controller=holder,
        controller_epoch=4,
        controller_epoch_version=4,
    )


def led_by(leader: int, *, isr: tuple[int, ...], version: int) -> Versioned:
    return Versioned(
        PartitionRecord(
            topic="t",
            partition=0,
            topic_id="x",
            replicas=(ME, OTHER, 3),
            isr=isr,
            leader=leader,
            leader_epoch=version,
            min_insync_replicas=2,
        ),
        version,
    )


def with_partition(base: ClusterView, versioned: Versioned) -> ClusterView:
    return attrs.evolve(base, partitions={versioned.record.id: versioned})


def wish(name: str = "news", request_id: int = 7) -> Wish:
    request = CreateTopicRequest(name=name, partitions=2, replication_factor=2)
    return Wish(request_id=request_id, request=request, fresh_id=f"id-{request_id}")


def only_commit(effects: list[ControllerEffect]) -> Commit:
    (commit,) = [effect for effect in effects if isinstance(effect, Commit)]
    return commit


def replies(effects: list[ControllerEffect]) -> list[tuple[int, int]]:
    return [(e.request_id, e.response.error) for e in effects if isinstance(e, Reply)]


def created(base: ClusterView, commit: Commit) -> ClusterView:
    topics = {p.record.name: p.record for p in commit.puts if isinstance(p.record, TopicRecord)}
    return attrs.evolve(base, topics=topics)


@pytest.fixture
def controller() -> Controller:
    return Controller(ME, 10 + ME)


def test_it_runs_for_office_when_nobody_holds_it(controller: Controller) -> None:
    commit = only_commit(controller.step(ViewChanged(view=view(5, controller=None))))
    assert commit.checks == {CONTROLLER_EPOCH_KEY: 4, CONTROLLER_KEY: 0}
    assert [put.ephemeral for put in commit.puts] == [True, False]


def test_every_write_checks_the_controller_epoch_and_what_it_replaces(controller: Controller) -> None:
    commit = only_commit(
        controller.step(ViewChanged(view=with_partition(view(5), led_by(3, isr=(3, OTHER), version=9))))
    )
    (put,) = commit.puts
    assert isinstance(put.record, PartitionRecord)
    assert (put.record.leader, put.record.leader_epoch, put.record.controller_epoch) == (OTHER, 10, 4)
    assert commit.checks == {CONTROLLER_EPOCH_KEY: 4, put.key: 9}


def test_a_replica_in_an_offline_log_directory_loses_this_partition_alone(controller: Controller) -> None:
    base = view(5, nodes=(ME, OTHER, 3))
    broken = attrs.evolve(base.nodes[3], offline=frozenset({PartitionId("t", 0)}))
    led, sound = (
        Versioned(attrs.evolve(led_by(3, isr=(3, OTHER), version=9).record, partition=index), 9)
        for index in (0, 1)
    )
    partitions = {each.record.id: each for each in (led, sound)}
    nodes = {**base.nodes, 3: broken}
    (put,) = only_commit(
        controller.step(ViewChanged(view=attrs.evolve(base, nodes=nodes, partitions=partitions)))
    ).puts
    assert isinstance(put.record, PartitionRecord)
    assert (put.record.partition, put.record.leader, put.record.isr) == (0, OTHER, (OTHER,))
    assert put.record.elr == (3,)


def leaving(base: ClusterView, node: int) -> ClusterView:
    return attrs.evolve(base, nodes={**base.nodes, node: attrs.evolve(base.nodes[node], leaving=True)})


def test_who_is_about_to_stop_hands_over_and_leaves_the_isr(controller: Controller) -> None:
    everyone = leaving(view(5, nodes=(ME, OTHER, 3)), 3)
    seen = with_partition(everyone, led_by(3, isr=(3, OTHER, ME), version=9))
    assert not seen.is_relieved(3)
    (put,) = only_commit(controller.step(ViewChanged(view=seen))).puts
    assert isinstance(put.record, PartitionRecord)
    assert (put.record.leader, put.record.leader_epoch, set(put.record.isr)) == (ME, 10, {ME, OTHER})
    assert with_partition(everyone, Versioned(put.record, 10)).is_relieved(3)


def test_who_is_about_to_stop_leads_on_as_long_as_nobody_can_take_over(controller: Controller) -> None:
    """A replica that is alive may catch up in time; meanwhile no write has to fail."""
    seen = with_partition(leaving(view(5, nodes=(ME, OTHER, 3)), 3), led_by(3, isr=(3,), version=9))
    assert not [e for e in controller.step(ViewChanged(view=seen)) if isinstance(e, Commit)]
    assert not seen.is_relieved(3)
    alone = with_partition(leaving(view(6, nodes=(3,)), 3), led_by(3, isr=(3,), version=9))
    assert alone.is_relieved(3), "nobody is left to wait for"


def test_a_conflict_whose_cause_it_has_seen_already_does_not_stop_it(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), led_by(3, isr=(3, OTHER), version=9))))
    newer = with_partition(view(6), led_by(3, isr=(3, ME, OTHER), version=10))
    assert not controller.step(ViewChanged(view=newer))
    effects = controller.step(CommitDone(outcome="conflict", key="/partitions/t/0"))
    assert effects == [ReadView()]
    commit = only_commit(controller.step(ViewChanged(view=newer)))
    assert commit.puts[0].version == 10


@pytest.mark.parametrize("outcome", ["conflict", "unknown"])
def test_it_writes_nothing_before_it_has_looked_again(controller: Controller, outcome: str) -> None:
    partition = led_by(3, isr=(3, OTHER), version=9)
    controller.step(ViewChanged(view=with_partition(view(5), partition)))
    assert controller.step(CommitDone(outcome=outcome)) == [ReadView()]
    assert controller.step(wish()) == []


def test_a_write_of_unknown_fate_is_shut_out_by_the_next_one(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    lost = only_commit(controller.step(wish()))
    controller.step(CommitDone(outcome="unknown"))
    fenced = only_commit(controller.step(ViewChanged(view=view(6))))
    (fence,) = [put for put in fenced.puts if put.key == CONTROLLER_EPOCH_KEY]
    assert fence.record == EpochRecord(controller_epoch=4)
    assert lost.checks[CONTROLLER_EPOCH_KEY] == fenced.checks[CONTROLLER_EPOCH_KEY] == fence.version == 4
    controller.step(CommitDone(outcome="conflict", key="/x"))
    again = only_commit(controller.step(ViewChanged(view=view(7))))
    assert fence in again.puts, "a conflict says nothing about the one that is still on its way"
    controller.step(CommitDone(outcome="committed", revision=8))
    after = attrs.evolve(created(view(8), again), controller_epoch_version=5)
    controller.step(ViewChanged(view=after))
    later = only_commit(controller.step(wish("more", request_id=8)))
    assert all(put.key != CONTROLLER_EPOCH_KEY for put in later.puts)


def test_a_new_term_shuts_out_what_is_on_its_way_by_itself(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    only_commit(controller.step(wish()))
    controller.step(CommitDone(outcome="unknown"))
    term = only_commit(controller.step(ViewChanged(view=view(6, controller=None))))
    assert [put.key for put in term.puts] == [CONTROLLER_KEY, CONTROLLER_EPOCH_KEY]
    assert term.puts[1].record == EpochRecord(controller_epoch=5)


def test_it_waits_until_the_view_shows_its_own_write(controller: Controller) -> None:
    before = with_partition(view(5), led_by(3, isr=(3, OTHER), version=9))
    controller.step(ViewChanged(view=before))
    assert controller.step(CommitDone(outcome="committed", revision=8)) == []
    assert controller.step(ViewChanged(view=attrs.evolve(before, revision=7))) == []


def test_a_topic_is_created_in_one_transaction_and_answered_once(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    commit = only_commit(controller.step(wish()))
    assert [put.version for put in commit.puts] == [0, 0, 0]
    assert replies(controller.step(CommitDone(outcome="committed", revision=6))) == [(7, ErrorCode.NONE)]
    assert replies(controller.step(ViewChanged(view=created(view(6), commit)))) == []


@pytest.mark.parametrize("outcome", ["conflict", "unknown"])
def test_its_own_topic_of_an_attempt_that_seemed_to_fail_is_no_clash(
    controller: Controller, outcome: str
) -> None:
    controller.step(ViewChanged(view=view(5)))
    first = only_commit(controller.step(wish()))
    controller.step(CommitDone(outcome="unknown"))
    only_commit(controller.step(ViewChanged(view=view(5))))
    done = controller.step(CommitDone(outcome=outcome, key=topic_key("news")))
    assert replies(done) == []
    assert replies(controller.step(ViewChanged(view=created(view(6), first)))) == [(7, ErrorCode.NONE)]


def test_a_topic_of_somebody_else_is_a_clash(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    mine = only_commit(controller.step(wish()))
    assert replies(controller.step(CommitDone(outcome="conflict", key=topic_key("news")))) == []
    theirs = created(view(6), mine)
    theirs = attrs.evolve(theirs, topics={"news": attrs.evolve(theirs.topics["news"], topic_id="other")})
    effects = controller.step(ViewChanged(view=theirs))
    assert replies(effects) == [(7, ErrorCode.TOPIC_ALREADY_EXISTS)]


def test_wishes_wait_for_each_other_and_none_is_lost(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    first = only_commit(controller.step(wish("one", 1)))
    assert controller.step(wish("two", 2)) == []
    assert replies(controller.step(CommitDone(outcome="committed", revision=6))) == [(1, ErrorCode.NONE)]
    second = only_commit(controller.step(ViewChanged(view=created(view(6), first))))
    assert topic_key("two") in second.checks
    assert replies(controller.step(CommitDone(outcome="committed", revision=7))) == [(2, ErrorCode.NONE)]


def test_an_answer_tells_the_revision_that_it_speaks_of(controller: Controller) -> None:
    """By it the client knows which nodes have not heard of the change yet."""
    controller.step(ViewChanged(view=view(5)))
    commit = only_commit(controller.step(wish()))
    (noted,) = controller.step(CommitDone(outcome="committed", revision=6))
    assert isinstance(noted, Reply) and noted.response.revision == 6
    controller.step(ViewChanged(view=created(view(8), commit)))
    (there,) = controller.step(wish(request_id=8))
    assert isinstance(there, Reply) and there.response.revision == 8
    assert there.response.error == ErrorCode.TOPIC_ALREADY_EXISTS
    controller.step(SessionLost())
    (nobody,) = controller.step(wish(request_id=9))
    assert isinstance(nobody, Reply) and nobody.response.revision == 0


def test_an_impossible_wish_is_refused_with_the_reason(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5, nodes=(ME,))))
    (reply,) = controller.step(wish())
    assert isinstance(reply, Reply)
    assert reply.response.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "2 replicas" in reply.response.message


def test_elections_come_before_wishes(controller: Controller) -> None:
    partition = led_by(3, isr=(3, OTHER), version=9)
    controller.step(ViewChanged(view=with_partition(view(5), partition)))
    controller.step(wish())
    controller.step(CommitDone(outcome="committed", revision=6))
    elected = led_by(OTHER, isr=(OTHER,), version=10)
    commit = only_commit(controller.step(ViewChanged(view=with_partition(view(6), elected))))
    assert topic_key("news") in commit.checks


@pytest.mark.parametrize("event", [ViewChanged(view=view(6, controller=OTHER)), SessionLost()])
def test_who_is_not_the_controller_says_so_at_once(
    controller: Controller, event: ViewChanged | SessionLost
) -> None:
    controller.step(ViewChanged(view=view(5)))
    controller.step(event)
    assert replies(controller.step(wish())) == [(7, ErrorCode.NOT_CONTROLLER)]


def test_an_earlier_epoch_of_its_own_is_not_its_office(controller: Controller) -> None:
    later = attrs.evolve(view(5), controller_epoch=5, controller_epoch_version=5)
    controller.step(ViewChanged(view=later))
    assert not controller.active


def test_a_session_that_came_back_with_the_same_incarnation_runs_again(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    controller.step(SessionLost())
    assert not controller.active
    commit = only_commit(controller.step(ViewChanged(view=view(7, controller=None))))
    assert CONTROLLER_KEY in commit.checks


# Elections without anybody complete


def dark(*, version: int = 9, epoch: int = 9, known: tuple[int, ...] = ()) -> Versioned:
    record = led_by(-1, isr=(), version=version).record
    return Versioned(attrs.evolve(record, leader_epoch=epoch, last_known_elr=known), version)


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


def test_what_was_told_in_another_epoch_or_of_another_process_counts_for_nothing(
    controller: Controller,
) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), dark(known=(ME, OTHER)))))
    (again,) = told(controller, (ME, 4, 10), (OTHER, 5, 3), epoch=8)
    assert isinstance(again, AskReplicas)
    restarted = with_partition(view(6), dark(known=(ME, OTHER)))
    nodes = {**restarted.nodes, OTHER: attrs.evolve(restarted.nodes[OTHER], incarnation=99)}
    controller.step(ViewChanged(view=attrs.evolve(restarted, nodes=nodes)))
    (once_more,) = told(controller, (ME, 4, 10), (OTHER, 5, 3))
    assert isinstance(once_more, AskReplicas)


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
    anew = attrs.evolve(dark(known=(ME, OTHER)).record, topic_id="y")
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
    assert (put.record.leader, put.record.leader_epoch) == (OTHER, 10)


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
    other = attrs.evolve(dark().record, partition=1, leader_epoch=4)
    base = most_complete(with_partition(view(5), dark()))
    both = attrs.evolve(base, partitions={**base.partitions, other.id: Versioned(other, 9)})
    (asked,) = controller.step(ViewChanged(view=both))
    assert isinstance(asked, AskReplicas)
    assert asked.partitions == {dark().record.id: (ME, OTHER), other.id: (ME, OTHER)}
    assert asked.leader_epochs == {dark().record.id: 9, other.id: 4}


def unclean_wish() -> Wish:
    named = [PartitionName(topic="t", partition=0)]
    return Wish(request_id=8, request=ElectLeadersRequest(unclean=True, partitions=named))


def outcomes(effects: list[ControllerEffect]) -> list[int]:
    (reply,) = [effect for effect in effects if isinstance(effect, Reply)]
    assert isinstance(reply.response, ElectLeadersResponse)
    return [each.error for each in reply.response.partitions]


def test_who_asks_for_an_unclean_election_gets_the_most_complete_one(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), dark())))
    (asked,) = controller.step(unclean_wish())
    assert isinstance(asked, AskReplicas)
    commit = only_commit(told(controller, (OTHER, 5, 3)))
    assert isinstance(commit.puts[0].record, PartitionRecord)
    assert commit.puts[0].record.leader == OTHER
    assert outcomes(controller.step(CommitDone(outcome="committed", revision=6))) == [ErrorCode.NONE]


def test_an_unclean_election_nobody_answers_for_is_refused_after_one_round(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), dark())))
    controller.step(unclean_wish())
    assert outcomes(told(controller)) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    (asked,) = controller.step(unclean_wish())
    assert isinstance(asked, AskReplicas), "another wish asks anew"


def test_a_partition_that_is_led_is_left_alone_by_an_unclean_election(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), led_by(ME, isr=(ME, OTHER), version=9))))
    assert outcomes(controller.step(unclean_wish())) == [ErrorCode.ELECTION_NOT_NEEDED]


def test_a_record_that_cannot_be_read_is_neither_changed_nor_written_over(controller: Controller) -> None:
    spoilt = with_partition(view(5), led_by(3, isr=(3, OTHER), version=9))
    spoilt = attrs.evolve(spoilt, unreadable=frozenset({"/partitions/t/0", topic_key("news")}))
    assert controller.step(ViewChanged(view=spoilt)) == []
    (reply,) = controller.step(wish())
    assert isinstance(reply, Reply)
    assert reply.response.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert topic_key("news") in reply.response.message


def test_five_hundred_partitions_of_a_dead_node_are_elected_in_one_transaction(
    controller: Controller,
) -> None:
    base = led_by(3, isr=(3, OTHER), version=9)
    partitions = {}
    for number in range(700):
        record = attrs.evolve(base.record, partition=number)
        partitions[record.id] = Versioned(record, 9)
    shown = attrs.evolve(view(5), partitions=partitions)
    first = only_commit(controller.step(ViewChanged(view=shown)))
    assert len(first.puts) == 500
    for put in first.puts:
        assert isinstance(put.record, PartitionRecord)
        partitions[put.record.id] = Versioned(put.record, 10)
    controller.step(CommitDone(outcome="committed", revision=6))
    rest = only_commit(controller.step(ViewChanged(view=attrs.evolve(view(6), partitions=dict(partitions)))))
    assert len(rest.puts) == 200


# Wishes that take too long


def expired(controller: Controller, request_id: int = 7) -> list[ControllerEffect]:
    return controller.step(WishExpired(request_id=request_id))


def test_a_wish_whose_time_is_over_is_answered_and_never_begun(controller: Controller) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), led_by(3, isr=(3, OTHER), version=9))))
    controller.step(wish("one", 7))
    controller.step(wish("two", 8))
    (late,) = expired(controller)
    assert isinstance(late, Reply)
    assert (late.request_id, late.response.error) == (7, ErrorCode.REQUEST_TIMED_OUT)
    assert late.response.revision == 0, "it speaks of no revision: nothing is known to be written"
    assert "look before you ask again" in late.response.message
    assert expired(controller) == [], "it is answered once"
    controller.step(CommitDone(outcome="committed", revision=6))
    elected = with_partition(view(6), led_by(OTHER, isr=(OTHER,), version=10))
    commit = only_commit(controller.step(ViewChanged(view=elected)))
    assert topic_key("two") in commit.checks


@pytest.mark.parametrize("outcome", ["committed", "conflict", "unknown"])
def test_one_that_is_being_written_is_not_answered_again(controller: Controller, outcome: str) -> None:
    controller.step(ViewChanged(view=view(5)))
    only_commit(controller.step(wish()))
    assert replies(expired(controller, 6)) == [], "that is another one"
    assert replies(expired(controller)) == [(7, ErrorCode.REQUEST_TIMED_OUT)]
    done = controller.step(CommitDone(outcome=outcome, revision=6))
    again = controller.step(ViewChanged(view=view(6)))
    assert [e for e in (*done, *again) if isinstance(e, Reply | Commit)] == []


def test_one_that_replicas_are_asked_for_is_given_up_and_the_next_one_asks_for_itself(
    controller: Controller,
) -> None:
    controller.step(ViewChanged(view=with_partition(view(5), dark())))
    (asked,) = controller.step(unclean_wish())
    assert isinstance(asked, AskReplicas)
    assert replies(expired(controller, 8)) == [(8, ErrorCode.REQUEST_TIMED_OUT)]
    assert controller.step(attrs.evolve(unclean_wish(), request_id=9)) == [], "one round is under way"
    (again,) = told(controller)
    assert isinstance(again, AskReplicas)
    assert outcomes(told(controller)) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]


# Rebalance


def elsewhere(count: int, *, of: int = 10) -> ClusterView:
    """Partitions that all prefer this node; `count` of them are led by the other."""
    partitions = {}
    for number in range(of):
        versioned = led_by(OTHER if number < count else ME, isr=(ME, OTHER, 3), version=9)
        record = attrs.evolve(versioned.record, partition=number)
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


def test_wishes_wait_for_a_rebalance_to_be_written(controller: Controller) -> None:
    controller.step(ViewChanged(view=elsewhere(5)))
    only_commit(controller.step(RebalanceDue()))
    assert controller.step(wish()) == []
