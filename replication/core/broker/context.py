"""The shared state of a broker's parts: its identity, replicas, clock, timers and effects."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..control.view import ClusterView
from ..errors import ErrorCode
from ..groups.settings import GroupSettings
from ..partition import effects as fx
from ..partition import events as ev
from ..partition.parts import Parts
from ..partition.replica import Replica, ReplicaSettings
from ..store_transaction import Transaction
from ..transactions.shard import TransactionSettings
from ..types import PartitionId
from .effects import Effect
from .fetching.throttle import UNLIMITED
from .ports import BatchPort, LogPort, NoBatches
from .timers import Timers


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings in seconds and bytes; the names are those of the node's settings without `_ms`."""

    replica: ReplicaSettings = msgspec.field(default_factory=ReplicaSettings)
    groups: GroupSettings = msgspec.field(default_factory=GroupSettings)
    transactions: TransactionSettings = msgspec.field(default_factory=TransactionSettings)
    offsets_commit_timeout: float = 5.0
    """Maximum time for which a coordinator's reply waits for its write."""
    ticks_per_lag_time: int = 20
    """Number of lag checks of a leader within `replica_lag_time_max`; at least one a second."""
    replica_fetch_backoff: float = 0.05
    replica_fetch_wait_max: float = 0.5
    replica_fetch_max_bytes: int = 1 << 20
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_socket_timeout: float = 30.0
    leader_silence_timeout: float = 0.0
    """Time after which a node with an open question is silent; 0: only sessions in the store end a membership."""
    suspicion_is_wrong_within: float = 1.0
    """A node that registers again within this time was alive when it was judged silent."""
    unclean_recovery_timeout: float = 2.0
    """How long an unclean election waits for replicas to report their logs (KIP-966)."""
    follower_replication_throttled_rate: int = UNLIMITED
    fetch_max_bytes: int = 55 << 20
    """Maximum bytes of batches in one answer, except for the first batch."""
    max_fetch_sessions: int = 1000
    fetch_session_idle: float = 120.0
    """Time after which an unused session may be replaced by another (Kafka's value). Sessions end with their
    connections."""
    questions_at_a_time: int = 1000
    """Maximum changed questions in one fetch of a follower, because a request has a limited size."""
    results_at_a_time: int = 500
    """Maximum partitions in one answer to a fetch: an answer has a limited size, and the batches of each partition
    may hold a file open until they are sent."""
    told_at_a_time: int = 100
    """Number of replicas that receive a reading of the store before the driver yields."""
    leader_replication_throttled_rate: int = UNLIMITED
    """Limit in bytes a second for replicas that a reassignment adds (KIP-73)."""

    @property
    def tick_period(self) -> float:
        return min(1.0, self.replica.replica_lag_time_max / self.ticks_per_lag_time)


class Context:
    """The context of a part. A part is a class that takes a context, calls other parts by named methods and emits
    effects.

    `now` is the driver's clock reading at the current event. `view` is the last reading of the store.
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
        """Seconds from the driver's clock to the wall clock; the driver updates it from time to time."""
        self.now = 0.0
        self.fits: Callable[[Transaction], bool] = lambda transaction: True
        """Whether the metadata store accepts a transaction of that size; set by the driver."""
        self.explained: Callable[[str], str] = lambda refusal: refusal
        """Puts the cause before the refusal of an admin request, if the driver knows it; set by the driver."""
        self.registered: int | None = None
        """The store's revision at which this process registered; None before."""
        self.view = ClusterView()
        self.replicas: dict[PartitionId, Replica] = {}
        self.topic_ids: dict[PartitionId, str] = {}
        """The topic id of each replica; empty if unknown."""
        self.timers = Timers()
        self.parts: Parts
        """The parts that replicas call; set by the broker, before it has a replica."""
        self.effects: list[Effect] = []
        """The effects of this step so far."""
        self.is_unsettled = False
        """Whether a part has work for the end of the turn (`Broker.settle`)."""

    @property
    def wall_ms(self) -> int:
        """The wall clock at the current event, in milliseconds since 1970, for timestamps in records."""
        return int(1000 * (self.now + self.wall_distance))

    def new_replica(self, partition: PartitionId, topic_id: str = "") -> Replica:
        """A replica of this process that is `closed` until its log is reported open."""
        assert partition not in self.replicas, f"{partition} has a replica already"
        replica = Replica(partition, self.node_id, self.incarnation, self.parts, self.settings.replica)
        self.replicas[partition], self.topic_ids[partition] = replica, topic_id
        return replica

    def step_replica(self, partition: PartitionId, event: ev.Event) -> None:
        """Pass an event to one replica."""
        self.replicas[partition].step(event, self.now)

    def ask_replica(self, partition: PartitionId, question: ev.Fetch) -> fx.FetchAnswer:
        """A replica's answer to a fetch."""
        replica = self.replicas.get(partition)
        if replica is None:
            return fx.FetchAnswer(error=self.missing_error(partition), news=True)
        return replica.fetch(question, self.now)

    def follow_replica(self, partition: PartitionId, question: ev.Fetch) -> bool:
        """Tell a replica of a fetch that has just come: whether nothing but a high watermark can be news to its
        sender (`Replica.follow`).
        """
        replica = self.replicas.get(partition)
        return replica is not None and replica.follow(question, self.now)

    def emit(self, effect: Effect) -> None:
        """Emit an effect for the driver."""
        self.effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """The effects since the last call, in order."""
        taken, self.effects = self.effects, []
        return taken

    def missing_error(self, partition: PartitionId) -> ErrorCode:
        """Why this node has no replica of a partition."""
        if partition in self.view.partitions:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
