"""The nodes of a run: started, killed, stopped and continued by their process ids."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from insync.storage.folder._stray import STRAY_SUFFIX

from .network import Network

PORT = 9100
LAG_MS = 3_000
STALL_MS = 3_000
"""`replica_lag_time_max_ms` and `storage_stall_timeout_ms` of the nodes."""
_READY_SECONDS = 60
_STOP_SECONDS = 60


@attrs.define(eq=False)
class Member:
    """One node: its folders, its address, and its process while it has one."""

    number: int
    folder: Path
    listen: str
    options: tuple[str, ...]
    environment: Mapping[str, str]
    network: Network | None
    process: subprocess.Popen[bytes] | None = None
    endpoint: str = ""
    wipes: int = 0

    @property
    def log_dirs(self) -> list[Path]:
        return [self.folder / "disk", self.folder / "device" / "logs"]

    @property
    def errors(self) -> Path:
        """What the node says on standard error, over all its lives."""
        return self.folder / "stderr"

    @property
    def faults(self) -> Path:
        """What it suffers from, by the files that `faulty_node` looks at."""
        return self.folder / "faults"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def start(self) -> bool:
        """Start it and wait until it serves; False if it ended instead."""
        directories = [part for each in self.log_dirs for part in ("--data-dir", str(each))]
        self.faults.mkdir(exist_ok=True)
        where = self.network.command(self.number) if self.network is not None else []
        reader, writer = os.pipe()
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *where,
                    *(sys.executable, "-m", "tests.chaos.faulty_node", "node", "--json", "--stop-with-stdin"),
                    *("--node-id", str(self.number), "--listen", self.listen, *directories, *self.options),
                ],
                stdin=subprocess.PIPE,
                stdout=writer,
                stderr=errors,
                env={**os.environ, **self.environment, "INSYNC_CHAOS_FAULTS": str(self.faults)},
            )
        os.close(writer)
        with open(reader, "rb") as output:
            with trio.move_on_after(_READY_SECONDS):
                line = await trio.to_thread.run_sync(output.readline, abandon_on_cancel=True)
                if line:
                    # The port of the first start is kept, so that clients find the node again.
                    self.endpoint = self.listen = json.loads(line)["endpoints"][0].partition("?")[0]
                    return True
        await self.end(signal.SIGKILL)
        return False

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit status. Who does not end is killed, which counts as -9."""
        assert self.process is not None
        self.process.send_signal(number)
        with trio.move_on_after(_STOP_SECONDS):
            await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.process.returncode

    def is_stopped(self) -> bool:
        """See `stands_still`."""
        assert self.process is not None
        return stands_still(self.process.pid)

    def said(self, text: str, since: int) -> bool:
        """Whether it said this on standard error after position `since` of the file."""
        return text in self.errors.read_bytes()[since:].decode(errors="replace")

    def last_words(self) -> str:
        """Its exit status, and the last line that it said."""
        status = None if self.process is None else self.process.poll()
        lines = self.errors.read_text(errors="replace").splitlines()
        return f"status {status}, {lines[-1] if lines else 'without a word'}"

    def position(self) -> int:
        return self.errors.stat().st_size if self.errors.exists() else 0

    @contextmanager
    def suffering(self, fault: str, how: str) -> Iterator[Callable[[], int]]:
        """A fault of `faulty_node` for the length of the block; gives how often it has been met since."""
        control = self.faults / fault
        self.faults.mkdir(exist_ok=True)

        def met() -> int:
            bitten = control.with_suffix(".bitten")
            return bitten.stat().st_size if bitten.exists() else 0

        before = met()
        control.write_text(how)
        try:
            yield lambda: met() - before
        finally:
            control.unlink()

    def wipe(self) -> None:
        """An empty disk in place of the old one."""
        for folder in self.log_dirs:
            shutil.rmtree(folder)
        self.wipes += 1

    def segments(self) -> list[Path]:
        """Log segments of its replicas with anything in them, the largest first. A stray log is no replica's."""
        found = [
            path
            for folder in self.log_dirs
            for path in folder.glob("*/*.log")
            if not path.parent.name.endswith(STRAY_SUFFIX) and path.stat().st_size
        ]
        return sorted(found, key=lambda path: -path.stat().st_size)


def stands_still(pid: int) -> bool:
    """Whether a process stands still (SIGSTOP); one that has ended does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(") ")[2].startswith("T")
