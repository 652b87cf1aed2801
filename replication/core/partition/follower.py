"""A replica that follows: it asks its leader for what comes after its own end, and cuts where they part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..epochs import truncation_point
from ..errors import ErrorCode
from ..types import NO_LEADER, EpochEnd
from . import effects as fx
from . import events as ev

if TYPE_CHECKING:
    from .replica import Replica


class FollowerRole:
    """The follower's side of replication (KIP-101, KIP-279, KIP-595), within one leader epoch."""

    name = "follower"

    def __init__(self, replica: Replica) -> None:
        assert replica.versioned is not None
        self._replica = replica
        self._leader = replica.versioned.record.leader
        self._leader_epoch = replica.versioned.record.leader_epoch
        self._topic_id = replica.versioned.record.topic_id
        self._asked: tuple[int, int] | None = None
        """Offset and last epoch of the outstanding question; an answer to any other is stale."""
        self._leader_high_watermark = -1
        self._leader_log_start = -1

    def enter(self) -> None:
        reason = "no replica may lead" if self._leader == NO_LEADER else "as the partition record says"
        self._replica.emit(
            fx.RoleChanged(
                partition=self._replica.partition,
                role=self.name,
                leader=self._leader,
                leader_epoch=self._leader_epoch,
                reason=reason,
            )
        )
        self._ask()

    def leave(self, error: ErrorCode) -> None:
        self._replica.failure = ""
        self._replica.parts.stop(self._replica.partition)

    def _ask(self, *, delayed: bool = False) -> None:
        if self._leader == NO_LEADER:
            return
        log = self._replica.log
        latest = log.epochs.latest
        self._asked = (log.log_end_offset, latest)
        self._replica.parts.want(
            self._replica.partition,
            fx.FetchNext(
                leader=self._leader,
                leader_epoch=self._leader_epoch,
                fetch_offset=log.log_end_offset,
                last_fetched_epoch=latest,
                log_start_offset=log.log_start_offset,
                high_watermark=log.high_watermark,
                topic_id=self._topic_id,
                delayed=delayed,
            ),
        )

    def on_fetch_failed(self, event: ev.FetchFailed) -> None:
        if self._is_current(event.fetch_offset, event.leader_epoch, None):
            self._ask(delayed=True)

    def _is_current(self, fetch_offset: int, leader_epoch: int, last_fetched_epoch: int | None) -> bool:
        """Only the answer to the outstanding question counts (a late one may be of a log that was cut since)."""
        if self._asked is None or self._leader_epoch != leader_epoch:
            return False
        asked_offset, asked_epoch = self._asked
        return fetch_offset == asked_offset and last_fetched_epoch in (None, asked_epoch)

    def on_fetched(self, event: ev.Fetched) -> None:
        if not self._is_current(event.fetch_offset, event.leader_epoch, event.last_fetched_epoch):
            return
        self._asked = None
        if event.error != ErrorCode.NONE:
            self._on_error(event)
        elif event.diverging is not None:
            # Nothing else of such an answer is believed, least of all its high watermark (KAFKA-14704).
            self._cut(event.diverging, event.log_start_offset)
        elif self._ends_before(event.log_start_offset):
            self._truncate(event.log_start_offset, restart=True)
        elif event.batches:
            self._take(event)
        else:
            self._leader_high_watermark = event.high_watermark
            self._leader_log_start = event.log_start_offset
            self._learn()

    def _ends_before(self, leader_log_start: int) -> bool:
        """Whether we have what is not known to be committed, and the leader nothing left to compare it with."""
        log = self._replica.log
        return log.high_watermark < log.log_end_offset <= leader_log_start

    def _on_error(self, event: ev.Fetched) -> None:
        log = self._replica.log
        if event.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            if 0 <= event.log_end_offset < log.log_end_offset:
                self._truncate(event.log_end_offset)
                return
            if event.log_start_offset > log.log_end_offset:
                self._truncate(event.log_start_offset, restart=True)
                return
        if event.error == ErrorCode.FENCED_LEADER_EPOCH:
            # A newer epoch exists: its record is on the way, and with it another role.
            return
        self._ask(delayed=True)

    def _cut(self, leader_end: EpochEnd, leader_log_start: int) -> None:
        """Keep what both have; what the leader has deleted it cannot compare, so nothing of that is kept."""
        log = self._replica.log
        kept = truncation_point(log.epochs, log.log_end_offset, leader_end)
        if kept <= leader_log_start and leader_log_start > 0:
            self._truncate(leader_log_start, restart=True)
        else:
            self._truncate(kept)

    def _truncate(self, offset: int, *, restart: bool = False) -> None:
        """Cut, unless committed records would go that no unclean election has given up.

        After an unclean election this log may have more of what was committed than the leader's, so the part that
        goes is kept for an operator.
        """
        log, may_lose = self._replica.log, self._may_lose()
        if not restart and offset < log.high_watermark and not may_lose:
            self._refuse(offset)
            return
        keep = may_lose and not log.is_empty and (restart or offset < log.log_end_offset)
        self._replica.log.expect_cut(offset, restart=restart)
        self._replica.parts.truncate(
            fx.Truncate(partition=self._replica.partition, offset=offset, restart=restart, keep=keep)
        )

    def _may_lose(self) -> bool:
        """Whether our log ends before the last unclean election: what was committed then may be gone."""
        versioned = self._replica.versioned
        assert versioned is not None
        return self._replica.log.epochs.latest < versioned.record.unclean_epoch

    def _refuse(self, offset: int) -> None:
        log = self._replica.log
        if not self._replica.failure:
            self._replica.emit(
                fx.CutRefused(
                    partition=self._replica.partition,
                    leader=self._leader,
                    leader_epoch=self._leader_epoch,
                    offset=offset,
                    high_watermark=log.high_watermark,
                )
            )
        self._replica.failure = (
            f"its leader, node {self._leader}, lacks committed records: to follow it this replica would have to "
            f"truncate its log to {offset}, below its high watermark {log.high_watermark}"
        )
        self._ask(delayed=True)

    def on_truncated(self) -> None:
        self._ask()

    def _take(self, event: ev.Fetched) -> None:
        """Append what the leader sent, if it goes on from our end and no epoch goes back or beyond."""
        log, batches = self._replica.log, event.batches
        expected, epoch = log.log_end_offset, log.epochs.latest
        base_offset = batches[0].base_offset
        # The log start may lie inside a batch: then the first one begins below it (KAFKA-6975).
        begins_inside = base_offset < expected < batches[0].next_offset and log.is_empty
        if begins_inside:
            expected = base_offset
        for batch in batches:
            begins, belongs_to = batch.base_offset, batch.leader_epoch
            goes_on = begins == expected or (event.may_skip and begins > expected)
            if not goes_on or not epoch <= belongs_to <= event.leader_epoch:
                self._ask(delayed=True)
                return
            expected, epoch = batch.next_offset, belongs_to
        self._leader_high_watermark = event.high_watermark
        self._leader_log_start = event.log_start_offset
        log.expect(batches)
        self._replica.emit(
            fx.Append(
                partition=self._replica.partition,
                handle=event.handle,
                batches=batches,
                base_offset=base_offset,
                leader_epoch=None,
                may_skip=event.may_skip,
                begins_inside=begins_inside,
            )
        )

    def on_appended(self) -> None:
        self._learn()

    def on_log_start_advanced(self) -> None:
        if not self._replica.stepping:
            self._ask()

    def _learn(self) -> None:
        """Take over the leader's high watermark, and with it its log start; then ask on.

        Records that the leader has deleted were committed, and are deleted here only as far as we know them to be.
        """
        log = self._replica.log
        if log.learn_high_watermark(self._leader_high_watermark):
            self._replica.parts.wake(self._replica.partition)
        if self._replica.stepping:
            return
        start = min(self._leader_log_start, log.high_watermark)
        if start > log.log_start_offset:
            # The next question tells the leader where our log begins, so it waits until that is so.
            log.outstanding += 1
            self._replica.emit(fx.AdvanceLogStart(partition=self._replica.partition, offset=start))
        else:
            self._ask()
