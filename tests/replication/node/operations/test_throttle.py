"""What a reassignment adds is fetched at a pace, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from msgspec import structs

from insync.replication import Admin, Node, Producer
from insync.replication.core.broker.fetching.throttle import Throttle
from insync.replication.core.control.records import PartitionRecord, Versioned
from insync.replication.core.control.view import ClusterView

from ..test_cluster import full_isr, produce, until
from ..test_cluster import settings as node_settings
from ..test_parts import PARTITION, replicas

RECORD = PartitionRecord(
    topic="t", partition=0, topic_id="x", replicas=(2, 1), isr=(2,), leader=2, min_insync_replicas=1
)


def test_bytes_are_paid_for_with_time() -> None:
    throttle, now = Throttle(100), 7.0
    assert throttle.pause(now) == 0
    for size in (50, 0, 250):
        throttle.took(size, now)
        now += throttle.pause(now)
    assert now == pytest.approx(10.0)
    now += 60
    throttle.took(100, now)
    assert throttle.pause(now) == pytest.approx(1.0), "what was not used is not saved up"


@pytest.mark.parametrize(
    ("change", "throttled"),
    [
        ({"adding": (1,)}, True),
        ({}, False),
        ({"adding": (1,), "isr": (2, 1)}, False),
        ({"adding": (2,)}, False),
    ],
)
async def test_only_replicas_that_are_being_added_are_held_up(
    tmp_path: Path, change: dict[str, tuple[int, ...]], throttled: bool
) -> None:
    async with trio.open_nursery() as nursery:
        node = replicas(tmp_path, nursery)
        following = node.broker.following
        following.throttle.rate = 1000
        node.broker.context.view = ClusterView(
            partitions={PARTITION: Versioned(structs.replace(RECORD, **change), 1)}
        )
        assert following.is_throttled(PARTITION) is throttled
        size = node.settings.replica_fetch_max_bytes
        assert following.fetch_size(PARTITION) == (1000 if throttled else size)
        assert following.fetch_size(PARTITION, handed_over=True) == (1000 if throttled else 4 * size)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("where", ["leader", "follower"])
async def test_a_move_takes_as_long_as_its_throttle_says_and_in_sync_replicas_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A second's worth is in the first answer; the limit is set while the nodes run."""
    rate, batches, paid = 20_000, 8, list[int]()
    took = Throttle.took

    def noted(self: Throttle, size: int, now: float) -> None:
        if self.rate == rate:
            paid.append(size)
        took(self, size, now)

    monkeypatch.setattr(Throttle, "took", noted)
    async with (
        Node(node_settings(tmp_path, 1)) as one,
        Node(node_settings(tmp_path, 2)) as two,
        Admin(one.endpoints) as admin,
        Producer(one.endpoints, batch_size=10_000, linger_ms=0) as producer,
    ):
        servers = [*one.endpoints, *two.endpoints]
        await admin.create_topic("moves", 1, 1)
        await admin.create_topic("stays", 1, 2)
        (info,) = await admin.describe_topics(["moves"])
        for _ in range(batches):
            await (await producer.send("moves", b"x" * 10_000)).wait()
        await admin.alter_quotas("node", "", {f"{where}_replication_throttled_rate": rate})

        async def known() -> bool:
            found = [node._driver for node in (one, two)]
            throttles = [
                each.broker.serving.throttle if where == "leader" else each.broker.following.throttle
                for each in found
                if each
            ]
            return all(throttle.rate == rate for throttle in throttles)

        await until(known)
        start = trio.current_time()
        target = 3 - info.partitions[0].leader
        assert await admin.reassign_partitions({("moves", 0): [target]}) == {("moves", 0): None}
        await produce(servers, "stays", [b"x" * 10_000] * 8)
        # However long a machine stands still: the move pauses from its last bytes on, and is no quicker for it.
        assert await admin.list_partition_reassignments(["moves"]), "who is in sync is not held up"
        await until(lambda: full_isr(admin, "stays", 2))
        with trio.fail_after(60):
            await admin.wait_for_reassignments(["moves"])
        assert trio.current_time() - start >= batches * 10_000 / rate - 1.5
        assert batches * 10_000 < sum(paid) < 1.2 * batches * 10_000, "nor does anybody pay for it"
        (info,) = await admin.describe_topics(["moves"])
        assert info.partitions[0].replicas == [target]
