"""No request holds a node's loop: what the largest ones do in one turn is counted in calls, not timed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core import messages as m

from . import _largest
from ._largest import MeasuredNode, largest, largest_native, native_lists

MOST_CALLS = 450_000
"""In one turn: such a turn takes about 40 ms. The largest that were accepted once made millions."""


@pytest.fixture(scope="module")
def node() -> Iterator[MeasuredNode]:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with MeasuredNode(counts=True) as node:
            yield node
    finally:
        logging.disable(disabled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "version", "path"),
    [
        (Api.PRODUCE, 13, ("topic_data", "partition_data")),
        (Api.FETCH, 4, ("topics", "partitions")),
        (Api.LIST_OFFSETS, 7, ("topics", "partitions")),
        (Api.METADATA, 13, ("topics",)),
        (Api.OFFSET_FETCH, 1, ("topics", "partition_indexes")),
        (Api.DESCRIBE_GROUPS, 6, ("groups",)),
        (Api.DELETE_TOPICS, 6, ("topics",)),
        (Api.ADD_PARTITIONS_TO_TXN, 3, ("v3_and_below_topics",)),
        (Api.TXN_OFFSET_COMMIT, 3, ("topics", "partitions")),
        (Api.DESCRIBE_CONFIGS, 4, ("resources",)),
    ],
    ids=lambda each: each.name if isinstance(each, Api) else "",
)
def test_no_request_of_kafkas_holds_the_loop(
    node: MeasuredNode, api: Api, version: int, path: tuple[str, ...]
) -> None:
    turn, answered = node.send(largest(api, version, path, "differ"))
    assert answered > 0
    assert 10_000 < turn.calls < MOST_CALLS


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        m.Kind.LIST_OFFSETS,
        m.Kind.DESCRIBE_USERS,
        m.Kind.FIND_COORDINATOR,
        m.Kind.DESCRIBE_GROUPS,
        m.Kind.DESCRIBE_TRANSACTIONS,
        m.Kind.LEAVE_GROUP,
    ],
    ids=lambda each: each.name,
)
def test_no_request_of_the_native_protocol_holds_the_loop(node: MeasuredNode, kind: m.Kind) -> None:
    (name, element) = next((name, element) for number, name, element in native_lists() if number == kind)
    for mode in _largest.MODES:
        turn, _ = node.ask_natively(kind, largest_native(kind, name, element, mode))
        assert turn.calls < MOST_CALLS


def test_a_request_has_as_many_elements_as_may_be() -> None:
    frame = largest(Api.DESCRIBE_GROUPS, 5, ("groups",), "same")
    assert 0.98 * _largest.MAX_ELEMENTS <= frame.count(b"\2t") <= _largest.MAX_ELEMENTS
