"""`python -m insync.replication.simulation.groups --seeds 0:100`: groups under faults, seed by seed.

With `--transactions` their members consume, transform and produce, and every input has to count once (T11).
"""

from __future__ import annotations

import argparse
import json
import sys

import attrs

from . import exactly_once
from .run import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m insync.replication.simulation.groups", description=__doc__
    )
    parser.add_argument("--seeds", default="0:20", metavar="FIRST:END", help="seeds to run (default 0:20)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument(
        "--transactions", action="store_true", help="members commit in transactions, with what they produce"
    )
    chosen = parser.parse_args()
    play = exactly_once.run if chosen.transactions else run
    first, end = map(int, chosen.seeds.split(":"))
    totals: dict[str, int] = {}
    broken: list[dict[str, object]] = []
    for seed in range(first, end):
        found = attrs.asdict(play(seed))
        violation = found.pop("violation")
        for name, value in found.items():
            if name != "seed":
                totals[name] = totals.get(name, 0) + value
        if violation is not None:
            broken.append({"seed": seed, "violation": str(violation)})
            print(f"seed {seed}: {violation}", file=sys.stderr, flush=True)
    print(json.dumps({"seeds": end - first, **totals, "broken": broken if chosen.json else len(broken)}))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
