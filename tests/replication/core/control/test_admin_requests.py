"""What becomes of each partition that a client requests something for: the writes that grant it, or why not."""

from __future__ import annotations

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.control import admin_requests as admin_requests
from insync.replication.core.control.admin_requests import (
    BROKEN,
    AdminRequest,
    Knowledge,
    LogsNeeded,
    Plan,
    Planned,
    Request,
    check_target,
    plan,
    refusal,
)
from insync.replication.core.control.elections import AskLogs, LogInfo, Situation
from insync.replication.core.control.records import (
    DeletedTopicRecord,
    NodeRecord,
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
)
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import NO_LEADER, PartitionId

EPOCH = 8
"""Of the controller that plans."""


def partition(
    number: int, *, leader: int = 2, isr: tuple[int, ...] = (1, 2, 3), version: int = 5
) -> Versioned:
    record = PartitionRecord(
        topic="t",
        partition=number,
        topic_id="x",
        replicas=(1, 2, 3),
        isr=isr,
        leader=leader,
        leader_epoch=6,
        min_insync_replicas=2,
    )
    return Versioned(record, version)


def dark(number: int) -> Versioned:
    """A partition that nobody alive can lead cleanly."""
    return partition(number, leader=NO_LEADER, isr=(), version=20 + number)


def cluster(*partitions: Versioned, nodes: tuple[int, ...] = (1, 2, 3, 4)) -> ClusterView:
    return ClusterView(
        revision=30,
        nodes={node: NodeRecord(node_id=node, incarnation=10 + node, endpoints=()) for node in nodes},
        partitions={each.record.id: each for each in partitions},
        controller_epoch=EPOCH,
    )


def planned(
    request: Request,
    view: ClusterView,
    *,
    logs: dict[int, tuple[int, int]] | None = None,
    may_ask: bool = True,
) -> Planned:
    def situation(record: PartitionRecord) -> Situation:
        told = {
            node: LogInfo(incarnation=10 + node, leader_epoch=6, last_epoch=last, log_end_offset=end)
            for node, (last, end) in (logs or {}).items()
        }
        return Situation(record=record, live=view.live_for(record.id), logs=told, asked=not may_ask)

    known = Knowledge(view=view, situation=situation, may_ask=may_ask)
    return plan(AdminRequest(request_id=1, request=request, fresh_id="new"), known)


def outcomes(answer: Planned) -> dict[int, m.PartitionOutcome]:
    """By partition; each is answered once."""
    response = answer.response if isinstance(answer, Plan) else answer
    assert isinstance(response, m.ElectLeadersResponse | m.AlterReassignmentsResponse)
    assert response.error == ErrorCode.NONE
    assert len({(each.topic, each.partition) for each in response.partitions}) == len(response.partitions)
    return {each.partition: each for each in response.partitions}


def written(answer: Planned, view: ClusterView) -> dict[int, PartitionRecord]:
    """The partition records to write: each over the very version that was seen, under the controller's epoch."""
    if not isinstance(answer, Plan):
        return {}
    records = {}
    for put in answer.puts:
        assert isinstance(put.record, PartitionRecord)
        assert put.key == f"/partitions/{put.record.topic}/{put.record.partition}"
        assert put.version == view.partitions[put.record.id].version
        assert put.record.controller_epoch == EPOCH
        assert not put.ephemeral
        records[put.record.partition] = put.record
    return records


def names(*numbers: int) -> list[m.PartitionName]:
    return [m.PartitionName(topic="t", partition=number) for number in numbers]


# Preferred leaders


def test_leadership_goes_to_the_preferred_replicas_that_may_have_it_and_the_others_are_told_why() -> None:
    view = cluster(
        partition(0),
        partition(1, leader=1, version=11),
        partition(2, isr=(2, 3)),
        partition(3, leader=NO_LEADER, isr=(3,)),
    )
    answer = planned(m.ElectLeadersRequest(), view)
    told = outcomes(answer)
    assert {number: each.error for number, each in told.items()} == {
        0: ErrorCode.NONE,
        1: ErrorCode.ELECTION_NOT_NEEDED,
        2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        3: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert [told[number].message for number in (0, 1)] == ["", ""]
    assert "not in the ISR [2, 3]" in told[2].message
    assert "no leader" in told[3].message
    ((number, record),) = written(answer, view).items()
    assert (number, record.leader, record.leader_epoch) == (0, 1, 7)


def test_only_the_named_partitions_are_touched_and_each_once() -> None:
    view = cluster(partition(0), partition(1), partition(2))
    answer = planned(m.ElectLeadersRequest(partitions=names(2, 0, 2, 7)), view)
    assert {number: each.error for number, each in outcomes(answer).items()} == {
        2: ErrorCode.NONE,
        0: ErrorCode.NONE,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert written(answer, view).keys() == {0, 2}
    nothing = planned(m.ElectLeadersRequest(partitions=[]), view)
    assert outcomes(nothing) == {}
    assert not isinstance(nothing, Plan)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (None, "node 1 is not alive"),
        ({"leaving": True}, "node 1 is about to stop"),
        ({"offline": frozenset({PartitionId("t", 0)})}, "offline"),
    ],
)
def test_a_preferred_replica_that_cannot_lead_is_not_called_out_of_sync(
    node: dict[str, object] | None, told: str
) -> None:
    view = cluster(partition(0), nodes=(2, 3))
    if node is not None:
        mine = NodeRecord(node_id=1, incarnation=11, endpoints=())
        view = attrs.evolve(view, nodes={**view.nodes, 1: structs.replace(mine, **node)})
    answer = planned(m.ElectLeadersRequest(), view)
    assert told in outcomes(answer)[0].message
    assert outcomes(answer)[0].error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert not isinstance(answer, Plan)


members = st.sets(st.integers(1, 3))


@hypothesis.given(members, st.sampled_from((NO_LEADER, 1, 2, 3)), members)
def test_who_is_preferred_leads_exactly_if_it_lives_and_is_in_sync(
    isr: set[int], leader: int, live: set[int]
) -> None:
    isr |= {leader} - {NO_LEADER}
    view = cluster(partition(0, leader=leader, isr=tuple(sorted(isr))), nodes=tuple(live))
    answer = planned(m.ElectLeadersRequest(partitions=names(0)), view)
    error, records = outcomes(answer)[0].error, written(answer, view)
    if leader == 1:
        assert (error, records) == (ErrorCode.ELECTION_NOT_NEEDED, {})
    elif leader != NO_LEADER and {1} <= isr & live:
        assert (error, records[0].leader, records[0].leader_epoch) == (ErrorCode.NONE, 1, 7)
        assert set(records[0].isr) == isr
    else:
        assert (error, records) == (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, {})


# Unclean elections on request


def unclean(*numbers: int) -> m.ElectLeadersRequest:
    return m.ElectLeadersRequest(unclean=True, partitions=names(*numbers))


def test_first_everybody_alive_is_asked_about_each_dark_partition() -> None:
    needed = planned(unclean(0, 1, 2, 9), cluster(dark(0), partition(1), dark(2), nodes=(2, 3)))
    assert needed == LogsNeeded(
        partitions={PartitionId("t", 0): AskLogs((2, 3)), PartitionId("t", 2): AskLogs((2, 3))}
    )


@pytest.mark.parametrize("may_ask", [True, False])
def test_the_most_complete_one_leads_and_what_needs_no_election_is_left_alone(may_ask: bool) -> None:
    view = cluster(dark(0), partition(1), nodes=(2, 3))
    answer = planned(unclean(0, 1, 9), view, logs={2: (5, 40), 3: (5, 41)}, may_ask=may_ask)
    assert {number: each.error for number, each in outcomes(answer).items()} == {
        0: ErrorCode.NONE,
        1: ErrorCode.ELECTION_NOT_NEEDED,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    ((number, record),) = written(answer, view).items()
    assert (number, record.leader, record.isr, record.recovering) == (0, 3, (3,), True)
    assert record.leader_epoch == 1006
    said = {number: each.message for number, each in outcomes(answer).items()}
    assert said[0] == (
        "node 3 leads in leader epoch 1006, elected uncleanly with its log (last epoch 5, end 41); "
        "node 1: is not alive; node 2: last epoch 5, end 40"
    )
    assert said[1].startswith(
        "node 2 leads it in leader epoch 6: there is nothing to elect; if it serves nobody"
    )


def test_a_partition_that_somebody_can_lead_cleanly_is_not_given_away() -> None:
    view = cluster(partition(0, leader=NO_LEADER, isr=(3,)), nodes=(2, 3))
    answer = planned(unclean(0), view, logs={2: (9, 99), 3: (5, 41)})
    assert outcomes(answer)[0].error == ErrorCode.ELECTION_NOT_NEEDED
    assert "node 3 has all that was committed and is about to lead it" in outcomes(answer)[0].message
    assert not isinstance(answer, Plan)


def test_after_one_round_those_who_answered_are_enough() -> None:
    view = cluster(dark(0), nodes=(2, 3))
    assert isinstance(planned(unclean(0), view, logs={2: (5, 40)}), LogsNeeded)
    answer = planned(unclean(0), view, logs={2: (5, 40)}, may_ask=False)
    assert written(answer, view)[0].leader == 2


@pytest.mark.parametrize("nodes", [(2, 3), (4,)])
def test_without_an_answer_or_a_living_replica_nobody_can_lead(nodes: tuple[int, ...]) -> None:
    answer = planned(unclean(0), cluster(dark(0), nodes=nodes), may_ask=False)
    assert not isinstance(answer, Plan | LogsNeeded)
    assert outcomes(answer)[0].error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert "[1, 2, 3]" in outcomes(answer)[0].message


# Reassignments


def moves(*wanted: tuple[int, list[int] | None]) -> m.AlterReassignmentsRequest:
    return m.AlterReassignmentsRequest(
        partitions=[
            m.PartitionReassignment(topic="t", partition=number, replicas=replicas)
            for number, replicas in wanted
        ]
    )


def test_partitions_move_as_admin_requested_and_each_that_cannot_is_told_why() -> None:
    view = cluster(partition(0), partition(1), partition(2), partition(3, version=13))
    answer = planned(moves((0, [4, 2]), (1, [1, 9]), (2, [1, 2, 3]), (3, None), (7, [1]), (8, None)), view)
    told = outcomes(answer)
    assert {number: each.error for number, each in told.items()} == {
        0: ErrorCode.NONE,
        1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        2: ErrorCode.NONE,
        3: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        8: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert "[1, 2, 3]" in told[3].message
    ((number, record),) = written(answer, view).items()
    assert (number, record.target, record.origin) == (0, (4, 2), (2, 1, 3))


def test_a_move_is_refused_that_its_nodes_have_no_room_for() -> None:
    """Each partition for itself; who is a replica already takes no more room."""
    view = cluster(partition(0), partition(1), partition(2))
    rooms = {1: 9, 2: 9, 3: 9, 4: 1}
    nodes = {node: structs.replace(each, max_partitions=rooms[node]) for node, each in view.nodes.items()}
    view = attrs.evolve(view, nodes=nodes)
    answer = planned(moves((0, [4, 1]), (1, [4, 2]), (2, [3, 2, 1])), view)
    told = outcomes(answer)
    assert {number: each.error for number, each in told.items()} == {
        0: ErrorCode.NONE,
        1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        2: ErrorCode.NONE,
    }
    assert "node 4 has no room for more replicas" in told[1].message
    assert set(written(answer, view)) == {0, 2}


def test_of_two_admin_requests_for_one_partition_the_later_counts() -> None:
    view = cluster(partition(0))
    answer = planned(moves((0, [4]), (0, [3, 4])), view)
    assert written(answer, view)[0].target == (3, 4)
    assert outcomes(answer)[0].error == ErrorCode.NONE


def test_a_move_is_cancelled_by_moving_back() -> None:
    first = planned(moves((0, [4, 2])), cluster(partition(0)))
    moving = written(first, cluster(partition(0)))[0]
    view = cluster(Versioned(moving, 6))
    back = written(planned(moves((0, None)), view), view)[0]
    assert set(back.target) == {1, 2, 3}
    assert set(back.removing) == {4}


ids = st.lists(st.integers(1, 5), max_size=4)


@hypothesis.given(ids, ids.map(set), ids.map(set))
def test_a_target_names_living_nodes_or_replicas_each_once(
    target: list[int], live: set[int], adding: set[int]
) -> None:
    record = structs.replace(partition(0).record, adding=tuple(sorted(adding & {1, 2, 3})))
    before = {1, 2, 3} - adding
    error, message = check_target(target, record, live)
    possible = bool(target) and len(target) == len(set(target)) and set(target) <= live | before
    assert (error == ErrorCode.NONE) == possible
    assert (message == "") == possible
    assert error in (ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ([], "at least one"),
        ([4, 4], "[4, 4] names a node twice: name each once"),
        ([1, 9, 8], "node 9 is not alive"),
    ],
)
def test_a_target_that_cannot_be_is_told_why(target: list[int], told: str) -> None:
    assert told in check_target(target, partition(0).record, {4})[1]


# Topics


def topic(name: str = "t", **config: object) -> TopicRecord:
    settings = TopicConfig(**config)  # type: ignore[arg-type]
    return TopicRecord(name=name, topic_id="x", partitions=1, replication_factor=3, config=settings)


def test_a_new_topic_is_one_transaction_with_all_its_partitions() -> None:
    request = m.CreateTopicRequest(
        name="new", partitions=3, replication_factor=2, config={"cleanup_policy": "compact"}
    )
    answer = planned(request, cluster())
    assert isinstance(answer, Plan)
    assert answer.response == m.CreateTopicResponse(error=ErrorCode.NONE, topic_id="new")
    head, *rest = answer.puts
    assert isinstance(head.record, TopicRecord)
    assert (head.key, head.record.partitions, head.record.replication_factor) == ("/topics/new", 3, 2)
    assert head.record.topic_id == "new"
    assert head.record.was_compacted
    assert [put.key for put in rest] == [f"/partitions/new/{number}" for number in range(3)]
    for put in rest:
        assert isinstance(put.record, PartitionRecord)
        assert (put.record.topic_id, put.record.controller_epoch) == ("new", EPOCH)
        assert len(set(put.record.isr)) == 2 == put.record.min_insync_replicas
        assert put.record.leader == put.record.replicas[0]
    assert {put.version for put in answer.puts} == {0}, "nothing is written over"


def test_a_node_that_is_about_to_stop_is_given_nothing() -> None:
    view = cluster(nodes=(1, 2, 3))
    view = attrs.evolve(view, nodes={**view.nodes, 3: structs.replace(view.nodes[3], leaving=True)})
    answer = planned(m.CreateTopicRequest(name="new", partitions=6, replication_factor=2), view)
    assert isinstance(answer, Plan)
    for put in answer.puts[1:]:
        assert isinstance(put.record, PartitionRecord)
        assert set(put.record.replicas) == {1, 2}
    refused = planned(m.CreateTopicRequest(name="new", partitions=1, replication_factor=3), view)
    assert isinstance(refused, m.CreateTopicResponse)
    assert refused.error == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_topic_that_is_there_is_made_once_and_belongs_to_who_made_it() -> None:
    view = attrs.evolve(cluster(), topics={"t": topic()})
    request = m.CreateTopicRequest(name="t", partitions=1, replication_factor=2)
    refused = planned(request, view)
    assert isinstance(refused, m.CreateTopicResponse)
    assert (refused.error, refused.topic_id) == (ErrorCode.TOPIC_ALREADY_EXISTS, "")
    ours = attrs.evolve(view, topics={"t": structs.replace(topic(), topic_id="new")})
    assert planned(request, ours) == m.CreateTopicResponse(error=ErrorCode.NONE, topic_id="new")


def test_a_creation_whose_answer_was_lost_is_known_again_when_it_is_asked_of_another_controller() -> None:
    request = m.CreateTopicRequest(name="t", partitions=1, replication_factor=2, creation_id="ours")
    made = planned(request, cluster())
    assert isinstance(made, Plan) and isinstance(made.puts[0].record, TopicRecord)
    assert made.puts[0].record.creation_id == "ours"
    theirs = structs.replace(topic(), topic_id="first", creation_id="ours")
    view = attrs.evolve(cluster(), topics={"t": theirs})
    assert planned(request, view) == m.CreateTopicResponse(error=ErrorCode.NONE, topic_id="first")
    for other in ("", "theirs"):
        refused = planned(structs.replace(request, creation_id=other), view)
        assert isinstance(refused, m.CreateTopicResponse)
        assert (refused.error, refused.topic_id) == (ErrorCode.TOPIC_ALREADY_EXISTS, "")
    unsaid = attrs.evolve(view, topics={"t": topic()})
    refused = planned(structs.replace(request, creation_id=""), unsaid)
    assert refused.error == ErrorCode.TOPIC_ALREADY_EXISTS, "nobody has said who made it"


def test_a_change_of_a_topic_is_answered_with_the_settings_from_then_on() -> None:
    view = attrs.evolve(cluster(partition(0)), topics={"t": topic()}, topic_versions={"t": 4})
    answer = planned(m.AlterConfigRequest(name="t", config={"retention_ms": 9}), view)
    assert isinstance(answer, Plan)
    assert isinstance(answer.response, m.TopicChanged)
    assert answer.response.config["retention_ms"] == 9
    same = planned(m.AlterConfigRequest(name="t", config={"min_insync_replicas": 2}), view)
    assert isinstance(same, m.TopicChanged)
    assert same.config == structs.asdict(TopicConfig())
    gone = planned(m.DeleteTopicRequest(name="t"), view)
    assert isinstance(gone, Plan)
    assert {put.key: (put.record, put.version) for put in gone.puts} == {
        "/topics/t": (None, 4),
        "/partitions/t/0": (None, 5),
        "/deleted/x": (DeletedTopicRecord(name="t", topic_id="x", number=1), 0),
    }
    nothing = planned(m.AlterConfigRequest(name="u"), view)
    assert isinstance(nothing, m.TopicChanged)
    assert (nothing.error, nothing.config) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (m.CreateTopicRequest(name="t", partitions=1, replication_factor=1), m.CreateTopicResponse),
        (m.DeleteTopicRequest(name="t"), m.TopicChanged),
        (m.CreatePartitionsRequest(name="t", partitions=2), m.TopicChanged),
        (m.AlterConfigRequest(name="t"), m.TopicChanged),
        (m.ElectLeadersRequest(), m.ElectLeadersResponse),
        (moves(), m.AlterReassignmentsResponse),
    ],
)
def test_every_kind_of_admin_request_can_be_refused_as_a_whole(request_: Request, kind: type) -> None:
    refused = refusal(request_, ErrorCode.NOT_CONTROLLER, "retry")
    assert type(refused) is kind
    assert (refused.error, refused.message) == (ErrorCode.NOT_CONTROLLER, "retry")


def test_what_would_be_written_over_a_record_that_cannot_be_read_is_refused_and_named() -> None:
    spoilt = attrs.evolve(cluster(partition(0), partition(1)), unreadable=frozenset({"/partitions/t/1"}))
    refused = planned(m.ElectLeadersRequest(), spoilt)
    assert isinstance(refused, m.ElectLeadersResponse)
    assert refused.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert refused.message.startswith("/partitions/t/1 in the metadata store cannot be read")
    assert isinstance(planned(m.ElectLeadersRequest(partitions=names(0)), spoilt), Plan)


@pytest.mark.parametrize(
    "request_",
    [
        m.CreateTopicRequest(name="new", partitions=1, replication_factor=1),
        m.AlterConfigRequest(name="t", config={}),
        m.AlterQuotasRequest(entity_type="user"),
    ],
)
def test_an_error_in_planning_refuses_the_one_request(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the controller, and the next one when the client asks again."""

    def fail(*_: object) -> Planned:
        raise OverflowError("too large")

    for name in ("_create_topic", "_change_topic", "_alter_quotas"):
        monkeypatch.setattr(admin_requests, name, fail)
    answer = planned(request_, cluster(partition(0)))
    assert type(answer) is type(refusal(request_, ErrorCode.NONE, ""))
    assert answer.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert answer.message.startswith(f"{BROKEN}OverflowError('too large') in fail, line ")
