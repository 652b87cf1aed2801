"""Markers that a node is asked to write: each has an outcome of its own, whatever becomes of the others."""

from __future__ import annotations

import pytest

from insync.replication.core.broker.coordination.transacting import MARKER_TIMEOUT
from insync.replication.core.coordination.routing import GROUP_TOPIC
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import PartitionName
from insync.replication.core.messages import transactions as tm
from tests.replication.core.partition.test_isr_change import A, B

from .coordinator_node import PARTITION, Marking, Node

HERE = PartitionName(topic=GROUP_TOPIC, partition=0)


def marker(producer_id: int, epoch: int, *partitions: PartitionName) -> tm.TransactionMarkers:
    return tm.TransactionMarkers(
        transactional_id="x",
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=True,
        version=2,
        start_ms=0,
        partitions=list(partitions),
    )


def outcomes(*markers: tm.TransactionMarkers) -> list[tuple[int, str, int]]:
    node = Node()
    node.context.batches = Marking()
    said = node.ask("w", tm.WriteMarkersRequest(coordinator_epoch=1, markers=list(markers)))
    return [(each.producer_id, each.topic, each.error) for each in said.outcomes]


def test_a_partition_that_is_not_here_has_its_own_outcome() -> None:
    elsewhere = PartitionName(topic="unknown", partition=0)
    assert outcomes(marker(7, 0, elsewhere, HERE)) == [
        (7, "unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (7, GROUP_TOPIC, ErrorCode.NONE),
    ]


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (1 << 63, 0), (7, -1), (7, 1 << 15), (-1, -1)])
def test_ids_that_no_batch_can_hold_are_refused_by_themselves(producer_id: int, epoch: int) -> None:
    assert outcomes(marker(producer_id, epoch, HERE), marker(8, 0, HERE)) == [
        (producer_id, GROUP_TOPIC, ErrorCode.INVALID_REQUEST),
        (8, GROUP_TOPIC, ErrorCode.NONE),
    ]


@pytest.mark.parametrize(("producer_id", "epoch"), [(0, 0), ((1 << 63) - 1, (1 << 15) - 1)])
def test_the_first_and_the_last_ids_are_taken(producer_id: int, epoch: int) -> None:
    assert outcomes(marker(producer_id, epoch, HERE)) == [(producer_id, GROUP_TOPIC, ErrorCode.NONE)]


def test_a_marker_is_appended_under_the_ids_of_its_transaction() -> None:
    node = Node()
    node.context.batches = Marking()
    node.ask("w", tm.WriteMarkersRequest(coordinator_epoch=5, markers=[marker(7, 3, HERE)]))
    entry = node.context.replicas[PARTITION].log.producers.get(7)
    assert entry is not None and (entry.producer_epoch, entry.coordinator_epoch) == (3, 5)


def test_a_marker_waits_for_the_isr_and_not_forever() -> None:
    node = Node(A, B)
    node.context.batches = Marking()
    request = tm.WriteMarkersRequest(coordinator_epoch=1, markers=[marker(7, 0, HERE)])
    assert node.ask("w", request) is None
    node.wait(MARKER_TIMEOUT - 0.1)
    assert "w" not in node.said
    node.wait(0.2)
    (outcome,) = node.said["w"].outcomes
    assert outcome.error == ErrorCode.REQUEST_TIMED_OUT


def test_markers_that_a_turn_has_left_come_after_what_has_come_since() -> None:
    """A partition that was just admitted to a transaction has that decided first."""
    node, order = Node(), list[str]()
    transacting = node.broker.transacting
    transacting.left.append(lambda: order.append("markers"))
    transacting._later(lambda: order.append("admitted"))
    node.broker.settle(node.now)
    assert order == ["admitted", "markers"] and not node.broker.goes_on
