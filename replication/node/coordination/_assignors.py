"""The assignors that a coordinator may use: the built-in ones, and those of plugins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from types import MappingProxyType
from typing import Any

from ..._bounded import Bounded, OverdueError
from ...core.groups.assignors.assignment import Assignment, Assignor, Counts, Members, Partition, subscribers
from ...core.groups.assignors.names import ENTRY_POINT_GROUP, SERVER_ASSIGNORS
from ...core.groups.assignors.uniform import UniformAssignor
from ..errors import InvalidSettingError

log = logging.getLogger("insync.node")

BUILT_IN: dict[str, Assignor] = {each.name: each for each in SERVER_ASSIGNORS}
_SETTING = "group_consumer_assignors"
_LONGEST_TOLD = 1000
WITHIN = 1.0
"""Time limit of an assignor in seconds: the node serves nobody else meanwhile."""


def assignor(name: str) -> Assignor:
    """The assignor of that name.

    Raises `InvalidSettingError`: it is not registered, cannot be loaded, or is not an assignor.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    points = entry_points(group=ENTRY_POINT_GROUP)
    for point in points:
        if point.name == name:
            return _Guarded(name, _load(point))
    known = ", ".join([*BUILT_IN, *(point.name for point in points)])
    raise InvalidSettingError(
        f"{_SETTING} has {name!r}, which no package registers in {ENTRY_POINT_GROUP}; there are {known}"
    )


def _load(point: EntryPoint) -> Assignor:
    what = f"{_SETTING}: assignor {point.name!r} ({point.value})"
    try:
        made: Any = point.load()
        made = made() if callable(made) else made
        fits = made.name == point.name and callable(made.assign)
    except Exception as error:
        raise InvalidSettingError(
            f"{what} cannot be loaded: {error!r}; repair it or remove it from the setting"
        ) from error
    if not fits:
        raise InvalidSettingError(
            f"{what} is not an assignor of that name; it needs name={point.name!r} and assign(counts, members)"
        )
    found: Assignor = made
    return found


class _Guarded:
    """A plugin's assignor, with `uniform` in place of what it raises and of what cannot be carried out, or in time.

    Coordinators of other groups live in the same process, and the next coordinator would ask the same plugin: one
    mistake would end every node in turn.
    """

    def __init__(self, name: str, foreign: Assignor) -> None:
        self.name = name
        self._foreign = foreign
        self._ask = Bounded(self._asked, WITHIN, f"insync-assignor-{name}")
        self._told: set[str] = set()

    def assign(self, counts: Counts, members: Members) -> Assignment:
        """See `Assignor.assign`."""
        try:
            # It gets nothing that it could change for others.
            found: Assignment = self._ask(counts, members)
            return found
        except OverdueError as problem:
            why = f"{problem} (the node serves nobody else meanwhile)"
        except _WrongAnswerError as problem:
            why = str(problem)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code: the group does without it
            why = f"raised {_said(error)}"
        if why not in self._told and len(self._told) < 100:
            self._told.add(why)
            log.error("the assignor %s %s; uniform assigns in its place", self.name, why)
        return UniformAssignor().assign(counts, members)

    def _asked(self, counts: Counts, members: Members) -> Assignment:
        given = self._foreign.assign(MappingProxyType({**counts}), MappingProxyType({**members}))
        # What it gives may be computed, or be without end, when it is looked at: that counts for its time.
        return _checked(given, counts, members)


def _said(error: BaseException) -> str:
    """An error of a plugin as text, as far as that can be had."""
    try:
        text = repr(error)
    except Exception:  # noqa: BLE001 - somebody else's code
        return type(error).__name__
    return text if len(text) <= _LONGEST_TOLD else f"{text[:_LONGEST_TOLD]}..."


class _WrongAnswerError(Exception):
    """An assignor's answer cannot be carried out; the text goes on after the assignor's name."""


def _checked(given: Any, counts: Counts, members: Members) -> Assignment:
    """Each partition of a subscribed topic once, to one of its subscribers."""
    assigned: Assignment = {member_id: [] for member_id in members}
    owners: dict[Partition, str] = {}
    # Nothing is collected before it is judged: an answer without end would take all memory.
    listed = given.items() if isinstance(given, Mapping) else given
    for member_id, partitions in dict(islice(listed, len(members) + 1)).items():
        if member_id not in members:
            raise _WrongAnswerError(f"assigns partitions to {member_id!r}, which is not a member")
        for partition in (Partition(str(topic), int(number)) for topic, number in partitions):
            if partition.topic not in members[member_id].topics:
                raise _WrongAnswerError(f"gives {partition} to {member_id!r}, which does not read that topic")
            if not 0 <= partition.partition < counts.get(partition.topic, 0):
                raise _WrongAnswerError(f"gives {partition}, which does not exist")
            if partition in owners:
                raise _WrongAnswerError(f"gives {partition} to {owners[partition]!r} and to {member_id!r}")
            owners[partition] = member_id
            assigned[member_id].append(partition)
    total = sum(counts[topic] for topic in subscribers(counts, members))
    if len(owners) < total:
        raise _WrongAnswerError(f"gives {len(owners)} of {total} partitions")
    return {member_id: sorted(partitions) for member_id, partitions in assigned.items()}
