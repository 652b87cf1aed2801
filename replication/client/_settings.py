"""Client settings: Kafka's names in snake_case with Kafka's defaults. Durations in ms, sizes in bytes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import attrs

from ...storage.batch import Compression
from ...transport import SecretError, Security, TlsFiles, UnknownSchemeError, registry
from ..core.coordination.assignment import Assignor
from ..core.messages import READ_COMMITTED, READ_UNCOMMITTED
from ._assignors import find_assignors
from .errors import InvalidSettingError

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key as bytes, number of partitions) -> partition."""

PartitionerName = Literal["default", "sticky", "round_robin"]

Serializer = Callable[[Any], bytes | None]
"""Makes the bytes of a key or value. Never called for None, which stays None (as a value: a tombstone)."""

Deserializer = Callable[[bytes], Any]
"""Makes a key or value of bytes. Never called for None."""

S = TypeVar("S", bound="ClientSettings")

_TEXTS = ("client_id", "producer_name", "group_id", "group_instance_id", "group_remote_assignor")


@attrs.frozen(kw_only=True)
class ClientSettings:
    """What all clients share. Durations are in milliseconds, sizes in bytes.

    client_id: a name for this client; quotas may go by it.
    metadata_max_age_ms: after so long the client asks again who leads, even if nothing has gone wrong.
    retry_backoff_ms, retry_backoff_max_ms: the pause before the first retry; it doubles up to the second. While a
      leader is being replaced clients look every 20 to 50 ms instead.
    request_timeout_ms: how long a node may take over one request; and all nodes together over one question, such
      as for offsets, or one call of the admin client.
    connect_timeout_ms: how long one attempt to reach one address may take.
    secret_file: has the cluster's secret; without it INSYNC_SECRET_FILE or INSYNC_SECRET of the environment.
    secret: the secret itself, for programs that have it from elsewhere; it wins over `secret_file`.
    tls_certificate, tls_key, tls_authorities: files in PEM for tls://; without them those that
      INSYNC_TLS_CERTIFICATE, INSYNC_TLS_KEY and INSYNC_TLS_AUTHORITIES of the environment name.
    allow_insecure: talk also to nodes on other machines that ask for no proof.

    Raises `InvalidSettingError` for a value that cannot be.
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
                raise InvalidSettingError(f"{field.name} is {value!r}; it must be a text")
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
    """The producer's settings, beside those of `ClientSettings`.

    acks: when a record counts as written: "all" (or -1): committed, with `min_insync_replicas` in the ISR; 1: its
      leader has written it; 0: it is sent, and nobody says what became of it.
    enable_idempotence: repeat what failed without making duplicates, and keep the order. None: if `acks` is all.
    batch_size: bytes of records that one batch takes, before compression, if nothing keeps it from being sent.
      A larger record has its own. A batch that must wait for others grows, up to `max_request_size` and the topic's
      `max_message_bytes`.
    linger_ms: how long a batch that is not full waits for more records.
    buffer_memory: how many bytes of records may wait for their outcome; then `send` waits.
    max_block_ms: how long `send` waits, for space or for the topic to be known.
    max_in_flight_requests_per_connection: how many requests may be unanswered, for each node, and how many batches
      for each partition. At most 5 with idempotence: nodes remember five batches of a producer. Without it more
      than 1 may change the order of records when one is repeated.
    delivery_timeout_ms: bounds the time from `send` to the outcome, whatever is tried in between.
    retries: how often a batch is sent again, at most; the time above is the better bound.
    max_request_size: no request, and so no record, is larger.
    compression_type: "none", "gzip", "snappy", "lz4" or "zstd"; compresses whole batches, which nodes keep as they
      are.
    partitioner: chooses the partition of a record for which `send` is not told one. "default": Kafka's, murmur2 of
      the key; without a key one partition until its batch is complete, then one of those with the fewest batches
      waiting (KIP-480, KIP-794). "sticky": the latter whatever the keys. "round_robin": each record to the next
      partition that has a leader, whatever the keys. Or a function of topic, key and number of partitions.
    key_serializer, value_serializer: functions that make the bytes; without them keys and values are bytes.
    producer_name: a name that outlives the process. Whoever opens another producer under it shuts this one out of
      each partition that it writes to: `ProducerFencedError` (the fencing of KIP-98, without transactions). Each
      opening is a write in the metadata store and takes one of 32,768 epochs; `Admin.forget_producers` starts over.
    transactional_id: records are sent in transactions (`Producer.transaction`). Whoever opens another producer
      under it shuts this one out: `ProducerFencedError`.
    transaction_timeout_ms: a transaction that is open for longer is aborted by its coordinator. At most
      `transaction_max_timeout_ms` of the nodes.
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
    """The consumer's settings, beside those of `ClientSettings`.

    auto_offset_reset: where to read if there is no position, or what is there is gone: "latest", "earliest", or
      "none": raise `OffsetOutOfRangeError`.
    isolation_level: "read_uncommitted": every record below the high watermark; "read_committed": none of a
      transaction before that is committed, and none of one that was aborted (KIP-98).
    fetch_min_bytes, fetch_max_wait_ms: a node answers when it has so much, or after so long.
    fetch_max_bytes, max_partition_fetch_bytes: how much one answer may hold in all, and of one partition; a larger
      batch still comes whole. Of each partition up to twice the latter is read ahead. Compressed batches count
      again when they are decompressed: one `poll` gives at most `fetch_max_bytes` of their records, and a batch
      that grows larger (and above 16 MiB) is refused: `DecompressionBombError`.
    max_poll_records: how many records one `poll` gives, at most.
    check_crcs: check the CRC-32C of every batch that arrives.
    on_corrupt: what becomes of a batch that cannot be read: its checksum is wrong each time that it is fetched, its
      records are not what they claim to be, its codec is unknown, it grows too large. "raise": the consumer stops
      there and raises; "skip": it steps over the batch, logs that, and tells it by `skipped()`.
    key_deserializer, value_deserializer: functions of the bytes; without them keys and values are bytes.
    group_id: the consumer group that this consumer belongs to; empty: none, and nothing is committed.
    group_instance_id: makes it a static member (KIP-345): a process that comes back under the same name within its
      session gets its partitions again without a rebalance. Each process needs a name of its own.
    group_protocol: "consumer" (KIP-848): the coordinator assigns; "classic": a member does. All members of a group
      use the same one.
    group_remote_assignor: how the coordinator assigns: one of `group_consumer_assignors` of the nodes; empty: what
      they prefer. Only with group_protocol="consumer".
    partition_assignment_strategy: how members assign, in order of preference: "range", "roundrobin", "sticky",
      "cooperative-sticky", names of entry points in the group `insync.assignors`, or objects with `name` and
      `assign`. Only with group_protocol="classic".
    enable_auto_commit, auto_commit_interval_ms: commit what earlier polls have returned, at the start of a poll, if
      it is so long since the last time; and when a partition is taken away.
    session_timeout_ms, heartbeat_interval_ms: after how long without a heartbeat the group goes on without this
      consumer, and how often it sends one. Only with group_protocol="classic"; otherwise the nodes say
      (`group_consumer_session_timeout_ms`).
    max_poll_interval_ms: a consumer that does not poll for so long leaves its group: others get its partitions.
      It is also how long a revoked partition is waited for.
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
    session_timeout_ms: int = 45_000
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
    """What these settings say of secrets; raises `InvalidSettingError` for a secret that cannot be used."""
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

    Raises `InvalidSettingError` naming one that does not exist; or if there are both, of which one would not count.
    """
    if given is not None:
        if not isinstance(given, cls):
            raise InvalidSettingError(f"settings is a {type(given).__name__}; give {cls.__name__}(...)")
        if options:
            raise InvalidSettingError(
                f"settings are given, and {', '.join(options)} besides; give all in one of the two ways"
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
    """Bootstrap servers as URLs; `host:port` means tcp. Several may stand in one string, comma separated."""
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
            raise InvalidSettingError(f"bootstrap_servers: {url!r} is no address: {said}") from error
    return urls
