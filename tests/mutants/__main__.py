"""`python -m tests.mutants`: is every planted error noticed, and is nothing noticed without one?"""

from __future__ import annotations

import argparse
import json
import sys

import attrs

from insync.replication.simulation import run

from .catalogue import load
from .hunt import Found, hunt_all
from .impossible import IMPOSSIBLE

CLEAN_SEEDS = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--seeds", default="0:5000", help="seeds to try for each mutant (default 0:5000)")
    parser.add_argument("mutants", nargs="*", help="names, such as Z4 (default: all)")
    chosen = parser.parse_args()
    first, end = map(int, chosen.seeds.split(":"))
    found: list[Found] = []
    for one in hunt_all(chosen.mutants or sorted(load(), key=lambda name: (len(name), name)), first, end):
        found.append(one)
        if not chosen.json:
            print(one, flush=True)
    missed = [one.mutant for one in found if not one.caught]
    broken = [seed for seed in range(first, first + CLEAN_SEEDS) if run(seed).violation is not None]
    caught = len(found) - len(missed)
    if chosen.json:
        figures = {
            "mutants": len(found),
            "caught": caught,
            "missed": missed,
            "broken_without_a_mutant": broken,
            "found": [attrs.asdict(one) for one in found],
            "not_expressible": IMPOSSIBLE,
        }
        print(json.dumps(figures))
    else:
        print(f"{caught} of {len(found)} caught; without a mutant {len(broken)} seeds broke")
    return 1 if missed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
