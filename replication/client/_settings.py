"""Client settings: Kafka's names in snake_case with Kafka's defaults. Durations in ms, sizes in bytes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import attrs

from ...storage.batch import Compression
from ...transport import SecretError, Security, TlsFiles, UnknownSchemeError, registry
from ...transport.polling import MOST_MICROSECONDS
from ..core.groups.assignors.assignment import Assignor
from ..core.messages import READ_COMMITTED, READ_UNCOMMITTED
from ._assignors import find_assignors
from .errors import InvalidSettingError

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key as bytes, number of partitions) -> partition."""

PartitionerName = Literal["default", "sticky", "round_robin"]

Serializer = Callable[[Any], bytes | None]
"""Converts a key or value to bytes. Not called for None, which stays None (as a value: a tombstone)."""

Deserializer = Callable[[bytes], Any]
"""Converts bytes to a key or value. Not called for None."""

S = TypeVar("S", bound="ClientSettings")

_TEXTS = ("client_id", "producer_name", "group_id", "group_instance_id", "group_remote_assignor")


@attrs.frozen(kw_only=True)
class ClientSettings:
    """The settings that all clients share. Durations are in milliseconds, sizes in bytes.

    client_id: a name for this client; quotas may refer to it.
    metadata_max_age_ms: the client refreshes its knowledge of leaders after this time, even without an error.
    retry_backoff_ms, retry_backoff_max_ms: the pause before the first retry; it doubles up to the second. While a
      leader is being replaced, clients look for the new one every 20 to 50 ms instead.
    request_timeout_ms: how long a node may take for one request. Also the limit for a question to several nodes,
      such as for offsets, and for a call of the admin client.
    connect_timeout_ms: how long one attempt to connect to one address may take.
    secret_file: a file with the cluster's secret; default: INSYNC_SECRET_FILE or INSYNC_SECRET in the environment.
      Of two lines the first is used.
    secret: the secret itself, for programs that read it from elsewhere; overrides `secret_file`.
    tls_certificate, tls_key, tls_authorities: PEM files for tls://; default: the files that INSYNC_TLS_CERTIFICATE,
      INSYNC_TLS_KEY and INSYNC_TLS_AUTHORITIES in the environment name.
    allow_insecure: also connect to nodes on other machines that require no proof of identity.

    Raises `InvalidSettingError` for an impossible value.
    """

    client_id: str = "insync"
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    secret_file: str | Path | None = None
    secret: str | None = attrs.field(default=None, repr=False)
    tls_certificate: str | Path | None = None
    tls_key: str | Path | None = None
    tls_authorities: str | Path | None = None
    allow_insecure: bool = False

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if type(field.default) is int and type(value) is not int:
                raise InvalidSettingError(f"{field.name} is {value!r}; it must be a whole number")
            if field.name in _TEXTS and not isinstance(value, str):
                raise InvalidSettingError(f"{field.name} is {value!r}; it must be a string")
            if type(field.default) is bool and type(value) is not bool:
                raise InvalidSettingError(f"{field.name} is {value!r}; it must be True or False")
            if type(value) is int and value < 0:
                raise InvalidSettingError(f"{field.name} is {value}; it must not be negative")

    def _check_callable(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidSettingError(f"{name} is {getattr(self, name)!r}; it must be a function")


@attrs.frozen(kw_only=True)
class ProducerSettings(ClientSettings):
    """The producer's settings, in addition to those of `ClientSettings`.

    acks: when a record counts as written: "all" (or -1): committed, with `min_insync_replicas` in the ISR; 1: its
      leader has written it; 0: it is sent, and its outcome stays unknown.
    enable_idempotence: repeat failed batches without duplicates and without a change of order. None: if `acks` is
      all.
    batch_size: maximum bytes of records in one batch, before compression, if the batch can be sent at once. A
      larger record gets its own batch. A batch that has to wait for others grows up to `max_request_size`. No
      batch of several records is larger than the topic's `max_message_bytes`.
    linger_ms: how long an incomplete batch waits for more records.
    buffer_memory: maximum bytes of records without an outcome; beyond it `send` waits.
    max_block_ms: how long `send` waits for buffer space or for metadata of the topic, and how long the opening of a
      transactional producer, `commit`, `abort` and `send_offsets` wait for coordinators.
    max_in_flight_requests_per_connection: maximum number of unanswered requests for each node, and of batches in
      flight for each partition. At most 5 with idempotence, because nodes remember five batches of a producer.
      Without idempotence, a value above 1 may reorder records when a batch is repeated.
    delivery_timeout_ms: maximum time from `send` to the outcome, including all retries.
    retries: maximum number of times that a batch is sent again; `delivery_timeout_ms` is the better bound.
    max_request_size: maximum size of a request, and so of a record.
    compression_type: "none", "gzip", "snappy", "lz4" or "zstd"; compresses whole batches, which nodes store
      unchanged.
    partitioner: chooses the partition of a record if `send` gets none. "default": Kafka's, murmur2 of the key;
      records without a key stay with one partition until its batch is complete, or has grown to 16 times
      `batch_size`, then go to one of the partitions with the fewest waiting batches (KIP-480, KIP-794). "sticky":
      the same for all records, with or without a key. "round_robin": each record goes to the next partition that
      has a leader, regardless of its key. Or a function of topic, key and number of partitions.
    key_serializer, value_serializer: functions that return bytes; without them keys and values are bytes.
    producer_name: a name that outlives the process. A producer takes the name over with its first record. From then
      on it fences the previous producer of that name in each partition that it writes to: `ProducerFencedError`
      (the fencing of KIP-98, without transactions). Each takeover writes to the metadata store and uses one of
      32,768 epochs; `Admin.forget_producers` starts over.
    transactional_id: send records in transactions (`Producer.transaction`). A new producer with the same id fences
      this one: `ProducerFencedError`.
    transaction_timeout_ms: the coordinator aborts a transaction that is open for longer. At most
      `transaction_max_timeout_ms` of the nodes.
    busy_poll_us: for how many microseconds after each request the event loop polls for the answer instead of
      sleeping. A record is then acknowledged sooner, for the processor time that the loop polls. 0: never. It has
      no effect in producers of whole batches.
    """

    acks: Literal["all", -1, 0, 1] = "all"
    enable_idempotence: bool | None = None
    batch_size: int = 16_384
    linger_ms: int = 5
    buffer_memory: int = 32 << 20
    max_block_ms: int = 60_000
    max_in_flight_requests_per_connection: int = 5
    delivery_timeout_ms: int = 120_000
    retries: int = 2**31 - 1
    max_request_size: int = 1 << 20
    compression_type: Compression = "none"
    partitioner: Partitioner | PartitionerName = "default"
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    producer_name: str = ""
    transactional_id: str = ""
    transaction_timeout_ms: int = 60_000
    busy_poll_us: int = 0

    @property
    def idempotent(self) -> bool:
        return self.wire_acks == -1 if self.enable_idempotence is None else self.enable_idempotence

    @property
    def wire_acks(self) -> int:
        return -1 if self.acks == "all" else self.acks

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.acks not in ("all", -1, 0, 1):
            raise InvalidSettingError(f"acks is {self.acks!r}; it must be 0, 1 or 'all'")
        if self.compression_type not in get_args(Compression):
            known = ", ".join(get_args(Compression))
            raise InvalidSettingError(
                f"compression_type is {self.compression_type!r}; it must be one of {known}"
            )
        if self.max_in_flight_requests_per_connection < 1:
            raise InvalidSettingError("max_in_flight_requests_per_connection must be at least 1")
        if not callable(self.partitioner) and self.partitioner not in get_args(PartitionerName):
            known = ", ".join(get_args(PartitionerName))
            raise InvalidSettingError(
                f"partitioner is {self.partitioner!r}; it must be one of {known}, or a function of topic, key and "
                "number of partitions"
            )
        self._check_callable("key_serializer", "value_serializer")
        if self.transactional_id and not self.idempotent:
            raise InvalidSettingError("transactional_id needs acks='all' and enable_idempotence")
        if self.transactional_id and self.producer_name:
            raise InvalidSettingError(
                "set transactional_id or producer_name, not both: each fences on its own"
            )
        if self.transaction_timeout_ms < 1:
            raise InvalidSettingError("transaction_timeout_ms must be at least 1")
        if self.busy_poll_us > MOST_MICROSECONDS:
            raise InvalidSettingError(
                f"busy_poll_us is {self.busy_poll_us}; it must be at most {MOST_MICROSECONDS} (a second)"
            )
        if self.idempotent:
            self._check_idempotence()
        elif self.producer_name:
            raise InvalidSettingError(
                "producer_name needs enable_idempotence: without it batches do not identify their producer"
            )

    def _check_idempotence(self) -> None:
        if self.wire_acks != -1:
            raise InvalidSettingError(f"enable_idempotence needs acks='all', not acks={self.acks!r}")
        if self.max_in_flight_requests_per_connection > 5:
            raise InvalidSettingError(
                "enable_idempotence allows at most 5 max_in_flight_requests_per_connection: "
                "nodes remember five batches of a producer"
            )
        if self.retries < 1:
            raise InvalidSettingError("enable_idempotence needs retries of at least 1")


@attrs.frozen(kw_only=True)
class ConsumerSettings(ClientSettings):
    """The consumer's settings, in addition to those of `ClientSettings`.

    auto_offset_reset: where to read without a position, or if the records at the position are deleted: "latest",
      "earliest", or "none": raise `OffsetOutOfRangeError`.
    isolation_level: "read_uncommitted": every record below the high watermark; "read_committed": records of a
      transaction only after its commit, and none of an aborted one (KIP-98).
    fetch_min_bytes, fetch_max_wait_ms: a node answers when it has this many bytes, or after this time; with 0
      bytes at once.
    fetch_max_bytes, max_partition_fetch_bytes: maximum size of one answer, in all and for one partition; a larger
      batch is still delivered whole. The consumer reads ahead up to twice the latter for each partition. For
      compressed batches the limits also apply to the decompressed size: one `poll` returns at most
      `fetch_max_bytes` of their records, and a batch that grows larger (and above 16 MiB) raises
      `DecompressionBombError`.
    max_poll_records: maximum number of records that one `poll` returns.
    check_crcs: check the CRC-32C of every received batch.
    on_corrupt: how to treat an unreadable batch: one with a checksum that is wrong at each fetch, with malformed
      records, with an unknown codec, or with too large a decompressed size. "raise": the consumer stops at the
      batch and raises; "skip": it skips the batch, logs that, and reports the offsets by `skipped()`.
    key_deserializer, value_deserializer: functions of bytes; without them keys and values are bytes.
    group_id: the consumer group of this consumer; empty: no group and no commits.
    group_instance_id: makes the consumer a static member (KIP-345): a process that returns under the same name
      within its session gets its partitions back without a rebalance. Each process needs its own name.
    group_protocol: "consumer" (KIP-848): the coordinator assigns partitions; "classic": a member does. Members
      of a group use the same one, except while the group migrates from one to the other.
    group_remote_assignor: the assignor of the coordinator: one of `group_consumer_assignors` of the nodes; empty:
      their default. Only with group_protocol="consumer".
    partition_assignment_strategy: assignors of the members, in order of preference: "range", "roundrobin",
      "sticky", "cooperative-sticky", names of entry points in the group `insync.assignors`, or objects with `name`
      and `assign`. Only with group_protocol="classic".
    enable_auto_commit, auto_commit_interval_ms: commit what earlier polls have returned: at the start of a poll,
      when this time has passed since the last commit, and when the consumer loses a partition.
    session_timeout_ms, heartbeat_interval_ms: the group removes this consumer after this time without a heartbeat,
      and the consumer sends a heartbeat at this interval. Only with group_protocol="classic"; otherwise
      `group_consumer_session_timeout_ms` of the nodes applies.
    max_poll_interval_ms: a consumer that does not poll for this time leaves its group, and others get its
      partitions. Also the time that the group waits for a revoked partition.
    """

    auto_offset_reset: Literal["latest", "earliest", "none"] = "latest"
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 1 << 20
    max_poll_records: int = 500
    check_crcs: bool = True
    on_corrupt: Literal["raise", "skip"] = "raise"
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    group_id: str = ""
    group_instance_id: str = ""
    group_protocol: Literal["consumer", "classic"] = "consumer"
    group_remote_assignor: str = ""
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor] = (
        "range",
        "cooperative-sticky",
    )
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000

    @property
    def wire_isolation(self) -> int:
        return READ_COMMITTED if self.isolation_level == "read_committed" else READ_UNCOMMITTED

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.auto_offset_reset not in ("latest", "earliest", "none"):
            raise InvalidSettingError(
                f"auto_offset_reset is {self.auto_offset_reset!r}; it must be latest, earliest or none"
            )
        if self.isolation_level not in ("read_uncommitted", "read_committed"):
            raise InvalidSettingError(
                f"isolation_level is {self.isolation_level!r}; it must be read_uncommitted or read_committed"
            )
        if self.on_corrupt not in ("raise", "skip"):
            raise InvalidSettingError(f"on_corrupt is {self.on_corrupt!r}; it must be raise or skip")
        if self.max_poll_records < 1:
            raise InvalidSettingError("max_poll_records must be at least 1")
        self._check_callable("key_deserializer", "value_deserializer")
        self._check_group()

    def _check_group(self) -> None:
        if self.group_protocol not in ("consumer", "classic"):
            raise InvalidSettingError(
                f"group_protocol is {self.group_protocol!r}; it must be consumer or classic"
            )
        if self.group_instance_id and not self.group_id:
            raise InvalidSettingError("group_instance_id needs group_id: it names a member of a group")
        if self.group_remote_assignor and self.group_protocol == "classic":
            raise InvalidSettingError(
                "group_remote_assignor needs group_protocol='consumer'; classic members assign themselves: "
                "set partition_assignment_strategy"
            )
        for name in ("auto_commit_interval_ms", "max_poll_interval_ms", "heartbeat_interval_ms"):
            if getattr(self, name) < 1:
                raise InvalidSettingError(f"{name} must be at least 1")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidSettingError(
                f"heartbeat_interval_ms is {self.heartbeat_interval_ms}; it must be below session_timeout_ms, "
                f"{self.session_timeout_ms}: a third of it lets two heartbeats get lost"
            )
        find_assignors(self.partition_assignment_strategy)


def load_security(settings: ClientSettings) -> Security:
    """The secrets and certificates of these settings; raises `InvalidSettingError` for an unusable secret."""
    try:
        return Security.load(
            secret=settings.secret,
            secret_file=settings.secret_file,
            tls=TlsFiles.given(settings.tls_certificate, settings.tls_key, settings.tls_authorities),
            allow_insecure=settings.allow_insecure,
        )
    except SecretError as error:
        raise InvalidSettingError(f"secret_file or tls files: {error}") from error


def make_settings(cls: type[S], options: dict[str, Any], given: S | None = None) -> S:
    """Settings from keyword options, or those given all at once.

    Raises `InvalidSettingError` for an unknown name, or if both are given, because one would be ignored.
    """
    if given is not None:
        if not isinstance(given, cls):
            raise InvalidSettingError(f"settings is a {type(given).__name__}; give {cls.__name__}(...)")
        if options:
            raise InvalidSettingError(
                f"settings are given, and {', '.join(options)} besides; pass all of them one way"
            )
        return given
    names = [field.name for field in attrs.fields(cls)]
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1) or [each for each in names if name in each]
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
            raise InvalidSettingError(f"unknown setting {name!r}{hint}")
    return cls(**options)


def bootstrap_urls(servers: str | Sequence[str]) -> tuple[str, ...]:
    """Bootstrap servers as URLs; `host:port` means tcp. One string may hold several, separated by commas."""
    listed = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(listed, Sequence) or not all(isinstance(each, str) for each in listed):
        raise InvalidSettingError(f"bootstrap_servers is {servers!r}; give URLs such as tcp://host:port")
    urls = tuple(s if "://" in s else f"tcp://{s}" for s in (item.strip() for item in listed) if s)
    if not urls:
        raise InvalidSettingError("bootstrap_servers is empty; name at least one node, as tcp://host:port")
    for url in urls:
        try:
            registry.resolve(url)
        except (ValueError, UnknownSchemeError) as error:
            said = str(error).removeprefix(f"{url}: ")
            scheme = url.partition("://")[0]
            if isinstance(error, UnknownSchemeError) and entry_points(group="insync.gateways", name=scheme):
                said = (
                    f"{scheme}:// is for clients of another protocol; name the node's address for insync's own "
                    "clients, such as tcp://host:port"
                )
            raise InvalidSettingError(f"bootstrap_servers: {url!r} is not an address: {said}") from error
    return urls
