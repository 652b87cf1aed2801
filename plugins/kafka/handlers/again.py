"""Parts that an answer tells more than once, because the request names them more than once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from ..protocol import Struct

Thing = TypeVar("Thing", bound=Hashable)
MOST_AGAIN = 20_000
"""Parts that one answer tells for a second and further time. A part is a partition, a setting, a producer: about a
hundred bytes, encoded in a few microseconds."""
TOO_OFTEN = "the request names it too often"
_PART = 64
"""Bytes of what clients have stored that count as a part."""


class Again:
    """Bounds what an answer tells more than once: four bytes of a request might have megabytes told each."""

    def __init__(self) -> None:
        self._told: set[Hashable] = set()
        self._left = MOST_AGAIN

    def may_tell(self, thing: Hashable) -> bool:
        """Whether an answer may contain a thing: once in any case, and then as long as parts are left."""
        return self._left > 0 or thing not in self._told

    def tells(self, thing: Hashable, parts: int) -> None:
        """An answer contains a thing, which has so many parts."""
        if thing in self._told:
            self._left -= max(parts, 1)
        else:
            self._told.add(thing)

    def descriptions(
        self,
        named: Iterable[Thing],
        told: Mapping[Thing, Struct],
        parts: Mapping[Thing, int],
        refuse: Callable[[Thing], Struct],
    ) -> list[Struct]:
        """The answer's part for each thing, in the order of a request, which may name one more than once."""
        answered = []
        for each in named:
            if self.may_tell(each):
                self.tells(each, parts[each])
                answered.append(told[each])
            else:
                answered.append(refuse(each))
        return answered


def parts_of(length: int) -> int:
    """As what so many bytes count that a client has stored."""
    return length // _PART
