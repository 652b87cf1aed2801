"""Where a cluster's metadata lies: servers, a database, and a schema in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self
from urllib.parse import unquote

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict

from insync.replication.metadata import InvalidStoreUrlError

_FORM = "postgresql://[USER@]HOST[:PORT][,HOST[:PORT]...]/DATABASE[?namespace=NAME&sslmode=...]"
_NAMESPACE = re.compile(r"(?!pg_|public$|information_schema$)[a-z_][a-z0-9_]{0,47}")
_DEFAULTS = {
    "application_name": "insync",
    "client_encoding": "utf8",
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}


@attrs.frozen
class PostgresqlAddress:
    """Servers, a database and a namespace.

    parameters: of libpq, for `psycopg.connect`. namespace: the schema in which everything lies.
    """

    parameters: Mapping[str, str] = attrs.field(repr=False)
    namespace: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a store URL: libpq's own, and `namespace`. Libpq takes the rest from the environment.

        Raises:
          InvalidStoreUrlError: It is none.
        """
        base, _, query = url.partition("?")
        pairs = [pair.partition("=") for pair in query.split("&") if pair]
        if any(name.lower().endswith("password") for name, _, _ in pairs):
            raise InvalidStoreUrlError(
                f"{_hidden(base)!r} has a password among its parameters, where messages may show it: name a file "
                "with it in PGPASSFILE, or set PGPASSWORD"
            )
        rest = "&".join(f"{name}={value}" for name, _, value in pairs if name != "namespace")
        try:
            found = conninfo_to_dict(f"{base}?{rest}" if rest else base)
        except psycopg.Error:
            # Not chained: libpq quotes the URL, which may hold a password.
            raise InvalidStoreUrlError(
                f"{_hidden(url)!r} is not a URL of PostgreSQL; the form is {_FORM}"
            ) from None
        namespace = next((unquote(value) for name, _, value in pairs if name == "namespace"), "insync")
        if _NAMESPACE.fullmatch(namespace) is None:
            raise InvalidStoreUrlError(
                f"{_hidden(url)!r}: the namespace {namespace!r} is none; write up to 48 of a-z, 0-9 and '_', "
                "with no digit first, and neither 'public' nor 'pg_...': it becomes a schema"
            )
        parameters = {name: str(value) for name, value in found.items()}
        # A standby may lack what was committed.
        return cls({**_DEFAULTS, **parameters, "target_session_attrs": "read-write"}, namespace)

    @property
    def user(self) -> str | None:
        """The user that the URL names."""
        return self.parameters.get("user")

    def __str__(self) -> str:
        """For messages: without the password."""
        servers = self.parameters.get("host") or self.parameters.get("hostaddr") or "the default server"
        ports = self.parameters.get("port")
        return (
            f"PostgreSQL at {servers}{f' (port {ports})' if ports else ''}, database "
            f"{self.parameters.get('dbname', 'of the user')!r}, namespace {self.namespace!r}"
        )


def _hidden(url: str) -> str:
    """The URL as it may stand in a message: without its password."""
    return re.sub(r"//[^/@]*@", "//...@", url)
