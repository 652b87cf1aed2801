"""Options of the reader and the writer: Spark's names for Kafka, in any case, nothing silently ignored."""

from __future__ import annotations

import difflib
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
}
_HARMLESS = {"groupidprefix", "kafka.group.id", "checkpointlocation", "queryname", "outputmode"}
"""What jobs for Kafka, and Spark itself, give besides, and what means nothing here: there are no groups."""


@attrs.frozen(kw_only=True)
class Connection:
    """How to reach the cluster; hashable, since clients are kept by it."""

    servers: str
    client_id: str = "insync-spark"
    request_timeout_ms: int = 20_000
    secret_file: str | None = None
    secret: str | None = attrs.field(default=None, repr=False)
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_authorities: str | None = None
    allow_insecure: bool = False

    def settings(self) -> dict[str, Any]:
        """As the clients take them."""
        found = attrs.asdict(self)
        del found["servers"]
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
            if lower in _HARMLESS and lower not in names:
                continue
            name = names.get(_ALIASES.get(lower, lower).lower())
            if name is None:
                raise OptionError(_unknown(key, names.values()))
            self._values[name] = str(value)

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

    def number(self, name: str, default: int | None, least: int = 1) -> Any:
        """A whole number, at least `least`."""
        value = self._values.get(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"{name} is {value!r}; it must be a whole number") from None
        if number < least:
            raise OptionError(f"{name} is {number}; it must be at least {least}")
        return number

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
            secret_file=self.text("secretFile"),
            secret=self.text("secret"),
            tls_certificate=self.text("tlsCertificate"),
            tls_key=self.text("tlsKey"),
            tls_authorities=self.text("tlsAuthorities"),
            allow_insecure=self.flag("allowInsecure", False),
        )


def _unknown(key: str, names: Iterable[str]) -> str:
    listed = sorted(names)
    lower = {name.lower(): name for name in listed}
    near = difflib.get_close_matches(key.lower(), lower, n=1)
    hint = f"did you mean {lower[near[0]]}?" if near else f"there are {', '.join(listed)}"
    return f"unknown option {key!r}; {hint}"


def settled(make: Callable[[], Any]) -> Any:
    """What `make` makes, with settings that the clients refuse told as options."""
    try:
        return make()
    except ClientError as error:
        if isinstance(error, ValueError):
            raise OptionError(str(error)) from error
        raise
