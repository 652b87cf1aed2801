"""Is there an order of all calls that agrees with time and with what they were answered? (Wing and Gong, 1993.)

Linearizability (Herlihy and Wing, 1990) asks for one order in which every call takes effect at a moment between its
begin and its end. A call whose answer never came may take effect at any time after its begin, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import attrs

S = TypeVar("S", bound=Hashable)
UNKNOWN = object()
"""The answer of a call of which nobody knows what became."""


@attrs.frozen(kw_only=True)
class Call:
    """One call. `ended` and `answer` are infinity and `UNKNOWN` if there was no answer."""

    began: float
    ended: float = float("inf")
    action: Hashable
    answer: object = UNKNOWN


def is_linearizable(
    calls: Sequence[Call], initial: S, step: Callable[[S, Hashable], tuple[S, object]]
) -> bool:
    """Whether such an order exists.

    Args:
      calls: Some dozens at most that overlap; the search is exponential in how many do.
      initial: The model's state before the first call; hashable.
      step: The state after an action, and what it is answered.
    """
    ordered = sorted(calls, key=lambda call: call.began)
    seen: set[tuple[int, S]] = set()
    must = sum(1 << index for index, call in enumerate(ordered) if call.answer is not UNKNOWN)
    stack = [(0, initial)]
    while stack:
        done, state = stack.pop()
        if done & must == must:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        # Nothing may take effect that began after another, which has not taken effect yet, had ended.
        first_end = min(call.ended for index, call in enumerate(ordered) if not done >> index & 1)
        for index, call in enumerate(ordered):
            if call.began > first_end:
                break
            if done >> index & 1:
                continue
            after, answer = step(state, call.action)
            if call.answer is UNKNOWN or answer == call.answer:
                stack.append((done | 1 << index, after))
    return False
