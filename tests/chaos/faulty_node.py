"""A node process whose disk can be made slow: the command `insync`, with the calls that write files in a wrapper.

A file named by INSYNC_CHAOS_DISK holds how many milliseconds each write and each fsync shall take; absent, none.
What was delayed is counted in a file beside it, so that the fault is seen to bite.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTROL = Path(os.environ["INSYNC_CHAOS_DISK"])
BITTEN = CONTROL.with_suffix(".bitten")


def _delay() -> None:
    try:
        milliseconds = float(CONTROL.read_text() or 0)
    except (FileNotFoundError, ValueError):
        return
    time.sleep(milliseconds / 1000)
    with BITTEN.open("ab") as file:
        file.write(b".")


def _slow(call: Callable[..., Any]) -> Callable[..., Any]:
    def delayed(*arguments: Any, **options: Any) -> Any:
        _delay()
        return call(*arguments, **options)

    return delayed


if __name__ == "__main__":
    os.pwritev = _slow(os.pwritev)
    os.fsync = _slow(os.fsync)
    if defect := os.environ.get("INSYNC_CHAOS_DEFECT"):
        from tests.chaos.defects import DEFECTS

        DEFECTS[defect]()
    from insync.replication.cli import main

    sys.exit(main(sys.argv[1:]))
