"""Transactions between nodes: partitions are added at coordinators, and markers written where partitions are led.

The node that is asked may be this very node. Nothing is done within the step of a replica or of a shard: it waits
for the end of the turn, in order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ... import messages as m
from ...control.internal_topics import TRANSACTIONS
from ...control.view import ClusterView
from ...coordination import shard_effects as sfx
from ...coordination import shard_events as sev
from ...coordination.routing import GROUP_TOPIC, partition_for_group
from ...coordination.shard import ShardSettings
from ...errors import ErrorCode, code_of
from ...groups.record_codec import Unknown
from ...messages import groups as gm
from ...messages import transactions as tm
from ...partition import effects as partition_fx
from ...partition import events as partition_ev
from ...transactions.marker_queue import MarkersAnswered, SendMarkers
from ...transactions.records import Status, decode_transaction, encode_transaction, encode_transaction_key
from ...transactions.shard import TransactionCoordinator, TransactionSettings
from ...types import NO_LEADER, PartitionId, TransactionMarker
from .. import effects as fx
from ..producing.payloads import to_meta
from .aborting import Aborting
from .shards import Decoded, Encoded, ShardKind

if TYPE_CHECKING:
    from ...partition.leader import LeaderRole
    from .. import events as ev
    from ..context import Context
    from ..membership.peers import Peers
    from ..producing.producing import Producing
    from .shards import Shards

ASK_TIMEOUT = 5.0
"""Seconds for one attempt to add a partition; the batch that waits for it goes by its own deadline."""
MARKER_TIMEOUT = 30.0
"""Seconds for which a marker waits for the high watermark; its coordinator sends it again."""
_FIRST_NUMBER = 1 << 40
"""Markers are numbered from here on, downwards: coordinators' own batches have the numbers above."""


class _Leaders:
    """See `transactions.marker_queue.Leaders`."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def revision(self) -> int:
        return self._view.revision

    def leader(self, topic: str, partition: int) -> int | None:
        versioned = self._view.partitions.get(PartitionId(topic, partition))
        return None if versioned is None else versioned.record.leader


def transaction_kind(
    settings: TransactionSettings, commit_timeout: float, obey: Callable[[PartitionId, object], None]
) -> ShardKind:
    """Transactional ids; commit_timeout: seconds for which a reply waits for its write."""
    return ShardKind(
        topic=TRANSACTIONS.name,
        machine=lambda: TransactionCoordinator(settings),
        settings=ShardSettings(commit=commit_timeout),
        view=_Leaders,
        encode=_encode,
        decode=_decode,
        obey=obey,
    )


def _encode(key: Any, value: Any | None) -> Encoded:
    return encode_transaction_key(key), None if value is None else encode_transaction(value)


def _decode(key: bytes | None, value: bytes | None) -> Decoded:
    found = decode_transaction(key, value)
    return (None, None) if isinstance(found, Unknown) else found


class Transacting:
    """The work of this node for transactions beside keeping their state."""

    def __init__(self, context: Context, peers: Peers, producing: Producing) -> None:
        self._context = context
        self._producing = producing
        self._peers = peers
        self._shards: Shards
        self._first: deque[Callable[[], None]] = deque()
        """Markers and admissions of this turn: shards hear of them before all else, in the order of the log."""
        self._due: deque[Callable[[], None]] = deque()
        self.left: list[Callable[[], None]] = []
        """The tasks of the next turn."""
        self._numbers = count(-_FIRST_NUMBER, -1)
        self._admitting: dict[int, Callable[[ErrorCode], None]] = {}
        self._adding: dict[
            tuple[str, int, int, bool], list[tuple[PartitionId, partition_fx.AddToTransaction]]
        ] = {}
        """Partitions that are to belong to a transaction, or should belong to it; of each until the turn ends."""
        aborting = Aborting(context, peers, mark=self._mark, serve=self._serve, later=self._later)
        self.takes: dict[type, Callable[[Any, Callable[[Any], None]], None]] = {
            **dict.fromkeys(
                (tm.InitTransactionsRequest, tm.EndTransactionRequest, tm.AddPartitionsRequest), self._ask
            ),
            tm.DescribeTransactionsRequest: self._describe,
            tm.ListTransactionsRequest: self._list,
            tm.WriteMarkersRequest: self._write,
            gm.TxnOffsetCommitRequest: self._commit_offsets,
            tm.AbortTransactionRequest: aborting.take,
        }
        """Requests of clients and coordinators, each with whom to tell the answer."""

    def host(self, shards: Shards) -> None:
        """The shards of this node."""
        self._shards = shards

    @property
    def is_due(self) -> bool:
        return bool(self._first or self._due)

    def begin(self) -> None:
        """A turn ends: what the one before has left to it is done, after what has come in it."""
        left, self.left = self.left, []
        self._due.extend(left)

    def settle(self) -> None:
        """At the end of a turn: what steps have left to do."""
        while self.is_due:
            (self._first or self._due).popleft()()

    def _later(self, do: Callable[[], None]) -> None:
        self._due.append(do)
        self._context.is_unsettled = True

    def statuses(self) -> Mapping[Status, int]:
        """Of the transactional ids that this node coordinates, as far as it has loaded them, how many are where."""
        found: Counter[Status] = Counter()
        for partition in self._shards.led(TRANSACTIONS.name):
            machine = self._shards.machine(partition)
            if isinstance(machine, TransactionCoordinator):
                found.update(machine.statuses)
        return found

    # Coordinators

    def _coordinator(self, transactional_id: str) -> tuple[PartitionId | None, int]:
        """The partition that keeps a transactional id, and the node that leads it."""
        view = self._context.view
        record = view.topics.get(TRANSACTIONS.name)
        if record is None:
            return None, NO_LEADER
        partition = PartitionId(TRANSACTIONS.name, partition_for_group(transactional_id, record.partitions))
        versioned = view.partitions.get(partition)
        return partition, versioned.record.leader if versioned is not None else NO_LEADER

    def _ask(
        self,
        message: tm.InitTransactionsRequest | tm.EndTransactionRequest | tm.AddPartitionsRequest,
        told: Callable[[Any], None],
    ) -> None:
        partition, _ = self._coordinator(message.transactional_id)
        if partition is None:
            told(tm.RESPONSES[type(message)](error=ErrorCode.NOT_COORDINATOR))
            return
        self._shards.ask(partition, message, self._context.now + MARKER_TIMEOUT, told)

    def _describe(self, message: tm.DescribeTransactionsRequest, told: Callable[[Any], None]) -> None:
        """Of each id by itself, and once: they may have several coordinators, and be asked of the wrong one."""
        found: list[tm.TransactionDescription] = []
        ids = list(dict.fromkeys(message.transactional_ids))
        left = len(ids)
        if not left:
            told(tm.DescribeTransactionsResponse())

        def take(transactional_id: str, reply: tm.DescribeTransactionsResponse) -> None:
            nonlocal left
            wrong = tm.TransactionDescription(transactional_id=transactional_id, error=reply.error)
            found.extend(reply.transactions or [wrong])
            left -= 1
            if not left:
                told(tm.DescribeTransactionsResponse(transactions=found))

        for each in ids:
            partition, _ = self._coordinator(each)
            request = tm.DescribeTransactionsRequest(transactional_ids=[each])
            if partition is None:
                # It may be another node's: this one has not heard of the topic.
                take(each, tm.DescribeTransactionsResponse(error=ErrorCode.NOT_COORDINATOR))
            else:
                self._shards.ask(partition, request, self._context.now + ASK_TIMEOUT, partial(take, each))

    def _serve(self, message: Any, told: Callable[[Any], None]) -> None:
        self.takes[type(message)](message, told)

    def _list(self, message: tm.ListTransactionsRequest, told: Callable[[Any], None]) -> None:
        """All that this node coordinates; the first error is told beside what there is."""
        partitions = self._shards.led(TRANSACTIONS.name)
        if message.partitions:
            wanted = {PartitionId(TRANSACTIONS.name, number) for number in message.partitions}
            if not wanted <= set(partitions):
                told(tm.ListTransactionsResponse(error=ErrorCode.NOT_COORDINATOR))
                return
            partitions = sorted(wanted)
        found: list[tm.TransactionListing] = []
        error, left = ErrorCode.NONE, len(partitions)
        if not left:
            told(tm.ListTransactionsResponse())

        def take(reply: tm.ListTransactionsResponse) -> None:
            nonlocal error, left
            found.extend(reply.transactions)
            error = error or ErrorCode(reply.error)
            left -= 1
            if not left:
                found.sort(key=lambda each: each.transactional_id)
                told(tm.ListTransactionsResponse(error=error, transactions=found))

        for partition in partitions:
            self._shards.ask(partition, message, self._context.now + ASK_TIMEOUT, take)

    # A partition is to belong to a transaction

    def add(self, partition: PartitionId, effect: partition_fx.AddToTransaction) -> None:
        """A leader has a batch of a transaction to which its partition may not belong yet."""
        if effect.delay > 0:
            self._context.timers.call_at(
                self._context.now + effect.delay, partial(self._join, partition, effect)
            )
        else:
            self._join(partition, effect)

    def _join(self, partition: PartitionId, effect: partition_fx.AddToTransaction) -> None:
        """All partitions that a turn has written to are one question, and one write of the coordinator."""
        key = (effect.transactional_id, effect.producer_id, effect.producer_epoch, effect.verify_only)
        if key not in self._adding:
            self._adding[key] = []
            self._later(lambda: self._ask_to_add(self._adding.pop(key)))
        self._adding[key].append((partition, effect))

    def _ask_to_add(self, adding: Sequence[tuple[PartitionId, partition_fx.AddToTransaction]]) -> None:
        context, effect = self._context, adding[0][1]

        def answered(error: ErrorCode) -> None:
            if error == ErrorCode.TRANSACTION_ABORTABLE and len(adding) > 1:
                # Some of them do not belong to the transaction: each is asked about by itself.
                for each in adding:
                    self._later(partial(self._ask_to_add, [each]))
                return
            for each in adding:
                self._add_answered(*each, error)

        keeper, leader = self._coordinator(effect.transactional_id)
        if keeper is not None and effect.verify_only and leader == context.node_id:
            ids = effect.producer_id, effect.producer_epoch
            machine = self._shards.current(keeper)
            if isinstance(machine, TransactionCoordinator) and machine.holds(
                effect.transactional_id, *ids, [at for at, _ in adding]
            ):
                answered(ErrorCode.NONE)
                return
        request = tm.AddPartitionsRequest(
            transactional_id=effect.transactional_id,
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            partitions=[m.PartitionName(topic=at.topic, partition=at.partition) for at, _ in adding],
            verify_only=effect.verify_only,
            view_revision=context.view.revision,
            version=1 if effect.verify_only else 2,
        )
        if keeper is None or leader == NO_LEADER:
            answered(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif leader == context.node_id:
            deadline = context.now + ASK_TIMEOUT
            self._shards.ask(keeper, request, deadline, lambda reply: answered(code_of(reply.error)))
        else:
            self._peers.ask(
                leader,
                m.Kind.ADD_PARTITIONS_TO_TXN,
                request,
                ASK_TIMEOUT,
                answered=lambda reply: answered(code_of(reply.error)),  # type: ignore[attr-defined]
                failed=lambda reason: answered(ErrorCode.COORDINATOR_NOT_AVAILABLE),
            )

    def _add_answered(
        self, partition: PartitionId, effect: partition_fx.AddToTransaction, error: ErrorCode
    ) -> None:
        said = partition_ev.AddAnswered(
            producer_id=effect.producer_id,
            leader_epoch=effect.leader_epoch,
            attempt=effect.attempt,
            error=error,
        )

        def tell() -> None:
            if partition in self._context.replicas:
                self._context.step_replica(partition, said)

        self._later(tell)

    # Offsets of a group, in a transaction

    def _commit_offsets(self, message: gm.TxnOffsetCommitRequest, told: Callable[[Any], None]) -> None:
        """First the partition belongs to the transaction, then the shard decides: by its state of then."""
        context = self._context
        record = context.view.topics.get(GROUP_TOPIC)
        failure = gm.RESPONSES[type(message)]
        if record is None:
            told(failure(error=ErrorCode.NOT_COORDINATOR))
            return
        partition = PartitionId(GROUP_TOPIC, partition_for_group(message.group, record.partitions))
        if partition not in context.replicas:
            told(failure(error=ErrorCode.NOT_COORDINATOR))
            return
        number = next(self._numbers)
        deadline = context.now + ASK_TIMEOUT

        def decide(error: ErrorCode) -> None:
            if error != ErrorCode.NONE:
                told(failure(error=_of_coordinator(error)))
            else:
                self._shards.ask(partition, message, deadline, told)

        self._admitting[number] = decide
        context.step_replica(
            partition,
            partition_ev.Admit(
                request_id=number,
                producer_id=message.producer_id,
                producer_epoch=message.producer_epoch,
                transaction=partition_ev.TransactionTag(message.transactional_id, message.version),
                deadline=deadline,
            ),
        )

    def admitted(self, partition: PartitionId, effect: partition_fx.Admission) -> None:
        """Whether offsets may be committed in a transaction."""
        decide = self._admitting.pop(effect.request_id)
        # Before anything else of this turn: no marker may come in between.
        self._first.append(lambda: decide(effect.error))
        self._context.is_unsettled = True

    # Markers

    def obey(self, partition: PartitionId, effect: object) -> None:
        """Carry out a coordinator's request to others than its log."""
        assert isinstance(effect, sfx.Outward)
        message = effect.message
        if isinstance(message, SendMarkers):
            # The markers leave in the next turn, behind the answers of this one: producers wait for those answers,
            # and nobody waits for a marker yet.
            self.left.append(partial(self._send, partition, effect.leader_epoch, message))
            self._context.is_unsettled = True
        else:
            self._context.emit(fx.AskOutside(partition, effect.leader_epoch, message))

    def heard(self, event: ev.OutsideAnswered) -> None:
        """The answer to an `AskOutside`."""
        self._shards.tell(event.partition, sev.Heard(leader_epoch=event.leader_epoch, message=event.message))

    def _send(self, partition: PartitionId, leader_epoch: int, send: SendMarkers) -> None:
        def answered(reply: tm.WriteMarkersResponse | None) -> None:
            outcomes = () if reply is None else tuple(reply.outcomes)
            heard = sev.Heard(leader_epoch=leader_epoch, message=MarkersAnswered(send.attempt, outcomes))
            self._later(lambda: self._shards.tell(partition, heard))

        if send.node == self._context.node_id:
            self._write(send.request, answered)
            return
        self._peers.ask(
            send.node,
            m.Kind.WRITE_TXN_MARKERS,
            send.request,
            MARKER_TIMEOUT,
            answered=answered,  # type: ignore[arg-type]  # decoded as the answer of its kind
            failed=lambda reason: answered(None),
        )

    def _write(
        self, request: tm.WriteMarkersRequest, told: Callable[[tm.WriteMarkersResponse], None]
    ) -> None:
        """Write each marker where this node leads; told when all are committed or have failed."""
        outcomes: list[tm.MarkerOutcome] = []
        left = 1

        def take(markers: tm.TransactionMarkers, at: m.PartitionName, error: ErrorCode) -> None:
            outcomes.append(
                tm.MarkerOutcome(
                    producer_id=markers.producer_id, topic=at.topic, partition=at.partition, error=error
                )
            )
            done()

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                told(tm.WriteMarkersResponse(outcomes=outcomes))

        for markers in request.markers:
            for at in markers.partitions:
                left += 1
                self._mark(request.coordinator_epoch, markers, at, partial(take, markers, at))
        done()

    def _mark(
        self,
        coordinator_epoch: int,
        markers: tm.TransactionMarkers,
        at: m.PartitionName,
        told: Callable[[ErrorCode], None],
    ) -> None:
        context, partition = self._context, PartitionId(at.topic, at.partition)
        replica = context.replicas.get(partition)
        if replica is None:
            told(context.missing_error(partition))
            return
        if not (0 <= markers.producer_id < 1 << 63 and 0 <= markers.producer_epoch < 1 << 15):
            told(ErrorCode.INVALID_REQUEST)
            return
        batches = context.batches.marker(
            markers.producer_id,
            markers.producer_epoch,
            committed=markers.committed,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=context.wall_ms,
        )
        number = next(self._numbers)
        said = TransactionMarker(markers.committed, coordinator_epoch)
        produce = partition_ev.Produce(
            request_id=number,
            acks=-1,
            batch=to_meta(batches.infos[0])._replace(marker=said),
            deadline=context.now + MARKER_TIMEOUT,
            handle=batches,
            origin=partition_ev.Origin.COORDINATOR,
            transaction=partition_ev.TransactionTag(markers.transactional_id, markers.version),
        )
        later = partial(self._tell_later, told)
        offset = self._producing.write(partition, produce, later)
        if offset >= 0:
            assert replica.leader is not None, "only a leader appends what it is asked to produce"
            self._appended(partition, replica.leader, offset, markers)

    def _appended(
        self, partition: PartitionId, role: LeaderRole, offset: int, markers: tm.TransactionMarkers
    ) -> None:
        """A shard hears of it before anything that comes after it in its log."""
        if self._shards.is_internal(partition.topic):
            producer = sev.ProducerId(markers.producer_id, markers.producer_epoch)
            marker = sev.Marker(offset, producer, markers.committed)
            self._first.append(lambda: self._shards.marked(partition, role, marker))
            self._context.is_unsettled = True

    def _tell_later(self, told: Callable[[ErrorCode], None], error: ErrorCode) -> None:
        self._later(lambda: told(error))


_OF_COORDINATOR = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    # Its log is being made, or has failed: then another replica will lead.
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


def _of_coordinator(error: ErrorCode) -> ErrorCode:
    """The error for a client that asks for a coordinator, where a partition's leader was not asked."""
    return _OF_COORDINATOR.get(error, error)
