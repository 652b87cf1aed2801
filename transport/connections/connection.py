"""Connections: requests and answers over one link, driven by trio."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from .. import _border, registry
from .._payload import POOL
from ..abc import Buffer, Link, Part
from ..errors import (
    ConnectError,
    ConnectionLost,
    ConnectSlowError,
    EndOfLink,
    LinkBroken,
    LinkClosed,
    PeerGoingAway,
    TransportError,
)
from ..frames import Frame, Header, Limits, Status
from ..repeats import limited
from ..requests import Authorise, Identity, OnDone, Response
from ..security import Security
from ._handshake import Introduced, identity_of, introduce, judge_acceptor, make_hello
from ._outgoing import Pending, RequestHandle
from ._turn import turn
from .intake import FREE_BODIES, ReceiveBudget, common_budget
from .request import Request
from .session import Session

log = limited(logging.getLogger("insync.transport"))

Handler = Callable[[Request], None]
"""Called by the reader in the order of arrival. It must not block; it answers now or later."""

_BATCH_BYTES = 256 << 10
_NOW_BYTES = 1 << 20
"""At most this many bytes are sent from where they were queued, if the link takes them: a task switch less."""
_SILENT_TICKS = 3
_UNASKED = ""
_MOST_KINDS = 256
"""Of requests whose verdicts are remembered; a peer may send 65,536, whether or not anybody serves them."""


class _NoGate:
    """Of a link whose connection has ended: it refers to that no more."""

    def admits(self, header: Header) -> bool:
        return False

    async def wait(self) -> None:
        raise LinkClosed("the connection has ended")


_NO_GATE = _NoGate()


class Connection:
    """One connection. Made by `connect` and `serve`; all methods belong to the trio thread."""

    def __init__(
        self,
        link: Link,
        introduced: Introduced,
        handler: Handler | None,
        *,
        lane: str,
        dialer: bool,
        budget: ReceiveBudget | None = None,
        authorise: Authorise | None = None,
    ) -> None:
        hello = introduced.hello
        self.peer = identity_of(
            hello, lane, introduced.method, introduced.name, is_proven=introduced.is_proven
        )
        self._authorise = authorise
        self._verdicts: dict[int, str | None] = {}
        """The verdict on each kind of request that has come."""
        self._refused: set[int] = set()
        """Kinds of which a refusal was logged: who keeps trying does not fill the log."""
        self.url = str(link.remote)
        self.closed = trio.Event()
        self.close_reason: TransportError | None = None
        if not isinstance(link, _border.GuardedLink):
            link = _border.GuardedLink(link, link.remote.scheme)
        self._link, self._inner = link, link.inner
        self._handler = handler
        self._limits = introduced.limits
        self._first = introduced.frames
        name = f"{self.peer} at {link.remote}"
        self._name = name
        self._session = Session(
            dialer=dialer,
            limits=introduced.limits,
            peer=name,
            on_request=self._serve,
            budget=budget or common_budget(),
            credit=hello.window,
            on_release=self.queued,
        )
        # Before a frame is read: the gate of the handshake lets no large payload in.
        link.set_gate(self)
        self._scope = trio.CancelScope()
        self._alarm = trio.CancelScope()
        self._alarm_at = math.inf
        """Its deadline: to ask it costs a call."""
        self._sleeping_writer: trio.lowlevel.Task | None = None
        self._turn = turn()
        self._now = trio.lowlevel.current_clock().current_time
        self._relieved: trio.Event | None = None
        """Somebody waits until it is not congested any more."""
        self._idle: trio.Event | None = None

    @property
    def hands_over_files(self) -> bool:
        """Whether file ranges come by descriptor, not by bytes: then it costs little to ask for more at a time."""
        return self._link.caps.ranges == "handover"

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent. While they are many the peer asks, and does not take what it is answered."""
        return self._session.outbox_bytes

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked, either way, and nothing waits to be sent."""
        return self._session.is_idle and not self._session.outbox

    def __repr__(self) -> str:
        return f"<Connection to {self._name}{', closed' if self.closed.is_set() else ''}>"

    # Asking.

    async def request(
        self,
        kind: int,
        body: Buffer = b"",
        parts: Sequence[Part] = (),
        *,
        timeout: float,
        max_response: int = 64 << 20,
    ) -> Response:
        """Ask and wait for the answer. `parts` must not change until then.

        `timeout` is in seconds (inf: none), `max_response` in bytes of payload. Cancelling withdraws the request.

        Raises:
          DeadlineExceeded: No answer in time.
          RemoteError: The peer answered with an error.
          ConnectionLost, PeerGoingAway, LinkClosed: The connection ended, see `delivery`.
          Overloaded, FrameTooLargeError: Not sent.
        """
        task = trio.lowlevel.current_task()
        answers: list[Response | TransportError] = []
        waiting = False

        def done(answer: Response | TransportError) -> None:
            answers.append(answer)
            # Refused at once, a request is answered while its task still runs: trio reschedules no running task.
            if waiting:
                trio.lowlevel.reschedule(task)

        # First: a caller that is cancelled already sends nothing.
        await trio.lowlevel.checkpoint_if_cancelled()
        handle = self.request_nowait(
            kind, body, parts, timeout=timeout, max_response=max_response, on_done=done
        )

        def abort(_: Callable[[], object]) -> trio.lowlevel.Abort:
            # Withdrawn: a late answer must not reschedule a task that has gone on.
            handle.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        if answers:
            # Refused at once; a caller that tries again at once must not keep all others from running.
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            waiting = True
            await trio.lowlevel.wait_task_rescheduled(abort)
        answer = answers[0]
        if isinstance(answer, TransportError):
            raise answer
        return answer

    def request_nowait(
        self,
        kind: int,
        body: Buffer = b"",
        parts: Sequence[Part] = (),
        *,
        timeout: float,
        on_done: OnDone,
        max_response: int = 64 << 20,
    ) -> RequestHandle:
        """Ask without waiting. `on_done` is called exactly once, by a task of the connection, unless cancelled.

        Also what cannot be sent at all comes by `on_done`, before this returns. ValueError for parts that are no
        contiguous memory.
        """
        now = self._now()
        deadline = now + timeout
        try:
            pending = self._session.request(
                kind, body, parts, deadline=deadline, now=now, max_response=max_response, on_done=on_done
            )
        except TransportError as error:
            on_done(error)
            return RequestHandle(self.withdraw, Pending(None, math.inf, kind, b"", (), 0))
        # `_watch` sleeps until `_alarm_at`, and finds later deadlines when it wakes. An earlier one moves it.
        if deadline < self._alarm_at:
            self._alarm.deadline = self._alarm_at = deadline
        if self._turn.is_open:
            self._turn.note(self)
        elif self._session.is_alone:
            self.flush()
        else:
            # Others are under way, and more may be asked before the writer runs: it gathers them into one write.
            self._wake_writer()
        return RequestHandle(self.withdraw, pending)

    def withdraw(self, pending: Pending) -> None:
        """Cancel a request; see `RequestHandle.cancel`."""
        self._session.cancel(pending)
        self.queued()

    # Ending.

    async def aclose(self, grace: float = 1.0) -> None:
        """Take no more requests, let those under way finish for `grace` seconds, then close. Idempotent."""
        try:
            if not self.closed.is_set():
                # Before the wait: the peer asks nothing more, and learns which of its requests never began.
                self._session.go_away()
                self._wake_writer()
                # A peer that is lost meanwhile needs no farewell.
                with trio.move_on_after(grace), suppress(TransportError):
                    await self._farewell()
        finally:
            self._end(self._closed_here())
        await trio.lowlevel.checkpoint()

    def abort(self, reason: str) -> None:
        """End it at once; what is queued is not sent. Requests under way get ConnectionLost a moment later."""
        self._end(ConnectionLost(f"the connection to {self._name} was ended here: {reason}", peer=self.url))

    def _closed_here(self) -> LinkClosed:
        return LinkClosed(f"the connection to {self._name} was closed here", peer=self.url)

    async def _farewell(self) -> None:
        while not self.is_idle or self._link.has_rest:
            # No pause between the look and the wait: `_check_idle` finds this event.
            self._idle = trio.Event()
            await self._idle.wait()
        if self._link.caps.half_close:
            # `_end` resets the link, and answers that the peer has not read would be lost: the peer ends first.
            await self._link.send_eof()
            await self.closed.wait()
        else:
            await self._link.aclose()

    def _end(self, error: TransportError) -> None:
        if not self.closed.is_set():
            # Its traceback refers to what was being received when it was raised.
            self.close_reason = error.with_traceback(None)
            self.closed.set()
            # `run` ends the session a moment later: its callbacks must not run amid the work of the caller, which
            # may flush for others.
            self._link.abort()
            self._scope.cancel()

    # Running.

    async def run(self) -> None:
        """Drive the connection until it ends; its errors are in `close_reason`."""
        POOL.entered()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guard, self._write)
                    nursery.start_soon(self._guard, self._watch)
                    nursery.start_soon(self._read)
        finally:
            # A cancelled nursery gives no reason for the end. After any other end this changes nothing.
            self._end(
                LinkClosed(f"the connection to {self._name} was closed with its nursery", peer=self.url)
            )
            assert self.close_reason is not None
            # Before `POOL.left`: callbacks release payloads, and the pool keeps nothing behind the last connection.
            self._session.end(self.close_reason)
            self._first = []
            self._link.set_gate(_NO_GATE)
            POOL.left()
            # Last: `_farewell` finds a session that has ended.
            if self._idle is not None:
                self._idle.set()

    async def _guard(self, run: Callable[[], object]) -> None:
        try:
            await run()  # type: ignore[misc]
        except TransportError as error:
            self._fail(error)

    def _fail(self, error: TransportError) -> None:
        if isinstance(error, EndOfLink | LinkBroken):
            self._end(self._lost(error))
            return
        if isinstance(error, LinkClosed):
            # By us, or by the plugin's own doing: nobody needs to hear of it.
            self._end(self._closed_here())
            return
        if not self.closed.is_set():
            log.warning("the connection to %s is ended: %s", self._name, error)
        self._end(error)

    def _lost(self, error: TransportError) -> TransportError:
        # After our GOAWAY the end of the link is the answer to it, and no loss.
        if self._session.goes:
            return self._closed_here()
        if self._session.peer_goes:
            # Its GOAWAY has ended those that it had not begun. The rest may have been carried out.
            text = f"{self._name} has closed the connection"
            return PeerGoingAway(text, peer=self.url, delivery="maybe")
        return ConnectionLost(f"the connection to {self._name} is lost: {error}", peer=self.url)

    async def _read(self) -> None:
        # Frames right behind the handshake come first.
        frames, self._first = self._first, []
        try:
            # Without `_guard`, and the link's: each coroutine above one that waits runs when it goes on.
            receive = self._inner.recv_many
            while True:
                if frames:
                    self._take(frames)
                # Unread bytes fill the buffers of the system, and so hold the peer up.
                while self._is_congested():
                    self._relieved = trio.Event()
                    await self._relieved.wait()
                self._relieved = None
                try:
                    frames = await receive()
                except TransportError:
                    raise
                except BaseException as error:
                    raise self._link.broken("recv", error) from error
        except TransportError as error:
            self._fail(error)

    def _take(self, frames: list[Frame]) -> None:
        """Dispatch frames, then send all that they gave rise to."""
        now = self._now()
        session = self._session
        # One turn: answers to all of these frames leave at its end, by one write for each connection.
        with self._turn:
            for frame in frames:
                session.receive(frame, now)
            # The session notes nobody for its own frames: PONGs, ends of cancelled requests, requests that waited.
            if session.outbox:
                self._turn.note(self)
        if self._idle is not None:
            self._check_idle()

    # The link asks before it takes a large payload.

    def admits(self, header: Header) -> bool:
        """See `Gate.admits`."""
        return self._session.admits(header)

    async def wait(self) -> None:
        """See `Gate.wait`."""
        await self._session.intake.wait()

    def _serve(self, request: Request) -> None:
        # Before the handler, whose answer is sent by it.
        request.connection = self
        if self._handler is None:
            request.payload.release()
            self._session.fail(request, Status.NO_HANDLER, "no requests are served on this connection")
            return
        # None permits the kind: for nearly every request one look-up is all.
        if self._verdicts.get(request.kind, _UNASKED) is not None and not self._may(request):
            return
        try:
            self._handler(request)
        except Exception as error:
            log.exception("the handler of request %d from %s failed", request.kind, self._name)
            # The handler may have answered before it failed, and an answer is given once.
            if request.corr in self._session.unanswered:
                self._session.fail(request, Status.INTERNAL, f"{type(error).__name__}: {error}")

    def _may(self, request: Request) -> bool:
        kind = request.kind
        refusal = self._verdicts.get(kind, _UNASKED)
        if refusal == _UNASKED:
            refusal = None if self._authorise is None else self._authorise(self.peer, kind)
            if len(self._verdicts) < _MOST_KINDS:
                self._verdicts[kind] = refusal
        if refusal is None:
            return True
        request.payload.release()
        self.refuse(request, refusal)
        return False

    def refuse(self, request: Request, detail: str) -> None:
        """See `Request.refuse`."""
        if request.kind not in self._refused and len(self._refused) < _MOST_KINDS:
            self._refused.add(request.kind)
            log.warning("%s is not authorised: %s", self._name, detail)
        self._session.refuse(request, detail)
        self.queued()

    def _is_congested(self) -> bool:
        session, limits, intake = self._session, self._limits, self._session.intake
        return (
            # Not `>=`: a peer that keeps to the limit is always read. Its answers and CANCELs come this way, too.
            len(session.unanswered) > limits.max_in_flight
            # In this order: most connections hold nothing, and need not ask the budget.
            or ((intake.held > 0 or intake.bodies > FREE_BODIES) and intake.is_congested)
            or session.outbox_bytes > limits.send_budget_bytes
        )

    # Writing.

    def queued(self) -> None:
        """Something may be in the outbox: it is sent at the end of the turn that is under way, or soon."""
        if self._turn.is_open:
            self._turn.note(self)
            return
        self._check_relieved()
        if self._session.outbox:
            self._wake_writer()

    def flush(self) -> None:
        """Send what is queued from here, if it is small and nothing else is being sent: a task switch less."""
        session = self._session
        # Payloads that a turn releases only note this connection (`queued`): its reader may go on by them.
        if self._relieved is not None:
            self._check_relieved()
        if not session.outbox:
            return
        # A writer that is awake may be amid frames that come before these, and takes these next.
        if self._sleeping_writer is None or session.outbox_bytes > _NOW_BYTES:
            self._wake_writer()
            return
        pieces: list[Part] = []
        try:
            try:
                # Inside of the `try`: a part that was released meanwhile raises here.
                for head, parts, _, is_small in session.outbox:
                    if is_small:
                        # One piece on its way out: more are looked at one by one, by everybody there.
                        pieces.append(b"".join((head, *parts)))  # type: ignore[arg-type]
                    else:
                        pieces.append(head)
                        pieces += parts
                taken = self._inner.send_now(pieces)
            except TransportError:
                raise
            except BaseException as error:
                raise self._link.broken("send_now", error) from error
        except TransportError as error:
            # Whoever flushes may be about something else: it ends with this connection.
            self._fail(error)
            return
        # The link has all of it: a rest leaves before any later frame, by the writer.
        if taken:
            session.outbox.clear()
            session.outbox_bytes = 0
        if not taken or self._inner.has_rest:
            self._wake_writer()
        elif self._idle is not None:
            self._check_idle()

    def _wake_writer(self) -> None:
        # Taken out at once: trio reschedules a task once for each wait.
        task, self._sleeping_writer = self._sleeping_writer, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def _write(self) -> None:
        session, link = self._session, self._link
        while True:
            # No pause between this look and the sleep: a frame that is queued later finds the writer asleep.
            if not session.outbox and not link.has_rest:
                await self._sleep_until_queued()
                continue
            frames = self._next_batch()
            await link.send_many(frames)
            # After the send: `_farewell` ends this direction, and these frames must be out.
            self._check_idle()
            self._check_relieved()

    async def _sleep_until_queued(self) -> None:
        self._sleeping_writer = trio.lowlevel.current_task()

        def abort(_: Callable[[], object]) -> trio.lowlevel.Abort:
            # A frame that is queued before this task runs must not reschedule it a second time.
            self._sleeping_writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _next_batch(self) -> list[tuple[bytes, Sequence[Part]]]:
        session = self._session
        batch: list[tuple[bytes, Sequence[Part]]] = []
        size = 0
        while session.outbox and size < _BATCH_BYTES:
            frame = session.outbox.popleft()
            session.outbox_bytes -= frame.nbytes
            size += frame.nbytes
            batch.append((frame.head, frame.parts))
        return batch

    def _check_idle(self) -> None:
        if self._idle is not None and self.is_idle:
            self._idle.set()

    def _check_relieved(self) -> None:
        if self._relieved is not None and not self._is_congested():
            self._relieved.set()

    # Time.

    async def _watch(self) -> None:
        """Requests end at their deadlines; a silent peer is asked for a sign of life, then given up."""
        interval = self._limits.keepalive
        # -1 is no number of bytes: the first tick is never a silent one.
        seen, sent, silent = -1, 0, 0
        next_tick = trio.current_time() + interval
        while True:
            self._alarm_at = min(self._session.next_deadline, next_tick)
            with trio.CancelScope(deadline=self._alarm_at) as self._alarm:
                await trio.sleep_forever()
            now = trio.current_time()
            self._session.expire(now)
            if now >= next_tick:
                next_tick = now + interval
                # Ticks are counted, not seconds: a process that was stopped itself hears its peer before it judges.
                # A large frame that the peer takes slowly is a sign of life; what goes out at once is none.
                takes = self._sleeping_writer is None and self._link.sent != sent
                # While nothing is read here, the silence of the peer is our own doing.
                deaf = self._is_congested() or self._session.intake.is_held_back
                silent = 0 if deaf or takes or self._link.received != seen else silent + 1
                if self._link.received == seen:
                    self._link.trim()
                POOL.tidy(now)
                seen, sent = self._link.received, self._link.sent
                self._ask_for_life(silent)
                if deaf:
                    # Nor do we hear the peer ask for a sign of life.
                    self._session.ping()
            # CANCELs of expired requests and PINGs may have been queued.
            self._wake_writer()
            self._check_idle()
            # Others make room in the common budget by their releases, and then nothing else wakes this reader.
            self._check_relieved()

    def _ask_for_life(self, silent: int) -> None:
        if silent >= _SILENT_TICKS:
            seconds = silent * self._limits.keepalive
            text = f"{self._name} has given no sign of life for {seconds:.1f} s"
            self._end(ConnectionLost(text, peer=self.url))
        elif silent:
            self._session.ping()


_SAID_NOTHING = (
    "; it was closed without a word, as a node that is too busy does it, and as a broker of Kafka does it: is this "
    "the tcp:// address of a node?"
)


async def connect(
    url: str,
    *,
    identity: Identity,
    expect_node: int | None = None,
    lane: str = "data",
    handler: Handler | None = None,
    nursery: trio.Nursery,
    timeout: float = 5.0,
    limits: Limits | None = None,
    security: Security | None = None,
    budget: ReceiveBudget | None = None,
) -> Connection:
    """Connect and shake hands. The connection lives in `nursery`, and ends with it.

    `expect_node`: refuse any other node. `handler`: serve the peer's requests; without one they get an error.
    `security`: what to prove, and to ask for; without it only addresses of this machine are dialled.
    `budget`: for the payloads of the peer's requests; without it all connections of this event loop share one.

    Raises:
      ConnectError: Nobody answers there within `timeout` seconds; ConnectSlowError if somebody listens.
      WrongPeerError: Another cluster or node, or our incarnation has been replaced; NotRegisteredError if it does
        not know us as the node that we say we are.
      VersionMismatchError, ProtocolError: We do not fit together.
      AuthError: One side does not prove what the other asks for; InsecureAddressError if nobody would have to.
      UnknownSchemeError: No transport for this URL is installed.
      ValueError: The URL is malformed.
    """
    security = security or Security()
    proves = security.secret is not None
    mine = make_hello(
        identity,
        lane,
        limits or Limits(),
        expect_node,
        proves=proves,
        proves_node=security.node_secret is not None,
    )
    transport, endpoint = registry.resolve(url)
    security.check_address(transport, endpoint)
    transport = transport.secured(security)
    is_dialled = False
    with trio.move_on_after(timeout):
        link = await _border.dial(transport, endpoint)
        # From here on somebody is known to listen: clients have more patience then (`ConnectSlowError`).
        is_dialled = True
        try:
            introduced = await introduce(
                link,
                mine,
                judge_acceptor,
                dialer=True,
                secrets=security.secrets,
                node_secrets=security.node_secrets,
            )
        except (EndOfLink, LinkBroken) as error:
            hint = "" if link.received else _SAID_NOTHING
            link.abort()
            raise ConnectSlowError(
                f"{url}: the connection ended during the handshake: {error}{hint}", peer=url
            ) from error
        except BaseException:
            # Also for a handshake that is cancelled: its link must not stay open.
            link.abort()
            raise
        connection = Connection(link, introduced, handler, lane=lane, dialer=True, budget=budget)
        nursery.start_soon(connection.run, name=f"connection to {connection.peer}")
        return connection
    if is_dialled:
        raise ConnectSlowError(f"{url}: no handshake within {timeout:g} s: it may be too busy", peer=url)
    raise ConnectError(f"{url}: no answer within {timeout:g} s", peer=url)


__all__ = ["Connection", "Handler", "connect"]
