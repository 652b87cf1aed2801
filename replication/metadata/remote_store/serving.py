"""A metadata store served to other processes over any transport; `remote+SCHEME://` reaches it."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from ....transport import (
    Authorise,
    Connection,
    Identity,
    PeerIdentity,
    ProtocolError,
    Request,
    Security,
    Serving,
    TransportError,
    serve,
)
from ..._places import place_of
from .._pace import CountedLog
from .._transaction import check_timeout
from ..abc import MetadataStore, Session
from ..errors import (
    InvalidTransactionError,
    MetadataError,
    SessionExpiredError,
    StoreClosedError,
    StoreCorruptError,
    StoreUnavailableError,
    StoreUnsupportedError,
    StoreVersionError,
    TransactionTooLargeError,
)
from . import _messages as m
from ._cursors import Cursors, check_reads

_RETRY_SECONDS = 0.05
_MOST_WATCHES = 1_000
_MOST_SESSIONS = 10_000
_MOST_READINGS = 8
"""Answers with many entries that are being made; more wait for their turn. Each holds a whole listing."""

STORE_KINDS = frozenset(map(int, m.Kind))
"""The kinds of requests that a served store answers, for rules of who may send them."""

log = logging.getLogger("insync.metadata")


def nodes_only(peer: PeerIdentity, kind: int) -> str | None:
    """The rule of a served store without another: who may write there rules the cluster, so it is for nodes."""
    if peer.node_id >= 0:
        return None
    return (
        f"{peer.principal} may not use the metadata store: only nodes may; a client needs a rule with store in "
        "`allow`"
    )


async def serve_store(
    store: MetadataStore,
    url: str,
    *,
    identity: Identity | None = None,
    security: Security | None = None,
    authorise: Authorise = nodes_only,
    demands_proof: bool = False,
    task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an open `store` at `url` until cancelled. Start it by `nursery.start`, which tells the real endpoints.

    `security`: what to prove, and to ask of peers; without it only addresses of this machine are listened on.
    `authorise`: who may ask for what, see `insync.transport.serve`; the kinds are `STORE_KINDS`.
    `demands_proof`: let nobody in as a node who has not proved to be one (`PeerIdentity.is_proven`).

    Sessions live while their owners renew them here, and end when this ends: who held one opens another. For data
    that outlives this process let `store` be a `SqliteStore`.

    Raises:
      TransportError: As `insync.transport.serve`: the address is taken, or insecure.
      OSError: The system refuses for another reason.
      ValueError: The URL is malformed.
    """
    refused: Exception | None = None
    async with trio.open_nursery() as nursery:
        server = _Server(store, nursery)
        try:
            serving: Serving = await nursery.start(
                _listen, url, server, identity or Identity(), security, authorise, demands_proof
            )
        except (OSError, ValueError, TransportError) as error:
            refused = error  # raised below: out of the nursery it would come in a group
            nursery.cancel_scope.cancel()
        else:
            task_status.started(serving)
    if refused is not None:
        raise refused


async def _claims(demands_proof: bool, peer: PeerIdentity) -> str | None:
    """Nodes come before they are registered, and in no incarnation: nobody outdoes another by a higher one."""
    if peer.incarnation:
        return f"node {peer.node_id} claims incarnation {peer.incarnation}, but a node has none when "
        "it opens the store"
    if demands_proof and not peer.is_proven:
        return unproven(peer)
    return None


def unproven(peer: PeerIdentity) -> str:
    """The words for a peer that says that it is a node, where that is not believed."""
    return (
        f"nothing proves that this is node {peer.node_id}, and clients have rules here (allow): give all nodes "
        "the same node_secret_file, or certificates (tls://)"
    )


async def _listen(
    url: str,
    server: _Server,
    identity: Identity,
    security: Security | None,
    authorise: Authorise,
    demands_proof: bool,
    *,
    task_status: trio.TaskStatus[Serving],
) -> None:
    await serve(
        url,
        server.serve,
        identity=identity,
        security=security,
        authorise=authorise,
        claims=partial(_claims, demands_proof),
        on_disconnect=server.disconnected,
        task_status=task_status,
    )


@attrs.define(eq=False)
class _Served:
    """A session of a remote owner, and the session of the store behind it that stands for it."""

    inner: Session
    alive_until: float
    over: bool = False

    def renew(self) -> None:
        # From the arrival: the owner counts from when it sent the renewal (`RemoteSession`), and so gives up first.
        self.alive_until = trio.current_time() + self.inner.timeout_ms / 1000


@attrs.define(eq=False)
class _Watched:
    """A watch of a connection. Its task answers one request after the other."""

    requests: trio.MemorySendChannel[Request]
    scope: trio.CancelScope


class _Server:
    """Answers requests, each in a task of its own."""

    def __init__(self, store: MetadataStore, nursery: trio.Nursery) -> None:
        self._store = store
        self._nursery = nursery
        self._sessions: dict[bytes, _Served] = {}
        self._opening = 0
        """Sessions that the store behind is making."""
        self._watches: dict[tuple[Connection, int], _Watched] = {}
        self._cursors = Cursors()
        self._readings = trio.Semaphore(_MOST_READINGS)
        self._told = CountedLog(log)
        self._by_kind: dict[int, Callable[[Request], Awaitable[bytes]]] = {
            m.Kind.GET: self._get,
            m.Kind.LIST: self._list,
            m.Kind.CHANGES: self._changes,
            m.Kind.MORE: self._more,
            m.Kind.DESCRIBE: self._describe,
            m.Kind.RAISE_REVISION: self._raise_revision,
            m.Kind.COMMIT: self._commit,
            m.Kind.OPEN_SESSION: self._open_session,
            m.Kind.RENEW_SESSION: self._renew_session,
            m.Kind.CLOSE_SESSION: self._close_session,
        }

    def serve(self, request: Request) -> None:
        # No request of a store has a payload: one that comes must not keep its room in the budget.
        request.payload.release()
        answer = self._by_kind.get(request.kind)
        if request.kind == m.Kind.WATCH:
            # At once, so that the requests of a watch keep their order. Its own task answers them.
            self._watch(request)
        elif answer is None:
            request.fail(m.Failure.INVALID, f"a metadata store has no request of kind {request.kind}")
        else:
            # A task for each: a slow commit must not hold up renewals that come behind it on the same connection.
            self._nursery.start_soon(self._answer, request, answer)

    async def _answer(self, request: Request, answer: Callable[[Request], Awaitable[bytes]]) -> None:
        # What the requester has given up must not take effect long after it has read what came of it.
        with trio.CancelScope(deadline=request.deadline) as scope:
            # Called at once if the request was withdrawn before this task ran.
            request.on_cancel(scope.cancel)
            try:
                request.reply(await answer(request))
            except (MetadataError, ProtocolError) as error:
                request.fail(_failure(error), str(error))
            except Exception as error:  # noqa: BLE001 - of a store that is not behind `open_store`
                # FAILED and not UNAVAILABLE: a commit may have been carried out before its store raised. Its
                # sender takes the outcome for unknown.
                reason = f"{type(error).__name__}: {error}{place_of(error)}"
                self._told.error(reason, f"the served metadata store failed: {reason}")
                request.fail(m.Failure.FAILED, reason)

    async def _get(self, request: Request) -> bytes:
        read = await self._store.get(m.decode(request.body, m.Key).text)
        # After the read: many that came together would all pass a look before it. From here to the reply there is
        # no pause.
        check_reads(request.connection)
        return m.encode(m.Found.of_read(read))

    async def _list(self, request: Request) -> bytes:
        prefix = m.decode(request.body, m.Key).text
        async with self._readings:
            found = m.Found.of_listing(await self._store.list(prefix))
            return self._cursors.first_page(request.connection, found)

    async def _changes(self, request: Request) -> bytes:
        asked = m.decode(request.body, m.Since)
        async with self._readings:
            found = m.Found.of_changes(await self._store.changes(asked.prefix, asked.revision))
            return self._cursors.first_page(request.connection, found)

    async def _more(self, request: Request) -> bytes:
        # No turn of `_readings`: its entries are in memory already.
        return self._cursors.next_page(request.connection, m.decode(request.body, m.Cursor).cursor)

    async def _describe(self, request: Request) -> bytes:
        m.decode(request.body, m.Nothing)
        return m.encode(m.Described.of(self._store.limits))

    async def _raise_revision(self, request: Request) -> bytes:
        asked = m.decode(request.body, m.RaiseRevision)
        revision = await self._store.raise_revision(asked.floor, store_id=asked.store_id)
        return m.encode(m.Revision(revision))

    async def _commit(self, request: Request) -> bytes:
        asked = m.decode(request.body, m.Commit)
        session = None if asked.session is None else self._session(asked.session).inner
        # The store behind checks the session once more, in the transaction: it may end while this waits.
        outcome = await self._store.commit(
            [each.compare() for each in asked.compares],
            [each.operation() for each in asked.operations],
            session=session,
        )
        return m.encode(m.Ended.of(outcome))

    # sessions

    def _session(self, handle: bytes) -> _Served:
        served = self._sessions.get(handle)
        # `over` comes before the end in the store behind, which may take time and refuses nothing until then.
        if served is None or served.over or served.inner.expired.is_set():
            raise SessionExpiredError(0 if served is None else served.inner.id)
        return served

    async def _open_session(self, request: Request) -> bytes:
        timeout_ms = m.decode(request.body, m.OpenSession).timeout_ms
        check_timeout(timeout_ms)
        # With those that are being made: requests that come together would all pass a look at the others alone.
        if len(self._sessions) + self._opening >= _MOST_SESSIONS:
            raise StoreUnavailableError(
                f"all {_MOST_SESSIONS} sessions of the served store are in use: close some, or try again "
                "when some have ended"
            )
        self._opening += 1
        try:
            inner = await self._store.open_session(timeout_ms)
        finally:
            # Also after a failure: the place would be lost until the server ends.
            self._opening -= 1
        # Not the id, which every reader sees in ephemeral entries: by it anybody could renew or end the session.
        handle = os.urandom(16)
        served = self._sessions[handle] = _Served(inner, 0.0)
        served.renew()
        # The answer may be lost: an owner that never learns the handle renews nothing, and its session ends.
        self._nursery.start_soon(self._keep, handle, served)
        return m.encode(m.Opened(inner.id, handle, inner.timeout_ms))

    async def _renew_session(self, request: Request) -> bytes:
        self._session(m.decode(request.body, m.Handle).handle).renew()
        return b""

    async def _close_session(self, request: Request) -> bytes:
        handle = m.decode(request.body, m.Handle).handle
        served = self._sessions.get(handle)
        # `_keep` takes it out. A handle that is not here any more is no error: a second close does nothing.
        if served is not None:
            await served.inner.close()
        return b""

    async def _keep(self, handle: bytes, served: _Served) -> None:
        """End the session when nobody renews it; the store behind would keep it as long as this process runs."""
        while not served.inner.expired.is_set():
            with trio.move_on_at(served.alive_until):
                await served.inner.expired.wait()
            # A renewal has moved `alive_until` since: the scope had the former one.
            if trio.current_time() < served.alive_until or served.inner.expired.is_set():
                continue
            # Before the close, which may fail or take long: no renewal may bring the session back meanwhile.
            served.over = True
            try:
                await served.inner.close()
            except Exception as error:  # noqa: BLE001 - the session must end all the same, so it is tried again
                log.warning(
                    "session %d has expired, but cannot be ended, retrying: %s", served.inner.id, error
                )
                await trio.sleep(_RETRY_SECONDS)
        # Only now: a session that the store behind still has counts in `_MOST_SESSIONS`.
        del self._sessions[handle]

    # watches

    def _watch(self, request: Request) -> None:
        try:
            asked = m.decode(request.body, m.WatchNext)
        except ProtocolError as error:
            request.fail(m.Failure.INVALID, str(error))
            return
        key = request.connection, asked.number
        # No pause from here to `send_nowait`: two requests of one number must not begin two watches.
        watched = self._watches.get(key)
        if watched is None:
            if sum(connection is request.connection for connection, _ in self._watches) >= _MOST_WATCHES:
                request.fail(m.Failure.INVALID, f"a connection may watch {_MOST_WATCHES} prefixes")
                return
            # Room for one: the next request may come before the task is back at the channel from its last reply.
            send, receive = trio.open_memory_channel[Request](1)
            watched = self._watches[key] = _Watched(send, trio.CancelScope())
            self._nursery.start_soon(self._follow, key, asked.prefix, watched, receive)
        # Who gives up waiting leaves the watch.
        request.on_cancel(watched.scope.cancel)
        try:
            watched.requests.send_nowait(request)
        except trio.WouldBlock:
            request.fail(m.Failure.INVALID, "the former event of this watch is still being waited for")

    async def _follow(
        self,
        key: tuple[Connection, int],
        prefix: str,
        watched: _Watched,
        requests: trio.MemoryReceiveChannel[Request],
    ) -> None:
        request: Request | None = None
        try:
            with watched.scope:
                async with self._store.watch(prefix) as watch:
                    async for request in requests:
                        request.reply(m.encode(m.Event.of(await watch.__anext__())))
                        # An error from here on is no answer to this one, which has its reply.
                        request = None
        except Exception as error:  # noqa: BLE001 - whatever the store's watch raises, the watcher begins again
            # If the store refuses the watch itself, the first request still lies in the channel: `_watch` put it
            # there before this task ran.
            waiting = request or await requests.receive()
            waiting.fail(_failure(error), str(error))
        finally:
            # Also after an error: the watch counts in `_MOST_WATCHES`, and its number may begin another one.
            del self._watches[key]

    def disconnected(self, connection: Connection) -> None:
        # Sessions stay: they live by their renewals, and their owners connect again after a loss.
        self._cursors.forget(connection)
        for (of, _), watched in self._watches.items():
            if of is connection:
                # No more than that: the task takes its watch out, which must not happen amid this loop.
                watched.scope.cancel()


def _failure(error: Exception) -> m.Failure:
    match error:
        case SessionExpiredError():
            return m.Failure.SESSION_EXPIRED
        # Before `InvalidTransactionError`, from which it derives.
        case TransactionTooLargeError():
            return m.Failure.TOO_LARGE
        case StoreUnsupportedError():
            return m.Failure.UNSUPPORTED
        case InvalidTransactionError() | ProtocolError():
            return m.Failure.INVALID
        case StoreCorruptError() | StoreVersionError():
            return m.Failure.CORRUPT
        case StoreClosedError():
            return m.Failure.CLOSED
    return m.Failure.UNAVAILABLE
