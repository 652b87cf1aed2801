"""The settings of a node, with Kafka's names in snake_case and Kafka's defaults where not said otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import attrs

from ...transport import DEFAULT_BUDGET
from ...transport.polling import MOST_MICROSECONDS
from ..core.control.records import DAY_MS
from .coordination._assignors import BUILT_IN as ASSIGNORS
from .coordination._assignors import assignor as find_assignor
from .coordination._group_settings import MIGRATION_POLICIES, check_groups
from .errors import InvalidSettingError
from .requests.authorisation import Rule

NEVER = (1 << 63) - 1
LEAST_SESSION_TIMEOUT_MS = 100
"""A session is renewed several times in its timeout, by a loop that may be busy for some milliseconds."""
DEFAULT_LISTENERS = ("tcp://127.0.0.1:0", "shm://@")


def _whole(attribute: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int:
        raise InvalidSettingError(f"{attribute.name}={value!r}: use a whole number")


def _positive(instance: NodeSettings, attribute: attrs.Attribute[int], value: int) -> None:
    _whole(attribute, value)
    if value <= 0:
        raise InvalidSettingError(f"{attribute.name}={value}: use a number above 0")


def _not_negative(instance: NodeSettings, attribute: attrs.Attribute[int], value: int) -> None:
    _whole(attribute, value)
    if value < 0:
        raise InvalidSettingError(f"{attribute.name}={value}: use 0 or more")


def _for_ever_or(instance: NodeSettings, attribute: attrs.Attribute[int], value: int) -> None:
    _whole(attribute, value)
    if value < -1:
        raise InvalidSettingError(f"{attribute.name}={value}: use 0 or more, or -1 for ever")


def _microseconds(instance: NodeSettings, attribute: attrs.Attribute[int], value: int) -> None:
    _not_negative(instance, attribute, value)
    if value > MOST_MICROSECONDS:
        raise InvalidSettingError(
            f"{attribute.name}={value}: use {MOST_MICROSECONDS} (a second) or less, or 0 to poll never"
        )


def _port(instance: NodeSettings, attribute: attrs.Attribute[int], value: int) -> None:
    if not 0 <= value <= 65535:
        raise InvalidSettingError(
            f"{attribute.name}={value}: use a port from 1 to 65535, or 0 for a free one"
        )


def _folders(given: str | Path | Iterable[str | Path]) -> tuple[str | Path, ...]:
    return (given,) if isinstance(given, str | Path) else tuple(given)


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    """One alone may be given without a list; taken for a list it would be one of letters."""
    return (given,) if isinstance(given, str) else tuple(given)


def _assignors(
    instance: NodeSettings, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]
) -> None:
    for name in value or ("",):
        find_assignor(name)


def _policy(instance: NodeSettings, attribute: attrs.Attribute[str], value: str) -> None:
    if value not in MIGRATION_POLICIES:
        raise InvalidSettingError(f"{attribute.name}={value!r}: use one of {', '.join(MIGRATION_POLICIES)}")


def _rules(
    instance: NodeSettings, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]
) -> None:
    for text in value:
        Rule.parse(text)


@attrs.frozen(kw_only=True)
class NodeSettings:
    """The settings of a node. Durations are in milliseconds, sizes in bytes.

    node_id: unique in the cluster and kept over restarts; 0 or more.
    data_dir: folder of the node's logs, created if absent; belongs to one node of one cluster.
    log_dirs: several such folders in place of `data_dir`, ideally one for each device. A new partition goes to the
      folder with the fewest. A folder that fails affects only its own partitions.
    store: URL of the metadata store that all nodes of the cluster share, e.g. `sqlite:///srv/insync/meta.db`.
    listeners: URLs to listen on; port 0 (and shm://@) takes a free one. `Node.endpoints` has the
      resulting addresses. Peers and clients use the nearest that they can reach: on the same machine shm://,
      elsewhere tcp://.
    serve_store: also serve the store to other nodes at this URL of a transport; they use it as `remote+URL`.
    cluster_id: refuse to join any other cluster; None joins (or founds) the one in the store.
    store_wait_ms: how long a starting node waits for a store that a server keeps and that does not answer; None:
      without limit.
    session_timeout_ms: how long a silent node counts as alive; None: 1,000, or 6,000 on ZooKeeper and PostgreSQL.
      Shorter than Kafka's 9,000: failover is fenced, so a false suspicion costs only an election.
    replica_lag_time_max_ms: how long a follower may lag before it leaves the ISR.
    replica_fetch_max_bytes: maximum size of a follower's fetch for one partition; four times as much with shm://,
      which passes files instead of bytes.
    replica_fetch_backoff_ms: pause of a follower after a failed fetch. Shorter than Kafka's 1,000, because it
      delays the followers of a new leader, and so its first commit.
    max_incremental_fetch_session_cache_slots: maximum number of followers' fetch sessions, one for each follower.
      Followers without a session send full requests.
    controlled_shutdown_timeout_ms: how long a stopping node waits until other nodes lead its partitions and it has
      left the ISRs; 0 stops at once.
    flush_interval_messages, flush_interval_ms: flush a log to the device after this many records, or this long
      after the last flush. By default only closed segments are flushed: replication makes acknowledged records
      safe.
    follower_replication_throttled_rate: maximum bytes a second that the node fetches for replicas which a
      reassignment adds to it; other replicas are not throttled.
    leader_replication_throttled_rate: maximum bytes a second that the node sends to replicas which a reassignment
      adds elsewhere. Both can be set at run time for one node or for all, which overrides this (`insync config`).
    quota_producer_default, quota_consumer_default: maximum bytes a second that each client may produce to, or
      consume from, this node, if no limit is set for it at run time; None: no limit.
    metrics_port: serve metrics for Prometheus, and the node's health, by HTTP at this port of `metrics_host`; 0
      takes a free one (`Node.metrics_address`), None serves nothing. The port requires no login.
    log_format: `text` or `json`, the log format of `insync node`. Programs that run a node configure logging
      themselves.
    leader_silence_timeout_ms: how long a leader, or the controller, may take for an answer before its followers ask
      one another. If most of them, and at least two, find it silent, it is replaced at once. 0: it is replaced when
      its session ends.
    unclean_recovery_timeout_ms: how long a round of questions to replicas about their logs lasts at most. An
      unclean election that nobody asked for waits five rounds for replicas that are not alive.
    auto_leader_rebalance_enable, leader_imbalance_check_interval_ms, leader_imbalance_per_broker_percentage:
      whether and when leaderships move back to the preferred leaders, and how many may be elsewhere until then.
    secret_file: a file with the cluster's secret, the same for all nodes and clients; default: INSYNC_SECRET_FILE
      or INSYNC_SECRET in the environment. Peers without it are refused. A second line is a second secret: the node
      proves the first, and a peer may prove either, while one secret takes the place of the other.
    secret: the secret itself, for programs that read it from elsewhere; overrides `secret_file`.
    node_secret_file: a file with a secret that all nodes have, and no client: a peer that claims to be a node must
      prove that it has it. Without it every peer that has `secret` may claim to be a node. Two lines as above.
    node_secret: this secret itself, for programs that read it from elsewhere; overrides `node_secret_file`.
    max_clock_difference_ms: if the wall clock differs by more from most of its own and the followers' (without
      followers: from its own course since the start), the node deletes and compacts nothing.
    log_maintenance_interval_ms: interval of retention and compaction (Kafka has two settings, 300,000 and 15,000).
    stray_retention_ms: how long a log is kept that the node set aside, because it could not use it and nothing
      shows that its records were given up (`insync stray`); -1 keeps it until somebody deletes it.
    log_cleaner_io_max_bytes_per_second: limit for the reads and writes of compaction; None: no limit.
    tls_certificate, tls_key, tls_authorities: PEM files for tls://, all three or none; default: the files that
      INSYNC_TLS_CERTIFICATE, INSYNC_TLS_KEY and INSYNC_TLS_AUTHORITIES in the environment name.
    storage_stall_timeout_ms: a log directory in which one write takes longer goes offline. Half of a client's
      request timeout, so that the next leader can still answer the requests that wait for it.
    busy_poll_us: for how many microseconds after each append the event loop polls for messages instead of sleeping.
      Records then pass through the node faster, for the processor time that it polls. 0: never.
    proof_interval_ms: how often each log directory and the metadata store advance a shared counter. The next start
      detects a directory that was restored to a state older than this.
    max_partitions_per_node: maximum number of replicas on the node; a topic that does not fit on the living nodes
      is refused, with the number that would fit.
    queued_max_request_bytes: memory for the payloads of waiting and running requests, over all connections (Kafka:
      no limit). Without room, a connection waits for its turn and its data stays unread.
    offsets_topic_num_partitions, offsets_topic_replication_factor, offsets_topic_segment_bytes: how the controller
      creates `__consumer_offsets`, which stores groups and their offsets, when it is first needed. The settings of
      the controller's node apply, and the number of partitions never changes.
    offsets_retention_minutes, offsets_retention_check_interval_ms: how long unused offsets are kept, and how often
      that is checked.
    offset_metadata_max_bytes: maximum size of the text stored with a committed offset.
    offsets_commit_timeout_ms: how long a coordinator waits for a write before it answers.
    group_min_session_timeout_ms, group_max_session_timeout_ms: the session timeouts that members of the classic
      protocol may request.
    group_initial_rebalance_delay_ms: how long an empty classic group waits for more members.
    group_max_size, group_consumer_max_size: maximum members of a group of the classic, or consumer, protocol.
    group_consumer_session_timeout_ms: how long a silent member of the consumer protocol stays in its group. Shorter
      than Kafka's 45,000: the partitions of a consumer that was killed wait for so long.
    group_consumer_heartbeat_interval_ms: how often such a member sends a heartbeat.
    group_consumer_assignors: the assignors that members may choose, the default one first.
    group_consumer_migration_policy: whether groups move between the protocols while they have members:
      `bidirectional`, `upgrade`, `downgrade` or `disabled`.
    transaction_state_log_num_partitions, transaction_state_log_replication_factor,
      transaction_state_log_segment_bytes: how the controller creates `__transaction_state`, which stores
      transactional ids, when it is first needed.
    transaction_max_timeout_ms: maximum transaction timeout that a producer may request.
    transactional_id_expiration_ms: an unused transactional id is forgotten after this time.
    transaction_abort_timed_out_transaction_cleanup_interval_ms: how often a coordinator aborts transactions that
      have exceeded their timeout.
    transaction_remove_expired_transaction_cleanup_interval_ms: how often it removes expired ids.
    coordinator_isolation_timeout_ms: how long a coordinator that has lost its followers answers members; a new
      coordinator extends the sessions of members by this time.
    allow_insecure: allow addresses beyond this machine without a secret or certificates.
    allow: what clients may do, `WHO=OPERATION[+OPERATION]`, see `insync.replication.node.requests.authorisation`;
      none: all.
    """

    node_id: int = attrs.field(validator=_not_negative)
    data_dir: str | Path | None = None
    log_dirs: tuple[str | Path, ...] = attrs.field(default=(), converter=_folders)
    store: str
    listeners: tuple[str, ...] = attrs.field(default=DEFAULT_LISTENERS, converter=_texts)
    serve_store: str | None = None
    cluster_id: str | None = None
    rack: str = ""
    secret_file: str | Path | None = None
    secret: str | None = attrs.field(default=None, repr=False)
    node_secret_file: str | Path | None = None
    node_secret: str | None = attrs.field(default=None, repr=False)
    tls_certificate: str | Path | None = None
    tls_key: str | Path | None = None
    tls_authorities: str | Path | None = None
    allow_insecure: bool = False
    allow: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_rules)
    store_wait_ms: int | None = attrs.field(default=None, validator=attrs.validators.optional(_not_negative))
    session_timeout_ms: int | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    replica_lag_time_max_ms: int = attrs.field(default=30000, validator=_positive)
    replica_fetch_wait_max_ms: int = attrs.field(default=500, validator=_positive)
    replica_fetch_max_bytes: int = attrs.field(default=1 << 20, validator=_positive)
    replica_fetch_response_max_bytes: int = attrs.field(default=10 << 20, validator=_positive)
    replica_fetch_backoff_ms: int = attrs.field(default=50, validator=_positive)
    replica_socket_timeout_ms: int = attrs.field(default=30000, validator=_positive)
    replica_high_watermark_checkpoint_interval_ms: int = attrs.field(default=5000, validator=_positive)
    follower_replication_throttled_rate: int = attrs.field(default=NEVER, validator=_positive)
    leader_replication_throttled_rate: int = attrs.field(default=NEVER, validator=_positive)
    quota_producer_default: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive)
    )
    quota_consumer_default: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive)
    )
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = attrs.field(default=None, validator=attrs.validators.optional(_port))
    log_format: Literal["text", "json"] = "text"
    leader_silence_timeout_ms: int = attrs.field(default=150, validator=_not_negative)
    unclean_recovery_timeout_ms: int = attrs.field(default=5000, validator=_positive)
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_ms: int = attrs.field(default=300_000, validator=_positive)
    leader_imbalance_per_broker_percentage: int = attrs.field(default=10, validator=_not_negative)
    max_incremental_fetch_session_cache_slots: int = attrs.field(default=1000, validator=_positive)
    controlled_shutdown_timeout_ms: int = attrs.field(default=10000, validator=_not_negative)
    fetch_max_bytes: int = attrs.field(default=55 << 20, validator=_positive)
    queued_max_request_bytes: int = attrs.field(default=DEFAULT_BUDGET, validator=_positive)
    flush_interval_messages: int = attrs.field(default=NEVER, validator=_positive)
    flush_interval_ms: int = attrs.field(default=NEVER, validator=_positive)
    log_maintenance_interval_ms: int = attrs.field(default=15000, validator=_positive)
    max_clock_difference_ms: int = attrs.field(default=60_000, validator=_positive)
    stray_retention_ms: int = attrs.field(default=7 * DAY_MS, validator=_for_ever_or)
    log_cleaner_io_max_bytes_per_second: float | None = None
    storage_stall_timeout_ms: int = attrs.field(default=15000, validator=_positive)
    busy_poll_us: int = attrs.field(default=0, validator=_microseconds)
    proof_interval_ms: int = attrs.field(default=2000, validator=_positive)
    max_partitions_per_node: int = attrs.field(default=20_000, validator=_positive)

    transaction_state_log_num_partitions: int = attrs.field(default=50, validator=_positive)
    transaction_state_log_replication_factor: int = attrs.field(default=3, validator=_positive)
    transaction_state_log_segment_bytes: int = attrs.field(default=100 << 20, validator=_positive)
    transaction_max_timeout_ms: int = attrs.field(default=900_000, validator=_positive)
    transactional_id_expiration_ms: int = attrs.field(default=604_800_000, validator=_positive)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = attrs.field(
        default=10_000, validator=_positive
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = attrs.field(
        default=3_600_000, validator=_positive
    )
    offsets_topic_num_partitions: int = attrs.field(default=50, validator=_positive)
    offsets_topic_replication_factor: int = attrs.field(default=3, validator=_positive)
    offsets_topic_segment_bytes: int = attrs.field(default=100 << 20, validator=_positive)
    offsets_retention_minutes: int = attrs.field(default=10_080, validator=_positive)
    offsets_retention_check_interval_ms: int = attrs.field(default=600_000, validator=_positive)
    offset_metadata_max_bytes: int = attrs.field(default=4096, validator=_not_negative)
    offsets_commit_timeout_ms: int = attrs.field(default=5000, validator=_positive)
    group_min_session_timeout_ms: int = attrs.field(default=6000, validator=_positive)
    group_max_session_timeout_ms: int = attrs.field(default=1_800_000, validator=_positive)
    group_initial_rebalance_delay_ms: int = attrs.field(default=3000, validator=_not_negative)
    group_max_size: int = attrs.field(default=2**31 - 1, validator=_positive)
    group_consumer_session_timeout_ms: int = attrs.field(default=10_000, validator=_positive)
    group_consumer_heartbeat_interval_ms: int = attrs.field(default=3000, validator=_positive)
    group_consumer_max_size: int = attrs.field(default=2**31 - 1, validator=_positive)
    group_consumer_assignors: tuple[str, ...] = attrs.field(
        default=tuple(ASSIGNORS), converter=_texts, validator=_assignors
    )
    group_consumer_migration_policy: str = attrs.field(default="bidirectional", validator=_policy)
    coordinator_isolation_timeout_ms: int = attrs.field(default=3000, validator=_positive)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The log directories, however they were given."""
        given = self.log_dirs or (self.data_dir,)
        return tuple(Path(folder) for folder in given if folder is not None)

    def __attrs_post_init__(self) -> None:
        if not self.listeners:
            raise InvalidSettingError("listeners is empty: set at least one URL, e.g. tcp://127.0.0.1:0")
        if (self.data_dir is None) == (not self.log_dirs):
            raise InvalidSettingError("set either data_dir, for one folder, or log_dirs, for several")
        places = [folder.absolute() for folder in self.folders]
        if len({*places}) < len(places):
            raise InvalidSettingError(f"log_dirs names a folder twice: {', '.join(map(str, places))}")
        if self.session_timeout_ms is not None and 0 < self.session_timeout_ms < LEAST_SESSION_TIMEOUT_MS:
            raise InvalidSettingError(
                f"session_timeout_ms={self.session_timeout_ms}: a node could not renew its session in time; use "
                f"{LEAST_SESSION_TIMEOUT_MS} or more"
            )
        check_groups(self)
        if self.log_format not in ("text", "json"):
            raise InvalidSettingError(f"log_format={self.log_format!r}: use text or json")
        if self.replica_fetch_wait_max_ms >= self.replica_lag_time_max_ms:
            raise InvalidSettingError(
                f"replica_fetch_wait_max_ms={self.replica_fetch_wait_max_ms} must be below "
                f"replica_lag_time_max_ms={self.replica_lag_time_max_ms}: idle followers would leave the ISR"
            )
