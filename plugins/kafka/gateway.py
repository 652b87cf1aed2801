"""`kafka://HOST:PORT`: the gateway as nodes load it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import trio

from insync.plugins.tcp import TcpTransport
from insync.replication.node.gateways import Gateway
from insync.replication.node.service import NodeService
from insync.transport import (
    URL,
    Endpoint,
    InsecureAddressError,
    PeerIdentity,
    Security,
    Serving,
    advertised,
    check_options,
    join_host_port,
    split_host_port,
)

from .client import Client, Options
from .core import sasl
from .core.connection import Connection
from .core.directory import NAME, Directory, listener_name
from .core.sessions import Sessions, Slots
from .handlers import OFFERED
from .listener import Link, Links
from .login import Attempts, Login
from .protocol.apis import Api
from .tls import TlsStream, contexts

_TLS = "kafka+tls"
_CERTIFICATES = ("certificate", "key", "authorities", "client_certificate")
_SASL = "sasl"
_CONTACT = "contact"
_OPTIONS = (NAME, _CONTACT, _SASL, "auto_create_topics", "num_partitions", "default_replication_factor")
_MOST = 10_000
STRANGERS_MAY = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})
"""APIs that a client may call before it has proved who it is."""


class KafkaGateway(Gateway):
    """Serves Kafka's clients.

    Options of the URL: `contact=HOST[:PORT]`, the address that clients are told; `name=NAME`, which listeners
    belong together (clients stay among those of one name); `auto_create_topics=false`, `num_partitions=N` and
    `default_replication_factor=N` for topics that are made without saying so; `sasl=MECHANISM,...`, by which users
    of the cluster log in: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`. Of `kafka+tls://`: `certificate=FILE`
    and `key=FILE` in PEM; `client_certificate=required` with `authorities=FILE`, whose certificates clients show.
    """

    api_version: ClassVar[tuple[int, int]] = (1, 2)
    schemes: ClassVar[tuple[str, ...]] = ("kafka", _TLS)

    def parse(self, url: URL) -> Endpoint:
        """See `Gateway.parse`."""
        check_options(url, (*_OPTIONS, *_CERTIFICATES) if url.scheme == _TLS else _OPTIONS)
        host, port = split_host_port(url)
        if url.path not in ("", "/"):
            raise ValueError(f"{url}: the address of a Kafka listener has no path")
        advertised(url)
        _options(url)
        _mechanisms(url)
        if url.scheme == _TLS:
            _check_certificates(url)
        return URL(url.scheme, join_host_port(host.lower(), port), "", url.options)

    async def serve(
        self,
        endpoint: Endpoint,
        service: NodeService,
        security: Security,
        *,
        task_status: trio.TaskStatus[Serving],
    ) -> None:
        """See `Gateway.serve`."""
        tcp = TcpTransport()
        options = dict(endpoint.options)
        contact = tuple(each for each in endpoint.options if each[0] == _CONTACT)
        at = tcp.parse(URL("tcp", endpoint.authority, "", contact))
        proves = "client_certificate" in options
        mechanisms = _mechanisms(endpoint)
        if not security.allow_insecure and not tcp.is_local(at):
            _check_address(endpoint, proves=proves, mechanisms=mechanisms)
        tls = None
        if endpoint.scheme == _TLS:
            authorities = options["authorities"] if proves else None
            tls = contexts(options["certificate"], options["key"], authorities)
        listener = await tcp.listen_streams(at)
        name = listener_name(endpoint)
        named = () if name == endpoint.scheme else ((NAME, name),)
        task_status.started(Serving([str(URL(endpoint.scheme, listener.endpoints[0].authority, "", named))]))
        links, directory = Links(service, name), Directory(name, trio.current_time)
        slots = Slots(random.SystemRandom())
        secured = None if tls is None else partial(TlsStream, made=tls, turns=trio.Lock())
        begin = partial(Login, mechanisms, Attempts())
        make = partial(_link, links, directory, _options(endpoint), slots, secured, begin)
        forget = service.tell_metrics(links.counts.metrics)

        def look() -> None:
            directory.brokers(service.view)

        # A node that dies is listed for a while from then on, whether or not anybody asks meanwhile.
        unwatch = service.watch_view(look)
        try:
            await service.ready()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(links.sweep)
                await links.accept(listener, make, nursery)
        finally:
            forget()
            unwatch()
            with trio.CancelScope(shield=True):
                await listener.aclose()


async def _link(
    links: Links,
    directory: Directory,
    options: Options,
    slots: Slots,
    secured: Callable[..., TlsStream] | None,
    begin: Callable[[], Login],
    accepted: Any,
) -> Link:
    login = begin()
    machine = Connection(
        offers=OFFERED.has,
        flexible=OFFERED.is_flexible,
        strangers_may=() if login.is_over else STRANGERS_MAY,
        may_grow=partial(links.service.budget.reserve, object()),
    )
    stream, name = accepted, ""
    if secured is not None:
        stream = secured(accepted.socket, remote=accepted.remote)
        name = await stream.prepare()
    host = accepted.remote.authority
    link = Link(stream, machine, links, f"Kafka client at {host}")
    peer = PeerIdentity(
        cluster_id=links.service.cluster_id,
        node_id=-1,
        incarnation=0,
        lane="kafka",
        method="mtls" if name else "none",
        name=name,
    )
    link.client = Client(
        peer,
        links.service,
        directory,
        options,
        Sessions(slots),
        host=host,
        abort=link.abort,
        close=link.close,
        login=login,
    )
    return link


def _mechanisms(url: URL) -> tuple[str, ...]:
    """By which a listener lets users log in; none: it asks for no login."""
    given = dict(url.options).get(_SASL)
    if given is None:
        return ()
    named = tuple([each.strip().upper() for each in given.split(",")])
    for each in named:
        if each not in sasl.MECHANISMS:
            raise ValueError(f"{url}: sasl has {each!r}, which is not one of {', '.join(sasl.MECHANISMS)}")
    return named


def _check_address(endpoint: Endpoint, *, proves: bool, mechanisms: tuple[str, ...]) -> None:
    """An address that other machines reach: clients prove who they are, and nobody on the way reads passwords."""
    at = f"{endpoint.scheme}://{endpoint.authority}"
    if not proves and not mechanisms:
        raise InsecureAddressError(
            f"{at} is reachable from other machines, and clients would not have to prove their identity: "
            "use kafka+tls:// with client_certificate=required, or sasl=SCRAM-SHA-256, or set allow_insecure if "
            "nobody else can reach this network",
            peer=str(endpoint),
        )
    if sasl.PLAIN in mechanisms and endpoint.scheme != _TLS:
        raise InsecureAddressError(
            f"{at} is reachable from other machines, and sasl=PLAIN sends passwords in clear text: use "
            "kafka+tls://, or only SCRAM-SHA-256, or set allow_insecure if nobody else can reach this network",
            peer=str(endpoint),
        )


def _check_certificates(url: URL) -> None:
    given = dict(url.options)
    for name in ("certificate", "key"):
        if name not in given:
            raise ValueError(f"{url}: add {name}=FILE, in PEM: TLS needs certificate and key")
    if given.get("client_certificate", "required") != "required":
        raise ValueError(f"{url}: client_certificate must be 'required', or absent")
    if ("client_certificate" in given) != ("authorities" in given):
        raise ValueError(
            f"{url}: client_certificate=required and authorities=FILE, the trusted certificates, go together"
        )


def _options(url: URL) -> Options:
    given = dict(url.options)
    auto = given.get("auto_create_topics", "true")
    if auto not in ("true", "false"):
        raise ValueError(f"{url}: auto_create_topics is true or false")
    numbers = {}
    for name, least in (("num_partitions", 1), ("default_replication_factor", 1)):
        if name in given:
            text = given[name]
            if not text.isascii() or not text.isdigit() or not least <= int(text) <= _MOST:
                raise ValueError(f"{url}: {name} is a number from {least} to {_MOST}")
            numbers[name] = int(text)
    return Options(auto_create_topics=auto == "true", **numbers)
