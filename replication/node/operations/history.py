"""The last changes that a node has told of, kept for those who ask later: a dashboard, or an operator."""

from __future__ import annotations

from collections import deque
from itertools import islice

from ...core.messages import ChangeInfo, DescribeChangesRequest, DescribeChangesResponse
from ..log_lines import Event

REMEMBERED = 2_000
"""About 1 MiB at 0.5 KiB a change; the log has them all."""
MOST_TOLD = 500
"""In one answer, so that it stays far below a frame."""
MOST_TEXT = 500
"""Characters of one fact; the log has all of them."""

_LISTS = (list, tuple)
"""Of ids of nodes or partitions."""


class ChangeHistory:
    """Numbers changes from 1 on and forgets the oldest."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._changes: deque[tuple[int, int, Event]] = deque(maxlen=remembered)
        self._next = 1

    def remember(self, event: Event, now: float) -> None:
        """`now`: the wall clock, in seconds since 1970."""
        # Most as they are: of the thousands that a failover tells at a time, nobody ever asks for most.
        if not all(map(_is_small, event.facts.values())):
            event = Event(event.name, {name: _fact(value) for name, value in event.facts.items()})
        self._changes.append((self._next, int(1000 * now), event))
        self._next += 1

    def describe(
        self, request: DescribeChangesRequest, node_id: int, incarnation: int
    ) -> DescribeChangesResponse:
        """The answer of the node `node_id`, whose process is `incarnation`."""
        first = self._next - len(self._changes)
        same = request.incarnation in (-1, incarnation)
        start = min(max(request.start, first), self._next) if same else first
        limit = min(max(request.limit, 0), MOST_TOLD)
        told = [_info(*each) for each in islice(self._changes, start - first, start - first + limit)]
        return DescribeChangesResponse(
            node_id=node_id,
            incarnation=incarnation,
            first_number=first,
            next_number=start + len(told),
            changes=told,
        )


def _is_small(value: object) -> bool:
    """Kept as it is. Texts of clients, such as a group's name, can be long; an error keeps its frames alive."""
    kind = type(value)
    return kind is int or (kind is str and len(value) <= MOST_TEXT) or kind in _LISTS  # type: ignore[arg-type]


def _info(number: int, at_ms: int, event: Event) -> ChangeInfo:
    facts = {name: _fact(value) for name, value in event.facts.items()}
    return ChangeInfo(number=number, at_ms=at_ms, name=event.name, facts=facts)


def _fact(value: object) -> str | int | list[int]:
    if isinstance(value, list | tuple):
        return [int(each) for each in value]
    if isinstance(value, int):
        return int(value)
    return str(value)[:MOST_TEXT]
