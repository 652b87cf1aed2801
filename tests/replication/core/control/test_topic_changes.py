"""Topics deleted, grown and set: one transaction each, and planning it again plans nothing."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.replication.core import messages as m
from insync.replication.core.control import topic_changes
from insync.replication.core.control.elections import POLICIES
from insync.replication.core.control.records import (
    DeletedTopicRecord,
    NodeRecord,
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
)
from insync.replication.core.control.topics import TopicError
from insync.replication.core.control.transitions import set_min_insync
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import PartitionId

TOPIC = TopicRecord(
    name="t", topic_id="x", partitions=2, replication_factor=3, config=TopicConfig(min_insync_replicas=2)
)
Request = topic_changes.ChangeTopicRequest


def record(index: int, *, isr: tuple[int, ...] = (1, 2, 3), elr: tuple[int, ...] = ()) -> PartitionRecord:
    return PartitionRecord(
        topic="t",
        partition=index,
        topic_id="x",
        replicas=(1, 2, 3),
        isr=isr,
        elr=elr,
        leader=isr[0] if isr else -1,
        min_insync_replicas=2,
    )


VIEW = ClusterView(
    revision=9,
    nodes={node: NodeRecord(node_id=node, incarnation=10 + node, endpoints=()) for node in (1, 2, 3)},
    topics={"t": TOPIC},
    topic_versions={"t": 5},
    partitions={PartitionId("t", index): Versioned(record(index), 7 + index) for index in (0, 1)},
    controller_epoch=4,
)


def plan(request: Request, view: ClusterView = VIEW) -> list[topic_changes.Change]:
    return topic_changes.plan(request, view.topics.get(request.name), view, POLICIES)


def carried_out(changes: list[topic_changes.Change], view: ClusterView = VIEW) -> ClusterView:
    """The view once the changes are stored."""
    topics, versions, partitions = dict(view.topics), dict(view.topic_versions), dict(view.partitions)
    for key, changed, version in changes:
        if isinstance(changed, TopicRecord):
            topics[changed.name], versions[changed.name] = changed, version + 1
        elif isinstance(changed, PartitionRecord):
            partitions[changed.id] = Versioned(changed, version + 1)
        elif isinstance(changed, DeletedTopicRecord):
            pass
        elif key.startswith("/topics/"):
            del topics[key.removeprefix("/topics/")]
        else:
            topic, _, index = key.removeprefix("/partitions/").rpartition("/")
            del partitions[PartitionId(topic, int(index))]
    return attrs.evolve(view, topics=topics, topic_versions=versions, partitions=partitions)


def test_a_topic_goes_with_all_its_partitions_at_the_versions_that_were_seen() -> None:
    changes = plan(m.DeleteTopicRequest(name="t", topic_id="x"))
    assert changes == [
        ("/topics/t", None, 5),
        ("/partitions/t/0", None, 7),
        ("/partitions/t/1", None, 8),
        ("/deleted/x", DeletedTopicRecord(name="t", topic_id="x", number=1), 0),
    ]
    after = carried_out(changes)
    assert plan(m.DeleteTopicRequest(name="t", topic_id="x"), after) == []


def test_the_oldest_deletions_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_changes, "MOST_DELETED", 2)
    known = {
        topic_id: (DeletedTopicRecord(name="t", topic_id=topic_id, number=number), version)
        for topic_id, number, version in (("c", 30, 1), ("a", 10, 2), ("b", 20, 3))
    }
    changes = plan(m.DeleteTopicRequest(name="t"), attrs.evolve(VIEW, deleted=known))
    assert changes[3:] == [
        ("/deleted/x", DeletedTopicRecord(name="t", topic_id="x", number=31), 0),
        ("/deleted/a", None, 2),
        ("/deleted/b", None, 3),
    ]


def test_only_the_topic_that_was_meant_is_deleted() -> None:
    assert plan(m.DeleteTopicRequest(name="t", topic_id="another")) == []
    with pytest.raises(TopicError) as raised:
        plan(m.DeleteTopicRequest(name="u"))
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_new_partitions_are_placed_on_nodes_that_stay() -> None:
    nodes = {**VIEW.nodes, 4: NodeRecord(node_id=4, incarnation=14, endpoints=(), leaving=True)}
    view = attrs.evolve(VIEW, nodes=nodes)
    changes = plan(m.CreatePartitionsRequest(name="t", partitions=5), view)
    added = [changed for _, changed, _ in changes if isinstance(changed, PartitionRecord)]
    assert [each.partition for each in added] == [2, 3, 4]
    assert all(set(each.replicas) == {1, 2, 3} == set(each.isr) for each in added)
    assert {version for _, changed, version in changes if changed in added} == {0}
    after = carried_out(changes, view)
    assert after.topics["t"].partitions == 5
    assert plan(m.CreatePartitionsRequest(name="t", partitions=5), after) == []
    with pytest.raises(TopicError, match="cannot become 4"):
        plan(m.CreatePartitionsRequest(name="t", partitions=4), after)


def test_without_enough_nodes_no_partition_is_added() -> None:
    view = attrs.evolve(VIEW, nodes={1: VIEW.nodes[1]})
    with pytest.raises(TopicError, match="only 1 node is alive"):
        plan(m.CreatePartitionsRequest(name="t", partitions=3), view)


def test_the_minimum_isr_is_set_in_every_partition_with_the_topic() -> None:
    request = m.AlterConfigRequest(name="t", config={"min_insync_replicas": "3", "cleanup_policy": "compact"})
    after = carried_out(plan(request))
    assert after.topics["t"].config == TopicConfig(min_insync_replicas=3, cleanup_policy="compact")
    assert after.topics["t"].was_compacted
    assert [each.record.min_insync_replicas for each in after.partitions.values()] == [3, 3]
    assert plan(request, after) == []
    back = m.AlterConfigRequest(name="t", reset=["cleanup_policy", "min_insync_replicas"])
    again = carried_out(plan(back, after), after)
    assert again.topics["t"].config == TopicConfig()
    assert again.topics["t"].was_compacted, "the gaps stay"


@pytest.mark.parametrize(
    ("config", "reset", "told"),
    [
        ({"min_insync_replicas": 4}, [], "no acks=all write"),
        ({"cleanup_policy": "keep"}, [], "use delete, compact"),
        ({"retention_ms": -2}, [], "retention_ms=-2"),
        ({"min_cleanable_dirty_ratio": "much"}, [], "use a number from 0 to 1"),
        ({"retention_ms": "1.5"}, [], "use a whole number from -1"),
        ({"retention_msec": 1}, [], "did you mean retention_ms"),
        ({"min_compaction_lag_ms": 9, "max_compaction_lag_ms": 8}, [], "is above"),
        ({}, ["colour"], "unknown topic setting 'colour'"),
        ({"colour": 1}, [], "unknown topic setting 'colour'"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    config: dict[str, int | float | str], reset: list[str], told: str
) -> None:
    with pytest.raises(TopicError, match=told) as raised:
        plan(m.AlterConfigRequest(name="t", config=config, reset=reset))
    assert raised.value.code == ErrorCode.INVALID_CONFIG


@given(
    st.sets(st.sampled_from((1, 2, 3)), min_size=1), st.sets(st.sampled_from((1, 2, 3))), st.integers(1, 3)
)
def test_who_is_eligible_follows_the_minimum_isr(isr: set[int], elr: set[int], minimum: int) -> None:
    """KIP-966: with an ISR that is large enough nobody else may lead; else who was eligible stays so."""
    eligible = tuple(sorted(elr - isr)) if len(isr) < 2 else ()
    before = record(0, isr=tuple(sorted(isr)), elr=eligible)
    after = set_min_insync(before, minimum)
    if minimum == 2:
        assert after is None
        return
    assert after is not None
    assert (after.isr, after.leader, after.leader_epoch) == (before.isr, before.leader, before.leader_epoch)
    assert after.partition_epoch == before.partition_epoch + 1
    assert set(after.elr) == (set(before.elr) if len(isr) < minimum else set())
