"""The assignors by the names that clients and settings use."""

from __future__ import annotations

from collections.abc import Iterable

from .assignment import Assignor
from .range import RangeAssignor, RoundRobinAssignor
from .sticky import CooperativeStickyAssignor, StickyAssignor
from .uniform import UniformAssignor

ENTRY_POINT_GROUP = "insync.assignors"
"""In which plugins name theirs, for clients and for coordinators. The name is the assignor's; the object is an
`Assignor`, or a class or function that makes one."""
CLIENT_ASSIGNORS: tuple[Assignor, ...] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)
"""The assignors that the leader of a classic group may use."""
SERVER_ASSIGNORS: tuple[Assignor, ...] = (UniformAssignor(), RangeAssignor())
"""The assignors that a coordinator may use, the default first (`group_consumer_assignors`)."""


def elect(wanted: Iterable[str | None], assignors: Iterable[Assignor]) -> Assignor:
    """The assignor that most members want; of equal ones, and if none says, the first in the settings' order."""
    votes: dict[str | None, int] = {}
    for name in wanted:
        votes[name] = votes.get(name, 0) + (name is not None)
    return max(assignors, key=lambda assignor: votes.get(assignor.name, 0))
