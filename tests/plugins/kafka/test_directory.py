"""The brokers that clients are told of: those with the listener, and for a while those that died."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.plugins.kafka.core.directory import LISTED, Directory
from insync.replication.core.control.records import NodeRecord
from insync.replication.core.control.view import ClusterView


def node(node_id: int, *endpoints: str, leaving: bool = False) -> NodeRecord:
    told = endpoints or (f"kafka://10.0.0.{node_id}:9092",)
    return NodeRecord(node_id=node_id, incarnation=1, endpoints=told, leaving=leaving)


def view(*nodes: NodeRecord) -> ClusterView:
    return ClusterView(revision=1, nodes={each.node_id: each for each in nodes}, topics={}, partitions={})


class Clients:
    def __init__(self) -> None:
        self.now = 100.0
        self.directory = Directory("kafka", lambda: self.now)

    def told(self, *nodes: NodeRecord) -> list[int]:
        return [each.node_id for each in self.directory.listed(view(*nodes))]


def test_a_node_that_died_is_listed_for_a_while_and_one_that_left_is_not() -> None:
    clients = Clients()
    one, two, three = node(1), node(2), node(3)
    left = structs.replace(three, leaving=True)
    assert clients.told(one, two, left) == [1, 2, 3]
    assert clients.told(one) == [1, 2]
    assert list(clients.directory.brokers(view(one))) == [1], "nobody is sent there"
    clients.now += LISTED - 0.1
    assert clients.told(one) == [1, 2]
    clients.now += 0.1
    assert clients.told(one) == [1]


def test_a_node_that_comes_back_is_listed_once_where_it_is_now() -> None:
    clients = Clients()
    one, two = node(1), node(2)
    clients.told(one, two)
    clients.told(one)
    back = node(2, "kafka://10.0.0.9:9092")
    found = clients.directory.listed(view(one, back))
    assert [(each.node_id, each.host) for each in found] == [(1, "10.0.0.1"), (2, "10.0.0.9")]


@pytest.mark.parametrize(
    "endpoint", ["tcp://10.0.0.2:9092", "kafka://10.0.0.2:9092?name=inside", "kafka://nowhere", "?"]
)
def test_a_node_without_this_listener_is_no_broker(endpoint: str) -> None:
    clients = Clients()
    assert clients.told(node(1), node(2, endpoint)) == [1]
    both = node(2, endpoint, "kafka://10.0.0.2:9093")
    assert clients.told(node(1), both) == [1, 2]
