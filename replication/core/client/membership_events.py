"""The events of a consumer's membership in a group, and its requests to its client."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from ..groups.records import TopicPartition

# Events


@attrs.frozen(kw_only=True, slots=True)
class Subscribed:
    """The topics to read, by name; a client resolves its pattern itself and says so again when topics change."""

    topics: tuple[str, ...]


@attrs.frozen(kw_only=True, slots=True)
class TopicsKnown:
    """The names of topics by their ids, as far as the client knows them.

    `counts`: their partitions, by name. `looked`: names that were looked for, whether there is such a topic or not.
    """

    names: Mapping[str, str]
    counts: Mapping[str, int] = attrs.Factory(dict)
    looked: frozenset[str] = frozenset()


@attrs.frozen(slots=True)
class PollBegan:
    """The caller asks for records, so it is done with what earlier polls returned.

    In an iteration each record is a poll: it counts when the next one is asked for.
    """


@attrs.frozen(kw_only=True, slots=True)
class PollEnded:
    """The caller has its records: no callback runs until it polls again.

    `handed`: of each partition that it was given records of, the offset after the last one.
    """

    handed: Mapping[TopicPartition, int] = attrs.Factory(dict)


@attrs.frozen(kw_only=True, slots=True)
class CoordinatorFound:
    """The answer to `FindCoordinator`; `leader_epoch` of its partition."""

    token: int
    leader_epoch: int = -1


@attrs.frozen(kw_only=True, slots=True)
class Answered:
    """The answer to a `Send`."""

    token: int
    reply: Any


@attrs.frozen(kw_only=True, slots=True)
class Lost:
    """A `Send` or `FindCoordinator` has no answer: refused, timed out, or its connection is gone."""

    token: int


@attrs.frozen(slots=True)
class CallbackDone:
    """The callback that was asked for last has returned."""


@attrs.frozen(kw_only=True, slots=True)
class CommitAsked:
    """Commit these offsets; answered by one `CommitDone`."""

    commit_id: int
    offsets: Mapping[TopicPartition, int]
    deadline: float


@attrs.frozen(kw_only=True, slots=True)
class Closed:
    """End the membership in good order: commit, call back, leave; by `deadline` in any case.

    `leave_group` None: a static member only says that it is away; True: it leaves as others do; False: nobody says
    anything, and its session runs out.
    """

    deadline: float
    leave_group: bool | None = None


@attrs.frozen(slots=True)
class Tick:
    """The time of `deadline` has come."""


# Effects


class CallbackKind(enum.Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


@attrs.frozen(kw_only=True, slots=True)
class FindCoordinator:
    """Ask any node who coordinates the group; answered by `CoordinatorFound` or `Lost`."""

    token: int


@attrs.frozen(kw_only=True, slots=True)
class Send:
    """Send a request to the coordinator that was found last; `timeout` in seconds.

    `leader_epoch`: of that coordinator, -1 if it is not known.
    """

    token: int
    message: Any
    timeout: float
    leader_epoch: int = -1


@attrs.frozen(kw_only=True, slots=True)
class LearnTopics:
    """Look these topics up, by name, and tell what came of it by `TopicsKnown`."""

    topics: frozenset[str]


@attrs.frozen(kw_only=True, slots=True)
class Withhold:
    """From now on hand out nothing of these, and drop what was fetched of them."""

    partitions: frozenset[TopicPartition]


@attrs.frozen(kw_only=True, slots=True)
class CallBack:
    """Run the caller's listener, in the poll that is under way; answered by `CallbackDone`."""

    kind: CallbackKind
    partitions: frozenset[TopicPartition]


@attrs.frozen(kw_only=True, slots=True)
class Serve:
    """Fetch and hand out this partition from `offset`; None: nothing is committed, by `auto_offset_reset`."""

    partition: TopicPartition
    offset: int | None


@attrs.frozen(kw_only=True, slots=True)
class CommitDone:
    """The outcome of a commit; `error` 0: it is through. `unknown`: it may have been carried out."""

    commit_id: int
    error: int
    message: str = ""
    unknown: bool = False


@attrs.frozen(kw_only=True, slots=True)
class Failed:
    """The membership cannot go on: the caller's poll raises this."""

    error: int
    message: str


@attrs.frozen(slots=True)
class Ended:
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
