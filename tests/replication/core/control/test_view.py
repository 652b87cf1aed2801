"""Who lives, who stays, who may stop, and which leaderships go back: against slow second versions."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from insync.replication.core.control import rebalance
from insync.replication.core.control.records import (
    DeletedTopicRecord,
    NodeRecord,
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
    partition_key,
)
from insync.replication.core.control.view import ClusterView, Standing
from insync.replication.core.types import NO_LEADER, PartitionId

NODES = (1, 2, 3, 4)
PARTITIONS = tuple(PartitionId("t", number) for number in range(4))


@st.composite
def records(draw: st.DrawFn, partition: PartitionId) -> PartitionRecord:
    replicas = tuple(draw(st.permutations(NODES)))[: draw(st.integers(1, 3))]
    isr = draw(st.sets(st.sampled_from(replicas)))
    leader = draw(st.sampled_from((NO_LEADER, *sorted(isr), *sorted(isr))))
    return PartitionRecord(
        topic=partition.topic,
        partition=partition.partition,
        topic_id="x",
        replicas=replicas,
        isr=tuple(node for node in replicas if node in isr),
        leader=leader,
        leader_epoch=3,
        min_insync_replicas=2,
        adding=draw(st.sampled_from(((), (), (), replicas[1:2]))),
    )


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    living = draw(st.sets(st.sampled_from(NODES), min_size=1))
    offline = st.frozensets(st.sampled_from(PARTITIONS), max_size=2)
    nodes = {
        node: NodeRecord(
            node_id=node,
            incarnation=10 * node,
            endpoints=(),
            offline=draw(st.one_of(st.just(frozenset()), offline)),
            leaving=draw(st.sampled_from((False, False, True))),
        )
        for node in sorted(living)
    }
    partitions = {partition: Versioned(draw(records(partition)), 5) for partition in PARTITIONS}
    unreadable = draw(st.frozensets(st.sampled_from(PARTITIONS), max_size=1))
    return ClusterView(
        revision=1, nodes=nodes, partitions=partitions, unreadable=frozenset(map(partition_key, unreadable))
    )


@hypothesis.given(views(), st.sampled_from(PARTITIONS))
def test_who_can_use_what_it_has_of_a_partition(view: ClusterView, partition: PartitionId) -> None:
    for leaving in (False, True):
        expected = {}
        for node in NODES:
            record = view.nodes.get(node)
            if record is None or partition in record.offline or (record.leaving and not leaving):
                continue
            expected[node] = 10 * node
        assert view.live_for(partition, leaving=leaving) == expected
    stay = {node for node in view.nodes if not view.nodes[node].leaving}
    assert view.staying.keys() == view.live.keys() == stay
    assert all(view.live[node] == 10 * node for node in stay)


@hypothesis.given(views(), st.sampled_from(NODES))
def test_a_node_may_stop_when_wherever_another_could_go_on_it_is_out(view: ClusterView, node: int) -> None:
    in_the_way = []
    for partition, versioned in view.partitions.items():
        record = versioned.record
        others = [other for other in record.replicas if other != node and other in view.live_for(partition)]
        if others and (record.leader == node or node in record.isr):
            in_the_way.append(partition)
    assert view.is_relieved(node) == (not in_the_way)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(views(), st.integers(0, 100))
def test_leaderships_go_back_where_more_than_the_tolerated_share_is_elsewhere(
    view: ClusterView, percentage: int
) -> None:
    moved = {record.id: (record, before) for record, before in rebalance.plan(view, percentage)}
    assert len(moved) == len(rebalance.plan(view, percentage))
    for partition, versioned in view.partitions.items():
        record = versioned.record
        preferred = record.replicas[0]
        mine = [each.record for each in view.partitions.values() if each.record.replicas[0] == preferred]
        share = sum(each.leader != preferred for each in mine) / len(mine)
        goes_back = (
            share * 100 > percentage + 1e-9
            and record.leader not in (preferred, NO_LEADER)
            and preferred in record.isr
            and preferred in view.live_for(partition)
            and not record.adding
            and partition_key(partition) not in view.unreadable
        )
        assert (partition in moved) == goes_back
        if goes_back:
            now, before = moved[partition]
            assert before is versioned
            assert (now.leader, now.leader_epoch, now.isr) == (preferred, 4, record.isr)


def test_a_topic_id_is_deleted_only_if_the_store_says_so() -> None:
    topic = TopicRecord(name="t", topic_id="a", partitions=1, replication_factor=1, config=TopicConfig())
    deleted = DeletedTopicRecord(name="t", topic_id="b", number=1)
    view = ClusterView(topics={"t": topic}, deleted={"b": (deleted, 1)})
    assert [view.standing_of(each) for each in "abc"] == [
        Standing.PRESENT,
        Standing.DELETED,
        Standing.UNKNOWN,
    ]
    assert ClusterView().standing_of("a") is Standing.UNKNOWN
