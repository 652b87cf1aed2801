"""Questions about transactional ids at a node that has not heard of the topic that keeps them."""

from __future__ import annotations

from insync.replication.core.coordination import transaction_messages as tm
from insync.replication.core.errors import ErrorCode

from .coordinator_node import Node


def test_it_does_not_say_that_an_id_is_not_used() -> None:
    """Another node may coordinate the id already."""
    said = Node().ask("d", tm.DescribeTransactionsRequest(transactional_ids=["one", "two"]))
    assert said.error == ErrorCode.NONE
    told = [(each.transactional_id, each.error) for each in said.transactions]
    assert told == [("one", ErrorCode.NOT_COORDINATOR), ("two", ErrorCode.NOT_COORDINATOR)]
