"""One replica of one partition on one node: the machine that the node and the simulator drive.

Events and a clock reading go in; calls of the parts around it and effects for the driver come out; nothing else is
read. A replica is `closed` until its log is
open, then leader or follower as the partition's record says. A new leader epoch is entered only when the log has
reported every effect asked for in the old one: meanwhile nothing new is accepted, so the ends of the log on both
sides of the change are facts and not guesses.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..control.elections import MOST_EPOCHS, LogInfo
from ..control.records import Versioned
from ..errors import ErrorCode
from ..types import NO_LEADER, PartitionId
from . import effects as fx
from . import events as ev
from .follower import FollowerRole
from .leader import LeaderRole
from .log_state import LogState
from .parts import Parts


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds throughout. `replica_lag_time_max`: Kafka's `replica.lag.time.max.ms`, 30 s there and here."""

    replica_lag_time_max: float = 30.0
    isr_retry_backoff: float = 1.0


class Replica:
    """See the module's text. `step`, `fetch` and `follow` are the ways in; the attributes are for reading."""

    def __init__(
        self,
        partition: PartitionId,
        node_id: int,
        incarnation: int,
        parts: Parts,
        settings: ReplicaSettings | None = None,
    ) -> None:
        self.partition = partition
        self.parts = parts
        self.emit = parts.emit
        """For the roles: an effect for the driver."""
        self.node_id = node_id
        self.incarnation = incarnation
        self.settings = settings or ReplicaSettings()
        self.log = LogState()
        self.versioned: Versioned | None = None
        """The record that is in force here."""
        self.live: Mapping[int, int] = {}
        self.now = 0.0
        self.wants_tick = True
        """Whether a `Tick` may do something; it will not again before another event."""
        self.failure = "the log is not open yet"
        self._open = False
        self._awaits_log = True
        """Its log was never open in this process: nothing is wrong, and who asks again in a moment is served."""
        self._deleted = self._retired = False
        self._waiting: Versioned | None = None
        self._role: LeaderRole | FollowerRole | None = None
        self._led: LeaderRole | None = None
        """The last role that led: what it has proposed may yet be stored."""
        self._proposals = 0

    @property
    def role(self) -> str:
        """`leader`, `follower` or `closed`."""
        return self._role.name if self._role is not None else "closed"

    @property
    def leader(self) -> LeaderRole | None:
        """The leader's own state, if this replica leads."""
        return self._role if isinstance(self._role, LeaderRole) else None

    @property
    def leader_epoch(self) -> int:
        return self.versioned.record.leader_epoch if self.versioned is not None else -1

    @property
    def cleaning_bound(self) -> int:
        """Below it retention and compaction may work: what is not committed may yet be cut, and then what it
        replaced would be missing.
        """
        return self.log.high_watermark

    @property
    def stepping(self) -> bool:
        """Whether a new leader epoch waits for the log to report; nothing new is accepted meanwhile."""
        return self._waiting is not None

    @property
    def awaits_record(self) -> bool:
        """Whether an ISR change is under way, so that even an unchanged record is news."""
        return isinstance(self._role, LeaderRole) and self._role.change.pending is not None

    def needs_tick(self) -> bool:
        """Whether a `Tick` would do something now; if not, none is wanted before another event.

        Asked before a `Tick`, because that costs several times as much, and of thousands of replicas that are
        written to most have nothing that waits when the tick comes.
        """
        role = self._role
        self.wants_tick = isinstance(role, LeaderRole) and not role.is_idle
        return self.wants_tick

    def step(self, event: ev.Event, now: float) -> None:
        """Handle one event at clock reading `now` (seconds, never going back)."""
        self.now = now
        self.wants_tick = True
        self._dispatch(event)
        # Asked here and not there: this is what every record costs several times.
        if self._waiting is not None:
            self._enter_waiting_epoch()
        if self._deleted:
            self._maybe_retire()

    def fetch(self, question: ev.Fetch, now: float) -> fx.FetchAnswer:
        """Answer a fetch at clock reading `now`; it also says how far the follower has come that asks."""
        self.now = now
        role = self._role
        if not isinstance(role, LeaderRole):
            leader, epoch = self.hint()
            return fx.FetchAnswer(error=self._refusal(), news=True, leader=leader, leader_epoch=epoch)
        self.wants_tick = True
        # A fetch reports nothing of the log: no epoch that waits for it can be entered now, and nothing retires.
        return role.on_fetch(question)

    def follow(self, question: ev.Fetch, now: float) -> bool:
        """Take a fetch that has just come, if nothing but a high watermark can be news to its sender.

        False: `fetch` is to answer it.
        """
        self.now = now
        role = self._role
        # A member that has everything leaves nothing for a `Tick` to do that there was not before.
        return isinstance(role, LeaderRole) and role.on_follow(question)

    def hint(self) -> tuple[int, int]:
        """(leader, leader epoch) as known to this replica, for peers that ask the wrong node."""
        known = self._waiting or self.versioned
        if known is None:
            return NO_LEADER, -1
        return known.record.leader, known.record.leader_epoch

    def log_info(self) -> LogInfo | None:
        """The content of our log, for an election; None while that is not certain."""
        if not self._open or self.versioned is None or self.stepping:
            return None
        return LogInfo(
            incarnation=self.incarnation,
            leader_epoch=self.leader_epoch,
            last_epoch=self.log.last_epoch,
            log_end_offset=self.log.log_end_offset,
            topic_id=self.versioned.record.topic_id,
            log_start_offset=self.log.log_start_offset,
            epochs=self.log.held_epochs[-MOST_EPOCHS:],
        )

    def new_proposal_id(self) -> int:
        """For the roles: an id of no earlier proposal, so that a late outcome never meets another one's."""
        self._proposals += 1
        return self._proposals

    def _dispatch(self, event: ev.Event) -> None:
        # Those of every record first: cases are tried one after the other.
        match event:
            case ev.Produce():
                self._on_produce(event)
            case ev.Appended():
                self.log.appended(event.log_end_offset)
                if self._role is not None:
                    self._role.on_appended()
            case ev.Fetched():
                if isinstance(self._role, FollowerRole) and self._waiting is None:
                    self._role.on_fetched(event)
            case ev.EpochAssigned():
                self.log.outstanding -= 1
            case ev.Admit():
                self._on_admit(event)
            case ev.AddAnswered():
                if isinstance(self._role, LeaderRole) and self._waiting is None:
                    self._role.gate.on_answered(event)
            case ev.DeleteRecords():
                self._on_delete_records(event)
            case ev.LogStartAdvanced():
                self.log.outstanding -= 1
                self.log.raise_start(event.log_start_offset)
                if self._role is not None:
                    self._role.on_log_start_advanced()
            case ev.LogStartRaised():
                if self.log.raise_start(event.log_start_offset) and isinstance(self._role, LeaderRole):
                    self._role.on_log_start_raised()
            case ev.FetchFailed():
                if isinstance(self._role, FollowerRole) and self._waiting is None:
                    self._role.on_fetch_failed(event)
            case ev.Truncated():
                self._on_truncated(event)
            case ev.IsrStored() | ev.IsrRefused() | ev.IsrUnclear():
                if isinstance(self._role, LeaderRole):
                    self._role.on_isr_outcome(event)
            case ev.Tick():
                role = self._role
                if isinstance(role, LeaderRole):
                    role.on_tick()
                self.wants_tick = isinstance(role, LeaderRole) and not role.is_idle
            case ev.RecordChanged():
                self._on_record(event.versioned)
            case ev.TopicDeleted():
                self._on_topic_deleted()
            case ev.NodesChanged():
                self.live = event.live
                if isinstance(self._role, LeaderRole):
                    self._role.on_nodes_changed()
            case ev.Opened():
                self._on_opened(event)
            case ev.LogFailed():
                self._on_log_failed(event.reason)

    def _on_produce(self, event: ev.Produce) -> None:
        if isinstance(self._role, LeaderRole) and self._waiting is None:
            self._role.on_produce(event)
            return
        leader, epoch = self.hint()
        error = self._refusal()
        self.parts.replied(
            self.partition,
            fx.ReplyProduce(
                request_id=event.request_id,
                error=error,
                leader=leader,
                leader_epoch=epoch,
                message=self.failure,
            ),
        )

    def _on_admit(self, event: ev.Admit) -> None:
        if isinstance(self._role, LeaderRole) and self._waiting is None:
            self._role.gate.admit(event)
        else:
            refused = fx.Admission(request_id=event.request_id, error=self._refusal())
            self.parts.admitted(self.partition, refused)

    def _on_delete_records(self, event: ev.DeleteRecords) -> None:
        if isinstance(self._role, LeaderRole) and self._waiting is None:
            self._role.deletions.on_delete_records(event)
            return
        leader, epoch = self.hint()
        error = self._refusal()
        self.parts.deletion_replied(
            self.partition,
            fx.ReplyDeleteRecords(
                request_id=event.request_id,
                error=error,
                leader=leader,
                leader_epoch=epoch,
                message=self.failure,
            ),
        )

    def _on_truncated(self, event: ev.Truncated) -> None:
        self.log = self.log.truncated(
            event.log_start_offset, event.log_end_offset, event.epochs, event.producers, event.ended
        )
        if isinstance(self._role, FollowerRole) and self._waiting is None:
            self._role.on_truncated()

    def _on_opened(self, event: ev.Opened) -> None:
        if self._deleted:
            return
        self._leave_role(ErrorCode.KAFKA_STORAGE_ERROR)
        self._awaits_log = False
        if event.log_end_offset < self.log.least_end:
            # Others have counted on what is gone: in this incarnation it may neither lead nor follow again.
            self._open = False
            self.failure = (
                f"the log of {self.partition} was reopened with its end at {event.log_end_offset}, but had reached "
                f"{self.log.least_end}: move its folder aside and restart the node, which then copies it from "
                "the leader"
            )
            return
        # What this process knows to be committed is more than what it had written down of it.
        high_watermark = max(event.high_watermark, self.log.high_watermark)
        self.log = LogState.opened(
            event.log_start_offset,
            event.log_end_offset,
            high_watermark,
            event.epochs,
            event.producers,
            event.ended,
        )
        self._open = True
        self.failure = ""
        self._waiting = self._waiting or self.versioned

    def _on_log_failed(self, reason: str) -> None:
        self._leave_role(ErrorCode.KAFKA_STORAGE_ERROR)
        self._open = self._awaits_log = False
        self.failure = reason
        self.log.outstanding = 0

    def _on_record(self, versioned: Versioned) -> None:
        if self._deleted:
            return
        known = self._waiting or self.versioned
        if known is not None and versioned.version < known.version:
            return
        if (
            known is None
            or self._waiting
            or self._role is None
            or versioned.record.leader_epoch > known.record.leader_epoch
        ):
            self._waiting = versioned
            return
        unchanged = versioned.version == known.version
        self.install(versioned)
        if isinstance(self._role, LeaderRole):
            self._role.on_record(unchanged)

    def install(self, versioned: Versioned) -> None:
        """This record is in force from now on, within the same leader epoch."""
        self.versioned = versioned
        if isinstance(self._role, LeaderRole):
            self._role.take_record(versioned.record)

    def _enter_waiting_epoch(self) -> None:
        """Take the role of the newest record, once the log has nothing outstanding."""
        if self._waiting is None or not self._open or self.log.outstanding:
            return
        self._leave_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        former = self.versioned
        self.versioned, self._waiting = self._waiting, None
        record = self.versioned.record
        if record.leader == self.node_id:
            self._role = LeaderRole(self, self._led)
        elif self.node_id in record.replicas:
            self._role = FollowerRole(self)
        else:
            # Only now: an older record, or a log that still has work, must not cost a replica its data (KIP-570).
            moved = former is not None and self.node_id in former.record.replicas
            self.parts.retire(self.partition, fx.Retire(leader_epoch=record.leader_epoch, moved=moved))
        if self._role is not None:
            self._role.enter()

    def _refusal(self) -> ErrorCode:
        """Why a request that only a leader serves is not served."""
        if self._deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._open or self._awaits_log:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.KAFKA_STORAGE_ERROR

    def _on_topic_deleted(self) -> None:
        """Stop serving; the log is deleted after its pending operations."""
        self._deleted, self._open, self._waiting = True, False, None
        self.failure = "its topic was deleted"
        # Not UNKNOWN_TOPIC: that would claim that parked batches were never written.
        self._leave_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _maybe_retire(self) -> None:
        if self._deleted and not self.log.outstanding and not self._retired:
            self._retired = True
            self.parts.retire(self.partition, fx.Retire(leader_epoch=self.leader_epoch))

    def _leave_role(self, error: ErrorCode) -> None:
        """Answer all that is parked, under the old role (Z39: nothing parked outlives its leader epoch)."""
        role, self._role = self._role, None
        if isinstance(role, LeaderRole):
            self._led = role
        if role is not None:
            role.leave(error)
        self.parts.wake(self.partition)
