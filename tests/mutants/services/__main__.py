"""`python -m tests.mutants.services`: are histories of state linearizable, and is every error noticed?"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

import attrs

from ..hunt import spread
from .hunting import histories, hunt
from .machines import SERVICES
from .planted import load_all


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.services", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="of the histories without an error (0:2000)")
    parser.add_argument("--only", metavar="SV1,K190", help="these errors (all); empty: none, histories alone")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    chosen = parser.parse_args()
    first, end = map(int, chosen.seeds.split(":"))
    names = list(load_all()) if chosen.only is None else [each for each in chosen.only.split(",") if each]
    bad = 0
    for found in spread(hunt, names, chosen.jobs):
        bad += not found.invariant
        print(json.dumps(attrs.asdict(found)), flush=True)
    for told in spread(partial(histories, seeds=range(first, end)), list(SERVICES), chosen.jobs):
        bad += len(told.wrong)
        print(json.dumps(attrs.asdict(told)), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
