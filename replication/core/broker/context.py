"""What the parts of one broker share: who it is, its replicas, the clock, its timers, and where effects go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import attrs

from ..control.view import ClusterView
from ..coordination.group_settings import GroupSettings
from ..coordination.transaction_shard import TransactionSettings
from ..errors import ErrorCode
from ..partition import effects as fx
from ..partition import events as ev
from ..partition.replica import Replica, ReplicaSettings
from ..transaction import Transaction
from ..types import PartitionId
from .effects import Effect, Job
from .ports import BatchPort, LogPort, NoBatches
from .timers import Timers


@attrs.frozen(kw_only=True, slots=True)
class BrokerSettings:
    """Seconds and bytes throughout; the names are those of the node's settings without `_ms`."""

    replica: ReplicaSettings = attrs.Factory(ReplicaSettings)
    groups: GroupSettings = attrs.Factory(GroupSettings)
    transactions: TransactionSettings = attrs.Factory(TransactionSettings)
    offsets_commit_timeout: float = 5.0
    """How long a reply of a coordinator waits for its write."""
    ticks_per_lag_time: int = 20
    """How often within `replica_lag_time_max` a leader looks who lags; at least once a second."""
    replica_fetch_backoff: float = 0.05
    replica_fetch_wait_max: float = 0.5
    replica_fetch_max_bytes: int = 1 << 20
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_socket_timeout: float = 30.0
    leader_silence_timeout: float = 0.0
    """For how long a question may stay open before a node is silent; 0: only sessions in the store tell."""
    suspicion_is_wrong_within: float = 1.0
    """A node that registers again within so many seconds was there when it was taken for silent."""
    unclean_recovery_timeout: float = 2.0
    """How long replicas may take to tell what they have, before an unclean election (KIP-966)."""
    follower_replication_throttled_rate: int = 2**63 - 1
    fetch_max_bytes: int = 55 << 20
    """The most bytes of batches in one answer, but for the first batch."""
    max_fetch_sessions: int = 1000
    fetch_session_idle: float = 120.0
    """After so long a session that nobody uses gives way to another (Kafka's value). Sessions of connections that
    have ended do not count: they go with them."""
    questions_at_a_time: int = 1000
    """How many questions of partitions one fetch of a follower tells at most: a request has a limited size."""
    results_at_a_time: int = 500
    """How many partitions one answer to a fetch is about at most: it has a limited size, and the batches of each
    may hold a file open until they are sent."""
    told_at_a_time: int = 100
    """How many replicas are told of a reading of the store before the driver takes breath."""
    leader_replication_throttled_rate: int = 2**63 - 1
    """Bytes a second to replicas that a reassignment adds (KIP-73)."""

    @property
    def tick_period(self) -> float:
        return min(1.0, self.replica.replica_lag_time_max / self.ticks_per_lag_time)


class Context:
    """A part is a class that takes a context; it calls other parts by narrow, named methods, and emits effects.

    `now` is the reading of the driver's clock at the current event. `view` is what the store held when it was read
    last. `routes` says which part takes which effect of a replica; what none takes goes to the driver as a `Job`.
    """

    def __init__(
        self,
        node_id: int,
        incarnation: int,
        settings: BrokerSettings,
        logs: LogPort,
        batches: BatchPort | None = None,
    ) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.settings = settings
        self.logs = logs
        self.batches: BatchPort = batches if batches is not None else NoBatches()
        self.wall_distance = 0.0
        """Seconds from the driver's clock to the wall clock, which the driver looks up now and then."""
        self.now = 0.0
        self.fits: Callable[[Transaction], bool] = lambda transaction: True
        """Whether the metadata store takes a transaction of that size; set by the driver."""
        self.registered: int | None = None
        """The store's revision at which this process registered; None before."""
        self.view = ClusterView()
        self.replicas: dict[PartitionId, Replica] = {}
        self.topic_ids: dict[PartitionId, str] = {}
        """Of which topic of its name each replica is; empty if nobody knows."""
        self.timers = Timers()
        self.routes: dict[type, Callable[[PartitionId, Any], None]] = dict.fromkeys(
            get_args(fx.Effect), self.to_driver
        )
        self.effects: list[Effect] = []
        """What this step has asked for so far."""
        self.is_unsettled = False
        """Whether some part has left something for the end of the turn (`Broker.settle`)."""

    @property
    def wall_ms(self) -> int:
        """The wall clock at the current event, in milliseconds since 1970, for what records say."""
        return int(1000 * (self.now + self.wall_distance))

    def new_replica(self, partition: PartitionId, topic_id: str = "") -> Replica:
        """A replica of this process that is `closed` until its log is reported open."""
        assert partition not in self.replicas, f"{partition} has a replica already"
        replica = Replica(partition, self.node_id, self.incarnation, self.settings.replica)
        self.replicas[partition], self.topic_ids[partition] = replica, topic_id
        return replica

    def step_replica(self, partition: PartitionId, event: ev.Event) -> None:
        """Tell one replica, and hand what it asks for to the parts, in its order."""
        routes = self.routes
        for effect in self.replicas[partition].step(event, self.now):
            routes[type(effect)](partition, effect)

    def ask_replica(self, partition: PartitionId, question: ev.Fetch) -> fx.FetchAnswer:
        """What a replica answers to a fetch; what else that gives rise to goes to the parts."""
        answer, effects = self.replicas[partition].fetch(question, self.now)
        routes = self.routes
        for effect in effects:
            routes[type(effect)](partition, effect)
        return answer

    def emit(self, effect: Effect) -> None:
        """Ask the driver for something."""
        self.effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """All that was emitted since this was called last, in order."""
        taken, self.effects = self.effects, []
        return taken

    def missing_error(self, partition: PartitionId) -> ErrorCode:
        """Why this node has no replica of a partition."""
        if partition in self.view.partitions:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def to_driver(self, partition: PartitionId, effect: fx.Effect) -> None:
        """Have the driver do what a replica asks for."""
        self.effects.append(Job(partition, effect))
