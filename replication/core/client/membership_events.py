"""The events of a consumer's membership in a group, and its requests to its client."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from ..groups.records import TopicPartition

# Events


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """The topics to read, by name; a client resolves its pattern itself and says so again when topics change."""

    topics: tuple[str, ...]


class TopicsKnown(msgspec.Struct, frozen=True, kw_only=True):
    """The names of topics by their ids, as far as the client knows them.

    `counts`: their partitions, by name. `looked`: names that were looked for, whether there is such a topic or not.
    """

    names: Mapping[str, str]
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    looked: frozenset[str] = frozenset()


class PollBegan(msgspec.Struct, frozen=True):
    """The caller asks for records, so it is done with what earlier polls returned.

    In an iteration each record is a poll: it counts when the next one is asked for.
    """


class PollEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The caller has its records: no callback runs until it polls again.

    `handed`: of each partition that it was given records of, the offset after the last one.
    """

    handed: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)


class CoordinatorFound(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `FindCoordinator`; `leader_epoch` of its partition."""

    token: int
    leader_epoch: int = -1


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `Send`."""

    token: int
    reply: Any


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A `Send` or `FindCoordinator` has no answer: refused, timed out, or its connection is gone."""

    token: int


class CallbackDone(msgspec.Struct, frozen=True):
    """The callback that was asked for last has returned."""


class CommitAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Commit these offsets; answered by one `CommitDone`."""

    commit_id: int
    offsets: Mapping[TopicPartition, int]
    deadline: float


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """End the membership in good order: commit, call back, leave; by `deadline` in any case.

    `leave_group` None: a static member only says that it is away; True: it leaves as others do; False: nobody says
    anything, and its session runs out.
    """

    deadline: float
    leave_group: bool | None = None


class Tick(msgspec.Struct, frozen=True):
    """The time of `deadline` has come."""


# Effects


class CallbackKind(enum.Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class FindCoordinator(msgspec.Struct, frozen=True, kw_only=True):
    """Ask any node who coordinates the group; answered by `CoordinatorFound` or `Lost`."""

    token: int


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """Send a request to the coordinator that was found last; `timeout` in seconds.

    `leader_epoch`: of that coordinator, -1 if it is not known.
    """

    token: int
    message: Any
    timeout: float
    leader_epoch: int = -1


class LearnTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Look these topics up, by name, and tell what came of it by `TopicsKnown`."""

    topics: frozenset[str]


class Withhold(msgspec.Struct, frozen=True, kw_only=True):
    """From now on hand out nothing of these, and drop what was fetched of them."""

    partitions: frozenset[TopicPartition]


class CallBack(msgspec.Struct, frozen=True, kw_only=True):
    """Run the caller's listener, in the poll that is under way; answered by `CallbackDone`."""

    kind: CallbackKind
    partitions: frozenset[TopicPartition]


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """Fetch and hand out this partition from `offset`; None: nothing is committed, by `auto_offset_reset`."""

    partition: TopicPartition
    offset: int | None


class CommitDone(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a commit; `error` 0: it is through. `unknown`: it may have been carried out."""

    commit_id: int
    error: int
    message: str = ""
    unknown: bool = False


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The membership cannot go on: the caller's poll raises this."""

    error: int
    message: str


class Ended(msgspec.Struct, frozen=True):
    """The membership that was to be closed is over."""


Event = (
    Subscribed
    | TopicsKnown
    | PollBegan
    | PollEnded
    | CoordinatorFound
    | Answered
    | Lost
    | CallbackDone
    | CommitAsked
    | Closed
    | Tick
)
Effect = FindCoordinator | Send | LearnTopics | Withhold | CallBack | Serve | CommitDone | Failed | Ended
