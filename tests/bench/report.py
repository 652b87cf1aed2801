"""What a benchmark reports, as a table for people and as one line of JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

import attrs


@attrs.frozen(kw_only=True)
class Result:
    """One figure. `beside` is what was measured next to it in the same run, in the same unit.

    `bar` is the least `ratio` (or, if there is nothing beside it, the least or greatest value) that is good.
    """

    name: str
    value: float
    unit: str
    beside: float | None = None
    ratio: float | None = None
    bar: float | None = None
    holds: bool | None = None


def against(name: str, value: float, unit: str, beside: float, bar: float | None = None) -> Result:
    """A figure that should be at least `bar` times the one beside it."""
    ratio = value / beside
    return Result(
        name=name,
        value=round(value, 3),
        unit=unit,
        beside=round(beside, 3),
        ratio=round(ratio, 3),
        bar=bar,
        holds=None if bar is None else ratio >= bar,
    )


def within(name: str, value: float, unit: str, beside: float, bar: float | None = None) -> Result:
    """A figure that should be at most `bar` times the one beside it."""
    ratio = value / beside
    return Result(
        name=name,
        value=round(value, 3),
        unit=unit,
        beside=round(beside, 3),
        ratio=round(ratio, 3),
        bar=bar,
        holds=None if bar is None else ratio <= bar,
    )


def at_least(name: str, value: float, unit: str, bar: float) -> Result:
    """A figure that should be `bar` or more."""
    return Result(name=name, value=round(value, 3), unit=unit, bar=bar, holds=value >= bar)


def at_most(name: str, value: float, unit: str, bar: float) -> Result:
    """A figure that should be `bar` or less."""
    return Result(name=name, value=round(value, 3), unit=unit, bar=bar, holds=value <= bar)


def interleaved(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each measure over `rounds`, taken in turn so that all of them see the same machine."""
    samples: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for measure, into in zip(measures, samples, strict=True):
            into.append(measure())
    return [statistics.median(values) for values in samples]


def in_turn(rounds: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each, in turn; each once before it counts, as Java compiles what runs often."""
    for measure in measures.values():
        measure()
    return dict(zip(measures, interleaved(rounds, *measures.values()), strict=True))


def beside_each(
    title: str, unit: str, medians: Mapping[str, float], bar: float | None, *, less_is_better: bool = False
) -> list[Result]:
    """One row for each of the others, with `ours` beside it; the bar is for Kafka's."""
    row = within if less_is_better else against
    return [
        row(f"{title}, beside {who}", medians["ours"], unit, value, bar if who == "Kafka" else None)
        for who, value in medians.items()
        if who != "ours"
    ]


def machine() -> dict[str, str | int]:
    """Where it was measured. Interpreters of one version differ by a third, as they were compiled."""
    return {
        "cpus": os.cpu_count() or 0,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "arch": platform.machine(),
    }


def as_json(results: Sequence[Result]) -> str:
    return json.dumps({"machine": machine(), "results": [attrs.asdict(result) for result in results]})


def as_table(results: Sequence[Result]) -> str:
    lines = [f"{'name':44} {'value':>12} {'unit':10} {'beside':>12} {'ratio':>7} {'bar':>8}  holds"]
    for result in results:
        cells = [_cell(result.beside), _cell(result.ratio), _cell(result.bar)]
        verdict = {None: "", True: "yes", False: "NO"}[result.holds]
        lines.append(
            f"{result.name:44} {result.value:>12,.2f} {result.unit:10} "
            f"{cells[0]:>12} {cells[1]:>7} {cells[2]:>8}  {verdict}"
        )
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
