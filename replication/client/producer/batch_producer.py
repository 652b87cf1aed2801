"""A producer of whole record batches, for programs that build them themselves: connectors, loaders, mirrors.

It sends what it is given, byte for byte: identity and sequences are the caller's. The `SendWindow` of a partition
decides which batch goes next, as with `Producer`. A failure that cannot be repaired ends the whole producer: there
is no way to leave a batch out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import attrs
import trio

from ....transport import NotAuthorisedError, Response, TransportError
from ... import wire
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.types import PartitionId
from .. import _arguments as given
from .._settings import ProducerSettings, make_settings
from ..connection._client import Client
from ..connection._cluster import Cluster, Leader
from ..connection._per_leader import PerLeader
from ..errors import (
    AuthorizationError,
    BatchError,
    ClientError,
    DeliveryTimeoutError,
    InvalidRequestError,
    RequestTimeoutError,
    error_for,
)
from ._window import SendWindow

_ACKS_ALL = -1


class Written(NamedTuple):
    """A producer's committed state in a partition: sequence and offset of its last record, -1 for none, and its
    epoch.
    """

    last_sequence: int
    producer_epoch: int
    last_offset: int = -1


class NamedProducer(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int


@attrs.define(eq=False, slots=True)
class _Sent:
    """A batch; how many sequences it has is the caller's to know, and its place does not depend on it."""

    data: bytes
    number: int = -1
    sequence: int = 0
    count: int = 1
    attempts: int = 0
    maybe_written: bool = False
    maybe_in_whole: bool = False
    outcome: Response | TransportError | None = None
    handle: Any = None


class _Queue(SendWindow[_Sent]):
    """The batches of one partition; one task sends them."""

    __slots__ = ("answered", "at", "failing_since", "more", "trouble")

    def __init__(self, at: PartitionId) -> None:
        super().__init__()
        self.at = at
        self.more = trio.Event()
        """Set when there is something to send or to settle."""
        self.answered: deque[_Sent] = deque()
        self.failing_since: float | None = None
        self.trouble: Exception | None = None
        """Why the last round of attempts failed."""


class BatchProducer(Client):
    """`async with BatchProducer(servers) as producer`; acks are always all.

    A batch goes as it is, with the sequences that its caller gave it. One that its topic does not take
    (`max_message_bytes`) ends the producer with `RecordTooLargeError`; `Producer` would divide it.

    Options are the fields of `ProducerSettings`; of these count the client's own, `buffer_memory`, and
    `delivery_timeout_ms`: how long one batch may fail before all is given up.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = make_settings(ProducerSettings, options, settings)
        super().__init__(bootstrap_servers, self._settings)
        self._queues: dict[PartitionId, _Queue] = {}
        self._used = 0
        self._changed = trio.Event()
        self._error: ClientError | None = None
        self._tag: m.ProduceTransaction | None = None
        """Of transactional batches."""

    def _start(self) -> None:
        """The task of a partition starts when that is first used."""

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has.

        Raises:
          UnknownTopicError: It does not exist.
          MetadataTimeoutError: Nobody told within `max_block_ms`.
        """
        self._check_open()
        found = await self._cluster.topic(topic, timeout=self._settings.max_block_ms / 1000)
        return len(found.leaders)

    async def identify(self, name: str = "") -> NamedProducer:
        """Get a new producer id; with a name, the id of that name at its next epoch.

        A name outlives its processes, until it is forgotten: a process that asked for it before is fenced where
        its successor writes. Begin its sequences at 1, so that a successor is let in only exactly where its
        predecessor stopped: at 0 a new epoch starts over, whatever the log holds. Raises ClientError if no node
        answers.
        """
        self._check_open()
        request = m.InitProducerIdRequest(identity=given.text("name", name))
        answer = await ask_until_told(
            self._cluster, m.Kind.INIT_PRODUCER_ID, request, self._timeout, "producer id"
        )
        return NamedProducer(answer.producer_id, answer.producer_epoch)

    @property
    def _timeout(self) -> float:
        return self._settings.request_timeout_ms / 1000

    async def written(
        self, producer_id: int, partitions: Iterable[tuple[str, int]]
    ) -> dict[PartitionId, Written]:
        """A producer's committed state in each partition.

        Waits until all that is in the log of it is committed, so that nothing of it can vanish any more.
        Raises RequestTimeoutError if the leaders do not tell within `delivery_timeout_ms`.
        """
        self._check_open()
        wanted = set(given.partitions(partitions))
        question = _Describe(self._cluster, given.whole("producer_id", producer_id), wanted)
        return await question.answers(self._settings.delivery_timeout_ms / 1000)

    async def send(self, topic: str, partition: int, batch: bytes) -> None:
        """Hand over one batch; waits for room only. Raises what an earlier batch of any partition met."""
        self._check_open()
        at = given.partition((topic, partition))
        if not isinstance(batch, bytes | bytearray | memoryview):
            raise given.refused("batch", batch, "give the bytes of one record batch")
        while self._used + len(batch) > max(self._settings.buffer_memory, len(batch)):
            self._raise()
            await self._changed.wait()
        self._raise()
        queue = self._queues.get(at)
        if queue is None:
            queue = self._queues[at] = _Queue(at)
            self._nursery.start_soon(self._run, queue)
        self._used += len(batch)
        queue.push(_Sent(batch))
        queue.more.set()
        await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        """Wait until everything is acknowledged. Raises what one of the batches met."""
        self._check_open()
        while self._used and self._error is None:
            await self._changed.wait()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _run(self, queue: _Queue) -> None:
        try:
            await self._cluster.topic(queue.at.topic, timeout=self._settings.max_block_ms / 1000)
            await self._cluster.check_partition(queue.at)
            while self._error is None:
                await self._turn(queue)
        except ClientError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - a nursery would take the caller's own code down with it
            failure = BatchError(f"{queue.at}: a batch could not be sent: {error!r}", outcome="unknown")
            failure.__cause__ = error
            self._end(failure)

    def _end(self, error: ClientError) -> None:
        self._error = self._error or error
        self._notify()

    async def _turn(self, queue: _Queue) -> None:
        """Take the answers that have come and send what may go; then wait for something to do."""
        queue.more = trio.Event()
        # In order of arrival: out of order is not a loss while the previous batch is still in flight.
        while queue.answered:
            self._settle(queue, queue.answered.popleft())
        if queue.round_is_over:
            queue.repeat(0.0)
            assert queue.trouble is not None
            await self._pause(queue, queue.trouble)
        while queue.may_send(leader := self._cluster.leader(*queue.at)):
            if not await self._send(queue, leader):
                break
        if queue.in_flight or not queue.waiting:
            await queue.more.wait()

    async def _send(self, queue: _Queue, leader: Leader) -> bool:
        """Whether the next batch is under way."""
        try:
            if leader.node_id < 0:
                raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, str(queue.at))
            connection = await self._cluster.links.get(leader.node_id)
        except (TransportError, ClientError) as error:
            if not queue.in_flight:
                queue.retries += 1
                self._cluster.suspect(*queue.at, leader)
                await self._pause(queue, error)
            return False
        sent = queue.launch(leader)
        at = m.ProducePartition(topic=queue.at.topic, partition=queue.at.partition, size=len(sent.data))
        body = wire.encode(
            m.ProduceRequest(
                acks=_ACKS_ALL,
                transaction=self._tag,
                timeout_ms=self._settings.request_timeout_ms,
                partitions=[at],
            )
        )

        def on_done(outcome: Response | TransportError) -> None:
            sent.outcome = outcome
            queue.answered.append(sent)
            queue.more.set()

        sent.handle = connection.request_nowait(
            m.Kind.PRODUCE, body, [sent.data], timeout=self._timeout, on_done=on_done
        )
        return True

    def _settle(self, queue: _Queue, sent: _Sent) -> None:
        """Take one answer. Raises what no repetition repairs."""
        error = self._outcome(queue, sent)
        if error is None:
            queue.acknowledged(sent)
            queue.failing_since = None
            self._cluster.trust(*queue.at)
            self._used -= len(sent.data)
            self._notify()
            return
        follows = _code(error) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.follows_a_failure(sent)
        if isinstance(error, ClientError) and not error.retriable and not follows:
            raise error
        if not follows:
            assert isinstance(queue.target, Leader)
            self._cluster.suspect(*queue.at, queue.target)
        # The first of a round is the cause; what follows it is out of order.
        queue.trouble = queue.trouble if queue.failed else error
        # The outcome stays "unknown": a final failure ends the producer without an answer for this batch.
        queue.retriable(sent, written=True)

    async def _pause(self, queue: _Queue, error: Exception) -> None:
        """Before another attempt; DeliveryTimeoutError if there have been enough."""
        now = trio.current_time()
        queue.failing_since = now if queue.failing_since is None else queue.failing_since
        if now - queue.failing_since > self._settings.delivery_timeout_ms / 1000:
            raise DeliveryTimeoutError(
                f"{queue.at}: not acknowledged within delivery_timeout_ms={self._settings.delivery_timeout_ms}; "
                f"last trouble: {error}",
                outcome="unknown",
            ) from error
        await trio.sleep(self._cluster.quick_backoff(queue.retries))

    def _outcome(self, queue: _Queue, sent: _Sent) -> Exception | None:
        """The error of a batch that has settled, if it failed."""
        outcome = sent.outcome
        if isinstance(outcome, NotAuthorisedError):
            return AuthorizationError(f"{queue.at}: {outcome}")
        if isinstance(outcome, TransportError):
            return outcome
        assert outcome is not None
        with outcome:
            try:
                answer: m.ProduceResponse = wire.decode_response(m.Kind.PRODUCE, outcome.body)
                (result,) = answer.partitions
            except (wire.WireError, ValueError) as error:
                return ClientError(f"{queue.at}: malformed response of its leader: {error}")
        if result.error == ErrorCode.NONE:
            return None
        self._cluster.hint(*queue.at, Leader(result.leader, result.leader_epoch))
        said = result.message
        if result.error == ErrorCode.RECORD_TOO_LARGE and said:
            said = f"a whole batch is never divided: {said}"
        return error_for(result.error, str(queue.at), said)


def _code(error: Exception) -> ErrorCode | None:
    return getattr(error, "code", None)


async def ask_until_told(cluster: Cluster, kind: m.Kind, request: object, timeout: float, thing: str) -> Any:
    """Ask nodes in turn until one can answer."""
    last: ClientError | None = None
    attempt = 0
    with trio.move_on_after(timeout):
        while True:
            attempt += 1
            try:
                answer = await cluster.ask(kind, request, timeout=timeout)
            except (AuthorizationError, InvalidRequestError):
                raise
            except ClientError as error:
                last = error
            else:
                if answer.error == ErrorCode.NONE:
                    return answer
                last = error_for(answer.error, thing, answer.message)
                if not last.retriable:
                    raise last
            await trio.sleep(cluster.quick_backoff(attempt))
    raise RequestTimeoutError(f"{thing}: no answer within {timeout:g} s; last error: {last}") from last


class _Describe(PerLeader[Written]):
    """A producer's committed state; asked for until nothing of it awaits its commit."""

    kind = m.Kind.DESCRIBE_PRODUCERS
    leads = (ErrorCode.OFFSET_NOT_AVAILABLE,)

    def __init__(self, cluster: Cluster, producer_id: int, partitions: Iterable[PartitionId]) -> None:
        super().__init__(cluster, partitions)
        self._producer_id = producer_id

    def _request(self, asked: list[PartitionId]) -> object:
        names = [m.PartitionName(topic=at.topic, partition=at.partition) for at in asked]
        return m.DescribeProducersRequest(producer_id=self._producer_id, partitions=names)

    def _value(self, result: m.DescribeProducersResult) -> Written:
        return Written(result.last_sequence, result.producer_epoch, result.last_offset)

    def _failure(self, result: m.DescribeProducersResult) -> ClientError | None:
        if result.error == ErrorCode.NONE and not result.settled:
            at = PartitionId(result.topic, result.partition)
            return error_for(ErrorCode.OFFSET_NOT_AVAILABLE, str(at), "not all is committed yet")
        return super()._failure(result)

    def _overdue(self, timeout: float) -> str:
        return f"its leader did not report within {timeout:g} s what producer {self._producer_id} has written"
