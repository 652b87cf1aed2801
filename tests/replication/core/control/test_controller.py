"""The controller never stops on an answer that tells nothing new, and answers every request once and truly."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from msgspec import structs

from insync.replication.core.control.controller import (
    CHANGES_PER_COMMIT,
    AdminRequest,
    Commit,
    CommitDone,
    Controller,
    ControllerEffect,
    ReadView,
    Reply,
    SessionLost,
    ViewChanged,
)
from insync.replication.core.control.records import (
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
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import (
    CreateTopicRequest,
)
from insync.replication.core.types import PartitionId

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


def admin_request(name: str = "news", request_id: int = 7) -> AdminRequest:
    request = CreateTopicRequest(name=name, partitions=2, replication_factor=2)
    return AdminRequest(request_id=request_id, request=request, fresh_id=f"id-{request_id}")


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
    broken = structs.replace(base.nodes[3], offline=frozenset({PartitionId("t", 0)}))
    led, sound = (
        Versioned(structs.replace(led_by(3, isr=(3, OTHER), version=9).record, partition=index), 9)
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
    return attrs.evolve(base, nodes={**base.nodes, node: structs.replace(base.nodes[node], leaving=True)})


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
    assert controller.step(admin_request()) == []


def test_a_write_of_unknown_fate_is_shut_out_by_the_next_one(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    lost = only_commit(controller.step(admin_request()))
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
    later = only_commit(controller.step(admin_request("more", request_id=8)))
    assert all(put.key != CONTROLLER_EPOCH_KEY for put in later.puts)


def test_a_new_term_shuts_out_what_is_on_its_way_by_itself(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    only_commit(controller.step(admin_request()))
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
    commit = only_commit(controller.step(admin_request()))
    assert [put.version for put in commit.puts] == [0, 0, 0]
    assert replies(controller.step(CommitDone(outcome="committed", revision=6))) == [(7, ErrorCode.NONE)]
    assert replies(controller.step(ViewChanged(view=created(view(6), commit)))) == []


@pytest.mark.parametrize("outcome", ["conflict", "unknown"])
def test_its_own_topic_of_an_attempt_that_seemed_to_fail_is_no_clash(
    controller: Controller, outcome: str
) -> None:
    controller.step(ViewChanged(view=view(5)))
    first = only_commit(controller.step(admin_request()))
    controller.step(CommitDone(outcome="unknown"))
    only_commit(controller.step(ViewChanged(view=view(5))))
    done = controller.step(CommitDone(outcome=outcome, key=topic_key("news")))
    assert replies(done) == []
    assert replies(controller.step(ViewChanged(view=created(view(6), first)))) == [(7, ErrorCode.NONE)]


def test_a_topic_of_somebody_else_is_a_clash(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    mine = only_commit(controller.step(admin_request()))
    assert replies(controller.step(CommitDone(outcome="conflict", key=topic_key("news")))) == []
    theirs = created(view(6), mine)
    theirs = attrs.evolve(theirs, topics={"news": structs.replace(theirs.topics["news"], topic_id="other")})
    effects = controller.step(ViewChanged(view=theirs))
    assert replies(effects) == [(7, ErrorCode.TOPIC_ALREADY_EXISTS)]


def test_admin_requests_wait_for_each_other_and_none_is_lost(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5)))
    first = only_commit(controller.step(admin_request("one", 1)))
    assert controller.step(admin_request("two", 2)) == []
    assert replies(controller.step(CommitDone(outcome="committed", revision=6))) == [(1, ErrorCode.NONE)]
    second = only_commit(controller.step(ViewChanged(view=created(view(6), first))))
    assert topic_key("two") in second.checks
    assert replies(controller.step(CommitDone(outcome="committed", revision=7))) == [(2, ErrorCode.NONE)]


def test_an_answer_tells_the_revision_that_it_speaks_of(controller: Controller) -> None:
    """By it the client knows which nodes have not heard of the change yet."""
    controller.step(ViewChanged(view=view(5)))
    commit = only_commit(controller.step(admin_request()))
    (noted,) = controller.step(CommitDone(outcome="committed", revision=6))
    assert isinstance(noted, Reply) and noted.response.revision == 6
    controller.step(ViewChanged(view=created(view(8), commit)))
    (there,) = controller.step(admin_request(request_id=8))
    assert isinstance(there, Reply) and there.response.revision == 8
    assert there.response.error == ErrorCode.TOPIC_ALREADY_EXISTS
    controller.step(SessionLost())
    (nobody,) = controller.step(admin_request(request_id=9))
    assert isinstance(nobody, Reply) and nobody.response.revision == 0


def test_an_impossible_admin_request_is_refused_with_the_reason(controller: Controller) -> None:
    controller.step(ViewChanged(view=view(5, nodes=(ME,))))
    (reply,) = controller.step(admin_request())
    assert isinstance(reply, Reply)
    assert reply.response.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "2 replicas" in reply.response.message


def test_elections_come_before_admin_requests(controller: Controller) -> None:
    partition = led_by(3, isr=(3, OTHER), version=9)
    controller.step(ViewChanged(view=with_partition(view(5), partition)))
    controller.step(admin_request())
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
    assert replies(controller.step(admin_request())) == [(7, ErrorCode.NOT_CONTROLLER)]


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


def test_a_record_that_cannot_be_read_is_neither_changed_nor_written_over(controller: Controller) -> None:
    spoilt = with_partition(view(5), led_by(3, isr=(3, OTHER), version=9))
    spoilt = attrs.evolve(spoilt, unreadable=frozenset({"/partitions/t/0", topic_key("news")}))
    assert controller.step(ViewChanged(view=spoilt)) == []
    (reply,) = controller.step(admin_request())
    assert isinstance(reply, Reply)
    assert reply.response.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert topic_key("news") in reply.response.message


def test_many_partitions_of_a_dead_node_are_elected_in_one_transaction(
    controller: Controller,
) -> None:
    base = led_by(3, isr=(3, OTHER), version=9)
    partitions = {}
    for number in range(CHANGES_PER_COMMIT + 200):
        record = structs.replace(base.record, partition=number)
        partitions[record.id] = Versioned(record, 9)
    shown = attrs.evolve(view(5), partitions=partitions)
    first = only_commit(controller.step(ViewChanged(view=shown)))
    assert len(first.puts) == CHANGES_PER_COMMIT
    for put in first.puts:
        assert isinstance(put.record, PartitionRecord)
        partitions[put.record.id] = Versioned(put.record, 10)
    controller.step(CommitDone(outcome="committed", revision=6))
    rest = only_commit(controller.step(ViewChanged(view=attrs.evolve(view(6), partitions=dict(partitions)))))
    assert len(rest.puts) == 200


def test_partitions_without_a_leader_come_first_where_one_transaction_is_not_enough(
    controller: Controller,
) -> None:
    """Nobody can write to them. What others get is in their followers' logs by the time that the ISR is changed."""
    partitions, without = {}, set()
    for number in range(CHANGES_PER_COMMIT + 200):
        leader = 3 if number % 3 == 2 else ME
        base = led_by(leader, isr=(ME, OTHER, 3), version=9)
        record = structs.replace(base.record, partition=number)
        partitions[record.id] = Versioned(record, 9)
        if leader == 3:
            without.add(record.id)
    commit = only_commit(
        controller.step(
            ViewChanged(view=attrs.evolve(view(5), partitions=dict(reversed(partitions.items()))))
        )
    )
    changed = [put.record.id for put in commit.puts if isinstance(put.record, PartitionRecord)]
    assert len(changed) == CHANGES_PER_COMMIT
    assert changed[: len(without)] == sorted(without)
    assert changed[len(without) :] == sorted(partitions.keys() - without)[: CHANGES_PER_COMMIT - len(without)]


def test_another_topic_does_not_have_every_partition_looked_at(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of partitions each new topic would keep the controller's node busy for a while."""
    looked: list[str] = []
    right = Controller._next_record

    def noted(self: Controller, partition: PartitionId, *rest: Any) -> Any:
        looked.append(partition.topic)
        return right(self, partition, *rest)

    monkeypatch.setattr(Controller, "_next_record", noted)
    base = led_by(ME, isr=(ME, OTHER), version=9)
    partitions = {}
    for name in ("t", "u"):
        record = structs.replace(base.record, topic=name)
        partitions[record.id] = Versioned(record, 9)
    first = attrs.evolve(view(5), partitions=partitions, topics={"t": _topic("t"), "u": _topic("u")})
    controller.step(ViewChanged(view=first))
    assert looked == ["t", "u"]
    topics = {
        **first.topics,
        "u": structs.replace(_topic("u"), config=TopicConfig(min_insync_replicas=1)),
    }
    then = attrs.evolve(first, revision=6, since=5, changed=frozenset(), topics=topics)
    controller.step(ViewChanged(view=then))
    assert looked == ["t", "u", "u"], "its own settings may matter to it"


def _topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=name, partitions=1, replication_factor=3, config=TopicConfig())
