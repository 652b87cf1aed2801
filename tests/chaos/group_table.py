"""`python -m tests.chaos.group_table --seconds 240`: ten runs about groups, and a table of them in Markdown.

The runs go over transports and stores; their seeds over the protocols (see `groups.py`). It takes a little more
than ten times the seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

RUNS = (
    ("tcp", "sqlite"),
    ("tls", "zookeeper"),
    ("shm", "sqlite"),
    ("tcp", "zookeeper"),
    ("tls", "sqlite"),
    ("shm", "zookeeper"),
    ("tcp", "remote"),
    ("tls", "remote"),
    ("shm", "remote"),
    ("tls", "zookeeper"),
)
HEAD = (
    "| seed | members | transport, store | faults | processed | repeated | until all is read: median, most | |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.group_table", description=__doc__)
    parser.add_argument("--seconds", type=float, default=240, help="how long faults are injected in each run")
    parser.add_argument("--runs", type=int, default=len(RUNS), help=f"how many runs (default {len(RUNS)})")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first run (default 1)")
    given = parser.parse_args()
    failed = 0
    print(HEAD, flush=True)
    for number in range(given.runs):
        told = carry_out(given.first + number, *RUNS[number % len(RUNS)], seconds=given.seconds)
        failed += not told.get("passed", False)
        print(row(told), flush=True)
    return 1 if failed else 0


def carry_out(seed: int, transport: str, store: str, *, seconds: float) -> dict[str, Any]:
    """One run in a process of its own; what it tells, or why it does not."""
    command = [sys.executable, "-m", "tests.chaos", "--groups", "--json", "--seconds", str(seconds)]
    command += ["--seed", str(seed), "--transport", transport, "--store", store]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    lines = done.stdout.splitlines()
    common = {"seed": seed, "transport": transport, "store": store}
    try:
        return {**common, **json.loads(lines[-1])}
    except (IndexError, ValueError):
        return {**common, "problems": [f"ended with status {done.returncode} and told nothing"]}


def row(told: dict[str, Any]) -> str:
    """A row of the table."""
    faults = told.get("faults", {}).values()
    times = sorted(each for fault in faults for each in fault["recovery_s"])
    recovered = f"{times[len(times) // 2]} s, {times[-1]} s" if times else ""
    wrong = [*told.get("violations", ()), *told.get("problems", ())]
    verdict = "passed" if told.get("passed") else "; ".join(wrong) or "failed"
    cells = (
        told["seed"],
        told.get("protocols", ""),
        f"{told['transport']}, {told['store']}",
        sum(each["times"] for each in faults),
        told.get("processed", ""),
        told.get("repeated", ""),
        recovered,
        verdict,
    )
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())
