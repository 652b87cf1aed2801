"""All replicas of a node, and what they share: the writer thread, the fetches, the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from ...storage import Log, LogDirectory, StorageError
from ...transport import schemes
from ..core import effects as fx
from ..core import events as ev
from ..core import messages as m
from ..core.errors import ErrorCode
from ..core.records import NodeRecord, TopicConfig
from ..core.replica import ReplicaSettings
from ..core.types import PartitionId
from ..core.view import ClusterView
from ._fetchers import Fetchers
from ._log_flusher import LogFlusher
from ._log_writer import CallWork, LogWriter
from ._parked import Fetches
from ._produces import Produces
from ._registration import Remains
from ._replica_host import ReplicaHost
from ._timers import Timers
from .errors import LogDirectoryFailedError, NodeError

if TYPE_CHECKING:
    from .settings import NodeSettings

log = logging.getLogger("insync.node")

TICKS_PER_LAG_TIME = 20


def open_existing(directory: LogDirectory, view: ClusterView) -> dict[PartitionId, Log]:
    """Open every log that a directory holds; in a thread, before the node serves anything.

    Raises:
      StorageError: A log cannot be opened as it is; nothing was changed.
    """
    return {
        PartitionId(topic, partition): open_log(directory, PartitionId(topic, partition), view, create=False)
        for topic, partition in directory.partitions()
    }


def open_log(directory: LogDirectory, partition: PartitionId, view: ClusterView, *, create: bool) -> Log:
    """Open one log with the settings and the identity of its topic, as far as the store knows the topic."""
    topic = view.topics.get(partition.topic)
    return directory.open_log(
        *partition,
        create=create,
        topic_id=topic.topic_id if topic is not None else None,
        settings=attrs.evolve(directory.settings, segment_bytes=topic.config.segment_bytes)
        if topic is not None
        else None,
    )


def what_remains(
    logs: Mapping[PartitionId, Log], high_watermarks: Mapping[tuple[str, int], int], partition: PartitionId
) -> Remains:
    """What is left of a log: all, unless it is not there or ends before what its checkpoint says is committed."""
    opened = logs.get(partition)
    if opened is None:
        return Remains.NOTHING
    return Remains.ALL if opened.log_end_offset >= high_watermarks.get(partition, 0) else Remains.PART


class StoreWriter(Protocol):
    """What replicas ask of the node's side of the metadata store."""

    def propose_isr(self, host: ReplicaHost, proposal: fx.ProposeIsr) -> None: ...

    def read_again(self) -> None: ...

    def suspect(self, node: NodeRecord) -> None: ...


class Replies:
    """Takes the cores' answers to where the requests wait."""

    def __init__(self, produces: Produces, fetches: Fetches) -> None:
        self.produce = produces.replied
        self._fetches = fetches

    def fetch(self, partition: PartitionId, effect: fx.ReplyFetch) -> None:
        self._fetches.replied(effect)


class Replicas:
    """Owns every `ReplicaHost`. Each entry from outside ends with `settle`."""

    def __init__(
        self, settings: NodeSettings, directory: LogDirectory, incarnation: int, nursery: trio.Nursery
    ) -> None:
        self.settings = settings
        self.incarnation = incarnation
        self.view = ClusterView()
        self.hosts: dict[PartitionId, ReplicaHost] = {}
        self.timers = Timers()
        self.writer = LogWriter(str(settings.node_id), self.settle, self._thread_died)
        self.flusher = LogFlusher(
            directory, settings.flush_interval_ms, self._flush_failed, self._thread_died
        )
        self.produces = Produces(self)
        self.fetches = Fetches(self, settings.fetch_max_bytes)
        self.fetchers = Fetchers(self, settings, nursery)
        self.replies = Replies(self.produces, self.fetches)
        self.store: StoreWriter
        self._directory = directory
        self._checkpoints = directory.high_watermarks()
        self._core_settings = ReplicaSettings(replica_lag_time_max=settings.replica_lag_time_max_ms / 1000)
        self._woken: set[PartitionId] = set()
        self._live: dict[int, int] = {}
        self.failure: NodeError | None = None
        self.failed = trio.Event()

    def adopt(self, logs: Mapping[PartitionId, Log]) -> None:
        """Take over the logs of `open_existing`."""
        for partition, opened in logs.items():
            self._new_host(partition).adopt(opened, self._checkpoints.get(partition, 0))

    def apply(self, view: ClusterView) -> None:
        """The store was read: tell every core what concerns it."""
        self.view = view
        self.fetchers.nodes_changed(dict(view.nodes))
        live = view.live
        liveness_changed, self._live = live != self._live, live
        for partition, versioned in view.partitions.items():
            host = self.hosts.get(partition)
            if host is None:
                if self.settings.node_id not in versioned.record.replicas:
                    continue
                host = self._create(partition)
                host.step(ev.NodesChanged(live=live))
            host.record_read(versioned)
        if liveness_changed:
            for host in self.hosts.values():
                host.step(ev.NodesChanged(live=live))
        self.settle()

    def settle(self) -> None:
        """Look at the parked fetches of every partition that has news."""
        while self._woken:
            self.fetches.look_again(self._woken.pop())

    def wake(self, partition: PartitionId) -> None:
        self._woken.add(partition)

    def abort_ranges(self, partition: PartitionId, offset: int) -> None:
        self.fetches.abort_ranges(partition, offset)

    def propose_isr(self, host: ReplicaHost, proposal: fx.ProposeIsr) -> None:
        log.info(
            "%s: propose ISR %s (leader epoch %d): %s",
            host.partition,
            list(proposal.record.isr),
            proposal.record.leader_epoch,
            proposal.reason,
        )
        self.store.propose_isr(host, proposal)

    def read_again(self) -> None:
        self.store.read_again()

    def log_failed(self, partition: PartitionId, reason: str) -> None:
        """The directory cannot be written: the node must stop, so that others lead in its place."""
        log.error("%s: the log failed: %s", partition, reason)
        if self.failure is None:
            self.failure = LogDirectoryFailedError(
                f"log directory {self.settings.data_dir} failed at {partition}, so node "
                f"{self.settings.node_id} stops and its partitions are led elsewhere: {reason}"
            )
        self.failed.set()

    def _flush_failed(self, partition: tuple[str, int], reason: str) -> None:
        host = self.hosts.get(PartitionId(*partition))
        if host is not None and not host.lane.broken:
            host.lane.broken = True
            host.lane.failed(reason)

    def _thread_died(self, error: Exception) -> None:
        """Nothing is written any more: the node must stop rather than live on without its logs."""
        log.error("a thread of the log directory failed", exc_info=error)
        if self.failure is None:
            self.failure = LogDirectoryFailedError(
                f"node {self.settings.node_id} cannot go on writing to {self.settings.data_dir}, so it stops "
                f"and its partitions are led elsewhere: {error!r}"
            )
            self.failure.__cause__ = error
        self.failed.set()

    def missing_error(self, topic: str, partition: int) -> ErrorCode:
        """Why this node does not host a partition."""
        if PartitionId(topic, partition) in self.view.partitions:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def max_message_bytes(self, topic: str) -> int:
        record = self.view.topics.get(topic)
        return (record.config if record is not None else TopicConfig()).max_message_bytes

    def choose_endpoint(self, endpoints: Sequence[str]) -> str:
        """The first endpoint of another node whose transport is installed here.

        Raises:
          ConnectionError: There is none.
        """
        installed = schemes()
        for url in endpoints:
            if url.partition("://")[0] in installed:
                return url
        raise ConnectionError(
            f"no transport is installed for any of {', '.join(endpoints) or 'no endpoints'}"
        )

    async def tick(self) -> None:
        """Let time pass for the cores."""
        period = min(1.0, self.settings.replica_lag_time_max_ms / 1000 / TICKS_PER_LAG_TIME)
        while True:
            await trio.sleep(period)
            for host in list(self.hosts.values()):
                host.step(ev.Tick())
            self.settle()

    async def checkpoint(self) -> None:
        """Write the high watermarks down now and then; a hint for the next start, so a failure only warns."""
        period = self.settings.replica_high_watermark_checkpoint_interval_ms / 1000
        while True:
            await trio.sleep(period)
            try:
                await trio.to_thread.run_sync(self._directory.write_checkpoints, self.high_watermarks())
            except StorageError as error:
                log.warning("the high watermarks could not be written down: %s", error)

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        return {
            (key.topic, key.partition): host.replica.log.high_watermark for key, host in self.hosts.items()
        }

    def _new_host(self, partition: PartitionId) -> ReplicaHost:
        host = ReplicaHost(self, partition, self.settings.node_id, self.incarnation, self._core_settings)
        self.hosts[partition] = host
        return host

    def _create(self, partition: PartitionId) -> ReplicaHost:
        """A replica that has just been assigned: its log is made by the writer thread."""
        host = self._new_host(partition)
        self.writer.submit(
            CallWork(
                host.lane,
                partial(open_log, self._directory, partition, self.view, create=True),
                lambda opened: host.adopt(opened, 0),  # type: ignore[arg-type]
            )
        )
        return host

    def describe(self, topics: list[str] | None) -> list[m.ReplicaInfo]:
        """The state of every replica here."""
        return [
            _describe(key, host)
            for key, host in sorted(self.hosts.items())
            if topics is None or key.topic in topics
        ]


def _describe(partition: PartitionId, host: ReplicaHost) -> m.ReplicaInfo:
    replica = host.replica
    record = replica.versioned.record if replica.versioned is not None else None
    leader = replica.leader
    followers = []
    if leader is not None:
        for node_id, follower in leader.followers.items():
            behind = max(0.0, replica.now - follower.last_caught_up)
            followers.append(
                m.FollowerInfo(
                    node_id=node_id,
                    log_end_offset=follower.log_end_offset,
                    lag_ms=0
                    if follower.log_end_offset == replica.log.log_end_offset
                    else _milliseconds(behind),
                    in_sync=node_id in leader.record.isr,
                    why_out=leader.why_out(node_id),
                )
            )
    return m.ReplicaInfo(
        topic=partition.topic,
        partition=partition.partition,
        role=replica.role,
        leader=record.leader if record is not None else -1,
        leader_epoch=record.leader_epoch if record is not None else -1,
        partition_epoch=record.partition_epoch if record is not None else -1,
        log_start_offset=replica.log.log_start_offset,
        log_end_offset=replica.log.log_end_offset,
        high_watermark=replica.log.high_watermark,
        size_bytes=host.log.size_bytes if host.log is not None else 0,
        isr=list(record.isr) if record is not None else [],
        followers=followers,
        error=replica.failure,
    )


def _milliseconds(seconds: float) -> int:
    return -1 if seconds == float("inf") else int(seconds * 1000)
