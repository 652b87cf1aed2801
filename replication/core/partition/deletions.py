"""Deleting the oldest records on a client's request (KIP-107), as the leader sees it.

The leader gives up its own part first, followers copy its log start from its answers, and the client is answered
when nobody who may serve or lead holds anything below the offset: the replicas that are alive, and (other than
Kafka, which asks the living only) every one that may be elected without losing records. Otherwise what a client
was told is gone would come back with the next leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ErrorCode
from . import effects as fx
from . import events as ev
from . import isr as rules
from .purgatory import DeletionPurgatory, ParkedDeletion

if TYPE_CHECKING:
    from .leader import LeaderRole

TO_HIGH_WATERMARK = -1


class Deletions:
    """The requests that wait. Belongs to one leader epoch."""

    def __init__(self, leader: LeaderRole) -> None:
        self._leader = leader
        self._replica = leader.replica
        self._parked = DeletionPurgatory()

    def on_delete_records(self, event: ev.DeleteRecords) -> None:
        log = self._replica.log
        offset = log.high_watermark if event.offset == TO_HIGH_WATERMARK else event.offset
        if not 0 <= offset <= log.high_watermark:
            self._reply(
                event.request_id,
                ErrorCode.OFFSET_OUT_OF_RANGE,
                message=f"offset {offset} is not in [0, {log.high_watermark}]: only committed records can be "
                f"deleted; use {TO_HIGH_WATERMARK} for all of them",
            )
            return
        if offset > log.log_start_offset:
            log.outstanding += 1
            self._replica.emit(fx.AdvanceLogStart(partition=self._replica.partition, offset=offset))
        self._parked.park(ParkedDeletion(offset, event.request_id, event.deadline))
        self.complete()

    @property
    def are_parked(self) -> bool:
        """Whether any request waits."""
        return bool(self._parked)

    def complete(self) -> None:
        """Answer those whose offset no replica that counts holds any more."""
        if not self._parked:
            return
        low = self.low_watermark()
        for parked in self._parked.reached(low):
            self._reply(parked.request_id, ErrorCode.NONE, low)

    def low_watermark(self) -> int:
        """The least log start over the replicas that are alive or may be elected."""
        leader, live = self._leader, self._replica.live
        electable = leader.electable()
        starts = [
            follower.log_start_offset
            for node, follower in leader.followers.items()
            if node in live or node in electable
        ]
        return rules.low_watermark(self._replica.log.log_start_offset, starts)

    def on_tick(self) -> None:
        for parked in self._parked.expired(self._replica.now):
            self._reply(
                parked.request_id,
                ErrorCode.REQUEST_TIMED_OUT,
                message="the leader has deleted the records; another replica still has them and "
                "will delete them when it fetches again",
            )

    def leave(self, error: ErrorCode) -> None:
        for parked in self._parked.drain():
            self._reply(parked.request_id, error)

    def _reply(
        self, request_id: int, error: ErrorCode, low_watermark: int = -1, *, message: str = ""
    ) -> None:
        leader, epoch = self._replica.hint()
        self._replica.parts.deletion_replied(
            self._replica.partition,
            fx.ReplyDeleteRecords(
                request_id=request_id,
                error=error,
                low_watermark=low_watermark,
                leader=leader,
                leader_epoch=epoch,
                message=message,
            ),
        )
