"""Fetch requests on the node that serves them: answered at once if there is news, else parked until there is.

A request is about many partitions: those that it names, and those that its session has open. The core answers for
each of them; each says a `FetchAnswer`. This module only collects, waits and sends; of a session it looks only
at partitions whose question is new, or which have had news since they were looked at last.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ...storage import FileRange, OffsetOutOfRangeError, StorageError
from ...transport import Connection
from .. import wire
from ..core import messages as m
from ..core.broker.fetch_session import NEW_SESSION, NO_SESSION, LeaderSession, SessionCache, SessionRequest
from ..core.control.quotas import CONSUMER
from ..core.errors import ErrorCode
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.types import PartitionId
from ._throttle import Throttle
from ._timers import Timer
from .operations.inbound import Inbound

if TYPE_CHECKING:
    from ._replicas import Replicas
    from .settings import NodeSettings

Session = LeaderSession[PartitionId, m.FetchPartition]

QUIET_DELAY = 0.05
"""Seconds for which a follower is not told a high watermark alone: while producers write, batches come along within
it, and a request is saved for each; when they do not, this much later is soon enough."""

SESSION_IDLE = 120.0
"""Seconds after which a session that nobody uses gives way to another (Kafka's value). Those of connections that
have ended do not count: they go with them.
"""


@attrs.define(eq=False, slots=True)
class Inquiry:
    """The open questions of one request, or of one session and its requests; `request` is the one that waits."""

    session: Session | None
    open: dict[PartitionId, m.FetchPartition]
    connection: Connection
    news: dict[PartitionId, None] = attrs.Factory(dict)
    """Partitions that have to be looked at, in order."""
    held: dict[PartitionId, None] = attrs.Factory(dict)
    """Partitions with a high watermark to tell and nothing else: they go along with the next answer, and are not
    looked at before, as there may be many of them."""
    request: Inbound | None = None
    message: m.FetchRequest | None = None
    expires: float = 0.0
    """When the request that waits is answered whatever there is."""
    timer: Timer | None = None
    """Comes at `expires` or before: one timer serves the requests of a session one after the other."""
    timer_at: float = 0.0
    is_quiet: bool = False
    """There is nothing to tell but a high watermark, which is told at `tell_at`."""
    tell_at: float = 0.0
    quiet: Timer | None = None
    """Comes at `tell_at` or before: it is not cancelled when an answer takes the high watermark along, so that it
    wakes the loop once in a while and not for each record."""


@attrs.define(eq=False, slots=True)
class _Gathered:
    """What an answer will say; `urgent`: something that is not data, and does not wait for more of it."""

    budget: int
    results: dict[PartitionId, m.FetchResult] = attrs.Factory(dict)
    parts: list[FileRange] = attrs.Factory(list)
    size: int = 0
    urgent: bool = False


class Fetches:
    """All fetches that this node serves."""

    def __init__(self, node: Replicas, settings: NodeSettings) -> None:
        self._node = node
        self._max_bytes = settings.fetch_max_bytes
        self._waiting: dict[PartitionId, set[Inquiry]] = {}
        self._served: dict[PartitionId, dict[Connection, int]] = {}
        self._cache: SessionCache[PartitionId, m.FetchPartition] = SessionCache(
            settings.max_incremental_fetch_session_cache_slots,
            secrets.token_bytes(32),
            idle=SESSION_IDLE,
        )
        self._sessions: dict[int, Inquiry] = {}
        self.throttle = Throttle(settings.leader_replication_throttled_rate)
        """Of what is sent to replicas that a reassignment adds."""
        self._throttled: set[PartitionId] = set()

    @property
    def parked(self) -> int:
        """Requests that wait for news."""
        inquiries = {inquiry for waiting in self._waiting.values() for inquiry in waiting}
        return sum(inquiry.request is not None for inquiry in inquiries)

    def serve(self, request: Inbound) -> None:
        """Take a request from the transport; its client's quota may have it wait."""
        message: m.FetchRequest = wire.decode_request(m.Kind.FETCH, request.body)
        serve = partial(self._serve, request, message)
        if message.replica_id >= 0 or not self._node.quotas.hold(CONSUMER, request, message.client_id, serve):
            serve()

    def _serve(self, request: Inbound, message: m.FetchRequest) -> None:
        if message.replica_id >= 0 and message.replica_id != request.peer.node_id:
            request.refuse(
                f"{request.peer.principal} is not node {message.replica_id} and may not replicate as it"
            )
            return
        inquiry = self._inquiry(request, message)
        if isinstance(inquiry, ErrorCode):
            request.reply(wire.encode(m.FetchResponse(partitions=[], error=inquiry)))
            return
        inquiry.request, inquiry.message = request, message
        if self._try_answer(inquiry, final=message.max_wait_ms <= 0):
            return
        self._set_timer(inquiry, self._node.now() + message.max_wait_ms / 1000)
        request.on_cancel(lambda: self._given_up(inquiry, request))

    def _set_timer(self, inquiry: Inquiry, expires: float) -> None:
        inquiry.expires = expires
        if inquiry.timer is not None:
            if inquiry.timer_at <= expires:
                return
            inquiry.timer.cancel()
        inquiry.timer_at = expires
        inquiry.timer = self._node.timers.call_at(expires, lambda: self._timer_came(inquiry))

    def _timer_came(self, inquiry: Inquiry) -> None:
        inquiry.timer = None
        if inquiry.request is None:
            return
        if inquiry.expires > inquiry.timer_at:
            self._set_timer(inquiry, inquiry.expires)
        else:
            self._expire(inquiry)

    def _expire(self, inquiry: Inquiry) -> None:
        self._try_answer(inquiry, final=True)

    def _inquiry(self, request: Inbound, message: m.FetchRequest) -> Inquiry | ErrorCode:
        """What a request asks, with what its session has asked before."""
        questions = {PartitionId(each.topic, each.partition): each for each in message.partitions}
        if message.session_epoch < NEW_SESSION:
            inquiry = Inquiry(None, questions, request.connection)
            self._look_at(inquiry, questions)
            return inquiry
        if message.session_epoch == NEW_SESSION:
            return self._begin(request, questions)
        session = self._cache.find(message.session_id, self._node.now(), request.connection)
        if isinstance(session, ErrorCode):
            return session
        inquiry = self._sessions[session.id]
        withdrawn = tuple([PartitionId(each.topic, each.partition) for each in message.forgotten])
        changed = session.accept(
            SessionRequest(message.session_id, message.session_epoch, questions, withdrawn)
        )
        if changed is None:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if inquiry.request is not None:
            inquiry.request.fail(ErrorCode.INVALID_REQUEST, "the session has gone on with another request")
        self._let_go(inquiry)
        for partition in withdrawn:
            self._overlook(inquiry, partition)
        self._look_at(inquiry, changed)
        return inquiry

    def _begin(self, request: Inbound, questions: dict[PartitionId, m.FetchPartition]) -> Inquiry:
        """A new session; it replaces that of the same connection. Without a slot for it, one without a session."""
        self._end_sessions(request.connection)
        session, evicted = self._cache.begin(questions, self._node.now(), request.connection)
        if evicted is not None:
            former = self._sessions[evicted.id]
            waits = former.request
            self._end(former)
            if waits is not None:
                waits.reply(
                    wire.encode(m.FetchResponse(partitions=[], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
                )
        if session is None:
            inquiry = Inquiry(None, questions, request.connection)
        else:
            inquiry = self._sessions[session.id] = Inquiry(session, session.open, request.connection)
        self._look_at(inquiry, inquiry.open)
        return inquiry

    def _look_at(self, inquiry: Inquiry, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            inquiry.news[partition] = None
            inquiry.held.pop(partition, None)
            self._waiting.setdefault(partition, set()).add(inquiry)

    def _overlook(self, inquiry: Inquiry, partition: PartitionId) -> None:
        inquiry.news.pop(partition, None)
        inquiry.held.pop(partition, None)
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting.discard(inquiry)
            if not waiting:
                del self._waiting[partition]

    def _let_go(self, inquiry: Inquiry) -> None:
        """No request of it waits any more."""
        inquiry.request = None
        inquiry.is_quiet = False

    def _end(self, inquiry: Inquiry) -> None:
        self._let_go(inquiry)
        for timer in (inquiry.timer, inquiry.quiet):
            if timer is not None:
                timer.cancel()
        inquiry.timer = inquiry.quiet = None
        for partition in list(inquiry.open):
            self._overlook(inquiry, partition)
        if inquiry.session is not None:
            self._sessions.pop(inquiry.session.id, None)
            self._cache.end(inquiry.session.id)

    def _end_sessions(self, connection: Connection) -> None:
        for inquiry in [each for each in self._sessions.values() if each.connection is connection]:
            self._end(inquiry)

    def _given_up(self, inquiry: Inquiry, request: Inbound) -> None:
        """A session goes on with the next request; what was asked without one is over."""
        if inquiry.request is request:
            if inquiry.session is None:
                self._end(inquiry)
            else:
                self._let_go(inquiry)

    def look_again(self, partition: PartitionId) -> None:
        """The partition has news for somebody, perhaps."""
        for inquiry in list(self._waiting.get(partition, ())):
            inquiry.news[partition] = None
            if inquiry.request is not None and not self._may_wait(inquiry, partition):
                self._try_answer(inquiry, final=False)

    def _may_wait(self, inquiry: Inquiry, partition: PartitionId) -> bool:
        """Whether a high watermark is all that can be news to the member that asks: then no core need be asked.

        It has everything that is in the log, in this very epoch, so that an answer would bring neither batches nor
        an error; and nobody who is not in the ISR could join it by being looked at.
        """
        message, host = inquiry.message, self._node.hosts.get(partition)
        if message is None or message.replica_id < 0 or message.session_epoch <= NEW_SESSION or host is None:
            return False
        replica, wanted = host.replica, inquiry.open[partition]
        log, versioned = replica.log, replica.versioned
        if (
            replica.leader is None
            or versioned is None
            or wanted.leader_epoch != versioned.record.leader_epoch
            or wanted.fetch_offset != log.log_end_offset
            or wanted.log_start_offset < log.log_start_offset
            or message.replica_id not in versioned.record.isr
            or wanted.topic_id != versioned.record.topic_id
        ):
            return False
        del inquiry.news[partition]
        if wanted.high_watermark >= log.high_watermark:
            inquiry.held.pop(partition, None)
            return True
        inquiry.held[partition] = None
        self._tell_later(inquiry)
        return True

    def _tell_later(self, inquiry: Inquiry) -> None:
        """What is held back is told after a while though nothing else comes."""
        if not inquiry.is_quiet:
            inquiry.is_quiet, inquiry.tell_at = True, self._node.now() + QUIET_DELAY
            if inquiry.quiet is None:
                inquiry.quiet = self._node.timers.call_at(inquiry.tell_at, lambda: self._quiet_over(inquiry))

    def _quiet_over(self, inquiry: Inquiry) -> None:
        inquiry.quiet = None
        if not inquiry.is_quiet:
            return
        if inquiry.tell_at > self._node.now():
            inquiry.quiet = self._node.timers.call_at(inquiry.tell_at, lambda: self._quiet_over(inquiry))
        else:
            self._expire(inquiry)

    def abort_ranges(self, partition: PartitionId, offset: int) -> None:
        """Before a cut at `offset`: end the connections whose queued file ranges would change under them."""
        for connection, end in self._served.pop(partition, {}).items():
            if end > offset:
                connection.abort(f"{partition} is truncated to {offset} while its bytes were being sent")

    def disconnected(self, connection: Connection) -> None:
        """The connection has ended: nothing of it is in flight any more."""
        for served in self._served.values():
            served.pop(connection, None)
        self._end_sessions(connection)

    def _ask(self, parked: Inquiry, wanted: m.FetchPartition) -> fx.FetchAnswer:
        assert parked.message is not None
        host = self._node.hosts.get(PartitionId(wanted.topic, wanted.partition))
        if host is None:
            error = self._node.missing_error(wanted.topic, wanted.partition)
            return fx.FetchAnswer(error=error, news=True)
        context = self._node.broker.context
        context.now = self._node.now()
        answer = context.ask_replica(
            host.partition,
            ev.Fetch(
                replica_id=parked.message.replica_id,
                incarnation=parked.message.incarnation,
                leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.fetch_offset,
                last_fetched_epoch=wanted.last_fetched_epoch,
                high_watermark=wanted.high_watermark,
                log_start_offset=wanted.log_start_offset,
                topic_id=wanted.topic_id,
            ),
        )
        self._node.obey(context.take_effects())
        return answer

    def _try_answer(self, inquiry: Inquiry, *, final: bool) -> bool:
        """Answer if there is enough to say; `final`: also if there is nothing."""
        request, message = inquiry.request, inquiry.message
        if request is None or message is None:
            return False
        gathered = _Gathered(min(message.max_bytes, self._max_bytes))
        # Whoever begins anew is told all, so that news also reach those who never keep a session for long.
        goes_on = message.session_epoch > NEW_SESSION
        self._gather(inquiry, list(inquiry.news), gathered, hold=goes_on)
        if not final and not gathered.urgent and gathered.size < max(1, message.min_bytes):
            if inquiry.held:
                self._tell_later(inquiry)
            return False
        self._gather(inquiry, list(inquiry.held), gathered, hold=False)
        results = gathered.results
        session = inquiry.session
        if session is None:
            self._end(inquiry)
        else:
            self._let_go(inquiry)
            for partition in results:
                self._overlook(inquiry, partition)
            session.answer(results)
        self._account(request, message, results)
        response = m.FetchResponse(
            partitions=list(results.values()),
            session_id=session.id if session is not None else NO_SESSION,
            throttle_time_ms=request.throttle_ms,
        )
        request.reply(wire.encode(response), gathered.parts)
        return True

    def _gather(
        self, inquiry: Inquiry, partitions: Iterable[PartitionId], gathered: _Gathered, *, hold: bool
    ) -> None:
        """Look at partitions, and read what there is to tell; `hold` back what is a high watermark alone."""
        request, message = inquiry.request, inquiry.message
        assert request is not None
        assert message is not None
        for partition in partitions:
            if gathered.size >= gathered.budget and inquiry.session is not None:
                break  # looked at by the next request
            wanted = inquiry.open[partition]
            answer = self._ask(inquiry, wanted)
            if hold or not answer.news:
                inquiry.held.pop(partition, None)
            if not answer.news:
                inquiry.news.pop(partition, None)
                continue
            if hold and _is_quiet(wanted, answer):
                del inquiry.news[partition]
                inquiry.held[partition] = None
                continue
            if not self._is_at_hand(wanted, answer) or self._must_wait(partition, message, answer):
                continue
            room = gathered.budget - gathered.size
            if self._is_throttled(partition, message.replica_id):
                room = min(room, self.throttle.rate)
            result, ranges = self._read(request, wanted, answer, room, must_read=gathered.size == 0)
            gathered.results[partition] = result
            gathered.parts += ranges
            gathered.size += result.size
            gathered.urgent = gathered.urgent or result.size == 0

    def _account(
        self, request: Inbound, message: m.FetchRequest, results: dict[PartitionId, m.FetchResult]
    ) -> None:
        """Count what is sent, and have throttles and quotas know of it."""
        counters = self._node.counters
        total = 0
        for partition, result in results.items():
            total += result.size
            if result.error != ErrorCode.NONE:
                counters.failed_fetches[partition.topic] += 1
            if message.replica_id < 0:
                counters.bytes_out[partition.topic] += result.size
            elif result.size and self._is_throttled(partition, message.replica_id):
                self.throttle.took(result.size)
        if message.replica_id < 0:
            self._node.quotas.take(CONSUMER, request, message.client_id, total)
        else:
            counters.replication_bytes_out += total

    def _is_throttled(self, partition: PartitionId, replica: int) -> bool:
        """Whether a reassignment adds this replica, which has not caught up yet (KIP-73)."""
        versioned = self._node.view.partitions.get(partition)
        return (
            versioned is not None
            and replica in versioned.record.adding
            and replica not in versioned.record.isr
        )

    def _must_wait(self, partition: PartitionId, message: m.FetchRequest, answer: fx.FetchAnswer) -> bool:
        """Whether a throttled replica gets nothing of a partition now; it is news again when the time is over."""
        pause = self.throttle.pause
        if not pause or message.replica_id < 0 or answer.error != ErrorCode.NONE:
            return False
        if not self._is_throttled(partition, message.replica_id):
            return False
        if partition not in self._throttled:
            self._throttled.add(partition)
            self._node.timers.call_after(pause, partial(self._go_on, partition))
        return True

    def _go_on(self, partition: PartitionId) -> None:
        self._throttled.discard(partition)
        self.look_again(partition)

    def _is_at_hand(self, wanted: m.FetchPartition, answer: fx.FetchAnswer) -> bool:
        """Whether it can be read now; else it will be news when it can."""
        if answer.error != ErrorCode.NONE or answer.diverging is not None:
            return True
        return wanted.fetch_offset >= answer.limit_offset or self._node.cold_reads.is_at_hand(
            PartitionId(wanted.topic, wanted.partition),
            wanted.fetch_offset,
            answer.limit_offset,
            wanted.max_bytes,
        )

    def _read(
        self,
        request: Inbound,
        wanted: m.FetchPartition,
        answer: fx.FetchAnswer,
        budget: int,
        must_read: bool,
    ) -> tuple[m.FetchResult, list[FileRange]]:
        partition = PartitionId(wanted.topic, wanted.partition)
        error, message, size = answer.error, "", 0
        ranges: list[FileRange] = []
        readable = error == ErrorCode.NONE and answer.diverging is None
        if readable and wanted.fetch_offset < answer.limit_offset and (budget > 0 or must_read):
            try:
                ranges, size = self._ranges(partition, wanted, answer, max(1, budget))
            except OffsetOutOfRangeError as failure:
                error, message = ErrorCode.OFFSET_OUT_OF_RANGE, str(failure)
            except StorageError as failure:
                error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(failure)
        if ranges:
            self._served.setdefault(partition, {})[request.connection] = answer.limit_offset
        return (
            m.FetchResult(
                topic=wanted.topic,
                partition=wanted.partition,
                error=error,
                high_watermark=answer.high_watermark,
                log_start_offset=answer.log_start_offset,
                log_end_offset=answer.log_end_offset,
                leader_epoch=answer.leader_epoch,
                leader=answer.leader,
                diverging=answer.diverging,
                size=size,
                message=message,
            ),
            ranges,
        )

    def _ranges(
        self, partition: PartitionId, wanted: m.FetchPartition, answer: fx.FetchAnswer, budget: int
    ) -> tuple[list[FileRange], int]:
        opened = self._node.hosts[partition].log
        assert opened is not None
        read = opened.read(
            wanted.fetch_offset,
            max_bytes=min(budget, wanted.max_bytes),
            limit_offset=answer.limit_offset,
        )
        return ([read.range] if read.range is not None else []), read.size


def _is_quiet(wanted: m.FetchPartition, answer: fx.FetchAnswer) -> bool:
    """Whether all that there is to tell is a high watermark."""
    return (
        answer.error == ErrorCode.NONE
        and answer.diverging is None
        and answer.fetch_offset >= answer.limit_offset
        and wanted.log_start_offset >= answer.log_start_offset
    )
