"""How often a client looks who leads, while it suspects that somebody else does."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from insync.replication.client import AuthorizationError, RequestTimeoutError, UnknownTopicError
from insync.replication.client._settings import ClientSettings
from insync.replication.client.connection._cluster import Cluster, Leader
from insync.replication.core import messages as m
from insync.transport import ConnectionLost, Security

from ..fake_cluster import fake_cluster
from ..faults import drop

TOOK = 0.1


class Looking(Cluster):
    """Each look takes `TOOK` seconds, and shows what `leaders` gives next."""

    def __init__(
        self, nursery: trio.Nursery, leaders: itertools.cycle[Leader] | itertools.count[int]
    ) -> None:
        super().__init__(["tcp://127.0.0.1:1"], ClientSettings(), nursery, Security())
        self.shown = leaders
        self.began: list[float] = []

    async def _look(self) -> None:
        self.began.append(trio.current_time())
        await trio.sleep(TOOK)
        shown = next(self.shown)
        leader = shown if isinstance(shown, Leader) else Leader(1, shown)
        partition = m.PartitionInfo(
            partition=0,
            leader=leader.node_id,
            leader_epoch=leader.epoch,
            partition_epoch=0,
            replicas=[1],
            isr=[1],
            elr=[],
        )
        topic = m.TopicInfo(name="t", error=0, topic_id="id", partitions=[partition])
        self._apply(m.MetadataResponse(cluster_id="c", revision=1, controller_id=1, nodes=[], topics=[topic]))
        # Whoever was told of this leader gets no answer from it, either.
        self.suspect("t", 0, self.leader("t", 0))


async def _gaps(leaders: itertools.cycle[Leader] | itertools.count[int]) -> list[float]:
    async with trio.open_nursery() as nursery:
        cluster = Looking(nursery, leaders)
        cluster.look()
        nursery.start_soon(cluster.run)
        await trio.sleep(8)
        nursery.cancel_scope.cancel()
    began = cluster.began[1:]
    assert len(began) > 5
    return [later - first for first, later in itertools.pairwise(began)]


async def test_looks_that_find_nothing_leave_nodes_more_time(autojump_clock: trio.testing.MockClock) -> None:
    """Each describes all partitions: of a thousand slow requests none shows that somebody else leads."""
    gaps = await _gaps(itertools.cycle([Leader(1, 7)]))
    assert min(gaps) >= 5 * TOOK and max(gaps) < 6 * TOOK


async def test_while_leaders_are_elected_looks_follow_each_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gaps = await _gaps(itertools.count())
    assert max(gaps) < 3 * TOOK


class Calm(Looking):
    """Nobody suspects the leader that it is shown: it looks only when it is asked to."""

    def suspect(self, topic: str, partition: int, leader: Leader) -> None:
        assert leader == Leader(1, 7)


async def test_who_asks_during_a_look_waits_for_the_next_one(autojump_clock: trio.testing.MockClock) -> None:
    """The one under way may have been answered before what is asked about had happened."""
    async with trio.open_nursery() as nursery:
        cluster = Calm(nursery, itertools.cycle([Leader(1, 7)]))
        nursery.start_soon(cluster.run)
        nursery.start_soon(cluster.refresh)
        await trio.sleep(TOOK / 2)
        assert len(cluster.began) == 1, "this one is under way"
        asked = trio.current_time()
        await cluster.refresh()
        assert len(cluster.began) == 2 and cluster.began[1] > asked
        assert trio.current_time() - asked < 10 * TOOK, "it is not looked for at its turn, but now"
        nursery.cancel_scope.cancel()


async def test_a_topic_that_two_looks_deny_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster(2) as fake, trio.open_nursery() as nursery:
        cluster = Cluster(fake.urls, ClientSettings(), nursery, Security())
        nursery.start_soon(cluster.run)
        began = trio.current_time()
        with pytest.raises(UnknownTopicError):
            await cluster.topic("t", timeout=10.0)
        assert sum(node.seen[m.Kind.METADATA] for node in fake.nodes) == 2
        # One pause, between the two; the clock of the test counts nothing else.
        assert 0.02 <= trio.current_time() - began <= 0.05
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("failure", "told"),
    [(AuthorizationError("no"), AuthorizationError), (ConnectionLost("gone"), RequestTimeoutError)],
)
async def test_a_refusal_is_told_though_all_nodes_have_been_silent(
    failure: Exception, told: type[Exception], autojump_clock: trio.testing.MockClock
) -> None:
    async def failing(*_: object) -> None:
        raise failure

    async with fake_cluster(2) as fake, trio.open_nursery() as nursery:
        cluster = Cluster(fake.urls, ClientSettings(), nursery, Security())
        nursery.start_soon(cluster.run)
        await cluster.refresh()
        for node in fake.nodes:
            await cluster.links.get(node.node_id)
            cluster.silent(node.node_id)
        cluster._ask_one = failing  # type: ignore[method-assign, assignment]
        with pytest.raises(told):
            await cluster._metadata(m.MetadataRequest(topics=[]))
        nursery.cancel_scope.cancel()


async def test_a_node_that_was_silent_is_asked_again_after_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_cluster(2) as fake, trio.open_nursery() as nursery:
        cluster = Cluster(fake.urls, ClientSettings(), nursery, Security())
        nursery.start_soon(cluster.run)
        await cluster.refresh()
        for node in fake.nodes:
            await cluster.links.get(node.node_id)
        asked = fake.nodes[0].seen

        async def ask() -> int:
            """How many of some questions go to node 0."""
            before = asked[m.Kind.METADATA]
            for _ in range(6):
                await cluster.ask(m.Kind.METADATA, m.MetadataRequest(topics=[]), timeout=1.0)
            return asked[m.Kind.METADATA] - before

        assert await ask() == 3
        fake.nodes[0].script(m.Kind.METADATA, drop)
        assert await ask() == 1, "the one that it did not answer"
        assert await ask() == 0
        await trio.sleep(10)
        assert await ask() == 3
        nursery.cancel_scope.cancel()


async def test_who_has_answered_as_leader_is_suspected_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_cluster(1, t=1) as fake, trio.open_nursery() as nursery:
        cluster = Cluster(fake.urls, ClientSettings(), nursery, Security())
        nursery.start_soon(cluster.run)
        await cluster.topic("t", timeout=10.0)
        leader = cluster.leader("t", 0)
        cluster.suspect("t", 0, leader)
        assert cluster._avoided() == {leader.node_id}
        cluster.trust("t", 0)
        assert cluster._avoided() == set()
        nursery.cancel_scope.cancel()


async def test_a_node_that_is_behind_does_not_bring_back_a_former_topic() -> None:
    def answer(topic_id: str, leader: int, revision: int) -> m.MetadataResponse:
        partition = m.PartitionInfo(
            partition=0, leader=leader, leader_epoch=1, partition_epoch=0, replicas=[1], isr=[1], elr=[]
        )
        topic = m.TopicInfo(name="t", error=0, topic_id=topic_id, partitions=[partition])
        return m.MetadataResponse(
            cluster_id="c", revision=revision, controller_id=1, nodes=[], topics=[topic]
        )

    async with trio.open_nursery() as nursery:
        cluster = Cluster(["tcp://127.0.0.1:1"], ClientSettings(), nursery, Security())
        known = []
        for told in (answer("old", 1, 5), answer("new", 2, 7), answer("old", 1, 6), answer("newer", 3, 8)):
            cluster._apply(told)
            known.append((cluster.topics["t"].topic_id, cluster.leader("t", 0).node_id))
        assert known == [("old", 1), ("new", 2), ("new", 2), ("newer", 3)]
