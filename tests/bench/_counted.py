"""A program whose calls of Python and C functions are counted while it is told to.

`python -m tests.bench._counted FILE PYTHON -m MODULE ARGUMENT...` runs MODULE in this process. SIGUSR2 begins to
count; the next one ends it and writes FILE, JSON of calls by function. A coroutine counts each time it goes on: an
`await` costs as many calls as coroutines stand above it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class Calls:
    """Counts in all threads that begin after `listen`, and in the one that calls it."""

    def __init__(self) -> None:
        self.is_counting = False
        self._python: Counter[CodeType] = Counter()
        self._c: Counter[str] = Counter()

    def listen(self) -> None:
        """From now on each call is seen; it counts while `is_counting`."""
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)

    def taken(self) -> dict[str, int]:
        """Calls by function since the last time."""
        python, self._python = self._python, Counter()
        c, self._c = self._c, Counter()
        found = Counter({f"c:{name}": count for name, count in c.items()})
        for code, count in python.items():
            found[f"{_short(code.co_filename)}:{code.co_qualname}"] += count
        return dict(found)

    def _seen(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.is_counting:
            return
        if event == "call":
            self._python[frame.f_code] += 1
        elif event == "c_call":
            self._c[getattr(argument, "__qualname__", repr(argument))] += 1


def _short(path: str) -> str:
    for root in ("/site-packages/", "/lib/python3"):
        if root in path:
            return path.partition(root)[2]
    for room in ("plugins", "replication", "transport", "storage", "tests"):
        if f"/{room}/" in path:
            return f"{room}/{path.partition(f'/{room}/')[2]}"
    return path


def main() -> None:
    """See above."""
    target = Path(sys.argv[1])
    assert sys.argv[3] == "-m", "a module is to be run"
    calls = Calls()

    def told(number: int, frame: FrameType | None) -> None:
        calls.is_counting = not calls.is_counting
        if not calls.is_counting:
            whole = target.with_suffix(".part")
            whole.write_text(json.dumps(calls.taken()))
            os.replace(whole, target)

    signal.signal(signal.SIGUSR2, told)
    sys.argv = sys.argv[4:]
    calls.listen()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
