"""Metadata of topics, encoded once: it is what would be made of the records, and never older than the view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from insync.plugins.kafka.core.encoded_topics import MOST_VERSIONS, EncodedTopics
from insync.plugins.kafka.core.failures import first_error
from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import Encoded, encode, encode_elements, message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core.control.records import (
    NodeRecord,
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
)
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId
from insync.transport.kit._frame import until

from .tables.samples import messages
from .test_listener import client_of, make, node_at

Asked, Told = message("MetadataRequest"), message("MetadataResponse")
Creating = message("CreatePartitionsRequest")
VERSIONS = range(Told.TABLE.versions.start, Told.TABLE.versions.stop)
KEPT = Encoded(1, b"kept")


def view_of(*topics: str) -> ClusterView:
    parts = {PartitionId(each, 0): Versioned(partition(each), 1) for each in topics}
    named = {
        each: TopicRecord(
            name=each, topic_id="0" * 32, partitions=1, replication_factor=1, config=TopicConfig()
        )
        for each in topics
    }
    node = NodeRecord(node_id=1, incarnation=1, endpoints=("kafka://h:1",))
    return ClusterView(revision=1, nodes={1: node}, topics=named, partitions=parts)


def partition(topic: str, leader: int = 1) -> PartitionRecord:
    return PartitionRecord(
        topic=topic, partition=0, topic_id="0" * 32, replicas=(1,), isr=(1,), leader=leader
    )


def left(before: ClusterView, after: ClusterView) -> set[str]:
    """Which topics are still known at the second view."""
    known = EncodedTopics()
    known.of(before, 9).update(a=KEPT, b=KEPT)
    return set(known.of(after, 9))


def test_what_was_encoded_counts_until_it_may_differ() -> None:
    view = view_of("a", "b")
    moved = {**view.partitions, PartitionId("a", 0): Versioned(partition("a", -1), 2)}
    known = attrs.evolve(
        view, revision=2, since=1, changed=frozenset([PartitionId("a", 0)]), partitions=moved
    )
    assert left(view, attrs.evolve(view, revision=2)) == {"a", "b"}
    assert left(view, known) == {"b"}
    # Views may be left out; then records are compared.
    assert left(view, attrs.evolve(known, revision=4, since=3)) == {"b"}
    assert left(view, attrs.evolve(known, changed=None)) == {"b"}
    fewer = {PartitionId("b", 0): view.partitions[PartitionId("b", 0)]}
    assert left(view, attrs.evolve(view, revision=4, partitions=fewer)) == {"b"}
    again = {**view.topics, "b": structs.replace(view.topics["b"], topic_id="1" * 32)}
    assert left(view, attrs.evolve(view, revision=2, since=1, changed=frozenset(), topics=again)) == {"a"}
    only = {"a": view.topics["a"]}
    assert left(view, attrs.evolve(view, revision=2, since=1, changed=frozenset(), topics=only)) == {"a"}
    elsewhere = {1: structs.replace(view.nodes[1], endpoints=("kafka://h:2",))}
    assert left(view, attrs.evolve(view, revision=2, since=1, changed=frozenset(), nodes=elsewhere)) == set()


def test_few_versions_are_kept_and_those_that_are_asked_for() -> None:
    known, view = EncodedTopics(), view_of("a")
    for version in range(MOST_VERSIONS):
        known.of(view, version)["a"] = Encoded(1, b"%d" % version)
    assert known.of(view, 0)["a"].data == b"0"
    assert not known.of(view, 12)
    assert known.of(view, 0)["a"].data == b"0", "asked for a moment ago"
    assert not known.of(view, 1), "the one that nobody has asked for the longest"


def test_what_is_told_while_a_leader_is_in_doubt_counts_only_then() -> None:
    known, view, doubted = EncodedTopics(), view_of("a", "b"), frozenset([1])
    known.of(view, 9, doubted)["a"] = KEPT
    assert not known.of(view, 9)
    known.of(view, 9)["b"] = KEPT
    assert set(known.of(view, 9, doubted)) == {"a"}
    assert set(known.of(view, 9)) == {"b"}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_array_that_is_encoded_stands_where_the_parts_would(version: int) -> None:
    @settings(max_examples=5, deadline=None, database=None)
    @given(messages(Told, version), st.integers(0, 3))
    def check(told: Any, times: int) -> None:
        told.topics = told.topics * times
        wanted = encode(told, version)
        error = first_error(told)
        data = encode_elements(Told, "topics", told.topics, version)
        own = first_error(Told(topics=told.topics))
        told.topics = Encoded(len(told.topics), data, own)
        assert encode(told, version) == wanted
        assert first_error(told) == error

    check()


async def test_a_node_tells_what_is_so_now(tmp_path: Path) -> None:
    """The same as to those who also ask what they may do: that is made of the records each time."""
    least, most = OFFERED.ranges[Api.METADATA]
    async with node_at(tmp_path) as node, client_of(node) as client:
        assert node._driver is not None
        replicas = node._driver
        for name in ("one", "two"):
            await make(node, name)
        versions = range(max(1, least), most + 1)
        # The second time the versions come first that were asked for last, and so are kept.
        for count, order in ((1, versions), (3, versions[::-1])):
            wanted = [Creating.CreatePartitionsTopic(name="two", count=count)]
            await client.ask(Api.CREATE_PARTITIONS, 3, Creating(topics=wanted, timeout_ms=30_000))
            everything = Asked(topics=None)
            await until(
                lambda want=count: len(replicas.view.partitions) == 1 + want, "the node knows of them"
            )
            for version in order:
                found = await client.ask(Api.METADATA, version, everything)
                assert {each.name: len(each.partitions) for each in found.topics} == {"one": 1, "two": count}
                names = [Asked.MetadataRequestTopic(name=each) for each in ("two", "no", "one")]
                some = Asked(topics=names, allow_auto_topic_creation=False)
                if version < 4:
                    continue
                mixed = await client.ask(Api.METADATA, version, some)
                assert [each.error_code for each in mixed.topics] == [0, 3, 0]
                if version < 8:
                    continue
                for asked, told in ((everything, found), (some, mixed)):
                    plain = await client.ask(
                        Api.METADATA,
                        version,
                        Asked(
                            topics=asked.topics,
                            allow_auto_topic_creation=False,
                            include_topic_authorized_operations=True,
                        ),
                    )
                    for each in plain.topics:
                        each.topic_authorized_operations = -(1 << 31)
                    assert plain.topics == told.topics
