"""Internal topics: how the controller makes them, whatever is asked for, and what nobody may do to them."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.control.admin_requests import AdminRequest, Knowledge, Plan, Request, plan
from insync.replication.core.control.elections import Situation
from insync.replication.core.control.internal_topics import GROUPS
from insync.replication.core.control.records import (
    NodeRecord,
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
)
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import PartitionId

NAME = GROUPS.name


def situation(record: PartitionRecord) -> Situation:
    raise AssertionError("nothing is asked of logs")


def view(*able: int, others: tuple[int, ...] = ()) -> ClusterView:
    """Nodes that can coordinate, and others of an earlier release."""
    return ClusterView(
        revision=1,
        nodes={
            node: NodeRecord(
                node_id=node,
                incarnation=1,
                endpoints=(),
                coordinates=(NAME,) if node in able else (),
            )
            for node in (*able, *others)
        },
    )


def asked(request: Request, seen: ClusterView) -> object:
    return plan(
        AdminRequest(request_id=1, request=request, fresh_id="f" * 32),
        Knowledge(view=seen, situation=situation),
    )


CREATE = m.CreateTopicRequest(name=NAME, partitions=1, replication_factor=1, config={"retention_ms": 1})


@pytest.mark.parametrize(("count", "factor", "least"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_it_is_made_as_it_has_to_be_whatever_was_asked_for(count: int, factor: int, least: int) -> None:
    planned = asked(CREATE, view(*range(1, count + 1)))
    assert isinstance(planned, Plan)
    topic, *partitions = [put.record for put in planned.puts]
    assert isinstance(topic, TopicRecord)
    assert (topic.partitions, topic.replication_factor) == (50, factor)
    assert (
        topic.config.cleanup_policy == "compact" and topic.config.retention_ms == TopicConfig().retention_ms
    )
    assert topic.config.min_insync_replicas == least
    assert len(partitions) == 50
    assert all(isinstance(each, PartitionRecord) and len(each.replicas) == factor for each in partitions)


def test_its_durability_is_as_asked_for() -> None:
    asked_for = {"durability": "flushed", "min_insync_replicas": 1}
    planned = asked(structs.replace(CREATE, config=asked_for), view(1, 2, 3))
    assert isinstance(planned, Plan)
    topic = planned.puts[0].record
    assert isinstance(topic, TopicRecord)
    assert (topic.config.durability, topic.config.min_insync_replicas) == ("flushed", 2)


def test_only_nodes_have_it_that_can_coordinate() -> None:
    planned = asked(CREATE, view(1, 4, others=(2, 3)))
    assert isinstance(planned, Plan)
    records = [put.record for put in planned.puts if isinstance(put.record, PartitionRecord)]
    assert {node for each in records for node in each.replicas} == {1, 4}
    refused = asked(CREATE, view(others=(2, 3)))
    assert isinstance(refused, m.CreateTopicResponse)
    assert refused.error == ErrorCode.COORDINATOR_NOT_AVAILABLE and "earlier release" in refused.message


@pytest.mark.parametrize(
    "request_",
    [
        m.DeleteTopicRequest(name=NAME),
        m.CreatePartitionsRequest(name=NAME, partitions=60),
        m.AlterConfigRequest(name=NAME, config={"cleanup_policy": "delete"}),
        m.AlterConfigRequest(name=NAME, config={}, reset=["unclean_leader_election"]),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_would_lose_its_state_is_refused(request_: Request) -> None:
    refused = asked(request_, view(1))
    assert isinstance(refused, m.TopicChanged)
    assert refused.error == ErrorCode.POLICY_VIOLATION and "is internal" in refused.message


def test_nobody_leads_it_uncleanly_on_request() -> None:
    record = PartitionRecord(
        topic=NAME,
        partition=0,
        topic_id="0" * 32,
        replicas=(1, 2),
        isr=(2,),
        leader=-1,
        min_insync_replicas=1,
    )
    seen = view(1)
    seen = ClusterView(revision=2, nodes=seen.nodes, partitions={PartitionId(NAME, 0): Versioned(record, 1)})
    request = m.ElectLeadersRequest(unclean=True, partitions=[m.PartitionName(topic=NAME, partition=0)])
    answer = asked(request, seen)
    assert isinstance(answer, m.ElectLeadersResponse)
    assert [each.error for each in answer.partitions] == [ErrorCode.POLICY_VIOLATION]
