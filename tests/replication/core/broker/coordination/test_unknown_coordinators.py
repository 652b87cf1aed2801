"""Questions about transactional ids at a node that has not heard of the topic that keeps them."""

from __future__ import annotations

from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.core.messages import transactions as tm

from .coordinator_node import Node


def test_it_does_not_say_that_an_id_is_not_used() -> None:
    """Another node may coordinate the id already."""
    said = Node().ask("d", tm.DescribeTransactionsRequest(transactional_ids=["one", "two"]))
    assert said.error == ErrorCode.NONE
    told = [(each.transactional_id, each.error) for each in said.transactions]
    assert told == [("one", ErrorCode.NOT_COORDINATOR), ("two", ErrorCode.NOT_COORDINATOR)]


def test_what_is_named_thousands_of_times_is_told_of_once() -> None:
    """A description can be large: the answer must not be thousands of times as large as the request."""
    names = ["one", "two"] * 1000
    said = Node().ask("d", tm.DescribeTransactionsRequest(transactional_ids=names))
    assert [each.transactional_id for each in said.transactions] == ["one", "two"]
    groups = Node().ask("d", gm.DescribeGroupsRequest(groups=names)).groups
    assert [each.group for each in groups] == ["one", "two"]
