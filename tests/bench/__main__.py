"""`python -m tests.bench NAME [--json] [--smoke] [--busy-poll-us N]`: run one benchmark, or list them."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from pathlib import Path

from . import report
from ._polling import BUSY_POLL

NOT_BENCHMARKS = {"__main__", "report"}


def names() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if name not in NOT_BENCHMARKS and not name.startswith("_"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", choices=names())
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--smoke", action="store_true", help="small and quick: shows that it runs")
    parser.add_argument(
        "--busy-poll-us",
        type=int,
        default=0,
        metavar="N",
        help="nodes, and race's producer for latency, poll",
    )
    args = parser.parse_args()
    if args.busy_poll_us:
        os.environ[BUSY_POLL] = str(args.busy_poll_us)
    results = importlib.import_module(f".{args.name}", __package__).run(smoke=args.smoke)
    print(report.as_table(results))
    if args.json:
        print(report.as_json(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
