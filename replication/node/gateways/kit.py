"""The cases of the gateways' conformance kit; `insync.replication.node.gateway_testing` is its face."""

from __future__ import annotations

import ipaddress
import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from ....transport import (
    URL,
    Endpoint,
    InsecureAddressError,
    Payload,
    PeerIdentity,
    ReceiveBudget,
    Security,
    Serving,
    TransportError,
    split_host_port,
)
from ....transport.patience import PATIENCE
from ...core.control.view import ClusterView
from ...core.scram import ScramCredential
from ...promises import Promise, PromiseBrokenError, collect, expect
from .._node import Node
from ..requests.authorisation import Operation
from ..service import Answer, Caller, Done, Metric, NodeService, Ticket
from ..settings import NodeSettings
from . import gateways

CASE_SECONDS = 30.0
"""How long one case may take before it counts as hung."""
_SOON = 10.0 * PATIENCE
_SILENT = 50
"""Clients that say nothing."""


class GatewayBench(ABC):
    """A gateway under test, and a client of its protocol."""

    @abstractmethod
    def gateway(self) -> gateways.Gateway:
        """A new one."""

    @abstractmethod
    def url(self) -> str:
        """An address of this machine alone, with a port that the system gives: `echo://127.0.0.1:0`."""

    @abstractmethod
    def open_url(self) -> str:
        """An address that other machines reach: `echo://0.0.0.0:0`."""

    @abstractmethod
    def malformed(self) -> Collection[str]:
        """URLs of the scheme that cannot be meant."""

    @abstractmethod
    async def use(self, stream: trio.SocketStream) -> None:
        """Ask something that the node has to be asked for, and take the answer. Any exception: not served."""

    async def dial(self, url: str) -> trio.SocketStream:
        """Connect, and say nothing."""
        return await trio.open_tcp_stream(*split_host_port(URL.parse(url)))


class Case(Promise[GatewayBench]):
    """One promise of the interface."""

    subject = "gateway"
    tries = frozenset({"use", "dial"})
    seconds = CASE_SECONDS


_cases: list[Case] = []
_case = collect(Case, _cases)


class _Watched:
    """The node's service, and what a gateway does with it."""

    def __init__(self, inner: NodeService, may_begin: trio.Event) -> None:
        self._inner = inner
        self._may_begin = may_begin
        self.node_id, self.cluster_id, self.budget = inner.node_id, inner.cluster_id, inner.budget
        self.callers: dict[Caller, None] = {}
        self.ended: list[Caller] = []

    budget: ReceiveBudget

    @property
    def view(self) -> ClusterView:
        return self._inner.view

    async def ready(self) -> None:
        await self._may_begin.wait()
        await self._inner.ready()

    def call(self, caller: Caller, message: object, done: Done, *, payload: Payload | None = None) -> Ticket:
        self.callers[caller] = None
        return self._inner.call(caller, message, done, payload=payload)

    async def ask(self, caller: Caller, message: object, *, payload: Payload | None = None) -> Answer:
        self.callers[caller] = None
        return await self._inner.ask(caller, message, payload=payload)

    async def confirm_view(self) -> ClusterView:
        return await self._inner.confirm_view()

    def watch_view(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._inner.watch_view(changed)

    def doubted(self) -> frozenset[int]:
        return self._inner.doubted()

    def allowed(self, peer: PeerIdentity) -> Collection[Operation]:
        return self._inner.allowed(peer)

    def tell_metrics(self, read: Callable[[], Iterable[Metric]]) -> Callable[[], None]:
        return self._inner.tell_metrics(read)

    async def verify_user(self, name: str, password: str) -> bool:
        return await self._inner.verify_user(name, password)

    async def credential(self, name: str, mechanism: str) -> ScramCredential:
        return await self._inner.credential(name, mechanism)

    def gone(self, caller: Caller) -> None:
        self.ended.append(caller)
        self._inner.gone(caller)


class _Guest(gateways.Gateway):
    """The gateway under test as a node gets it."""

    def __init__(self, bench: GatewayBench) -> None:
        self._gateway = bench.gateway()
        self.schemes = self._gateway.schemes  # type: ignore[misc]
        self.may_begin = trio.Event()
        self.service: _Watched
        self.is_over = False

    def parse(self, url: URL) -> Endpoint:
        return self._gateway.parse(url)

    async def serve(
        self, endpoint: Endpoint, service: NodeService, security: Security, *, task_status: Any
    ) -> None:
        self.service = _Watched(service, self.may_begin)
        try:
            await self._gateway.serve(endpoint, self.service, security, task_status=task_status)
        finally:
            self.is_over = True


@attrs.frozen
class _Place:
    guest: _Guest
    url: str

    @property
    def service(self) -> _Watched:
        return self.guest.service


@asynccontextmanager
async def _running(
    bench: GatewayBench, *, hold: bool = False, url: str = "", **options: Any
) -> AsyncIterator[_Place]:
    """A node with the gateway; `hold`: the node is not ready before `may_begin` is set."""
    guest = _Guest(bench)
    if not hold:
        guest.may_begin.set()
    before = dict(gateways._made)
    gateways._made.update(dict.fromkeys(guest.schemes, guest))
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = NodeSettings(
                node_id=1,
                data_dir=Path(folder) / "node",
                store=f"sqlite://{folder}/meta.db",
                listeners=("tcp://127.0.0.1:0", url or bench.url()),
                **options,
            )
            async with Node(settings) as node:
                yield _Place(guest, node.gateway_endpoints[0])
    finally:
        gateways._made.clear()
        gateways._made.update(before)


async def _until(holds: Callable[[], object], what: str) -> None:
    with trio.move_on_after(_SOON):
        while not holds():
            await trio.lowlevel.checkpoint()
    expect(holds(), f"within {_SOON:g} s not so: {what}")


async def _is_served(bench: GatewayBench, url: str) -> None:
    with trio.move_on_after(_SOON):
        async with await bench.dial(url) as stream:
            await bench.use(stream)
        return
    raise PromiseBrokenError(f"a client was not served within {_SOON:g} s")


async def _ends(stream: trio.SocketStream) -> None:
    """The other end hangs up."""
    with trio.move_on_after(_SOON):
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        return
    raise PromiseBrokenError(f"the connection had not ended after {_SOON:g} s")


@_case
async def malformed_urls_are_refused(bench: GatewayBench) -> None:
    """`parse` checks a URL: ValueError says what is malformed, and a sound one stays the same when parsed again."""
    gateway = bench.gateway()
    for url in bench.malformed():
        try:
            gateway.parse(URL.parse(url))
        except ValueError as error:
            expect(str(error), f"{url} is refused without a word")
        else:
            raise PromiseBrokenError(f"{url} was taken")
    once = str(gateway.parse(URL.parse(bench.url())))
    again = str(gateway.parse(URL.parse(once)))
    expect(once == again, f"{bench.url()} is {once}, and that is {again}")


@_case
async def it_tells_where_clients_reach_it(bench: GatewayBench) -> None:
    """`started` is told URLs with real ports and no wildcard address, and clients are served there."""
    async with _running(bench, url=bench.open_url(), allow_insecure=True) as place:
        host, port = split_host_port(URL.parse(place.url))
        expect(port, f"{place.url} has no port")
        with suppress(ValueError):
            expect(not ipaddress.ip_address(host).is_unspecified, f"{place.url} is not an address to dial")
    async with _running(bench) as place:
        await _is_served(bench, place.url)


@_case
async def nobody_is_served_before_the_node_is_ready(bench: GatewayBench) -> None:
    """A gateway awaits `service.ready()` before it accepts: before that the node knows nothing of the cluster."""
    async with _running(bench, hold=True) as place, trio.open_nursery() as nursery:
        nursery.start_soon(_is_served, bench, place.url)
        await trio.sleep(0.3)
        expect(not place.service.callers, "a client's request came to a node that was not ready")
        place.guest.may_begin.set()


@_case
async def clients_are_no_nodes(bench: GatewayBench) -> None:
    """Each client is a caller of its own, whose `peer.node_id` is -1."""
    async with _running(bench) as place:
        for _ in range(2):
            await _is_served(bench, place.url)
        expect(len(place.service.callers) >= 2, f"two clients were {len(place.service.callers)} callers")
        for caller in place.service.callers:
            expect(caller.peer.node_id == -1, f"a client says that it is node {caller.peer.node_id}")


@_case
async def who_has_left_is_gone(bench: GatewayBench) -> None:
    """`service.gone` is called once for every disconnected client, however it disconnected."""
    async with _running(bench) as place:
        for is_rude in (False, True):
            stream = await bench.dial(place.url)
            await bench.use(stream)
            if is_rude:
                stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            await trio.aclose_forcefully(stream)
        service = place.service
        await _until(lambda: set(service.callers) <= set(service.ended), "all who have left are gone")
        expect(len(service.ended) == len(set(service.ended)), "a client was gone twice")
        await _is_served(bench, place.url)


@_case
async def an_aborted_client_is_disconnected(bench: GatewayBench) -> None:
    """`Caller.abort` ends the connection at once, and that alone; after that it is gone."""
    async with _running(bench) as place:
        other = await bench.dial(place.url)
        await bench.use(other)
        before = set(place.service.callers)
        stream = await bench.dial(place.url)
        await bench.use(stream)
        aborted = set(place.service.callers) - before
        for caller in aborted:
            caller.abort("for the test")
        await _ends(stream)
        await _until(lambda: aborted <= set(place.service.ended), "who was aborted is gone")
        await bench.use(other)
        for each in (stream, other):
            await trio.aclose_forcefully(each)


@_case
async def strangers_harm_nobody(bench: GatewayBench) -> None:
    """Garbage, half a word and silence, also of many, end or wait by themselves; others are served meanwhile."""
    garbage = [
        random.Random(5).randbytes(4096),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"\xff" * 8,
        b"\0",
        b"",
    ]
    async with _running(bench) as place:
        strangers = []
        for data in [*garbage, *[b""] * _SILENT]:
            strangers.append(await bench.dial(place.url))
            with suppress(trio.BrokenResourceError):
                await strangers[-1].send_all(data)
        await _is_served(bench, place.url)
        for number, stream in enumerate(strangers):
            if number % 2:
                stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            await trio.aclose_forcefully(stream)
        await _is_served(bench, place.url)
        expect(not place.guest.is_over, "it has ended by itself")


@_case
async def an_address_that_others_reach_wants_a_proof(bench: GatewayBench) -> None:
    """Without a proof of who is there, an address that other machines reach is refused: InsecureAddressError."""
    async with _running(bench) as place:
        refused = await _refusal(bench.gateway(), bench.open_url(), place.service)
    expect(refused, f"it listens on {bench.open_url()} for whoever comes")
    expect(isinstance(refused, InsecureAddressError), f"it raised {refused!r}")


async def _refusal(gateway: gateways.Gateway, url: str, service: NodeService) -> Exception | None:
    """The error of a gateway that is to listen there without a secret or certificates; None if it listens."""

    async def listen(*, task_status: trio.TaskStatus[Exception | None]) -> None:
        told = _Told(task_status)
        try:
            await gateway.serve(gateway.parse(URL.parse(url)), service, Security(), task_status=told)
        except Exception as error:
            if told.is_called:
                raise
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            task_status.started(error)

    async with trio.open_nursery() as nursery:
        refused: Exception | None = await nursery.start(listen)
        nursery.cancel_scope.cancel()
    return refused


class _Told(trio.TaskStatus[Serving]):
    """Hears that a gateway listens."""

    def __init__(self, inner: trio.TaskStatus[Exception | None]) -> None:
        self._inner = inner
        self.is_called = False

    def started(self, value: Serving | None = None) -> None:
        """See `trio.TaskStatus`."""
        self.is_called = True
        self._inner.started(None)


@_case
async def an_address_in_use_is_an_error_of_the_system(bench: GatewayBench) -> None:
    """An address in use raises OSError, or an error of transports, before `started`."""
    async with _running(bench) as place:
        refused = await _refusal(bench.gateway(), place.url, place.service)
    expect(refused, f"it says that it listens on {place.url}, where another one does")
    expect(isinstance(refused, OSError | TransportError), f"it raised {refused!r}")


@_case
async def it_ends_with_its_node(bench: GatewayBench) -> None:
    """When `serve` is cancelled connections end, and the address is free."""
    async with _running(bench) as place:
        stream = await bench.dial(place.url)
        await bench.use(stream)
    await _ends(stream)
    await trio.aclose_forcefully(stream)
    try:
        async with await bench.dial(place.url):
            raise PromiseBrokenError(f"a listener is still open on {place.url}")
    except OSError:
        pass


CASES: tuple[Case, ...] = tuple(_cases)
"""Every case, one promise each."""

__all__ = ["CASES", "Case", "GatewayBench", "PromiseBrokenError"]
