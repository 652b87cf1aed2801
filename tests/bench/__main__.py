"""`python -m tests.bench NAME [--json] [--smoke]`: run one benchmark, or list them."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

from . import report

NOT_BENCHMARKS = {"__main__", "report"}


def names() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if name not in NOT_BENCHMARKS and not name.startswith("_"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", choices=names())
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--smoke", action="store_true", help="small and quick: shows that it runs")
    args = parser.parse_args()
    results = importlib.import_module(f".{args.name}", __package__).run(smoke=args.smoke)
    print(report.as_table(results))
    if args.json:
        print(report.as_json(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
