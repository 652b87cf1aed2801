"""`python -m tests.mutants.confirm`: is each planted error of docs/planted-errors.md still noticed at its seed?

One seed for each row, so it takes minutes where a hunt takes hours. Those that are not noticed are printed, and
nothing else: another seed is found by `python -m tests.mutants --only NAME,...`.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path

import attrs

from .hunt import Limits, hunt, spread

PAGE = Path(__file__).parents[2] / "docs" / "planted-errors.md"
_ROW = re.compile(r"^\| ([KZTG]+\d+[a-z]?) \| .* \| ([A-Z]+\d+b?) \| (\d+) \|", re.MULTILINE)


@attrs.frozen(kw_only=True)
class Row:
    """`invariant`: what noticed it at `seed` when the page was made."""

    mutant: str
    invariant: str
    seed: int


@attrs.frozen(kw_only=True)
class Confirmed:
    """`found`: the invariant that notices it there now; empty if none does."""

    row: Row
    found: str

    def __str__(self) -> str:
        row = self.row
        return f"{row.mutant} at seed {row.seed}: {self.found or 'nothing'}, the page says {row.invariant}"


def rows(page: Path = PAGE) -> list[Row]:
    """The rows of the page, in its order."""
    found = _ROW.findall(page.read_text(encoding="utf-8"))
    return [Row(mutant=name, invariant=invariant, seed=int(seed)) for name, invariant, seed in found]


def confirm(row: Row) -> Confirmed:
    """Play the seed of a row with its error planted."""
    one = hunt(row.mutant, Limits(first=row.seed, end=row.seed + 1))
    return Confirmed(row=row, found=one.invariant)


def _confirm(name: str, known: dict[str, Row]) -> Confirmed:
    return confirm(known[name])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.confirm", description=__doc__)
    parser.add_argument("--only", default="", metavar="Z4,K15", help="these rows (default: all)")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    chosen = parser.parse_args()
    known = {row.mutant: row for row in rows()}
    names = chosen.only.split(",") if chosen.only else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"{PAGE.name} has no row of {unknown[0]!r}: it has {', '.join(known)}")
    missed = 0
    for one in spread(partial(_confirm, known=known), names, chosen.jobs):
        if one.found != one.row.invariant:
            missed += not one.found
            print(one, flush=True)
    print(f"{len(names) - missed} of {len(names)} are noticed at their seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
