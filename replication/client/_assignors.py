"""Assignors by name: those of the core, and what others register as entry points."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from itertools import islice

from .._bounded import Bounded
from ..core.groups.assignors.assignment import Assignment, Assignor, Counts, Members
from ..core.groups.assignors.names import CLIENT_ASSIGNORS, ENTRY_POINT_GROUP
from .errors import InvalidSettingError

_SETTING = "partition_assignment_strategy"
WITHIN = 5.0
"""Time limit in seconds for a plugin's assignor: the client sends no heartbeat meanwhile."""
_BUILT_IN: dict[str, Assignor] = {each.name: each for each in CLIENT_ASSIGNORS}


def find_assignors(strategy: object) -> tuple[Assignor, ...]:
    """The assignors that a setting means, in its order; names may stand in one text, comma separated.

    Raises `InvalidSettingError` for an unregistered name, and for an object that is not an assignor.
    """
    if isinstance(strategy, str):
        listed: Sequence[object] = [each.strip() for each in strategy.split(",") if each.strip()]
    else:
        listed = strategy if isinstance(strategy, Sequence) else [strategy]
    found = tuple([_named(each) if isinstance(each, str) else _checked(each, repr(each)) for each in listed])
    if not found:
        raise InvalidSettingError(f"{_SETTING} is empty; name at least one of {', '.join(_BUILT_IN)}")
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise InvalidSettingError(f"{_SETTING} is {', '.join(names)}; name each once")
    return found


def _named(name: str) -> Assignor:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    points = entry_points(group=ENTRY_POINT_GROUP)
    for point in points:
        if point.name == name:
            try:
                made = point.load()
                made = made() if callable(made) else made
            except Exception as error:
                raise InvalidSettingError(
                    f"{_SETTING}: assignor {name!r} ({point.value}) cannot be loaded: {error!r}"
                ) from error
            return _checked(made, f"{name!r} ({point.value})")
    known = ", ".join([*_BUILT_IN, *(point.name for point in points)])
    raise InvalidSettingError(
        f"{_SETTING} has {name!r}, which no package registers in {ENTRY_POINT_GROUP}; there are {known}"
    )


def _checked(made: object, what: str) -> Assignor:
    if not isinstance(getattr(made, "name", None), str) or not callable(getattr(made, "assign", None)):
        raise InvalidSettingError(
            f"{_SETTING}: {what} is not an assignor; it needs a name and assign(counts, members)"
        )
    return made if made in CLIENT_ASSIGNORS else _Foreign(made)  # type: ignore[arg-type]


class _Foreign:
    """A plugin's assignor with its time limit. The membership judges its result or exception."""

    def __init__(self, made: Assignor) -> None:
        self._made = made
        self._ask = Bounded(self._asked, WITHIN, f"insync-assignor-{made.name}")

    @property
    def name(self) -> str:
        return self._made.name

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep what they hold while they join (KIP-429); by the name, if it does not say."""
        return bool(getattr(self._made, "is_cooperative", False))

    def assign(self, counts: Counts, members: Members) -> Assignment:
        """Raises `OverdueError` if it takes too long, and whatever it raises."""
        found: Assignment = self._ask(counts, members)
        return found

    def _asked(self, counts: Counts, members: Members) -> Assignment:
        # What it gives may be computed, or be without end, when it is looked at: that counts for its time.
        most = sum(counts.values()) + 1
        answer = islice(self._made.assign(counts, members).items(), len(members) + 1)
        return {name: list(islice(given, most)) for name, given in answer}
