"""Listening: accept links, shake hands with each in its own task, and run the connections."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from .. import _border, registry
from .._give_back import Departures
from ..abc import Link, Listener
from ..errors import TransportError
from ..frames import Hello, Limits, Status
from ..guests import Guest, Guests
from ..repeats import limited
from ..requests import Authorise, Claims, Identity
from ..security import Security
from ._handshake import Introduced, Refusal, introduce, judge_dialer, make_hello
from .connection import Connection, Handler
from .intake import ReceiveBudget

log = limited(logging.getLogger("insync.transport"))

_SILENT_TIME, _TALKING_TIME, _LOOK_AGAIN = 0.2, 1.0, 0.01
"""Seconds that a handshake may take while there is no room for others: of who says nothing, and of who does."""

OnConnection = Callable[[Connection], None]

_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds after a link that could not be accepted; each one in a row doubles it."""

_LONGEST_WAIT = 2.0
"""Seconds that a client which has shaken hands waits for room."""


@attrs.frozen
class Serving:
    """A listener at work. `endpoints` are the URLs at which peers reach it, with real ports."""

    endpoints: list[str]


@attrs.define(eq=False)
class ServingGroup:
    """The peers at several addresses of one process, each address served by a `serve` of its own."""

    newest: dict[int, int] = attrs.Factory(dict)
    """The newest incarnation of each node."""
    connections: set[Connection] = attrs.Factory(set)


async def serve(
    url: str,
    handler: Handler,
    *,
    identity: Identity,
    on_connect: OnConnection | None = None,
    on_disconnect: OnConnection | None = None,
    limits: Limits | None = None,
    security: Security | None = None,
    budget: ReceiveBudget | None = None,
    authorise: Authorise | None = None,
    group: ServingGroup | None = None,
    claims: Claims | None = None,
    task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen until cancelled; the connections end with it. Start it by `nursery.start`, which returns a `Serving`.

    `on_connect` is called before the first request of a connection, `on_disconnect` after its end. A node's newer
    incarnation replaces its older connections of the same lane; an older incarnation is refused.
    `security`: what to prove, and to ask of peers; without it only addresses of this machine are listened on.
    `budget`: for the payloads of requests; without it all connections of this event loop share one.
    `authorise`: says which peer may send which kind of request; without it every peer may send all.
    `group`: addresses served with the same one are one server, as far as incarnations are concerned.
    `claims`: judges who says that it is a node, by what the cluster knows. Without it each is believed, and the
    newest incarnation of a node that has come by keeps older ones out: whoever may connect can shut a node out.

    Raises:
      InsecureAddressError: Other machines reach this address, and nobody would have to prove anything.
      AddressInUseError: Somebody else listens there.
      UnknownSchemeError: No transport for this URL is installed.
      OSError: The system refuses for another reason.
      ValueError: The URL is malformed.
    """
    transport, endpoint = registry.resolve(url)
    security = security or Security()
    security.check_address(transport, endpoint)
    listener = await _border.listen(transport.secured(security), endpoint)
    server = _Server(
        handler,
        identity,
        on_connect,
        on_disconnect,
        limits or Limits(),
        security,
        budget,
        authorise,
        group or ServingGroup(),
        claims,
        Guests(url),
    )
    try:
        async with trio.open_nursery() as nursery:
            task_status.started(Serving([str(one) for one in listener.endpoints]))
            await server.accept(listener, nursery)
    finally:
        with trio.CancelScope(shield=True):
            await listener.aclose()


@attrs.define(eq=False)
class _Server:
    handler: Handler
    identity: Identity
    on_connect: OnConnection | None
    on_disconnect: OnConnection | None
    limits: Limits
    security: Security
    budget: ReceiveBudget | None
    authorise: Authorise | None
    group: ServingGroup
    claims: Claims | None
    guests: Guests
    half_open: dict[Link, trio.CancelScope] = attrs.Factory(dict)
    since: dict[Link, float] = attrs.Factory(dict)
    """When each of them came, the oldest first."""
    settled: trio.Event = attrs.Factory(trio.Event)
    gone: set[Link] = attrs.Factory(set)
    """Made room for others, and do not know it yet."""

    async def accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        departures, pause = Departures(nursery), _PAUSE
        while True:
            try:
                link = await listener.accept()
            except (OSError, TransportError) as error:
                # Of one link, or a while without descriptors: whoever comes next may fare better.
                log.warning("cannot accept on %s for now: %s", listener.endpoints[0], error)
                await trio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
                continue
            pause = _PAUSE
            await self._make_room()
            scope = self.half_open[link] = trio.CancelScope()
            self.since[link] = trio.current_time()
            nursery.start_soon(self._welcome, link, scope, departures, name=f"link from {link.remote}")

    async def _make_room(self) -> None:
        """Those who connect and say nothing must not keep others out: the oldest goes.

        But not at once. When a thousand come together each needs a moment, and whoever came last would push out who
        is nearly done; so they wait in the system's queue until somebody is done, or has had his time.
        """
        while len(self.half_open) >= self.limits.max_half_open:
            link = self._slow()
            if link is not None:
                log.warning("%s has not finished its handshake and makes room for others", link.remote)
                scope = self._settle(link)
                self.gone.add(link)
                assert scope is not None
                scope.cancel()
                return
            self.settled = trio.Event()
            with trio.move_on_after(_LOOK_AGAIN):
                await self.settled.wait()

    def _slow(self) -> Link | None:
        """The oldest that has had its time: a short one if it has said nothing at all."""
        now = trio.current_time()
        for link, since in self.since.items():
            if now - since < _SILENT_TIME:
                return None
            if now - since >= _TALKING_TIME or not _has_spoken(link):
                return link
        return None

    def _settle(self, link: Link) -> trio.CancelScope | None:
        """Its handshake is over, one way or another."""
        scope = self.half_open.pop(link, None)
        self.since.pop(link, None)
        self.settled.set()
        return scope

    async def _welcome(self, link: Link, scope: trio.CancelScope, departures: Departures) -> None:
        try:
            introduced = await self._introduce(link, scope)
            if introduced is not None:
                await self._run(link, introduced)
        finally:
            self.gone.discard(link)
            link.abort()
            departures.one()

    async def _introduce(self, link: Link, scope: trio.CancelScope) -> Introduced | None:
        security = self.security
        mine = make_hello(
            self.identity,
            "",
            self.limits,
            proves=security.secret is not None,
            proves_node=security.node_secret is not None,
        )
        scope.deadline = trio.current_time() + self.limits.handshake_timeout
        with scope:
            try:
                introduced = await introduce(
                    link,
                    mine,
                    self._judge,
                    dialer=False,
                    secrets=security.secrets,
                    node_secrets=security.node_secrets,
                    claims=self.claims,
                )
                # Among those that shake hands, which are few: each has a descriptor while it waits.
                has_room = introduced.hello.node_id >= 0 or await self._has_room()
                if not has_room:
                    log.warning(
                        "%s is let go: no more connections are allowed, and none is idle", link.remote
                    )
                return introduced if has_room else None
            except TransportError as error:
                log.warning("no connection with %s: %s", link.remote, error)
                return None
            finally:
                self._settle(link)
        if link not in self.gone:
            log.warning("%s did not finish its handshake in time", link.remote)
        return None

    async def _has_room(self) -> bool:
        with trio.move_on_after(_LONGEST_WAIT):
            await self.guests.room()
            return True
        return False

    def _judge(self, mine: Hello, theirs: Hello) -> Refusal | None:
        newest = self.group.newest.get(theirs.node_id, 0)
        if self.claims is None and theirs.node_id >= 0 and theirs.incarnation < newest:
            text = f"node {theirs.node_id} has incarnation {newest} by now, this is {theirs.incarnation}"
            return Refusal(Status.STALE_INCARNATION, text)
        return judge_dialer(mine, theirs)

    async def _run(self, link: Link, introduced: Introduced) -> None:
        connection = Connection(
            link,
            introduced,
            self.handler,
            lane=introduced.hello.lane,
            dialer=False,
            budget=self.budget,
            authorise=self.authorise,
        )
        guest = None
        if connection.peer.node_id < 0:
            guest = _guest(connection, link)
            self.guests.enter(guest)
        self._supersede(connection)
        self.group.connections.add(connection)
        try:
            if self.on_connect is not None:
                self.on_connect(connection)
            await connection.run()
        finally:
            if guest is not None:
                self.guests.leave(guest)
            self.group.connections.discard(connection)
            if self.on_disconnect is not None:
                self.on_disconnect(connection)

    def _supersede(self, newcomer: Connection) -> None:
        peer = newcomer.peer
        if peer.node_id < 0:
            return
        self.group.newest[peer.node_id] = max(peer.incarnation, self.group.newest.get(peer.node_id, 0))
        for connection in list(self.group.connections):
            other = connection.peer
            same = (other.node_id, other.lane) == (peer.node_id, peer.lane)
            if same and other.incarnation < peer.incarnation:
                connection.abort(f"node {peer.node_id} was started again")


def _guest(connection: Connection, link: Link) -> Guest:
    since = trio.current_time()
    return Guest(
        address=link.remote.authority.rpartition(":")[0],
        end=connection.abort,
        is_known=lambda: True,
        has_spoken=lambda: True,
        # Its signs of life are no requests: while nothing is asked, the oldest goes.
        idle=lambda now: now - since if connection.is_idle else 0.0,
    )


def _has_spoken(link: Link) -> bool:
    try:
        return link.received > 0
    except TransportError:
        return False


__all__ = ["OnConnection", "Serving", "ServingGroup", "serve"]
