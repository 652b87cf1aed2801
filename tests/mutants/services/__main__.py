"""`python -m tests.mutants.services`: which planted errors are noticed, by what, at what seed?"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

import attrs

from ..hunt import spread
from .hunt import hunt
from .planted import REGISTRY, SEEDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.services", description=__doc__)
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with (default 0)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"seeds to try for each (default {SEEDS})")
    chosen = parser.parse_args()
    missed = 0
    work = partial(hunt, seeds=chosen.seeds, first=chosen.first)
    for found in spread(work, list(REGISTRY.mutants), chosen.jobs):
        missed += not found.caught
        print(json.dumps(attrs.asdict(found)), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
