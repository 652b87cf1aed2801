"""Requests on a connection as a machine without I/O: correlation, deadlines, cancelling, going away.

Frames come in by `receive`, times by arguments; frames to send come out in `outbox`. Every request that was sent
gets exactly one REPLY or ERROR (also when it was cancelled), so both sides agree on how many are unanswered.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence

from ..abc import Buffer, Part
from ..errors import (
    DeadlineExceeded,
    Delivery,
    FrameTooLargeError,
    LinkClosed,
    NotAuthorisedError,
    Overloaded,
    PeerGoingAway,
    ProtocolError,
    RemoteError,
    TransportError,
)
from ..frames import LARGE_BODY, Frame, FrameType, Header, Limits, Status, encode_header
from ..repeats import limited
from ..requests import OnDone, Response
from ._outgoing import Outgoing, Pending, in_memory, payload_of
from .intake import Intake, ReceiveBudget, has_credit
from .request import Request

log = limited(logging.getLogger("insync.transport"))

_IGNORED_FROM = 128
_SMALL = 4 << 10
"""Bytes of a payload that may be copied behind its head."""
_FEW = 64
"""The most deadlines of done requests that may be kept, beyond one for each open request."""
_new = tuple.__new__
"""Makes a named tuple without the call of Python that its class would cost."""
_REPLY, _REQUEST = int(FrameType.REPLY), int(FrameType.REQUEST)
"""As plain numbers: looking an enumeration's members up costs each frame a good part of a microsecond."""


class Session:
    """One side of a connection after the handshake. `on_request` gets what the peer asks for."""

    def __init__(
        self,
        *,
        dialer: bool,
        limits: Limits,
        peer: str,
        on_request: Callable[[Request], None],
        budget: ReceiveBudget | None = None,
        credit: int | None = None,
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = limits
        self.intake = Intake(
            budget or ReceiveBudget(),
            window=limits.window_bytes,
            knows_credit=credit is not None,
            on_credit=self._return_credit,
            on_release=on_release,
        )
        self._credit, self._credit_used = credit, 0
        self.outbox: deque[Outgoing] = deque()
        self.outbox_bytes = 0
        self.unanswered: dict[int, Request] = {}
        self.peer_goes = False
        self._peer = peer
        self._on_request = on_request
        self._next_corr = 1 if dialer else 2
        self._peer_parity = 0 if dialer else 1
        self._last_peer_corr = 0
        self._pending: dict[int, Pending] = {}
        self._tombstones: set[int] = set()
        self._waiting: deque[Pending] = deque()
        self._deadlines: list[Pending] = []
        self.goes = False
        self._ended: TransportError | None = None

    # Requests of ours.

    def request(
        self,
        kind: int,
        body: Buffer,
        parts: Sequence[Part],
        *,
        deadline: float,
        now: float,
        max_response: int,
        on_done: OnDone,
    ) -> Pending:
        """Queue a request, to be sent when fewer than `max_in_flight` are unanswered.

        Raises:
          LinkClosed, PeerGoingAway, ConnectionLost: The connection takes no more requests.
          FrameTooLargeError: It is above the limits.
          Overloaded: Too many wait already.
        """
        if self._ended is not None or self.goes or self.peer_goes:
            self._check_open()
        body, limits = bytes(body), self.limits
        size, flags, crc = payload_of(parts) if parts else (0, 0, 0)
        if len(body) > limits.max_body_bytes or size > limits.max_payload_bytes:
            raise self._above_limits(len(body), size)
        most = min(max_response, limits.max_payload_bytes)
        pending = Pending(on_done, deadline, kind, body, parts, most, size, flags, crc)
        if deadline != math.inf:
            self._push_deadline(pending)
        if self._waiting or not self._may_send(pending):
            if len(self._waiting) >= self.limits.max_waiting:
                raise Overloaded(
                    f"{len(self._waiting)} requests to {self._peer} wait for their turn", peer=self._peer
                )
            self._waiting.append(pending)
        else:
            self._send_request(pending, now)
        return pending

    def cancel(self, pending: Pending) -> None:
        """Withdraw a request; its `on_done` is not called. No-op when it is done."""
        if pending.on_done is not None:
            pending.on_done = None
            self._bury(pending)

    @property
    def is_idle(self) -> bool:
        """Nothing is asked, either way."""
        return not self._pending and not self._waiting and not self.unanswered

    @property
    def is_alone(self) -> bool:
        """A single request is under way: it may as well be sent at once."""
        return len(self._pending) == 1

    @property
    def next_deadline(self) -> float:
        while self._deadlines and self._deadlines[0].on_done is None:
            heapq.heappop(self._deadlines)
        return self._deadlines[0].deadline if self._deadlines else math.inf

    def expire(self, now: float) -> None:
        """End the requests whose deadline has come."""
        while self.next_deadline <= now:
            pending = heapq.heappop(self._deadlines)
            self._bury(pending)
            sent = pending.corr != 0
            delivery: Delivery = "maybe" if sent else "never"
            what = "no answer" if sent else "not even sent: too many requests are under way;"
            text = f"request {pending.kind} to {self._peer}: {what} within its timeout"
            self._done(pending, DeadlineExceeded(text, peer=self._peer, delivery=delivery))

    # Requests of the peer.

    def reply(self, request: Request, body: Buffer, parts: Sequence[Part]) -> None:
        """Queue an answer, if anybody waits for it."""
        if not self._answered(request):
            return
        body = bytes(body)
        size, flags, crc = payload_of(parts) if parts else (0, 0, 0)
        most_body = self.limits.max_body_bytes
        most = min(request.max_response, self.limits.max_payload_bytes)
        if len(body) > most_body or size > most:
            too_large = f"a payload of {size} bytes, above {most}"
            if len(body) > most_body:
                too_large = f"a body of {len(body)} bytes, above {most_body}"
            detail = f"the answer to request {request.kind} has {too_large}"
            log.warning("%s: %s", self._peer, detail)
            self._queue_error(request.corr, Status.RESPONSE_TOO_LARGE, detail)
            return
        head = encode_header(
            _REPLY, request.corr, flags=flags, body=body, payload_length=size, payload_crc=crc
        )
        self._queue(head, parts, size, flags)

    def fail(self, request: Request, code: int, detail: str) -> None:
        """Queue an error as the answer, if anybody waits for it."""
        if self._answered(request):
            self._queue_error(request.corr, code, detail)

    def refuse(self, request: Request, detail: str) -> None:
        """Answer that the peer may not ask for this."""
        if self._answered(request):
            self._queue_error(request.corr, Status.NOT_AUTHORISED, detail)

    def go_away(self) -> None:
        """Take no more requests, and tell the peer which was the last."""
        if not self.goes:
            self.goes = True
            self._queue(encode_header(FrameType.GOAWAY, self._last_peer_corr))

    def ping(self) -> None:
        self._queue(encode_header(FrameType.PING, 0))

    # What comes in.

    def receive(self, frame: Frame, now: float) -> None:
        """Take a frame.

        Raises:
          ProtocolError: The peer must not send this, now or ever.
        """
        header = frame.header
        if header.type != _REQUEST:
            if header.type == _REPLY:
                self._receive_reply(frame, now)
            else:
                self._receive_control(frame, now)
            return
        corr = header.corr
        if corr <= self._last_peer_corr or corr & 1 != self._peer_parity:
            raise ProtocolError(f"{self._peer} uses the number {corr} for a request, out of turn")
        payload = self.intake.arrived(frame.payload) if header.payload_length else frame.payload
        request = Request(self, header.kind, header.kind_version, corr, frame.body, payload, now)
        if self.goes:
            payload.release()
            return
        self._last_peer_corr = corr
        request.max_response = header.max_response
        if header.aux:
            request.deadline = now + header.aux / 1000
        self.unanswered[corr] = request
        self.intake.body_arrived(len(frame.body))
        self._on_request(request)

    def admits(self, header: Header) -> bool:
        """See `Gate.admits`."""
        kind = header.type
        if kind == FrameType.REQUEST:
            body = header.body_length if header.body_length > LARGE_BODY else 0
            return self.intake.admits(header.payload_length, body)
        if kind == FrameType.REPLY:
            pending = self._pending.get(header.corr)
            if pending is None and header.corr not in self._tombstones:
                raise self._not_open(header)
            if pending is not None and header.payload_length > pending.max_response:
                raise self._too_long(header)
        elif kind < _IGNORED_FROM:
            raise ProtocolError(
                f"{self._peer} sent a frame of type {kind} with a body of {header.body_length} and a payload of "
                f"{header.payload_length} bytes: such frames have less"
            )
        return True

    def end(self, error: TransportError) -> None:
        """The connection has ended: nothing is sent any more, everybody who waits is told."""
        self._ended = error
        self.intake.end()
        self.outbox.clear()
        self.outbox_bytes = 0
        waiting, self._waiting = self._waiting, deque()
        pending, self._pending = self._pending, {}
        for one in pending.values():
            self._done(one, _copy(error, "maybe"))
        for one in waiting:
            self._done(one, _copy(error, "never"))
        requests, self.unanswered = self.unanswered, {}
        for request in requests.values():
            self.intake.body_done(len(request.body))
            self._withdraw(request)
        # A request that somebody keeps must not keep the connection.
        self._on_request = _nobody

    def _receive_reply(self, frame: Frame, now: float) -> None:
        header = frame.header
        pending = self._pending.pop(header.corr, None)
        if pending is None:
            frame.payload.release()
            self._forget(header)
        elif header.payload_length > pending.max_response:
            frame.payload.release()
            self._pending[header.corr] = pending
            raise self._too_long(header)
        else:
            self._done(pending, Response(frame.body, frame.payload))
        if self._waiting:
            self._send_waiting(now)

    def _receive_error(self, frame: Frame, now: float) -> None:
        pending = self._pending.pop(frame.header.corr, None)
        if pending is None:
            self._forget(frame.header)
        else:
            code, detail = frame.header.aux, frame.body.decode(errors="replace")
            kind = NotAuthorisedError if code == Status.NOT_AUTHORISED else RemoteError
            self._done(pending, kind(code, detail, peer=self._peer))
        self._send_waiting(now)

    def _receive_control(self, frame: Frame, now: float) -> None:
        frame.payload.release()
        header = frame.header
        if header.type == FrameType.ERROR:
            self._receive_error(frame, now)
        elif header.type == FrameType.CANCEL:
            self._receive_cancel(header.corr)
        elif header.type == FrameType.CREDIT:
            self._receive_credit(header.corr, now)
        elif header.type == FrameType.PING:
            self._queue(encode_header(FrameType.PONG, 0, aux=header.aux))
        elif header.type == FrameType.GOAWAY:
            self._receive_goaway(header.corr)
        elif header.type != FrameType.PONG and header.type < _IGNORED_FROM:
            raise ProtocolError(f"{self._peer} sent a frame of type {header.type}, which was not agreed on")

    def _receive_cancel(self, corr: int) -> None:
        request = self.unanswered.pop(corr, None)
        if request is not None:
            self.intake.body_done(len(request.body))
            self._queue_error(corr, Status.CANCELLED, "")
            self._withdraw(request)

    def _receive_credit(self, nbytes: int, now: float) -> None:
        if self._credit is None or nbytes > self._credit_used:
            raise ProtocolError(f"{self._peer} returns credit for {nbytes} bytes that it does not hold")
        self._credit_used -= nbytes
        self._send_waiting(now)

    def _return_credit(self, nbytes: int) -> None:
        if self._ended is None:
            self._queue(encode_header(FrameType.CREDIT, nbytes))

    def _receive_goaway(self, last_corr: int) -> None:
        """Requests that the peer has not begun will get no answer."""
        self.peer_goes = True
        self._tombstones = {corr for corr in self._tombstones if corr <= last_corr}
        unseen = [self._pending.pop(corr) for corr in list(self._pending) if corr > last_corr]
        waiting, self._waiting = self._waiting, deque()
        for pending in (*unseen, *waiting):
            self._done(pending, PeerGoingAway(f"{self._peer} is closing the connection", peer=self._peer))

    # Details.

    def _bury(self, pending: Pending) -> None:
        """Nobody waits for the answer any more, but it will come."""
        if self._pending.pop(pending.corr, None) is not None:
            self._tombstones.add(pending.corr)
            self._queue(encode_header(FrameType.CANCEL, pending.corr))

    def _forget(self, header: Header) -> None:
        try:
            self._tombstones.remove(header.corr)
        except KeyError:
            raise self._not_open(header) from None

    def _not_open(self, header: Header) -> ProtocolError:
        return ProtocolError(f"{self._peer} answers request {header.corr}, which is not open")

    def _too_long(self, header: Header) -> ProtocolError:
        return ProtocolError(
            f"{self._peer} answers with {header.payload_length} bytes, above the request's limit"
        )

    def _may_send(self, pending: Pending) -> bool:
        if len(self._pending) + len(self._tombstones) >= self.limits.max_in_flight:
            return False
        return (
            not pending.size
            or self._credit is None
            or has_credit(self._credit_used, pending.size, self._credit)
        )

    def _send_waiting(self, now: float) -> None:
        while self._waiting and (self._waiting[0].on_done is None or self._may_send(self._waiting[0])):
            pending = self._waiting.popleft()
            if pending.on_done is not None:
                self._send_request(pending, now)

    def _send_request(self, pending: Pending, now: float) -> None:
        pending.corr = corr = self._next_corr
        self._next_corr += 2
        self._pending[corr] = pending
        self._credit_used += pending.size
        remaining = 0
        if pending.deadline != math.inf:
            remaining = min(max(1, int((pending.deadline - now) * 1000)), 0xFFFFFFFF)
        head = encode_header(
            _REQUEST,
            corr,
            kind=pending.kind,
            flags=pending.flags,
            aux=remaining,
            body=pending.body,
            payload_length=pending.size,
            payload_crc=pending.crc,
            max_response=pending.max_response,
        )
        self._queue(head, pending.parts, pending.size, pending.flags)
        pending.body, pending.parts = b"", ()

    def _queue(self, head: bytes, parts: Sequence[Part] = (), size: int = 0, flags: int = 0) -> None:
        """`size`, `flags`: of the payload, as `payload_of` returns them."""
        nbytes = len(head)
        is_small = False
        if flags:
            # No range of a file is among the parts: those have no CRC.
            nbytes += size
            is_small = size <= _SMALL
        elif parts:
            nbytes += in_memory(parts)
        self.outbox.append(_new(Outgoing, (head, parts, nbytes, is_small)))
        self.outbox_bytes += nbytes

    def _queue_error(self, corr: int, code: int, detail: str) -> None:
        body = detail.encode(errors="replace")[: min(4096, self.limits.max_body_bytes)]
        self._queue(encode_header(FrameType.ERROR, corr, aux=code, body=body))

    def _answered(self, request: Request) -> bool:
        """Whether the answer is wanted; it cannot be given twice."""
        if request.cancelled:
            return False
        if self.unanswered.pop(request.corr, None) is None:
            raise RuntimeError(f"request {request.kind} of {self._peer} was answered before")
        request.answered()
        self.intake.body_done(len(request.body))
        return True

    def _withdraw(self, request: Request) -> None:
        for callback in request.withdrawn():
            _call(callback)

    def _done(self, pending: Pending, outcome: Response | TransportError) -> None:
        on_done, pending.on_done = pending.on_done, None
        if on_done is not None:
            _call(on_done, outcome)
        elif isinstance(outcome, Response):
            outcome.release()

    def _push_deadline(self, pending: Pending) -> None:
        heapq.heappush(self._deadlines, pending)
        kept = len(self._deadlines)
        # Mostly they are few, and the open requests need not be counted.
        if kept > _FEW and kept > _FEW + 2 * (
            len(self._pending) + len(self._tombstones) + len(self._waiting)
        ):
            self._deadlines = [one for one in self._deadlines if one.on_done is not None]
            heapq.heapify(self._deadlines)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise _copy(self._ended, "never")
        if self.goes:
            raise LinkClosed(f"the connection to {self._peer} is being closed here", peer=self._peer)
        if self.peer_goes:
            raise PeerGoingAway(f"{self._peer} is closing the connection", peer=self._peer)

    def _above_limits(self, body: int, payload: int) -> FrameTooLargeError:
        return FrameTooLargeError(
            f"a body of {body} and a payload of {payload} bytes: the limits with {self._peer} are "
            f"{self.limits.max_body_bytes} and {self.limits.max_payload_bytes}",
            peer=self._peer,
        )


def _nobody(request: Request) -> None:
    """The handler of a session that has ended."""
    raise AssertionError("a request came after the end")


def _call(callback: Callable[..., None], *arguments: object) -> None:
    """Call what a user gave us; its failure is not the connection's."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("the callback %r failed", callback)


def _copy(error: TransportError, delivery: Delivery) -> TransportError:
    """The same error for one more caller: a raised exception carries that caller's traceback."""
    if isinstance(error, RemoteError | Overloaded):
        return error
    return type(error)(str(error), peer=error.peer, delivery=delivery)
