"""`python -m tests.mutants.transactions`: is every planted error of transactions noticed, and at what seed?"""

from __future__ import annotations

import argparse
import json
import sys

import attrs

from ..hunt import spread
from .hunting import hunt
from .planted import MUTANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.transactions", description=__doc__)
    parser.add_argument("--only", default="", metavar="TZ1,TZ2", help="these errors (default: all)")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    chosen = parser.parse_args()
    names = chosen.only.split(",") if chosen.only else list(MUTANTS)
    missed = 0
    for found in spread(hunt, names, chosen.jobs):
        missed += not found.invariant
        print(json.dumps(attrs.asdict(found)), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
