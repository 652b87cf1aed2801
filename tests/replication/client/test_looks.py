"""How often a client looks who leads, while it suspects that somebody else does."""

from __future__ import annotations

import itertools

import trio
import trio.testing

from insync.replication.client._cluster import Cluster, Leader
from insync.replication.client._settings import ClientSettings
from insync.replication.core import messages as m
from insync.transport import Security

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
