"""Where a cluster's metadata lies: an ensemble, a path in its tree, and whom we call ourselves there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import unquote

import attrs

from insync.replication.metadata import InvalidStoreUrlError

DEFAULT_PORT = 2181
PASSWORD_VARIABLE = "INSYNC_ZOOKEEPER_PASSWORD"
PASSWORD_FILE_VARIABLE = "INSYNC_ZOOKEEPER_PASSWORD_FILE"
_FORM = "zookeeper://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...]/PATH"
# `urlsplit` knows one host: since its fix of CVE-2024-11168 it refuses an IPv6 address behind another one.
_URL = re.compile(r"zookeeper://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL)
_NODE_NAME = re.compile(r"[A-Za-z0-9._-]+")


@attrs.frozen
class ZookeeperAddress:
    """An ensemble and a path.

    hosts: `host:port`, separated by commas. root: absolute path of the znode below which everything lies.
    credentials: `user:password` of the digest scheme; with them, only this user may read or write what is made.
    """

    hosts: str
    root: str
    credentials: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, environment: Mapping[str, str] = os.environ) -> Self:
        """Read a store URL.

        A password that the URL leaves out comes from the environment: INSYNC_ZOOKEEPER_PASSWORD_FILE names a file,
        INSYNC_ZOOKEEPER_PASSWORD is it. White space around it is no part of it.

        Raises:
          InvalidStoreUrlError: It is none, or the password is missing or cannot be read.
        """
        parts = _URL.fullmatch(url)
        user, _, hosts = parts["netloc"].rpartition("@") if parts else ("", "", "")
        if not parts or parts["rest"] or not hosts:
            raise InvalidStoreUrlError(f"{_hidden(url)!r}: a ZooKeeper store's URL is {_FORM}")
        names = parts["path"].strip("/").split("/")
        if not all(_NODE_NAME.fullmatch(name) and name not in (".", "..", "zookeeper") for name in names):
            raise InvalidStoreUrlError(
                f"{_hidden(url)!r}: after the hosts comes a path of its own for each cluster, such as /insync/prod "
                "(letters, digits, '.', '_', '-')"
            )
        return cls(
            ",".join(_host(host, url) for host in hosts.split(",")),
            "/" + "/".join(names),
            _credentials(user, url, environment) if user else None,
        )


def _credentials(user: str, url: str, environment: Mapping[str, str]) -> str:
    if ":" in user:
        return unquote(user)
    password = environment.get(PASSWORD_VARIABLE, "")
    if file := environment.get(PASSWORD_FILE_VARIABLE):
        try:
            password = Path(file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            # Not chained: that error may hold the bytes, which may be a password.
            raise InvalidStoreUrlError(
                f"{_hidden(url)!r}: the password file {file} cannot be read: {why}"
            ) from None
    if not password.strip():
        raise InvalidStoreUrlError(
            f"{_hidden(url)!r} names a user without a password: set {PASSWORD_FILE_VARIABLE} or "
            f"{PASSWORD_VARIABLE}; the form is {_FORM}"
        )
    return f"{unquote(user)}:{password.strip()}"


def _host(text: str, url: str) -> str:
    """`text` with a port. IPv6 addresses stand in brackets."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]+)(?::(\d{1,5}))?", text)
    if found is None or not 0 < int(found[2] or DEFAULT_PORT) < 65536:
        raise InvalidStoreUrlError(f"{_hidden(url)!r}: {text!r} is not HOST:PORT; the form is {_FORM}")
    return f"{found[1]}:{found[2] or DEFAULT_PORT}"


def _hidden(url: str) -> str:
    """The URL as it may stand in a message: without its password."""
    return re.sub(r"//[^/@]*@", "//...@", url)
