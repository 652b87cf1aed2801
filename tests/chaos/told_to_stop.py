"""The common part of a run's processes: SIGTERM has them finish what is at hand, and some write notes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import trio


class ToldToStop:
    """`stopping` becomes true when SIGTERM comes, which is heard once `stop_on_signal` has started."""

    stopping = False

    async def stop_on_signal(self, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self.stopping = True


class Noting(ToldToStop):
    """Writes a line of JSON for each thing, with the time, into a file of its own."""

    def __init__(self, log: Path) -> None:
        self._file = log.open("a", buffering=1)

    def note(self, what: str, **more: Any) -> None:
        self._file.write(json.dumps({"what": what, "at": time.monotonic(), **more}) + "\n")
