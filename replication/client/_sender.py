"""Sends batches to leaders: which may go, in which requests, and what an answer means for them.

Order and exactly-once (KIP-98, KIP-360): a partition has up to five batches in flight. When one of them fails
retriably nothing more of that partition is sent until all have settled; then those not acknowledged go again
in sequence order, byte for byte, so that the leader knows a repetition. A batch of which no bytes can be made
takes no sequence, so that it leaves no gap. One that is given up after it was sent may leave a gap in the
sequences. Whatever was sent behind it is tried under the old epoch first: accepted means that there is no gap;
out of order proves that none of it is in the log, and it moves to the next epoch.
"""

from __future__ import annotations

import logging

import attrs
import trio

from ...transport import Connection, DeadlineExceeded, NotAuthorisedError, Response, TransportError, turn
from .. import wire
from ..core import messages as m
from ..core.errors import ErrorCode
from ..core.types import SEQUENCE_MODULUS
from ._accumulator import Accumulator, Lane
from ._batch import Batch
from ._buffers import Buffers
from ._cluster import Cluster, Leader
from ._failures import code_of, has_code, unmade
from ._identities import Identities
from ._settings import ProducerSettings
from .errors import (
    AuthorizationError,
    ClientError,
    DeliveryTimeoutError,
    Outcome,
    ProducerFencedError,
    error_for,
)

_log = logging.getLogger("insync.client")
_NEVER = float("inf")
_SLOW_REQUEST = 1.0
_PATIENCE = 5.0
"""Seconds after which the log tells of records that are sent again and again, and before it tells of others."""


@attrs.define(eq=False, slots=True)
class _Request:
    node_id: int
    sent: list[tuple[Lane, Batch]]
    sent_at: float
    next_check: float
    handle: object = None
    moved: bool = False


class Sender:
    """Drives the lanes of one producer; `run` must run in a task."""

    def __init__(self, settings: ProducerSettings, cluster: Cluster, nursery: trio.Nursery) -> None:
        self.accumulator = Accumulator(settings, cluster, self.wake)
        self.flushing = 0
        self.fenced: ProducerFencedError | None = None
        """Set once a node has said that somebody else goes on under this producer's id."""
        self._told = -_NEVER
        self._settings = settings
        self._cluster = cluster
        self._event = trio.Event()
        self._armed = _NEVER
        self._requests: dict[_Request, None] = {}
        self._in_flight: dict[int, int] = {}
        self._muted_until: dict[int, float] = {}
        """Until when a node wants nothing of us, because of our quota (KIP-219)."""
        self._identities = Identities(settings, cluster, nursery, self.wake)
        self._linger = settings.linger_ms / 1000
        self._turn = turn()
        self._buffers = Buffers()
        self._leaders_changed = False
        """Since requests under way were last compared with them."""
        cluster.listeners.append(self._metadata_changed)

    def wake(self, at: float) -> None:
        """Look again at time `at` (0: now)."""
        if at < self._armed:
            self._event.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            # A cancel scope for each record would cost more than all that is done here. This one may end too soon.
            with trio.CancelScope() as alarm:
                while True:
                    self._event = trio.Event()
                    self._armed = _NEVER
                    with self._turn:
                        self._armed = self._pump()
                    if self._armed < alarm.deadline:
                        alarm.deadline = self._armed
                    await self._event.wait()

    def _metadata_changed(self) -> None:
        self._leaders_changed = True
        if self.accumulator.pending:
            self.wake(0)

    # What may go now

    def _pump(self) -> float:
        """Send all that may be sent; gives the time at which to look again."""
        now = trio.current_time()
        self.fenced = self.fenced or self._identities.fenced
        if self.fenced is not None:
            self._fail_unsent(self.fenced)
        self._check_requests(now)
        next_at = self._expire(now)
        ready: dict[int, list[Lane]] = {}
        for lane in list(self.accumulator.active):
            if not lane.queue:
                del self.accumulator.active[lane]
                continue
            leader = self._cluster.leader(lane.topic, lane.partition)
            at = self._sendable_at(lane, leader, now)
            if at <= now:
                ready.setdefault(leader.node_id, []).append(lane)
            else:
                next_at = min(next_at, at)
        for node_id, lanes in ready.items():
            next_at = min(next_at, self._send_to(node_id, lanes, now))
        return min([next_at, *(request.next_check for request in self._requests)])

    def _sendable_at(self, lane: Lane, leader: Leader, now: float) -> float:
        """When the head of a lane may go; never, if an event must come first that wakes us anyway."""
        at = self._due_at(lane, now)
        if at > now or lane.failed or not self._may_follow(lane, leader):
            return _NEVER if at <= now else at
        if leader.node_id < 0:
            self._cluster.suspect(lane.topic, lane.partition, leader)
            return _NEVER
        if lane.retry_at > now and leader == lane.failed_leader:
            return lane.retry_at
        if self._settings.idempotent and not self._identified(lane):
            return _NEVER
        return now

    def _may_follow(self, lane: Lane, leader: Leader) -> bool:
        """Whether one more may be put in flight: the window has room, and the rest went to the same leader."""
        if not lane.in_flight:
            return True
        if self._settings.idempotent and not lane.established:
            # A leader that does not know the producer accepts any sequence: a second batch could be taken
            # before the first, which then never could.
            return False
        limit = self._settings.max_in_flight_requests_per_connection
        # Counted from the oldest not acknowledged, also past acknowledged ones: the leader must still remember
        # it when it comes again.
        return lane.queue[0].number - lane.in_flight[0].number < limit and leader == lane.in_flight_leader

    def _due_at(self, lane: Lane, now: float) -> float:
        head = lane.queue[0]
        hurry = self.flushing or self.accumulator.waiting
        if hurry or head is not lane.open or head.data is not None:
            return now
        return head.created + self._linger

    def _identified(self, lane: Lane) -> bool:
        """Give the lane a producer identity under which its head may be sent, if there is one yet."""
        if lane.gap >= 0 and not lane.in_flight and (lane.gap_confirmed or lane.queue[0].data is None):
            return self._bump(lane)
        if lane.identity is None:
            lane.identity = self._identities.current
        if lane.identity is None:
            self._identities.want()
        return lane.identity is not None

    def _bump(self, lane: Lane) -> bool:
        """Begin anew at sequence 0 of the next epoch; nothing of the lane is in flight, nor in the log."""
        identity = self._identities.current
        if identity is None or identity == lane.identity:
            self._identities.want()
            return False
        lane.identity, lane.next_sequence = identity, 0
        lane.gap, lane.gap_confirmed, lane.established = -1, False, False
        for batch in [each for each in lane.queue if each.data is not None]:
            try:
                batch.restamp(identity, lane.next_sequence)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this batch alone
                lane.queue.remove(batch)
                self._settle(batch, -1, unmade(batch, error))
            else:
                self._take_sequence(lane, batch)
        return bool(lane.queue)

    def _take_sequence(self, lane: Lane, batch: Batch) -> None:
        """Its bytes stand: what comes behind it follows it. One that was never made must not leave a gap."""
        lane.next_sequence = (lane.next_sequence + batch.count) % SEQUENCE_MODULUS

    # Sending

    def _send_to(self, node_id: int, lanes: list[Lane], now: float) -> float:
        if self._muted_until.get(node_id, 0.0) > now:
            return self._muted_until[node_id]
        connection = self._cluster.links.nowait(node_id)
        if connection is None:
            return self._unreachable(node_id, lanes)
        while (
            lanes and self._in_flight.get(node_id, 0) < self._settings.max_in_flight_requests_per_connection
        ):
            if not self._send_one(connection, node_id, lanes, now):
                # Whoever sends such records again when told must not keep us here.
                self.wake(0)
                break
            lanes = [lane for lane in lanes if lane.queue and self._still_sendable(lane, node_id, now)]
        return _NEVER

    def _still_sendable(self, lane: Lane, node_id: int, now: float) -> bool:
        leader = self._cluster.leader(lane.topic, lane.partition)
        return leader.node_id == node_id and self._sendable_at(lane, leader, now) <= now

    def _unreachable(self, node_id: int, lanes: list[Lane]) -> float:
        at = self._cluster.links.retry_at(node_id)
        if at < _NEVER:
            for lane in lanes:
                self._cluster.suspect(
                    lane.topic, lane.partition, self._cluster.leader(lane.topic, lane.partition)
                )
        return at

    def _send_one(self, connection: Connection, node_id: int, lanes: list[Lane], now: float) -> bool:
        """One request with the first batch of each lane, up to `max_request_size`; False: none could be made."""
        request = _Request(node_id, [], now, now + _SLOW_REQUEST)
        size = 0
        for lane in lanes:
            head = lane.queue[0]
            if request.sent and size + head.size > self._settings.max_request_size:
                break
            size += head.size
            batch = self._take(lane)
            if batch is not None:
                request.sent.append((lane, batch))
        if not request.sent:
            return False
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        self._requests[request] = None
        self._hand_over(connection, request)
        if self._settings.wire_acks == 0 and request in self._requests:
            for _, batch in request.sent:
                self._settle(batch, -1, None)
        return True

    def _hand_over(self, connection: Connection, request: _Request) -> None:
        outcome: Outcome = "absent"
        try:
            body = self._body(request)
            outcome = "unknown"
            request.handle = connection.request_nowait(
                m.Kind.PRODUCE,
                body,
                # A view of their own: the batch lets go of its when it is settled, though this is still on its way.
                [memoryview(batch.data) for _, batch in request.sent if batch.data is not None],
                timeout=self._settings.request_timeout_ms / 1000,
                on_done=lambda outcome: self._answered(request, outcome),
            )
        except TransportError as error:
            self._answered(request, error)
        except Exception as error:
            if request not in self._requests:
                raise
            self._unsendable(request, error, outcome)

    def _body(self, request: _Request) -> bytes:
        return wire.encode(
            m.ProduceRequest(
                acks=self._settings.wire_acks,
                client_id=self._settings.client_id,
                timeout_ms=self._settings.request_timeout_ms,
                partitions=[
                    m.ProducePartition(
                        topic=batch.topic, partition=batch.partition, size=len(batch.data or b"")
                    )
                    for _, batch in request.sent
                ],
            )
        )

    def _unsendable(self, request: _Request, error: Exception, outcome: Outcome) -> None:
        """An error of this process: no node has to do with it, and another attempt would end the same way."""
        del self._requests[request]
        self._in_flight[request.node_id] -= 1
        for lane, batch in request.sent:
            self._refused(lane, batch, unmade(batch, error, outcome))
        for lane, _ in request.sent:
            self._requeue(lane)

    def _take(self, lane: Lane) -> Batch | None:
        """The head of a lane, in flight now; None if its bytes cannot be made."""
        batch = lane.queue.popleft()
        if batch is lane.open:
            lane.open = None
        # The lanes take turns at the head of requests.
        del self.accumulator.active[lane]
        if lane.queue:
            self.accumulator.active[lane] = None
        if batch.data is None and not self._seal(lane, batch):
            return None
        batch.attempts += 1
        lane.in_flight.append(batch)
        lane.in_flight_leader = self._cluster.leader(lane.topic, lane.partition)
        return batch

    def _seal(self, lane: Lane, batch: Batch) -> bool:
        sequenced = self._settings.idempotent
        try:
            batch.seal(
                lane.identity if sequenced else None,
                lane.next_sequence if sequenced else -1,
                self._settings.compression_type,
                self._buffers,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this batch alone
            self._settle(batch, -1, unmade(batch, error))
            return False
        if sequenced:
            self._take_sequence(lane, batch)
        return True

    # Answers

    def _answered(self, request: _Request, outcome: Response | TransportError) -> None:
        if request not in self._requests:
            if isinstance(outcome, Response):
                outcome.release()
            return
        del self._requests[request]
        self._in_flight[request.node_id] -= 1
        if isinstance(outcome, TransportError):
            self._unanswered(request, outcome)
        else:
            with outcome:
                self._results(request, outcome)
        if self.accumulator.active or self.fenced is not None:
            self.wake(0)

    def _unanswered(self, request: _Request, error: TransportError) -> None:
        if isinstance(error, NotAuthorisedError):
            for lane, batch in request.sent:
                self._refused(lane, batch, AuthorizationError(f"{lane.topic}-{lane.partition}: {error}"))
            return
        for lane, batch in request.sent:
            self._suspect(lane)
            self._failed(lane, batch, error, written=error.delivery != "never")
        for lane, _ in request.sent:
            self._requeue(lane)

    def _results(self, request: _Request, response: Response) -> None:
        try:
            answer: m.ProduceResponse = wire.decode_response(m.Kind.PRODUCE, response.body)
            results = {(r.topic, r.partition): r for r in answer.partitions}
            if answer.throttle_time_ms > 0:
                self._muted_until[request.node_id] = trio.current_time() + answer.throttle_time_ms / 1000
        except wire.WireError as error:
            _log.error("node %d: %s", request.node_id, error)
            results = {}
        for lane, batch in request.sent:
            result = results.get((lane.topic, lane.partition))
            if result is None and self._settings.wire_acks == 0:
                result = m.ProduceResult(topic=lane.topic, partition=lane.partition, error=ErrorCode.NONE)
            self._result(lane, batch, result)
        for lane, _ in request.sent:
            self._requeue(lane)

    def _result(self, lane: Lane, batch: Batch, result: m.ProduceResult | None) -> None:
        if result is not None and result.error == ErrorCode.NONE:
            return self._acknowledged(lane, batch, result.base_offset)
        code, said = code_of(result)
        thing = f"{lane.topic}-{lane.partition}"
        error = error_for(code, thing, said, outcome="absent" if code.definite else "unknown")
        if result is not None and result.leader >= 0:
            self._cluster.hint(lane.topic, lane.partition, Leader(result.leader, result.leader_epoch))
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._in_order_again(lane, batch):
            return self._failed(lane, batch, error, written=False)
        if not code.retriable:
            if isinstance(error, ProducerFencedError):
                self.fenced = error
            return self._refused(lane, batch, error)
        if code != ErrorCode.NOT_ENOUGH_REPLICAS:
            self._suspect(lane)
        return self._failed(lane, batch, error, written=not code.definite)

    def _acknowledged(self, lane: Lane, batch: Batch, base_offset: int) -> None:
        lane.in_flight.remove(batch)
        lane.retries = 0
        lane.established = True
        if batch.number > lane.gap:
            lane.gap = -1
        self._cluster.trust(lane.topic, lane.partition)
        if not batch.done:
            self._settle(batch, base_offset, None)

    def _in_order_again(self, lane: Lane, batch: Batch) -> bool:
        """Whether out of order is but the consequence of an earlier batch of ours that is not in the log."""
        earlier = [*lane.failed, *lane.in_flight]
        if any(other.number < batch.number for other in earlier):
            return True
        if lane.gap >= 0 and lane.gap < batch.number:
            lane.gap_confirmed = True
            return True
        return False

    def _tell_of(self, batch: Batch, error: BaseException) -> None:
        """Who only waits should not have to wait for `delivery_timeout_ms` to learn what for."""
        now = trio.current_time()
        waited = now - batch.created
        if waited >= _PATIENCE and now - self._told >= _PATIENCE:
            self._told = now
            _log.warning(
                "%d records have waited for %.0f s and are sent again until delivery_timeout_ms=%d is over: %s",
                batch.count,
                waited,
                self._settings.delivery_timeout_ms,
                error,
            )

    def _failed(self, lane: Lane, batch: Batch, error: BaseException, *, written: bool) -> None:
        """An attempt failed retriably; `written`: it may have reached the log all the same."""
        lane.in_flight.remove(batch)
        batch.last_error = error
        batch.maybe_written |= written
        if batch.done:
            self._leave_gap(lane, batch)
        elif batch.attempts > self._settings.retries:
            self._give_up(lane, batch, error)
        else:
            lane.failed.append(batch)
            lane.failed_leader = lane.in_flight_leader
            self._tell_of(batch, error)

    def _refused(self, lane: Lane, batch: Batch, error: ClientError) -> None:
        lane.in_flight.remove(batch)
        self._leave_gap(lane, batch)
        if not batch.done:
            error.outcome = "unknown" if batch.maybe_written or error.outcome == "unknown" else "absent"
            self._settle(batch, -1, error)

    def _fail_unsent(self, fenced: ProducerFencedError) -> None:
        """Somebody else goes on where we were: whoever was fenced must not go on under a new identity (KIP-360)."""
        for batch in list(self.accumulator.pending):
            lane = self.accumulator.lane_of(batch)
            if batch.done or batch in lane.in_flight:
                continue
            for waiting in (lane.queue, lane.failed):
                if batch in waiting:
                    waiting.remove(batch)
            if batch is lane.open:
                lane.open = None
            error = ProducerFencedError(str(fenced), outcome="unknown" if batch.maybe_written else "absent")
            self._settle(batch, -1, error)

    def _give_up(self, lane: Lane, batch: Batch, error: BaseException) -> None:
        self._leave_gap(lane, batch)
        outcome: Outcome = "unknown" if batch.maybe_written else "absent"
        if not isinstance(error, ClientError):
            thing = f"{lane.topic}-{lane.partition}"
            error = DeliveryTimeoutError(
                f"{thing}: not acknowledged after {batch.attempts} attempts; {error}"
            )
        error.outcome = outcome
        self._settle(batch, -1, error)

    def _leave_gap(self, lane: Lane, batch: Batch) -> None:
        if batch.sequence >= 0:
            lane.gap = max(lane.gap, batch.number)

    def _requeue(self, lane: Lane) -> None:
        """When the last one in flight has settled, what failed goes again, in order."""
        if lane.in_flight or not lane.failed:
            return
        lane.retries += 1
        starved = all(has_code(batch, ErrorCode.NOT_ENOUGH_REPLICAS) for batch in lane.failed)
        if starved:
            # It leads, as far as it knows; one cut off from the metadata store learns last that it does not.
            self._cluster.look()
        pause = self._cluster.backoff if starved else self._cluster.quick_backoff
        lane.retry_at = -1.0 if lane.gap_confirmed else trio.current_time() + pause(lane.retries)
        lane.queue.extendleft(sorted(lane.failed, key=lambda batch: -batch.number))
        lane.failed.clear()
        self.accumulator.active[lane] = None

    def _suspect(self, lane: Lane) -> None:
        self._cluster.suspect(lane.topic, lane.partition, lane.in_flight_leader)

    def _settle(self, batch: Batch, base_offset: int, error: ClientError | None) -> None:
        if error is not None:
            _log.warning("%d records failed: %s (outcome: %s)", batch.count, error, error.outcome)
        batch.settle(base_offset, error)
        batch.let_go(self._buffers)
        self.accumulator.release(batch)

    # Time

    def _expire(self, now: float) -> float:
        """Fail what is past its delivery timeout; gives when the next one will be."""
        pending = self.accumulator.pending
        for batch in list(pending) if pending and pending[0].deadline <= now else ():
            if batch.deadline > now:
                break
            if not batch.done:
                self._expire_batch(batch)
        return pending[0].deadline if pending else _NEVER

    def _expire_batch(self, batch: Batch) -> None:
        lane = self.accumulator.lane_of(batch)
        flying = batch in lane.in_flight
        for waiting in (lane.queue, lane.failed):
            if batch in waiting:
                waiting.remove(batch)
                self._leave_gap(lane, batch)
                # The pauses were the trouble of this one; what follows gets its own first try at once.
                lane.retries, lane.retry_at = 0, -1.0
        if batch is lane.open:
            lane.open = None
        outcome: Outcome = "unknown" if batch.maybe_written or flying else "absent"
        error = DeliveryTimeoutError(
            f"{batch.topic}-{batch.partition}: {batch.count} records not acknowledged within "
            f"delivery_timeout_ms={self._settings.delivery_timeout_ms}; {self._trouble(lane, batch)}",
            outcome=outcome,
        )
        error.__cause__ = batch.last_error
        self._settle(batch, -1, error)

    def _trouble(self, lane: Lane, batch: Batch) -> str:
        if batch.last_error is not None:
            return f"last trouble: {batch.last_error}"
        if self._cluster.leader(lane.topic, lane.partition).node_id < 0:
            return "the partition has no leader"
        if batch in lane.in_flight:
            return "its leader has not answered"
        return "its turn has not come; is its leader reachable?"

    def _check_requests(self, now: float) -> None:
        """Where an answer is slow, see whether the leader has moved; if so, do not wait for the old one."""
        changed, self._leaders_changed = self._leaders_changed, False
        for request in list(self._requests):
            is_slow = request.next_check <= now
            if is_slow:
                request.next_check = now + _SLOW_REQUEST
                # Others are asked, and again and again: who hangs cannot tell who follows it.
                self._cluster.silent(request.node_id)
                for lane, _ in request.sent:
                    self._suspect(lane)
            if (changed or is_slow) and self._settings.idempotent and self._moved(request, now):
                self._abandon(request)

    def _moved(self, request: _Request, now: float) -> bool:
        """All its partitions, or after a while any of them, are led by another node now."""
        leaders = (self._cluster.leader(lane.topic, lane.partition).node_id for lane, _ in request.sent)
        gone = [node_id not in (-1, request.node_id) for node_id in leaders]
        return all(gone) or (any(gone) and now - request.sent_at >= _SLOW_REQUEST)

    def _abandon(self, request: _Request) -> None:
        handle = request.handle
        error = DeadlineExceeded("leadership moved while the request was under way")
        self._answered(request, error)
        if handle is not None:
            handle.cancel()  # type: ignore[attr-defined]
