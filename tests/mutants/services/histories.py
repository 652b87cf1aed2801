"""`python -m tests.mutants.services.histories`: are all histories of replicated state linearizable?"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

import attrs

from insync.replication.simulation.service import CurrentRead, run_service

from ..hunt import spread
from .machines import SERVICES


@attrs.define
class Histories:
    """What one service was played: `wrong` names each seed that broke something."""

    service: str
    seeds: int = 0
    commands: int = 0
    reads: int = 0
    unclean: int = 0
    """Seeds in which nothing is promised, after an unclean election."""
    wrong: list[str] = attrs.Factory(list)


def histories(service: str, first: int, end: int) -> Histories:
    """Play a service; everything that was acknowledged is in one order with all current reads."""
    told = Histories(service)
    for seed in range(first, end):
        found = run_service(SERVICES[service](), seed)
        told.seeds += 1
        told.unclean += bool(found.history.unclean)
        for operation in found.history.operations:
            if operation.outcome is not None and operation.outcome.kind == "ok":
                is_read = isinstance(operation.command, CurrentRead)
                told.reads += is_read
                told.commands += not is_read
        if found.result.violation is not None:
            told.wrong.append(f"seed {seed}: {found.result.violation}")
    return told


def main() -> int:
    """A line for each service."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.histories", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="which to play of each service (0:2000)")
    parser.add_argument("--jobs", type=int, default=0, help="processes (default: one for each core)")
    chosen = parser.parse_args()
    first, end = map(int, chosen.seeds.split(":"))
    wrong = 0
    for told in spread(partial(histories, first=first, end=end), list(SERVICES), chosen.jobs):
        wrong += len(told.wrong)
        print(json.dumps(attrs.asdict(told)), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
