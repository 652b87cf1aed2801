"""Errors of fetch sessions, at either end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from insync.replication.core.broker.events import FetchArrived
from insync.replication.core.broker.fetching.fetch_session import (
    FollowerSession,
    LeaderSession,
    SessionCache,
    SessionRequest,
)
from insync.replication.core.broker.fetching.gathering import Gathering
from insync.replication.core.broker.fetching.inquiries import Inquiry
from insync.replication.core.broker.fetching.serving import Serving
from insync.replication.core.errors import ErrorCode
from insync.replication.simulation.driver.fetches import Peer

from ..catalogue import Patch, mutant


@mutant("K90", "do not reopen the questions of a lost answer")
def _(patch: Patch) -> None:
    right = LeaderSession.accept

    def accept(self: LeaderSession[Any, Any], request: SessionRequest[Any, Any]) -> Collection[Any] | None:
        self._last = {}
        return right(self, request)

    patch.setattr(LeaderSession, "accept", accept)


@mutant("K91", "treat a question as delivered once it was sent")
def _(patch: Patch) -> None:
    right = FollowerSession.request

    def request(self: FollowerSession[Any, Any], most: int | None = None) -> SessionRequest[Any, Any]:
        told = right(self, most)
        for key in self._sent:
            del self._untold[key]
        return told

    patch.setattr(FollowerSession, "request", request)


@mutant("K210", "forget the changes that do not fit into a request")
def _(patch: Patch) -> None:
    right = FollowerSession.request

    def request(self: FollowerSession[Any, Any], most: int | None = None) -> SessionRequest[Any, Any]:
        told = right(self, most)
        self._untold = dict(self._sent)
        return told

    patch.setattr(FollowerSession, "request", request)


@mutant("K95", "continue a session after an answer of any epoch")
def _(patch: Patch) -> None:
    right = LeaderSession.accept

    def accept(self: LeaderSession[Any, Any], request: SessionRequest[Any, Any]) -> Collection[Any] | None:
        return right(self, request._replace(session_epoch=self.answers))

    patch.setattr(LeaderSession, "accept", accept)


@mutant("K96", "answer a new question as if it were the previous one")
def _(patch: Patch) -> None:
    right = LeaderSession.accept

    def accept(self: LeaderSession[Any, Any], request: SessionRequest[Any, Any]) -> Collection[Any] | None:
        before = {key: asked for key, asked in self.open.items() if key in request.questions}
        changed = right(self, request)
        if changed is not None:
            self.open.update(before)
        return changed

    patch.setattr(LeaderSession, "accept", accept)


@mutant("K92", "leave a withdrawn question open")
def _(patch: Patch) -> None:
    patch.setattr(FollowerSession, "withdraw", lambda self, key: None)


@mutant("K99", "let any connection that names a session continue it")
def _(patch: Patch) -> None:
    def find(
        self: SessionCache[Any, Any], session_id: int, now: float, owner: object = None
    ) -> LeaderSession[Any, Any] | ErrorCode:
        session = self._sessions.get(session_id)
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND if session is None else session

    patch.setattr(SessionCache, "find", find)


@mutant("K110", "drop the news of partitions that did not fit into an answer")
def _(patch: Patch) -> None:
    right = Serving._try_answer

    def try_answer(self: Serving, inquiry: Inquiry, *, final: bool) -> bool:
        answered = right(self, inquiry, final=final)
        if answered:
            inquiry.news.clear()
        return answered

    patch.setattr(Serving, "_try_answer", try_answer)


@mutant("K111", "never read ahead data that is not in memory")
def _(patch: Patch) -> None:
    patch.setattr(Gathering, "_warm", lambda *_: None)


@mutant("K112", "let a client fetch in the name of a node")
def _(patch: Patch) -> None:
    right = Serving.arrived

    def arrived(self: Serving, event: FetchArrived) -> None:
        named = Peer(event.message.replica_id, event.peer.principal)
        right(self, event._replace(peer=named))

    patch.setattr(Serving, "arrived", arrived)


@mutant("K113", "look at nothing again when there is news")
def _(patch: Patch) -> None:
    patch.setattr(Serving, "wake", lambda self, partition: None)


@mutant("K114", "assume that a member that has everything knows the high watermark")
def _(patch: Patch) -> None:
    right = Serving._may_wait

    def may_wait(self: Serving, inquiry: Inquiry, *asked: Any) -> bool:
        waits = right(self, inquiry, *asked)
        if waits:
            inquiry.held.clear()
        return waits

    patch.setattr(Serving, "_may_wait", may_wait)
