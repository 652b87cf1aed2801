"""Room for partitions: what does not fit is refused with the number that would, at a cost that is bounded."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.control import controller as ctl
from insync.replication.core.control import topic_changes
from insync.replication.core.control.admin_requests import (
    MOST_QUOTAS,
    AdminRequest,
    Knowledge,
    Plan,
    Planned,
    plan,
)
from insync.replication.core.control.capacity import check_room
from insync.replication.core.control.controller import Controller
from insync.replication.core.control.elections import POLICIES
from insync.replication.core.control.records import (
    ControllerRecord,
    NodeRecord,
    PartitionRecord,
    QuotaRecord,
    Versioned,
    quota_key,
)
from insync.replication.core.control.topics import TopicError
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode


def cluster(*room: int) -> ClusterView:
    """Nodes from 1 on, each with its `max_partitions`."""
    nodes = {
        node: NodeRecord(node_id=node, incarnation=1, endpoints=(), max_partitions=most)
        for node, most in enumerate(room, 1)
    }
    return ClusterView(revision=1, nodes=nodes)


def create(view: ClusterView, name: str, partitions: int, factor: int) -> m.CreateTopicResponse | Plan:
    request = m.CreateTopicRequest(name=name, partitions=partitions, replication_factor=factor)
    known = Knowledge(view=view, situation=lambda record: pytest.fail("nobody leads uncleanly here"))
    planned = plan(AdminRequest(request_id=1, request=request, fresh_id=f"id of {name}"), known)
    assert isinstance(planned, Plan | m.CreateTopicResponse)
    return planned


def carried_out(view: ClusterView, planned: Plan) -> ClusterView:
    made = {
        put.record.id: Versioned(put.record, 1)
        for put in planned.puts
        if isinstance(put.record, PartitionRecord)
    }
    return attrs.evolve(view, partitions={**view.partitions, **made})


@pytest.mark.parametrize("partitions", [100_000_000, 2_000_000_000, 2**62])
def test_a_topic_far_beyond_all_room_is_refused_at_once(partitions: int) -> None:
    refused = create(cluster(100, 100, 100), "t", partitions, 3)
    assert isinstance(refused, m.CreateTopicResponse)
    assert refused.error == ErrorCode.INVALID_PARTITIONS
    assert "at most 100," in refused.message
    assert "node 2 has 0 of 100" in refused.message


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.data(), st.integers(0, 6), st.integers(1, 40))
def test_what_is_named_as_the_most_fits_and_no_more(
    room: list[int], data: st.DataObject, before: int, asked: int
) -> None:
    factor = data.draw(st.integers(1, len(room)))
    view = cluster(*room)
    first = create(view, "first", before, factor) if before else None
    if isinstance(first, Plan):
        view = carried_out(view, first)
    planned = create(view, "t", asked, factor)
    if isinstance(planned, m.CreateTopicResponse):
        most = int(planned.message.partition("ask for at most ")[2].partition(",")[0])
        assert most < asked
        if most == 0:
            return
        assert isinstance(create(view, "t", most + 1, factor), m.CreateTopicResponse)
        planned = create(view, "t", most, factor)
    assert isinstance(planned, Plan)
    hosted = [
        node for known in carried_out(view, planned).partitions.values() for node in known.record.replicas
    ]
    assert all(hosted.count(node) <= most for node, most in enumerate(room, 1))


def test_a_topic_does_not_grow_beyond_the_room_either() -> None:
    view = cluster(10, 10)
    planned = create(view, "t", 4, 2)
    assert isinstance(planned, Plan)
    topic = planned.puts[0].record
    view = attrs.evolve(carried_out(view, planned), topics={"t": topic}, topic_versions={"t": 1})
    for count in (11, 2_000_000_000):
        with pytest.raises(TopicError, match="at most 6,"):
            topic_changes.plan(m.CreatePartitionsRequest(name="t", partitions=count), topic, view, POLICIES)
    assert topic_changes.plan(m.CreatePartitionsRequest(name="t", partitions=10), topic, view, POLICIES)


def test_a_node_that_is_about_to_stop_offers_no_room() -> None:
    view = cluster(10, 10)
    leaving = structs.replace(view.nodes[2], leaving=True)
    with pytest.raises(TopicError, match="at most 10,"):
        check_room("t", 1, 11, attrs.evolve(view, nodes={**view.nodes, 2: leaving}))


def test_an_id_of_a_creation_is_short() -> None:
    """Every node keeps it."""
    request = m.CreateTopicRequest(name="t", partitions=1, replication_factor=1, creation_id="x" * 257)
    known = Knowledge(view=cluster(9), situation=lambda record: pytest.fail("nobody leads uncleanly here"))
    refused = plan(AdminRequest(request_id=1, request=request, fresh_id="i"), known)
    assert isinstance(refused, m.CreateTopicResponse)
    assert (refused.error, "at most 256" in refused.message) == (ErrorCode.INVALID_REQUEST, True)


def test_so_many_entities_have_limits_and_no_more() -> None:
    def change(name: str, **limits: int) -> Planned:
        request = m.AlterQuotasRequest(entity_type="user", name=name, limits=limits)
        view = attrs.evolve(cluster(9), quotas=there)
        known = Knowledge(view=view, situation=lambda record: pytest.fail("nobody leads uncleanly here"))
        return plan(AdminRequest(request_id=1, request=request, fresh_id="i"), known)

    limits = {"producer_byte_rate": 5}
    there = {
        quota_key("user", f"u{number}"): (
            QuotaRecord(entity_type="user", name=f"u{number}", limits=limits),
            1,
        )
        for number in range(MOST_QUOTAS)
    }
    refused = change("new", producer_byte_rate=9)
    assert isinstance(refused, m.AlterQuotasResponse)
    assert refused.error == ErrorCode.POLICY_VIOLATION and "2000 users" in refused.message
    assert isinstance(change("u7", producer_byte_rate=9), Plan)


def controller(most: int) -> Controller:
    """One that is in office, over a store that takes so many operations in a transaction."""
    made = Controller(
        1, 1, fits=lambda transaction: max(len(transaction.puts), len(transaction.compares)) <= most
    )
    made.step(ctl.ViewChanged(view=in_office(cluster(100, 100, 100))))
    return made


def in_office(view: ClusterView, revision: int = 1) -> ClusterView:
    holder = ControllerRecord(node_id=1, incarnation=1, controller_epoch=1)
    return attrs.evolve(
        view, revision=revision, controller=holder, controller_epoch=1, controller_epoch_version=1
    )


def asked(
    made: Controller, request: m.CreateTopicRequest | m.CreatePartitionsRequest
) -> ctl.ControllerEffect:
    (effect,) = made.step(ctl.AdminRequest(request_id=1, request=request, fresh_id="x"))
    return effect


def test_what_the_store_does_not_take_at_once_is_refused_with_the_number_that_it_would() -> None:
    too_many = m.CreateTopicRequest(name="t", partitions=50, replication_factor=3)
    refused = asked(controller(20), too_many)
    assert isinstance(refused, ctl.Reply) and refused.response.error == ErrorCode.INVALID_PARTITIONS
    assert "at most 18 partitions" in refused.response.message
    for partitions, kind in ((18, ctl.Commit), (19, ctl.Reply)):
        request = structs.replace(too_many, partitions=partitions)
        assert isinstance(asked(controller(20), request), kind)


def test_a_topic_does_not_grow_beyond_what_one_transaction_can_delete() -> None:
    made = controller(20)
    planned = create(cluster(100, 100, 100), "t", 15, 3)
    assert isinstance(planned, Plan)
    view = attrs.evolve(
        in_office(carried_out(cluster(100, 100, 100), planned), 2),
        topics={"t": planned.puts[0].record},
        topic_versions={"t": 1},
    )
    made.step(ctl.ViewChanged(view=view))
    refused = asked(made, m.CreatePartitionsRequest(name="t", partitions=25))
    assert isinstance(refused, ctl.Reply) and "at most 18 partitions" in refused.response.message
    assert isinstance(asked(made, m.CreatePartitionsRequest(name="t", partitions=18)), ctl.Commit)


def test_elections_that_the_store_does_not_take_at_once_go_one_portion_after_the_other() -> None:
    made = controller(20)
    planned = create(cluster(100, 100, 100), "t", 60, 3)
    assert isinstance(planned, Plan)
    view = attrs.evolve(
        carried_out(cluster(100, 100, 100), planned),
        topics={"t": planned.puts[0].record},
        topic_versions={"t": 1},
    )
    fewer = {node: each for node, each in view.nodes.items() if node != 3}
    (commit,) = made.step(ctl.ViewChanged(view=in_office(attrs.evolve(view, nodes=fewer), 2)))
    assert isinstance(commit, ctl.Commit)
    assert 1 < len(commit.puts) <= 19
