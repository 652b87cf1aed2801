"""Is there an order of all calls that agrees with time and with what they were answered? (Wing and Gong, 1993.)

Linearizability (Herlihy and Wing, 1990) asks for one order in which every call takes effect at a moment between its
begin and its end. A call whose answer never came may take effect at any time after its begin, or never.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

import attrs

S = TypeVar("S", bound=Hashable)
UNKNOWN = object()
"""The answer of a call of which nobody knows what became."""


class UndecidedError(Exception):
    """The search was broken off: it has found no order so far, and has not tried all of them."""


@attrs.frozen(kw_only=True)
class Call:
    """One call. `ended` and `answer` are infinity and `UNKNOWN` if there was no answer."""

    began: float
    ended: float = float("inf")
    action: Hashable
    answer: object = UNKNOWN


class _Reached(NamedTuple, Generic[S]):
    """A beginning of an order. Answered calls below `first` are in it, and those of the bits of `ahead` behind it.

    taken: bits of the unanswered calls that are in it.
    """

    first: int
    ahead: int
    taken: int
    state: S


def is_linearizable(
    calls: Sequence[Call],
    initial: S,
    step: Callable[[S, Hashable], tuple[S, object]],
    *,
    most: float = float("inf"),
) -> bool:
    """Whether such an order exists.

    A history of thousands of calls is decided quickly if few of them overlap, and few unanswered ones were seen to
    take effect; otherwise the search is exponential in their number.

    Args:
      calls: In any order.
      initial: The model's state before the first call; hashable.
      step: The state after an action, and what it is answered.
      most: How many beginnings of orders are tried at most.

    Raises:
      UndecidedError: `most` beginnings of orders did not suffice.
    """
    answered = sorted((each for each in calls if each.answer is not UNKNOWN), key=attrgetter("began"))
    unanswered = sorted((each for each in calls if each.answer is UNKNOWN), key=attrgetter("began"))
    numbers = itertools.count()
    start: _Reached[S] = _Reached(0, 0, 0, initial)
    # The longest order first; of two equally long ones that with fewer unanswered calls: they explain what follows.
    heap = [(0, 0, next(numbers), start)]
    # By what is done of the answered calls and the state: which unanswered ones were needed for it.
    seen: dict[tuple[int, int, S], list[int]] = {}
    tried = 0

    def push(reached: _Reached[S]) -> None:
        done = reached.first + reached.ahead.bit_count()
        heapq.heappush(heap, (-done, reached.taken.bit_count(), next(numbers), reached))

    while heap:
        reached = heapq.heappop(heap)[-1]
        first, ahead, taken, state = reached
        if first == len(answered):
            return True
        # An order that came here with a part of them can go on in each way in which this one can.
        before = seen.setdefault((first, ahead, state), [])
        if any(each & ~taken == 0 for each in before):
            continue
        before.append(taken)
        if tried >= most:
            raise UndecidedError(f"no order was found among {tried} beginnings of orders")
        tried += 1
        following, until = _following(answered, first, ahead)
        for index in following:
            after, answer = step(state, answered[index].action)
            if answer == answered[index].answer:
                push(_with(first, ahead | 1 << index - first, taken, after))
        for index, call in enumerate(unanswered):
            if call.began > until:
                break
            if not taken >> index & 1:
                after, _ = step(state, call.action)
                if after != state:
                    push(_Reached(first, ahead, taken | 1 << index, after))
    return False


def _following(answered: Sequence[Call], first: int, ahead: int) -> tuple[list[int], float]:
    """The answered calls that may be next, and the time by which a call must have begun to be next.

    Nothing may take effect that began after another, which has not taken effect yet, had ended.
    """
    until = float("inf")
    found = []
    for index in range(first, len(answered)):
        if answered[index].began > until:
            break
        if not ahead >> index - first & 1:
            until = min(until, answered[index].ended)
            found.append(index)
    return found, until


def _with(first: int, ahead: int, taken: int, state: S) -> _Reached[S]:
    while ahead & 1:
        first, ahead = first + 1, ahead >> 1
    return _Reached(first, ahead, taken, state)
