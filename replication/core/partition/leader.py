"""A replica that leads: it takes batches, serves fetches, knows who keeps up and how far the log is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from ..epochs import diverges
from ..errors import ErrorCode
from ..messages import MOST_PRODUCERS, ActiveProducer, DescribeProducersResult
from ..types import CONSUMER, NO_EPOCH, NO_PRODUCER, BatchMeta, EpochEnd, named
from . import effects as fx
from . import events as ev
from . import isr as rules
from .deletions import Deletions
from .isr_change import IsrChange
from .producers import ProducerTable, SequenceVerdict
from .purgatory import ProducePurgatory
from .transaction_gate import TransactionGate

if TYPE_CHECKING:
    from ..control.records import PartitionRecord
    from .replica import Replica

ACKS_ALL = -1


class LeaderRole:
    """The leader's side of replication, within one leader epoch.

    KIP-101/595 (divergence), KIP-497 (one ISR change at a time), KAFKA-15583 (minimum ISR gate), KIP-207 (when
    the own high watermark may be trusted as the latest offset).
    """

    name = "leader"

    def __init__(self, replica: Replica, earlier: LeaderRole | None = None) -> None:
        """earlier: the role in which this replica led last. A log that is opened again begins another one in the
        same epoch, and what was proposed before that may yet be stored.
        """
        assert replica.versioned is not None
        self._replica = replica
        self.take_record(replica.versioned.record)
        self.epoch = self.record.leader_epoch
        log = replica.log
        # Nothing is outstanding when a role begins (decision 4): this end is written, and no older append moves it.
        self.epoch_start = log.next_offset
        """Where the log ended when this role began: what others have committed stands before it.

        The start of the epoch, except where a log was opened again within it.
        """
        # No offset is kept, even if the same replica led before (decision 2): in an epoch between, a follower may
        # have cut what it had acknowledged. A member has the lag time to fetch; any other replica first has to show
        # that it has caught up.
        self.followers = {
            node: rules.Follower(
                node, last_caught_up=replica.now if node in self.record.isr else float("-inf")
            )
            for node in self.record.replicas
            if node != replica.node_id
        }
        self.change = IsrChange(self)
        # Before `enter` computes the high watermark: the stored ISR may have the replica that its proposal adds.
        if earlier is not None:
            self.change.take_over(earlier.change)
        # Nothing parked outlives its role (`leave`): at the offset that it waits for may stand another record now.
        self.deletions = Deletions(self)
        self.gate = TransactionGate(self)
        self._parked = ProducePurgatory()

    @property
    def replica(self) -> Replica:
        return self._replica

    def take_record(self, record: PartitionRecord) -> None:
        """This record is in force from now on. Kept here because every record that is written asks for it often."""
        self.record = record
        self.min_isr = record.min_isr
        self._members = rules.maximal_isr(record.isr, None)

    def enter(self) -> None:
        log = self._replica.log
        # Ahead of the first append, here and, by the order of effects, in the log (KAFKA-7415). Without this entry
        # a follower whose last epoch is later than that of our last record may ask in vain until somebody writes.
        log.epochs.assign(self.epoch, self.epoch_start)
        log.outstanding += 1
        # Not `epoch_start`: an epoch whose log was opened again within it keeps its first offset.
        start = log.epochs.entries[-1].start_offset
        partition = self._replica.partition
        self._replica.emit(fx.AssignEpoch(partition=partition, epoch=self.epoch, start_offset=start))
        self._replica.emit(
            fx.RoleChanged(
                partition=partition,
                role=self.name,
                leader=self._replica.node_id,
                leader_epoch=self.epoch,
                reason=f"elected at offset {self.epoch_start}",
            )
        )
        # Only a leader that is alone in its ISR moves it here: no other member has fetched yet, and its log may be
        # shorter than ours.
        self.advance()

    def leave(self, error: ErrorCode) -> None:
        # The hint names the epoch that waits, if one does, so that clients turn to the next leader at once.
        leader, epoch = self._replica.hint()
        # These batches are in our log, or on their way into it: `error` must not say that they are in none.
        for parked in self._parked.drain():
            self.reply(parked.request_id, error, leader=leader, leader_epoch=epoch)
        self.deletions.leave(error)
        self.gate.leave(error)

    # Produce

    def on_produce(self, event: ev.Produce) -> None:
        # Ahead of gate and append: producers take these errors as proof that the batch is in no log.
        error = self._refusal(event)
        if error != ErrorCode.NONE:
            leader, epoch = self._replica.hint()
            self.reply(event.request_id, error, leader=leader, leader_epoch=epoch)
            return
        if event.batch.transactional and not self.gate.is_open_for(event):
            return
        self.take(event)

    def on_admitted(self, event: ev.Produce) -> None:
        """A batch that the gate has held may be appended, if all else still allows it."""
        # The ISR may have shrunk while the coordinator was asked.
        error = self._refusal(event)
        if error != ErrorCode.NONE:
            self.reply(event.request_id, error)
        elif self.take(event):
            return
        # An append releases the bytes that were kept; on every other way out the driver has to do it.
        self._replica.emit(fx.DropBatch(event.handle))

    def take(self, event: ev.Produce) -> bool:
        """Append a batch that may be; its epoch and its sequence decide. Whether it is appended."""
        verdict, original = self._replica.log.producers.check(event.batch)
        if verdict is SequenceVerdict.ACCEPT:
            # A transaction with its own epoch that begins past sequence 0 has lost its first batches, and must not
            # be committed without them (KIP-890).
            if event.transaction is None or self.gate.may_begin(event):
                self.append(event)
                return True
            verdict = SequenceVerdict.OUT_OF_ORDER
        if verdict is SequenceVerdict.DUPLICATE:
            # The original may be uncommitted, and be lost with this leader: its retry is answered no earlier.
            assert original is not None
            self.await_commit(event, original.base_offset, original.last_offset + 1)
        elif verdict is SequenceVerdict.OUT_OF_ORDER:
            self.reply(event.request_id, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        elif verdict is SequenceVerdict.FENCED:
            self.reply(event.request_id, ErrorCode.INVALID_PRODUCER_EPOCH)
        else:
            self.reply(event.request_id, ErrorCode.INVALID_TXN_STATE)
        return False

    def _refusal(self, event: ev.Produce) -> ErrorCode:
        if event.leader_epoch != NO_EPOCH and event.leader_epoch != self.epoch:
            return _epoch_error(event.leader_epoch, self.epoch)
        # The stored ISR, not the maximal one: the store may refuse a proposed member, and then the batch would have
        # been accepted under the minimum.
        if event.acks == ACKS_ALL:
            return ErrorCode.NONE if len(self.record.isr) >= self.min_isr else ErrorCode.NOT_ENOUGH_REPLICAS
        # A commit relies on every acknowledged batch, and with weaker acks a failover may lose one.
        if event.batch.transactional or event.acks not in (0, 1):
            return ErrorCode.INVALID_REQUIRED_ACKS
        return ErrorCode.NONE

    def append(self, event: ev.Produce) -> None:
        log, now = self._replica.log, self._replica.now
        # The written end: nobody can have fetched a batch whose append is under way.
        end = log.log_end_offset
        for follower in self.followers.values():
            if follower.log_end_offset == end:
                # It had everything until now, though it may not have had to say so for long (KIP-227).
                follower.last_caught_up = max(follower.last_caught_up, now)
        base_offset = log.next_offset
        batch = _placed(event.batch, base_offset, self.epoch)
        log.expect((batch,), self.epoch)
        self._replica.emit(
            fx.Append(
                partition=self._replica.partition,
                handle=event.handle,
                batches=(batch,),
                base_offset=base_offset,
                leader_epoch=self.epoch,
            )
        )
        self._park(event, base_offset, log.next_offset)

    def await_commit(self, event: ev.Produce, base_offset: int, end_offset: int) -> None:
        """Answer when `acks` is satisfied up to `end_offset`, which may be the case already."""
        self._park(event, base_offset, end_offset)
        # Now, because no later event need come: the original may be written and committed, and the partition idle.
        self._complete_written()
        self._complete_produce()

    def _park(self, event: ev.Produce, base_offset: int, end_offset: int) -> None:
        """Answer later, except for acks=0."""
        if event.acks == 0:
            self.reply(event.request_id, ErrorCode.NONE, base_offset)
            return
        self._parked.park(
            request_id=event.request_id,
            base_offset=base_offset,
            end_offset=end_offset,
            deadline=event.deadline,
            committed=event.acks == ACKS_ALL,
        )

    def _complete_written(self) -> None:
        """The log has grown: answer those that wait for nothing else (acks=1)."""
        for parked in self._parked.written(self._replica.log.log_end_offset):
            self.reply(parked.request_id, ErrorCode.NONE, parked.base_offset)

    def _complete_produce(self) -> None:
        """The high watermark has moved: answer those that wait for it (acks=all)."""
        # Kafka's second check. The high watermark stands still under the minimum ISR (KAFKA-15583), so a request
        # that it has passed meets this error only if another rule is broken.
        enough = len(self.maximal_isr()) >= self.min_isr
        error = ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        for parked in self._parked.committed(self._replica.log.high_watermark):
            self.reply(parked.request_id, error, parked.base_offset)

    def reply(
        self,
        request_id: int,
        error: ErrorCode,
        base_offset: int = -1,
        *,
        leader: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        self._replica.parts.replied(
            self._replica.partition,
            fx.ReplyProduce(
                request_id=request_id,
                error=error,
                base_offset=base_offset if error == ErrorCode.NONE else -1,
                log_start_offset=self._replica.log.log_start_offset,
                leader=leader,
                leader_epoch=leader_epoch,
            ),
        )

    def on_appended(self) -> None:
        self._complete_written()
        self.advance()
        # Also if nothing is committed by it: followers read up to the log's end.
        self._replica.parts.wake(self._replica.partition)

    # Fetch

    def on_fetch(self, event: ev.Fetch) -> fx.FetchAnswer:
        if not self._is_sound(event):
            error = self._fetch_error(event)
            if error != ErrorCode.NONE:
                return self._answer(event, error)
            end = self._epoch_end(event)
            if isinstance(end, ErrorCode):
                return self._answer(event, end)
            if end is not None and diverges(end, event.last_fetched_epoch, event.fetch_offset):
                # The follower stays as it is: what it has past the divergence counts for nothing (KAFKA-13141).
                return self._answer(event, ErrorCode.NONE, diverging=end)
        # Only now: the offset of another epoch, or of a log that parts from ours, would commit records that its
        # sender lacks (KIP-320, KIP-595). And before the answer, which carries the high watermark that it moves.
        if event.replica_id != CONSUMER:
            self._account(event)
        return self._answer(event, ErrorCode.NONE)

    def on_follow(self, event: ev.Fetch) -> bool:
        """Account a fetch that has just come, if all that can be news to its sender is a high watermark.

        Otherwise nothing is done, and `on_fetch` decides.
        """
        log = self._replica.log
        if (
            event.fetch_offset != log.log_end_offset
            # Its sender learns from the answer what to delete, and a deletion may wait for that.
            or event.log_start_offset < log.log_start_offset
            or not self._is_sound(event)
        ):
            return False
        self._account(event)
        return True

    def _is_sound(self, event: ev.Fetch) -> bool:
        """Whether a member of the ISR asks, in this very epoch, that goes on from the latest epoch of the log, as
        nearly always: then nothing is wrong with its question, and nothing diverges.
        """
        follower = self.followers.get(event.replica_id)
        log, record = self._replica.log, self.record
        return (
            follower is not None
            # `_fetch_error` refuses an older process, and `_account` forgets what a newer one replaces.
            and event.incarnation == follower.incarnation
            and event.leader_epoch == self.epoch
            and event.last_fetched_epoch == log.epochs.latest
            and log.log_start_offset <= event.fetch_offset <= log.log_end_offset
            and event.replica_id in record.isr
            and event.topic_id == record.topic_id
        )

    def has_all(self, wanted: ev.Fetch) -> bool:
        """Whether a member of the ISR waits that has everything that is in the log, in this very epoch.

        Then an answer would bring it neither batches nor an error, and accounting its question again would change
        nothing: a high watermark is all that can be news to it. One that is not in the ISR could join by being
        looked at, so it never counts.
        """
        log, record = self._replica.log, self.record
        return (
            wanted.fetch_offset == log.log_end_offset
            and wanted.leader_epoch == self.epoch
            and wanted.log_start_offset >= log.log_start_offset
            and wanted.replica_id in record.isr
            and wanted.topic_id == record.topic_id
        )

    def _fetch_error(self, event: ev.Fetch) -> ErrorCode:
        log = self._replica.log
        if event.topic_id and event.topic_id != self.record.topic_id:
            # Epochs and offsets of two topics of one name say nothing about each other (KIP-516).
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if event.leader_epoch != NO_EPOCH and event.leader_epoch != self.epoch:
            return _epoch_error(event.leader_epoch, self.epoch)
        if event.replica_id != CONSUMER:
            # An offset counts in one epoch only, so a follower has to name it. A record that this leader has not
            # read yet may have added a follower that is not known here: with this error it asks again.
            if event.leader_epoch == NO_EPOCH or event.replica_id not in self.followers:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
            # A late fetch of a process whose successor has fetched: the log of the successor counts (KIP-903).
            known = self._replica.live.get(event.replica_id, -1)
            if event.incarnation < max(known, self.followers[event.replica_id].incarnation):
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if event.fetch_offset < log.log_start_offset:
            # Tested before divergence (KAFKA-12996): what was deleted cannot be compared.
            return ErrorCode.OFFSET_OUT_OF_RANGE
        # With an epoch this is a divergence, and the answer says where to cut (KIP-595).
        if event.fetch_offset > log.log_end_offset and event.last_fetched_epoch == NO_EPOCH:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        # No error under the minimum ISR: a replica rejoins only by fetching (LavinMQ #789).
        return ErrorCode.NONE

    def end_of_epoch(self, epoch: int) -> EpochEnd | None:
        """Where an epoch ends in the log, for a reader; None if the log cannot tell."""
        log = self._replica.log
        return log.epochs.end_offset_for(epoch, log.log_end_offset)

    def _epoch_end(self, event: ev.Fetch) -> EpochEnd | ErrorCode | None:
        """Where the reader's last epoch ends here; None if it did not ask, or ends within it."""
        if event.last_fetched_epoch == NO_EPOCH:
            return None
        log = self._replica.log
        if event.last_fetched_epoch == log.epochs.latest and event.fetch_offset <= log.log_end_offset:
            return None  # the last epoch ends where the log does
        if self._deleted(event):
            # No log has this epoch: the follower gives up all of its log and begins again at our log start.
            return EpochEnd(NO_EPOCH, log.log_start_offset)
        end = log.epochs.end_offset_for(event.last_fetched_epoch, log.log_end_offset)
        return ErrorCode.OFFSET_OUT_OF_RANGE if end is None else end

    def _deleted(self, event: ev.Fetch) -> bool:
        """Whether a follower ends with an epoch of which we have neither records nor the end.

        The first epoch that we know begins at our log start, whether it began there or earlier: the follower
        may end there with records that have lost against ours, which are deleted.
        """
        log = self._replica.log
        if event.replica_id == CONSUMER or log.log_start_offset == 0:
            return False
        return event.last_fetched_epoch < log.epochs.entries[0].epoch

    def _account(self, event: ev.Fetch) -> None:
        """A follower holds everything below its fetch offset: lag, then joining, then the high watermark."""
        replica, offset, start = self._replica, event.fetch_offset, event.log_start_offset
        follower = self.followers[event.replica_id]
        # A new process may fetch before this node has read its registration. By the fetches of its predecessor it
        # could count as caught up, and join.
        if event.incarnation != follower.incarnation:
            if follower.incarnation >= 0:
                follower = self._replaced(follower)
            follower.incarnation = event.incarnation
        is_same = offset == follower.log_end_offset and start == follower.log_start_offset
        follower.fetched(offset, replica.log.log_end_offset, replica.now, start)
        # Also if it asks the same again: it may have become eligible, or another ISR change have ended.
        if event.replica_id not in self.record.isr:
            self.change.maybe_expand(follower)
        elif is_same:
            return  # as when its parked question is looked at again because of what was appended meanwhile
        self.advance()
        self.deletions.complete()

    def _answer(
        self, event: ev.Fetch, error: ErrorCode, *, diverging: EpochEnd | None = None
    ) -> fx.FetchAnswer:
        log = self._replica.log
        consumer = event.replica_id == CONSUMER
        # The bound belongs to this step, also for bytes that are sent later (KAFKA-9807).
        limit, stable = log.log_end_offset, -1
        if consumer:
            stable = log.last_stable_offset
            limit = stable if event.read_committed else log.high_watermark
        news = (
            event.fetch_offset < limit
            or error != ErrorCode.NONE
            or diverging is not None
            # By the question: a leader that kept what it has told would lose it with a lost answer (decision 3).
            or (not consumer and event.high_watermark < min(log.high_watermark, event.fetch_offset))
            # Deletions wait until followers have copied the log start (KIP-107).
            or (not consumer and event.log_start_offset < log.log_start_offset)
        )
        return fx.FetchAnswer(
            error=error,
            news=news,
            fetch_offset=event.fetch_offset,
            limit_offset=limit,
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            leader_epoch=self.epoch,
            leader=self._replica.node_id,
            diverging=diverging,
            last_stable_offset=stable,
        )

    # ISR and high watermark

    def maximal_isr(self) -> frozenset[int]:
        pending = self.change.pending
        if pending is None:
            return self._members
        # A pending removal changes nothing: until it is stored, those members may be elected (KIP-497).
        return rules.maximal_isr(self.record.isr, pending.joining)

    def electable(self) -> frozenset[int]:
        """The replicas that may lead next: also members that have left an ISR below its minimum (KIP-966)."""
        return self.maximal_isr().union(self.record.elr)

    def eligible(self, follower: rules.Follower) -> bool:
        """Alive in the store, and the same process that fetched from us (KIP-841, KIP-903)."""
        incarnation = self._replica.live.get(follower.node_id)
        return incarnation is not None and incarnation == follower.incarnation

    def caught_up(self, follower: rules.Follower) -> bool:
        lag_max = self._replica.settings.replica_lag_time_max
        return rules.caught_up(follower, self._replica.log.log_end_offset, self._replica.now, lag_max)

    def advance(self) -> None:
        """Move the high watermark as far as the rules allow, and answer the requests that wait for it."""
        log = self._replica.log
        known = log.high_watermark
        if known == log.log_end_offset:
            return
        maximal, holders = self.maximal_isr(), []
        for node, follower in self.followers.items():
            end = follower.log_end_offset
            # A replica that is about to join is waited for, as in Kafka: under steady writes the high watermark
            # would stay ahead of it, and it could never join. One without a fetch in this epoch is not waited for.
            if node in maximal or (end >= 0 and self.eligible(follower) and self.caught_up(follower)):
                if end <= known:
                    return  # as always before the last member has fetched again: one that counts has no more
                holders.append(end)
        # The stored ISR must have the minimum, the maximal one the records: a proposal may fail (KAFKA-15583).
        value = rules.high_watermark(known, log.log_end_offset, holders, len(self.record.isr), self.min_isr)
        if value != known:
            log.high_watermark = value
            self._complete_produce()
            self._replica.parts.wake(self._replica.partition)

    def on_tick(self) -> None:
        replica = self._replica
        if self._parked:
            for parked in self._parked.expired(replica.now):
                self.reply(parked.request_id, ErrorCode.REQUEST_TIMED_OUT)
        # Few leaders have any: nothing is asked of the others, of which a node may have thousands.
        if self.deletions.are_parked:
            self.deletions.on_tick()
        if self.gate.is_asking:
            self.gate.on_tick()
        self.change.on_tick()
        # Time alone may move it: a replica that was about to join counts no more when its lag time is over.
        self.advance()

    @property
    def is_idle(self) -> bool:
        """Whether time alone changes nothing: no request waits, and every member has everything, committed.

        A member that has everything never lags, however long ago it said so: a node with thousands of partitions
        that nobody writes to must not look at each of them all the time.
        """
        log = self._replica.log
        end = log.log_end_offset
        return (
            log.high_watermark == end
            and log.next_offset == end
            and self.change.pending is None
            and not self._parked
            and not self.deletions.are_parked
            and not self.gate.is_asking
            and all(
                self.followers[node].log_end_offset == end
                for node in self.record.isr
                if node != self._replica.node_id
            )
        )

    def on_nodes_changed(self) -> None:
        """A process that was replaced says nothing about its successor's log."""
        # Before the high watermark is computed: the successor has not shown yet what its predecessor had. A node
        # that is missing keeps its offset, as it may register again with the same process and the same log.
        for node, follower in list(self.followers.items()):
            incarnation = self._replica.live.get(node)
            if incarnation is not None and 0 <= follower.incarnation < incarnation:
                self._replaced(follower)
        self._reconsider()

    def _replaced(self, follower: rules.Follower) -> rules.Follower:
        """Forget the offset of a process that is gone; a member has as long to catch up as any other."""
        member = follower.node_id in self.record.isr
        successor = rules.Follower(
            follower.node_id, last_caught_up=follower.last_caught_up if member else float("-inf")
        )
        self.followers[follower.node_id] = successor
        return successor

    def on_record(self, unchanged: bool) -> None:
        self._meet_new_replicas()
        self._meet_new_members()
        # Before `_reconsider`, which computes with the maximal ISR: a settled proposal drops out of that.
        self.change.on_record(unchanged)
        self._reconsider()

    def _meet_new_members(self) -> None:
        """One may join by a proposal of an earlier role of ours, whose log was opened again in between: it has as
        long to catch up as a member at the start of an epoch.
        """
        for node in self.record.isr:
            follower = self.followers.get(node)
            if follower is not None and follower.last_caught_up == float("-inf"):
                follower.last_caught_up = self._replica.now

    def _meet_new_replicas(self) -> None:
        """A reassignment adds replicas within an epoch; none is removed without a new one."""
        for node in self.record.replicas:
            if node != self._replica.node_id and node not in self.followers:
                self.followers[node] = rules.Follower(node, last_caught_up=float("-inf"))

    def on_isr_outcome(self, event: ev.IsrStored | ev.IsrRefused | ev.IsrUnclear) -> None:
        # Read first: the outcome may clear it.
        pending = self.change.pending
        self.change.on_outcome(event)
        if pending is not None and pending.taken_over:
            self._meet_new_members()
        self._reconsider()

    def _reconsider(self) -> None:
        """The ISR or the living nodes changed: more may be committed, and a parked follower may join now."""
        # The remaining members may have nothing more to tell, so that no fetch would compute it (KAFKA-13091).
        self.advance()
        self._complete_produce()
        self.deletions.complete()
        # A parked question is accounted once more by this, and its sender may be proposed.
        self._replica.parts.wake(self._replica.partition)

    def on_log_start_advanced(self) -> None:
        self.on_log_start_raised()

    def on_log_start_raised(self) -> None:
        """Followers must learn of it, and requests may have waited for it."""
        self.deletions.complete()
        self._replica.parts.wake(self._replica.partition)

    def latest_offset(self, *, read_committed: bool = False) -> tuple[ErrorCode, int]:
        """The end of what consumers may read; not to be trusted before it reaches this epoch (KIP-207).

        read_committed: of those who are shown committed transactions alone.
        """
        log = self._replica.log
        # A former leader may have shown records as committed up to there, and the latest offset must not go back.
        if log.high_watermark < self.epoch_start:
            return ErrorCode.OFFSET_NOT_AVAILABLE, -1
        return ErrorCode.NONE, log.last_stable_offset if read_committed else log.high_watermark

    def is_committed(self, offset: int, *, read_committed: bool = False) -> bool:
        """Whether the record at `offset` may be shown to consumers: the high watermark itself may not."""
        log = self._replica.log
        return offset < (log.last_stable_offset if read_committed else log.high_watermark)

    def describe_producer(self, producer_id: int) -> DescribeProducersResult:
        """The last write of a producer (KIP-664), and how far that is committed."""
        error, high_watermark = self.latest_offset()
        entry = self._replica.log.producers.get(producer_id) if error == ErrorCode.NONE else None
        last = entry.batches[-1] if entry is not None and entry.batches else None
        return DescribeProducersResult(
            topic=self.record.topic,
            partition=self.record.partition,
            error=error,
            producer_epoch=entry.producer_epoch if entry is not None else -1,
            last_sequence=last.last_sequence if last is not None else -1,
            last_offset=last.last_offset if last is not None else -1,
            # Beside `last_offset`: a successor of the producer continues once all is committed (decision 27).
            high_watermark=high_watermark,
            leader=self._replica.node_id,
            leader_epoch=self.epoch,
        )

    def describe_producers(self, timestamps: Mapping[int, int]) -> DescribeProducersResult:
        """All producers (KIP-664); `timestamps`: of the last batch of each, as the log has them."""
        said = self.describe_producer(NO_PRODUCER)
        if said.error != ErrorCode.NONE:
            return said
        return structs.replace(said, producers=active_producers(self._replica.log.producers, timestamps))

    def why_out(self, node: int) -> str:
        """Why a replica is not in the ISR, in words; empty if it is."""
        if node == self._replica.node_id or node in self.record.isr:
            return ""
        follower = self.followers.get(node)
        log = self._replica.log
        if follower is None:
            return "it is being added"
        if node not in self._replica.live:
            return "its node is not alive, or its log directory there is offline"
        if follower.log_end_offset < 0:
            return "it has not fetched in this leader epoch"
        if not self.eligible(follower):
            return "its node is registered by another process than the one that fetches"
        if not rules.may_join(follower, log.high_watermark, self.epoch_start):
            needed = max(log.high_watermark, self.epoch_start)
            return f"it is at offset {follower.log_end_offset} and may join from {needed} on"
        if not rules.has_let_go(follower, log.log_start_offset):
            return f"it still has deleted records below offset {log.log_start_offset}"
        if self.change.pending is not None:
            return "another ISR change is being stored"
        return "it fell behind and is catching up"


def active_producers(table: ProducerTable, timestamps: Mapping[int, int]) -> list[ActiveProducer]:
    """The producers of a log, those with an open transaction first; `timestamps` as above."""
    # Hanging transactions are looked for in this list, which is cut at its end.
    entries = sorted(table.entries, key=lambda each: (each.first_offset < 0, each.producer_id))
    return [
        ActiveProducer(
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            last_sequence=each.batches[-1].last_sequence if each.batches else -1,
            last_timestamp_ms=timestamps.get(each.producer_id, -1),
            coordinator_epoch=each.coordinator_epoch,
            start_offset=each.first_offset,
        )
        for each in entries[:MOST_PRODUCERS]
    ]


def _epoch_error(asked: int, current: int) -> ErrorCode:
    return ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH


def _placed(batch: BatchMeta, base_offset: int, leader_epoch: int) -> BatchMeta:
    values = (
        base_offset,
        batch.offset_count,
        leader_epoch,
        batch.size_bytes,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.transactional,
        batch.marker,
    )
    return named(BatchMeta, values)
