"""The directory: nodes report here for as long as they live, clients ask here where they are."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import msgspec

from ....transport import Connection, PeerIdentity, Request
from ._messages import Down, Found, Kind, Order, Report, Told, Up, decode, encode

_INVALID = 1


def authorise(peer: PeerIdentity, kind: int) -> str | None:
    """Clients may look; the rest is for nodes."""
    if kind == Kind.LOOK or peer.node_id >= 0:
        return None
    return f"{peer.principal} may not report to the directory: only nodes may"


@attrs.define(eq=False)
class _Member:
    report: Report
    waiting: Request | None = None
    """The request that an order answers."""
    order: Order | None = None


class Directory:
    """Answers requests; `tell` hears who comes and goes."""

    def __init__(self, tell: Callable[[Told], None]) -> None:
        self._tell = tell
        self._members: dict[Connection, _Member] = {}

    def serve(self, request: Request) -> None:
        """The handler of `insync.transport.serve`."""
        request.payload.release()
        try:
            match request.kind:
                case Kind.REPORT:
                    self._report(request)
                case Kind.ORDERS:
                    self._orders(request)
                case Kind.LOOK:
                    request.reply(encode(self._found()))
                case _:
                    request.fail(_INVALID, f"the directory knows no request of kind {request.kind}")
        except msgspec.MsgspecError as error:
            request.fail(_INVALID, f"no such message: {error}")

    def disconnected(self, connection: Connection) -> None:
        """The `on_disconnect` of `insync.transport.serve`."""
        member = self._members.pop(connection, None)
        if member is not None:
            self._tell(Down(member.report))

    def stop(self, slot: int, executor: str | None, *, keep: bool) -> None:
        """Have nodes of a slot end: those of one executor, or all."""
        for member in list(self._members.values()):
            if member.report.slot == slot and executor in (None, member.report.executor):
                member.order = Order(keep)
                self._give(member)

    def _report(self, request: Request) -> None:
        member = _Member(decode(request.body, Report))
        self._members[request.connection] = member
        request.reply()
        self._tell(Up(member.report))

    def _orders(self, request: Request) -> None:
        member = self._members.get(request.connection)
        if member is None:
            request.fail(_INVALID, "orders are for nodes that have reported")
            return
        member.waiting = request
        self._give(member)

    @staticmethod
    def _give(member: _Member) -> None:
        if member.order is not None and member.waiting is not None:
            waiting, member.waiting = member.waiting, None
            waiting.reply(encode(member.order))

    def _found(self) -> Found:
        # The one that reported last, where a slot has moved and the former node does not know it yet.
        return Found({member.report.slot: member.report.urls for member in self._members.values()})
