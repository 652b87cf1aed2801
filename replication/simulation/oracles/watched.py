"""A broker whose every step of a replica the oracle sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
from msgspec import structs

from ...core.broker.context import BrokerSettings, Context
from ...core.broker.coordination.shards import ShardKind
from ...core.broker.machine import Broker
from ...core.broker.ports import COLD, Cold, LogRange, LogReadError
from ...core.coordination.routing import GROUP_TOPIC
from ...core.coordination.shard import Shard
from ...core.errors import ErrorCode
from ...core.partition import effects as fx
from ...core.partition import events as ev
from ...core.partition.parts import Parts
from ...core.partition.replica import Replica
from ...core.types import PartitionId
from ..driver.coordinators import WALL, BatchMaker
from ..world.disk import LEFT_OUT, WHOLE, Stored

if TYPE_CHECKING:
    from ..world.cluster import Cluster
    from ..world.node import Host, Node

_ISR_OUTCOMES = (ev.IsrStored, ev.IsrRefused, ev.IsrUnclear)
KEEP_HIGH_WATERMARK = 0.1
"""How often a step is followed by a checkpoint of the high watermark."""


COLD_READ = 0.02
"""How often a read would have to wait for the device."""


class WatchedContext(Context):
    """`asked_in`: the leader epoch of the question that the next event answers, where it does not say so itself."""

    logs: ModelLogs

    def __init__(self, cluster: Cluster, node: Node, settings: BrokerSettings) -> None:
        batches = BatchMaker(cluster) if cluster.settings.coordinates else None
        super().__init__(node.id, node.incarnation, settings, ModelLogs(cluster, node), batches)
        self.wall_distance = WALL
        self.asked_in: int | None = None
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        """The calls of the current step of a replica: the name in `Parts`, and the arguments."""
        self._proposed_in: dict[tuple[Replica, int], int] = {}
        """The leader epoch of each ISR change whose outcome has not been told."""
        self._cluster = cluster
        self._node = node

    def new_replica(self, partition: PartitionId, topic_id: str = "") -> Replica:
        host = self._node.hosts.get(partition) or self._cluster.new_host(self._node, partition, topic_id)
        host.replica = super().new_replica(partition, topic_id)
        return host.replica

    def step_replica(self, partition: PartitionId, event: ev.Event) -> None:
        assert not self._calls, "a part has called the replica back in the middle of its step"
        host = self._node.hosts[partition]
        replica = self.replicas[partition]
        if isinstance(event, _ISR_OUTCOMES):
            self.asked_in = self._proposed_in.pop((replica, event.proposal_id), None)
        before = self._cluster.oracle.before(host, event, self.asked_in)
        self.asked_in = None
        replica.step(event, self.now)
        self._note(host, event)
        self._cluster.oracle.after(host, event, before)
        self._look_at_calls(host, replica)

    def ask_replica(self, partition: PartitionId, question: ev.Fetch) -> fx.FetchAnswer:
        if partition not in self.replicas:
            return super().ask_replica(partition, question)
        host = self._node.hosts[partition]
        before = self._cluster.oracle.before(host, question, None)
        replica = self.replicas[partition]
        answer = replica.fetch(question, self.now)
        self._note(host, question)
        counts = answer.error == ErrorCode.NONE and answer.diverging is None
        self._cluster.oracle.after(host, question, before, counts=counts)
        self._look_at_calls(host, replica)
        return answer

    def follow_replica(self, partition: PartitionId, question: ev.Fetch) -> bool:
        if partition not in self.replicas:
            return False
        host = self._node.hosts[partition]
        before = self._cluster.oracle.before(host, question, None)
        replica = self.replicas[partition]
        if not replica.follow(question, self.now):
            return False
        self._note(host, question)
        self._cluster.oracle.after(host, question, before, counts=True)
        self._look_at_calls(host, replica)
        return True

    def ticked(self) -> None:
        """The replicas that want to know have been told that time passes."""
        for partition in self.replicas:
            self._cluster.oracle.ticked(self._node.hosts[partition])

    def watch_shard(self, partition: PartitionId, kind: ShardKind) -> Shard:
        """The shard of a leadership, for the oracle to see its steps."""
        return self._cluster.coordinators.watch(self._node, partition, kind)

    def watch_calls(self) -> None:
        """Note from now on each call of a replica."""
        self.parts = Parts(
            **{
                each.name: self._noting(each.name, getattr(self.parts, each.name))
                for each in structs.fields(Parts)
            }
        )

    def _noting(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: Any) -> None:
            self._calls.append((name, arguments))
            call(*arguments)

        return noted

    def _look_at_calls(self, host: Host, replica: Replica) -> None:
        """Tell the oracle and the pauses of the calls of a step."""
        calls, self._calls = self._calls, []
        for name, arguments in calls:
            if name == "propose":
                proposal = arguments[1]
                self._cluster.oracle.proposed(host, proposal)
                self._proposed_in[replica, proposal.proposal_id] = proposal.record.leader_epoch
            elif name == "want":
                self._cluster.pauses.wants(self._node, *arguments)
            elif name == "stop":
                self._cluster.pauses.stops(self._node, *arguments)

    def _note(self, host: Host, event: ev.Event | ev.Fetch) -> None:
        cluster, replica = self._cluster, host.replica
        assert replica is not None
        cluster.events += 1
        log = replica.log
        cluster.trace.step(
            f"{cluster.now:.6f} {host.name} {type(event).__name__} {log.log_end_offset} {log.high_watermark} "
            f"{replica.leader_epoch} {len(self._calls)}"
        )
        if cluster.random.random() < KEEP_HIGH_WATERMARK:
            host.disk.high_watermark = log.high_watermark


class WatchedBroker(Broker):
    """See the module's text."""

    context: WatchedContext

    def __init__(
        self, context: WatchedContext, seed: bytes, kinds: Sequence[ShardKind] | None = None
    ) -> None:
        super().__init__(context, seed, kinds)
        if GROUP_TOPIC in self.shards.kinds:
            watched = attrs.evolve(self.shards.kinds[GROUP_TOPIC], shard=context.watch_shard)
            self.shards.kinds = {**self.shards.kinds, GROUP_TOPIC: watched}
        context.watch_calls()

    def tick_replicas(self) -> None:
        """Every leader has to have looked who lags, also those that wanted no tick."""
        super().tick_replicas()
        self.context.ticked()


class ModelRange(NamedTuple):
    """Batches of a model disk, how many bytes they would be, and where they end."""

    range: tuple[Stored, ...]
    size: int
    next_offset: int


class ModelLogs:
    """The broker's port to the model disks of a node."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self._cluster = cluster
        self._node = node
        self._is_warm: dict[tuple[PartitionId, int], bool] = {}
        """Places that had to be waited for, until they are read."""

    def warm(self, partition: PartitionId, offset: int) -> None:
        """The batches from there on can be read without a wait."""
        self._is_warm[partition, offset] = True

    def queued(self, partition: PartitionId) -> int:
        """See `LogPort`."""
        return len(self._node.hosts[partition].jobs)

    def range_at(
        self, partition: PartitionId, offset: int, max_bytes: int, limit_offset: int
    ) -> LogRange | Cold:
        """See `LogPort`. Batches that compaction left out take no bytes; they stand in the range for the oracle."""
        cold = not self._cluster.calm and self._cluster.chance(COLD_READ)
        if not self._is_warm.setdefault((partition, offset), not cold):
            return COLD
        del self._is_warm[partition, offset]
        disk = self._node.hosts[partition].disk
        if offset < disk.start:
            raise LogReadError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition} begins at {disk.start}")
        size, end, taken = 0, 0, disk.read(offset, limit_offset, len(disk.batches))
        unreadable = disk.damage(taken)
        if unreadable is not None and _is_in_header(unreadable):
            taken = tuple([batch for batch in taken if batch.meta.base_offset < unreadable])
            if all(batch.state == LEFT_OUT for batch in taken):
                raise LogReadError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} is damaged", damaged=True)
        for number, batch in enumerate(taken, start=1):
            if batch.state != LEFT_OUT:
                if size and size + batch.meta.size_bytes > max_bytes:
                    break
                size, end = size + batch.meta.size_bytes, number
        return ModelRange(taken[:end], size, taken[end - 1].meta.next_offset if end else offset)

    def aborted_transactions(
        self, partition: PartitionId, start_offset: int, end_offset: int
    ) -> list[tuple[int, int]]:
        """See `LogPort`."""
        return [
            (producer_id, first)
            for producer_id, first, marker, is_aborted in self._node.hosts[partition].disk.ended()
            if is_aborted and marker >= start_offset and first < end_offset
        ]

    def offset_for_timestamp(self, partition: PartitionId, timestamp_ms: int) -> int | None:
        """Here a record is as old as its offset says."""
        for batch in self._node.hosts[partition].disk.batches:
            if batch.state == WHOLE and batch.meta.next_offset > timestamp_ms:
                return max(batch.meta.base_offset, timestamp_ms)
        return None


def _is_in_header(offset: int) -> bool:
    """Whether the damage of the batch at an offset is of its header, so that no read gets past it."""
    return offset % 2 == 0
