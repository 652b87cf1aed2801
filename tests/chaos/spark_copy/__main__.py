"""`python -m tests.chaos.spark_copy [--times 20] [--seed N] [--json]`: a streaming copy under kills.

Three nodes; a driver of Spark with three executors (`local-cluster`) that copies a topic to another, exactly once,
while a producer writes to the first. What is killed (SIGKILL), at random moments: the driver, which makes Spark
replay the batch that was under way; one executor; one node; a node that leads a partition of the target. At the end
the output has to be the input, partition by partition, in its order; and an audit on the same executors has to find
all replicas sound and equal. --at-least-once copies without exactly_once: that has to fail. Some 12 minutes for 20.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import attrs

from .run import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.spark_copy", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-second", type=int, default=1000, help="records of input")
    parser.add_argument("--at-least-once", action="store_true", help="show that duplicates would be noticed")
    parser.add_argument(
        "--transactional",
        action="store_true",
        help="each batch in a transaction, by a plan that does not repeat",
    )
    parser.add_argument("--folder", type=Path, help="keep everything here, in place of a temporary folder")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="insync-copy-", ignore_cleanup_errors=True) as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(
            folder.absolute(),
            given.seed,
            per_second=given.per_second,
            exactly_once=not given.at_least_once,
            transactional=given.transactional,
        )
        outcome = run.run(given.times)
    told = {
        "passed": outcome.passed,
        "replays": outcome.replays,
        **attrs.asdict(outcome),
        "seed": given.seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    if given.json:
        print(json.dumps(told))
    else:
        print(
            f"{'passed' if outcome.passed else 'FAILED'}: {outcome.rows} rows, {outcome.lost} lost, "
            f"{outcome.duplicated} twice, {len(outcome.kills)} kills, {outcome.replays} batches replayed"
        )
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main())
