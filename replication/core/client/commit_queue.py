"""A member's commits: one at a time and in order, so that a repeated one never undoes a later one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs
import msgspec

from ..errors import ErrorCode, code_of
from ..groups.records import TopicPartition
from ..messages.groups import CommitGroupOffsetsResponse

_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        # The topic may be so new that the coordinator does not know it.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


@attrs.define
class Commit:
    """`commit_id` None: the member's own, of which nobody asks. `tries`: how often it has been sent."""

    commit_id: int | None
    offsets: Mapping[TopicPartition, int]
    deadline: float
    tries: int = 0
    epoch: int = -1
    """The member epoch with which it was sent last."""


class Outcome(msgspec.Struct, frozen=True):
    """`error` None: the commit must be sent again."""

    error: ErrorCode | None
    message: str = ""


class CommitQueue:
    """The commits that are not done; the first one may be under way."""

    def __init__(self) -> None:
        self.waiting: deque[Commit] = deque()
        self.token: int | None = None
        """Of the request that is under way."""
        self.again_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """When the first of them is given up."""
        return min([each.deadline for each in self.waiting], default=None)

    def add(self, commit: Commit) -> None:
        self.waiting.append(commit)

    def next(self, now: float) -> Commit | None:
        """The one to send now."""
        if not self.waiting or self.token is not None:
            return None
        if self.again_at is not None and now < self.again_at:
            return None
        self.again_at = None
        return self.waiting[0]

    def judge(self, reply: CommitGroupOffsetsResponse, epoch: int) -> Outcome:
        """The outcome that an answer to the first commit means, for a member that is at `epoch` by now."""
        errors = [reply.error] if reply.error else [each.error for each in reply.partitions if each.error]
        if not errors:
            return Outcome(ErrorCode.NONE)
        worst = code_of(errors[0])
        if all(error in _AGAIN for error in errors):
            return Outcome(None)
        # It was sent before the member learned of its new epoch.
        if set(errors) == {ErrorCode.STALE_MEMBER_EPOCH} and epoch > self.waiting[0].epoch:
            return Outcome(None)
        return Outcome(worst, reply.message)

    def expired(self, now: float) -> list[Commit]:
        """Take out those whose time is over."""
        over = [each for each in self.waiting if each.deadline <= now]
        if over:
            if self.waiting[0] in over:
                self.token = None
            self.waiting = deque(each for each in self.waiting if each.deadline > now)
        return over
