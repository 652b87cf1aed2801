"""Partitions and ranges of offsets in them: what a reader's options say, and Spark's JSON for it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ...replication.core.wording import first_of
from ._options import MOST, Options
from .errors import OffsetError, OptionError

Partition = tuple[str, int]
Offsets = dict[Partition, int]
Ids = dict[str, str]
"""Of topics, by their names: a topic that is made again has another one."""

EARLIEST, LATEST = -2, -1
"""As they stand in the JSON of offsets."""

_EXAMPLE = '{"topicA":{"0":23,"1":-2}}'
_GROUP = "group:"
_MARKS = {"earliest": EARLIEST, "latest": LATEST}


@attrs.frozen
class Subscription:
    """Exactly one of the three ways to say what is read."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[Partition, ...] = ()

    @classmethod
    def of(cls, options: Options) -> Subscription:
        given = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
        if len(given) != 1:
            said = " and ".join(given) if given else "none"
            raise OptionError(
                f"exactly one of subscribe, subscribePattern and assign must be given, not {said}"
            )
        text = (options.text(given[0]) or "").strip()
        if not text:
            raise OptionError(f"{given[0]} is empty")
        if given[0] == "subscribe":
            names = {name.strip() for name in text.split(",") if name.strip()}
            if not names:
                raise OptionError(f"subscribe is {text!r}; it names no topic")
            return cls(topics=tuple(sorted(names)))
        if given[0] == "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                raise OptionError(
                    f"subscribePattern {text!r} is not a regular expression: {error}"
                ) from error
            return cls(pattern=text)
        return cls(partitions=_assigned(text))

    def matches(self, topic: str) -> bool:
        """Whether the pattern, if there is one, takes this topic."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None


def _assigned(text: str) -> tuple[Partition, ...]:
    found = _json("assign", text, '{"topicA":[0,1]}')
    partitions = set()
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not all(_is_number(n) and n >= 0 for n in numbers):
            raise OptionError(
                f"assign: the partitions of {topic!r} must be a list such as [0,1], not {numbers!r}"
            )
        partitions |= {(topic, number) for number in numbers}
    if not partitions:
        raise OptionError("assign names no partition")
    return tuple(sorted(partitions))


@attrs.frozen
class Bound:
    """Where to begin or to end: a mark, offsets by partition (which may be marks), or times by partition."""

    name: str
    """The option that says so."""
    mark: int | None = None
    offsets: Mapping[Partition, int] | None = None
    timestamp: int | None = None
    timestamps: Mapping[Partition, int] | None = None
    group: str | None = None
    """The consumer group whose committed offsets count; where it has committed nothing, the oldest record."""

    @property
    def by_time(self) -> bool:
        return self.timestamp is not None or self.timestamps is not None

    def moves(self) -> bool:
        """Whether it means other offsets when it is asked for again."""
        return self.group is not None or self.is_latest_somewhere()

    def is_latest_somewhere(self) -> bool:
        return self.mark == LATEST or LATEST in (self.offsets or {}).values()

    def times(self, partitions: Sequence[Partition]) -> Offsets:
        """The time for each partition, in milliseconds since 1970."""
        if self.timestamps is None:
            assert self.timestamp is not None
            return dict.fromkeys(partitions, self.timestamp)
        _check_all(self.name, self.timestamps, partitions)
        return dict(self.timestamps)

    def marks(self, partitions: Sequence[Partition]) -> Offsets:
        """The offset or mark for each partition."""
        if self.offsets is None:
            assert self.mark is not None
            return dict.fromkeys(partitions, self.mark)
        _check_all(self.name, self.offsets, partitions)
        return dict(self.offsets)


def starting(options: Options, default: str) -> Bound:
    """As Spark's Kafka source has it: startingTimestamp, then startingOffsetsByTimestamp, then startingOffsets.

    `group:NAME` as startingOffsets is insync's own.
    """
    text = (options.text("startingOffsets") or "").strip()
    earlier = "startingTimestamp" in options or "startingOffsetsByTimestamp" in options
    if text.startswith(_GROUP) and not earlier:
        group = text.removeprefix(_GROUP).strip()
        if not group:
            raise OptionError("startingOffsets is 'group:'; name the consumer group, as in group:billing")
        return Bound("startingOffsets", group=group)
    return _bound(options, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", default)


def ending(options: Options) -> Bound:
    bound = _bound(options, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", "latest")
    if bound.mark == EARLIEST or EARLIEST in (bound.offsets or {}).values():
        raise OptionError("endingOffsets cannot be earliest (-2): nothing ends there")
    return bound


def check_order(start: Bound, end: Bound) -> None:
    """Raise OptionError where the options alone say that the end lies before the start: nothing could be read.

    Spark's Kafka source reads nothing of such a partition without a word.
    """
    if start.timestamp is not None and end.timestamp is not None and end.timestamp < start.timestamp:
        raise OptionError(
            f"{end.name}={end.timestamp} is before {start.name}={start.timestamp}: nothing lies between them; "
            "give an end that is not before the start"
        )
    for firsts, lasts in ((start.offsets, end.offsets), (start.timestamps, end.timestamps)):
        for (topic, partition), first in sorted((firsts or {}).items()):
            last = (lasts or {}).get((topic, partition), LATEST)
            if 0 <= last < first:
                raise OptionError(
                    f"{end.name}: {topic}-{partition}: {last} is before {first}, which {start.name} says: nothing "
                    "lies between them; give an end that is not before the start"
                )


def _bound(options: Options, time: str, times: str, offsets: str, default: str) -> Bound:
    if time in options:
        return Bound(time, timestamp=options.number(time, None, least=0))
    if times in options:
        found = parse_offsets(times, options.text(times) or "")
        if any(value < 0 for value in found.values()):
            raise OptionError(f"{times}: times are milliseconds since 1970, not negative")
        return Bound(times, timestamps=found)
    text = (options.text(offsets) or default).strip()
    if text.lower() in _MARKS:
        return Bound(offsets, mark=_MARKS[text.lower()])
    if not text.startswith("{"):
        group = ", or group:NAME" if offsets == "startingOffsets" else ""
        raise OptionError(
            f"{offsets} is {text!r}; it must be earliest, latest or JSON such as {_EXAMPLE}{group}"
        )
    found = parse_offsets(offsets, text)
    if any(value < EARLIEST for value in found.values()):
        raise OptionError(f"{offsets}: an offset is -2 (earliest), -1 (latest) or at least 0")
    return Bound(offsets, offsets=found)


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is not JSON such as {example}: {error}") from error
    if not isinstance(found, dict):
        raise OptionError(f"{name} must be JSON such as {example}, not {text!r}")
    return found


def _is_number(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and abs(found) <= MOST


def parse_offsets(name: str, text: str) -> Offsets:
    """`{"topicA":{"0":23,"1":-2}}`. Raises OptionError for anything else."""
    offsets: Offsets = {}
    for topic, by_partition in _json(name, text, _EXAMPLE).items():
        if not isinstance(by_partition, dict):
            raise OptionError(f"{name} must be JSON such as {_EXAMPLE}, not {text!r}")
        for partition, offset in by_partition.items():
            if not partition.isdecimal() or not _is_number(offset):
                raise OptionError(f"{name}: {topic}-{partition}: {offset!r} is not an offset")
            if (topic, int(partition)) in offsets:
                raise OptionError(f"{name} names {topic}-{int(partition)} twice; keep one")
            offsets[topic, int(partition)] = offset
    return offsets


Json = dict[str, dict[str, Any]]
"""As Spark keeps offsets in its checkpoints: `{"topicA":{"0":23,"1":5,"id":"..."}}`."""
_ID = "id"


def to_json(offsets: Mapping[Partition, int], ids: Mapping[str, str]) -> Json:
    """Spark compares their text, so the keys stand in one order always."""
    found: Json = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    for topic, each in found.items():
        if topic in ids:
            each[_ID] = ids[topic]
    return found


def from_json(found: Json) -> tuple[Offsets, Ids]:
    """Offsets, and the ids of topics; there are none in checkpoints of former versions."""
    offsets = {
        (topic, int(at)): offset for topic, each in found.items() for at, offset in each.items() if at != _ID
    }
    return offsets, {topic: each[_ID] for topic, each in found.items() if _ID in each}


def _check_all(name: str, given: Mapping[Partition, int], partitions: Sequence[Partition]) -> None:
    """As with Kafka: who names offsets names those of all partitions, and of no others."""
    missing, others = set(partitions) - given.keys(), given.keys() - set(partitions)
    if missing:
        raise OptionError(f"{name} leaves out {_listed(missing)}; it must name every partition that is read")
    if others:
        raise OptionError(f"{name} names {_listed(others)}, which does not exist or is not read")


def _listed(partitions: set[Partition]) -> str:
    names = [f"{topic}-{number}" for topic, number in sorted(partitions)]
    return first_of(names, 5)


@attrs.frozen
class Range:
    """Offsets [start, end) of one partition, read by one task."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    def __len__(self) -> int:
        return self.end - self.start


def split(ranges: Sequence[Range], min_partitions: int | None, most: int | None = None) -> list[Range]:
    """At least so many ranges where there are offsets enough, none of more than `most`; large ones are cut in equal
    parts (by offsets).
    """
    full = [each for each in ranges if len(each) > 0]
    if most is not None:
        full = [part for each in full for part in _cut(each, -(-len(each) // most))]
    if min_partitions is None or not full or len(full) >= min_partitions:
        return full
    total = sum(map(len, full))
    found: list[Range] = []
    for each in full:
        found += _cut(each, max(1, min(len(each), -(-len(each) * min_partitions // total))))
    return found


def _cut(whole: Range, parts: int) -> list[Range]:
    edges = [whole.start + len(whole) * n // parts for n in range(parts + 1)]
    return [attrs.evolve(whole, start=a, end=b) for a, b in itertools.pairwise(edges)]


def limited(start: Mapping[Partition, int], end: Mapping[Partition, int], most: int) -> Offsets:
    """An end nearer to the start, such that `most` offsets lie between, each partition giving its share."""
    sizes = {at: max(0, offset - start[at]) for at, offset in end.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    shares = {at: size * most // total for at, size in sizes.items()}
    left = most - sum(shares.values())
    # What rounding left goes to those that have most to give, so that a small limit moves on, too.
    for at in sorted(sizes, key=lambda each: (shares[each] - sizes[each], each))[:left]:
        shares[at] += 1
    return {at: start[at] + shares[at] for at in end}


def check_inside(name: str, offsets: Mapping[Partition, int], first: Offsets, last: Offsets) -> None:
    """Raise OffsetError for offsets beyond the end of a log; such before its start have been deleted."""
    for (topic, partition), offset in sorted(offsets.items()):
        end = last[topic, partition]
        if offset > end:
            raise OffsetError(
                f"{name}: {topic}-{partition}: offset {offset} does not exist yet; the log holds "
                f"[{first[topic, partition]}, {end})"
            )
