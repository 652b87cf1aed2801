"""Replicas that a client has chosen: taken as they are, or refused by name; and requests that only ask whether."""

from __future__ import annotations

import attrs
import pytest
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.control.admin_requests import AdminRequest, Knowledge, Plan, within
from insync.replication.core.control.records import PartitionRecord, TopicConfig, TopicRecord
from insync.replication.core.errors import ErrorCode

from .test_admin_requests import cluster, planned


def create(*assignments: list[int], **changes: object) -> m.CreateTopicRequest:
    made = m.CreateTopicRequest(
        name="new",
        partitions=len(assignments),
        replication_factor=len(assignments[0]),
        assignments=list(assignments),
    )
    return structs.replace(made, **changes)


TOPIC = TopicRecord(
    name="t", topic_id="id", partitions=1, replication_factor=2, config=TopicConfig(min_insync_replicas=1)
)
VIEW = attrs.evolve(cluster(), topics={"t": TOPIC}, topic_versions={"t": 3})


def grow(*assignments: list[int], to: int = 3, **changes: object) -> m.CreatePartitionsRequest:
    made = m.CreatePartitionsRequest(name="t", partitions=to, assignments=list(assignments))
    return structs.replace(made, **changes)


def placed(plan: object) -> list[tuple[int, ...]]:
    assert isinstance(plan, Plan), plan
    records = [put.record for put in plan.puts if isinstance(put.record, PartitionRecord)]
    assert all(each.leader == each.replicas[0] and each.isr == each.replicas for each in records)
    return [each.replicas for each in records]


def test_new_partitions_are_where_they_are_wanted() -> None:
    assert placed(planned(create([3, 1], [2, 4], [1, 3]), VIEW)) == [(3, 1), (2, 4), (1, 3)]
    assert placed(planned(grow([4, 1], [1, 2]), VIEW)) == [(4, 1), (1, 2)]


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (create([1, 2], [3]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partition 1: [3] names 1 node,"),
        (create([1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[1, 1] names a node twice: name each once"),
        (
            create([1, 9]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "node 9 is not alive: choose among 1, 2, 3, 4",
        ),
        (
            create([1, 2], []),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "names no node: name one for each replica",
        ),
        (create([1], [2], partitions=3), ErrorCode.INVALID_PARTITIONS, "leave the number out"),
        (grow([1, 2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "one for each new partition"),
        (
            grow([1], [2]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "names 1 node, and the replication factor is 2",
        ),
        (grow([1, 9], [2, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "node 9 is not alive"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    asked: m.CreateTopicRequest | m.CreatePartitionsRequest, code: ErrorCode, said: str
) -> None:
    answer = planned(asked, VIEW)
    assert isinstance(answer, m.CreateTopicResponse | m.TopicChanged)
    assert answer.error == code and said in answer.message


@pytest.mark.parametrize(
    "asked", [create([1] * 100_000, replication_factor=2), grow([1, 2], [*range(100_000)])]
)
def test_a_refusal_is_short_whatever_was_given(
    asked: m.CreateTopicRequest | m.CreatePartitionsRequest,
) -> None:
    answer = planned(asked, VIEW)
    assert isinstance(answer, m.CreateTopicResponse | m.TopicChanged)
    assert answer.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT and len(answer.message) < 1000


def test_a_node_takes_as_many_as_it_says() -> None:
    nodes = {number: structs.replace(each, max_partitions=2) for number, each in VIEW.nodes.items()}
    view = attrs.evolve(VIEW, nodes=nodes)
    assert len(placed(planned(create([1, 2], [1, 3]), view))) == 2
    answer = planned(create([1, 2], [1, 3], [1, 4]), view)
    assert isinstance(answer, m.CreateTopicResponse)
    assert answer.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "node 1 is to take 3 replicas, and takes 2 more" in answer.message


def asked(request: m.CreateTopicRequest | m.CreatePartitionsRequest, most: int = 99) -> object:
    known = Knowledge(view=VIEW, situation=lambda record: pytest.fail("nobody leads uncleanly here"))
    plan = planned(request, VIEW)
    assert isinstance(plan, Plan)
    return within(AdminRequest(request_id=1, request=request), plan, known, lambda puts: len(puts) <= most)


@pytest.mark.parametrize(
    "request_",
    [
        create([1, 2], validate_only=True),
        m.CreateTopicRequest(name="new", partitions=2, replication_factor=2, validate_only=True),
        grow([1, 2], [2, 3], validate_only=True),
        grow(validate_only=True),
    ],
)
def test_who_only_asks_whether_is_told_and_nothing_is_written(
    request_: m.CreateTopicRequest | m.CreatePartitionsRequest,
) -> None:
    answer = asked(request_)
    assert isinstance(answer, m.CreateTopicResponse | m.TopicChanged)
    assert answer.error == ErrorCode.NONE and getattr(answer, "topic_id", "") == ""
    refused = asked(request_, most=1)
    assert isinstance(refused, m.CreateTopicResponse | m.TopicChanged)
    assert refused.error == ErrorCode.INVALID_PARTITIONS, "as it would be if it were to be done"


def test_how_many_fit_into_one_transaction_is_told_of_assignments_too() -> None:
    answer = asked(create([1, 2], [2, 3], [3, 4], [4, 1]), most=3)
    assert isinstance(answer, m.CreateTopicResponse)
    assert answer.error == ErrorCode.INVALID_PARTITIONS and "at most 2 partitions" in answer.message
