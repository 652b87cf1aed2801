"""Arguments of the clients' methods: taken as they should be, or refused before anything is sent.

All raise `InvalidArgumentError`, which names the argument, what it is and what to give instead.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.types import PartitionId, Value
from .errors import InvalidArgumentError

_INT64 = 1 << 63
_INT32 = 1 << 31


def shown(value: object) -> str:
    """The given value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def refused(what: str, value: object, instead: str) -> InvalidArgumentError:
    """The error that says so."""
    return InvalidArgumentError(f"{what} is {shown(value)}; {instead}")


def text(what: str, value: object) -> str:
    """A text that can be sent, too."""
    if not isinstance(value, str):
        raise refused(what, value, "it must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refused(what, value, "it contains lone surrogates, which cannot be sent") from None
    return value


def flag(what: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise refused(what, value, "it must be True or False")
    return value


def whole(what: str, value: Any, *, least: int = -_INT64, most: int = _INT64 - 1) -> int:
    """A whole number in a range; what stands for one, such as numpy's, becomes an int."""
    try:
        if isinstance(value, bool):
            raise TypeError(value)
        number = operator.index(value)
    except TypeError:
        raise refused(what, value, "it must be a whole number") from None
    if number < least:
        raise refused(what, value, f"use {least} or more")
    if number > most:
        raise refused(what, value, f"use {most} or less")
    return number


def duration(what: str, value: Any) -> float:
    """A number of seconds or milliseconds that may be waited for; as long as it takes is `math.inf`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise refused(what, value, "it must be a number")
    if value < 0:
        raise refused(what, value, "use 0 or more")
    return float(value) if value < _INT64 else math.inf


def timeout(value: Any) -> float | None:
    """Seconds to wait; None: as long as it takes. Less than 0, as a deadline that has passed may give, is 0."""
    if value is None or value == math.inf:
        return None
    late = isinstance(value, int | float) and value < 0
    return 0.0 if late else duration("timeout", value)


def function(what: str, value: Any) -> None:
    """Something that can be called."""
    if not callable(value):
        raise refused(what, value, "it must be a function")


def listed(what: str, value: Any, instead: str) -> list[Any]:
    """The things in a list, or in whatever else can be gone through; a text is not meant for its letters."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise refused(what, value, instead)
    return list(value)


def sequence(what: str, value: Any) -> None:
    """A list, a tuple, an array: what has a length and places."""
    places = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    if not places or isinstance(value, str | bytes | bytearray | Mapping):
        raise refused(what, value, "give a list")


def names(what: str, value: Any) -> list[str]:
    """A list of texts."""
    return [text(f"one of {what}", each) for each in listed(what, value, "give a list of names")]


def numbers(what: str, value: Any) -> list[int]:
    """A list of whole numbers."""
    return [whole(f"one of {what}", each) for each in listed(what, value, "give a list of node ids")]


def assignments(what: str, value: Any) -> list[list[int]]:
    """For each partition a list of node ids; none of these lists is empty."""
    instead = "give a list of node ids for each partition"
    found = []
    for each in listed(what, value, instead):
        nodes = listed(f"one of {what}", each, instead)
        found.append([whole(f"a node of {what}", node, least=0, most=_INT32 - 1) for node in nodes])
    if not found or not all(found):
        raise refused(what, value, instead)
    return found


def mapping(what: str, value: Any, instead: str) -> Mapping[Any, Any]:
    """A dict, or what is like one."""
    if not isinstance(value, Mapping):
        raise refused(what, value, instead)
    return value


def config(what: str, value: Any) -> dict[str, Value]:
    """Settings of a topic: names, each with a number or a text."""
    found: dict[str, Value] = {}
    for name, each in mapping(what, value, "give a dict of names and values").items():
        key = text(f"a name in {what}", name)
        if isinstance(each, str):
            found[key] = text(f"{key!r} in {what}", each)
        elif isinstance(each, float):
            found[key] = each
        else:
            try:
                found[key] = each if isinstance(each, bool) else whole(f"{key!r} in {what}", each)
            except InvalidArgumentError:
                raise refused(f"{key!r} in {what}", each, "it must be a number or a string") from None
    return found


def limits(what: str, value: Any) -> dict[str, int]:
    """Names, each with a whole number."""
    given = mapping(what, value, "give a dict of names and numbers")
    return {
        text(f"a name in {what}", name): whole(f"{name!r} in {what}", each) for name, each in given.items()
    }


def partition(named: Any) -> PartitionId:
    """A pair of topic and number."""
    if not isinstance(named, str | bytes) and isinstance(named, Sequence) and len(named) == 2:
        topic, number = named
        if isinstance(topic, str) and not isinstance(number, bool) and hasattr(number, "__index__"):
            return PartitionId(text("a topic", topic), whole("a partition", number, least=0, most=_INT32 - 1))
    raise InvalidArgumentError(
        f"{shown(named)} names no partition; give pairs of topic and number, such as ('orders', 0)"
    )


def partitions(value: Any) -> list[PartitionId]:
    """Pairs of topic and number."""
    pairs = listed("partitions", value, "that names no partition; give a list of pairs such as ('orders', 0)")
    return [partition(each) for each in pairs]


def some_partitions(value: Any) -> list[PartitionId] | None:
    """The same, where None means all that there are."""
    return None if value is None else partitions(value)


def by_partition(what: str, value: Any) -> list[tuple[PartitionId, Any]]:
    """A dict with something for each pair of topic and number."""
    given = mapping(what, value, "give a dict whose keys are pairs such as ('orders', 0)")
    return [(partition(at), each) for at, each in given.items()]


def offsets_to_commit(value: Any) -> dict[PartitionId, int]:
    """As `offsets`, without those that are not known yet (None)."""
    known = by_partition("offsets", value)
    return {at: whole(f"offset for {at}", each, least=0) for at, each in known if each is not None}


def offsets(what: str, value: Any, *, least: int) -> dict[PartitionId, int]:
    """A dict with an offset (or a time) for each pair of topic and number."""
    return {at: whole(f"{what} for {at}", each, least=least) for at, each in by_partition(f"{what}s", value)}
