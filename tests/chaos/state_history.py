"""Calls of replicated state and their answers, and whether one order of the calls of a key explains them.

A key is a register: its calls concern no other key, so each key's history is judged by itself, which is sound
because linearizability is local (Herlihy and Wing, 1990, theorem 1). Every value is put once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence

import attrs

from insync.replication.simulation.oracles.linearizable import (
    UNKNOWN,
    Call,
    UndecidedError,
    is_linearizable,
)

MOST = 50_000
"""Beginnings of orders that are tried for one key."""
_EXPLAINED = 3
"""Keys for which the earliest wrong answer is looked for, which takes several searches."""
Value = str | None


@attrs.define
class StateHistory:
    """All clients of a run together. Times are of the machine's monotonic clock, which they share."""

    calls: dict[tuple[str, int], tuple[str, Call]] = attrs.Factory(dict)
    """By client and number of the call: its key, and what is known of it."""
    refused: int = 0
    """Commands of which their client was told that they were not applied."""
    latest: float = 0.0
    """When the latest of the commands began that were answered."""
    errors: Counter[str] = attrs.Factory(Counter)
    broken: list[str] = attrs.Factory(list)
    """Copies that differed from others."""

    def hear(self, client: str, line: str | bytes) -> None:
        """One line of `state_client`.

        Raises:
          ValueError: It is none of those that there are.
        """
        match json.loads(line):
            case {"call": int(number), "at": float(at), "key": str(key), "action": list(action)}:
                self.calls[client, number] = key, Call(began=at, action=tuple(action))
            case {"answered": int(number), "at": float(at), "answer": answer}:
                key, call = self.calls[client, number]
                self.calls[client, number] = key, attrs.evolve(call, ended=at, answer=answer)
                if call.action != ("get",):
                    self.latest = max(self.latest, call.began)
            case {"refused": int(number)}:
                del self.calls[client, number]
                self.refused += 1
            case {"error": str(name)}:
                self.errors[name] += 1
            case {"broken": str(text)}:
                self.broken.append(f"{client}: {text}")
            case _:
                raise ValueError(f"{client} says {line!r}")

    @property
    def open_commands(self) -> int:
        """Commands of which nobody knows what became."""
        return sum(call.answer is UNKNOWN and call.action != ("get",) for _, call in self.calls.values())

    def by_key(self) -> dict[str, list[Call]]:
        """The calls of each key."""
        found: dict[str, list[Call]] = {}
        for key, call in self.calls.values():
            found.setdefault(key, []).append(call)
        return found


def register(value: Value, action: Hashable) -> tuple[Value, object]:
    """One key of a ReplicatedDict: its value, None if it is absent, after an action, and what that is answered."""
    match action:
        case ("get",):
            return value, value
        case ("put", str(new)):
            return new, None
        case ("put_if", old, str(new)):
            return (new, True) if value == old else (value, False)
        case ("delete",):
            return None, value is not None
    raise ValueError(f"no action of a register: {action!r}")


def judge_state(history: StateHistory, most: int = MOST) -> list[str]:
    """A sentence for each key whose calls no order explains, and for each copy that differed."""
    found = [f"a copy differs: {each}" for each in history.broken]
    wrong = {key: calls for key, calls in history.by_key().items() if not _is_explained(calls, most)}
    for number, (key, calls) in enumerate(sorted(wrong.items())):
        why = _first_unexplained(calls, most) if number < _EXPLAINED else f"{len(calls)} calls"
        found.append(f"not linearizable: {key}: {why}")
    return found


def _is_explained(calls: Sequence[Call], most: int) -> bool:
    """A search that was broken off has explained nothing."""
    try:
        return is_linearizable(calls, None, register, most=most)
    except UndecidedError:
        return False


def _first_unexplained(calls: Sequence[Call], most: int) -> str:
    """The earliest answer with which the history cannot be explained, and what was under way at the time.

    Found by halving: each history that begins like one that can be explained can be explained.
    """
    ends = sorted(call.ended for call in calls if call.answer is not UNKNOWN)
    good, bad = 0, len(ends)
    while bad - good > 1:
        middle = (good + bad) // 2
        if _is_explained(_until(calls, ends[middle - 1]), most):
            good = middle
        else:
            bad = middle
    end = ends[bad - 1]
    last = next(call for call in calls if call.ended == end)
    beside = sorted((each for each in calls if each.began <= end), key=lambda each: each.ended)
    told = "; ".join(map(_told, [each for each in beside if each.ended >= last.began][:8]))
    before = "; ".join(map(_told, [each for each in beside if each.ended < last.began][-4:]))
    return f"{_told(last)} follows from no order; {len(calls)} calls; before it: {before}; beside it: {told}"


def _until(calls: Sequence[Call], end: float) -> list[Call]:
    """The history as it was known at a time."""
    return [
        each if each.ended <= end else attrs.evolve(each, ended=float("inf"), answer=UNKNOWN)
        for each in calls
        if each.began <= end
    ]


def _told(call: Call) -> str:
    answer = "no answer" if call.answer is UNKNOWN else repr(call.answer)
    return f"{call.action} at {call.began:.4f} to {call.ended:.4f}: {answer}"
