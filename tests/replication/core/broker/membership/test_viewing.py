"""A view that is kept up to date by deltas is the one that a whole reading gives, and names what differs."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from insync.replication.core.broker.membership.viewing import Viewing
from insync.replication.core.control import records as rec
from insync.replication.core.control.view import ClusterView
from insync.replication.core.store_transaction import Seen
from insync.replication.core.types import PartitionId


def node(number: int, incarnation: int) -> tuple[str, object]:
    return rec.node_key(number), rec.NodeRecord(node_id=number, incarnation=incarnation, endpoints=())


def topic(name: str, number: int) -> tuple[str, object]:
    config = rec.TopicConfig()
    return rec.topic_key(name), rec.TopicRecord(
        name=name, topic_id=f"{number}", partitions=2, replication_factor=1, config=config
    )


def partition(index: int, epoch: int) -> tuple[str, object]:
    record = rec.PartitionRecord(
        topic="t", partition=index, topic_id="1", replicas=(1,), isr=(1,), partition_epoch=epoch
    )
    return rec.partition_key(record.id), record


numbers = st.integers(1, 3)
things = st.one_of(
    st.builds(node, numbers, numbers),
    st.builds(topic, st.sampled_from("tu"), numbers),
    st.builds(partition, numbers, numbers),
    st.builds(
        lambda n: (rec.CONTROLLER_KEY, rec.ControllerRecord(node_id=n, incarnation=n, controller_epoch=n)),
        numbers,
    ),
    st.builds(
        lambda n: (
            rec.quota_key("client", "c"),
            rec.QuotaRecord(entity_type="client", name="c", limits={"x": n}),
        ),
        numbers,
    ),
    st.builds(
        lambda n: (
            rec.deleted_key("d"),
            rec.DeletedTopicRecord(name="t", topic_id="d", number=n),
        ),
        numbers,
    ),
    st.builds(
        lambda n: (
            rec.user_key("u"),
            rec.UserRecord(name="u", credentials={}, allow=("admin",) * n),
        ),
        numbers,
    ),
    st.builds(lambda n: (rec.CLUSTER_KEY, rec.ClusterRecord(cluster_id="c", secret=f"{n}")), numbers),
)
steps = st.lists(st.tuples(things, st.sampled_from(["put", "put", "put", "delete", "spoil"]), st.booleans()))


def plain(view: ClusterView) -> ClusterView:
    return attrs.evolve(view, since=-1, changed=None)


@given(steps)
def test_deltas_add_up_to_the_whole(given_steps: list[tuple[tuple[str, object], str, bool]]) -> None:
    """`looks`: a reader may miss some changes and then be told of several at once."""
    stored: dict[str, Seen] = {}
    viewing, good = Viewing(), Viewing()
    viewing.whole(0, [])
    good.whole(0, [])
    touched: set[str] = set()
    for revision, ((key, record), what, looks) in enumerate(given_steps, 1):
        touched.add(key)
        if what == "delete":
            stored.pop(key, None)
        else:
            version = stored[key].version + 1 if key in stored else 1
            problem = "spoilt" if what == "spoil" else ""
            stored[key] = Seen(
                key=key,
                record=None if problem else record,
                version=version,
                value=f"{record} {problem}",
                problem=problem,
            )
        if not looks:
            continue
        before = viewing.view
        viewing.changed(
            revision,
            [stored[each] for each in touched if each in stored],
            [each for each in touched if each not in stored],
        )
        good.whole(revision, list(stored.values()))
        touched.clear()
        after = viewing.view
        assert plain(after) == plain(good.view)
        changed = after.differs_from(before)
        assert changed is not None
        every = before.partitions.keys() | after.partitions.keys()
        assert changed >= {
            each for each in every if before.partitions.get(each) != after.partitions.get(each)
        }
        if before.nodes == after.nodes:
            assert before.nodes is after.nodes


def test_a_change_is_decoded_once_and_costs_what_it_is() -> None:
    viewing = Viewing()
    keys = [partition(index, 1) for index in range(100)]
    seen = [Seen(key=key, record=record, version=1, value=f"{record}") for key, record in keys]
    viewing.whole(1, seen)
    before = viewing.view
    key, record = partition(7, 2)
    viewing.changed(2, [Seen(key=key, record=record, version=2, value=f"{record}")], [])
    assert viewing.view.differs_from(before) == {PartitionId("t", 7)}
    assert viewing.view.topics is before.topics and viewing.view.nodes is before.nodes
    assert all(
        viewing.view.partitions[each] is before.partitions[each]
        for each in before.partitions
        if each != PartitionId("t", 7)
    )
    viewing.whole(3, [*seen[:7], *seen[8:]])
    assert viewing.view.differs_from(before) is None
    assert PartitionId("t", 7) not in viewing.view.partitions
