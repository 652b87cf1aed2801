"""`NodeService` of a running node: calls of gateways become requests that the node's handlers serve."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import trio

from ....transport import Part, Payload, PeerIdentity, ReceiveBudget, bytes_payload, turn
from ....transport.repeats import limited
from ... import wire
from ...core.control.view import ClusterView
from ...core.errors import ErrorCode
from ...core.scram import ScramCredential
from ..driver import Driver
from ..operations.inbound import Inbound
from ..requests._fetches import hang_up
from ..requests._handlers import Handlers
from ..requests._users import Users
from ..requests.authorisation import Authoriser, Operation
from ..service import Answer, Caller, Done, Metric, NotAllowedError, ServiceError, Ticket
from ..store._cluster_state import ClusterState

log = limited(logging.getLogger("insync.node"))

KINDS = {cls: kind for kind, cls in wire.REQUEST_TYPES.items()}


class Service:
    """See `NodeService`."""

    def __init__(
        self,
        cluster_id: str,
        driver: Driver,
        state: ClusterState,
        handlers: Handlers,
        authoriser: Authoriser,
        users: Users,
        budget: ReceiveBudget,
    ) -> None:
        self.cluster_id = cluster_id
        self.node_id = driver.settings.node_id
        self.budget = budget
        self._driver = driver
        self._state = state
        self._handlers = handlers
        self._authoriser = authoriser
        self._users = users
        self._calls: dict[Caller, set[_Call]] = {}
        self._watchers: dict[object, Callable[[], None]] = {}
        self._turn = turn()
        state.on_view = self._view_changed

    @property
    def view(self) -> ClusterView:
        """See `NodeService`."""
        return self._driver.view

    async def ready(self) -> None:
        """See `NodeService`."""
        await self._state.ready.wait()

    def call(self, caller: Caller, message: object, done: Done, *, payload: Payload | None = None) -> Ticket:
        """See `NodeService`."""
        kind = KINDS.get(type(message))
        payload = payload or bytes_payload(b"")
        if kind is None:
            payload.release()
            raise TypeError(f"{type(message).__name__} is not a request of insync.replication.core.messages")
        made = _Call(self, caller, kind, message, payload, done)
        refusal = self._authoriser(caller.peer, kind)
        if refusal is not None:
            payload.release()
            made.refuse(refusal)
            return made
        self._calls.setdefault(caller, set()).add(made)
        with self._turn:
            self._handlers.take(made)
        return made

    async def ask(self, caller: Caller, message: object, *, payload: Payload | None = None) -> Answer:
        """See `NodeService`."""
        came = trio.Event()
        answers: list[Answer | ServiceError] = []

        def done(answer: Answer | ServiceError) -> None:
            answers.append(answer)
            came.set()

        ticket = self.call(caller, message, done, payload=payload)
        try:
            await came.wait()
        finally:
            ticket.cancel()
        (answer,) = answers
        if isinstance(answer, ServiceError):
            raise answer
        return answer

    async def confirm_view(self) -> ClusterView:
        """See `NodeService`."""
        await self._state.confirm()
        return self.view

    def watch_view(self, changed: Callable[[], None]) -> Callable[[], None]:
        """See `NodeService`."""
        key = object()
        self._watchers[key] = changed
        return lambda: self._watchers.pop(key, None) and None

    def doubted(self) -> frozenset[int]:
        """See `NodeService`."""
        return self._driver.broker.following.doubted(self._driver.now())

    def allowed(self, peer: PeerIdentity) -> frozenset[Operation]:
        """See `NodeService`."""
        return self._authoriser.allowed(peer)

    def tell_metrics(self, read: Callable[[], Iterable[Metric]]) -> Callable[[], None]:
        """See `NodeService`."""
        key = object()
        self._driver.gateway_metrics[key] = read
        return lambda: self._driver.gateway_metrics.pop(key, None) and None

    async def verify_user(self, name: str, password: str) -> bool:
        """See `NodeService`."""
        return await self._users.verify(name, password)

    async def credential(self, name: str, mechanism: str) -> ScramCredential:
        """See `NodeService`."""
        return await self._users.credential(name, mechanism)

    def gone(self, caller: Caller) -> None:
        """See `NodeService`."""
        for call in self._calls.pop(caller, set()):
            call.cancel()
        self._handlers.disconnected(caller)
        self._driver.settle()

    def ended(self, call: _Call) -> None:
        """It is answered, or given up."""
        calls = self._calls.get(call.caller)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._calls[call.caller]

    def _view_changed(self) -> None:
        for changed in list(self._watchers.values()):
            try:
                changed()
            except Exception:
                # A gateway's mistake; the node goes on.
                log.exception("a gateway raised while it handled a change of the cluster")


class _Call(Inbound):
    """A request of a gateway's client."""

    __slots__ = ("_callbacks", "_done", "_service", "caller")

    def __init__(
        self, service: Service, caller: Caller, kind: int, message: object, payload: Payload, done: Done
    ) -> None:
        driver = service._driver
        super().__init__(kind, message, payload, caller, driver.counters, driver.now)
        self.caller = caller
        self._service = service
        self._done: Done | None = done
        self._callbacks: list[Callable[[], None]] = []

    @property
    def peer(self) -> PeerIdentity:
        """The identity that the gateway's client has proved."""
        return self.caller.peer

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """See `Request.on_cancel`."""
        if self._done is None:
            callback()
        else:
            self._callbacks.append(callback)

    def cancel(self) -> None:
        """See `Ticket.cancel`."""
        if self._done is None:
            return
        self._done = None
        self._service.ended(self)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        self._service._driver.settle()

    def _reply(self, message: object, parts: Sequence[Part]) -> None:
        if isinstance(message, bytes):  # as another node has given it
            try:
                message = wire.decode_response(self.kind, message)
            except wire.WireError as error:
                self._end(ServiceError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
                return
        self._end(Answer(message, parts))

    def _fail(self, code: int, detail: str) -> None:
        self._end(ServiceError(code, detail))

    def _refuse(self, detail: str) -> None:
        self._end(NotAllowedError(ErrorCode.INVALID_REQUEST, detail))

    def _end(self, answer: Answer | ServiceError) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        self._callbacks = []
        self._service.ended(self)
        try:
            done(answer)
        except Exception:
            log.exception("a gateway raised while it sent an answer; closing its connection")
            hang_up(self.caller, "the gateway raised while it sent an answer")
