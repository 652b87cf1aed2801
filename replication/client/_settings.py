"""Client settings: Kafka's names in snake_case with Kafka's defaults. Durations in ms, sizes in bytes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import attrs

from ...storage.batch import Compression
from ...transport import SecretError, Security, TlsFiles
from .errors import InvalidSettingError

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, number of partitions) -> partition."""

S = TypeVar("S", bound="ClientSettings")


@attrs.frozen(kw_only=True)
class ClientSettings:
    """What all clients share.

    `retry_backoff_ms` doubles up to `retry_backoff_max_ms`; while a leader is being replaced clients look
    every 20 to 50 ms instead. `secret_file` has the cluster's secret; without it INSYNC_SECRET_FILE or
    INSYNC_SECRET of the environment. `tls_certificate`, `tls_key` and `tls_authorities` name files in PEM for
    tls://; without them INSYNC_TLS_CERTIFICATE and so on do. `allow_insecure`: talk also to nodes on other machines
    that ask for no proof.
    """

    client_id: str = "insync"
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    secret_file: str | Path | None = None
    tls_certificate: str | Path | None = None
    tls_key: str | Path | None = None
    tls_authorities: str | Path | None = None
    allow_insecure: bool = False

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 0:
                raise InvalidSettingError(f"{field.name} is {value}; it must not be negative")


@attrs.frozen(kw_only=True)
class ProducerSettings(ClientSettings):
    """The producer's settings.

    `enable_idempotence` None means: on if `acks` is all. `delivery_timeout_ms` bounds the time from `send` to
    the outcome, whatever is tried in between. `compression_type` compresses whole batches, which nodes keep as they
    are; `batch_size` counts what goes in. `partitioner` replaces Kafka's (murmur2 of the key; without a
    key one partition until its batch is complete).
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
    partitioner: Partitioner | None = None

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
        if self.idempotent:
            self._check_idempotence()

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
    """The consumer's settings. `auto_offset_reset`: where to read if there is no position or it is gone."""

    auto_offset_reset: Literal["latest", "earliest", "none"] = "latest"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 1 << 20
    max_poll_records: int = 500
    check_crcs: bool = True

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.auto_offset_reset not in ("latest", "earliest", "none"):
            raise InvalidSettingError(
                f"auto_offset_reset is {self.auto_offset_reset!r}; it must be latest, earliest or none"
            )
        if self.max_poll_records < 1:
            raise InvalidSettingError("max_poll_records must be at least 1")


def load_security(settings: ClientSettings) -> Security:
    """What these settings say of secrets; raises `InvalidSettingError` for a secret that cannot be used."""
    try:
        return Security.load(
            secret_file=settings.secret_file,
            tls=TlsFiles.given(settings.tls_certificate, settings.tls_key, settings.tls_authorities),
            allow_insecure=settings.allow_insecure,
        )
    except SecretError as error:
        raise InvalidSettingError(f"secret_file or tls files: {error}") from error


def make_settings(cls: type[S], options: dict[str, Any]) -> S:
    """Settings from keyword options; raises `InvalidSettingError` naming one that does not exist."""
    names = [field.name for field in attrs.fields(cls)]
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
            raise InvalidSettingError(f"unknown setting {name!r}{hint}")
    return cls(**options)


def bootstrap_urls(servers: str | Sequence[str]) -> tuple[str, ...]:
    """Bootstrap servers as URLs; `host:port` means tcp. Several may stand in one string, comma separated."""
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    urls = tuple(s if "://" in s else f"tcp://{s}" for s in (item.strip() for item in listed) if s)
    if not urls:
        raise InvalidSettingError("bootstrap_servers is empty; name at least one node, as tcp://host:port")
    return urls
