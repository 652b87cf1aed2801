"""Filters on topic, partition, offset and timestamp, and the ranges that they leave to be read.

They only make ranges smaller. Spark looks at every row again, so a filter that is not understood costs time, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ._offsets import Range


@attrs.define
class Bounds:
    """The conditions that a row must meet; None: no condition. Ends are exclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start: int = 0
    end: int | None = None
    from_ms: int | None = None

    def narrow(self, ranges: Iterable[Range]) -> list[Range]:
        """The ranges, cut to the bounds; the time is not looked at."""
        found = []
        for each in ranges:
            if self.topics is not None and each.topic not in self.topics:
                continue
            if self.partitions is not None and each.partition not in self.partitions:
                continue
            start = max(each.start, self.start)
            end = each.end if self.end is None else min(each.end, self.end)
            found.append(attrs.evolve(each, start=start, end=max(start, end)))
        return [each for each in found if len(each) > 0]

    def add(self, condition: Filter) -> None:
        """Narrow by one more condition, if it is understood."""
        column: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(column) != 1:
            return
        name, value = column[0], getattr(condition, "value", None)
        if name in ("topic", "partition"):
            if isinstance(condition, EqualTo):
                self._among(name, frozenset([value]))
            elif isinstance(condition, In):
                self._among(name, frozenset(condition.value))
        elif name == "offset" and isinstance(value, int):
            self._offset(condition, value)
        elif name == "timestamp" and isinstance(value, datetime):
            self._time(condition, value)

    def _among(self, name: str, values: frozenset[Any]) -> None:
        if name == "topic":
            self.topics = values if self.topics is None else self.topics & values
        else:
            self.partitions = values if self.partitions is None else self.partitions & values

    def _offset(self, condition: Filter, value: int) -> None:
        if isinstance(condition, EqualTo | GreaterThanOrEqual):
            self.start = max(self.start, value)
        if isinstance(condition, GreaterThan):
            self.start = max(self.start, value + 1)
        end = None
        if isinstance(condition, EqualTo | LessThanOrEqual):
            end = value + 1
        if isinstance(condition, LessThan):
            end = value
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)

    def _time(self, condition: Filter, value: datetime) -> None:
        """Only where to begin: a later record may have an earlier time."""
        if isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual):
            at = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            since = max(0, int(at.timestamp() * 1000))
            self.from_ms = since if self.from_ms is None else max(self.from_ms, since)


class PushFilters:
    """A reader's `pushFilters` that Spark takes whether filters are pushed (`filterPushdown.enabled`) or not.

    Spark refuses a reader that overrides the method while the setting is off, and sees that by `__func__`.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._bounds = bounds

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        for each in filters:
            self._bounds.add(each)
        return filters
