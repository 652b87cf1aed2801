"""What a client tells its program, said as lines of JSON: `[job, event, value]`.

Nothing in a value names a cluster or a moment: no host, id, duration or text for people.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

PATIENCE = 60.0
"""Seconds for one event, on a machine that has much else to do."""

Tell = Callable[[str, Any], None]
Job = Callable[[Tell], None]


def until(holds: Callable[[], object], patience: float = PATIENCE) -> bool:
    """Whether it has come true; the caller's function lets time pass, by polling."""
    end = time.monotonic() + patience
    while not holds():
        if time.monotonic() > end:
            return False
    return True


def run(jobs: Mapping[str, Job], only: str) -> None:
    """All jobs, or those that are named, with commas between them; one that fails ends no other."""
    for name, job in jobs.items():
        if only and name not in only.split(","):
            continue

        def tell(event: str, value: Any, name: str = name) -> None:
            print(json.dumps([name, event, value]), flush=True)

        start = time.monotonic()
        try:
            job(tell)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the program was told
            traceback.print_exc()
            tell("ends with", type(error).__name__)
        print(f"{name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


def arguments() -> tuple[str, str, str]:
    """Servers without and with logins, and the jobs to do, or none for all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("logins")
    parser.add_argument("jobs", nargs="?", default="")
    given = parser.parse_args()
    return given.servers, given.logins, given.jobs
