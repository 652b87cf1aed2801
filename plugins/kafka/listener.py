"""Client connections on trio: bytes from a socket to the connection machine, requests to handlers, answers back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from traceback import clear_frames
from typing import Any, Protocol

import trio

from insync.replication.core.errors import ErrorCode
from insync.replication.node.service import NodeService, ServiceError
from insync.transport import ByteListener, Departures, Part, TransportError, turn
from insync.transport.buffers import POOL
from insync.transport.guests import Guest, Guests
from insync.transport.ranges import after
from insync.transport.repeats import limited
from insync.transport.sockets import SocketStream

from .client import Client
from .core.connection import Connection, Request
from .core.errors import ProtocolViolationError
from .core.failures import NONE, first_error, name_of
from .core.sasl import LoginError
from .handlers import OFFERED, OFFERS, Exchange, Handler, fetch, login, produce, versions
from .login import SECONDS as LOGIN_SECONDS
from .metrics import Counts
from .protocol import MAX_ELEMENTS, MAX_PRODUCED, MalformedError, Struct, decode, encode, message_of
from .protocol.apis import Api

log = limited(logging.getLogger("insync.kafka"))

MAX_CONNECTIONS = 4096
"""Of one listener, if descriptors allow it; more wait in the system's queue until some have ended."""
IDLE = 600.0
STUCK = 30.0
SWEEP = 5.0
"""Seconds: after which a connection without a request is closed, after which one that takes nothing of its answers,
or sends nothing of a frame for which it has room in the budget, is aborted, and between two looks.
"""
LEAST_PACE = 128 << 10
"""Bytes a second in which such a frame has to come after its first `STUCK` seconds: others wait for the room."""
LARGE = 8 << 10
"""Bytes of a request above which it may have thousands of elements. To read it, to serve it and to write its answer
are a turn of the loop each then: other connections wait for one of them at most.
"""
SLICE = 0.002
"""Seconds for which requests of one connection are served one behind the other. A connection that has more, and a
client may send as many as it likes, waits then: of all such one goes on in each step of the loop.
"""
_PAUSE = 0.5
_GIVEN_BACK = memoryview(b"")


class Stream(Protocol):
    """As much of a byte stream as a connection uses: see `insync.transport.ByteStream`."""

    async def receive_into(self, buffer: memoryview, at_least: int = 1) -> int: ...
    async def send(self, parts: Sequence[Part]) -> None: ...
    def send_now(self, parts: Sequence[Part]) -> int: ...
    async def aclose(self) -> None: ...
    def abort(self) -> None: ...

    @property
    def sent(self) -> int: ...


Make = Callable[[Any], "Awaitable[Link]"]


class Links:
    """The connections of one listener."""

    def __init__(self, service: NodeService, name: str = "kafka") -> None:
        """name: of the listener, for its metrics."""
        self.service = service
        self.counts = Counts(name, lambda: len(self.open))
        self.open: set[Link] = set()
        self.guests = Guests(name, MAX_CONNECTIONS)
        """With those that are not connections yet: they shake hands."""
        self.slices = trio.Lock()
        """For connections that have had their `SLICE` and have more."""

    async def accept(self, listener: ByteListener, make: Make, nursery: trio.Nursery) -> None:
        """Serve whoever connects, until cancelled. `make` gives the `Link` of a stream."""
        departures = Departures(nursery)
        while True:
            await self.guests.room()
            try:
                stream = await listener.accept()
            except (OSError, TransportError) as error:
                log.warning("cannot accept on %s, retrying: %s", listener.endpoints[0], error)
                await trio.sleep(_PAUSE)
                continue
            visit = _Visit(stream)
            # Before its task runs: the next one is let in by how many there are.
            self.guests.enter(visit.guest)
            nursery.start_soon(self._serve, make, stream, visit, departures)

    async def _serve(self, make: Make, stream: Any, visit: _Visit, departures: Departures) -> None:
        try:
            with visit.greeting:
                await self._serve_link(visit, make, stream)
            if visit.greeting.cancelled_caught:
                stream.abort()
        finally:
            self.guests.leave(visit.guest)
            departures.one()

    async def _serve_link(self, visit: _Visit, make: Make, stream: Any) -> None:
        try:
            link = await make(stream)
        except TransportError as error:
            log.warning("cannot open a connection with a client: %s", error)
            stream.abort()
            return
        except Exception:
            log.exception("cannot open a connection with a client")
            stream.abort()
            return
        visit.link = link
        self.open.add(link)
        try:
            await link.run()
        except Exception:  # a mistake of ours over one client, which must not end the others
            log.exception("a connection is closed")
        finally:
            self.open.discard(link)
            visit.link = None

    async def sweep(self) -> None:
        """End connections of which nothing is heard, and those that take nothing."""
        while True:
            await trio.sleep(SWEEP)
            now = trio.current_time()
            POOL.tidy(now)
            for link in list(self.open):
                link.look(now)


class _Visit:
    """From its first moment on: a client that shakes hands, and then its link."""

    def __init__(self, stream: Any) -> None:
        self.link: Link | None = None
        self.greeting = trio.CancelScope()
        self.guest = Guest(
            address=stream.remote.authority.rpartition(":")[0],
            end=self._end,
            is_known=lambda: self.link is not None and self.link.is_known,
            # The bytes of a handshake are not counted: it has the time of those that talk.
            has_spoken=lambda: self.link is None or self.link.has_spoken,
            idle=lambda now: 0.0 if self.link is None else self.link.silent(now),
        )

    def _end(self, reason: str) -> None:
        if self.link is None:
            self.greeting.cancel()
        else:
            self.link.end(reason)


class Link:
    """One client connection."""

    def __init__(self, stream: Stream, machine: Connection, links: Links, peer: str) -> None:
        self._stream = stream
        self._machine = machine
        self._links = links
        self._service = links.service
        self._peer = peer
        self._turn = turn()
        self._unsent: list[Part] = []
        self._writer = trio.Event()
        self._changed = trio.Event()
        self._reading = trio.CancelScope()
        self._is_receiving = self._is_interrupted = False
        self._closing = ""
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery
        self._now = trio.lowlevel.current_clock().current_time
        """As `trio.current_time`, which looks the clock up each time."""
        self._opened = self._heard = self._moved = self._large_since = self._now()
        self._seen_sent = 0
        self._held = 0
        """Bytes of produce requests whose memory the node still needs."""
        self._is_held_back = False
        self._has_ended = False
        """Its tasks are over: there is nobody to answer."""
        self.client: Client

    # Life

    async def run(self) -> None:
        """Serve the client until either end closes."""
        POOL.entered()
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._write)
                    await self._read()
                    self._nursery.cancel_scope.cancel()
        except* TransportError as errors:
            log.debug("%s: %s", self._peer, errors.exceptions[0])
        finally:
            self._has_ended = True
            self.client.sessions.end_all()
            self._shrink()
            try:
                if not self._unsent:
                    with trio.move_on_after(1, shield=True):
                        await self._stream.aclose()
                self._stream.abort()
            finally:
                # After the socket: ranges that were in flight are so no more.
                self._service.gone(self.client)
                self.client.has_ended()
                POOL.left()

    def abort(self, reason: str) -> None:
        """End at once, with whatever is still to be sent."""
        log.warning("%s: the connection is closed: %s", self._peer, reason)
        self._unsent.clear()
        self._stream.abort()
        self._scope.cancel()

    def close(self, reason: str) -> None:
        """Serve no more requests; end when those that were begun are answered."""
        if not self._closing:
            self._closing = reason
            self._wake()

    def silent(self, now: float) -> float:
        """For how many seconds it has sent nothing and waited for nothing; 0: it waits."""
        return now - self._heard if self._machine.is_idle and not self._unsent else 0.0

    @property
    def has_spoken(self) -> bool:
        return self._heard > self._opened

    @property
    def is_known(self) -> bool:
        """Whether it has proved who it is, where that is asked for, and has said something."""
        return self.has_spoken and self.client.login.is_over

    def end(self, reason: str) -> None:
        """End a connection that waits for nothing."""
        log.info("%s: the connection is closed: %s", self._peer, reason)
        self._scope.cancel()

    def look(self, now: float) -> None:
        """Called now and then."""
        if self._stream.sent != self._seen_sent:
            # A client that takes a large answer slowly is alive.
            self._seen_sent, self._moved = self._stream.sent, now
        if not self.client.login.is_over and now - self._opened > LOGIN_SECONDS:
            self.abort(f"it has not authenticated within {LOGIN_SECONDS:g} s")
        elif self._unsent and now - self._moved > STUCK:
            self.abort(f"it has read none of its answers for {STUCK:g} s")
        elif self._machine.large_missing and self._is_slow(now):
            self.abort(f"{self._machine.large_missing} bytes of a request have not arrived")
        elif self.silent(now) > IDLE:
            self.end(f"it has sent nothing for {IDLE:g} s")
        elif self._is_receiving and self._may_shrink(now):
            self._interrupt()

    def _is_slow(self, now: float) -> bool:
        """Whether a frame that has room in the budget takes too long to come."""
        due = (now - self._large_since - STUCK) * LEAST_PACE
        return now - max(self._heard, self._large_since) > STUCK or self._machine.large_filled < due

    def _may_shrink(self, now: float) -> bool:
        return self._machine.can_shrink and now - self._heard > SWEEP

    def _shrink(self) -> None:
        allowed = self._machine.shrink()
        if allowed:
            self._service.budget.give(allowed)

    # Reading

    async def _read(self) -> None:
        """Until the client has ended. The interrupt of a receive has the loop look at what has changed."""
        while True:
            # A scope costs as much as reading a small request does: there is a new one only if it was used.
            self._is_interrupted = False
            with trio.CancelScope() as self._reading:
                if not await self._read_on():
                    return
            # A read that is interrupted may have received already, into the buffer as it was.
            if self._is_receiving and self._may_shrink(self._now()):
                self._shrink()
            self._is_receiving = False

    async def _read_on(self) -> bool:
        """Until a receive is interrupted; False: there is no more to read."""
        machine, budget = self._machine, self._service.budget
        plain = self._stream if isinstance(self._stream, SocketStream) else None
        while not self._is_interrupted:
            try:
                if self._start_requests():
                    async with self._links.slices:
                        pass  # whoever is next goes on in the next step of the loop
                    continue
                room = machine.room_needed
            except (ProtocolViolationError, MalformedError) as error:
                log.warning("%s: the connection is closed: %s", self._peer, error)
                self._closing = str(error)
                if isinstance(error, ProtocolViolationError) and error.farewell and machine.is_idle:
                    self._unsent.append(error.farewell)
                    self._writer.set()
                room = 0
            if self._closing:
                if machine.is_idle and not self._unsent:
                    return False
                await self._wait()
                continue
            if room:
                try:
                    while not budget.reserve(self, room):
                        await budget.wait(self)
                finally:
                    budget.leave(self)  # who has ended must not keep its place
                machine.make_room()
                self._large_since = self._now()
                continue  # meanwhile it may have been told to close
            buffer = machine.get_buffer()
            if not len(buffer):
                await self._wait()
                continue
            self._is_receiving = True
            try:
                if plain is None:
                    count = await self._stream.receive_into(buffer)
                else:
                    # Each coroutine above one that waits runs when it goes on: here there are two less.
                    while plain.is_drained or (count := plain.receive_now(buffer)) < 0:
                        await plain.until_readable(1)
            except BaseException as error:
                # What ends a nursery stays, with its frames, until cycles are collected: no memory may hang on it.
                clear_frames(error.__traceback__)
                del buffer
                raise
            self._is_receiving = False
            if not count:
                return False
            self._heard = self._now()
            machine.received(count)
            del buffer  # a large frame's memory is used again only when nobody looks at it
        return True

    def _interrupt(self) -> None:
        self._is_interrupted = True
        self._reading.cancel()

    async def _wait(self) -> None:
        """Until something is answered or sent."""
        self._changed = trio.Event()
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        if self._is_receiving and (self._closing or self._machine.has_unparsed):
            self._interrupt()

    def _start_requests(self) -> bool:
        """Those that may start; True: others may, and have to wait for their turn."""
        # What is answered at once leaves at the end of a turn, and only then may the next request start.
        began = self._now()
        while self._start_some() and self._machine.has_unparsed:
            if self._now() - began > SLICE:
                return True
        return False

    def _start_some(self) -> bool:
        has_started = False
        with self._turn:
            while not self._closing and not self._unsent and self._has_room():
                request = self._machine.next_request()
                if request is None:
                    break
                has_started = True
                request.begun = self._now()
                try:
                    self._start(request)
                except MalformedError:
                    self._release(request)
                    self._answer(request, None, request.version)
                    raise
        return has_started

    def _start(self, request: Request) -> None:
        if request.is_token:
            self._nursery.start_soon(self._take_token, request)
            return
        if request.client_id is not None:
            self.client.client_id = request.client_id
        if request.api == Api.API_VERSIONS:
            self._answer(request, *versions.answer(self.client, request, OFFERED))
            self._release(request)
            return
        kind = message_of(request.api, is_request=True)
        assert kind is not None, "it is offered"
        asked, _ = decode(
            kind,
            request.version,
            request.body,
            request.position,
            elements=MAX_PRODUCED if request.api == Api.PRODUCE else MAX_ELEMENTS,
        )
        frame, request.body = request.body, _GIVEN_BACK  # an answer may come long after the memory is let go
        if request.api == Api.PRODUCE:
            request.wants_answer = asked.acks != 0
            done = partial(self._produced, request)
            self._hold(request)
            written = partial(self._written, request)
            produce.start(self.client, asked, request.version, frame, done, written)
        elif request.api == Api.FETCH:
            fetched = partial(self._fetched, request)
            self._release(request)
            fetch.start(self.client, asked, request.version, fetched, self._put_off)
        elif isinstance(handler := OFFERS[request.api].handler, Exchange):
            self._release(request)
            self._in_its_turn(request, partial(self._exchange, request, asked, handler))
        else:
            self._nursery.start_soon(self._serve, request, asked, handler)

    def _in_its_turn(self, request: Request, work: Callable[[], None]) -> None:
        """At once; of a large request in a turn of the loop that nothing else is done in for it."""
        if request.size <= LARGE:
            work()
        else:
            self._put_off(work)

    def _put_off(self, work: Callable[[], None]) -> None:
        """Have something done in the loop's next turn, unless the connection has ended by then."""
        if not self._has_ended:
            self._nursery.start_soon(self._later, work)

    async def _later(self, work: Callable[[], None]) -> None:
        with self._turn:
            work()

    def _has_room(self) -> bool:
        """Whether another request may start: each client may have a little of an exceeded budget."""
        self._is_held_back = self._held > 0 and self._service.budget.is_exceeded
        return not self._is_held_back

    def _hold(self, request: Request) -> None:
        """Produced batches are held until they are written, small ones too."""
        if not request.room:
            request.room = request.size
            self._service.budget.take(request.room)
        self._held += request.room

    def _written(self, request: Request) -> None:
        self._held -= request.room
        self._release(request)
        if self._is_held_back:
            self._wake()

    def _release(self, request: Request) -> None:
        """The memory of a frame is not needed any more."""
        room, request.room = request.room, 0
        if room:
            self._service.budget.give(room)
        memory, request.memory = request.memory, None
        if memory is not None:
            memory.release()

    def _exchange(self, request: Request, asked: Struct, exchange: Exchange) -> None:
        """An API of transactions: what follows from its answer on the node does not hold the answer up."""

        def done(answer: Struct) -> None:
            self._in_its_turn(request, partial(self._answer, request, answer, request.version))

        try:
            exchange.start(self.client, asked, request.version, done)
        except Exception as error:  # noqa: BLE001 - `_broken` logs it with its traceback
            self._answer(request, self._broken(request, error), request.version)

    def _broken(self, request: Request, error: Exception) -> Struct | None:
        """The answer to a request that broke its handler. Where its API has none, the connection is closed."""
        log.exception("%s: %s failed", self._peer, Api(request.api).name)
        answer = _failed(request.api, ServiceError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
        if answer is None:
            self.close("the request failed")
        return answer

    async def _serve(self, request: Request, asked: Struct, handler: Handler) -> None:
        """Every API but those of the hot path: one task while it is served."""
        answer: Struct | None
        try:
            answer = await handler(self.client, asked, request.version)
        except ServiceError as error:
            answer = _failed(request.api, error)
            if answer is None:
                self.close(f"{Api(request.api).name}: {error}")
                self._answer(request, None, request.version)
                return
        except Exception as error:  # noqa: BLE001 - `_broken` logs it with its traceback
            answer = self._broken(request, error)
        finally:
            self._release(request)
        self._let_in()
        if request.size > LARGE:
            await trio.lowlevel.checkpoint()
        self._answer(request, answer, request.version)

    async def _take_token(self, request: Request) -> None:
        """A bare SASL token, which is answered by another one."""
        answer: list[Part] = []
        try:
            answer.append(await login.take(self.client, bytes(request.body)))
        except LoginError:
            self._links.counts.login(succeeded=False)  # the connection ends without a word
        finally:
            self._release(request)
        self._let_in()
        if self.client.login.is_over:
            self._links.counts.login(succeeded=True)
        self._machine.answer(request, answer)
        self.flush()

    def _let_in(self) -> None:
        """The progress of the login decides what the client may send next."""
        state = self.client.login
        self._machine.next_is_token = state.expects_bare_token
        if state.is_over:
            self._machine.strangers_may = ()

    # Answers

    def _produced(self, request: Request, answer: Struct | None, error: int) -> None:
        if answer is None:
            self.close("a produce request without acknowledgement has failed")
        self._tell(request, answer if request.wants_answer else None, request.version, error)

    def _fetched(self, request: Request, answer: Struct, parts: Sequence[Part], error: int) -> None:
        self._tell(request, answer, request.version, error, parts)

    def _answer(self, request: Request, answer: Struct | None, version: int) -> None:
        self._tell(request, answer, version, first_error(answer) if answer is not None else 0)

    def _tell(
        self,
        request: Request,
        answer: Struct | None,
        version: int,
        error: int,
        records: Sequence[Part] = (),
    ) -> None:
        parts: list[Part] = []
        if answer is not None:
            pieces = encode(answer, version)
            parts.append(pieces[0])
            for piece, record in zip(pieces[1:], records, strict=True):
                parts += (record, piece)
        self._machine.answer(request, parts)
        self._count(request, error)
        if self._turn.is_open:
            self._turn.note(self)
        else:
            self.flush()

    def _count(self, request: Request, error: int) -> None:
        self._links.counts.answered(
            request.api,
            name_of(error) if error else NONE,
            self._now() - request.begun,
            request.size,
            request.answer_size,
        )
        if request.api == Api.SASL_AUTHENTICATE and (error or self.client.login.is_over):
            self._links.counts.login(succeeded=not error)

    def flush(self) -> None:
        """Send what is answered, as far as that goes without waiting."""
        parts = self._machine.take_answers()
        if parts:
            if not self._unsent:
                try:
                    sent = self._stream.send_now(parts)
                except TransportError as error:
                    log.debug("%s: %s", self._peer, error)
                    self._scope.cancel()
                    return
                parts = after(parts, sent) if sent else parts
                if parts:
                    self._moved = self._now()
            if parts:
                self._unsent += parts
                self._writer.set()
        self._wake()

    async def _write(self) -> None:
        """Sends what did not go at once."""
        while True:
            self._writer = trio.Event()
            if not self._unsent:
                await self._writer.wait()
            parts, before = list(self._unsent), len(self._unsent)
            await self._stream.send(parts)
            self._moved = self._now()
            del self._unsent[:before]
            self._wake()


def _failed(api: int, error: ServiceError) -> Struct | None:
    """The answer of an API that can say of a request as a whole that it has failed."""
    log.warning("%s: %s", Api(api).name, error)
    kind = message_of(api, is_request=False)
    if kind is None or "error_code" not in kind.NAMES:
        return None
    made = kind()
    made.error_code = error.code
    return made
