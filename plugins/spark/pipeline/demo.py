"""The Spark step of `insync demo`: a streaming job in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from ....replication.cli.demo.report import Counted, StepTask, StepUnavailableError
from ....replication.cli.errors import CommandError

START_TIMEOUT = 180.0
FINISH_TIMEOUT = 180.0
_READ_BYTES = 1 << 16


class DemoJobError(CommandError):
    """The job ended, or did not come to an end."""


class SparkStep:
    """Counts records by key, in complete mode, from the topic's beginning."""

    def __init__(self) -> None:
        self._process: trio.Process | None = None
        self._folder: Path | None = None
        self._rest = b""

    async def start(self, task: StepTask) -> None:
        """Comes back when the first batch, an empty one, is committed.

        Raises StepUnavailableError without PySpark or Java, DemoJobError.
        """
        task.folder.mkdir(parents=True, exist_ok=True)
        self._folder = task.folder
        about = {
            "servers": task.servers,
            "topic": task.topic,
            "folder": str(task.folder),
            "access": {name: str(value) for name, value in task.access.items()},
        }
        with (task.folder / "job.log").open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-m", f"{__package__}._demo_job", json.dumps(about)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log.fileno(),
                start_new_session=True,
            )
        await self._hear("ready", START_TIMEOUT)

    async def finish(self, records: int) -> Counted:
        """The counts, once they add up to `records`, or when the time is over. Raises DemoJobError."""
        assert self._process is not None and self._process.stdin is not None
        try:
            await self._process.stdin.send_all(json.dumps({"records": records}).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise DemoJobError("the job ended before the demo did") from None
        told = await self._hear("counted", FINISH_TIMEOUT)
        return Counted({bytes.fromhex(key): count for key, count in told["counts"].items()}, told["batches"])

    async def close(self) -> None:
        """End the job and its JVM, with which its workers end; nothing of them stays on disk."""
        process = self._process
        if process is None:
            return
        self._process = None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                await pipe.aclose()
        if self._folder is not None:
            await trio.to_thread.run_sync(partial(shutil.rmtree, self._folder, ignore_errors=True))

    async def _hear(self, state: str, timeout: float) -> dict[str, Any]:
        try:
            with trio.fail_after(timeout):
                told = await self._line()
        except trio.TooSlowError:
            raise DemoJobError(f"the job was not {state} within {timeout:.0f} s") from None
        if told is None:
            raise DemoJobError("the job's process ended")
        if told["state"] == "unavailable":
            raise StepUnavailableError(told["why"])
        if told["state"] != state:
            raise DemoJobError(told["why"])
        return told

    async def _line(self) -> dict[str, Any] | None:
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._rest:
            data = await self._process.stdout.receive_some(_READ_BYTES)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told
