"""Peers: for each node the connections of its lanes, opened when first needed and opened again when lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import attrs
import trio

from .abc import Buffer, Part
from .connection import Connection, Handler
from .errors import ConnectError, LinkClosed, TransportError
from .frames import Limits
from .locality import connect_nearest
from .requests import Identity, Response
from .security import Security

PeerUp = Callable[["Peer", Connection], None]
PeerDown = Callable[["Peer", TransportError], None]

CONTROL_LANE = "control"


@attrs.frozen
class Reconnect:
    """Pauses between attempts, in seconds: `first`, growing by `factor` up to `most`.

    Each is shortened at random by up to the fraction `jitter`, so that many do not come back at once.
    """

    first: float = 0.05
    factor: float = 2.0
    most: float = 1.0
    jitter: float = 0.3

    def pause(self, failures: int, draw: float) -> float:
        """The pause after so many failures in a row; `draw` is from 0 to 1."""
        longest = min(self.most, self.first * self.factor ** min(failures - 1, 30))
        return longest * (1 - self.jitter * draw)


@attrs.define(eq=False)
class _Lane:
    name: str
    connection: Connection | None = None
    error: TransportError | None = None
    settled: trio.Event = attrs.Factory(trio.Event)
    """Set once the first attempt has succeeded or failed."""
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)


class Peer:
    """One node at one or several addresses. Made by `PeerManager.add`."""

    def __init__(self, manager: PeerManager, node_id: int, urls: Sequence[str]) -> None:
        self.node_id = node_id
        self.urls = tuple(urls)
        self._manager = manager
        self._lanes: dict[str, _Lane] = {}
        self._removed = False

    def __repr__(self) -> str:
        return f"<Peer {self.node_id} at {', '.join(self.urls)}, {'up' if self.is_up else 'down'}>"

    @property
    def is_up(self) -> bool:
        """Whether the control lane is connected."""
        return self.connection(CONTROL_LANE) is not None

    def connection(self, lane: str) -> Connection | None:
        """The lane's connection, if it is open; does not open it."""
        known = self._lanes.get(lane)
        if known is None or known.connection is None or known.connection.closed.is_set():
            return None
        return known.connection

    def open(self, lane: str) -> None:
        """Keep this lane connected from now on."""
        if lane not in self._lanes:
            if self._removed:
                raise LinkClosed(f"peer {self.node_id} was removed", peer=str(self.node_id))
            self._lanes[lane] = _Lane(lane)
            self._manager.nursery.start_soon(
                self._keep, self._lanes[lane], name=f"lane {lane} to {self.node_id}"
            )

    async def request(
        self,
        lane: str,
        kind: int,
        body: Buffer = b"",
        parts: Sequence[Part] = (),
        *,
        timeout: float,
        max_response: int = 64 << 20,
    ) -> Response:
        """Ask on a lane; the first request opens it and waits for that first attempt.

        Raises:
          ConnectError: The lane is down; at once, it does not wait for the next attempt.
          TransportError: As `Connection.request`.
        """
        self.open(lane)
        known = self._lanes[lane]
        deadline = trio.current_time() + timeout
        with trio.move_on_at(deadline):
            await known.settled.wait()
        connection = self.connection(lane)
        if connection is None:
            reason = known.error or "no attempt has ended yet"
            raise ConnectError(
                f"node {self.node_id} is down on lane {lane!r}: {reason}", peer=str(self.node_id)
            )
        left = deadline - trio.current_time()
        return await connection.request(kind, body, parts, timeout=left, max_response=max_response)

    def remove(self) -> None:
        """End its connections and forget it. Idempotent."""
        self._removed = True
        for lane in self._lanes.values():
            lane.scope.cancel()
            if lane.connection is not None:
                lane.connection.abort(f"peer {self.node_id} was removed")
        self._manager.forget(self)

    async def _keep(self, lane: _Lane) -> None:
        failures = 0
        with lane.scope:
            while True:
                try:
                    lane.connection = await self._connect(lane.name)
                except TransportError as error:
                    lane.error = error
                    lane.settled.set()
                    failures += 1
                    await trio.sleep(self._manager.pause(failures, error))
                else:
                    failures = 0
                    lane.settled.set()
                    lane.error = await self._stay(lane, lane.connection)

    async def _connect(self, lane: str) -> Connection:
        """By the nearest address that answers."""
        return await self._manager.dial(self.urls, self.node_id, lane)

    async def _stay(self, lane: _Lane, connection: Connection) -> TransportError:
        if lane.name == CONTROL_LANE:
            self._manager.peer_up(self, connection)
        await connection.closed.wait()
        lane.connection = None
        assert connection.close_reason is not None
        if lane.name == CONTROL_LANE:
            self._manager.peer_down(self, connection.close_reason)
        return connection.close_reason


class PeerManager:
    """The peers of a process. `peer_up` and `peer_down` hear when a peer's control lane comes and goes.

    Connections and their keepers run in `nursery`. `seed` makes the jitter of the pauses repeatable.
    """

    def __init__(
        self,
        identity: Identity,
        nursery: trio.Nursery,
        *,
        handler: Handler | None = None,
        peer_up: PeerUp | None = None,
        peer_down: PeerDown | None = None,
        reconnect: Reconnect | None = None,
        connect_timeout: float = 1.0,
        limits: Limits | None = None,
        security: Security | None = None,
        seed: int | None = None,
    ) -> None:
        self.nursery = nursery
        self._identity = identity
        self._handler = handler
        self._peer_up, self._peer_down = peer_up, peer_down
        self._reconnect = reconnect or Reconnect()
        self._connect_timeout = connect_timeout
        self._limits = limits
        self._security = security
        self._random = random.Random(seed)
        self._peers: dict[int, Peer] = {}

    def add(self, node_id: int, urls: Sequence[str]) -> Peer:
        """The peer with these addresses; the former one with other addresses is removed."""
        former = self._peers.get(node_id)
        if former is not None:
            if former.urls == tuple(urls):
                return former
            former.remove()
        peer = self._peers[node_id] = Peer(self, node_id, urls)
        return peer

    def get(self, node_id: int) -> Peer | None:
        """The peer of that node id, if it was added."""
        return self._peers.get(node_id)

    def forget(self, peer: Peer) -> None:
        if self._peers.get(peer.node_id) is peer:
            del self._peers[peer.node_id]

    async def dial(self, urls: Sequence[str], node_id: int, lane: str) -> Connection:
        return await connect_nearest(
            urls,
            identity=self._identity,
            expect_node=node_id,
            lane=lane,
            handler=self._handler,
            nursery=self.nursery,
            timeout=self._connect_timeout,
            limits=self._limits,
            security=self._security,
        )

    def pause(self, failures: int, error: TransportError) -> float:
        """Seconds before the next attempt; the longest when the peer refuses us, which only people can mend."""
        return self._reconnect.pause(failures if error.retryable else 99, self._random.random())

    def peer_up(self, peer: Peer, connection: Connection) -> None:
        if self._peer_up is not None:
            self._peer_up(peer, connection)

    def peer_down(self, peer: Peer, reason: TransportError) -> None:
        if self._peer_down is not None:
            self._peer_down(peer, reason)
