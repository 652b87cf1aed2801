"""Addresses as URLs: `scheme://authority/path?option=value`."""

from __future__ import annotations

import ipaddress
import re

import attrs

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<options>[^#]*))?"
)

_CONTACT = re.compile(r"(?:\[(?P<v6>[^]\[]+)\]|(?P<host>[\w.-]+))(?::(?P<port>[0-9]+))?")
WILDCARDS = ("0.0.0.0", "::", "*")
"""Hosts to listen on, which nobody can dial; `*` is both."""


@attrs.frozen
class URL:
    """A URL in its parts. `str()` gives it back; options keep their order."""

    scheme: str
    authority: str
    path: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> URL:
        """Take a URL apart.

        Raises:
          ValueError: It is no URL, or an option has no value or is given twice.
        """
        found = _URL.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is not an address: write scheme://host:port, like tcp://127.0.0.1:9000"
            )
        options = tuple(_option(text, item) for item in (found["options"] or "").split("&") if item)
        if len(dict(options)) != len(options):
            raise ValueError(f"{text!r} gives an option twice")
        return cls(found["scheme"], found["authority"], found["path"] or "", options)

    def __str__(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.options)
        return f"{self.scheme}://{self.authority}{self.path}" + (f"?{query}" if query else "")


Endpoint = URL
"""An address that its transport has checked and put into canonical form."""


def _option(text: str, item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r}: the option {item!r} has no value, write {name or 'name'}=value")
    return name, value


def check_options(url: URL, known: tuple[str, ...]) -> dict[str, str]:
    """The options of a URL; ValueError for one that is not known, so that a slip of the pen does not pass."""
    options = dict(url.options)
    for name in options:
        if name not in known:
            raise ValueError(f"{url}: unknown option {name!r}; known here: {', '.join(known) or 'none'}")
    return options


def split_host_port(url: URL) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; ValueError if it is neither."""
    host, colon, port = url.authority.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{url}: expected host:port with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if not host or ":" in host:
        raise ValueError(f"{url}: expected host:port, with an IPv6 address in brackets, like [::1]:9000")
    return host, int(port)


def bracketed(host: str) -> str:
    """A host as it stands in a URL: an IPv6 address has brackets there."""
    return f"[{host}]" if ":" in host else host


def join_host_port(host: str, port: int) -> str:
    """The reverse of `split_host_port`."""
    return f"{bracketed(host)}:{port}"


def advertised(url: URL) -> tuple[str, int | None] | None:
    """The address that a listener advertises in place of its own: the option `contact`; None: it is not given.

    It is `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`; port None: that of the listener.

    Raises:
      ValueError: It is none of these, or an address that nobody can dial.
    """
    text = dict(url.options).get("contact")
    if text is None:
        return None
    found = _CONTACT.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{url}: contact={text} is not HOST, HOST:PORT, [IPV6] or [IPV6]:PORT, like node3.example.org:9000"
        )
    host, port = found["v6"] or found["host"], found["port"]
    if found["v6"]:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{url}: contact={text}: {host!r} is not an IPv6 address") from None
    if host in WILDCARDS:
        raise ValueError(
            f"{url}: contact={text}: nobody can dial {host}, write this machine's name or address"
        )
    if port is not None and not 0 < int(port) < 65536:
        raise ValueError(f"{url}: contact={text}: a port is a number from 1 to 65535")
    return host, None if port is None else int(port)
