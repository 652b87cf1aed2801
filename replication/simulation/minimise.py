"""From a run that breaks an invariant to a short one that breaks the same: delta debugging (Zeller 1999)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

import attrs

from .faults.schedule import Fault
from .replay import Replay
from .run import Result, Script, run
from .settings import Settings

Item = TypeVar("Item", bound=Hashable)
Key = Fault | str


@attrs.define(eq=False)
class _Budget:
    left: int


class Player(Protocol):
    """Plays a script; `run` does so for the cluster alone."""

    def __call__(self, seed: int, settings: Settings, script: Script, keep_trace: bool) -> Result: ...


def _play_alone(seed: int, settings: Settings, script: Script, keep_trace: bool) -> Result:
    return run(seed, settings, script, keep_trace=keep_trace)


def minimise(found: Result, *, attempts: int = 400, play: Player = _play_alone) -> Result:
    """The run with as few faults and mishaps as `attempts` runs can find that breaks the same invariant.

    The result has its trace; its script replays it.
    """
    assert found.violation is not None, "only a run that broke an invariant can be minimised"
    invariant = found.violation.invariant
    mishaps = found.script.mishaps

    def again(keys: Sequence[Key], *, keep_trace: bool = False) -> Result:
        kept = {key: mishaps[key] for key in keys if isinstance(key, str)}
        faults = tuple(key for key in keys if isinstance(key, Fault))
        script = Script(schedule=faults, mishaps=kept)
        return play(found.seed, found.settings, script, keep_trace)

    def fails(keys: Sequence[Key]) -> bool:
        violation = again(keys).violation
        return violation is not None and violation.invariant == invariant

    everything: list[Key] = [*found.script.schedule, *mishaps]
    kept = shrink(everything, fails, attempts)
    return again(kept, keep_trace=True)


def shrink(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool], attempts: int) -> list[Item]:
    """A part of `items`, in their order, that still `fails` and, within `attempts`, none of which is needless."""
    budget = _Budget(attempts)
    kept, pieces = list(items), 2
    while kept and budget.left > 0:
        size = max(1, len(kept) // pieces)
        smaller = _without_one_piece(kept, size, fails, budget)
        if smaller is not None:
            kept, pieces = smaller, max(2, pieces - 1)
        elif size == 1:
            break
        else:
            pieces = min(len(kept), 2 * pieces)
    return kept


def _without_one_piece(
    kept: list[Item], size: int, fails: Callable[[Sequence[Item]], bool], budget: _Budget
) -> list[Item] | None:
    for start in range(0, len(kept), size):
        budget.left -= 1
        if budget.left < 0:
            return None
        rest = kept[:start] + kept[start + size :]
        if fails(rest):
            return rest
    return None


def replay_of(result: Result) -> Replay:
    """The replay of this very run."""
    return Replay(seed=result.seed, settings=result.settings, script=result.script)
