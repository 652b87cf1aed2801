"""`python -m tests.house`: how much the code costs its reader; `digests`: whether two versions decide alike.

`python -m tests.house floors` draws the floors of the package from its imports, as docs/architecture.md shows them.

`python -m tests.house --show circles` lists what stands behind a row. `python -m tests.house digests --seeds 0:500
--out FILE` writes a line `seed digest` for each seed and prints one hash over all of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import attrs

from . import floors, tree, way, words
from .digests import digests, hash_of
from .scope import Row, Tree


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--show", metavar="ROW", help="list the things behind this row")
    commands = parser.add_subparsers(dest="command")
    compared = commands.add_parser("digests", help="digests of simulated runs")
    compared.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="end with one line of JSON"
    )
    compared.add_argument(
        "--seeds", default="0:500", metavar="FIRST:END", help="seeds to run (default 0:500)"
    )
    compared.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    compared.add_argument("--out", type=Path, metavar="FILE", help="a file for the digest of each seed")
    commands.add_parser("floors", help="the floors of the package, from its imports")
    chosen = parser.parse_args()
    if chosen.command == "floors":
        print(*floors.pictures(), sep="\n\n")
        return 0
    return _digests(chosen) if chosen.command == "digests" else _measure(chosen)


def _measure(chosen: argparse.Namespace) -> int:
    # Nodes that stop together warn of one another.
    logging.getLogger("insync").addHandler(logging.NullHandler())
    measured = Tree.tracked()
    rows = [*way.rows(measured), *tree.rows(measured), *words.rows(measured)]
    if chosen.show:
        return _show(rows, chosen.show)
    for row in rows:
        print(f"{row.name:32} {row.value:>12,.10g} {row.unit}")
    if chosen.json:
        print(json.dumps({"rows": [_without_things(row) for row in rows]}))
    return 0


def _show(rows: list[Row], name: str) -> int:
    shown = [row for row in rows if row.name == name]
    if not shown:
        raise SystemExit(f"no row is called {name!r}: there are {', '.join(row.name for row in rows)}")
    for thing in shown[0].behind:
        print(thing)
    return 0


def _without_things(row: Row) -> dict[str, object]:
    return attrs.asdict(row, filter=lambda field, value: field.name != "behind")


def _digests(chosen: argparse.Namespace) -> int:
    first, end = map(int, chosen.seeds.split(":"))
    found = list(digests(range(first, end), chosen.jobs))
    if chosen.out:
        chosen.out.write_text("".join(f"{each}\n" for each in found), encoding="utf-8")
    broken = [each.seed for each in found if each.violation]
    figures = {"seeds": chosen.seeds, "hash": hash_of(found), "violations": broken}
    if chosen.json:
        print(json.dumps(figures))
    else:
        print(f"{figures['hash']} over {len(found)} seeds; seeds with a violation: {broken or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
