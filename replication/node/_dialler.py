"""The node's end of its connections to other nodes: dials, sends and hangs up as the broker says, and reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import trio
from msgspec import structs

from ...transport import (
    Connection,
    ConnectRefusedError,
    Identity,
    RequestHandle,
    Response,
    Security,
    TransportError,
    connect_nearest,
)
from .. import wire
from ..core.broker import effects as fx
from ..core.broker import events as ev
from ..core.messages import FetchRequest, Kind
from .logs._maintenance_thread import wall_clock_ms
from .requests._payloads import NO_PAYLOAD, SharedPayload

if TYPE_CHECKING:
    from .operations.counters import Counters
    from .ports import Driving

log = logging.getLogger("insync.node")


TIME_INTERVAL = 0.25
"""Seconds between two fetches that tell a leader the time."""


class Dialler:
    """`identity` and `security` are those of the node, known once its store has been opened."""

    def __init__(self, driver: Driving, counters: Counters, nursery: trio.Nursery) -> None:
        self.identity = Identity()
        self.security = Security()
        self.nursery = nursery
        self._driver = driver
        self._counters = counters
        self._time_due: dict[Hashable, float] = {}
        """When each leader is told this node's wall clock again."""
        self._handles: dict[int, RequestHandle | None] = {}
        """Of the questions under way; None while one is sent."""
        self.connections: set[Connection] = set()
        """Those that were dialled and have not ended."""
        self.obey: dict[type, Callable[[Any], None]] = {
            fx.Dial: self._dial,
            fx.Ask: self.ask,
            fx.GiveUp: self._give_up,
            fx.HangUp: self._hang_up,
            fx.SuspicionWrong: self._tell_wrong,
            fx.PeerFailing: self._tell_failing,
            fx.PartitionDamaged: self._tell_damaged,
        }

    def _tell_wrong(self, effect: fx.SuspicionWrong) -> None:
        self._counters.wrong_suspicions += 1
        log.warning("node %d was removed by mistake: it has registered again", effect.node.node_id)

    @staticmethod
    def _tell_failing(effect: fx.PeerFailing) -> None:
        if effect.malformed:
            log.warning(
                "node %d: malformed fetch response; closing the connection: %s", effect.peer, effect.reason
            )
        else:
            log.warning("cannot fetch from node %d: %s", effect.peer, effect.reason)

    @staticmethod
    def _tell_damaged(effect: fx.PartitionDamaged) -> None:
        log.warning(
            "%s: damaged batch in the fetch response of node %d; only this partition is fetched again: %s",
            effect.partition,
            effect.peer,
            effect.reason,
        )

    def _dial(self, effect: fx.Dial) -> None:
        name = f"connection to node {effect.peer} ({effect.lane})"
        self.nursery.start_soon(self._connected, effect, name=name)

    async def connect(self, effect: fx.Dial) -> Connection:
        """The nearest of the endpoints that there is a way to.

        Raises:
          TransportError, OSError, UnicodeError: No address works, or another process answers there.
        """
        return await connect_nearest(
            effect.endpoints,
            identity=self.identity,
            security=self.security,
            expect_node=effect.peer,
            lane=effect.lane,
            nursery=self.nursery,
            timeout=effect.timeout,
        )

    async def _connected(self, effect: fx.Dial) -> None:
        """One connection, from the dial to its end."""
        try:
            connection = await self.connect(effect)
        except (TransportError, OSError, UnicodeError) as error:
            # A host name that no encoding can express is an address as wrong as any.
            refused = isinstance(error, ConnectRefusedError)
            self._tell(ev.DialFailed(dial=effect.dial, reason=str(error), refused=refused))
            return
        hands_over = connection.hands_over_files
        self.connections.add(connection)
        self._tell(ev.Connected(dial=effect.dial, connection=connection, hands_over_files=hands_over))
        await connection.closed.wait()
        self.connections.discard(connection)
        self._time_due.pop(connection, None)
        reason = str(connection.close_reason)
        self._tell(ev.PeerDisconnected(connection=connection, reason=reason))

    def ask(self, effect: fx.Ask) -> None:
        """Send a request; `done` follows."""
        message = effect.message
        if isinstance(message, FetchRequest) and self._is_time_due(effect.connection):
            message = structs.replace(message, time_ms=wall_clock_ms())
        try:
            body = wire.encode(message)
        except Exception as error:
            if not effect.raw:
                raise
            # No mistake of ours: a gateway asks, with a value of the wrong type or a number beyond 64 bits.
            name = type(message).__name__
            log.warning("%s of a gateway cannot be passed on: %r", name, error)
            text = f"{name} cannot be passed on: {type(error).__name__}: {error}"
            self.done(effect, TransportError(text))
            return
        question, connection = effect.question, effect.connection
        assert isinstance(connection, Connection)
        self._handles[question] = None
        handle = connection.request_nowait(
            effect.kind, body, timeout=effect.timeout, on_done=partial(self.done, effect)
        )
        if question in self._handles:
            self._handles[question] = handle

    def _is_time_due(self, connection: Hashable) -> bool:
        """Whether the leader is to be told the time here: now and then, because it costs a copy of the request."""
        now = self._driver.now()
        if now < self._time_due.get(connection, 0.0):
            return False
        self._time_due[connection] = now + TIME_INTERVAL
        return True

    def _give_up(self, effect: fx.GiveUp) -> None:
        handle = self._handles.pop(effect.question, None)
        if handle is not None:
            handle.cancel()

    @staticmethod
    def _hang_up(effect: fx.HangUp) -> None:
        assert isinstance(effect.connection, Connection)
        effect.connection.abort(effect.reason)

    def done(self, effect: fx.Ask, outcome: Response | TransportError) -> None:
        """Called by the connection, perhaps while it takes the request. A mistake of ours must end the node, and
        not the connection alone.
        """
        self._handles.pop(effect.question, None)
        try:
            if isinstance(outcome, TransportError):
                self._tell(ev.AskFailed(question=effect.question, reason=str(outcome)))
            else:
                self._answered(effect, outcome)
        except Exception as error:  # noqa: BLE001 - raised by a task of the node
            self.nursery.start_soon(_raise, error)

    def _answered(self, effect: fx.Ask, response: Response) -> None:
        if effect.raw:
            body = bytes(response.body)
            response.release()
            self._tell(ev.Answered(question=effect.question, message=body, payload=NO_PAYLOAD))
            return
        try:
            message = wire.decode_response(effect.kind, response.body)
        except wire.WireError as error:
            response.release()
            self._tell(ev.AskFailed(question=effect.question, reason=str(error), malformed=True))
            return
        try:
            payload = SharedPayload(response.payload)
        except (TransportError, OSError) as error:
            # The leader has handed over ranges of its files, and has truncated its log since; or its device fails.
            response.release()
            reason = f"failed to read the payload of the answer: {error}"
            self._tell(ev.AskFailed(question=effect.question, reason=reason))
            return
        if effect.kind == Kind.FETCH:
            self._counters.replication_bytes_in += payload.size
        try:
            self._driver.step(ev.Answered(question=effect.question, message=message, payload=payload))
        finally:
            payload.let_go()
        self._driver.settle()

    def _tell(self, event: ev.Event) -> None:
        self._driver.step(event)
        self._driver.settle()


async def _raise(error: Exception) -> NoReturn:
    raise error
