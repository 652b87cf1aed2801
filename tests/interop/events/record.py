"""What a client tells its program, said as lines of JSON: `[job, event, value]`.

Nothing in a value names a cluster or a moment: no host, id, duration or text for people.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
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


class Heard:
    """What a member of a group is told of its partitions; as a listener of rebalances, or called by one."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.held: set[int] = set()

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        numbers = _numbers(assigned)
        self.held.update(numbers)
        if numbers and self.told[-2:] == [["assigned", numbers], ["revoked", numbers]]:
            self.told.pop()  # on a slow machine members come together once more, and nothing changes
        else:
            self._tell("assigned", numbers)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._gone("revoked", _numbers(revoked))

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._gone("lost", _numbers(lost))

    def _gone(self, what: str, numbers: list[int]) -> None:
        self.held.difference_update(numbers)
        self._tell(what, numbers)

    def _tell(self, what: str, numbers: list[int]) -> None:
        if numbers:
            self.told.append([what, numbers])


def _numbers(places: Iterable[Any]) -> list[int]:
    return sorted(each.partition for each in places)


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
