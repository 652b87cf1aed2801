"""Sends batches to leaders: in which requests they go, and what an answer means for them.

The `SendWindow` of a partition decides which batch may go next, and under which sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from ....transport import Connection, DeadlineExceeded, NotAuthorisedError, Response, TransportError, turn
from ... import wire
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.types import SEQUENCE_MODULUS
from ...core.wording import counted
from .._settings import ProducerSettings
from ..connection._cluster import Cluster, Leader
from ..connection._patience import MOST, Patience
from ..errors import (
    AuthorizationError,
    ClientError,
    DeliveryTimeoutError,
    Outcome,
    ProducerFencedError,
    error_for,
)
from ._accumulator import Accumulator
from ._batch import Batch, ProducerIdentity
from ._dividing import divided
from ._failures import code_of, has_code, unmade
from ._identities import Identities
from ._partitioning import PartitionQueue

_log = logging.getLogger("insync.client")
_NEVER = float("inf")
_PATIENCE = 5.0
"""Seconds after which the log warns of records that are sent repeatedly, and before it warns of others."""


@attrs.define(eq=False, slots=True)
class _Request:
    node_id: int
    sent: list[tuple[PartitionQueue, Batch]]
    sent_at: float
    next_check: float
    handle: object = None


class Sender:
    """Drives the queues of one producer; `run` must run in a task."""

    def __init__(self, settings: ProducerSettings, cluster: Cluster, nursery: trio.Nursery) -> None:
        self._now = trio.lowlevel.current_clock().current_time
        """As `trio.current_time`, which looks the clock up each time."""
        self.accumulator = Accumulator(settings, self.wake, self._now)
        self.flushing = 0
        self.fenced: ProducerFencedError | None = None
        """Set once a node has said that a newer epoch of this producer's id writes."""
        self.on_failure: Callable[[ClientError], None] | None = None
        """Told of every batch that fails, in a producer with transactions."""
        self.expect: Callable[[], None] | None = None
        """Told of each request, whose answer comes soon."""
        self.has_sent = False
        """Whether any batch of this transaction was made."""
        self._transaction: ProducerIdentity | None = None
        self._tag: m.ProduceTransaction | None = None
        if settings.transactional_id:
            self._tag = m.ProduceTransaction(transactional_id=settings.transactional_id)
        self._given_up: ClientError | None = None
        self._warned_at = -_NEVER
        self._settings = settings
        self._cluster = cluster
        self._event = trio.Event()
        self._armed = _NEVER
        self._requests: dict[_Request, None] = {}
        self._patience = Patience()
        self._in_flight: dict[int, int] = {}
        self._muted_until: dict[int, float] = {}
        """Until when a node takes nothing from this client, because of its quota (KIP-219)."""
        self._identities = Identities(settings, cluster, nursery, self.wake)
        self._acks = settings.wire_acks
        self._is_idempotent = settings.idempotent
        self._linger = settings.linger_ms / 1000
        self._limit = settings.max_in_flight_requests_per_connection
        self._batch_size = min(settings.batch_size, settings.max_request_size)
        self._turn = turn()
        self._leaders_changed = False
        """Since requests under way were last compared with them."""
        cluster.listeners.append(self._metadata_changed)

    @property
    def barred(self) -> ClientError | None:
        """Why nothing may be sent now: it is fenced, or no transaction is open."""
        return self.accumulator.barred

    @barred.setter
    def barred(self, error: ClientError | None) -> None:
        self.accumulator.barred = error

    def fence(self, error: ProducerFencedError) -> None:
        """Another producer has this one's id: nothing more is sent."""
        # Barred at once: until the next look `send` would still take records, only to have them fail.
        self.fenced = self.barred = error
        self.wake(0)

    # Transactions

    def begin_transaction(self, identity: ProducerIdentity) -> None:
        """Records sent from now on belong to a transaction with this producer epoch. Nothing else is under way."""
        assert not self.accumulator.pending, "the last transaction has ended"
        self._transaction, self._given_up, self.has_sent = identity, None, False
        self.accumulator.transaction = identity

    def give_up_transaction(self, error: ClientError) -> None:
        """Nothing more of it is sent; what is in flight comes to rest."""
        # Before the failures, which follow from it: `_settle` warns of none, and `_fail_unsent` marks them as seen.
        self._given_up = error
        self._fail_unsent(error)
        self.wake(0)

    async def settle_all(self) -> None:
        """Send what waits without lingering, and wait until every outcome is known."""
        self.flushing += 1
        self.wake(0)
        try:
            for batch in list(self.accumulator.pending):
                await batch.wait()
        finally:
            self.flushing -= 1
        await trio.lowlevel.checkpoint()

    def wake(self, at: float) -> None:
        """Look again at time `at` (0: now)."""
        if at < self._armed:
            self._event.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            # A cancel scope for each record would cost more than all that is done here. This one may end too soon.
            due = _NEVER
            with trio.CancelScope() as alarm:
                while True:
                    # Before the look: a wake-up meanwhile may be for something that the look has passed already.
                    self._event = trio.Event()
                    self._armed = _NEVER
                    # One turn: the requests of a look leave by one write for each connection.
                    with self._turn:
                        self._armed = self._pump()
                    if self._armed < due:
                        alarm.deadline = due = self._armed
                    await self._event.wait()

    def _metadata_changed(self) -> None:
        self._leaders_changed = True
        self.accumulator.look()
        if self.accumulator.pending:
            self.wake(0)

    # What may go now

    def _pump(self) -> float:
        """Send all that may be sent; gives the time at which to look again."""
        now = self._now()
        self.fenced = self.fenced or self._identities.fenced
        # First: nothing of a fenced producer, or of a transaction that was given up, may go below.
        if self.fenced is not None:
            self.barred = self.fenced
            self._fail_unsent(self.fenced)
        elif self._given_up is not None:
            self._fail_unsent(self._given_up)
        # Before the queues: batches of an abandoned request go to their new leader in this same look.
        self._check_requests(now)
        # Before the queues, too: a batch past its deadline must not be sent again.
        next_at = self._expire(now)
        ready: dict[int, list[PartitionQueue]] = {}
        # A copy: a batch may fail below, and its callback may send, which adds a queue.
        for queue in list(self.accumulator.active):
            if not queue.waiting:
                del self.accumulator.active[queue]
                continue
            leader = queue.leader
            # Until that is known, batches of it may as well grow.
            queue.is_held_up = leader.node_id < 0
            at = self._sendable_at(queue, leader, now)
            if at <= now:
                ready.setdefault(leader.node_id, []).append(queue)
            else:
                next_at = min(next_at, at)
        for node_id, queues in ready.items():
            next_at = min(next_at, self._send_to(node_id, queues, now))
        # Last, so that the requests of this look count.
        for request in self._requests:
            next_at = min(next_at, request.next_check)
        return next_at

    def _sendable_at(self, queue: PartitionQueue, leader: Leader, now: float) -> float:
        """When the first waiting batch may go; never, if an event must come first that wakes us anyway."""
        due = queue.waiting[0].created + self._linger
        if due > now and self._lingers(queue):
            return due
        # Batches in flight must settle first: an answer wakes the task.
        if not queue.may_send(leader):
            return _NEVER
        if leader.node_id < 0:
            # Each look of the cluster wakes the task (`_metadata_changed`).
            self._cluster.suspect(queue.topic, queue.partition, leader)
            return _NEVER
        if queue.paused_until(leader) > now:
            return queue.paused_until(leader)
        # Last, since it changes the queue: an epoch may begin, and bytes get other sequences.
        if self._is_idempotent and not self._identified(queue):
            return _NEVER
        return now

    def _lingers(self, queue: PartitionQueue) -> bool:
        """Only the open batch does, while it is small and no flush waits."""
        first = queue.waiting[0]
        # A task that waits for memory gets it from batches that are sent: to linger would only hold it up.
        hurry = self.flushing or self.accumulator.waiting
        return not hurry and first is queue.tail.open and first.data is None and first.size < self._batch_size

    def _identified(self, queue: PartitionQueue) -> bool:
        """Give the queue a producer identity under which its first batch may be sent, if there is one yet."""
        if self._tag is not None:
            return self._in_transaction(queue)
        if queue.needs_epoch:
            return self._begin_epoch(queue)
        if queue.identity is None:
            # A queue that has one keeps it, though others have moved on, until its log misses something.
            queue.identity = self._identities.current
        if queue.identity is None:
            self._identities.want()
        return queue.identity is not None

    def _in_transaction(self, queue: PartitionQueue) -> bool:
        """Each transaction begins at sequence 0 in each partition. One that lacks a batch sends no more of them."""
        if queue.identity != self._transaction:
            # Nothing is pending when a transaction begins, but a batch that has expired may still be in flight.
            if self._transaction is None or queue.in_flight or queue.failed:
                return False
            queue.begin_epoch(self._transaction, begins_at_zero=True)
        # Before the first request: whatever its answer, the coordinator must end what may be in a log.
        self.has_sent = True
        return not queue.needs_epoch

    def _begin_epoch(self, queue: PartitionQueue) -> bool:
        identity = self._identities.current
        if identity is None or identity == queue.identity:
            # Several queues may need an epoch at a time. One answer serves all of them: each moves on to it.
            self._identities.want()
            return False
        # A new epoch begins at sequence 0, whatever the log lacks of the old one (KIP-360).
        for batch in queue.begin_epoch(identity):
            try:
                batch.restamp(identity, queue.next_sequence)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this batch alone
                self._fail_unmade(queue, batch, error)
            else:
                # Not before: a batch that could not be made would leave a gap.
                queue.stamped(batch)
        return bool(queue.waiting)

    # Sending

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now: float) -> float:
        """Send the first batches of all these queues, then the next ones; gives when to look again."""
        for queue in queues:
            # Until one of its batches has gone.
            queue.is_held_up = True
        if self._muted_until.get(node_id, 0.0) > now:
            return self._muted_until[node_id]
        connection = self._cluster.links.nowait(node_id)
        if connection is None:
            return self._unreachable(node_id, queues)
        next_at = _NEVER
        while queues and self._in_flight.get(node_id, 0) < self._limit:
            if not self._send_one(connection, node_id, queues, now):
                # A callback that sends such records again must not keep the loop here.
                self.wake(0)
                break
            more = []
            for queue in queues:
                at = self._next_at(queue, node_id, now)
                if at <= now:
                    more.append(queue)
                else:
                    # The next batch may linger, perhaps for less time than the answers take.
                    next_at = min(next_at, at)
            queues = more
        return next_at

    def _unreachable(self, node_id: int, queues: list[PartitionQueue]) -> float:
        at = self._cluster.links.retry_at(node_id)
        if at < _NEVER:
            for queue in queues:
                self._cluster.suspect(queue.topic, queue.partition, queue.leader)
        return at

    def _next_at(self, queue: PartitionQueue, node_id: int, now: float) -> float:
        """When the next waiting batch may go to this node; never, if there is none or it goes to another."""
        leader = queue.leader
        if not queue.waiting or leader.node_id != node_id:
            return _NEVER
        return self._sendable_at(queue, leader, now)

    def _send_one(
        self, connection: Connection, node_id: int, queues: list[PartitionQueue], now: float
    ) -> bool:
        """One request with the first batch of each queue, up to `max_request_size`; False: none could be made."""
        request = _Request(node_id, [], now, now + self._patience.seconds)
        size = 0
        for queue in queues:
            first = queue.waiting[0]
            if request.sent and size + first.size > self._settings.max_request_size:
                # Others may be small enough.
                continue
            size += first.size
            batch = self._take(queue)
            if batch is not None:
                request.sent.append((queue, batch))
        if not request.sent:
            return False
        # Before the hand-over, in which a request that cannot be sent is answered at once (`_answered`).
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        self._requests[request] = None
        self._hand_over(connection, request)
        if self.expect is not None:
            self.expect()
        # A request that failed at once is not there any more: its batches go again, and must not settle twice.
        if self._acks == 0 and request in self._requests:
            for _, batch in request.sent:
                self._settle(batch, -1, None)
        return True

    def _hand_over(self, connection: Connection, request: _Request) -> None:
        outcome: Outcome = "absent"
        try:
            body, parts = self._message(request)
            # From here on the connection may have queued the request when something raises.
            outcome = "unknown"
            request.handle = connection.request_nowait(
                m.Kind.PRODUCE,
                body,
                parts,
                timeout=self._settings.request_timeout_ms / 1000,
                on_done=partial(self._answered, request),
            )
        except TransportError as error:
            self._answered(request, error)
        except Exception as error:
            # Raised by `_answered`, and not by the hand-over: batches that it has settled must not settle twice.
            if request not in self._requests:
                raise
            self._unsendable(request, error, outcome)

    def _message(self, request: _Request) -> tuple[bytes, list[memoryview]]:
        """The body, and the bytes of the batches."""
        partitions, parts = [], []
        for _, batch in request.sent:
            # A view of its own: the batch lets go of its when it is settled, though this is still on its way.
            part = memoryview(batch.data or b"")
            parts.append(part)
            partitions.append(
                m.ProducePartition(topic=batch.topic, partition=batch.partition, size=len(part))
            )
        message = m.ProduceRequest(
            acks=self._acks,
            client_id=self._settings.client_id,
            transaction=self._tag,
            timeout_ms=self._settings.request_timeout_ms,
            partitions=partitions,
        )
        return wire.encode(message), parts

    def _unsendable(self, request: _Request, error: Exception, outcome: Outcome) -> None:
        """An error of this process: no node has to do with it, and another attempt would end the same way."""
        del self._requests[request]
        self._in_flight[request.node_id] -= 1
        for queue, batch in request.sent:
            self._refused(queue, batch, unmade(batch, error, outcome))
        self._repeat(request)

    def _take(self, queue: PartitionQueue) -> Batch | None:
        """The first waiting batch, in flight now; None if its bytes cannot be made."""
        batch = queue.waiting[0]
        # First: no record may join a batch whose bytes are being made.
        if batch is queue.tail.open:
            queue.tail.open = None
        if batch.data is None and batch.count > 1 and not self._divide_unsent(queue, batch):
            return None
        batch = queue.waiting[0]
        # The partitions take turns at the head of requests.
        del self.accumulator.active[queue]
        if len(queue.waiting) > 1:
            self.accumulator.active[queue] = None
        # A batch that goes again keeps its bytes: the leader recognises it by its sequence (KIP-98).
        if batch.data is None and not self._seal(queue, batch):
            return None
        queue.is_held_up = False
        return queue.launch(queue.leader)

    def _divide_unsent(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Divide the first waiting batch if the topic's limit is known to be lower than when it was gathered.

        False: its parts cannot be made, and it has failed.
        """
        largest = self.accumulator.largest_batch(batch)
        if batch.size <= largest:
            return True
        try:
            self._replace(queue, batch, *divided(batch, largest))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this batch alone
            self._fail_unmade(queue, batch, error)
            return False
        return True

    def _replace(
        self, queue: PartitionQueue, batch: Batch, parts: Sequence[Batch], starts: Sequence[int]
    ) -> None:
        batch.divide(parts, starts)
        queue.divided(batch, parts)
        self.accumulator.divided(batch, parts)
        batch.let_go()

    def _seal(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Make the bytes. Where that fails the batch takes no sequence, so that it leaves no gap."""
        sequenced = queue.sequenced
        identity = queue.identity
        assert identity is None or isinstance(identity, ProducerIdentity)
        try:
            batch.seal(
                identity if sequenced else None,
                queue.next_sequence if sequenced else -1,
                self._settings.compression_type,
                self._tag is not None,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this batch alone
            self._fail_unmade(queue, batch, error)
            return False
        if sequenced:
            queue.stamped(batch)
        return True

    # Answers

    def _answered(self, request: _Request, outcome: Response | TransportError) -> None:
        if request not in self._requests:
            # `_unsendable` has refused its batches, although it may have been queued: only memory is given back.
            if isinstance(outcome, Response):
                outcome.release()
            return
        del self._requests[request]
        self._in_flight[request.node_id] -= 1
        if isinstance(outcome, TransportError):
            self._unanswered(request, outcome)
        else:
            self._patience.answered(self._now() - request.sent_at)
            with outcome:
                self._results(request, outcome)
        if self.accumulator.active or self.fenced is not None:
            self.wake(0)

    def _unanswered(self, request: _Request, error: TransportError) -> None:
        if isinstance(error, NotAuthorisedError):
            for queue, batch in request.sent:
                self._refused(queue, batch, AuthorizationError(f"{queue}: {error}"))
        else:
            for queue, batch in request.sent:
                self._suspect(queue)
                self._failed(queue, batch, error, written=error.delivery != "never")
        self._repeat(request)

    def _results(self, request: _Request, response: Response) -> None:
        try:
            answer: m.ProduceResponse = wire.decode_response(m.Kind.PRODUCE, response.body)
            results = {(r.topic, r.partition): r for r in answer.partitions}
            if answer.throttle_time_ms > 0:
                self._muted_until[request.node_id] = trio.current_time() + answer.throttle_time_ms / 1000
        except wire.WireError as error:
            _log.error("node %d: %s", request.node_id, error)
            # Nothing is known of its batches: `code_of` makes this an unknown error with an unknown outcome.
            results = {}
        for queue, batch in request.sent:
            result = results.get((queue.topic, queue.partition))
            if result is None and self._acks == 0:
                result = m.ProduceResult(topic=queue.topic, partition=queue.partition, error=ErrorCode.NONE)
            self._result(queue, batch, result)
        self._repeat(request)

    def _result(self, queue: PartitionQueue, batch: Batch, result: m.ProduceResult | None) -> None:
        if result is not None and result.error == ErrorCode.NONE:
            return self._acknowledged(queue, batch, result.base_offset)
        code, said = code_of(result)
        if code == ErrorCode.RECORD_TOO_LARGE and batch.count == 1:
            said = f"one record is too large by itself: {said}" if said else said
        error = error_for(code, str(queue), said, outcome="absent" if code.definite else "unknown")
        if result is not None and result.leader >= 0:
            # Before `_suspect`, which looks for no successor where one is known by now (KIP-951).
            self._cluster.hint(queue.topic, queue.partition, Leader(result.leader, result.leader_epoch))
        # Before the error counts as final: here it only says that an earlier batch is missing.
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.follows_a_failure(batch):
            return self._failed(queue, batch, error, written=False)
        if not code.retriable:
            if isinstance(error, ProducerFencedError) and self._tag is None:
                # In a transaction this may be its timeout, which its coordinator tells.
                self.fence(error)
            if code == ErrorCode.RECORD_TOO_LARGE:
                # The topic may take less than it did when batches were last told how far to grow.
                self._cluster.look()
                if batch.count > 1 and not batch.done and self._given_up is None and self.fenced is None:
                    return self._divide(queue, batch, error)
            return self._refused(queue, batch, error)
        if code != ErrorCode.NOT_ENOUGH_REPLICAS:
            self._suspect(queue)
        return self._failed(queue, batch, error, written=not code.definite)

    def _acknowledged(self, queue: PartitionQueue, batch: Batch, base_offset: int) -> None:
        # Also for a batch that has expired meanwhile: it leaves no gap, and needs no new epoch.
        queue.acknowledged(batch)
        self._cluster.trust(queue.topic, queue.partition)
        if not batch.done:
            self._settle(batch, base_offset, None)

    def _divide(self, queue: PartitionQueue, batch: Batch, error: ClientError) -> None:
        """Send a refused batch of several records as smaller ones, under the same sequences (KIP-126)."""
        try:
            parts, starts = divided(batch, self.accumulator.largest_batch(batch))
            # All parts are sealed before the queue changes: if one cannot be, the batch is refused as it stands.
            if queue.sequenced:
                self._seal_parts(queue, batch.sequence, parts)
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is about this batch alone
            self._refused(queue, batch, unmade(batch, failure))
            return
        _log.info("%s; it is sent again in %d parts", error, len(parts))
        for part in parts:
            part.last_error = error
        self._replace(queue, batch, parts, starts)

    def _seal_parts(self, queue: PartitionQueue, sequence: int, parts: Sequence[Batch]) -> None:
        identity = queue.identity
        assert isinstance(identity, ProducerIdentity)
        for part in parts:
            codec = self._settings.compression_type
            part.seal(identity, sequence, codec, self._tag is not None)
            sequence = (sequence + part.count) % SEQUENCE_MODULUS

    def _warn_of(self, batch: Batch, error: BaseException) -> None:
        """A caller that only waits should not have to wait for `delivery_timeout_ms` to learn what for."""
        now = trio.current_time()
        waited = now - batch.created
        if waited >= _PATIENCE and now - self._warned_at >= _PATIENCE:
            self._warned_at = now
            _log.warning(
                "%s waited for %.0f s; sending continues until delivery_timeout_ms=%d is over: %s",
                counted(batch.count, "record has", "records have"),
                waited,
                self._settings.delivery_timeout_ms,
                error,
            )

    def _failed(self, queue: PartitionQueue, batch: Batch, error: BaseException, *, written: bool) -> None:
        """An attempt failed retriably; `written`: it may have reached the log nevertheless."""
        batch.last_error = error
        if batch.done:
            # Its outcome is told already: no other attempt is made, but the window must know of a possible gap.
            queue.given_up(batch, written=written)
        elif batch.attempts > self._settings.retries:
            # First: it notes whether the batch may be in the log, and the outcome says so.
            queue.given_up(batch, written=written)
            self._give_up(queue, batch, error)
        else:
            queue.retriable(batch, written=written)
            self._warn_of(batch, error)

    def _refused(self, queue: PartitionQueue, batch: Batch, error: ClientError) -> None:
        queue.given_up(batch)
        if not batch.done:
            error.outcome = "unknown" if batch.maybe_written or error.outcome == "unknown" else "absent"
            self._settle(batch, -1, error)

    def _fail_unsent(self, why: ClientError) -> None:
        """Another producer has this one's id, and a fenced one must not go on under a new identity (KIP-360); or
        its transaction is given up.
        """
        for batch in list(self.accumulator.pending):
            queue = self.accumulator.queue_of(batch)
            if batch.done or batch in queue.in_flight:
                # An answer will decide about a batch in flight.
                continue
            queue.withdraw(batch)
            if batch is queue.tail.open:
                queue.tail.open = None
            # Whoever gives a transaction up knows that its records are not delivered.
            batch.looked_at |= why is self._given_up
            # An error for each batch, since their outcomes differ.
            error = type(why)(str(why), outcome="unknown" if batch.maybe_written else "absent")
            self._settle(batch, -1, error)

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: BaseException) -> None:
        if not isinstance(error, ClientError):
            error = DeliveryTimeoutError(
                f"{queue}: not acknowledged after {batch.attempts} attempts; {error}"
            )
        error.outcome = "unknown" if batch.maybe_written else "absent"
        self._settle(batch, -1, error)

    def _repeat(self, request: _Request) -> None:
        """Where the last one in flight has settled, what failed goes again."""
        for queue, _ in request.sent:
            if not queue.round_is_over:
                continue
            starved = all(has_code(batch, ErrorCode.NOT_ENOUGH_REPLICAS) for batch in queue.failed)
            if starved:
                # It leads, as far as it knows; one cut off from the metadata store learns last that it does not.
                self._cluster.look()
            pause = self._cluster.backoff if starved else self._cluster.quick_backoff
            # What was divided differs from what was refused: it need not wait.
            seconds = 0.0 if any(not batch.attempts for batch in queue.failed) else pause(queue.retries + 1)
            queue.repeat(trio.current_time() + seconds)
            # The queue left `active` with its last batch (`_take`): no look would come upon it.
            self.accumulator.active[queue] = None

    def _suspect(self, queue: PartitionQueue) -> None:
        assert isinstance(queue.target, Leader)
        # The leader that was sent the batches: a successor that is known by now has not failed.
        self._cluster.suspect(queue.topic, queue.partition, queue.target)

    def _fail_unmade(self, queue: PartitionQueue, batch: Batch, error: Exception) -> None:
        """The bytes of a waiting batch, or of its parts, cannot be made: it fails, and the others go on."""
        queue.waiting.remove(batch)
        self._settle(batch, -1, unmade(batch, error))

    def _settle(self, batch: Batch, base_offset: int, error: ClientError | None) -> None:
        if error is not None:
            level = logging.WARNING if self._given_up is None else logging.DEBUG
            failed = counted(batch.count, "record")
            _log.log(level, "%s failed: %s (outcome: %s)", failed, error, error.outcome)
            if self.on_failure is not None:
                # Before the callbacks, which may send: the transaction has failed, and takes no more records.
                self.on_failure(error)
        batch.settle(base_offset, error)
        batch.let_go()
        # Last: it takes only batches that are done from `pending`.
        self.accumulator.release(batch)

    # Time

    def _expire(self, now: float) -> float:
        """Fail what is past its delivery timeout; gives when the next one will be."""
        pending = self.accumulator.pending
        # All batches have the same timeout, and parts keep their place: the first is due first.
        if pending and pending[0].deadline <= now:
            # A copy: `_settle` takes batches out.
            for batch in list(pending):
                if batch.deadline > now:
                    break
                if not batch.done:
                    self._expire_batch(batch)
        return pending[0].deadline if pending else _NEVER

    def _expire_batch(self, batch: Batch) -> None:
        queue = self.accumulator.queue_of(batch)
        flying = batch in queue.in_flight
        # One in flight stays in its window: its request carries other batches, and only the answer shows a gap.
        if not flying:
            queue.withdraw(batch)
        # Later records would join a batch that is never sent.
        if batch is queue.tail.open:
            queue.tail.open = None
        outcome: Outcome = "unknown" if batch.maybe_written or flying else "absent"
        error = DeliveryTimeoutError(
            f"{queue}: {counted(batch.count, 'record')} not acknowledged within "
            f"delivery_timeout_ms={self._settings.delivery_timeout_ms}; {self._trouble(queue, batch)}",
            outcome=outcome,
        )
        error.__cause__ = batch.last_error
        self._settle(batch, -1, error)

    def _trouble(self, queue: PartitionQueue, batch: Batch) -> str:
        if batch.last_error is not None:
            return f"last trouble: {batch.last_error}"
        if queue.leader.node_id < 0:
            return "the partition has no leader"
        if batch in queue.in_flight:
            return "its leader has not answered"
        return "it waits behind other batches; is its leader reachable?"

    def _check_requests(self, now: float) -> None:
        """Where an answer is slow, see whether the leader has moved; if so, do not wait for the old one."""
        changed, self._leaders_changed = self._leaders_changed, False
        for request in list(self._requests):
            is_slow = request.next_check <= now
            if is_slow:
                request.next_check = now + MOST
                # Other nodes are asked, repeatedly: a leader that hangs cannot say who succeeds it.
                self._cluster.silent(request.node_id)
                for queue, _ in request.sent:
                    self._suspect(queue)
            # Only with sequences, by which a new leader recognises a batch that the former one appended (KIP-98).
            # Without them the batch would be in the log twice.
            if (changed or is_slow) and self._is_idempotent and self._moved(request, now):
                self._abandon(request)

    def _moved(self, request: _Request, now: float) -> bool:
        """All its partitions, or after a while any of them, are led by another node now."""
        leaders = (queue.leader.node_id for queue, _ in request.sent)
        # While no leader is known (-1) the former one may still answer.
        gone = [node_id not in (-1, request.node_id) for node_id in leaders]
        # Partitions that have not moved get a moment for their answer: abandoned, their batches go again, too.
        return all(gone) or (any(gone) and now - request.sent_at >= MOST)

    def _abandon(self, request: _Request) -> None:
        handle = request.handle
        # Its delivery is "maybe": the former leader may have appended the batches.
        error = DeadlineExceeded("leadership moved while the request was under way")
        self._answered(request, error)
        if handle is not None:
            handle.cancel()  # type: ignore[attr-defined]
