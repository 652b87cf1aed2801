"""The driver of a node: reports events to the broker, and carries out its effects by one table."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from ...storage import CompactionResult, LogClosedError, StorageError
from ...transport import turn
from ..core import messages as m
from ..core.broker.context import BrokerSettings, Context
from ..core.broker.effects import (
    Answer,
    CheckLog,
    CloseConnection,
    ConfigureLog,
    CreateLog,
    DeleteLog,
    Effect,
    Fail,
    IsrSettled,
    LogDamaged,
    LogsGathered,
    ReadKeys,
    Refuse,
    Reply,
    SetLogAside,
    StepBack,
    Suspect,
    Warm,
    WriteIsrs,
)
from ..core.broker.events import Event, LogDeleted, LogFound, ViewRead
from ..core.broker.machine import Broker
from ..core.control.quotas import Entity
from ..core.control.view import ClusterView
from ..core.faces import ClockVerdict, WallClocks
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.partition.replica import ReplicaSettings
from ..core.types import PartitionId
from ._dialler import Dialler
from ._replica_host import ReplicaHost, cut_refused, drop_batch, keep_batch, opened_event, role_changed
from ._timers import Timers
from .coordination._coordination import Coordination
from .coordination._group_settings import group_settings, transaction_settings
from .coordination._shard_reader import BatchMaker
from .errors import LogDirectoryFailedError, NodeError
from .logs._cold_reads import ColdReads
from .logs._damage import DamagedLogs
from .logs._directories import Home, LogDirectories, Offline, opened_log, remove_deleted_logs
from .logs._log_reader import LogReader
from .logs._log_writer import CallWork, Lane
from .logs._maintenance_thread import clock_distance, wall_clock_ms
from .logs._startup_scan import DAMAGED, Found, open_log, set_aside
from .operations.counters import Counters
from .operations.quotas import ClientQuotas
from .ports import StoreWriter
from .requests._fetches import Fetches, close_connection, fail, refuse
from .requests._produces import Produces
from .service import Metric

if TYPE_CHECKING:
    from .settings import NodeSettings

log = logging.getLogger("insync.node")

TICKS_PER_LAG_TIME = 20


class Driver:
    """Owns the broker and every `ReplicaHost`. Each entry from outside ends with `settle`."""

    def __init__(self, settings: NodeSettings, found: Found, incarnation: int, nursery: trio.Nursery) -> None:
        self.settings = settings
        self.incarnation = incarnation
        self.now = trio.lowlevel.current_clock().current_time
        """As `trio.current_time`, which looks the clock up each time."""
        self.hosts: dict[PartitionId, ReplicaHost] = {}
        self.cold_reads = ColdReads(self, self.hosts, nursery)
        self._reader = LogReader(self.hosts, self.cold_reads)
        self.broker = Broker(
            Context(settings.node_id, incarnation, _broker_settings(settings), self._reader, BatchMaker()),
            seed=secrets.token_bytes(32),
        )
        self.timers = Timers(self.settle)
        self.offline = Offline(found.offline)
        self.counters = Counters()
        self.quotas = ClientQuotas(
            self.timers,
            self.counters,
            self.settle,
            producer_default=settings.quota_producer_default,
            consumer_default=settings.quota_consumer_default,
        )
        max_difference = settings.max_clock_difference_ms / 1000
        self.clocks = WallClocks(clock_distance(wall_clock_ms()), max_difference)
        self.directories = LogDirectories(settings, found, self.offline, self)
        self.produces = Produces(self, self.quotas, self.counters, nursery)
        self.fetches = Fetches(self, self.quotas, self.counters, self.clocks)
        self.damaged_logs = DamagedLogs(self, self.hosts, self.directories, nursery)
        self.dialler = Dialler(self, self.counters, nursery)
        self.coordination = Coordination(self, self.hosts, self.directories, self.counters, nursery)
        self._obey: dict[type, Callable[[Any], None]] = {
            fx.Append: lambda effect: self.hosts[effect.partition].append(effect),
            fx.AssignEpoch: lambda effect: self.hosts[effect.partition].assign_epoch(effect),
            fx.Truncate: lambda effect: self.hosts[effect.partition].truncate(effect),
            fx.AdvanceLogStart: lambda effect: self.hosts[effect.partition].advance_log_start(effect),
            fx.KeepBatch: keep_batch,
            fx.DropBatch: drop_batch,
            fx.ReadRecord: lambda effect: self.read_again(),
            fx.RoleChanged: role_changed,
            fx.CutRefused: cut_refused,
            CreateLog: self._create,
            ConfigureLog: self._configure,
            DeleteLog: self._delete,
            SetLogAside: self._set_aside,
            Answer: self.fetches.answer,
            Reply: self.produces.reply,
            LogsGathered: lambda effect: self.store.logs_gathered(effect),
            ReadKeys: lambda effect: self.store.read_keys(effect),
            WriteIsrs: lambda effect: self.store.write_isrs(effect),
            IsrSettled: lambda effect: self.store.isr_settled(effect),
            Fail: fail,
            Refuse: refuse,
            Warm: self.cold_reads.warm,
            CheckLog: self.damaged_logs.check,
            LogDamaged: self.damaged_logs.found,
            StepBack: lambda effect: self.store.step_back(effect.partition),
            Suspect: lambda effect: self.store.suspect(effect.node, effect.reason),
            CloseConnection: close_connection,
            **self.dialler.obey,
            **self.coordination.obey,
        }
        self.store: StoreWriter
        self._nursery = nursery
        self._turn = turn()
        self.failure: NodeError | None = None
        self.gateway_metrics: dict[object, Callable[[], Iterable[Metric]]] = {}
        """The metrics of gateways, read when metrics are asked for."""
        self.failed = trio.Event()

    @property
    def view(self) -> ClusterView:
        return self.broker.context.view

    def step(self, event: Event) -> None:
        """Tell the broker, and do as it says."""
        obey = self._obey
        for effect in self.broker.step(event, self.now()):
            obey[type(effect)](effect)

    def obey(self, effects: list[Effect]) -> None:
        """Carry out what the broker asks for."""
        for effect in effects:
            self._obey[type(effect)](effect)

    async def tick_broker(self) -> None:
        """Tell the broker that time has passed, when it wants to hear of it."""
        timers = self.broker.context.timers
        while True:
            sooner = trio.Event()
            timers.on_sooner = sooner.set
            with trio.move_on_at(timers.deadline):
                await sooner.wait()
            if timers.deadline <= self.now():
                with self._turn:
                    self.coordination.look_at_clock()
                    self.obey(self.broker.tick(self.now()))
                    self.settle()

    def adopt(self, found: Found) -> None:
        """Take over the logs that were found; what is in an unusable directory, or cannot be opened, is offline."""
        marks = found.high_watermarks()
        for partition, opened in found.logs.items():
            host = self._new_host(partition, self.directories.home_of(partition))
            host.lane.log = opened
            found_as = LogFound(partition, found.topic_ids[partition], opened_event(opened, marks[partition]))
            self.step(found_as)
        where = ", ".join(map(str, found.unusable))
        for partition in found.offline:
            host = self._new_host(partition, self.directories.home_of(partition))
            host.lane.broken = host.lane.closed = True
            refused = found.refused.get(partition)
            reason = str(refused or f"it is, or may be, in a log directory that is offline: {where}")
            failed = ev.LogFailed(reason=reason)
            damaged = isinstance(refused, DAMAGED)
            self.step(LogFound(partition, found.topic_ids[partition], failed, damaged))

    def apply(self, view: ClusterView) -> None:
        """The store was read."""
        self.quotas.change({Entity(each.entity_type, each.name): each for each, _ in view.quotas.values()})
        self.step(ViewRead(view))
        self.clocks.keep(view.nodes)
        self.settle()

    def _create(self, effect: CreateLog) -> None:
        """A replica that has just been assigned: its log is made beside the writer thread."""
        partition, topic_id = effect
        home, view = self.directories.home_for(partition), self.view
        host = self._new_host(partition, home)

        def opened(log: object) -> None:
            host.adopt(opened_log(log))
            before, now = view.topics.get(partition.topic), self.view.topics.get(partition.topic)
            if now is not None and now is not before:
                # The settings may have changed while the log was being created, when there was no log to inform.
                host.configure(now.config)

        make = partial(open_log, home.directory, partition, view, create=True)
        common = (home.directory.make_folders, (partition, topic_id))
        host.submit(CallWork(host.lane, make, opened, waits=True, common=common))

    def _configure(self, effect: ConfigureLog) -> None:
        self.hosts[effect.partition].configure(effect.config)

    def _delete(self, effect: DeleteLog) -> None:
        """A replica has gone for good: its log is deleted."""
        partition = effect.partition
        log.warning("%s: its topic was deleted, or the replica was moved; deleting its log", partition)
        home = self._let_go(partition)
        if home is not None:
            delete = partial(home.directory.delete_log, *partition)
            common = (home.directory.delete_logs, partition)
            self._free_place(home, partition, delete, lambda _: self._remove_deleted(home), common)

    def _set_aside(self, effect: SetLogAside) -> None:
        """A log that cannot be used here, and that nobody gave up, is kept as a stray log."""
        partition, why = effect
        home = self._let_go(partition)
        if home is not None:
            self._free_place(
                home, partition, partial(set_aside, home.directory, partition, why), home.add_stray
            )

    def _let_go(self, partition: PartitionId) -> Home | None:
        """The working log directory with the log of a replica that has gone; without one nothing is left to do."""
        host = self.hosts.pop(partition)
        host.lane.broken = host.lane.closed = True
        if host.home is not None and not host.home.failure:
            return host.home
        self.directories.forget(partition)
        self.step(LogDeleted(partition))
        return None

    def _free_place(
        self,
        home: Home,
        partition: PartitionId,
        work: Callable[[], object],
        then: Callable[[Any], None],
        common: tuple[Callable[[Sequence[Any]], None], object] | None = None,
    ) -> None:
        """Have the log taken from its place, after which the node may be given the partition again."""
        lane = Lane(failed=lambda error: self.directories.failed(partition, error))
        home.writer.submit(
            CallWork(lane, work, partial(self._freed, partition, then), waits=True, common=common)
        )

    def _freed(self, partition: PartitionId, then: Callable[[Any], None], result: object) -> None:
        self.directories.forget(partition)
        then(result)
        self.step(LogDeleted(partition))
        self.settle()

    def _remove_deleted(self, home: Home) -> None:
        self._nursery.start_soon(remove_deleted_logs, home)

    def settle(self) -> None:
        """Look at the parked fetches of every partition that has news, and ask leaders what is to be asked."""
        broker = self.broker
        if broker.context.is_unsettled:
            if not self._turn.is_open:
                with self._turn:
                    self.settle()
                return
            self._reader.shared = {}
            try:
                effects = broker.settle(self.now())
            finally:
                self._reader.shared = None
            for effect in effects:
                self._obey[type(effect)](effect)
            if broker.goes_on:
                # After the connections that have something to send.
                self._turn.note(self)

    def settle_later(self) -> None:
        """The same when the turn ends, if one is open."""
        if self._turn.is_open:
            self._turn.note(self)
        else:
            self.settle()

    def flush(self) -> None:
        """A turn ends or hurries."""
        self.settle()

    def read_again(self) -> None:
        self.store.read_again()

    def log_failed(self, partition: PartitionId, error: StorageError) -> None:
        """A log took a write neither wholly nor at all, or could not be brought to the device."""
        if partition not in self.hosts or isinstance(error, LogClosedError):
            return  # deleted meanwhile
        self.directories.failed(partition, error)

    def went_offline(self, partitions: Collection[PartitionId], reason: str) -> None:
        """These replicas cannot be used until the next start. Without any working directory the node stops."""
        for partition in partitions:
            host = self.hosts.get(partition)
            if host is not None:
                host.fail(reason)
        if not self.directories.working:
            self._fail(f"no log directory works: {reason}")
        self.settle()

    def high_watermark(self, partition: PartitionId) -> int | None:
        """Of a replica that is in use. Other threads may ask, also when the broker has just let the replica go."""
        host, replica = self.hosts.get(partition), self.broker.context.replicas.get(partition)
        if host is None or replica is None or host.lane.closed:
            return None
        return replica.cleaning_bound

    def leads(self, partition: PartitionId) -> bool:
        """Other threads may ask."""
        replica = self.broker.context.replicas.get(partition)
        return replica is not None and replica.leader is not None

    def judge_clocks(self, now_ms: int) -> ClockVerdict:
        """Other threads may ask."""
        return self.clocks.judge(clock_distance(now_ms))

    def clocks_judged(self, verdict: ClockVerdict) -> None:
        self.directories.troubles.clocks_judged(verdict)

    def log_start_raised(self, partition: PartitionId) -> None:
        """Retention has deleted the oldest segments."""
        host = self.hosts.get(partition)
        if host is not None:
            host.log_start_raised()
            if host.log is not None:
                self.directories.troubles.found_sound(partition, host.log.log_start_offset - 1)
            self.settle()

    def maintenance_failed(self, partition: PartitionId, error: StorageError) -> None:
        self.directories.maintenance_failed(partition, error)

    def maintained(self, partition: PartitionId, compaction: CompactionResult | None) -> None:
        if partition in self.hosts:
            self.directories.troubles.succeeded(partition, compaction)

    def thread_died(self, error: Exception) -> None:
        """Nothing is written any more: the node must stop rather than live on without its logs."""
        log.error("a thread of a log directory failed", exc_info=error)
        self._fail(f"it can no longer write to its logs: {error!r}", error)

    def _fail(self, why: str, cause: Exception | None = None) -> None:
        if self.failure is None:
            self.failure = LogDirectoryFailedError(
                f"node {self.settings.node_id} stops and its partitions are led elsewhere: {why}"
            )
            self.failure.__cause__ = cause
        self.failed.set()

    def high_watermarks(self, partitions: Collection[PartitionId]) -> dict[tuple[str, int], int]:
        replicas, hosts = self.broker.context.replicas, self.hosts
        return {
            key: replicas[key].log.high_watermark
            for key in partitions
            if (host := hosts.get(key)) is not None and host.lane.log is not None
        }

    def _new_host(self, partition: PartitionId, home: Home | None) -> ReplicaHost:
        host = self.hosts[partition] = ReplicaHost(self, partition, home, self.log_failed)
        return host

    def describe(
        self, message: m.DescribePartitionsRequest, most: int
    ) -> tuple[list[m.ReplicaInfo], m.PartitionName | None]:
        """The state of at most so many replicas here that are asked for, and where the next answer goes on."""
        start, topics = message.cursor, frozenset(message.topics or ())
        keys = sorted(
            key
            for key in self.hosts
            if (message.topics is None or key.topic in topics)
            and (start is None or key >= (start.topic, start.partition))
        )
        page = keys[:most]
        left = keys[len(page) :]
        following = m.PartitionName(topic=left[0].topic, partition=left[0].partition) if left else None
        return [_describe(key, self.hosts[key]) for key in page], following


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
        log_dir=str(host.home.path) if host.home is not None else "",
    )


def _broker_settings(settings: NodeSettings) -> BrokerSettings:
    """The settings that the broker wants to know: durations in seconds."""
    return BrokerSettings(
        groups=group_settings(settings),
        transactions=transaction_settings(settings),
        offsets_commit_timeout=settings.offsets_commit_timeout_ms / 1000,
        replica=ReplicaSettings(replica_lag_time_max=settings.replica_lag_time_max_ms / 1000),
        fetch_max_bytes=settings.fetch_max_bytes,
        max_fetch_sessions=settings.max_incremental_fetch_session_cache_slots,
        leader_replication_throttled_rate=settings.leader_replication_throttled_rate,
        replica_fetch_backoff=settings.replica_fetch_backoff_ms / 1000,
        replica_fetch_wait_max=settings.replica_fetch_wait_max_ms / 1000,
        replica_fetch_max_bytes=settings.replica_fetch_max_bytes,
        replica_fetch_response_max_bytes=settings.replica_fetch_response_max_bytes,
        replica_socket_timeout=settings.replica_socket_timeout_ms / 1000,
        leader_silence_timeout=settings.leader_silence_timeout_ms / 1000,
        unclean_recovery_timeout=settings.unclean_recovery_timeout_ms / 1000,
        follower_replication_throttled_rate=settings.follower_replication_throttled_rate,
    )


def _milliseconds(seconds: float) -> int:
    return -1 if seconds == float("inf") else int(seconds * 1000)
