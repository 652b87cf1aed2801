"""`python -m tests.mutants`: is every planted error noticed, and is nothing noticed without one?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from .catalogue import load
from .hunt import CHECKED, Found, Limits, broken_without, hunt_all
from .impossible import IMPOSSIBLE
from .page import order
from .survey import Surveyed, survey_all

CLEAN_SEEDS = 50
SURVEY_SEEDS = 20


def main() -> int:
    chosen = _arguments()
    first, end = map(int, chosen.seeds.split(":"))
    names = _names(chosen.only)
    note = _notebook(chosen.results)
    found: list[Found] = []
    for one in hunt_all(names, Limits(first=first, end=end, seconds=chosen.seconds), chosen.jobs):
        found.append(one)
        note("found", one)
        print(f"{len(found):3}/{len(names)} {one}", file=sys.stderr, flush=True)
    surveyed: list[Surveyed] = []
    for seen in survey_all(names, range(first, first + chosen.survey), chosen.seconds, chosen.jobs):
        surveyed.append(seen)
        note("surveyed", seen)
    broken = broken_without(first, first + CLEAN_SEEDS)
    figures = _figures(sorted(found, key=lambda one: order(one.mutant)), surveyed, broken)
    print(json.dumps(figures) if chosen.json else _text(figures))
    complete = not chosen.only and chosen.survey
    return 1 if figures["missed"] or broken or (complete and figures["never_broken"]) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a summary")
    parser.add_argument("--seeds", default="0:5000", help="seeds to try for each mutant (default 0:5000)")
    parser.add_argument("--only", default="", metavar="Z4,K15", help="these mutants (default: all)")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="processor time after which a mutant counts as missed (default 600)",
    )
    parser.add_argument(
        "--survey",
        type=int,
        default=SURVEY_SEEDS,
        metavar="N",
        help=f"seeds over which to note all that each mutant breaks (default {SURVEY_SEEDS}, 0 for none)",
    )
    parser.add_argument("--results", type=Path, help="a file that gets each result as soon as it is there")
    return parser.parse_args()


def _names(only: str) -> list[str]:
    known = load()
    names = [name.strip() for name in only.split(",")] if only else sorted(known, key=order)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(
            f"no mutant is called {unknown[0]!r}: there are {', '.join(sorted(known, key=order))}"
        )
    return names


def _notebook(path: Path | None) -> Callable[[str, Any], None]:
    if path is None:
        return lambda kind, entry: None
    path.write_text("", encoding="utf-8")

    def note(kind: str, entry: Any) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({kind: attrs.asdict(entry)}) + "\n")

    return note


def _figures(found: list[Found], surveyed: list[Surveyed], broken: list[int]) -> dict[str, Any]:
    broken_by = {
        invariant: sorted((one.mutant for one in surveyed if invariant in one.tripped), key=order)
        for invariant in CHECKED
    }
    for one in found:
        if one.invariant in broken_by and one.mutant not in broken_by[one.invariant]:
            broken_by[one.invariant].append(one.mutant)
    return {
        "mutants": len(found),
        "caught": sum(one.caught for one in found),
        "missed": [one.mutant for one in found if not one.caught],
        "broken_without_a_mutant": broken,
        "found": [attrs.asdict(one) for one in found],
        "invariants": broken_by,
        "never_broken": [invariant for invariant, mutants in broken_by.items() if not mutants],
        "not_expressible": IMPOSSIBLE,
    }


def _text(figures: dict[str, Any]) -> str:
    lines = [f"{invariant:4} {' '.join(names)}" for invariant, names in figures["invariants"].items()]
    lines.append(
        f"{figures['caught']} of {figures['mutants']} caught, missed: {' '.join(figures['missed']) or 'none'}; "
        f"without a mutant {len(figures['broken_without_a_mutant'])} seeds broke"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
