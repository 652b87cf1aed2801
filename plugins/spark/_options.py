"""Options of the reader and the writer: Spark's names for Kafka, in any case, nothing silently ignored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from ...replication.client import ClientError
from .errors import OptionError

SERVERS = "kafka.bootstrap.servers"

_ALIASES = {
    "servers": SERVERS,
    "bootstrap.servers": SERVERS,
    "bootstrapservers": SERVERS,
    "kafkaconsumer.polltimeoutms": "pollTimeoutMs",
    "kafka.client.id": "clientId",
    "kafka.compression.type": "compressionType",
    "kafka.delivery.timeout.ms": "deliveryTimeoutMs",
    "kafka.isolation.level": "isolationLevel",
    "kafka.request.timeout.ms": "requestTimeoutMs",
}
_OF_SPARK = {"checkpointlocation", "queryname", "outputmode"}
_OF_KAFKA = {
    *("groupidprefix", "fetchoffset.numretries", "fetchoffset.retryintervalms", "includeheaders"),
    *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"),
}
"""Options of Spark's Kafka source and sink, where they mean nothing: groups, retries; in a batch, triggers."""
_TUNING = {
    *("acks", "allow.auto.create.topics", "batch.size", "buffer.memory"),
    *("check.crcs", "client.dns.lookup", "client.rack", "connections.max.idle.ms"),
    *("default.api.timeout.ms", "enable.idempotence", "fetch.max.bytes", "fetch.max.wait.ms"),
    *("fetch.min.bytes", "group.id", "group.instance.id", "heartbeat.interval.ms"),
    *("isolation.level", "linger.ms", "max.block.ms", "max.in.flight.requests.per.connection"),
    *("max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records", "max.request.size"),
    *("metadata.max.age.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms"),
    *("retries", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes"),
    "session.timeout.ms",
}
"""Settings of Kafka's clients (behind `kafka.`) that a job may keep: what they ask for is so anyway (`acks=all`, no
isolation of a sink), or how fast Kafka's clients are."""
_SECURITY = ("security.", "sasl.", "ssl.")
_OF_TABLES = ("provider", "owner", "external", "location")
_NO_END = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")


@attrs.frozen(kw_only=True)
class Connection:
    """How to reach the cluster; hashable, since clients are kept by it."""

    servers: str
    client_id: str = "insync-spark"
    request_timeout_ms: int = 20_000
    isolation_level: str = "read_uncommitted"
    """Of consumers."""
    secret_file: str | None = None
    secret: str | None = attrs.field(default=None, repr=False)
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_authorities: str | None = None
    allow_insecure: bool = False

    def settings(self) -> dict[str, Any]:
        """As all clients take them."""
        found = attrs.asdict(self)
        del found["servers"], found["isolation_level"]
        return found


CONNECTION_OPTIONS = (
    SERVERS,
    "clientId",
    "requestTimeoutMs",
    "secretFile",
    "secret",
    "tlsCertificate",
    "tlsKey",
    "tlsAuthorities",
    "allowInsecure",
)


ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
MOST = 2**63 - 1
"""Of a number, as offsets and times have 64 bits."""
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Options:
    """The options of one reader or writer, taken one by one.

    Raises:
      OptionError: There is an option that `known` does not name.
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        names = {name.lower(): name for name in (*known, *CONNECTION_OPTIONS)}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            lower = key.lower()
            name = names.get(_ALIASES.get(lower, lower).lower())
            if name is None and _means_nothing(lower, str(value)):
                continue
            if name is None:
                raise OptionError(_unknown(key, names.values()))
            if self._values.setdefault(name, str(value)) != str(value):
                raise OptionError(
                    f"{name} is given twice, as {self._values[name]!r} and as {str(value)!r} ({key} is another "
                    "name of it); keep one"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise OptionError(f"{name} is {value!r}; it must be true or false")
        return value.strip().lower() == "true"

    def number(self, name: str, default: int | None, least: int = 1, most: int | None = None) -> Any:
        """A whole number from `least` to `most`."""
        value = self._values.get(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"{name} is {value!r}; it must be a whole number") from None
        if number < least:
            raise OptionError(f"{name} is {number}; it must be at least {least}")
        if most is not None and number > most:
            raise OptionError(f"{name} is {number}; it must be at most {most}")
        if number > MOST:
            raise OptionError(f"{name} is {number}; it must be at most {MOST}, as all numbers have 64 bits")
        return number

    def duration_ms(self, name: str, default: int) -> int:
        """A time as Spark writes it: `90s`, `15m`, `1h`; milliseconds if nothing says otherwise."""
        value = self._values.get(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value.strip().lower())
        if found is None:
            raise OptionError(f"{name} is {value!r}; it must be a time such as 500ms, 90s, 15m or 1h")
        return int(found[1]) * _UNITS_MS[found[2] or "ms"]

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        value = (self._values.get(name) or default).strip().lower()
        if value not in choices:
            raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
        return value

    def connection(self) -> Connection:
        servers = self.text(SERVERS)
        if not servers or not servers.strip():
            raise OptionError(f"option {SERVERS} is missing; name some nodes, as tcp://host:port,...")
        return Connection(
            servers=servers,
            client_id=self.text("clientId") or "insync-spark",
            request_timeout_ms=self.number("requestTimeoutMs", 20_000),
            isolation_level=self.choice("isolationLevel", "read_uncommitted", ISOLATION_LEVELS),
            secret_file=self.text("secretFile"),
            secret=self.text("secret"),
            tls_certificate=self.text("tlsCertificate"),
            tls_key=self.text("tlsKey"),
            tls_authorities=self.text("tlsAuthorities"),
            allow_insecure=self.flag("allowInsecure", False),
        )


def _means_nothing(lower: str, value: str) -> bool:
    """Whether an option that is not known here may stand in a job for Kafka without changing anything."""
    if lower.startswith("kafka."):
        setting = lower.removeprefix("kafka.")
        plain = setting == "security.protocol" and value.strip().upper() == "PLAINTEXT"
        return setting in _TUNING or lower in _ALIASES or plain
    return lower in _OF_SPARK or lower in _OF_KAFKA


def _unknown(key: str, names: Iterable[str]) -> str:
    lower_key = key.lower()
    setting = lower_key.removeprefix("kafka.")
    if setting != lower_key and setting.startswith(_SECURITY):
        return (
            f"{key!r} is for Kafka's own security; a cluster of insync knows its clients by secretFile, or by "
            "tlsCertificate, tlsKey and tlsAuthorities"
        )
    if setting == "auto.offset.reset":
        return f"{key!r} has no effect, as with Spark's Kafka source; use startingOffsets"
    if lower_key in _NO_END:
        return (
            f"{key!r} is for batch queries; a stream has no end (trigger availableNow ends at what there is)"
        )
    if lower_key in _OF_TABLES or lower_key.startswith("option."):
        return (
            "CREATE TABLE keeps options of its own in Spark's catalog, which a topic does not have; use CREATE "
            "TEMPORARY VIEW ... USING insync OPTIONS (...), or spark.read and write"
        )
    if lower_key == "path":
        return "load(), save() and start() take no path; options name the topics"
    listed = sorted(names)
    lower = {name.lower(): name for name in listed}
    near = difflib.get_close_matches(key.lower(), lower, n=1)
    hint = f"did you mean {lower[near[0]]}?" if near else f"there are {', '.join(listed)}"
    return f"unknown option {key!r}; {hint}"


def settled(make: Callable[[], Any]) -> Any:
    """The result of `make`. Raises OptionError for settings that the clients refuse."""
    try:
        return make()
    except ClientError as error:
        if isinstance(error, ValueError):
            raise OptionError(str(error)) from error
        raise
